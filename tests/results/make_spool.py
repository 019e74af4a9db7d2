"""A small, deterministic, plausible spool: two models on three tasks with five methods and every kind of cell.

Every token has a block from which its prediction no longer changes, and a margin that grows with depth. Exits, outputs,
scores and times of all methods follow from these, so that cells are consistent: deeper is slower and agrees more.
`WORLD` has these contents; a test changes fields with `dataclasses.replace(WORLD, tokens=15)`. For a spool of a few
rows written by hand there are `write_attempt` and `ingested`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from exitbench.results.files.formats import content_id
from exitbench.results.ingest.ingest import ingest
from exitbench.results.spool import attempts as spool
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import FITTED_FILE
from exitbench.results.statistics.intervals import (
    PERCENT,
    Interval,
    bounded_ratio_interval,
    mean_interval,
    ratio_interval,
)
from exitbench.results.statistics.risk_control import calibrate
from exitbench.results.statistics.split import is_choosing
from exitbench.results.statistics.stability import stability

KINDS = ("frame", "copy", "lexical", "hop1", "hop2")
DOCUMENTS = 8
NS_PER_BLOCK = 1_000_000
PREFILL_NS = 2 * NS_PER_BLOCK
ROLES = {
    **dict.fromkeys(("mean_exit_layer", "mean_blocks_run", "held_out_mean_exit_layer"), "depth"),
    **dict.fromkeys(("token_match", "choice_match", "acceptance_rate"), "agreement"),
    **dict.fromkeys(("ideal_speedup_bytes", "ideal_speedup_flops", "ideal_speedup_decode"), "cost"),
    **{f"cost_{part}_bytes": "cost" for part in ("blocks", "heads", "gates", "kv", "verification", "total")},
    **dict.fromkeys(("threshold", "held_out_loss", "held_out_accuracy"), "preparation"),
}
"""Roles of metrics that belong to no task, for quality, fit and calibration cells."""

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
class Beliefs:
    """A model's predictions for every token of a task: arrays [N] or [N, blocks], N = documents * tokens."""

    stable_from: np.ndarray
    top1_id: np.ndarray
    margin: np.ndarray

    @property
    def final_id(self) -> np.ndarray:
        return self.top1_id[:, -1]


@cache
def _doc_keys(documents: int) -> tuple[str, ...]:
    return tuple(content_id(document)[:16] for document in range(documents))


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
    documents: int = DOCUMENTS,
    random_weights: bool = False,
) -> dict[str, Any]:
    """Return the content of cell.json; `source` is a placeholder for the method's code."""
    weights = {f"{part}_sha256": content_id([model.name, part]) for part in ("weights", "config", "tokenizer")}
    method_part = {
        "name": method.name,
        "params": dict(method.params),
        "revision": content_id(method.name + source),
    }
    # The first token leaves early too, of either model.
    first = {"first_token": "gated"} if model.kind == "causal" else {}
    request_params = {
        "generation": {"max_new_tokens": 16, "stop": [], **first},
        "dtype": "float32",
        "device": "cpu",
        "batch_size": 1,
        "seed": 7,
    }
    data = {"name": task.name, "data_sha256": content_id([task.name, "data"]), "metric_version": "1"}
    identity = {
        "id_version": 3,
        "kind": kind,
        "method": method_part,
        "engine_version": 1,
        "kv_policy": method.kv_policy,
        "model": weights,
        "task": data,
        **request_params,
        **({"timing": {"documents": documents}} if kind == "timing" else {}),
        **({"probe_cell_id": depends_on[0]} if kind in ("replay", "scores") else {}),
        **({} if fit_id is None else {"fit_cell_id": fit_id}),
        **({"calibration": CALIBRATION} if kind == "calibration" else {}),
    }
    return {
        "cell_id": content_id(identity),
        "id_version": 3,
        "suite": "example",
        "kind": kind,
        "execution": "simulated" if kind == "replay" else "real",
        "random_weights": random_weights,
        "limited": False,
        "method": {**method_part, "distribution": None, "version": None, "unused_params": []},
        "engine_version": 1,
        "engine": "lean",
        "device_map": None,
        "head_precision": "exact",
        "batch_rows": None,
        "seeds": None,
        "kv_policy": method.kv_policy,
        "model": {
            "name": model.name,
            **weights,
            "kind": model.kind,
            "blocks": model.blocks,
            "encoder_blocks": model.encoder_blocks,
            "parameters": 1_000_000 * model.blocks,
            "source": None,
        },
        "task": {**data, "label": task.label, "split": "test", "source": "builtin", "documents": documents},
        **request_params,
        "data": {
            **{"task": data["name"], "source": "builtin", "split": "test", "limit": documents},
            **{"seed": 0, "level": 2, "files": []},
            **{"apart_from": [], "settings": None, "declaration": None},
        },
        "held_out": None,
        "full_depth_cell_id": full_id,
        "depends_on": list(depends_on),
        "identity": identity,
    }


def exits_of(method: Method, beliefs: Beliefs) -> np.ndarray:
    """Return the exit layer of every token."""
    n, blocks = beliefs.margin.shape
    if method.name == "static":
        return np.full(n, method.params["exit_layer"])
    if method.name == "random":
        return np.random.default_rng(0).integers(1, int(2 * method.params["mean_exit"]), size=n).clip(1, blocks)
    if method.name == "oracle":
        return beliefs.stable_from
    if method.name == "calm-softmax":
        confident = beliefs.margin >= method.params["threshold"]
        return np.where(confident.any(axis=1), confident.argmax(axis=1) + 1, blocks)
    return np.full(n, blocks)


@dataclass(frozen=True)
class World:
    """Contents of a generated spool.

    Attributes:
        models: Models, each run on each task.
        tasks: Tasks. The first model on the first task also has a failed cell, and a cell that fails when repeated.
        methods: Full depth, then the methods that are decoded and timed.
        swept: Methods that are also replayed. The first one also has a scores cell and a calibration.
        documents: Number of documents per task.
        tokens: Number of tokens per answer.
        vocabulary: Number of token ids.
        kinds: Kinds of word of the tokens of an answer.
        n_boot: Number of bootstrap draws.
        random_weights: Whether the models were never trained.
        omitted_kinds: Kinds of cells that are not written. "failures" stands for the failed attempts.
        fixed_clock: Whether attempts have the same ids every time; not possible for two worlds in one spool.
        exit_rule: Function that returns a method's exit layer of every token.
        head_rows: Function for methods with a parameter `head`: the LM-head rows multiplied for every token, from the
            method's part of cell.json and the exit layers. None stands for all rows.
        final_ranks: Function that returns the ranks of the final token at every block [N, blocks]. If None, the rank is
            1 at blocks that predict this token, and 7 at the others.
        costs: Further metrics of every decoded cell.
        also: Function that writes more cells for each model and task with the same clock.
    """

    models: tuple[Model, ...] = MODELS
    tasks: tuple[Task, ...] = TASKS
    methods: tuple[Method, ...] = METHODS
    swept: tuple[Method, ...] = CALM
    documents: int = DOCUMENTS
    tokens: int = 5
    vocabulary: int = 100
    kinds: tuple[str, ...] = KINDS
    n_boot: int = 200
    random_weights: bool = False
    omitted_kinds: frozenset[str] = frozenset()
    fixed_clock: bool = True
    exit_rule: Callable[[Method, Beliefs], np.ndarray] = exits_of
    head_rows: Callable[[Mapping[str, Any], np.ndarray], np.ndarray] | None = None
    final_ranks: Callable[[int], np.ndarray] | None = None
    costs: Mapping[str, float] = field(default_factory=dict)
    also: Callable[["World", Path, Model, Task], None] | None = None

    def write(self, root: Path) -> None:
        """Write the spool at `root`."""
        pairs = [(model, task) for model in self.models for task in self.tasks]
        with _fixed_clock() if self.fixed_clock else nullcontext():
            for model, task in pairs:
                self._write_pair(root, model, task)
            for model, task in pairs:
                self._write_preparations(root, model, task)
                if self.also is not None:
                    self.also(self, root, model, task)

    def make_database(self, folder: Path) -> Path:
        """Write the spool in a folder, and return its database."""
        self.write(folder / "spool")
        return ingested(folder)

    def cell(
        self,
        model: Model,
        task: Task,
        method: Method,
        kind: str,
        full_id: str | None = None,
        depends_on: tuple[str, ...] = (),
        **more: Any,
    ) -> dict[str, Any]:
        """Return the content of cell.json for a cell of this world."""
        size = {"documents": self.documents, "random_weights": self.random_weights}
        return cell_json(model, task, method, kind, full_id, depends_on, **size, **more)

    def _write_pair(self, root: Path, model: Model, task: Task) -> None:
        beliefs = self.beliefs(model, task)
        full = self.cell(model, task, FULL, "quality")
        probe = self.cell(model, task, FULL, "probe", full["cell_id"])
        if "quality" not in self.omitted_kinds:
            self.write_quality(root, full, task, beliefs, self.exit_rule(FULL, beliefs))
        if "probe" not in self.omitted_kinds:
            self.write_probe(root, probe, beliefs)
        for method in (*self.methods[1:], *self.swept):
            exits = self.exit_rule(method, beliefs)
            if "quality" not in self.omitted_kinds:
                quality = self.cell(model, task, method, "quality", full["cell_id"])
                self.write_quality(root, quality, task, beliefs, exits)
            if "timing" not in self.omitted_kinds:
                self.write_timing(root, self.cell(model, task, method, "timing", full["cell_id"]), beliefs, exits)
        for method in () if "replay" in self.omitted_kinds else self.swept:
            cell = self.cell(model, task, method, "replay", full["cell_id"], (probe["cell_id"],))
            self._write_replay(root, cell, beliefs, self.exit_rule(method, beliefs))
        if (model, task) == (self.models[0], self.tasks[0]) and "failures" not in self.omitted_kinds:
            failing = self.cell(model, task, Method("static", {"exit_layer": 1}), "quality", full["cell_id"])
            _write_failures(root, failing, full)

    def _write_preparations(self, root: Path, model: Model, task: Task) -> None:
        """Write the cells that other cells need: scores for replays, fits, and calibrated thresholds."""
        beliefs = self.beliefs(model, task)
        full = self.cell(model, task, FULL, "quality")
        probe = self.cell(model, task, FULL, "probe", full["cell_id"])
        if "scores" not in self.omitted_kinds:
            scores = self.cell(model, task, self.swept[0], "scores", None, (probe["cell_id"],))
            self._write_scores(root, scores, beliefs)
        if "fit" not in self.omitted_kinds:
            _write_fit(root, self.cell(model, task, FITTED, "fit"))
        if "calibration" not in self.omitted_kinds:
            self._write_calibration(root, self.cell(model, task, self.swept[0], "calibration"), beliefs)

    def beliefs(self, model: Model, task: Task) -> Beliefs:
        """Return a model's predictions for a task's tokens."""
        rng = np.random.default_rng([self.models.index(model), self.tasks.index(task)])
        blocks = model.blocks
        hardness = np.tile(np.arange(self.tokens), self.documents) / self.tokens
        stable_from = 1 + rng.binomial(blocks - 1, 0.15 + 0.7 * hardness)
        depth = np.arange(1, blocks + 1)
        final = rng.integers(self.vocabulary, size=len(stable_from))
        settled = depth >= stable_from[:, None]
        top1_id = np.where(settled, final[:, None], (final[:, None] + depth) % self.vocabulary)
        certainty = 0.8 * (depth - stable_from[:, None]) + rng.normal(0.5, 0.6, size=top1_id.shape)
        # Some tokens are right at the first block by chance, then lost again: first match and stable block differ.
        lucky = (rng.random(len(final)) < 0.25) & (stable_from > 2)
        top1_id[lucky, 0] = final[lucky]
        return Beliefs(stable_from, top1_id, 1 / (1 + np.exp(-certainty)))

    def _per_document(self, values: np.ndarray) -> np.ndarray:
        return values.reshape(self.documents, self.tokens).sum(axis=1)

    def doc_keys(self) -> list[str]:
        return list(_doc_keys(self.documents))

    def _token_columns(self) -> dict[str, Any]:
        return {
            "doc_key": np.repeat(self.doc_keys(), self.tokens),
            "position": np.tile(np.arange(1, self.tokens + 1), self.documents),
            "token_kind": list(self.kinds) * self.documents,
        }

    def _write_tokens(
        self,
        writer: AttemptWriter,
        beliefs: Beliefs,
        exits: np.ndarray,
        score: np.ndarray | None = None,
        head_rows: np.ndarray | None = None,
        blocks_run: np.ndarray | None = None,
    ) -> None:
        rows = {
            **self._token_columns(),
            "token_id": _emitted(beliefs, exits),
            "exit_layer": exits,
            "blocks_run": exits if blocks_run is None else blocks_run,
            "head_rows": pa.nulls(len(exits), pa.int32()) if head_rows is None else head_rows,
            "score": pa.nulls(len(exits), pa.float32()) if score is None else score,
            "reason": np.where(exits == beliefs.margin.shape[1], "last", "threshold"),
            "full_token_id": beliefs.final_id,
        }
        writer.write("tokens", pa.table(rows))

    def _depth_metrics(self, beliefs: Beliefs, exits: np.ndarray, blocks_run: np.ndarray) -> dict[str, Interval]:
        n_tokens = np.full(self.documents, self.tokens)
        blocks = np.full(self.documents, self.tokens * beliefs.margin.shape[1])
        matches, depth = self._per_document(_emitted(beliefs, exits) == beliefs.final_id), self._per_document(exits)
        scale = (1, beliefs.margin.shape[1])
        return {
            "mean_exit_layer": bounded_ratio_interval(depth, n_tokens, scale),
            "mean_blocks_run": bounded_ratio_interval(self._per_document(blocks_run), n_tokens, scale),
            "token_match": bounded_ratio_interval(matches, n_tokens),
            "ideal_speedup_bytes": ratio_interval(blocks, depth, seed=0, n_boot=self.n_boot),
            "ideal_speedup_flops": ratio_interval(
                blocks + self.tokens, depth + self.tokens, seed=0, n_boot=self.n_boot
            ),
        }

    def write_quality(self, root: Path, cell: dict[str, Any], task: Task, beliefs: Beliefs, exits: np.ndarray) -> None:
        emitted = _emitted(beliefs, exits).reshape(self.documents, self.tokens)
        best = np.random.default_rng(len(task.name)).uniform(60, 100, size=self.documents)
        scores = best * self._per_document(_emitted(beliefs, exits) == beliefs.final_id) / self.tokens
        metrics = {name: mean_interval(scores / (1 + i), PERCENT) for i, name in enumerate(task.metrics)}
        samples = {
            "doc_key": self.doc_keys(),
            "output_text": [" ".join(f"w{token}" for token in row) for row in emitted],
            "output_ids": emitted.tolist(),
            "n_prompt": np.arange(self.documents) + 20,
            "n_output": [self.tokens] * self.documents,
            "stop_reason": ["eos"] * self.documents,
            "scores": [json.dumps({name: score / (1 + i) for i, name in enumerate(task.metrics)}) for score in scores],
            "statistics": ["{}"] * self.documents,
        }
        gated = cell["method"]["name"] == "calm-softmax"
        # A gate over logits multiplies the head at every block, other methods where they emit.
        head_rows = self.vocabulary * (exits if gated else np.ones_like(exits))
        if self.head_rows is not None and "head" in cell["method"]["params"]:
            head_rows = self.head_rows(cell["method"], exits)
        blocks_run = np.full_like(exits, beliefs.margin.shape[1]) if cell["kv_policy"] == "exact" else exits
        with AttemptWriter(root, cell, ENV) as writer:
            writer.write("samples", pa.table(samples))
            score = beliefs.margin[np.arange(len(exits)), exits - 1] if gated else None
            self._write_tokens(writer, beliefs, exits, score, head_rows, blocks_run)
            depth = self._depth_metrics(beliefs, exits, blocks_run)
            write_metrics(
                writer, {**metrics, **depth, **{name: plain(at, self.documents) for name, at in self.costs.items()}}
            )
            writer.finish("ok", peak_rss_bytes=1 << 30)

    def _write_replay(self, root: Path, cell: dict[str, Any], beliefs: Beliefs, exits: np.ndarray) -> None:
        metrics = self._depth_metrics(beliefs, exits, exits)
        with AttemptWriter(root, cell, ENV) as writer:
            self._write_tokens(writer, beliefs, exits)
            write_metrics(
                writer, {name: metrics[name] for name in ("mean_exit_layer", "mean_blocks_run", "token_match")}
            )
            writer.finish("ok")

    def write_probe(self, root: Path, cell: dict[str, Any], beliefs: Beliefs) -> None:
        n, blocks = beliefs.margin.shape
        p1 = (1 + beliefs.margin) / 2
        first_match = 1 + (beliefs.top1_id == beliefs.final_id[:, None]).argmax(axis=1)
        remaining = 1 - np.arange(1, blocks + 1) / blocks
        signals: dict[str, np.ndarray] = {
            "top1_id": beliefs.top1_id,
            "top2_id": (beliefs.top1_id + 1) % self.vocabulary,
            "top3_id": (beliefs.top1_id + 2) % self.vocabulary,
            "p1": p1,
            "p2": p1 - beliefs.margin,
            "p3": np.zeros((n, blocks)),
            "p_final": np.where(beliefs.top1_id == beliefs.final_id[:, None], p1, 0.01),
            "rank_final": np.where(beliefs.top1_id == beliefs.final_id[:, None], 1, 7)
            if self.final_ranks is None
            else self.final_ranks(n),
            "entropy": -np.log(p1),
            "logsumexp": np.full((n, blocks), 9.0),
            "cosine_previous": np.tile(1 - remaining / 2, (n, 1)),
            "cosine_previous_normed": np.tile(1 - remaining / 2, (n, 1)),
            "cosine_last": np.tile(1 - remaining, (n, 1)),
            "jsd_previous": np.tile(remaining / 4, (n, 1)),
            "jsd_last": np.tile(remaining / 2, (n, 1)),
        }
        rows = {
            **self._token_columns(),
            "token_id": beliefs.final_id,
            "full_token_id": beliefs.final_id,
            "gold_token_id": beliefs.final_id,
            "first_match": first_match,
            "stable_from": beliefs.stable_from,
            **stability(signals["p_final"], signals["cosine_last"]),
            **{name: lists(signals[name]) for name in signals},
        }
        with AttemptWriter(root, cell, ENV) as writer:
            writer.write("probe", pa.table(rows))
            writer.finish("ok")

    def _write_scores(self, root: Path, cell: dict[str, Any], beliefs: Beliefs) -> None:
        """Write a scores cell whose gate is evaluated at every block except the first and the last."""
        evaluated = np.zeros(beliefs.margin.shape, dtype=bool)
        evaluated[:, 1:-1] = True
        columns = self._token_columns()
        rows = {
            "doc_key": columns["doc_key"],
            "position": columns["position"],
            "score": lists(np.where(evaluated, beliefs.margin, np.nan)),
            "emitted_id": lists(np.where(evaluated, beliefs.top1_id, -1)),
        }
        with AttemptWriter(root, cell, ENV) as writer:
            writer.write("scores", pa.table(rows))
            writer.finish("ok")

    def _write_calibration(self, root: Path, cell: dict[str, Any], beliefs: Beliefs) -> None:
        """Write a calibration. A document's loss is the share of its tokens that differ from full depth's."""

        def losses_at(level: float) -> np.ndarray:
            exits = self.exit_rule(Method("calm-softmax", {"threshold": level}), beliefs)
            return 1 - self._per_document(_emitted(beliefs, exits) == beliefs.final_id) / self.tokens

        path = calibrate("hoeffding", LEVELS, losses_at, CALIBRATION["delta"], CALIBRATION["epsilon"])
        rows = [
            {
                "step": step,
                "threshold": tried.level,
                "mean_loss": tried.mean_loss,
                "p_value": tried.p_value,
                "passed": tried.passed,
                "mean_exit_layer": self.exit_rule(Method("calm-softmax", {"threshold": tried.level}), beliefs).mean(),
                "n": self.documents,
            }
            for step, tried in enumerate(path.steps, start=1)
        ]
        metrics = {} if path.chosen is None else {"threshold": plain(path.chosen, self.documents)}
        metrics |= {"held_out_loss": plain(0.1, self.documents)}
        metrics |= {"held_out_mean_exit_layer": plain(3.0, self.documents)}
        write_attempt(root, cell, {"calibration": rows, "metrics": metric_rows(metrics)})

    def write_timing(
        self, root: Path, cell: dict[str, Any], beliefs: Beliefs, exits: np.ndarray, tokens: int | None = None
    ) -> None:
        """Write a timing cell. Decoding a token takes NS_PER_BLOCK per block, and once more as overhead.

        The twins time full depth against itself, so that they differ only by noise of 1 %. The method's answers have
        `tokens` tokens, by default as many as full depth's.
        """
        tokens = self.tokens if tokens is None else tokens
        rng = np.random.default_rng(1)
        blocks = np.full(len(exits), beliefs.margin.shape[1])
        n_blocks = {"full": self._per_document(blocks), "method": self._per_document(exits)}
        rows: list[dict[str, Any]] = []
        sums = {
            (arm, twin, phase): np.zeros(self.documents)
            for arm in n_blocks
            for twin in (0, 1)
            for phase in ("decode", "total")
        }
        for twin in (False, True):
            for position, arm in enumerate(("full", "method", "method", "full")):
                length = tokens if arm == "method" and not twin else self.tokens
                work = n_blocks["full" if twin else arm] * length / self.tokens
                decode_ns = ((work + length) * NS_PER_BLOCK * rng.uniform(0.99, 1.01, size=self.documents)).astype(int)
                phases = {"prefill": np.full(self.documents, PREFILL_NS), "decode": decode_ns}
                phases["total"] = phases["prefill"] + phases["decode"]
                for phase, wall_ns in phases.items():
                    if phase != "prefill":
                        sums[arm, int(twin), phase] += wall_ns
                    for doc_key, ns in zip(self.doc_keys(), wall_ns, strict=True):
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
                                "cpu_ns": int(ns),
                            }
                        )
        metrics = {
            "speedup": ratio_interval(sums["full", 0, "total"], sums["method", 0, "total"], seed=0, n_boot=self.n_boot),
            "speedup_decode": ratio_interval(
                sums["full", 0, "decode"], sums["method", 0, "decode"], seed=0, n_boot=self.n_boot
            ),
            "aa_speedup": ratio_interval(
                sums["full", 1, "total"], sums["method", 1, "total"], seed=0, n_boot=self.n_boot
            ),
        }
        chooses = np.array([is_choosing(key) for key in self.doc_keys()])
        for part, is_in in (("choosing", chooses), ("confirming", ~chooses)):
            full_ns, method_ns = (sums[arm, 0, "total"][is_in] for arm in ("full", "method"))
            metrics[f"speedup_{part}"] = ratio_interval(full_ns, method_ns, seed=0, n_boot=self.n_boot)
        for prefix, arm, length in (("", "method", tokens), ("full_", "full", self.tokens)):
            ms = {phase: sums[arm, 0, phase].sum() / 2 / self.documents / 1e6 for phase in ("decode", "total")}
            metrics[f"{prefix}ms_per_request"] = plain(ms["total"], self.documents)
            metrics[f"{prefix}ms_per_token"] = plain(ms["decode"] / length, self.documents)
            metrics[f"{prefix}tokens_per_request"] = plain(length, self.documents)
        ideal = blocks.sum() / exits.sum() * self.tokens / tokens
        metrics["ideal_speedup_decode"] = plain(ideal, self.documents)
        metrics["realised_fraction"] = plain(metrics["speedup_decode"].value / ideal, self.documents)
        metrics |= {"timed_documents": plain(self.documents, self.documents), "timed_rounds": plain(1, self.documents)}
        write_attempt(root, cell, {"timings": rows, "metrics": metric_rows(metrics, "speed")})


WORLD = World()


def ingested(folder: Path) -> Path:
    """Ingest every attempt in a folder's spool, and return the database next to it."""
    assert ingest(folder / "spool", folder / "exitbench.duckdb").quarantined == ()
    return folder / "exitbench.duckdb"


def write_attempt(
    root: Path,
    cell: Mapping[str, Any],
    tables: Mapping[str, Iterable[Mapping[str, Any]]],
    *,
    env: Mapping[str, Any] = ENV,
    status: str = "ok",
) -> str:
    """Write an attempt with these rows of its tables, and return its id."""
    with AttemptWriter(root, cell, env) as writer:
        for name, rows in tables.items():
            writer.write(name, pa.Table.from_pylist(list(rows), schema=spool.TABLES[name]))
        writer.finish(status)
    return writer.attempt_id


def _write_failures(root: Path, failing: dict[str, Any], repeated: dict[str, Any]) -> None:
    """Write one attempt that ran out of memory, and a failed attempt at a cell that succeeded earlier."""
    with AttemptWriter(root, failing, ENV) as writer:
        writer.log_path.write_text("loading\nallocating\n")
        writer.finish("oom", "OutOfMemoryError: <3 GiB> asked", exit_code=1)
    with AttemptWriter(root, repeated, ENV) as writer:
        writer.finish("failed", "killed", signal=9)


def _emitted(beliefs: Beliefs, exits: np.ndarray) -> np.ndarray:
    return beliefs.top1_id[np.arange(len(exits)), exits - 1]


def lists(values: np.ndarray) -> pa.Array:
    """Return the rows of an array [N, L] as an Arrow array of lists."""
    offsets = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    return pa.ListArray.from_arrays(offsets, pa.array(np.ascontiguousarray(values).ravel()))


def write_metrics(writer: AttemptWriter, metrics: Mapping[str, Interval], role: str | None = None) -> None:
    """Write metrics in their order."""
    writer.write("metrics", pa.Table.from_pylist(metric_rows(metrics, role), schema=spool.TABLES["metrics"]))


def metric_rows(metrics: Mapping[str, Interval], role: str | None = None) -> list[dict[str, Any]]:
    """Return a row per metric. Without a role, the first of a task's own metrics is its headline metric."""
    rows: list[dict[str, Any]] = [
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
    task_rows = [row for row in rows if row["role"] == "task"]
    for row in task_rows:
        row |= {"lower_is_better": False, "scale_low": 0.0, "scale_high": 100.0}
    for row in task_rows[:1]:
        row["role"] = "headline"
    return rows


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
        write_metrics(writer, {"held_out_loss": plain(0.4), "held_out_accuracy": plain(0.9)})
        writer.finish("ok")


def plain(value: float, n: int = DOCUMENTS) -> Interval:
    """Return a value without an interval."""
    return Interval(value, None, None, None, n)


@contextmanager
def _fixed_clock() -> Iterator[None]:
    """Make attempt ids and times reproducible: one second between two readings."""
    start = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    seconds = iter(range(10**6))

    def now() -> datetime:
        return start + timedelta(seconds=next(seconds))

    with (
        patch.object(spool, "new_attempt_id", lambda: f"{now():%Y%m%dT%H%M%S%fZ}-00000000"),
        patch.object(spool, "_utc_now", lambda: now().isoformat(timespec="microseconds")),
    ):
        yield


FRONT = replace(
    WORLD,
    models=MODELS[:1],
    tasks=TASKS[:2],
    methods=(*METHODS, Method("static", {"exit_layer": 5})),
    documents=300,
    n_boot=2,
    omitted_kinds=frozenset({"probe", "scores", "fit", "replay", "failures"}),
)
"""Enough documents that a loss is shown to be small, and little else."""
