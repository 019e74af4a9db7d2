-- What each block that was asked said of a document, of encoders: labels by their place among the task's, NULL in a regression.
-- Like the token tables it carries no index.
CREATE TABLE sequence_block (
    attempt_id VARCHAR NOT NULL, doc_key VARCHAR NOT NULL, block SMALLINT NOT NULL, label_id INTEGER, prediction DOUBLE NOT NULL,
    probability FLOAT, gold DOUBLE NOT NULL, score FLOAT, exited BOOLEAN NOT NULL
);
