-- The catalogue (one row a cell, attempt, machine, artifact) and the traces (one row a document, request or token).
-- Times are UTC; ids that end in _id are SHA-256 of canonical JSON, except attempt_id, which sorts by time.

CREATE TABLE schema_version (version INTEGER PRIMARY KEY, applied_at TIMESTAMP NOT NULL, tool VARCHAR NOT NULL);

CREATE TABLE environment (
    env_id VARCHAR PRIMARY KEY, python VARCHAR, platform VARCHAR, packages JSON, git_commit VARCHAR, git_dirty BOOLEAN,
    env_vars JSON
);

CREATE TABLE hardware (
    hw_id VARCHAR PRIMARY KEY, cpu VARCHAR, cores INTEGER, ram_bytes BIGINT, gpu VARCHAR, gpu_count INTEGER,
    driver VARCHAR, cuda VARCHAR, threads INTEGER
);

CREATE TABLE model_artifact (
    model_id VARCHAR PRIMARY KEY, name VARCHAR NOT NULL, weights_sha256 VARCHAR NOT NULL,
    config_sha256 VARCHAR NOT NULL, tokenizer_sha256 VARCHAR NOT NULL, kind VARCHAR NOT NULL, blocks INTEGER NOT NULL,
    encoder_blocks INTEGER, parameters BIGINT
);

CREATE TABLE dataset_artifact (
    data_id VARCHAR PRIMARY KEY, task VARCHAR NOT NULL, label VARCHAR NOT NULL, split VARCHAR NOT NULL,
    source VARCHAR NOT NULL, documents INTEGER NOT NULL, data_sha256 VARCHAR NOT NULL, metric_version VARCHAR NOT NULL
);

-- setting_id: the identity without method, KV policy and kind: the work that cells of different methods share.
-- described_by: the latest attempt, whose cell.json the names (suite, model, label) of this row come from.
CREATE TABLE cell (
    cell_id VARCHAR PRIMARY KEY, id_version INTEGER NOT NULL, suite VARCHAR NOT NULL, kind VARCHAR NOT NULL,
    execution VARCHAR NOT NULL, random_weights BOOLEAN NOT NULL, limited BOOLEAN NOT NULL, method VARCHAR NOT NULL,
    method_sha256 VARCHAR NOT NULL, params JSON NOT NULL, kv_policy VARCHAR, model_id VARCHAR NOT NULL,
    data_id VARCHAR NOT NULL, generation JSON NOT NULL, dtype VARCHAR NOT NULL, device VARCHAR NOT NULL,
    batch_size INTEGER NOT NULL, seed BIGINT NOT NULL, full_depth_cell_id VARCHAR, depends_on VARCHAR[] NOT NULL,
    setting_id VARCHAR NOT NULL, identity JSON NOT NULL, described_by VARCHAR NOT NULL
);

-- comparable_id: setting, environment and hardware: attempts whose times may be compared.
-- spool_sha256: digest of the attempt's DONE file, which holds the digests of all its files.
CREATE TABLE attempt (
    attempt_id VARCHAR PRIMARY KEY, cell_id VARCHAR NOT NULL, status VARCHAR NOT NULL, reason VARCHAR,
    started_at TIMESTAMP NOT NULL, ended_at TIMESTAMP NOT NULL, env_id VARCHAR NOT NULL, hw_id VARCHAR NOT NULL,
    comparable_id VARCHAR NOT NULL, exit_code INTEGER, signal INTEGER, peak_rss_bytes BIGINT, log_tail VARCHAR,
    spool_sha256 VARCHAR NOT NULL
);

CREATE TABLE sample (
    attempt_id VARCHAR NOT NULL, doc_key VARCHAR NOT NULL, output_text VARCHAR NOT NULL, output_ids INTEGER[] NOT NULL,
    n_prompt INTEGER NOT NULL, n_output INTEGER NOT NULL, stop_reason VARCHAR NOT NULL, scores JSON NOT NULL,
    statistics JSON NOT NULL, PRIMARY KEY (attempt_id, doc_key)
);

-- ordinal: order in which the attempt wrote its metrics; a task's headline metric is the first of its own.
CREATE TABLE metric (
    attempt_id VARCHAR NOT NULL, ordinal INTEGER NOT NULL, metric VARCHAR NOT NULL, metric_version VARCHAR NOT NULL,
    value DOUBLE NOT NULL, ci_low DOUBLE, ci_high DOUBLE, ci_method VARCHAR, n BIGINT NOT NULL,
    PRIMARY KEY (attempt_id, metric)
);

CREATE TABLE timing_sample (
    attempt_id VARCHAR NOT NULL, doc_key VARCHAR NOT NULL, round INTEGER NOT NULL, position INTEGER NOT NULL,
    arm VARCHAR NOT NULL, twin BOOLEAN NOT NULL, phase VARCHAR NOT NULL, n_tokens INTEGER NOT NULL,
    wall_ns BIGINT NOT NULL, device_ns BIGINT
);

-- The token tables carry no index: they are read by scans, and an index would halve the speed of ingest.
CREATE TABLE token_exit (
    attempt_id VARCHAR NOT NULL, doc_key VARCHAR NOT NULL, position INTEGER NOT NULL, token_id INTEGER NOT NULL,
    token_kind VARCHAR, exit_layer SMALLINT NOT NULL, blocks_run SMALLINT NOT NULL, score FLOAT, reason VARCHAR NOT NULL
);

-- One list entry per block 1..L; a long row per block would be seven times larger. To look for patterns in recorded
-- probabilities takes a quarter of the time of ingest and finds few, so they are stored as they are.
CREATE TABLE probe_token (
    attempt_id VARCHAR NOT NULL, doc_key VARCHAR NOT NULL, position INTEGER NOT NULL, token_id INTEGER NOT NULL,
    full_token_id INTEGER NOT NULL, gold_token_id INTEGER, token_kind VARCHAR, first_match SMALLINT NOT NULL,
    stable_from SMALLINT NOT NULL, top1_id INTEGER[] NOT NULL, top2_id INTEGER[] NOT NULL, top3_id INTEGER[] NOT NULL,
    rank_final INTEGER[] NOT NULL,
    p1 FLOAT[] USING COMPRESSION uncompressed NOT NULL,
    p2 FLOAT[] USING COMPRESSION uncompressed NOT NULL,
    p3 FLOAT[] USING COMPRESSION uncompressed NOT NULL,
    p_final FLOAT[] USING COMPRESSION uncompressed NOT NULL,
    entropy FLOAT[] USING COMPRESSION uncompressed NOT NULL,
    logsumexp FLOAT[] USING COMPRESSION uncompressed NOT NULL,
    cosine_previous FLOAT[] USING COMPRESSION uncompressed NOT NULL,
    cosine_previous_normed FLOAT[] USING COMPRESSION uncompressed NOT NULL,
    cosine_last FLOAT[] USING COMPRESSION uncompressed NOT NULL,
    jsd_previous FLOAT[] USING COMPRESSION uncompressed NOT NULL,
    jsd_last FLOAT[] USING COMPRESSION uncompressed NOT NULL
);

-- Digest of the text that the views were created from.
CREATE TABLE view_source (sha256 VARCHAR PRIMARY KEY);
