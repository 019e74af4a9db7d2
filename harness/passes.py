"""What each kind of cell does with a loaded model: quality, probe, replay, timing.

A pass writes tables into the attempt's spool folder; it never touches the database.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from exitbench.harness import timing
from exitbench.harness.checkpoint import load_checkpoint
from exitbench.harness.cost import TokenPlace, ideal_speedup, total_cost
from exitbench.harness.decode import Generation, Request, decode, prefill
from exitbench.harness.lm import Answer, EarlyExitLM, check_length
from exitbench.harness.probe import probe
from exitbench.harness.spec import DataRequest, WorkerSpec, WorkItem
from exitbench.methods.base import Cost, Parts
from exitbench.methods.registry import baseline_method, get_method
from exitbench.results.schema import TABLES
from exitbench.results.spool import AttemptWriter, latest_status
from exitbench.results.statistics import Interval, aggregate_interval, ratio_interval
from exitbench.tasks.base import Document
from exitbench.tasks.registry import get_task

METRIC_VERSION = "1"
"""Version of the metrics made here (depth, faithfulness, cost, speed); tasks version their own."""
PROBE_BATCH_ROWS = 16

Progress = Callable[[int], None]


class Skip(Exception):
    """This cell cannot be run, and why; stored as a row with status ``skipped``."""


@dataclass(frozen=True)
class FullOutput:
    """What full depth answered for one document."""

    n_prompt: int
    token_ids: list[int]


class Session:
    """One loaded model and what its cells share."""

    def __init__(self, spec: WorkerSpec) -> None:
        from transformers import AutoTokenizer
        from transformers.utils import logging as transformers_logging

        transformers_logging.set_verbosity_error()
        dtypes = {item.cell.dtype for item in spec.cells}
        if len(dtypes) != 1:
            raise ValueError(f"one worker loads one number format, not {sorted(dtypes)}")
        self.spool, self.data_dir = spec.spool, spec.data_dir
        self.checkpoint = load_checkpoint(spec.model_path, getattr(torch, dtypes.pop()), spec.device)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(
            str(spec.model_path), local_files_only=True, trust_remote_code=False
        )
        self.documents = functools.cache(self._load)

    def _load(self, data: DataRequest) -> list[Document]:
        return data.load(self.data_dir)

    def units(self, item: WorkItem) -> int:
        """What progress counts up to: documents, or timed units over all rounds."""
        documents = len(self.documents(item.data))
        settings = item.cell.timing
        if settings is None:
            return documents
        return -(-min(documents, settings.documents) // item.cell.batch_size) * settings.max_rounds

    def parts(self, item: WorkItem) -> Parts:
        """The method of a cell, bound to this model."""
        method = get_method(item.cell.method.name).from_params(item.cell.method.params)
        method.check(self.checkpoint.model.n_blocks)
        return method.parts(self.checkpoint.model.n_blocks)

    def full_parts(self) -> Parts:
        """Full depth on this model."""
        return baseline_method()().parts(self.checkpoint.model.n_blocks)

    def request(self, item: WorkItem, document: Document) -> Request:
        """Prompt tokens and seed of a document."""
        prompt = get_task(item.cell.task.name).prompt(document)
        return Request(self.tokenizer(prompt)["input_ids"], document_seed(item.cell.seed, document.key))

    def kinds(self, item: WorkItem, document: Document) -> list[str]:
        """Kind of each target token of built-in data, end of sequence included; empty where it is not known."""
        target = self.target_ids(item, document)
        known = document.token_kinds
        return [*known, "end"] if known and len(known) + 1 == len(target) else []

    def target_ids(self, item: WorkItem, document: Document) -> list[int]:
        """Tokens of the first reference."""
        return list(self.tokenizer(get_task(item.cell.task.name).target(document))["input_ids"])

    def finished(self, cell_id: str, table: str) -> Path:
        """A table of the latest attempt at another cell.

        Raises:
            Skip: That cell has not ended well.
        """
        status = latest_status(self.spool).get(cell_id)
        if status is None or status.status != "ok":
            found = "was never run" if status is None else f"ended as {status.status}"
            raise Skip(f"needs cell {cell_id[:12]}, which {found}")
        return status.path / f"{table}.parquet"


def document_seed(seed: int, doc_key: str) -> int:
    """Seed of one document: the same for every method, batch and order."""
    return int(hashlib.sha256(f"{seed}:{doc_key}".encode()).hexdigest()[:15], 16)


# ------------------------------------------------------------------- quality


def quality_pass(session: Session, item: WorkItem, writer: AttemptWriter, on_progress: Progress) -> None:
    """Answer every document through lm-eval; write samples, exit traces and metrics."""
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks import TaskManager

    cell, task = item.cell, get_task(item.cell.task.name)
    documents = session.documents(item.data)
    parts = session.parts(item)
    lm = EarlyExitLM(
        session.checkpoint,
        session.tokenizer,
        parts,
        cell.batch_size,
        functools.partial(document_seed, cell.seed),
        on_progress,
    )
    config = task.lm_eval_config(documents)
    generation = {"until": list(cell.generation.stop), "max_gen_toks": cell.generation.max_new_tokens}
    config["generation_kwargs"] = {**config["generation_kwargs"], **generation}
    tasks = TaskManager(include_defaults=False).load([config])
    results = evaluate(lm=lm, task_dict=tasks, bootstrap_iters=0, log_samples=True)
    answers = [lm.answers[document.key] for document in documents]
    scores = [task.score(document, answer.text) for document, answer in zip(documents, answers, strict=True)]
    samples = [
        {
            "doc_key": document.key,
            "output_text": answer.text,
            "output_ids": answer.generation.token_ids,
            "n_prompt": answer.n_prompt,
            "n_output": len(answer.generation.token_ids),
            "stop_reason": answer.generation.stop_reason,
            "scores": json.dumps(score.values),
            "statistics": json.dumps(score.statistics),
        }
        for document, answer, score in zip(documents, answers, scores, strict=True)
    ]
    writer.write("samples", pa.Table.from_pylist(samples, schema=TABLES["samples"]))
    writer.write("tokens", _token_table(session, item, documents, answers))
    metrics: dict[str, tuple[str, Interval]] = {}
    for metric in task.metrics:
        statistics = np.array([score.summands(metric) for score in scores])
        aggregate = functools.partial(task.aggregate, metric)
        interval = aggregate_interval(statistics, aggregate, seed=cell.seed)
        evaluated = results["results"][task.name][f"{metric},none"]
        if abs(evaluated - interval.value) > 1e-6:
            raise RuntimeError(f"lm-eval says {metric} = {evaluated}, the stored scores say {interval.value}")
        metrics[metric] = (task.metric_version, interval)
    full = {
        document.key: FullOutput(answer.n_prompt, answer.generation.token_ids)
        for document, answer in zip(documents, answers, strict=True)
    }
    if cell.full_depth_cell_id is not None:
        full = _full_outputs(session.finished(cell.full_depth_cell_id, "samples"))
    for name, interval in _depth_metrics(session, item, parts, documents, answers, full).items():
        metrics[name] = (METRIC_VERSION, interval)
    write_metrics(writer, metrics)


def _token_table(
    session: Session, item: WorkItem, documents: Sequence[Document], answers: Sequence[Answer]
) -> pa.Table:
    depth = session.checkpoint.model.n_blocks
    rows: list[dict[str, Any]] = []
    for document, answer in zip(documents, answers, strict=True):
        kinds = session.kinds(item, document)
        made = answer.generation
        columns = zip(made.token_ids, made.exit_layers, made.blocks_run, made.scores, strict=True)
        for index, (token_id, exit_layer, blocks_run, score) in enumerate(columns):
            rows.append(
                {
                    "doc_key": document.key,
                    "position": index + 1,
                    "token_id": token_id,
                    "token_kind": kinds[index] if index < len(kinds) else None,
                    "exit_layer": exit_layer,
                    "blocks_run": blocks_run,
                    "score": score,
                    "reason": "last" if exit_layer == depth else "threshold",
                }
            )
    return pa.Table.from_pylist(rows, schema=TABLES["tokens"])


def _full_outputs(path: Path) -> dict[str, FullOutput]:
    rows = pq.read_table(path, columns=["doc_key", "n_prompt", "output_ids"]).to_pylist()
    return {row["doc_key"]: FullOutput(row["n_prompt"], row["output_ids"]) for row in rows}


def _depth_metrics(
    session: Session,
    item: WorkItem,
    parts: Parts,
    documents: Sequence[Document],
    answers: Sequence[Answer],
    full: Mapping[str, FullOutput],
) -> dict[str, Interval]:
    """Mean exit layer, agreement with full depth, and ideal speed-ups, each a ratio of sums over documents."""
    made = [answer.generation for answer in answers]
    outputs = [full[document.key] for document in documents]
    matches = [
        sum(a == b for a, b in zip(generation.token_ids, output.token_ids, strict=False))
        for generation, output in zip(made, outputs, strict=True)
    ]
    costs = _costs(session, parts, made, [answer.n_prompt for answer in answers])
    depth = session.checkpoint.model.n_blocks
    full_made = [Generation(output.token_ids, [depth] * len(output.token_ids)) for output in outputs]
    full_costs = _costs(session, session.full_parts(), full_made, [output.n_prompt for output in outputs])
    seed = item.cell.seed
    return {
        "mean_exit_layer": ratio_interval(
            [sum(generation.exit_layers) for generation in made], [len(g.token_ids) for g in made], seed=seed
        ),
        "token_match": ratio_interval(matches, [len(output.token_ids) for output in outputs], seed=seed),
        "ideal_speedup_bytes": ratio_interval(
            [cost.read_numel for cost in full_costs], [cost.read_numel for cost in costs], seed=seed
        ),
        "ideal_speedup_flops": ratio_interval(
            [cost.matmul_flops + cost.elementwise_flops for cost in full_costs],
            [cost.matmul_flops + cost.elementwise_flops for cost in costs],
            seed=seed,
        ),
    }


def _costs(
    session: Session, parts: Parts, generations: Sequence[Generation], prompt_lengths: Sequence[int]
) -> list[Cost]:
    """Decode cost of each document."""
    model = session.checkpoint.model
    before, after = (0, 1) if session.checkpoint.kind == "seq2seq" else (1, 0)
    return [
        total_cost(
            model,
            parts,
            (
                (exit_layer, TokenPlace(context=before * n_prompt + position, source=after * n_prompt))
                for position, exit_layer in enumerate(generation.exit_layers, 1)
            ),
        )
        for generation, n_prompt in zip(generations, prompt_lengths, strict=True)
    ]


# --------------------------------------------------------------------- probe


def probe_pass(session: Session, item: WorkItem, writer: AttemptWriter, on_progress: Progress) -> None:
    """Decode at full depth, then read every block's opinion on every token in one teacher-forced pass."""
    documents = session.documents(item.data)
    requests = [session.request(item, document) for document in documents]
    max_new_tokens = item.cell.generation.max_new_tokens
    check_length(session.checkpoint, requests, max_new_tokens)
    order = sorted(range(len(documents)), key=lambda index: len(requests[index].prompt_ids))
    for start in range(0, len(order), PROBE_BATCH_ROWS):
        chosen = order[start : start + PROBE_BATCH_ROWS]
        rows = [requests[index] for index in chosen]
        batch = prefill(session.checkpoint.model, rows, max_new_tokens)
        outputs = [made.token_ids for made in decode(session.checkpoint, batch, session.full_parts())]
        signals = probe(session.checkpoint, [row.prompt_ids for row in rows], outputs)
        writer.write("probe", _probe_table(session, item, [documents[index] for index in chosen], outputs, signals))
        on_progress(min(start + PROBE_BATCH_ROWS, len(order)))


def _probe_table(
    session: Session,
    item: WorkItem,
    documents: Sequence[Document],
    outputs: Sequence[Sequence[int]],
    signals: Mapping[str, np.ndarray],
) -> pa.Table:
    columns: dict[str, Any] = {"doc_key": [], "position": [], "token_id": [], "gold_token_id": [], "token_kind": []}
    for document, output in zip(documents, outputs, strict=True):
        gold, kinds = session.target_ids(item, document), session.kinds(item, document)
        n = len(output)
        columns["doc_key"] += [document.key] * n
        columns["position"] += range(1, n + 1)
        columns["token_id"] += output
        columns["gold_token_id"] += (gold + [None] * n)[:n]
        columns["token_kind"] += (kinds + [None] * n)[:n]
    for name, values in signals.items():
        columns[name] = values if values.ndim == 1 else _lists(values, TABLES["probe"].field(name).type)
    return pa.table({name: pa.array(columns[name], type=TABLES["probe"].field(name).type) for name in columns})


def _lists(values_NL: np.ndarray, kind: pa.DataType) -> pa.Array:
    offsets = np.arange(len(values_NL) + 1, dtype=np.int32) * values_NL.shape[1]
    flat = pa.array(np.ascontiguousarray(values_NL).ravel()).cast(kind.value_type)
    return pa.ListArray.from_arrays(offsets, flat, type=kind)


# -------------------------------------------------------------------- replay


def replay_pass(session: Session, item: WorkItem, writer: AttemptWriter, on_progress: Progress) -> None:
    """Apply the method's exit rule to a probe, in SQL; every token is read as full depth left it (simulated)."""
    depth = session.checkpoint.model.n_blocks
    rule = session.parts(item).exit_layer_sql(depth, item.cell.generation.max_new_tokens)
    if rule is None:
        raise ValueError("this method's gate cannot be replayed over a probe; the planner refuses such cells")
    (probe_cell_id,) = item.cell.depends_on
    path = str(session.finished(probe_cell_id, "probe"))
    with duckdb.connect() as connection:
        tokens = connection.sql(
            f"""
            SELECT doc_key, position, top1_id[e] AS token_id, token_kind, e AS exit_layer, e AS blocks_run,
                   NULL::FLOAT AS score, CASE WHEN e = {depth} THEN 'last' ELSE 'threshold' END AS reason
            FROM (SELECT *, {rule} AS e FROM read_parquet(?))
            ORDER BY doc_key, position
            """,
            params=[path],
        ).to_arrow_table()
        writer.write("tokens", tokens)
        connection.register("tokens", tokens)
        per_document = connection.execute(
            """
            SELECT sum(exit_layer) AS depths, count(*) AS tokens,
                   sum((tokens.token_id = full_token_id)::INT) AS matches
            FROM tokens JOIN read_parquet(?) AS probe USING (doc_key, position) GROUP BY doc_key ORDER BY doc_key
            """,
            [path],
        ).fetchnumpy()
    seed = item.cell.seed
    metrics = {
        "mean_exit_layer": ratio_interval(per_document["depths"], per_document["tokens"], seed=seed),
        "token_match": ratio_interval(per_document["matches"], per_document["tokens"], seed=seed),
    }
    write_metrics(writer, {name: (METRIC_VERSION, interval) for name, interval in metrics.items()})
    on_progress(session.units(item))


# -------------------------------------------------------------------- timing


def timing_pass(session: Session, item: WorkItem, writer: AttemptWriter, on_progress: Progress) -> None:
    """Time the method against full depth and itself against its twin; write raw readings and ratios."""
    cell, settings = item.cell, item.cell.timing
    if settings is None:
        raise ValueError("a timing cell has timing settings")
    documents = session.documents(item.data)[: settings.documents]
    requests = [session.request(item, document) for document in documents]
    check_length(session.checkpoint, requests, cell.generation.max_new_tokens)
    size = cell.batch_size
    units = [
        timing.Unit(documents[start].key, tuple(requests[start : start + size]))
        for start in range(0, len(documents), size)
    ]
    parts, full = session.parts(item), session.full_parts()
    measured = timing.measure(
        session.checkpoint, full, parts, units, cell.generation.max_new_tokens, settings, cell.seed, on_progress
    )
    rows = [asdict(reading) for reading in measured.readings]
    writer.write("timings", pa.Table.from_pylist(rows, schema=TABLES["timings"]))
    metrics = {
        "speedup": timing.speedup(measured.readings, "total", cell.seed),
        "speedup_decode": timing.speedup(measured.readings, "decode", cell.seed),
        "aa_speedup": timing.speedup(measured.readings, "total", cell.seed, twin=True),
    }
    for prefix, arm, generations in (("", "method", measured.method), ("full_", "full", measured.full)):
        totals = [r for r in measured.readings if r.phase == "total" and r.arm == arm and not r.twin]
        decodes = [r for r in measured.readings if r.phase == "decode" and r.arm == arm and not r.twin]
        metrics[f"{prefix}ms_per_request"] = _plain(
            sum(r.wall_ns for r in totals) / len(totals) / size / 1e6, len(units)
        )
        ms_per_token = sum(r.wall_ns for r in decodes) / sum(r.n_tokens for r in decodes) / 1e6
        metrics[f"{prefix}ms_per_token"] = _plain(ms_per_token, len(units))
        n_tokens = sum(len(generation.token_ids) for generation in generations)
        metrics[f"{prefix}tokens_per_request"] = _plain(n_tokens / len(generations), len(units))
    lengths = [len(request.prompt_ids) for request in requests]
    full_cost = sum(_costs(session, full, measured.full, lengths), Cost())
    ideal = ideal_speedup(full_cost, sum(_costs(session, parts, measured.method, lengths), Cost()))
    metrics["realised_fraction"] = _plain(metrics["speedup_decode"].value / ideal.by_bytes, len(units))
    write_metrics(writer, {name: (METRIC_VERSION, interval) for name, interval in metrics.items()})
    writer.log_path.write_text(f"stopped reading: {measured.stop_reason}\n", encoding="utf-8")


def _plain(value: float, n: int) -> Interval:
    return Interval(value, None, None, None, n)


def write_metrics(writer: AttemptWriter, metrics: Mapping[str, tuple[str, Interval]]) -> None:
    """Write metric rows: value, interval and how it was found."""
    rows = [
        {
            "metric": name,
            "metric_version": version,
            "value": interval.value,
            "ci_low": interval.low,
            "ci_high": interval.high,
            "ci_method": interval.method,
            "n": interval.n,
        }
        for name, (version, interval) in metrics.items()
    ]
    writer.write("metrics", pa.Table.from_pylist(rows, schema=TABLES["metrics"]))
