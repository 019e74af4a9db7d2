"""Calibration: the cheapest threshold whose damage is bounded with confidence (CALM with Learn then Test).

Every level is a real decode of the calibration split, damage to the cache included; the outcome is then checked on
documents that calibration did not see.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import count
from typing import cast

import numpy as np
import pyarrow as pa

from exitbench.harness.cells.job import CellJob
from exitbench.harness.running.choice_tables import chosen_place
from exitbench.harness.running.lm import Answer
from exitbench.harness.running.passes.choices import lm_eval_task
from exitbench.harness.running.passes.session import Progress, Session, Skip, depth_interval, with_role, write_metrics
from exitbench.harness.running.scored_texts import ScoredText
from exitbench.methods.base import Parts
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import TABLES
from exitbench.results.statistics.intervals import SHARE, Interval, mean_interval
from exitbench.results.statistics.risk_control import calibrate
from exitbench.tasks.document import Document


def calibration_pass(session: Session, item: CellJob, writer: AttemptWriter, on_progress: Progress) -> None:
    """Try the levels, conservative first, until one fails; write the path, the choice, and its held-out loss."""
    settings, documents = item.cell.calibration, session.answered(item)
    assert settings is not None, "the planner gives every calibration its settings"
    done = count(len(documents), len(documents))
    full = _answered(session, item, documents, session.full_parts())
    on_progress(next(done))
    depths: dict[float, float] = {}

    def losses_at(level: float) -> np.ndarray:
        parts = _at(session, item, level)
        early = _answered(session, item, documents, parts)
        on_progress(next(done))
        depths[level] = _mean_exit(session, early, parts).value
        return losses(item, documents, full, early)

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
    loss, depth = _held_out(session, item, path.chosen)
    metrics = with_role("preparation", {**chosen, "held_out_loss": loss})
    write_metrics(writer, metrics | with_role("depth", {"held_out_mean_exit_layer": depth}))


Outcome = Answer | Sequence[ScoredText]
"""What a document got: an answer, or the scores of its texts."""


def _answered(session: Session, item: CellJob, documents: Sequence[Document], parts: Parts) -> Sequence[Outcome]:
    output_type = item.data.task_object.output_type
    if output_type == "generate_until":
        return session.answers(item, documents, parts, lambda n: None)
    if output_type != "multiple_choice":
        raise Skip(f"calibrations bound what is lost of answers or choices, of which {output_type} has none")
    return session.scored(item, documents, parts, lambda n: None)


def losses(
    item: CellJob, documents: Sequence[Document], full: Sequence[Outcome], early: Sequence[Outcome]
) -> np.ndarray:
    """Loss of each document in [0, 1].

    textual: how far the score of the early answer is from the best, with full depth's as the reference; of choices,
    whether another one was chosen. risk: how much worse the early answer scores against the real reference than full
    depth's, 0 if not worse (CALM section 4).
    """
    if item.data.task_object.output_type == "multiple_choice":
        return choice_losses(item, documents, cast(Sequence[Texts], full), cast(Sequence[Texts], early))
    return text_losses(item, documents, cast(Sequence[Answer], full), cast(Sequence[Answer], early))


def text_losses(
    item: CellJob, documents: Sequence[Document], full: Sequence[Answer], early: Sequence[Answer]
) -> np.ndarray:
    """Losses of generated answers; see `losses`."""
    task, settings = item.data.task_object, item.cell.calibration
    assert settings is not None
    metric = task.consistency_metric

    def score(document: Document, text: str) -> float:
        return task.score(document, text).values[metric]

    values = []
    for document, whole, cut in zip(documents, full, early, strict=True):
        if whole.text == cut.text:
            values.append(0.0)
        elif settings.consistency == "textual":
            values.append(task.shortfall(metric, score(task.with_reference(document, whole.text), cut.text)))
        else:
            values.append(task.shortfall(metric, score(document, cut.text), score(document, whole.text)))
    return np.clip(values, 0, 1)


Texts = Sequence[ScoredText]


def choice_losses(
    item: CellJob, documents: Sequence[Document], full: Sequence[Texts], early: Sequence[Texts]
) -> np.ndarray:
    """Losses of choices; see `losses`."""
    task, settings = lm_eval_task(item), item.cell.calibration
    assert settings is not None
    if settings.consistency == "textual":
        pairs = zip(documents, full, early, strict=True)
        return np.array([float(chosen_place(task, doc, a) != chosen_place(task, doc, b)) for doc, a, b in pairs])
    metric = task.consistency_metric
    whole, cut = (
        task.score_responses(
            documents,
            {
                document.key: [(text.logprob, text.is_greedy) for text in own]
                for document, own in zip(documents, made, strict=True)
            },
        )
        for made in (full, early)
    )
    lost = [
        task.shortfall(metric, cut[document.key].values[metric], whole[document.key].values[metric])
        for document in documents
    ]
    return np.clip(lost, 0, 1)


def _held_out(session: Session, item: CellJob, chosen: float | None) -> tuple[Interval, Interval]:
    """Loss and mean exit layer on other documents at the chosen level; full depth where none was chosen."""
    assert item.held_out is not None, "the planner gives every calibration its held-out documents"
    documents = session.fitting(item.held_out, item.cell.generation).documents
    there = dataclasses.replace(item, data=item.held_out)
    full = _answered(session, there, documents, session.full_parts())
    parts = session.full_parts() if chosen is None else _at(session, item, chosen)
    early = _answered(session, there, documents, parts)
    loss = mean_interval(losses(there, documents, full, early), SHARE)
    return loss, _mean_exit(session, early, parts)


def _at(session: Session, item: CellJob, level: float) -> Parts:
    method = dataclasses.replace(session.method(item), threshold=level)  # type: ignore[call-arg]
    return session.parts_of(item, method)


def _mean_exit(session: Session, answers: Sequence[Outcome], parts: Parts) -> Interval:
    exits = [
        answer.generation.exit_layers
        if isinstance(answer, Answer)
        else [layer for text in answer for layer in text.exit_layers]
        for answer in answers
    ]
    blocks, tokens = [sum(layers) for layers in exits], [len(layers) for layers in exits]
    return depth_interval(blocks, tokens, session.checkpoint.model.n_blocks, is_fixed=not parts.gate.decides)
