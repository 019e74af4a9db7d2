"""Encoders: documents classified as wholes, each leaving after a block of its own; quality, timing and fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from exitbench.harness.cells.cell import TimingSettings
from exitbench.harness.cells.job import CellJob
from exitbench.harness.cells.seeds import seed_for
from exitbench.harness.cells.texts import EncodedText, label_places
from exitbench.harness.engine.encoders.classify import Classified, classify, pooled_states, text_cost
from exitbench.harness.engine.encoders.model import EncoderClassifier
from exitbench.harness.running import timing
from exitbench.harness.running.batches import in_batches
from exitbench.harness.running.energy.meter import open_meter
from exitbench.harness.running.passes.number_format import label_gaps
from exitbench.harness.running.passes.session import (
    Progress,
    Session,
    agreement_metrics,
    depth_interval,
    with_role,
    write_metrics,
)
from exitbench.harness.running.scoring import Metric, score_columns, task_metrics
from exitbench.methods.base import Cost, FitData, Parts, argmax_token
from exitbench.methods.gates import Scheduled
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import TABLES
from exitbench.results.statistics.intervals import bounded_ratio_interval, point, ratio_interval
from exitbench.tasks.classification import ClassificationTask
from exitbench.tasks.document import Document


def sequence_quality_pass(session: Session, item: CellJob, writer: AttemptWriter, on_progress: Progress) -> None:
    """Classify every document; write answers, what each block asked said, and metrics."""
    work = _Work.of(session, item)
    parts = session.parts(item)
    answers: dict[int, Classified] = {}

    def run(chosen: Sequence[int]) -> None:
        answers.update(zip(chosen, classify(session.classifier, [work.texts[at] for at in chosen], parts), strict=True))

    by_length = sorted(range(len(work.texts)), key=lambda index: len(work.texts[index].ids))
    in_batches(by_length, item.cell.rows, run, on_progress)
    made = [answers[index] for index in range(len(work.texts))]
    outputs = [work.task.spelled(work.prediction(answer)) for answer in made]
    scores = [work.task.score(document, output) for document, output in zip(work.documents, outputs, strict=True)]
    is_full = item.cell.full_depth_cell_id is None  # the others' texts are the same
    samples = [
        {
            "doc_key": document.key,
            "output_text": output,
            "output_ids": [work.places[answer.label]],
            "n_prompt": len(text.ids),
            "n_cut": text.n_cut,
            "n_output": 1,
            "stop_reason": "label",
            "input_text": work.task.prompt(document) if is_full else None,
            "gold_text": work.task.target(document) if is_full else None,
            **score_columns(score),
        }
        for document, text, answer, output, score in zip(work.documents, work.texts, made, outputs, scores, strict=True)
    ]
    writer.write("samples", pa.Table.from_pylist(samples, schema=TABLES["samples"]))
    full = _full_outputs(session, item, work, made, outputs)
    writer.write("tokens", _token_table(work, made, full, parts))
    writer.write("sequence_trace", _trace_table(work, made))
    metrics = task_metrics(work.task, scores) | _depth_and_cost(session, item, work, parts, made, outputs, full)
    write_metrics(writer, metrics | label_gaps(session, item, work.documents))


def sequence_timing_pass(
    session: Session, item: CellJob, settings: TimingSettings, on_progress: Progress
) -> tuple[timing.Timing[Classified], dict[str, Metric]]:
    """Time the method against full depth, batch by batch; returns the readings, and metrics with their roles."""
    asked, parts, full = _Work.of(session, item), session.parts(item), session.full_parts()
    size, bootstrap = item.cell.batch_size, seed_for("bootstrap", item.cell.seed)
    texts = asked.texts[: settings.documents]
    units = [
        timing.Unit(asked.documents[start].key, tuple(texts[start : start + size]))
        for start in range(0, len(texts), size)
    ]
    work, meter = Classifying(session.classifier), open_meter(session.classifier.device.type)
    measured = timing.measure(work, full, parts, units, settings, bootstrap, on_progress, meter)
    metrics = timing.request_metrics(measured, len(texts), len(units), bootstrap)
    speedup = metrics["speedup_decode"] = metrics["speedup"]  # nothing comes before the blocks
    full_cost, own_cost = (
        sum(
            (
                text_cost(session.classifier, who, len(text.ids), answer.record.exit_layer, answer.blocks_read)
                for text, answer in zip(texts, made, strict=True)
            ),
            Cost(),
        )
        for who, made in ((full, measured.full), (parts, measured.method))
    )
    ideal = full_cost.flops / own_cost.flops
    metrics["realised_fraction"] = point(speedup.value / ideal, len(units))
    cost = {"ideal_speedup_decode": point(ideal, len(units))}
    return measured, with_role("speed", metrics) | with_role("cost", cost)


@torch.no_grad()
def sequence_fit_data(session: Session, item: CellJob) -> FitData:
    """What classifiers read of the cell's documents after every block, with the right labels."""
    work, model = _Work.of(session, item), session.classifier
    pieces: list[torch.Tensor] = []
    in_batches(
        work.texts,
        item.cell.rows,
        lambda texts: pieces.append(pooled_states(model, texts)),
        lambda done: None,
    )
    states_LND = torch.cat(pieces, dim=1)
    own_place = {place: label for label, place in enumerate(work.places)}
    gold = [0 if work.task.is_regression else own_place[int(work.task.gold(one))] for one in work.documents]
    gold_N = torch.tensor(gold, device=states_LND.device)
    final_N = argmax_token(model.logits(states_LND[-1]))
    return FitData(model, states_LND, final_N, gold_N, torch.arange(len(gold), device=states_LND.device))


@dataclass(frozen=True)
class Classifying:
    """What is timed: batches of texts, their embedding included."""

    model: EncoderClassifier

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.model.device

    def run(self, parts: Parts, unit: timing.Unit[EncodedText]) -> list[Classified]:
        """Classify a batch, traced."""
        return classify(self.model, unit.requests, parts)

    def knowing(self, parts: Parts, units: Sequence[timing.Unit[EncodedText]], made: Sequence[Classified]) -> Parts:
        """The blocks behind the exits of an oracle are really skipped."""
        texts = [text for unit in units for text in unit.requests]
        known = {text.seed: [answer.record.exit_layer] for text, answer in zip(texts, made, strict=True)}
        return Parts(Scheduled(known), parts.threshold, parts.head, parts.kv_policy, parts.blocks)

    def timed(self, parts: Parts, unit: timing.Unit[EncodedText], clock: timing.Clock) -> tuple[tuple[str, ...], int]:
        """Classify a batch untraced."""
        clock.mark()
        classify(self.model, unit.requests, parts, traced=False)
        clock.mark()
        return (), len(unit.requests)


@dataclass(frozen=True)
class _Work:
    """Documents of a cell as the model reads them.

    Attributes:
        places: Place among the task's labels of each of the model's.
    """

    task: ClassificationTask
    documents: Sequence[Document]
    texts: Sequence[EncodedText]
    places: tuple[int, ...]

    @classmethod
    def of(cls, session: Session, item: CellJob) -> _Work:
        task = item.data.task_object
        assert isinstance(task, ClassificationTask), "the planner gives encoders tasks of their own"
        documents = session.answered(item)
        places = label_places(task.name, task.labels, session.classifier.labels)
        return cls(task, documents, session.encoded(item, documents), places)

    def prediction(self, answer: Classified) -> int | float:
        return answer.value if self.task.is_regression else self.places[answer.label]


def _full_outputs(
    session: Session, item: CellJob, work: _Work, made: Sequence[Classified], outputs: Sequence[str]
) -> Mapping[str, tuple[int, str]]:
    """Label and text of full depth's answers, by document key."""
    if item.cell.full_depth_cell_id is None:
        own = zip(work.documents, made, outputs, strict=True)
        return {document.key: (work.places[answer.label], output) for document, answer, output in own}
    path = session.file_of(item.cell.full_depth_cell_id, "samples.parquet")
    rows = pq.read_table(path, columns=["doc_key", "output_ids", "output_text"]).to_pylist()
    return {row["doc_key"]: (row["output_ids"][0], row["output_text"]) for row in rows}


def _token_table(
    work: _Work, made: Sequence[Classified], full: Mapping[str, tuple[int, str]], parts: Parts
) -> pa.Table:
    """One row per document: a label is its only token."""
    rows = [
        {
            **answer.record.to_row(parts),
            "doc_key": document.key,
            "position": 1,
            "token_id": work.places[answer.label],
            "full_token_id": full[document.key][0],
        }
        for document, answer in zip(work.documents, made, strict=True)
    ]
    return pa.Table.from_pylist(rows, schema=TABLES["tokens"])


def _trace_table(work: _Work, made: Sequence[Classified]) -> pa.Table:
    """One row per document and block reading."""
    rows: list[dict[str, Any]] = []
    for document, answer in zip(work.documents, made, strict=True):
        gold = work.task.gold(document)
        for reading in answer.readings:
            label = None if work.task.is_regression else work.places[reading.label]
            rows.append(
                {
                    "doc_key": document.key,
                    "block": reading.block,
                    "label_id": label,
                    "prediction": reading.value if label is None else float(label),
                    "probability": None if label is None else reading.value,
                    "gold": float(gold),
                    "score": reading.score,
                    "exited": reading.exited,
                }
            )
    return pa.Table.from_pylist(rows, schema=TABLES["sequence_trace"])


def _depth_and_cost(
    session: Session,
    item: CellJob,
    work: _Work,
    parts: Parts,
    made: Sequence[Classified],
    outputs: Sequence[str],
    full: Mapping[str, tuple[int, str]],
) -> dict[str, Metric]:
    """Mean blocks, agreement with full depth of labels, and ideal speed-ups, each over documents."""
    model, seed, ones = session.classifier, seed_for("bootstrap", item.cell.seed), np.ones(len(made))
    depth = {
        "mean_exit_layer": depth_interval(
            [answer.record.exit_layer for answer in made], ones, model.n_blocks, is_fixed=not parts.gate.decides
        ),
        "mean_blocks_run": depth_interval(
            [answer.record.blocks_run for answer in made], ones, model.n_blocks, is_fixed=parts.runs_fixed_blocks
        ),
    }
    agreement = {}
    if not work.task.is_regression:
        same = [full[document.key][1] == output for document, output in zip(work.documents, outputs, strict=True)]
        agreement["token_match"] = bounded_ratio_interval(np.array(same, dtype=float), ones)
    lengths, at_full = [len(text.ids) for text in work.texts], session.full_parts()
    own = [
        text_cost(model, parts, length, answer.record.exit_layer, answer.blocks_read)
        for length, answer in zip(lengths, made, strict=True)
    ]
    whole = [text_cost(model, at_full, length, model.n_blocks, [model.n_blocks]) for length in lengths]
    cost = {
        "ideal_speedup_bytes": ratio_interval(
            [one.read_numel for one in whole], [one.read_numel for one in own], seed=seed
        ),
        "ideal_speedup_flops": ratio_interval([one.flops for one in whole], [one.flops for one in own], seed=seed),
    }
    return with_role("depth", depth) | agreement_metrics(agreement) | with_role("cost", cost)
