-- Quality of a run against full depth of the same checkpoint, paired by document. Made of sample, sample_rescore and metric
-- (results/ingest/differences.py) by every ingest, since SQL cannot invert a distribution.

-- part: all, choosing or confirming documents; the macro is_choosing tells which a document belongs to. delta, delta_low and
-- delta_high are NULL where the metric is no mean of its documents; the ends also where fewer than two documents leave no interval.
CREATE TABLE quality_difference (
    attempt_id VARCHAR NOT NULL, full_attempt_id VARCHAR NOT NULL, metric VARCHAR NOT NULL, part VARCHAR NOT NULL,
    scored_at TIMESTAMP NOT NULL, full_scored_at TIMESTAMP NOT NULL, n INTEGER NOT NULL, n_up INTEGER NOT NULL,
    n_down INTEGER NOT NULL, delta DOUBLE, delta_low DOUBLE, delta_high DOUBLE
);
