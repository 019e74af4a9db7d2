-- What probe cells record of the inside of their blocks where they are asked to, and word classes of stored answers.

-- One row a probed token, block and read-out; lists have ten entries (fewer where the vocabulary is smaller), the most
-- probable first. Like the other token tables it carries no index.
CREATE TABLE sublayer_token (
    attempt_id VARCHAR NOT NULL, doc_key VARCHAR NOT NULL, position INTEGER NOT NULL, token_id INTEGER NOT NULL,
    block SMALLINT NOT NULL, read_out VARCHAR NOT NULL, top_ids INTEGER[] NOT NULL,
    top_p FLOAT[] USING COMPRESSION uncompressed NOT NULL, entropy FLOAT NOT NULL
);

-- One row a document and ordered pair of blocks, both ways round and with itself; means over n tokens.
CREATE TABLE layer_pair (
    attempt_id VARCHAR NOT NULL, doc_key VARCHAR NOT NULL, block_a SMALLINT NOT NULL, block_b SMALLINT NOT NULL,
    cosine DOUBLE NOT NULL, jsd DOUBLE NOT NULL, n INTEGER NOT NULL
);

-- One row a token of a stored answer that belongs to a word, and tagger (library, model and their versions).
CREATE TABLE token_tag (
    attempt_id VARCHAR NOT NULL, doc_key VARCHAR NOT NULL, position INTEGER NOT NULL, upos VARCHAR NOT NULL,
    tagger VARCHAR NOT NULL
);
