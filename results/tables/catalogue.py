"""Tables of cells, attempts, software environments, machines, models and data sets."""

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
            Column("git_commit", "VARCHAR", "git commit of the code, NULL outside a repository", required=False),
            Column("git_dirty", "BOOLEAN", "the code differed from the commit", required=False),
            Column("env_vars", "JSON", "environment variables that change results or speed", required=False),
        ),
    ),
    Table(
        "hardware",
        "One row per machine.",
        (
            Column("hw_id", "VARCHAR", "digest of the row", key=True),
            Column("cpu", "VARCHAR", "processor", required=False),
            Column("cores", "INTEGER", "number of cores that the process may use", required=False),
            Column("ram_bytes", "BIGINT", "main memory, rounded to 256 MiB", required=False),
            Column("gpu", "VARCHAR", "name of the GPU, NULL if there is none", required=False),
            Column("gpu_count", "INTEGER", "number of GPUs of that name", required=False),
            Column("driver", "VARCHAR", "version of the GPU's driver", required=False),
            Column("cuda", "VARCHAR", "version of CUDA", required=False),
            Column("threads", "INTEGER", "number of torch threads", required=False),
        ),
    ),
    Table(
        "model_artifact",
        "One row per model: digests of weights, configuration and tokenizer, and its shape.",
        (
            Column("model_id", "VARCHAR", "digest of the row", key=True),
            Column("name", "VARCHAR", "name of the model in the suite"),
            Column("weights_sha256", "VARCHAR", "digest of the weights"),
            Column("config_sha256", "VARCHAR", "digest of the configuration"),
            Column("tokenizer_sha256", "VARCHAR", "digest of the tokenizer; joins runs with vocabulary"),
            Column("kind", "VARCHAR", "seq2seq, causal or encoder"),
            Column("blocks", "INTEGER", "number of decoder blocks, L"),
            Column("encoder_blocks", "INTEGER", "number of blocks of the encoder, 0 if there is none", required=False),
            Column("parameters", "BIGINT", "number of weights of the model", required=False),
        ),
    ),
    Table(
        "dataset_artifact",
        "One row per task on one set of documents.",
        (
            Column("data_id", "VARCHAR", "digest of the row", key=True),
            Column("task", "VARCHAR", "name of the task"),
            Column("label", "VARCHAR", "task with its data, as named in the suite"),
            Column("split", "VARCHAR", "split of the data"),
            Column("source", "VARCHAR", "origin of the documents: builtin, local, hub or another"),
            Column("documents", "INTEGER", "number of documents"),
            Column("data_sha256", "VARCHAR", "digest of the documents"),
            Column("metric_version", "VARCHAR", "version of the metrics' definition"),
        ),
    ),
    Table(
        "cell",
        "One row per cell: the definition of a run.",
        (
            Column("cell_id", "VARCHAR", "digest of identity", key=True),
            Column("id_version", "INTEGER", "version of the content of identities"),
            Column("suite", "VARCHAR", "suite that requested the run"),
            Column("kind", "VARCHAR", "kind of cell: quality, timing, probe, scores, replay, fit or calibration"),
            Column("execution", "VARCHAR", "real (the model ran) or simulated (an exit rule was applied to a probe)"),
            Column("random_weights", "BOOLEAN", "the model was never trained, so its quality is meaningless"),
            Column("limited", "BOOLEAN", "only a subset of the documents was used"),
            Column("method", "VARCHAR", "name of the method"),
            Column(
                "method_revision",
                "VARCHAR",
                "revision of the computation: the engine's version, a point, and the method's revision",
            ),
            Column("params", "JSON", "all parameters, defaults included"),
            Column("kv_policy", "VARCHAR", "policy that computes keys and values of skipped blocks", required=False),
            Column("model_id", "VARCHAR", "model of the cell", references="model_artifact"),
            Column("data_id", "VARCHAR", "documents of the cell", references="dataset_artifact"),
            Column("generation", "JSON", "settings of generation, JSON"),
            Column("dtype", "VARCHAR", "number format"),
            Column("device", "VARCHAR", "cpu or cuda"),
            Column("batch_size", "INTEGER", "number of rows timed together"),
            Column("seed", "BIGINT", "seed of all random choices"),
            Column(
                "full_depth_cell_id",
                "VARCHAR",
                "cell of full depth on the same documents, NULL for full depth itself",
                required=False,
            ),
            Column("depends_on", "VARCHAR[]", "cells that had to succeed before this one ran"),
            Column(
                "setting_id",
                "VARCHAR",
                "digest of the identity without method, KV policy, kind and inputs: the work that cells of "
                "different methods share",
            ),
            Column("identity", "JSON", "complete definition of the cell"),
            Column("described_by", "VARCHAR", "latest attempt, whose cell.json has the names (suite, model, label)"),
            Column(
                "method_distribution",
                "VARCHAR",
                "package that provides the method, NULL if it is not from an installed package",
                required=False,
            ),
            Column("method_version", "VARCHAR", "version of that package", required=False),
            Column("seeds", "JSON", "derivation of the seed for each source of randomness, JSON", required=False),
            Column(
                "conformance",
                "JSON",
                "result of the method's contract check before its first cell: verdict and problems, NULL if it was "
                "not checked",
                required=False,
            ),
            Column(
                "not_applied",
                "JSON",
                "generation settings of the checkpoint that the run did not apply, by name, JSON, NULL if there are "
                "none",
                required=False,
            ),
            Column("cell_timeout_s", "DOUBLE", "timeout of the cell in seconds, NULL for none", required=False),
            Column("unused_params", "VARCHAR[]", "parameters that have no effect given the others"),
            Column(
                "model_source",
                "VARCHAR",
                "source of the model: hub:OWNER/NAME@COMMIT or gguf:FILE@SHA256, NULL for other folders and recipes",
                required=False,
            ),
            Column(
                "data_asked",
                "JSON",
                "selection of documents: source, split, limit, seed, level and files as in the suite; NULL for "
                "tasks of lm-eval and declared ones",
                required=False,
            ),
        ),
    ),
    Table(
        "attempt",
        "One row per attempt at a cell, whatever its status.",
        (
            Column("attempt_id", "VARCHAR", "start time, and random bits", key=True),
            Column("cell_id", "VARCHAR", "cell of the attempt", references="cell"),
            Column("status", "VARCHAR", "ok, failed, oom, timeout, skipped or interrupted"),
            Column("reason", "VARCHAR", "reason, as text; NULL if the status is ok", required=False, names_paths=True),
            Column("started_at", "TIMESTAMP", "start time, UTC"),
            Column("ended_at", "TIMESTAMP", "end time, UTC"),
            Column("env_id", "VARCHAR", "software environment", references="environment"),
            Column("hw_id", "VARCHAR", "machine", references="hardware"),
            Column(
                "comparable_id",
                "VARCHAR",
                "digest of setting, environment and hardware: times may be compared only if it is equal",
            ),
            Column("exit_code", "INTEGER", "exit code of the process, NULL if it ended otherwise", required=False),
            Column("signal", "INTEGER", "signal that ended the process", required=False),
            Column("peak_rss_bytes", "BIGINT", "peak memory of the process", required=False),
            Column(
                "log_tail", "VARCHAR", "last lines of the log", required=False, redacted_sql="NULL", names_paths=True
            ),
            Column(
                "spool_sha256", "VARCHAR", "digest of the attempt's DONE file, which holds the digests of all its files"
            ),
            Column(
                "pass_cells",
                "INTEGER",
                "cells answered by the same pass over the documents: the first of them has the seconds of all, NULL "
                "if the cell ran alone",
                required=False,
            ),
        ),
        import_key=("attempt_id",),
    ),
    Table(
        "attempt_file",
        "One row per file of an attempt's folder, as listed in its DONE file.",
        (
            ATTEMPT_ID,
            Column("name", "VARCHAR", "path of the file in the attempt's folder", key=True),
            Column("sha256", "VARCHAR", "digest of the file"),
        ),
    ),
)
