"""Catalogue: cells, attempts, machines, models and data."""

from typing import Final

from exitbench.results.tables.declared import ATTEMPT_ID, Column, Table

CATALOGUE: Final = (
    Table(
        "environment",
        "One row per software environment: interpreter, packages, commit, variables.",
        (
            Column("env_id", "VARCHAR", "digest of the row", key=True),
            Column("python", "VARCHAR", "version of Python", required=False),
            Column("platform", "VARCHAR", "operating system", required=False),
            Column("packages", "JSON", "versions of packages, by name", required=False),
            Column("git_commit", "VARCHAR", "of the code, NULL outside a repository", required=False),
            Column("git_dirty", "BOOLEAN", "the code differed from the commit", required=False),
            Column(
                "env_vars", "JSON", "environment variables that change what is computed or how fast", required=False
            ),
        ),
    ),
    Table(
        "hardware",
        "One row per machine.",
        (
            Column("hw_id", "VARCHAR", "digest of the row", key=True),
            Column("cpu", "VARCHAR", "processor", required=False),
            Column("cores", "INTEGER", "that the process may use", required=False),
            Column("ram_bytes", "BIGINT", "main memory", required=False),
            Column("gpu", "VARCHAR", "name of the GPU, NULL where there is none", required=False),
            Column("gpu_count", "INTEGER", "GPUs of that name", required=False),
            Column("driver", "VARCHAR", "version of the GPU's driver", required=False),
            Column("cuda", "VARCHAR", "version of CUDA", required=False),
            Column("threads", "INTEGER", "of torch", required=False),
        ),
    ),
    Table(
        "model_artifact",
        "One row per model: digests of weights, configuration and tokenizer, and its shape.",
        (
            Column("model_id", "VARCHAR", "digest of the row", key=True),
            Column("name", "VARCHAR", "what the suite calls it"),
            Column("weights_sha256", "VARCHAR", "digest of the weights"),
            Column("config_sha256", "VARCHAR", "digest of the configuration"),
            Column("tokenizer_sha256", "VARCHAR", "digest of the tokenizer; joins runs with vocabulary"),
            Column("kind", "VARCHAR", "seq2seq, causal or classifier"),
            Column("blocks", "INTEGER", "decoder blocks L"),
            Column("encoder_blocks", "INTEGER", "blocks of the encoder, 0 where there is none", required=False),
            Column("parameters", "BIGINT", "weights of the model", required=False),
        ),
    ),
    Table(
        "dataset_artifact",
        "One row per task on one set of documents.",
        (
            Column("data_id", "VARCHAR", "digest of the row", key=True),
            Column("task", "VARCHAR", "name of the task"),
            Column("label", "VARCHAR", "what the suite calls it"),
            Column("split", "VARCHAR", "of the data"),
            Column("source", "VARCHAR", "builtin, local, hub, or where else the documents are from"),
            Column("documents", "INTEGER", "documents of the data"),
            Column("data_sha256", "VARCHAR", "digest of the documents"),
            Column("metric_version", "VARCHAR", "version of the metrics' definition"),
        ),
    ),
    Table(
        "cell",
        "One row per cell: what was asked.",
        (
            Column("cell_id", "VARCHAR", "digest of identity", key=True),
            Column("id_version", "INTEGER", "version of what identities contain"),
            Column("suite", "VARCHAR", "who asked for the run"),
            Column("kind", "VARCHAR", "of cell: quality, timing, probe, scores, replay, fit or calibration"),
            Column("execution", "VARCHAR", "real (the model ran) or simulated (an exit rule was applied to a probe)"),
            Column("random_weights", "BOOLEAN", "the model was never trained, so its quality means nothing"),
            Column("limited", "BOOLEAN", "only a part of the documents"),
            Column("method", "VARCHAR", "name of the method"),
            Column(
                "method_revision",
                "VARCHAR",
                "what tells apart what a method computed: the engine's version, a point, and the method's revision",
            ),
            Column("params", "JSON", "all parameters, defaults included"),
            Column("kv_policy", "VARCHAR", "what becomes of keys and values of skipped blocks", required=False),
            Column("model_id", "VARCHAR", "the model", references="model_artifact"),
            Column("data_id", "VARCHAR", "the documents", references="dataset_artifact"),
            Column("generation", "JSON", "settings of generation, JSON"),
            Column("dtype", "VARCHAR", "number format"),
            Column("device", "VARCHAR", "cpu or cuda"),
            Column("batch_size", "INTEGER", "rows timed together"),
            Column("seed", "BIGINT", "of all that is random"),
            Column(
                "full_depth_cell_id",
                "VARCHAR",
                "full depth on the same documents, NULL for full depth itself",
                required=False,
            ),
            Column("depends_on", "VARCHAR[]", "cells that must have ended well before this one ran"),
            Column(
                "setting_id",
                "VARCHAR",
                "digest of the identity without method, KV policy, kind and inputs: the work that cells of "
                "different methods share",
            ),
            Column("identity", "JSON", "exactly what was asked"),
            Column(
                "described_by", "VARCHAR", "latest attempt, whose cell.json the names (suite, model, label) are from"
            ),
            Column(
                "method_distribution",
                "VARCHAR",
                "package that brought the method, NULL where no installed one did",
                required=False,
            ),
            Column("method_version", "VARCHAR", "version of that package", required=False),
            Column("seeds", "JSON", "by axis of randomness, how each seed is found, JSON", required=False),
            Column(
                "conformance",
                "JSON",
                "what was found of the method before its first cell: verdict and problems, NULL where it was not tried",
                required=False,
            ),
            Column(
                "not_applied",
                "JSON",
                "of the checkpoint's own generation settings those that the run did not apply, by name, JSON, NULL "
                "where there are none",
                required=False,
            ),
            Column("cell_timeout_s", "DOUBLE", "seconds after which the cell is ended, NULL for never", required=False),
            Column("unused_params", "VARCHAR[]", "parameters that the others leave without effect"),
            Column(
                "model_source",
                "VARCHAR",
                "where the model came from: hub:OWNER/NAME@COMMIT or gguf:FILE@SHA256, NULL for a folder of one's own "
                "or a recipe",
                required=False,
            ),
            Column(
                "data_asked",
                "JSON",
                "which documents were asked for: source, split, limit, seed, level and files as a suite says them; "
                "NULL for tasks of lm-eval and declared ones",
                required=False,
            ),
        ),
    ),
    Table(
        "attempt",
        "One row per attempt at a cell, whatever became of it.",
        (
            Column("attempt_id", "VARCHAR", "when it began, and random bits", key=True),
            Column("cell_id", "VARCHAR", "what was asked", references="cell"),
            Column("status", "VARCHAR", "ok, failed, oom, timeout, skipped or interrupted"),
            Column("reason", "VARCHAR", "why, in words; NULL where it is ok", required=False, names_paths=True),
            Column("started_at", "TIMESTAMP", "UTC"),
            Column("ended_at", "TIMESTAMP", "UTC"),
            Column("env_id", "VARCHAR", "software environment", references="environment"),
            Column("hw_id", "VARCHAR", "machine", references="hardware"),
            Column(
                "comparable_id",
                "VARCHAR",
                "digest of setting, environment and hardware: equal where times may be compared",
            ),
            Column("exit_code", "INTEGER", "of the process, NULL where it did not end by one", required=False),
            Column("signal", "INTEGER", "that ended the process", required=False),
            Column("peak_rss_bytes", "BIGINT", "most memory that the process held", required=False),
            Column(
                "log_tail", "VARCHAR", "last lines of the log", required=False, redacted_sql="NULL", names_paths=True
            ),
            Column(
                "spool_sha256", "VARCHAR", "digest of the attempt's DONE file, which holds the digests of all its files"
            ),
            Column(
                "pass_cells",
                "INTEGER",
                "cells that one pass over the documents answered: the first of them has the seconds of all, NULL "
                "where it was alone",
                required=False,
            ),
        ),
        arrives_by=("attempt_id",),
    ),
    Table(
        "attempt_file",
        "One row per file of an attempt's folder, as its DONE lists them.",
        (
            ATTEMPT_ID,
            Column("name", "VARCHAR", "of the file in the attempt's folder", key=True),
            Column("sha256", "VARCHAR", "its digest"),
        ),
    ),
)
