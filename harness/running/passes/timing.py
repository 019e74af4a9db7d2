"""Timing: the method against full depth, and full depth against its twin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import pyarrow as pa

from exitbench.harness.cells.cell import TimingSettings
from exitbench.harness.cells.job import CellJob
from exitbench.harness.cells.seeds import seed_for
from exitbench.harness.engine.decoding.branches import Context
from exitbench.harness.engine.model.cost import ideal_speedup
from exitbench.harness.running import timing
from exitbench.harness.running.energy.meter import open_meter
from exitbench.harness.running.energy.readings import energy_metrics
from exitbench.harness.running.passes.session import Progress, Session, Skip, answer_costs, with_role, write_metrics
from exitbench.harness.running.passes.token_times import token_times_pass
from exitbench.harness.running.scored_texts import contexts_of, longest_of
from exitbench.harness.running.sequences.passes import sequence_timing_pass
from exitbench.methods.base import Cost
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import TABLES
from exitbench.results.statistics.intervals import Interval, point


def timing_pass(session: Session, item: CellJob, writer: AttemptWriter, on_progress: Progress) -> None:
    """Time the method against full depth and itself against its twin; write raw readings and ratios."""
    cell, settings = item.cell, item.cell.timing
    if settings is None:
        raise ValueError("a timing cell has timing settings")
    if cell.record is not None:
        return token_times_pass(session, item, cell.record, writer, on_progress)
    if item.data.task_object.output_type == "classification":
        classified, told = sequence_timing_pass(session, item, settings, on_progress)
        _write_readings(writer, classified)
        energy = _energy_metrics(classified, seed_for("bootstrap", cell.seed))
        return write_metrics(writer, told | with_role("energy", energy))
    if item.data.task_object.output_type != "generate_until":
        return _scoring_pass(session, item, settings, writer, on_progress)
    documents = session.answered(item)[: settings.documents]
    requests = [session.request(item, document) for document in documents]
    size = cell.batch_size
    units = [
        timing.Unit(documents[start].key, tuple(requests[start : start + size]))
        for start in range(0, len(documents), size)
    ]
    parts, full, seed = session.parts(item), session.full_parts(), seed_for("bootstrap", cell.seed)
    work = timing.Generating(session.checkpoint, cell.generation)
    meter = open_meter(work.device.type)
    measured = timing.measure(work, full, parts, units, settings, seed, on_progress, meter)
    _write_readings(writer, measured)
    metrics = timing.request_metrics(measured, len(documents), len(units), seed)
    metrics["speedup_decode"] = timing.speedup(measured.readings, "decode", seed)
    metrics |= timing.token_metrics(measured, len(units))
    for prefix, generations in (("", measured.method), ("full_", measured.full)):
        n_tokens = sum(len(generation.token_ids) for generation in generations)
        metrics[f"{prefix}tokens_per_request"] = point(n_tokens / len(generations), len(units))
    lengths = [len(request.prompt_ids) for request in requests]
    full_cost, own_cost = (
        sum(answer_costs(session.checkpoint, who, made, lengths, cell.first_token), Cost())
        for who, made in ((full, measured.full), (parts, measured.method))
    )
    ideal = ideal_speedup(full_cost, own_cost)
    # Rows of a batch share the weights that are read: there the products count.
    allowed = ideal.by_bytes if size == 1 else ideal.by_flops
    metrics["realised_fraction"] = point(metrics["speedup_decode"].value / allowed, len(units))
    cost = {"ideal_speedup_decode": point(allowed, len(units))}
    spent = _energy_metrics(measured, seed)
    write_metrics(writer, with_role("speed", metrics) | with_role("cost", cost) | with_role("energy", spent))


def _scoring_pass(
    session: Session, item: CellJob, settings: TimingSettings, writer: AttemptWriter, on_progress: Progress
) -> None:
    """Time log-likelihoods: the same texts at full depth and with the method."""
    cell, parts = item.cell, session.scoring(item, session.parts(item))
    if parts.gate.looks_ahead:
        raise Skip("an oracle reads all blocks, and texts of one context leave at layers of their own: not timed")
    everything = session.answered(item)
    documents, seed = everything[: settings.documents], seed_for("bootstrap", cell.seed)
    contexts: dict[str, list[Context]] = {}
    for shared in contexts_of(session.texts(item, documents), partial(seed_for, "decode", cell.seed)):
        contexts.setdefault(shared.doc_key, []).append(shared.context)
    size = cell.batch_size
    units = [
        timing.Unit(
            documents[start].key,
            tuple(context for document in documents[start : start + size] for context in contexts[document.key]),
        )
        for start in range(0, len(documents), size)
    ]
    longest = longest_of(session.texts(item, everything))
    work = timing.Scoring(session.checkpoint, cell.generation, longest, size)
    meter = open_meter(work.device.type)
    measured = timing.measure(work, session.full_parts(), parts, units, settings, seed, on_progress, meter)
    _write_readings(writer, measured)
    metrics = timing.request_metrics(measured, len(documents), len(units), seed)
    n_tokens = sum(len(ids) for unit in units for context in unit.requests for ids in context.continuations)
    for prefix in ("", "full_"):
        metrics[f"{prefix}tokens_per_request"] = point(n_tokens / len(documents), len(units))
    write_metrics(writer, with_role("speed", metrics) | with_role("energy", _energy_metrics(measured, seed)))


def _energy_metrics(measured: timing.Timing[Any], seed: int) -> dict[str, Interval]:
    totals = [reading for reading in measured.readings if reading.phase == "total" and not reading.twin]
    tokens = {arm: sum(r.n_tokens for r in totals if r.arm == arm) for arm in ("full", "method")}
    return energy_metrics(measured.energy, tokens, seed)


def _write_readings(writer: AttemptWriter, measured: timing.Timing[Any]) -> None:
    energy = measured.energy
    tables: dict[str, Sequence[Any]] = {"timings": measured.readings, "device": measured.device}
    if energy.readings:
        tables |= {"energy": energy.readings, "energy_domains": energy.domains}
    for table, rows in tables.items():
        writer.write(table, pa.Table.from_pylist([asdict(row) for row in rows], schema=TABLES[table]))
    log = f"stopped reading: {measured.stop_reason}\nenergy: {energy.told}\n"
    writer.log_path.write_text(log, encoding="utf-8")
