"""Classification: an encoder maps texts to labels or numbers; each text has one exit layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from exitbench.errors import UserError
from exitbench.harness.cells.prompts import Fitting
from exitbench.harness.cells.texts import EncodedText, TextEncoding, label_indices
from exitbench.harness.engine.checkpoints.encoder_loading import EncoderCheckpoint
from exitbench.harness.engine.encoders.classify import Classified, classify, pooled_states, text_cost
from exitbench.harness.engine.encoders.model import EncoderClassifier
from exitbench.harness.engine.encoders.model import why_not as why_no_labels
from exitbench.harness.engine.model.batches import in_batches
from exitbench.harness.work.base import Evaluated, Progress, Work
from exitbench.harness.work.metrics import (
    Choices,
    Metric,
    agreement_metrics,
    choice_gaps,
    depth_metrics,
    format_sample,
    ideal_speedups,
    with_role,
)
from exitbench.harness.work.timed import Clock, Unit
from exitbench.methods.base import Cost, FitData, Method, Parts, argmax_token
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import TABLES
from exitbench.results.statistics.intervals import Interval, bounded_ratio_interval
from exitbench.tasks.base import Task
from exitbench.tasks.classification import ClassificationTask
from exitbench.tasks.document import Document

if TYPE_CHECKING:
    from exitbench.harness.engine.checkpoints.digest import Description


class ClassificationWork(Work[Classified]):
    """Work of cells that classify texts, or predict a number for each, with an encoder."""

    output_types = ("classification",)
    kinds = ("quality", "timing", "fit")
    records = False
    task: ClassificationTask

    @classmethod
    def check_model(cls, task: Task, description: Description) -> None:
        """Check that the model is a classifier with the task's labels.

        Raises:
            UserError: The model generates text, or has other labels.
        """
        assert isinstance(task, ClassificationTask)
        name = description.model.name
        if description.labels is None:
            raise UserError(
                f"task {task.name!r} requires labels or numbers, and model {name!r} generates text; allowed with it: "
                "encoders with a classifier. 'tasks' of [models.NAME] says which are its own."
            )
        try:
            label_indices(task.name, task.labels, description.labels)
        except UserError as error:
            raise UserError(f"model {name!r}: {error}") from None

    @classmethod
    def check_method(cls, method: Method, description: Description) -> None:
        """Check that the method can run on an encoder; for example, an encoder has no KV cache.

        Raises:
            UserError: The method cannot be run on an encoder; the message contains the reason.
        """
        is_regression = description.labels is not None and len(description.labels) == 1
        reason = why_no_labels(
            method.parts(n_blocks=2), is_regression=is_regression, is_fitted=bool(method.fit_params())
        )
        if reason is not None:
            raise UserError(f"{method.name!r} cannot be run on {description.model.name!r}: {reason}.")

    @classmethod
    def about(cls, task: Task, max_new_tokens: int) -> str:
        """Return one line for users with the task's labels, or one that says that the answer is a number."""
        assert isinstance(task, ClassificationTask)
        return f"labels: {', '.join(task.labels)}" if task.labels is not None else "the answer is a number"

    # --- Documents and their texts

    @cached_property
    def _encoding(self) -> TextEncoding:
        return TextEncoding(self.model.tokenizer, self.settings, self.model.classifier.max_positions)

    def _fit_documents(self) -> Fitting:
        """Return the cell's documents; texts that are too long are truncated or, if the settings say so, excluded."""
        documents, encoding = self.model.documents(self.data)[0], self._encoding
        cut = [bool(encoding(self.task.texts(document), 0).n_cut) for document in documents]
        if not encoding.drops:
            return Fitting(tuple(documents), truncated=sum(cut))
        short_enough = tuple(document for document, is_cut in zip(documents, cut, strict=True) if not is_cut)
        if not short_enough:
            raise UserError(f"none of the {len(documents)} inputs has {encoding.longest} tokens or fewer.")
        return Fitting(short_enough, dropped=sum(cut))

    def requests(self, documents: Sequence[Document]) -> list[EncodedText]:
        """Return the encoded texts of documents, one per document."""
        return [self._texts[document.key] for document in documents]

    @cached_property
    def _texts(self) -> dict[str, EncodedText]:
        return {
            document.key: self._encoding(self.task.texts(document), self.seed_of(document.key))
            for document in self.documents
        }

    @cached_property
    def label_ids(self) -> tuple[int, ...]:
        """For each of the model's labels, in order: the index of the same label among the task's labels."""
        return label_indices(self.task.name, self.task.labels, self.model.classifier.labels)

    def _output(self, answer: Classified) -> str:
        prediction = answer.value if self.task.is_regression else self.label_ids[answer.label]
        return self.task.prediction_text(prediction)

    # --- Quality

    def evaluate(self, parts: Parts, on_progress: Progress) -> Evaluated[Classified]:
        """Classify and score every document; lm-eval, which has no tasks for encoder classifiers, is not used."""
        answers = dict(zip((document.key for document in self.documents), self.answer(parts, on_progress), strict=True))
        scores = {
            document.key: self.task.score(document, self._output(answers[document.key])) for document in self.documents
        }
        return Evaluated(answers, scores, {})

    def answer(self, parts: Parts, on_progress: Progress) -> list[Classified]:
        """Classify every document; texts of similar length share a batch."""
        texts = self.requests(self.documents)
        answers: dict[int, Classified] = {}

        def run(chosen: Sequence[int]) -> None:
            batch_answers = classify(self.model.classifier, [texts[index] for index in chosen], parts)
            answers.update(zip(chosen, batch_answers, strict=True))

        by_length = sorted(range(len(texts)), key=lambda index: len(texts[index].ids))
        in_batches(by_length, self.cell.rows, run, on_progress)
        return [answers[index] for index in range(len(texts))]

    def sample(self, document: Document, answer: Classified) -> dict[str, Any]:
        """Return a document's row for the table ``samples``.

        Input text and reference are in the rows of full depth's cell only.
        """
        text, is_full = self._texts[document.key], self.cell.full_depth_cell_id is None
        return {
            "output_text": self._output(answer),
            "output_ids": [self.label_ids[answer.label]],
            "n_prompt": len(text.ids),
            "n_cut": text.n_cut,
            "n_output": 1,
            "stop_reason": "label",
            "input_text": self.task.prompt(document) if is_full else None,
            "gold_text": self.task.target(document) if is_full else None,
        }

    def record(self, writer: AttemptWriter, answers: Mapping[str, Classified], parts: Parts) -> dict[str, Metric]:
        """Write the exit layer, label and block predictions of each text; return metrics of depth, agreement, cost."""
        full = self._full_outputs(answers)
        writer.write("tokens", self._token_table(answers, full, parts))
        writer.write("sequence_trace", self._trace_table(answers))
        return self._metrics(answers, full, parts)

    def _full_outputs(self, answers: Mapping[str, Classified]) -> Mapping[str, tuple[int, str]]:
        """Return full depth's outputs as (label index, output text), by document key."""
        if self.cell.full_depth_cell_id is None:
            return {key: (self.label_ids[answer.label], self._output(answer)) for key, answer in answers.items()}
        path = self.model.file_of(self.cell.full_depth_cell_id, "samples.parquet")
        rows = pq.read_table(path, columns=["doc_key", "output_ids", "output_text"]).to_pylist()
        return {row["doc_key"]: (row["output_ids"][0], row["output_text"]) for row in rows}

    def _token_table(
        self, answers: Mapping[str, Classified], full: Mapping[str, tuple[int, str]], parts: Parts
    ) -> pa.Table:
        """Return the table ``tokens`` with one row per document: the predicted label is stored as its only token."""
        rows = [
            {
                **answer.record.to_row(parts),
                "doc_key": key,
                "position": 1,
                "token_id": self.label_ids[answer.label],
                "full_token_id": full[key][0],
            }
            for key, answer in answers.items()
        ]
        return pa.Table.from_pylist(rows, schema=TABLES["tokens"])

    def _trace_table(self, answers: Mapping[str, Classified]) -> pa.Table:
        """Return the table ``sequence_trace``: one row per document and block at which its label was read out."""
        rows: list[dict[str, Any]] = []
        for document in self.documents:
            gold = self.task.gold(document)
            for reading in answers[document.key].readings:
                label = None if self.task.is_regression else self.label_ids[reading.label]
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

    def _metrics(
        self, answers: Mapping[str, Classified], full: Mapping[str, tuple[int, str]], parts: Parts
    ) -> dict[str, Metric]:
        """Return mean exit layer, mean blocks run, share of labels equal to full depth's, and ideal speed-ups.

        Args:
            answers: The method's answers, by document key.
            full: Full depth's (label index, output text), by document key.
            parts: The method's parts.
        """
        model, ones, classified = self.model.classifier, np.ones(len(answers)), list(answers.values())
        exits, runs = [a.record.exit_layer for a in classified], [a.record.blocks_run for a in classified]
        depth = depth_metrics(exits, runs, ones, model.n_blocks, parts)
        agreement = {}
        if not self.task.is_regression:
            same = [full[key][1] == self._output(answer) for key, answer in answers.items()]
            agreement["token_match"] = bounded_ratio_interval(np.array(same, dtype=float), ones)
        lengths = [len(text.ids) for text in self.requests(self.documents)]
        method_costs = [
            text_cost(model, parts, length, answer.record.exit_layer, answer.blocks_read)
            for length, answer in zip(lengths, classified, strict=True)
        ]
        full_costs = [text_cost(model, self.full_parts, length, model.n_blocks, [model.n_blocks]) for length in lengths]
        cost = ideal_speedups(full_costs, method_costs, self.bootstrap_seed)
        return with_role("depth", depth) | agreement_metrics(agreement) | with_role("cost", cost)

    def compare_formats(self, reference: Any, answers: Mapping[str, Classified]) -> dict[str, Interval]:
        """Compare full depth's label probabilities with those in float32; return no metrics for a regression task."""
        if self.task.is_regression:
            return {}
        assert isinstance(reference, EncoderCheckpoint), "the planner gives encoders tasks of their own"
        texts = self.requests(format_sample(self.documents))
        model_logprobs, reference_logprobs = (
            _label_logprobs(model, texts) for model in (self.model.classifier, reference.model)
        )
        pairs = zip(model_logprobs.tolist(), reference_logprobs.tolist(), strict=True)
        rows = [Choices(a, b, int(np.argmax(a)) == int(np.argmax(b))) for a, b in pairs]
        return choice_gaps(rows, self.bootstrap_seed)

    # --- Timing and fitting

    def timed_work(self) -> TimedClassification:
        """Return an object that classifies batches of texts while clocks are read."""
        return TimedClassification(self.model.classifier)

    def ideal_speedup(
        self, parts: Parts, documents: Sequence[Document], full: Sequence[Classified], method: Sequence[Classified]
    ) -> float:
        """Return the FLOPs of full depth divided by the FLOPs of the method, each summed over the documents."""
        lengths, model = [len(text.ids) for text in self.requests(documents)], self.model.classifier
        full_cost, own_cost = (
            sum(
                (
                    text_cost(model, arm, length, answer.record.exit_layer, answer.blocks_read)
                    for length, answer in zip(lengths, arm_answers, strict=True)
                ),
                Cost(),
            )
            for arm, arm_answers in ((self.full_parts, full), (parts, method))
        )
        return full_cost.flops / own_cost.flops

    @torch.no_grad()
    def fit_data(self) -> FitData:
        """Return the data to fit a method: each document's read-out state after every block, and its correct label."""
        model = self.model.classifier
        pieces: list[torch.Tensor] = []
        in_batches(
            self.requests(self.documents),
            self.cell.rows,
            lambda texts: pieces.append(pooled_states(model, texts)),
            lambda n_done: None,
        )
        states_LND = torch.cat(pieces, dim=1)
        own_label = {label: index for index, label in enumerate(self.label_ids)}
        gold = [
            0 if self.task.is_regression else own_label[int(self.task.gold(document))] for document in self.documents
        ]
        gold_N = torch.tensor(gold, device=states_LND.device)
        final_N = argmax_token(model.logits(states_LND[-1]))
        return FitData(model, states_LND, final_N, gold_N, torch.arange(len(gold), device=states_LND.device))


@dataclass(frozen=True)
class TimedClassification:
    """Classification of batches of texts for a timed run; the time includes the embedding."""

    model: EncoderClassifier

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.model.device

    def run(self, parts: Parts, unit: Unit[EncodedText]) -> tuple[list[Classified], Unit[EncodedText]]:
        """Classify a batch of texts in an untimed pass that records traces; return a result per text, and the batch."""
        return classify(self.model, unit.requests, parts), unit

    def run_timed(self, parts: Parts, unit: Unit[EncodedText], clock: Clock) -> tuple[tuple[str, ...], int]:
        """Classify a batch of texts without tracing, between two clock marks.

        Returns:
            No phase names, since there is only one phase; and the number of texts.
        """
        clock.mark()
        classify(self.model, unit.requests, parts, traced=False)
        clock.mark()
        return (), len(unit.requests)


@torch.inference_mode()
def _label_logprobs(model: EncoderClassifier, texts: Sequence[EncodedText]) -> np.ndarray:
    """Return the natural log-probability of each label for each text at full depth, [n texts, n labels]."""
    logits = [model.logits(pooled_states(model, [text])[-1])[0] for text in texts]
    logprobs: np.ndarray = torch.stack(logits).float().log_softmax(-1).cpu().numpy()
    return logprobs
