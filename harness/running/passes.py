"""Passes: how each kind of cell is computed. Each pass writes tables into the attempt's spool folder.

Passes do not depend on the kind of task; `harness.work` handles the differences between tasks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import save_file

from exitbench.errors import UserError, is_out_of_memory
from exitbench.harness.cells.cell import Kind
from exitbench.harness.engine.checkpoints.sizes import gib, weights_bytes
from exitbench.harness.engine.model.available import available_bytes
from exitbench.harness.running import timing
from exitbench.harness.running.energy.meter import open_meter
from exitbench.harness.running.energy.readings import energy_metrics
from exitbench.harness.work.base import Progress, Work
from exitbench.harness.work.loaded import load_model
from exitbench.harness.work.metrics import (
    Metric,
    depth_interval,
    score_columns,
    task_metrics,
    with_role,
    write_metrics,
)
from exitbench.harness.work.timed import Unit
from exitbench.methods.base import Parts
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import FITTED_FILE, TABLES
from exitbench.results.statistics.intervals import SHARE, Interval, mean_interval, point
from exitbench.results.statistics.risk_control import calibrate
from exitbench.tasks.base import Task
from exitbench.tasks.document import DocumentScore

_TOLERANCE: Final = 1e-6
REFERENCE: Final = "float32"
"""Number format against which the other formats are compared."""
_ROOM: Final = 1.25
"""Free memory needed relative to the weights: activations, keys and values of a document also need memory."""

Pass = Callable[[Work[Any], AttemptWriter, Progress], None]


def quality_pass(work: Work[Any], writer: AttemptWriter, on_progress: Progress) -> None:
    """Compute the method's answer to every document; write answers, exit traces (exit layers of tokens) and metrics."""
    parts = work.parts()
    evaluated = work.evaluate(parts, on_progress)
    answers, scores = evaluated.answers, [evaluated.scores[document.key] for document in work.documents]
    samples = [
        {"doc_key": document.key, **work.sample(document, answers[document.key]), **score_columns(score)}
        for document, score in zip(work.documents, scores, strict=True)
    ]
    writer.write("samples", pa.Table.from_pylist(samples, schema=TABLES["samples"]))
    metrics = checked_metrics(work.task, scores, evaluated.aggregated)
    metrics |= work.record(writer, answers, parts)
    write_metrics(writer, metrics | format_metrics(work, answers))


def checked_metrics(task: Task, scores: Sequence[DocumentScore], aggregated: Mapping[str, float]) -> dict[str, Metric]:
    """Return the task's metrics, computed from stored scores and compared with lm-eval's values.

    Args:
        task: The task.
        scores: Scores of the documents.
        aggregated: lm-eval's value of each metric; a metric without a value is not compared.

    Raises:
        RuntimeError: lm-eval's value of a metric differs.
    """
    metrics = task_metrics(task, scores)
    for metric, stored in metrics.items():
        lm_eval_value = aggregated.get(metric, stored.interval.value)
        if abs(lm_eval_value - stored.interval.value) > _TOLERANCE * max(1.0, abs(lm_eval_value)):
            raise RuntimeError(
                f"lm-eval says {metric} = {lm_eval_value}, the stored scores say {stored.interval.value}"
            )
    return metrics


def format_metrics(work: Work[Any], answers: Mapping[str, Any]) -> dict[str, Metric]:
    """Return metrics that compare full depth in the cell's number format with float32 weights, on a few documents.

    The result is empty for float32 cells, for cells of early-exit methods, and if there is no memory for a second copy
    of the weights. Documents are run one by one, so that little memory is needed in addition to the weights.
    """
    cell, path = work.cell, work.model.path
    if cell.dtype == REFERENCE or cell.full_depth_cell_id is not None:
        return {}
    try:
        devices = [cell.device] if cell.device_map is None else list(dict(cell.device_map))
        _require_room(round(_ROOM * weights_bytes(path, torch.float32)), devices)
        reference = load_model(path, torch.float32, cell.device, cell.engine, cell.device_map)
        return with_role("format", work.compare_formats(reference, answers))
    except Exception as error:
        if not (isinstance(error, UserError) or is_out_of_memory(error)):
            raise
        print(f"{work.item.label}: {cell.dtype} was not compared with {REFERENCE}: {error}", file=sys.stderr)
        return {}


def _require_room(needed_bytes: int, devices: Sequence[str]) -> None:
    """Check that the devices have `needed_bytes` of free memory, for a second copy of the weights in float32.

    The check passes if the free memory is unknown.

    Raises:
        UserError: The copy does not fit; the message gives needed and available memory.
    """
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # memory cached by torch since an earlier pass counts as used
    available = available_bytes(*devices)
    if available is not None and needed_bytes > available:
        raise UserError(f"that needs {gib(needed_bytes)}, and {gib(available)} are available on {', '.join(devices)}.")


def replay_pass(work: Work[Any], writer: AttemptWriter, on_progress: Progress) -> None:
    """Apply the method's exit rule to the predictions of every block in a probe (simulated exits); write metrics."""
    write_metrics(writer, work.replay(writer))
    on_progress(work.units())


def fit_pass(work: Work[Any], writer: AttemptWriter, on_progress: Progress) -> None:
    """Fit the method's networks or thresholds with the model frozen; write the tensors and the learning curve."""
    data, total = work.fit_data(), work.units()
    fitted = work.method.fit(data, lambda share: on_progress(round(share * total)))
    save_file({name: tensor.contiguous() for name, tensor in fitted.tensors.items()}, writer.path / FITTED_FILE)
    if fitted.curve:
        writer.write("fit_curve", pa.Table.from_pylist(fitted.curve, schema=TABLES["fit_curve"]))
        n = int(data.document_N.max()) + 1
        last = {name: value for name, value in fitted.curve[-1].items() if name.startswith("held_out")}
        metrics = {name: point(value, n) for name, value in last.items()}
        write_metrics(writer, with_role("preparation", metrics))


def calibration_pass(work: Work[Any], writer: AttemptWriter, on_progress: Progress) -> None:
    """Find the cheapest threshold whose loss is bounded with confidence (CALM with Learn then Test).

    Thresholds are tried from the conservative end until one fails. Each is tried by a real decode of the calibration
    split, so the loss includes errors caused by approximated keys and values. The chosen threshold is then checked on
    documents that were not used for calibration.
    """
    settings, documents = work.cell.calibration, work.documents
    assert settings is not None, "the planner gives every calibration its settings"
    counter = count(len(documents), len(documents))
    full = work.answer(work.full_parts, _ignore)
    on_progress(next(counter))
    depths: dict[float, float] = {}

    def losses_at(level: float) -> np.ndarray:
        parts = work.parts(threshold=level)
        early = work.answer(parts, _ignore)
        on_progress(next(counter))
        depths[level] = _mean_exit_layer(work, early, parts).value
        return work.losses(settings, full, early)

    path = calibrate(settings.rule, settings.levels, losses_at, settings.delta, settings.epsilon)
    rows = [
        {
            "step": step,
            "threshold": tried.level,
            "mean_loss": tried.mean_loss,
            "p_value": tried.p_value,
            "passed": tried.passed,
            "mean_exit_layer": depths[tried.level],
            "n": len(documents),
        }
        for step, tried in enumerate(path.steps, 1)
    ]
    writer.write("calibration", pa.Table.from_pylist(rows, schema=TABLES["calibration"]))
    chosen = {} if path.chosen is None else {"threshold": Interval(path.chosen, None, None, None, len(documents))}
    loss, depth = _held_out_results(work, path.chosen)
    metrics = with_role("preparation", {**chosen, "held_out_loss": loss})
    write_metrics(writer, metrics | with_role("depth", {"held_out_mean_exit_layer": depth}))


def _held_out_results(work: Work[Any], chosen: float | None) -> tuple[Interval, Interval]:
    """Return loss and mean exit layer on held-out documents at the chosen threshold; at full depth if it is None."""
    settings = work.cell.calibration
    assert settings is not None and work.item.held_out is not None, "the planner gives every calibration both"
    held_out = work.for_data(work.item.held_out)
    full = held_out.answer(work.full_parts, _ignore)
    parts = work.full_parts if chosen is None else work.parts(threshold=chosen)
    early = held_out.answer(parts, _ignore)
    loss = mean_interval(held_out.losses(settings, full, early), SHARE)
    return loss, _mean_exit_layer(held_out, early, parts)


def _mean_exit_layer(work: Work[Any], answers: Sequence[Any], parts: Parts) -> Interval:
    exits = [work.exit_layers(answer) for answer in answers]
    blocks, tokens = [sum(layers) for layers in exits], [len(layers) for layers in exits]
    return depth_interval(blocks, tokens, work.model.model.n_blocks, is_fixed=not parts.gate.decides)


def _ignore(n_done: int) -> None:
    """Do nothing: progress callback for steps that are not reported."""


def timing_pass(work: Work[Any], writer: AttemptWriter, on_progress: Progress) -> None:
    """Time the method against full depth, and full depth against its twin; write clock readings and speed-ups.

    The twin is a second run of full depth; the ratio of the times of both runs is the noise floor.
    """
    cell, settings, seed = work.cell, work.cell.timing, work.bootstrap_seed
    if settings is None:
        raise ValueError("a timing cell has timing settings")
    if cell.record is not None:
        return work.time_tokens(writer, on_progress)
    parts, size, documents = work.timed_parts(), cell.batch_size, work.documents[: settings.documents]
    batches = [documents[start : start + size] for start in range(0, len(documents), size)]
    units = [Unit(batch[0].key, tuple(work.requests(batch))) for batch in batches]
    timed = work.timed_work()
    meter = open_meter(timed.device.type)
    measured = timing.measure(timed, work.full_parts, parts, units, settings, seed, on_progress, meter)
    _write_readings(writer, measured)
    speed = timing.common_metrics(measured, len(documents), len(units), seed)
    if any(reading.phase == "decode" for reading in measured.readings):
        speed["speedup_decode"] = timing.speedup(measured.readings, "decode", seed)
        speed |= timing.token_metrics(measured, len(units))
    for prefix, outputs in (("", measured.method), ("full_", measured.full)):
        tokens = [n for n in map(work.n_tokens, outputs) if n is not None]
        if tokens:
            speed[f"{prefix}tokens_per_request"] = point(sum(tokens) / len(documents), len(units))
    cost = {}
    ideal = work.ideal_speedup(parts, documents, measured.full, measured.method)
    if ideal is not None:
        decode = speed.setdefault("speedup_decode", speed["speedup"])  # an encoder has no phase before the blocks
        speed["realised_fraction"] = point(decode.value / ideal, len(units))
        cost["ideal_speedup_decode"] = point(ideal, len(units))
    energy = _energy_metrics(measured, seed)
    write_metrics(writer, with_role("speed", speed) | with_role("cost", cost) | with_role("energy", energy))


def _energy_metrics(measured: timing.Timing[Any], seed: int) -> dict[str, Interval]:
    totals = [reading for reading in measured.readings if reading.phase == "total" and not reading.twin]
    tokens = {arm: sum(r.n_tokens for r in totals if r.arm == arm) for arm in ("full", "method")}
    return energy_metrics(measured.energy, tokens, seed)


def _write_readings(writer: AttemptWriter, measured: timing.Timing[Any]) -> None:
    energy = measured.energy
    tables: dict[str, Sequence[Any]] = {"timings": measured.readings, "device": measured.device}
    if energy.readings:
        tables |= {"energy": energy.readings, "energy_domains": energy.idle}
    for table, rows in tables.items():
        writer.write(table, pa.Table.from_pylist([asdict(row) for row in rows], schema=TABLES[table]))
    log = f"stopped reading: {measured.stop_reason}\nenergy: {energy.summary}\n"
    writer.log_path.write_text(log, encoding="utf-8")


def write_prompt_counts(work: Work[Any], writer: AttemptWriter) -> None:
    """Write, as metrics, the numbers of excluded documents and truncated prompts; numbers that are 0 are left out.

    `documents_shared` counts documents excluded because a document with another use has their prompt. It is counted
    over the whole split, before its limit; the other numbers are of the requested documents.
    """
    held_out = work.item.held_out
    fittings = [work.fitting, *([] if held_out is None else [work.for_data(held_out).fitting])]
    counts = {
        "documents_dropped": sum(fitting.dropped for fitting in fittings),
        "documents_unscorable": sum(fitting.unscorable for fitting in fittings),
        "prompts_truncated": sum(fitting.truncated for fitting in fittings),
    }
    n_requested = sum(len(fitting.documents) + fitting.dropped + fitting.unscorable for fitting in fittings)
    counts["documents_shared"] = work.model.documents(work.data)[1]
    metrics = {name: point(n, n_requested) for name, n in counts.items() if n}
    if metrics:
        write_metrics(writer, with_role("data", metrics))


PASSES: Final[dict[Kind, Pass]] = {
    "quality": quality_pass,
    "probe": lambda work, writer, on_progress: work.probe(writer, on_progress),
    "scores": lambda work, writer, on_progress: work.score_blocks(writer, on_progress),
    "replay": replay_pass,
    "fit": fit_pass,
    "calibration": calibration_pass,
    "timing": timing_pass,
}
