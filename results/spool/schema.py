"""Spool schema: the columns of an attempt's Parquet files and the keys of its JSON files.

The table and column meanings are in `docs/contracts.md` ("results"). Blocks are numbered 1..L, positions from 1,
logarithms are natural, times are nanoseconds.
"""

import re
from typing import Final

import pyarrow as pa

from exitbench.results.files.values import (
    ANY,
    COUNT,
    FLAG,
    INT32,
    INT64,
    LISTS,
    LONG,
    NUMBER,
    OBJECT,
    TEXT,
    TEXTS,
    TIME,
    Keys,
    of_form,
    one_of,
    optional,
    or_none,
    whole,
)

SCHEMA_VERSION: Final = 10
"""Version of the spool's layout, which status.json has; attempts of any other version are not read."""

STATUSES: Final = ("ok", "failed", "oom", "timeout", "skipped", "interrupted")
"""How an attempt can end."""

CELL_KINDS: Final = ("quality", "timing", "probe", "scores", "replay", "fit", "calibration")
EXECUTIONS: Final = ("real", "simulated")

SHA256: Final = re.compile(r"[0-9a-f]{64}")
SHORT_SHA256: Final = re.compile(r"[0-9a-f]{16}")
ATTEMPT_ID: Final = re.compile(r"[0-9]{8}T[0-9]{12}Z-[0-9a-f]{8}")
"""The forms that names of folders have: digests of what they are of, and ids of attempts."""


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _optional(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=True)


_IDS = pa.list_(pa.int32())
_FLOATS = pa.list_(pa.float32())

FITTED_FILE: Final = "fitted.safetensors"
"""What a fit cell leaves beside its tables: the tensors that other cells load."""

CARD_FILE: Final = "card.json"
TRAINING_LOG_FILE: Final = "training_log.csv"
"""What a training leaves in its model's folder: how the model came about, and values by step, block and metric."""

TRAINING_LOG: Final = pa.schema(
    [
        _required("step", pa.int32()),
        _optional("block", pa.int16()),
        _required("metric", pa.string()),
        _required("value", pa.float64()),
    ]
)

SAMPLES: Final = pa.schema(
    [
        _required("doc_key", pa.string()),
        _required("output_text", pa.string()),
        _required("output_ids", _IDS),
        _required("n_prompt", pa.int32()),
        _required("n_output", pa.int32()),
        _required("stop_reason", pa.string()),
        _required("scores", pa.string()),
        _required("statistics", pa.string()),
        _optional("n_cut", pa.int32()),
        _optional("input_text", pa.string()),
        _optional("gold_text", pa.string()),
    ]
)

TOKENS: Final = pa.schema(
    [
        _required("doc_key", pa.string()),
        _required("position", pa.int32()),
        _required("token_id", pa.int32()),
        _optional("token_kind", pa.string()),
        _required("exit_layer", pa.int16()),
        _required("blocks_run", pa.int16()),
        _optional("head_rows", pa.int32()),
        _optional("score", pa.float32()),
        _required("reason", pa.string()),
        _optional("rejected", pa.int32()),
        _optional("full_token_id", pa.int32()),
        _optional("score_half_width", pa.float32()),
        _optional("head_rows_int8", pa.int32()),
        _optional("head_fallbacks", pa.int32()),
    ]
)

CHOICES: Final = pa.schema(
    [
        _required("doc_key", pa.string()),
        _required("choice", pa.int32()),
        _optional("text", pa.string()),
        _required("n_context", pa.int32()),
        _optional("n_cut", pa.int32()),
        _required("n_tokens", pa.int32()),
        _required("logprob", pa.float64()),
        _optional("full_logprob", pa.float64()),
        _required("is_greedy", pa.bool_()),
        _optional("full_is_greedy", pa.bool_()),
        _optional("is_right", pa.bool_()),
        _optional("is_chosen", pa.bool_()),
        _optional("full_is_chosen", pa.bool_()),
    ]
)
"""One row a text whose log-likelihood was asked for; choices of a document count from 1, as the task lists them."""

CHOICE_TOKENS: Final = pa.schema(
    [
        _required("doc_key", pa.string()),
        _required("choice", pa.int32()),
        _required("position", pa.int32()),
        _required("token_id", pa.int32()),
        _required("exit_layer", pa.int16()),
        _required("blocks_run", pa.int16()),
        _optional("head_rows", pa.int32()),
        _optional("score", pa.float32()),
        _required("reason", pa.string()),
        _required("logprob", pa.float32()),
        _optional("full_logprob", pa.float32()),
        _required("is_greedy", pa.bool_()),
        _optional("full_is_greedy", pa.bool_()),
    ]
)
"""One row a scored token of a choice."""

SEQUENCE_TRACE: Final = pa.schema(
    [
        _required("doc_key", pa.string()),
        _required("block", pa.int16()),
        _optional("label_id", pa.int32()),
        _required("prediction", pa.float64()),
        _optional("probability", pa.float32()),
        _required("gold", pa.float64()),
        _optional("score", pa.float32()),
        _required("exited", pa.bool_()),
    ]
)
"""One row a document and block that was asked, the last one included, of encoders; labels by place among the task's.

A regression has no label and no probability; the last block asks no gate, and so has no score.
"""

PROBE_ID_LISTS: Final = ("top1_id", "top2_id", "top3_id", "rank_final")
PROBE_FLOAT_LISTS: Final = (
    "p1",
    "p2",
    "p3",
    "p_final",
    "entropy",
    "logsumexp",
    "cosine_previous",
    "cosine_previous_normed",
    "cosine_last",
    "jsd_previous",
    "jsd_last",
)

PROBE: Final = pa.schema(
    [
        _required("doc_key", pa.string()),
        _optional("choice", pa.int32()),
        _required("position", pa.int32()),
        _required("token_id", pa.int32()),
        _required("full_token_id", pa.int32()),
        _optional("gold_token_id", pa.int32()),
        _optional("token_kind", pa.string()),
        _required("first_match", pa.int16()),
        _required("stable_from", pa.int16()),
        *(_required(name, pa.int16()) for name in ("monotone_from", "first_similar", "similar_blocks", "grows_from")),
        *(_required(name, pa.int16()) for name in ("nearly_monotone_from", "nearly_grows_from")),
        _required("tolerance", pa.float64()),
        *(_required(name, _IDS) for name in PROBE_ID_LISTS),
        *(_required(name, _FLOATS) for name in PROBE_FLOAT_LISTS),
        _optional("logprob", _FLOATS),
    ]
)
"""Of given texts (choices) `token_id` is what was given; then `choice` and its log-probability by block are there."""

SUBLAYERS: Final = pa.schema(
    [
        _required("doc_key", pa.string()),
        _required("position", pa.int32()),
        _required("token_id", pa.int32()),
        _required("block", pa.int16()),
        _required("read_out", pa.string()),
        _required("top_ids", _IDS),
        _required("top_p", _FLOATS),
        _required("entropy", pa.float32()),
    ]
)
"""One row a probed token, block and read-out of the inside of the block; its most probable tokens, the first first."""

LAYER_PAIRS: Final = pa.schema(
    [
        _required("doc_key", pa.string()),
        _required("block_a", pa.int16()),
        _required("block_b", pa.int16()),
        _required("cosine", pa.float64()),
        _required("jsd", pa.float64()),
        _required("n", pa.int32()),
    ]
)
"""One row a document and pair of blocks, both ways round and with itself; means over its `n` probed tokens."""

SCORES: Final = pa.schema(
    [
        _required("doc_key", pa.string()),
        _optional("choice", pa.int32()),
        _required("position", pa.int32()),
        _required("score", _FLOATS),
        _required("emitted_id", _IDS),
        _optional("logprob", _FLOATS),
    ]
)
"""One entry a block 1..L, as if the token had not left before: NaN and -1 where the gate is not asked.

The last block asks no gate, so its score is always NaN. Of given texts (choices) `logprob` is the given token's, and
`emitted_id` that token where it is the most probable one, else -1.
"""

FIT_CURVE: Final = pa.schema(
    [
        _required("epoch", pa.int32()),
        _required("train_loss", pa.float64()),
        _required("held_out_loss", pa.float64()),
        _required("held_out_accuracy", pa.float64()),
    ]
)

CALIBRATION: Final = pa.schema(
    [
        _required("step", pa.int32()),
        _required("threshold", pa.float64()),
        _required("mean_loss", pa.float64()),
        _optional("p_value", pa.float64()),
        _required("passed", pa.bool_()),
        _required("mean_exit_layer", pa.float64()),
        _required("n", pa.int64()),
    ]
)
"""One row a level tried, conservative first; `threshold` is the method's own parameter, `n` counts documents."""

METRICS: Final = pa.schema(
    [
        _required("metric", pa.string()),
        _required("metric_version", pa.string()),
        _required("value", pa.float64()),
        _optional("ci_low", pa.float64()),
        _optional("ci_high", pa.float64()),
        _optional("ci_method", pa.string()),
        _required("n", pa.int64()),
        _required("role", pa.string()),
        _optional("lower_is_better", pa.bool_()),
        _optional("scale_low", pa.float64()),
        _optional("scale_high", pa.float64()),
    ]
)
"""One row per metric. Only scores (headline, task, agreement) say which way is better, and on which scale they are."""

ROLES: Final = ("headline", "task", "agreement", "depth", "cost", "speed", "energy", "format", "preparation", "data")
"""What a metric is about, said by whoever writes it.

headline, task: scores of answers, of which a task's headline metric is the one that stands for it; agreement: with full
depth; depth: blocks; cost: work, as counted; speed: time, as measured; energy: as the machine's counters tell;
format: what the number format changes; preparation: of what was fitted or calibrated; data: documents and prompts that
were left out or cut.
"""

TIMINGS: Final = pa.schema(
    [
        _required("doc_key", pa.string()),
        _required("round", pa.int32()),
        _required("position", pa.int32()),
        _required("arm", pa.string()),
        _required("twin", pa.bool_()),
        _required("phase", pa.string()),
        _required("n_tokens", pa.int32()),
        _required("wall_ns", pa.int64()),
        _optional("device_ns", pa.int64()),
        _required("cpu_ns", pa.int64()),
    ]
)

DEVICE: Final = pa.schema(
    [
        _required("round", pa.int32()),
        _required("moment", pa.string()),
        _required("device", pa.string()),
        _optional("clock_mhz", pa.float32()),
        _optional("power_w", pa.float32()),
        _optional("temperature_c", pa.float32()),
        _optional("throttle", pa.string()),
        _optional("load_average", pa.float32()),
    ]
)
"""Readings of the device before (`moment` start) and after (end) each round of a timing."""

ENERGY: Final = pa.schema(
    [
        _required("doc_key", pa.string()),
        _required("round", pa.int32()),
        _required("position", pa.int32()),
        _required("arm", pa.string()),
        _required("twin", pa.bool_()),
        _required("domain", pa.string()),
        _required("energy_uj", pa.int64()),
        _required("wall_ns", pa.int64()),
    ]
)
"""What each counter of energy counted around each timed decode, gross; `wall_ns` is between its two readings."""

ENERGY_DOMAINS: Final = pa.schema(
    [
        _required("domain", pa.string()),
        _required("is_counted", pa.bool_()),
        _required("idle_uj", pa.int64()),
        _required("idle_ns", pa.int64()),
        _optional("update_ns", pa.int64()),
    ]
)
"""The counters of a timing: what they counted while nothing was decoded, and how long they stand between two steps."""

PROMPTS: Final = pa.schema(
    [_required("doc_key", pa.string()), _required("position", pa.int32()), _required("token_id", pa.int32())]
)
"""One row a token of a prompt as it is fed, of probes asked to record prompt-ids."""

TOKEN_TIMES: Final = pa.schema(
    [
        _required("doc_key", pa.string()),
        _required("round", pa.int32()),
        _required("arm", pa.string()),
        _required("position", pa.int32()),
        _required("token_id", pa.int32()),
        _required("exit_layer", pa.int16()),
        _required("wall_ns", pa.int64()),
    ]
)
"""One row a token of an untraced decode whose clock is read after each, of timings asked to record token-times."""

TABLES: Final[dict[str, pa.Schema]] = {
    "samples": SAMPLES,
    "tokens": TOKENS,
    "sequence_trace": SEQUENCE_TRACE,
    "choices": CHOICES,
    "choice_tokens": CHOICE_TOKENS,
    "probe": PROBE,
    "sublayers": SUBLAYERS,
    "layer_pairs": LAYER_PAIRS,
    "prompts": PROMPTS,
    "scores": SCORES,
    "fit_curve": FIT_CURVE,
    "calibration": CALIBRATION,
    "metrics": METRICS,
    "timings": TIMINGS,
    "token_times": TOKEN_TIMES,
    "device": DEVICE,
    "energy": ENERGY,
    "energy_domains": ENERGY_DOMAINS,
}
"""Schema of each Parquet file by its name without the ending. A writer may leave out a column that may be NULL."""

CELL_KEYS: Final[Keys] = {
    "": {
        "cell_id": of_form("64 hexadecimal digits", SHA256),
        "id_version": COUNT,
        "suite": TEXT,
        "kind": one_of(CELL_KINDS),
        "execution": one_of(EXECUTIONS),
        "random_weights": FLAG,
        "limited": FLAG,
        "method": OBJECT,
        "engine_version": COUNT,
        "engine": TEXT,
        "device_map": or_none(LISTS),
        "head_precision": TEXT,
        "kv_policy": or_none(TEXT),
        "model": OBJECT,
        "task": OBJECT,
        "generation": OBJECT,
        "dtype": TEXT,
        "device": TEXT,
        "batch_size": COUNT,
        "batch_rows": or_none(COUNT),
        "seed": whole(-INT64 - 1, INT64),
        "full_depth_cell_id": or_none(TEXT),
        "depends_on": TEXTS,
        "identity": OBJECT,
        "seeds": ANY,
        "data": optional(OBJECT),
        "held_out": optional(OBJECT),
        "conformance": optional(ANY),
        "not_applied": optional(ANY),
        "cell_timeout_s": optional(NUMBER),
    },
    "method": {
        "name": TEXT,
        "params": OBJECT,
        "revision": TEXT,
        "distribution": or_none(TEXT),
        "version": or_none(TEXT),
        "unused_params": TEXTS,
    },
    "model": {
        "name": TEXT,
        "weights_sha256": TEXT,
        "config_sha256": TEXT,
        "tokenizer_sha256": TEXT,
        "kind": TEXT,
        "blocks": COUNT,
        "encoder_blocks": or_none(COUNT),
        "parameters": or_none(LONG),
        "source": or_none(TEXT),
    },
    "task": {
        "name": TEXT,
        "label": TEXT,
        "split": TEXT,
        "source": ANY,
        "documents": COUNT,
        "data_sha256": TEXT,
        "metric_version": TEXT,
    },
    "generation": {},
    "identity": {},
}
"""Keys of cell.json. Only a cell of a plan says which documents to read and what was found of its method before."""

ENV_KEYS: Final[Keys] = {
    "": {"environment": OBJECT, "hardware": OBJECT, "products": optional(OBJECT)},
    "environment": {
        "python": or_none(TEXT),
        "platform": or_none(TEXT),
        "packages": ANY,
        "git_commit": or_none(TEXT),
        "git_dirty": or_none(FLAG),
        "env_vars": ANY,
    },
    "hardware": {
        "cpu": or_none(TEXT),
        "cores": or_none(COUNT),
        "ram_bytes": or_none(LONG),
        "gpu": or_none(TEXT),
        "gpu_count": or_none(COUNT),
        "driver": or_none(TEXT),
        "cuda": or_none(TEXT),
        "threads": or_none(COUNT),
    },
}
"""What env.json holds."""

STATUS_KEYS: Final[Keys] = {
    "": {
        "schema_version": whole(SCHEMA_VERSION, SCHEMA_VERSION),
        "status": one_of(STATUSES),
        "reason": or_none(TEXT),
        "started_at": TIME,
        "ended_at": TIME,
        "exit_code": optional(whole(-INT32 - 1, INT32)),
        "signal": optional(COUNT),
        "peak_rss_bytes": optional(LONG),
        "pass_cells": optional(COUNT),
        "log_tail": optional(TEXT),
    },
}
"""What status.json holds."""
