"""A small, deterministic, plausible spool: two models on three tasks by five methods, of every kind of cell.

Every token has a block from which its prediction is settled and a margin that grows with depth; exits, outputs,
scores and times of all methods follow from those, so that numbers of different cells fit together: deeper is slower
and agrees more.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from exitbench.results.files.canonical import content_id
from exitbench.results.spool import attempts as spool
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import FITTED_FILE, PROBE_FLOAT_LISTS, PROBE_ID_LISTS
from exitbench.results.statistics.intervals import (
    PERCENT,
    Interval,
    bounded_ratio_interval,
    mean_interval,
    ratio_interval,
)
from exitbench.results.statistics.risk_control import calibrate
from exitbench.results.statistics.stability import settling

DOCUMENTS = 8
TOKENS = 5
VOCABULARY = 100
KINDS = ("frame", "copy", "lexical", "hop1", "hop2")
N_BOOT = 200
NS_PER_BLOCK = 1_000_000
PREFILL_NS = 2 * NS_PER_BLOCK
ROLES = {
    **dict.fromkeys(("mean_exit_layer", "mean_blocks_run", "held_out_mean_exit_layer"), "depth"),
    **dict.fromkeys(("token_match", "acceptance_rate"), "agreement"),
    **dict.fromkeys(("ideal_speedup_bytes", "ideal_speedup_flops", "ideal_speedup_decode"), "cost"),
    **{f"cost_{part}_bytes": "cost" for part in ("blocks", "heads", "gates", "kv", "verification", "total")},
    **dict.fromkeys(("threshold", "held_out_loss", "held_out_accuracy"), "preparation"),
}
"""Of metrics that are none of a task's, those of quality, fit and calibration cells."""

ENV = {
    "environment": {
        "python": "3.11.7",
        "platform": "Linux-test",
        "packages": {"torch": "2.13.0", "transformers": "5.23.0"},
        "git_commit": "0123456789abcdef0123456789abcdef01234567",
        "git_dirty": False,
        "env_vars": {"OMP_NUM_THREADS": "2"},
    },
    "hardware": {
        "cpu": "Test CPU",
        "cores": 2,
        "ram_bytes": 8 << 30,
        "gpu": None,
        "gpu_count": 0,
        "driver": None,
        "cuda": None,
        "threads": 2,
    },
}


@dataclass(frozen=True)
class Model:
    name: str
    kind: str
    blocks: int
    encoder_blocks: int


@dataclass(frozen=True)
class Task:
    name: str
    label: str
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class Method:
    name: str
    params: Mapping[str, Any]
    kv_policy: str = "state-copy"


MODELS = (Model("world-t5", "seq2seq", 6, 3), Model("world-gpt", "causal", 4, 0))
TASKS = (
    Task("squad", "squad", ("f1", "em")),
    Task("samsum", "samsum", ("rougeL", "rouge1")),
    Task("wmt-en-fr", "wmt-en-fr", ("bleu", "chrf")),
)
FULL = Method("full", {})
CALM = tuple(
    Method("calm-softmax", {"threshold": threshold, "min_exit": 1, "decay": "none"}) for threshold in (0.3, 0.6, 0.9)
)
METHODS = (
    FULL,
    Method("static", {"exit_layer": 2}),
    Method("random", {"mean_exit": 2.5, "seed": 0}),
    Method("oracle", {"match": "stable", "kv_policy": "state-copy"}),
)
FITTED = Method("calm-classifier", {"threshold": 0.5, "epochs": 3})
LEVELS = (0.9, 0.6, 0.3)
CALIBRATION = {
    "levels": list(LEVELS),
    "delta": 0.35,
    "epsilon": 0.3,
    "consistency": "textual",
    "rule": "hoeffding",
    "held_out_sha256": "",
}


@dataclass(frozen=True)
class World:
    """What a model believes about every token of a task: arrays [N] or [N, blocks], N = DOCUMENTS * TOKENS."""

    stable_from: np.ndarray
    top1_id: np.ndarray
    margin: np.ndarray

    @property
    def final_id(self) -> np.ndarray:
        return self.top1_id[:, -1]


def make_spool(root: Path) -> None:
    """Write the spool at `root`."""
    with _fixed_clock():
        for model in MODELS:
            for task in TASKS:
                _write_pair(root, model, task, _world(model, task))
        for model in MODELS:
            for task in TASKS:
                _write_preparations(root, model, task, _world(model, task))


def _write_pair(root: Path, model: Model, task: Task, world: World) -> None:
    full = cell_json(model, task, FULL, "quality")
    probe = cell_json(model, task, FULL, "probe", full["cell_id"])
    _write_quality(root, full, task, world, _exits(FULL, world))
    _write_probe(root, probe, world)
    for method in (*METHODS[1:], *CALM):
        exits = _exits(method, world)
        _write_quality(root, cell_json(model, task, method, "quality", full["cell_id"]), task, world, exits)
        _write_timing(root, cell_json(model, task, method, "timing", full["cell_id"]), world, exits)
    for method in CALM:
        cell = cell_json(model, task, method, "replay", full["cell_id"], (probe["cell_id"],))
        _write_replay(root, cell, world, _exits(method, world))
    if (model, task) == (MODELS[0], TASKS[0]):
        _write_troubles(
            root, cell_json(model, task, Method("static", {"exit_layer": 1}), "quality", full["cell_id"]), full
        )


def _write_preparations(root: Path, model: Model, task: Task, world: World) -> None:
    """What methods need before they run well: scores for replays, fits, and calibrated thresholds."""
    full = cell_json(model, task, FULL, "quality")
    probe = cell_json(model, task, FULL, "probe", full["cell_id"])
    _write_scores(root, cell_json(model, task, CALM[0], "scores", None, (probe["cell_id"],)), world)
    _write_fit(root, cell_json(model, task, FITTED, "fit"))
    _write_calibration(root, cell_json(model, task, CALM[0], "calibration"), world)


def _write_troubles(root: Path, failing: dict[str, Any], repeated: dict[str, Any]) -> None:
    """A cell that ran out of memory, and a later failure of a cell that had succeeded before."""
    with AttemptWriter(root, failing, ENV) as writer:
        writer.log_path.write_text("loading\nallocating\n")
        writer.finish("oom", "OutOfMemoryError: <3 GiB> asked", exit_code=1)
    with AttemptWriter(root, repeated, ENV) as writer:
        writer.finish("failed", "killed", signal=9)


def cell_json(
    model: Model,
    task: Task,
    method: Method,
    kind: str,
    full_id: str | None = None,
    depends_on: tuple[str, ...] = (),
    *,
    source: str = "",
    fit_id: str | None = None,
) -> dict[str, Any]:
    """cell.json; `source` stands for the text of the method's source."""
    weights = {f"{part}_sha256": content_id([model.name, part]) for part in ("weights", "config", "tokenizer")}
    method_part = {
        "name": method.name,
        "params": dict(method.params),
        "source_sha256": content_id(method.name + source),
    }
    # The first token leaves early too, of either model.
    first = {"first_token": "gated"} if model.kind == "causal" else {}
    asked = {
        "generation": {"max_new_tokens": 16, "stop": [], **first},
        "dtype": "float32",
        "device": "cpu",
        "batch_size": 1,
        "seed": 7,
    }
    data = {"name": task.name, "data_sha256": content_id([task.name, "data"]), "metric_version": "1"}
    identity = {
        "id_version": 1,
        "kind": kind,
        "method": method_part,
        "kv_policy": method.kv_policy,
        "model": weights,
        "task": data,
        **asked,
        **({"timing": {"documents": DOCUMENTS}} if kind == "timing" else {}),
        **({"probe_cell_id": depends_on[0]} if kind in ("replay", "scores") else {}),
        **({} if fit_id is None else {"fit_cell_id": fit_id}),
        **({"calibration": CALIBRATION} if kind == "calibration" else {}),
    }
    return {
        "cell_id": content_id(identity),
        "id_version": 1,
        "suite": "example",
        "kind": kind,
        "execution": "simulated" if kind == "replay" else "real",
        "random_weights": False,
        "limited": False,
        "method": method_part,
        "kv_policy": method.kv_policy,
        "model": {
            "name": model.name,
            **weights,
            "kind": model.kind,
            "blocks": model.blocks,
            "encoder_blocks": model.encoder_blocks,
            "parameters": 1_000_000 * model.blocks,
        },
        "task": {**data, "label": task.label, "split": "test", "source": "builtin", "documents": DOCUMENTS},
        **asked,
        "full_depth_cell_id": full_id,
        "depends_on": list(depends_on),
        "identity": identity,
    }


def _world(model: Model, task: Task) -> World:
    rng = np.random.default_rng([MODELS.index(model), TASKS.index(task)])
    blocks = model.blocks
    hardness = np.tile(np.arange(TOKENS), DOCUMENTS) / TOKENS
    stable_from = 1 + rng.binomial(blocks - 1, 0.15 + 0.7 * hardness)
    depth = np.arange(1, blocks + 1)
    final = rng.integers(VOCABULARY, size=len(stable_from))
    settled = depth >= stable_from[:, None]
    top1_id = np.where(settled, final[:, None], (final[:, None] + depth) % VOCABULARY)
    certainty = 0.8 * (depth - stable_from[:, None]) + rng.normal(0.5, 0.6, size=top1_id.shape)
    # Some tokens are right at the first block by chance, then lost again: first match and stable block differ.
    lucky = (rng.random(len(final)) < 0.25) & (stable_from > 2)
    top1_id[lucky, 0] = final[lucky]
    return World(stable_from, top1_id, 1 / (1 + np.exp(-certainty)))


def _exits(method: Method, world: World) -> np.ndarray:
    """Exit layer of every token."""
    n, blocks = world.margin.shape
    if method.name == "static":
        return np.full(n, method.params["exit_layer"])
    if method.name == "random":
        return np.random.default_rng(0).integers(1, int(2 * method.params["mean_exit"]), size=n).clip(1, blocks)
    if method.name == "oracle":
        return world.stable_from
    if method.name == "calm-softmax":
        confident = world.margin >= method.params["threshold"]
        return np.where(confident.any(axis=1), confident.argmax(axis=1) + 1, blocks)
    return np.full(n, blocks)


def _emitted(world: World, exits: np.ndarray) -> np.ndarray:
    return world.top1_id[np.arange(len(exits)), exits - 1]


def _per_document(values: np.ndarray) -> np.ndarray:
    return values.reshape(DOCUMENTS, TOKENS).sum(axis=1)


def _doc_keys() -> list[str]:
    return [content_id(document)[:16] for document in range(DOCUMENTS)]


def _token_columns() -> dict[str, Any]:
    return {
        "doc_key": np.repeat(_doc_keys(), TOKENS),
        "position": np.tile(np.arange(1, TOKENS + 1), DOCUMENTS),
        "token_kind": list(KINDS) * DOCUMENTS,
    }


def _write_tokens(
    writer: AttemptWriter,
    world: World,
    exits: np.ndarray,
    score: np.ndarray | None = None,
    head_rows: np.ndarray | None = None,
    blocks_run: np.ndarray | None = None,
) -> None:
    rows = {
        **_token_columns(),
        "token_id": _emitted(world, exits),
        "exit_layer": exits,
        "blocks_run": exits if blocks_run is None else blocks_run,
        "head_rows": pa.nulls(len(exits), pa.int32()) if head_rows is None else head_rows,
        "score": pa.nulls(len(exits), pa.float32()) if score is None else score,
        "reason": np.where(exits == world.margin.shape[1], "last", "threshold"),
        "full_token_id": world.final_id,
    }
    writer.write("tokens", pa.table(rows))


def _depth_metrics(world: World, exits: np.ndarray, blocks_run: np.ndarray) -> dict[str, Interval]:
    n_tokens = np.full(DOCUMENTS, TOKENS)
    blocks = np.full(DOCUMENTS, TOKENS * world.margin.shape[1])
    matches, depth = _per_document(_emitted(world, exits) == world.final_id), _per_document(exits)
    scale = (1, world.margin.shape[1])
    return {
        "mean_exit_layer": bounded_ratio_interval(depth, n_tokens, scale),
        "mean_blocks_run": bounded_ratio_interval(_per_document(blocks_run), n_tokens, scale),
        "token_match": bounded_ratio_interval(matches, n_tokens),
        "ideal_speedup_bytes": ratio_interval(blocks, depth, seed=0, n_boot=N_BOOT),
        "ideal_speedup_flops": ratio_interval(blocks + TOKENS, depth + TOKENS, seed=0, n_boot=N_BOOT),
    }


def _write_metrics(writer: AttemptWriter, metrics: Mapping[str, Interval], role: str | None = None) -> None:
    """Write metrics in their order; of a task's own the first is its headline metric, if no role is said."""
    rows = [
        {
            "metric": name,
            "role": ROLES.get(name, role or "task"),
            "metric_version": "1",
            "value": interval.value,
            "ci_low": interval.low,
            "ci_high": interval.high,
            "ci_method": interval.method,
            "n": interval.n,
        }
        for name, interval in metrics.items()
    ]
    for row in [row for row in rows if row["role"] == "task"][:1]:
        row["role"] = "headline"
    writer.write("metrics", pa.Table.from_pylist(rows, schema=spool.TABLES["metrics"]))


def _write_quality(root: Path, cell: dict[str, Any], task: Task, world: World, exits: np.ndarray) -> None:
    emitted = _emitted(world, exits).reshape(DOCUMENTS, TOKENS)
    best = np.random.default_rng(len(task.name)).uniform(60, 100, size=DOCUMENTS)
    scores = best * _per_document(_emitted(world, exits) == world.final_id) / TOKENS
    metrics = {name: mean_interval(scores / (1 + i), PERCENT) for i, name in enumerate(task.metrics)}
    samples = {
        "doc_key": _doc_keys(),
        "output_text": [" ".join(f"w{token}" for token in row) for row in emitted],
        "output_ids": emitted.tolist(),
        "n_prompt": np.arange(DOCUMENTS) + 20,
        "n_output": [TOKENS] * DOCUMENTS,
        "stop_reason": ["eos"] * DOCUMENTS,
        "scores": [json.dumps({name: score / (1 + i) for i, name in enumerate(task.metrics)}) for score in scores],
        "statistics": ["{}"] * DOCUMENTS,
    }
    gated = cell["method"]["name"] == "calm-softmax"
    blocks_run = np.full_like(exits, world.margin.shape[1]) if cell["kv_policy"] == "exact" else exits
    with AttemptWriter(root, cell, ENV) as writer:
        writer.write("samples", pa.table(samples))
        score = world.margin[np.arange(len(exits)), exits - 1] if gated else None
        # A gate over logits multiplies the head at every block, other methods where they emit.
        _write_tokens(writer, world, exits, score, VOCABULARY * (exits if gated else np.ones_like(exits)), blocks_run)
        _write_metrics(writer, {**metrics, **_depth_metrics(world, exits, blocks_run)})
        writer.finish("ok", peak_rss_bytes=1 << 30)


def _write_replay(root: Path, cell: dict[str, Any], world: World, exits: np.ndarray) -> None:
    metrics = _depth_metrics(world, exits, exits)
    with AttemptWriter(root, cell, ENV) as writer:
        _write_tokens(writer, world, exits)
        _write_metrics(writer, {name: metrics[name] for name in ("mean_exit_layer", "mean_blocks_run", "token_match")})
        writer.finish("ok")


def _write_probe(root: Path, cell: dict[str, Any], world: World) -> None:
    n, blocks = world.margin.shape
    p1 = (1 + world.margin) / 2
    first_match = 1 + (world.top1_id == world.final_id[:, None]).argmax(axis=1)
    left = 1 - np.arange(1, blocks + 1) / blocks
    signals: dict[str, np.ndarray] = {
        "top1_id": world.top1_id,
        "top2_id": (world.top1_id + 1) % VOCABULARY,
        "top3_id": (world.top1_id + 2) % VOCABULARY,
        "p1": p1,
        "p2": p1 - world.margin,
        "p3": np.zeros((n, blocks)),
        "p_final": np.where(world.top1_id == world.final_id[:, None], p1, 0.01),
        "rank_final": np.where(world.top1_id == world.final_id[:, None], 1, 7),
        "entropy": -np.log(p1),
        "logsumexp": np.full((n, blocks), 9.0),
        "cosine_previous": np.tile(1 - left / 2, (n, 1)),
        "cosine_previous_normed": np.tile(1 - left / 2, (n, 1)),
        "cosine_last": np.tile(1 - left, (n, 1)),
        "jsd_previous": np.tile(left / 4, (n, 1)),
        "jsd_last": np.tile(left / 2, (n, 1)),
    }
    rows = {
        **_token_columns(),
        "token_id": world.final_id,
        "full_token_id": world.final_id,
        "gold_token_id": world.final_id,
        "first_match": first_match,
        "stable_from": world.stable_from,
        **settling(signals["p_final"], signals["cosine_last"]),
        **{name: _lists(signals[name]) for name in (*PROBE_ID_LISTS, *PROBE_FLOAT_LISTS)},
    }
    with AttemptWriter(root, cell, ENV) as writer:
        writer.write("probe", pa.table(rows))
        writer.finish("ok")


def _lists(values: np.ndarray) -> pa.Array:
    """Rows of an array [N, L] as lists."""
    offsets = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    return pa.ListArray.from_arrays(offsets, pa.array(np.ascontiguousarray(values).ravel()))


def _write_scores(root: Path, cell: dict[str, Any], world: World) -> None:
    """The gate is asked at every block but the first and the last."""
    asked = np.zeros(world.margin.shape, dtype=bool)
    asked[:, 1:-1] = True
    columns = _token_columns()
    rows = {
        "doc_key": columns["doc_key"],
        "position": columns["position"],
        "score": _lists(np.where(asked, world.margin, np.nan)),
        "emitted_id": _lists(np.where(asked, world.top1_id, -1)),
    }
    with AttemptWriter(root, cell, ENV) as writer:
        writer.write("scores", pa.table(rows))
        writer.finish("ok")


def _write_fit(root: Path, cell: dict[str, Any]) -> None:
    epochs = np.arange(1, 4)
    rows = {
        "epoch": epochs,
        "train_loss": 1 / epochs,
        "held_out_loss": 1.2 / epochs,
        "held_out_accuracy": 1 - 0.3 / epochs,
    }
    with AttemptWriter(root, cell, ENV) as writer:
        (writer.path / FITTED_FILE).write_bytes(b"tensors")
        writer.write("fit_curve", pa.table(rows))
        _write_metrics(writer, {"held_out_loss": _plain(0.4), "held_out_accuracy": _plain(0.9)})
        writer.finish("ok")


def _write_calibration(root: Path, cell: dict[str, Any], world: World) -> None:
    """Loss of a document: the share of its tokens that are not full depth's."""

    def losses_at(level: float) -> np.ndarray:
        exits = _exits(Method("calm-softmax", {"threshold": level}), world)
        return 1 - _per_document(_emitted(world, exits) == world.final_id) / TOKENS

    path = calibrate("hoeffding", LEVELS, losses_at, CALIBRATION["delta"], CALIBRATION["epsilon"])
    rows = [
        {
            "step": step,
            "threshold": tried.level,
            "mean_loss": tried.mean_loss,
            "p_value": tried.p_value,
            "passed": tried.passed,
            "mean_exit_layer": _exits(Method("calm-softmax", {"threshold": tried.level}), world).mean(),
            "n": DOCUMENTS,
        }
        for step, tried in enumerate(path.steps, start=1)
    ]
    with AttemptWriter(root, cell, ENV) as writer:
        writer.write("calibration", pa.Table.from_pylist(rows, schema=spool.TABLES["calibration"]))
        metrics = {} if path.chosen is None else {"threshold": _plain(path.chosen)}
        _write_metrics(writer, {**metrics, "held_out_loss": _plain(0.1), "held_out_mean_exit_layer": _plain(3.0)})
        writer.finish("ok")


def _write_timing(root: Path, cell: dict[str, Any], world: World, exits: np.ndarray, tokens: int = TOKENS) -> None:
    """Decoding costs NS_PER_BLOCK a block and a fixed overhead a token; the A/A twins differ by jitter alone.

    The method's answers have `tokens` tokens.
    """
    rng = np.random.default_rng(1)
    blocks = np.full(len(exits), world.margin.shape[1])
    n_blocks = {"full": _per_document(blocks), "method": _per_document(exits)}
    rows: list[dict[str, Any]] = []
    sums = {
        (arm, twin, phase): np.zeros(DOCUMENTS) for arm in n_blocks for twin in (0, 1) for phase in ("decode", "total")
    }
    for twin in (False, True):
        for position, arm in enumerate(("full", "method", "method", "full")):
            length = tokens if arm == "method" and not twin else TOKENS
            work = n_blocks["full" if twin else arm] * length / TOKENS
            decode_ns = ((work + length) * NS_PER_BLOCK * rng.uniform(0.99, 1.01, size=DOCUMENTS)).astype(int)
            phases = {"prefill": np.full(DOCUMENTS, PREFILL_NS), "decode": decode_ns}
            phases["total"] = phases["prefill"] + phases["decode"]
            for phase, wall_ns in phases.items():
                if phase != "prefill":
                    sums[arm, int(twin), phase] += wall_ns
                for doc_key, ns in zip(_doc_keys(), wall_ns, strict=True):
                    rows.append(
                        {
                            "doc_key": doc_key,
                            "round": 1,
                            "position": position,
                            "arm": arm,
                            "twin": twin,
                            "phase": phase,
                            "n_tokens": length,
                            "wall_ns": int(ns),
                            "device_ns": None,
                        }
                    )
    metrics = {
        "speedup": ratio_interval(sums["full", 0, "total"], sums["method", 0, "total"], seed=0, n_boot=N_BOOT),
        "speedup_decode": ratio_interval(sums["full", 0, "decode"], sums["method", 0, "decode"], seed=0, n_boot=N_BOOT),
        "aa_speedup": ratio_interval(sums["full", 1, "total"], sums["method", 1, "total"], seed=0, n_boot=N_BOOT),
    }
    for prefix, arm, length in (("", "method", tokens), ("full_", "full", TOKENS)):
        ms = {phase: sums[arm, 0, phase].sum() / 2 / DOCUMENTS / 1e6 for phase in ("decode", "total")}
        metrics[f"{prefix}ms_per_request"] = _plain(ms["total"])
        metrics[f"{prefix}ms_per_token"] = _plain(ms["decode"] / length)
        metrics[f"{prefix}tokens_per_request"] = _plain(length)
    ideal = blocks.sum() / exits.sum() * TOKENS / tokens
    metrics["ideal_speedup_decode"] = _plain(ideal)
    metrics["realised_fraction"] = _plain(metrics["speedup_decode"].value / ideal)
    metrics |= {"timed_documents": _plain(DOCUMENTS), "timed_rounds": _plain(1)}
    with AttemptWriter(root, cell, ENV) as writer:
        writer.write("timings", pa.Table.from_pylist(rows, schema=spool.TABLES["timings"]))
        _write_metrics(writer, metrics, role="speed")
        writer.finish("ok")


def _plain(value: float) -> Interval:
    return Interval(value, None, None, None, DOCUMENTS)


@contextmanager
def _fixed_clock() -> Iterator[None]:
    """Attempt ids and times that are the same every time: one second between any two readings."""
    start = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    seconds = iter(range(10**6))

    def now() -> datetime:
        return start + timedelta(seconds=next(seconds))

    with (
        patch.object(spool, "new_attempt_id", lambda: f"{now():%Y%m%dT%H%M%S%fZ}-00000000"),
        patch.object(spool, "_utc_now", lambda: now().isoformat(timespec="microseconds")),
    ):
        yield
