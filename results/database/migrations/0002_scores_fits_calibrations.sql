-- What cells of kind scores, fit and calibration record, and the rows of the LM head that each token multiplied.

ALTER TABLE token_exit ADD COLUMN head_rows INTEGER;

-- One list entry per block 1..L, as in probe_token.
CREATE TABLE score_token (
    attempt_id VARCHAR NOT NULL, doc_key VARCHAR NOT NULL, position INTEGER NOT NULL,
    score FLOAT[] USING COMPRESSION uncompressed NOT NULL, emitted_id INTEGER[] NOT NULL
);

CREATE TABLE fit_curve (
    attempt_id VARCHAR NOT NULL, epoch INTEGER NOT NULL, train_loss DOUBLE NOT NULL, held_out_loss DOUBLE NOT NULL,
    held_out_accuracy DOUBLE NOT NULL, PRIMARY KEY (attempt_id, epoch)
);

-- step: 1 is the most conservative level; only the last of an attempt can have failed.
CREATE TABLE calibration_step (
    attempt_id VARCHAR NOT NULL, step INTEGER NOT NULL, threshold DOUBLE NOT NULL, mean_loss DOUBLE NOT NULL,
    p_value DOUBLE, passed BOOLEAN NOT NULL, mean_exit_layer DOUBLE NOT NULL, n BIGINT NOT NULL,
    PRIMARY KEY (attempt_id, step)
);
