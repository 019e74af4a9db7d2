-- What probes and timings record where they are asked to: prompts as they were fed (token_id is NULL where an export left it out),
-- and when each token was there. Like the other token tables they carry no index.
CREATE TABLE prompt_token (
    attempt_id VARCHAR NOT NULL, doc_key VARCHAR NOT NULL, position INTEGER NOT NULL, token_id INTEGER
);

-- One row a token, round and arm ('full', 'method') of an untraced decode with a reading of the clock a token.
CREATE TABLE token_time (
    attempt_id VARCHAR NOT NULL, doc_key VARCHAR NOT NULL, round INTEGER NOT NULL, arm VARCHAR NOT NULL, position INTEGER NOT NULL,
    token_id INTEGER NOT NULL, exit_layer SMALLINT NOT NULL, wall_ns BIGINT NOT NULL
);
