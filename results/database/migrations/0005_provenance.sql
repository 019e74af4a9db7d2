-- Where every number comes from and what it may be compared with: digests of files, plugins, device readings, metrics of
-- several versions, what papers printed, benchmarks of ExitBench itself.

-- One row a file of an attempt's folder, as its DONE lists them.
CREATE TABLE attempt_file (
    attempt_id VARCHAR NOT NULL, name VARCHAR NOT NULL, sha256 VARCHAR NOT NULL, PRIMARY KEY (attempt_id, name)
);

-- Distribution and version that brought the method; NULL where an attempt does not say.
ALTER TABLE cell ADD COLUMN method_distribution VARCHAR;
ALTER TABLE cell ADD COLUMN method_version VARCHAR;

-- How the seed of each axis of randomness is found, by axis; NULL where an attempt does not say.
ALTER TABLE cell ADD COLUMN seeds JSON;

-- scored_at: when the metric was computed: the attempt's end, or later for one rescored from stored outputs.
ALTER TABLE metric RENAME TO metric_of_one_version;
CREATE TABLE metric (
    attempt_id VARCHAR NOT NULL, ordinal INTEGER NOT NULL, metric VARCHAR NOT NULL, metric_version VARCHAR NOT NULL,
    value DOUBLE NOT NULL, ci_low DOUBLE, ci_high DOUBLE, ci_method VARCHAR, n BIGINT NOT NULL,
    scored_at TIMESTAMP NOT NULL, PRIMARY KEY (attempt_id, metric, metric_version)
);
INSERT INTO metric BY NAME SELECT m.*, a.ended_at AS scored_at FROM metric_of_one_version AS m JOIN attempt AS a USING (attempt_id);
DROP TABLE metric_of_one_version;

-- Scores of stored outputs under another metric version than their attempt's own, which are in `sample`.
CREATE TABLE sample_rescore (
    attempt_id VARCHAR NOT NULL, doc_key VARCHAR NOT NULL, metric_version VARCHAR NOT NULL, scores JSON NOT NULL,
    statistics JSON NOT NULL, scored_at TIMESTAMP NOT NULL, PRIMARY KEY (attempt_id, doc_key, metric_version)
);

-- Readings of the device around each round of a timing cell; moment: start or end. NULL where the hardware does not tell.
CREATE TABLE device_sample (
    attempt_id VARCHAR NOT NULL, round INTEGER NOT NULL, moment VARCHAR NOT NULL, device VARCHAR NOT NULL,
    clock_mhz FLOAT, power_w FLOAT, temperature_c FLOAT, throttle VARCHAR, load_average FLOAT
);

-- What papers and their authors' files printed, as it was printed (ordinal: row of the file). Then what of ours it compares
-- with: our_params are among a run's parameters; unit_factor times value is on our scale; caveat: what else differs;
-- model_blocks, model_loss: of theirs; weights_sha256, data_sha256: theirs, where known; or not_comparable: why with nothing.
CREATE TABLE published_result (
    published_id VARCHAR PRIMARY KEY, ordinal INTEGER NOT NULL, source VARCHAR NOT NULL, figure_or_table VARCHAR NOT NULL,
    model VARCHAR, dataset VARCHAR, split VARCHAR, method VARCHAR, setting VARCHAR, metric VARCHAR NOT NULL,
    value DOUBLE NOT NULL, std DOUBLE, unit VARCHAR, note VARCHAR, our_task VARCHAR, our_method VARCHAR, our_params JSON,
    our_metric VARCHAR, unit_factor DOUBLE, caveat VARCHAR, model_blocks INTEGER, model_loss VARCHAR, weights_sha256 VARCHAR,
    data_sha256 VARCHAR, not_comparable VARCHAR
);

-- What papers claim, in our words. evidence_sql gives one row (value, n); the claim holds if value is direction
-- (at_least, at_most) bound, give or take tolerance. suite: the shipped suite that measures it.
CREATE TABLE claim (
    claim_id VARCHAR PRIMARY KEY, ordinal INTEGER NOT NULL, paper VARCHAR NOT NULL, place VARCHAR NOT NULL,
    text VARCHAR NOT NULL, evidence_sql VARCHAR NOT NULL, unit VARCHAR NOT NULL, direction VARCHAR NOT NULL,
    bound DOUBLE NOT NULL, tolerance DOUBLE NOT NULL, published DOUBLE, suite VARCHAR NOT NULL, caveat VARCHAR
);

-- Digest of the files that the two tables above were filled from.
CREATE TABLE published_source (sha256 VARCHAR PRIMARY KEY);

-- pytest-benchmark's results: one row a benchmark of a run; data: seconds of every round.
CREATE TABLE perf_sample (
    perf_run_id VARCHAR NOT NULL, benchmark VARCHAR NOT NULL, measured_at TIMESTAMP NOT NULL, git_commit VARCHAR,
    git_dirty BOOLEAN, machine JSON NOT NULL, params JSON, extra JSON, median_s DOUBLE NOT NULL, data DOUBLE[] NOT NULL,
    PRIMARY KEY (perf_run_id, benchmark)
);

-- What token ids are spelled by a tokenizer; begins_word: NULL for tokens that are no text.
CREATE TABLE token_text (
    tokenizer_sha256 VARCHAR NOT NULL, token_id INTEGER NOT NULL, text VARCHAR NOT NULL, begins_word BOOLEAN,
    PRIMARY KEY (tokenizer_sha256, token_id)
);

-- What full depth emitted at the same position, and when blocks agree on a probed token (see results/statistics/stability.py); so that
-- questions about all tokens need neither a join of two traces nor a walk over lists.
ALTER TABLE token_exit ADD COLUMN full_token_id INTEGER;
ALTER TABLE probe_token ADD COLUMN monotone_from SMALLINT;
ALTER TABLE probe_token ADD COLUMN first_similar SMALLINT;
ALTER TABLE probe_token ADD COLUMN similar_blocks SMALLINT;
ALTER TABLE probe_token ADD COLUMN grows_from SMALLINT;
