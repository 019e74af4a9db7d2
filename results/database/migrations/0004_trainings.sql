-- How models were trained: one row a model, and its log, one row a step, block (NULL: the whole model) and metric.

CREATE TABLE training_run (weights_sha256 VARCHAR PRIMARY KEY, recipe VARCHAR NOT NULL, card JSON NOT NULL);

CREATE TABLE training_log (
    weights_sha256 VARCHAR NOT NULL, step INTEGER NOT NULL, block SMALLINT, metric VARCHAR NOT NULL, value DOUBLE NOT NULL
);
