"""Timing: the method against full depth, and full depth against its twin."""

from __future__ import annotations

from dataclasses import asdict

import pyarrow as pa

from exitbench.harness.cells.job import CellJob
from exitbench.harness.cells.seeds import seed_for
from exitbench.harness.engine.model.cost import ideal_speedup
from exitbench.harness.running import timing
from exitbench.harness.running.passes.session import Progress, Session, answer_costs, with_role, write_metrics
from exitbench.methods.base import Cost
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import TABLES
from exitbench.results.statistics.intervals import Interval


def timing_pass(session: Session, item: CellJob, writer: AttemptWriter, on_progress: Progress) -> None:
    """Time the method against full depth and itself against its twin; write raw readings and ratios."""
    cell, settings = item.cell, item.cell.timing
    if settings is None:
        raise ValueError("a timing cell has timing settings")
    documents = session.answered(item)[: settings.documents]
    requests = [session.request(item, document) for document in documents]
    size = cell.batch_size
    units = [
        timing.Unit(documents[start].key, tuple(requests[start : start + size]))
        for start in range(0, len(documents), size)
    ]
    parts, full, seed = session.parts(item), session.full_parts(), seed_for("bootstrap", cell.seed)
    measured = timing.measure(session.checkpoint, full, parts, units, cell.generation, settings, seed, on_progress)
    for table, rows in (("timings", measured.readings), ("device", measured.device)):
        writer.write(table, pa.Table.from_pylist([asdict(row) for row in rows], schema=TABLES[table]))
    metrics = {
        "speedup": timing.speedup(measured.readings, "total", seed),
        "speedup_decode": timing.speedup(measured.readings, "decode", seed),
        "aa_speedup": timing.speedup(measured.readings, "total", seed, twin=True),
    }
    for prefix, arm, generations in (("", "method", measured.method), ("full_", "full", measured.full)):
        totals = [r for r in measured.readings if r.phase == "total" and r.arm == arm and not r.twin]
        decodes = [r for r in measured.readings if r.phase == "decode" and r.arm == arm and not r.twin]
        answered = len(totals) * len(documents) / len(units)  # the last unit may have fewer documents
        metrics[f"{prefix}ms_per_request"] = _plain(sum(r.wall_ns for r in totals) / answered / 1e6, len(units))
        ms_per_token = sum(r.wall_ns for r in decodes) / sum(r.n_tokens for r in decodes) / 1e6
        metrics[f"{prefix}ms_per_token"] = _plain(ms_per_token, len(units))
        n_tokens = sum(len(generation.token_ids) for generation in generations)
        metrics[f"{prefix}tokens_per_request"] = _plain(n_tokens / len(generations), len(units))
    lengths = [len(request.prompt_ids) for request in requests]
    full_cost, own_cost = (
        sum(answer_costs(session.checkpoint, who, made, lengths, cell.first_token), Cost())
        for who, made in ((full, measured.full), (parts, measured.method))
    )
    ideal = ideal_speedup(full_cost, own_cost)
    # Rows of a batch share the weights that are read: there the products count.
    allowed = ideal.by_bytes if size == 1 else ideal.by_flops
    metrics["realised_fraction"] = _plain(metrics["speedup_decode"].value / allowed, len(units))
    metrics["timed_documents"] = _plain(len(documents), len(units))
    metrics["timed_rounds"] = _plain(len({reading.round for reading in measured.readings}), len(units))
    cost = {"ideal_speedup_decode": _plain(allowed, len(units))}
    write_metrics(writer, with_role("speed", metrics) | with_role("cost", cost))
    writer.log_path.write_text(f"stopped reading: {measured.stop_reason}\n", encoding="utf-8")


def _plain(value: float, n: int) -> Interval:
    return Interval(value, None, None, None, n)
