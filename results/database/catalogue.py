"""SQLAlchemy Core tables of the catalogue.

The migrations create the tables; this is their description for Python, and a test compares the two.
Traces that are only ever written through Arrow (`token_exit`, `quality_difference`, `sequence_block`, `choice_answer`,
`choice_token`, `probe_token`, `sublayer_token`, `layer_pair`, `prompt_token`, `token_time`, `score_token`, `fit_curve`,
`calibration_step`, `training_log`, `token_text`, `token_tag`, `sample_rescore`, `device_sample`,
`energy_sample`, `energy_domain`, `perf_sample`) are not described here.
"""

from typing import Final

import sqlalchemy as sa

METADATA: Final = sa.MetaData()


def _text(name: str, *, required: bool = True) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=not required)


SCHEMA_VERSION: Final = sa.Table(
    "schema_version",
    METADATA,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("applied_at", sa.DateTime, nullable=False),
    _text("tool"),
)

VIEW_SOURCE: Final = sa.Table("view_source", METADATA, sa.Column("sha256", sa.Text, primary_key=True))

ENVIRONMENT: Final = sa.Table(
    "environment",
    METADATA,
    sa.Column("env_id", sa.Text, primary_key=True),
    _text("python", required=False),
    _text("platform", required=False),
    sa.Column("packages", sa.JSON),
    _text("git_commit", required=False),
    sa.Column("git_dirty", sa.Boolean),
    sa.Column("env_vars", sa.JSON),
)

HARDWARE: Final = sa.Table(
    "hardware",
    METADATA,
    sa.Column("hw_id", sa.Text, primary_key=True),
    _text("cpu", required=False),
    sa.Column("cores", sa.Integer),
    sa.Column("ram_bytes", sa.BigInteger),
    _text("gpu", required=False),
    sa.Column("gpu_count", sa.Integer),
    _text("driver", required=False),
    _text("cuda", required=False),
    sa.Column("threads", sa.Integer),
)

MODEL_ARTIFACT: Final = sa.Table(
    "model_artifact",
    METADATA,
    sa.Column("model_id", sa.Text, primary_key=True),
    _text("name"),
    _text("weights_sha256"),
    _text("config_sha256"),
    _text("tokenizer_sha256"),
    _text("kind"),
    sa.Column("blocks", sa.Integer, nullable=False),
    sa.Column("encoder_blocks", sa.Integer),
    sa.Column("parameters", sa.BigInteger),
)

DATASET_ARTIFACT: Final = sa.Table(
    "dataset_artifact",
    METADATA,
    sa.Column("data_id", sa.Text, primary_key=True),
    _text("task"),
    _text("label"),
    _text("split"),
    _text("source"),
    sa.Column("documents", sa.Integer, nullable=False),
    _text("data_sha256"),
    _text("metric_version"),
)

TRAINING_RUN: Final = sa.Table(
    "training_run",
    METADATA,
    sa.Column("weights_sha256", sa.Text, primary_key=True),
    _text("recipe"),
    sa.Column("card", sa.JSON, nullable=False),
)

CELL: Final = sa.Table(
    "cell",
    METADATA,
    sa.Column("cell_id", sa.Text, primary_key=True),
    sa.Column("id_version", sa.Integer, nullable=False),
    _text("suite"),
    _text("kind"),
    _text("execution"),
    sa.Column("random_weights", sa.Boolean, nullable=False),
    sa.Column("limited", sa.Boolean, nullable=False),
    _text("method"),
    _text("method_revision"),
    sa.Column("params", sa.JSON, nullable=False),
    _text("kv_policy", required=False),
    _text("model_id"),
    _text("data_id"),
    sa.Column("generation", sa.JSON, nullable=False),
    _text("dtype"),
    _text("device"),
    sa.Column("batch_size", sa.Integer, nullable=False),
    sa.Column("seed", sa.BigInteger, nullable=False),
    _text("full_depth_cell_id", required=False),
    sa.Column("depends_on", sa.ARRAY(sa.Text), nullable=False),
    _text("setting_id"),
    sa.Column("identity", sa.JSON, nullable=False),
    _text("described_by"),
    _text("method_distribution", required=False),
    _text("method_version", required=False),
    sa.Column("seeds", sa.JSON(none_as_null=True)),
    sa.Column("conformance", sa.JSON(none_as_null=True)),
    sa.Column("not_applied", sa.JSON(none_as_null=True)),
    sa.Column("cell_timeout_s", sa.Double),
    sa.Column("unused_params", sa.ARRAY(sa.Text)),
    _text("model_source", required=False),
    sa.Column("data_asked", sa.JSON(none_as_null=True)),
)

ATTEMPT: Final = sa.Table(
    "attempt",
    METADATA,
    sa.Column("attempt_id", sa.Text, primary_key=True),
    _text("cell_id"),
    _text("status"),
    _text("reason", required=False),
    sa.Column("started_at", sa.DateTime, nullable=False),
    sa.Column("ended_at", sa.DateTime, nullable=False),
    _text("env_id"),
    _text("hw_id"),
    _text("comparable_id"),
    sa.Column("exit_code", sa.Integer),
    sa.Column("signal", sa.Integer),
    sa.Column("peak_rss_bytes", sa.BigInteger),
    _text("log_tail", required=False),
    _text("spool_sha256"),
    sa.Column("pass_cells", sa.Integer),
)

SAMPLE: Final = sa.Table(
    "sample",
    METADATA,
    sa.Column("attempt_id", sa.Text, primary_key=True),
    sa.Column("doc_key", sa.Text, primary_key=True),
    _text("output_text"),
    sa.Column("output_ids", sa.ARRAY(sa.Integer), nullable=False),
    sa.Column("n_prompt", sa.Integer, nullable=False),
    sa.Column("n_output", sa.Integer, nullable=False),
    _text("stop_reason"),
    sa.Column("scores", sa.JSON, nullable=False),
    sa.Column("statistics", sa.JSON, nullable=False),
    sa.Column("n_cut", sa.Integer),
    sa.Column("input_text", sa.Text),
    sa.Column("gold_text", sa.Text),
)

METRIC: Final = sa.Table(
    "metric",
    METADATA,
    sa.Column("attempt_id", sa.Text, primary_key=True),
    sa.Column("ordinal", sa.Integer, nullable=False),
    sa.Column("metric", sa.Text, primary_key=True),
    sa.Column("metric_version", sa.Text, primary_key=True),
    sa.Column("value", sa.Double, nullable=False),
    sa.Column("ci_low", sa.Double),
    sa.Column("ci_high", sa.Double),
    _text("ci_method", required=False),
    sa.Column("n", sa.BigInteger, nullable=False),
    sa.Column("scored_at", sa.DateTime, nullable=False),
    _text("role", required=False),
    sa.Column("lower_is_better", sa.Boolean),
    sa.Column("scale_low", sa.Double),
    sa.Column("scale_high", sa.Double),
)

ATTEMPT_FILE: Final = sa.Table(
    "attempt_file",
    METADATA,
    sa.Column("attempt_id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    _text("sha256"),
)

PUBLISHED_RESULT: Final = sa.Table(
    "published_result",
    METADATA,
    sa.Column("published_id", sa.Text, primary_key=True),
    sa.Column("ordinal", sa.Integer, nullable=False),
    _text("source"),
    _text("figure_or_table"),
    _text("model", required=False),
    _text("dataset", required=False),
    _text("split", required=False),
    _text("method", required=False),
    _text("setting", required=False),
    _text("metric"),
    sa.Column("value", sa.Double, nullable=False),
    sa.Column("std", sa.Double),
    _text("unit", required=False),
    _text("note", required=False),
    _text("our_task", required=False),
    _text("our_method", required=False),
    sa.Column("our_params", sa.JSON),
    sa.Column("min_exit_share", sa.Double),
    _text("our_metric", required=False),
    sa.Column("unit_factor", sa.Double),
    _text("caveat", required=False),
    sa.Column("model_blocks", sa.Integer),
    _text("model_loss", required=False),
    _text("weights_sha256", required=False),
    _text("data_sha256", required=False),
    _text("not_comparable", required=False),
)

PUBLISHED_SOURCE: Final = sa.Table("published_source", METADATA, sa.Column("sha256", sa.Text, primary_key=True))

TIMING_SAMPLE: Final = sa.Table(
    "timing_sample",
    METADATA,
    _text("attempt_id"),
    _text("doc_key"),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
    _text("arm"),
    sa.Column("twin", sa.Boolean, nullable=False),
    _text("phase"),
    sa.Column("n_tokens", sa.Integer, nullable=False),
    sa.Column("wall_ns", sa.BigInteger, nullable=False),
    sa.Column("device_ns", sa.BigInteger),
    sa.Column("cpu_ns", sa.BigInteger),
)
