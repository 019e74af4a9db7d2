-- Log-likelihoods: texts that a task gave to be scored, and their tokens. Like the other token tables these carry no index.
-- token_id is NULL where an export left texts of a data set out.
CREATE TABLE choice_answer (
    attempt_id VARCHAR NOT NULL, doc_key VARCHAR NOT NULL, choice INTEGER NOT NULL, text VARCHAR, n_context INTEGER NOT NULL,
    n_cut INTEGER, n_tokens INTEGER NOT NULL, logprob DOUBLE NOT NULL, full_logprob DOUBLE, is_greedy BOOLEAN NOT NULL,
    full_is_greedy BOOLEAN, is_right BOOLEAN, is_chosen BOOLEAN, full_is_chosen BOOLEAN
);

CREATE TABLE choice_token (
    attempt_id VARCHAR NOT NULL, doc_key VARCHAR NOT NULL, choice INTEGER NOT NULL, position INTEGER NOT NULL,
    token_id INTEGER, exit_layer SMALLINT NOT NULL, blocks_run SMALLINT NOT NULL, head_rows INTEGER, score FLOAT,
    reason VARCHAR NOT NULL, logprob FLOAT NOT NULL, full_logprob FLOAT, is_greedy BOOLEAN NOT NULL, full_is_greedy BOOLEAN
);

-- Probes and scores of given texts: which text, and the given token's log-probability by block; NULL for tokens of answers.
ALTER TABLE probe_token ADD COLUMN choice INTEGER;
ALTER TABLE probe_token ADD COLUMN logprob FLOAT[];
ALTER TABLE score_token ADD COLUMN choice INTEGER;
ALTER TABLE score_token ADD COLUMN logprob FLOAT[];
