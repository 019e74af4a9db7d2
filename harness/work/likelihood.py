"""Log-likelihoods: texts given by lm-eval are scored token by token, not generated; each token has an exit layer."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch

from exitbench.errors import UserError
from exitbench.harness.cells.cell import CalibrationSettings, GenerationSettings, ModelRef
from exitbench.harness.cells.prompts import Fitting
from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.branches import Context
from exitbench.harness.engine.decoding.likelihood import Scored
from exitbench.harness.engine.decoding.likelihood import score as score_contexts
from exitbench.harness.engine.decoding.likelihood import why_not as why_no_likelihood
from exitbench.harness.engine.decoding.probe import choice_probe_table, choice_scores
from exitbench.harness.engine.decoding.scoring_cost import scoring_cost
from exitbench.harness.engine.model.batches import in_batches
from exitbench.harness.engine.model.engine import Engine
from exitbench.harness.engine.model.token_record import TokenRecord, full_depth_records
from exitbench.harness.work.base import MODEL_READS, Progress, Skip
from exitbench.harness.work.encoding import Unscorable
from exitbench.harness.work.generation import fit_data
from exitbench.harness.work.lm import EarlyExitLM
from exitbench.harness.work.lm_eval_work import LmEvalWork
from exitbench.harness.work.metrics import (
    Choices,
    Metric,
    agreement_metrics,
    choice_gaps,
    depth_metrics,
    format_sample,
    ideal_speedups,
    task_metrics,
    token_gaps,
    with_role,
)
from exitbench.harness.work.scored_texts import (
    DocumentContext,
    Full,
    ScoredText,
    TextRequest,
    choice_rows,
    chosen_index,
    contexts_of,
    full_choices,
    gap_nats,
    longest_of,
    n_choices,
    read_choices,
    score_texts,
    scored_contexts,
    token_rows,
)
from exitbench.harness.work.sharing import ReplaySource, rows_of, simulated_exits
from exitbench.harness.work.timed import Clock, Unit
from exitbench.methods.base import Cost, FitData, Parts
from exitbench.results.files.arrow import lists
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import TABLES
from exitbench.results.statistics.intervals import Interval, bounded_ratio_interval, ratio_interval
from exitbench.tasks.base import Task
from exitbench.tasks.document import Document
from exitbench.tasks.lm_eval.task import LmEvalTask

_NAMED_REFUSALS: Final = 5
"""Maximum number of unscorable documents that a worker's log names."""

Answer = Sequence[ScoredText]
"""Scored texts of a document, in the order of its requests."""


class LikelihoodWork(LmEvalWork[Answer]):
    """Work of cells whose lm-eval task requests log-likelihoods of choices, continuations or whole texts."""

    output_types = ("multiple_choice", "loglikelihood", "loglikelihood_rolling")
    task: LmEvalTask

    @classmethod
    def why_not(cls, parts: Parts, method: str) -> str | None:
        """Return the reason why a method cannot compute log-likelihoods, or None if it can.

        Args:
            parts: The method's gate, head, threshold and KV policy.
            method: Name of the method, for the message.
        """
        reason = why_no_likelihood(parts)
        return None if reason is None else f"{method} does not provide log-likelihoods: it {reason}"

    @classmethod
    def resolve(cls, task: Task, settings: GenerationSettings, model: ModelRef) -> GenerationSettings:
        """Return the settings; `first_token` is None for an encoder-decoder, whose first token can always exit early.

        Raises:
            UserError: The task scores whole texts, and the model is an encoder-decoder.
        """
        if model.kind != "seq2seq":
            return settings
        if task.output_type == "loglikelihood_rolling":
            raise UserError(
                f"{task.name} requires the log-likelihood of whole texts (loglikelihood_rolling), which lm-eval and "
                f"ExitBench have for decoder-only models; model {model.name!r} is an encoder-decoder."
            )
        return replace(settings, first_token=None)

    @classmethod
    def about(cls, task: Task, max_new_tokens: int) -> str:
        """Return one line for users: log-likelihoods are computed, and nothing is generated."""
        return "log-likelihoods are computed; nothing is generated"

    @classmethod
    def readable_texts(cls, task: Task, documents: Sequence[Document]) -> Iterator[list[tuple[str, str]]]:
        """Yield (title, text) pairs of each document: whole texts, or each context once with its continuations."""
        assert isinstance(task, LmEvalTask)
        requests = task.instances(documents)
        for document in documents:
            right = task.right_choices(document) if task.output_type == "multiple_choice" else frozenset()
            texts: list[tuple[str, str]] = []
            before: object = None
            for number, request in enumerate(requests[document.key]):
                if len(request.args) == 1:
                    texts.append(("scored as a whole", str(request.args[0])))
                    continue
                if request.args[0] != before:
                    before = request.args[0]
                    texts.append((MODEL_READS, str(before)))
                texts.append((f"choice {number + 1}{' (right)' if number in right else ''}", str(request.args[1])))
            yield texts

    @property
    def _has_choices(self) -> bool:
        return self.task.output_type == "multiple_choice"

    @property
    def _scores_whole_texts(self) -> bool:
        return self.task.output_type == "loglikelihood_rolling"

    # --- Documents and their texts

    def _fit_documents(self) -> Fitting:
        """Return the documents of which every text can be scored; texts that are too long are truncated."""
        documents, (texts, refusals) = self.model.documents(self.data)[0], self._all_texts
        if not texts:
            raise UserError(f"none of the {len(documents)} documents can be scored; the first: {refusals[0]}")
        for refusal in refusals[:_NAMED_REFUSALS]:
            print(f"Left out: {refusal}", file=sys.stderr)
        by_key = {document.key: document for document in documents}
        scorable = tuple(by_key[key] for key in dict.fromkeys(text.doc_key for text in texts))
        cut = {text.doc_key for text in texts if any(pair.n_cut for pair in text.pairs)}
        return Fitting(scorable, unscorable=len(refusals), truncated=len(cut))

    @property
    def _all_texts(self) -> tuple[tuple[TextRequest, ...], tuple[str, ...]]:
        """The texts to score of all documents, and one message for each document that cannot be scored."""
        return self.model.cached(("texts", self.data, self.settings), self._make_texts)

    def _make_texts(self) -> tuple[tuple[TextRequest, ...], tuple[str, ...]]:
        texts: list[TextRequest] = []
        refusals = []
        for key, requests in self.instances().items():
            try:
                texts += [TextRequest.encode(self.encoding, key, *request.args) for request in requests]
            except Unscorable as refusal:
                refusals.append(str(refusal))
        return tuple(texts), tuple(refusals)

    def texts(self, documents: Sequence[Document]) -> list[TextRequest]:
        """Return the texts to score of the given documents; the texts of one document are adjacent and in order."""
        keys = {document.key for document in documents}
        return [text for text in self._all_texts[0] if text.doc_key in keys]

    def _contexts(self, documents: Sequence[Document]) -> list[DocumentContext]:
        """Return the contexts of the given documents, each with the continuations that are scored after it."""
        return contexts_of(self.texts(documents), self.seed_of)

    def _probed_contexts(self) -> list[DocumentContext]:
        if self._scores_whole_texts:
            raise Skip("whole texts are scored in windows; probes and replays are of choices behind a context")
        return self._contexts(self.documents)

    # --- Quality

    def answers_of(self, lm: EarlyExitLM) -> Mapping[str, Answer]:
        """Return the texts that an lm-eval model has scored, by document key."""
        return lm.scored

    def answer(self, parts: Parts, on_progress: Progress) -> list[Answer]:
        """Score the texts of every document without lm-eval; raise Skip if the task has no choices."""
        if not self._has_choices:
            raise Skip(
                f"calibrations bound what is lost of answers or choices, of which {self.task.output_type} has none"
            )
        lm = self.lm(parts, on_progress)
        lm.score(self.texts(self.documents), on_progress)
        return [lm.scored[document.key] for document in self.documents]

    def sample(self, document: Document, answer: Answer) -> dict[str, Any]:
        """Return a document's row for the table ``samples``, with its most probable choice as the output.

        For tasks that score whole texts, output text and ids are empty.
        """
        chosen = answer[chosen_index(self.task, document, answer)]
        return {
            "output_text": "" if self._scores_whole_texts else chosen.text,
            "output_ids": [] if self._scores_whole_texts else chosen.token_ids,
            "n_prompt": chosen.n_context,
            "n_cut": chosen.n_cut or None,
            "n_output": len(chosen.token_ids),
            "stop_reason": "scored",
        }

    def record(self, writer: AttemptWriter, answers: Mapping[str, Answer], parts: Parts) -> dict[str, Metric]:
        """Write one row per scored text and one per token; return metrics of depth, agreement and cost."""
        return self._record_choices(writer, answers, parts, parts) | self._cost_metrics(answers, parts)

    def _record_choices(
        self, writer: AttemptWriter, answers: Mapping[str, Answer], parts: Parts, ran: Parts | None
    ) -> dict[str, Metric]:
        """Write the tables ``choices`` (one row per scored text) and ``tokens``; return metrics of depth and agreement.

        Args:
            writer: Writer of the attempt.
            answers: The scored texts, by document key.
            parts: The method's parts.
            ran: The method's parts again if the method really ran on the model; None for a replay.
        """
        full = self._full(answers)
        tables = {
            "choices": choice_rows(self.task, self.documents, answers, full),
            "tokens": token_rows(self.documents, answers, full, ran),
        }
        for name, rows in tables.items():
            writer.write(name, pa.Table.from_pylist(rows, schema=TABLES[name]))
        return self._metrics(answers, full, parts)

    def _full(self, answers: Mapping[str, Answer]) -> Full:
        """Return full depth's scores of every text: from its cell's files, or `answers` if this cell is full depth."""
        if self.cell.full_depth_cell_id is None:
            return full_choices(self.task, self.documents, answers)
        choices, tokens = (
            self.model.file_of(self.cell.full_depth_cell_id, f"{name}.parquet") for name in ("choices", "tokens")
        )
        return read_choices(choices, tokens)

    def _metrics(self, answers: Mapping[str, Answer], full: Full, parts: Parts) -> dict[str, Metric]:
        """Return metrics of depth, and of agreement with full depth, by name.

        Depth: ``mean_exit_layer`` and ``mean_blocks_run``, per scored token. Agreement: ``choice_match`` for tasks with
        choices, and ``logprob_gap`` unless this cell is full depth.

        Args:
            answers: The method's scored texts, by document key.
            full: Full depth's scores of the same texts.
            parts: The method's parts.
        """
        n_blocks, texts = self.model.model.n_blocks, [answers[document.key] for document in self.documents]
        tokens = [sum(len(text.token_ids) for text in doc_texts) for doc_texts in texts]
        exits = [sum(sum(text.exit_layers) for text in doc_texts) for doc_texts in texts]
        runs = [sum(sum(text.blocks_run) for text in doc_texts) for doc_texts in texts]
        depth = depth_metrics(exits, runs, tokens, n_blocks, parts)
        agreement: dict[str, Metric] = {}
        if self._has_choices:
            same = [
                full[document.key, chosen_index(self.task, document, doc_texts) + 1].is_chosen is True
                for document, doc_texts in zip(self.documents, texts, strict=True)
            ]
            match = bounded_ratio_interval(same, [1] * len(same))
            agreement |= agreement_metrics({"choice_match": match})
        if self.cell.full_depth_cell_id is not None:
            gaps = [
                gap_nats(document.key, doc_texts, full)
                for document, doc_texts in zip(self.documents, texts, strict=True)
            ]
            gap = ratio_interval(gaps, tokens, seed=self.bootstrap_seed)
            agreement |= agreement_metrics({"logprob_gap": gap}, lower_is_better=True)
        return with_role("depth", depth) | agreement

    def _cost_metrics(self, answers: Mapping[str, Answer], parts: Parts) -> dict[str, Metric]:
        """Return the speed-ups that cost counts predict: full depth's cost divided by the method's, over all documents.

        The keys are ``ideal_speedup_bytes`` and ``ideal_speedup_flops``. Costs include the contexts. The result is
        empty for encoder-decoders, whose encoder cost is not counted.
        """
        model, settings = self.model.checkpoint.model, self.settings
        method_totals, full_totals = ({document.key: Cost() for document in self.documents} for _ in range(2))
        for key, context, doc_scored in scored_contexts(self.texts(self.documents), answers):
            at_full = [_at_full_depth(text, model) for text in doc_scored]
            for totals, method, texts in ((method_totals, parts, doc_scored), (full_totals, self.full_parts, at_full)):
                cost = scoring_cost(
                    model,
                    method,
                    context,
                    texts,
                    scope="context" if settings.scope == "context" else "token",
                    gates_first_token=settings.gates_first_token,
                )
                if cost is None:
                    return {}
                totals[key] += cost
        full_costs, costs = ([of[document.key] for document in self.documents] for of in (full_totals, method_totals))
        return with_role("cost", ideal_speedups(full_costs, costs, self.bootstrap_seed))

    def compare_formats(self, reference: Any, answers: Mapping[str, Answer]) -> dict[str, Interval]:
        """Compare log-probabilities at full depth in the cell's number format with those in float32.

        Compared are choices or, for tasks without choices, tokens.

        Args:
            reference: The checkpoint, loaded in float32.
            answers: Full depth's scored texts in the cell's number format, by document key.

        Returns:
            ``format_logprob_gap`` with ``format_choice_match`` and ``format_choice_gap``, or with
            ``format_token_match``.
        """
        chosen = format_sample(self.documents)
        assert isinstance(reference, Checkpoint), "the planner gives encoders tasks of their own"
        texts = self.texts(chosen)
        reference_texts = score_texts(
            reference, texts, self.full_parts, self.settings, 1, self.seed_of, lambda n_done: None
        )
        if not self._has_choices:
            pairs = ((_windows(answers[document.key]), _windows(reference_texts[document.key])) for document in chosen)
            return token_gaps(pairs, self.bootstrap_seed)
        rows = []
        for document in chosen:
            doc_texts, other = answers[document.key], reference_texts[document.key]
            n = n_choices(self.task, document, doc_texts)
            rows.append(
                Choices(
                    [text.logprob for text in doc_texts[:n]],
                    [text.logprob for text in other[:n]],
                    chosen_index(self.task, document, doc_texts) == chosen_index(self.task, document, other),
                )
            )
        return choice_gaps(rows, self.bootstrap_seed)

    # --- Offline

    def probe(self, writer: AttemptWriter, on_progress: Progress) -> None:
        """Write the probe to the spool: what every block predicts at each token of every scored text."""
        if self.cell.record is not None:
            raise Skip("what is inside blocks is recorded of tokens that a model generates")
        shared = self._probed_contexts()

        def probe(chosen: Sequence[DocumentContext]) -> None:
            keys, choices = (
                [shared_context.doc_key for shared_context in chosen],
                [shared_context.text_numbers for shared_context in chosen],
            )
            contexts = [shared_context.context for shared_context in chosen]
            writer.write("probe", choice_probe_table(self.model.checkpoint, keys, choices, contexts, len(chosen)))

        in_batches(shared, self.cell.rows, probe, lambda n_done: on_progress(_n_documents(shared, n_done)))

    def score_blocks(self, writer: AttemptWriter, on_progress: Progress) -> None:
        """Write, for each token of every text, the gate's score and the token's log-probability at every block."""
        shared, parts = self._probed_contexts(), self.parts()
        schema = TABLES["scores"]

        def score(chosen: Sequence[DocumentContext]) -> None:
            arrays = choice_scores(
                self.model.checkpoint, parts, [shared_context.context for shared_context in chosen], len(chosen)
            )
            tokens = [
                (shared_context.doc_key, choice, position, token_id)
                for shared_context in chosen
                for choice, token_ids in zip(
                    shared_context.text_numbers, shared_context.context.continuations, strict=True
                )
                for position, token_id in enumerate(token_ids, start=1)
            ]
            keys, choices, positions, token_ids = zip(*tokens, strict=True)
            emitted_NL = np.where(arrays["is_greedy"], np.array(token_ids)[:, None], -1)
            columns = {
                "doc_key": list(keys),
                "choice": pa.array(choices, pa.int32()),
                "position": pa.array(positions, pa.int32()),
                "score": lists(arrays["score"], schema.field("score").type),
                "emitted_id": lists(emitted_NL.astype(np.int32), schema.field("emitted_id").type),
                "logprob": lists(arrays["logprob"], schema.field("logprob").type),
            }
            writer.write("scores", pa.table(columns))

        in_batches(shared, self.cell.rows, score, lambda n_done: on_progress(_n_documents(shared, n_done)))

    def replay(self, writer: AttemptWriter) -> dict[str, Metric]:
        """Recompute each token's exit layer without running the model.

        Choices are scored by the tokens' log-probabilities at their exit layers. Gate scores and log-probabilities at
        every block are read from the results of a cell of kind ``scores``.
        """
        cell, depth, parts = self.cell, self.model.model.n_blocks, self.parts()
        if self.settings.scope == "context":
            raise Skip(
                'scope = "context" keeps one depth for a context, which a replay of single tokens cannot reproduce'
            )
        assert cell.scores_cell_id is not None, "the planner gives every replay of choices its scores"
        texts = self.texts(self.documents)
        first_position = 1 if cell.first_token == "gated" else 2
        recorded = ReplaySource(
            source=rows_of("scores"),
            files={"scores": self.model.file_of(cell.scores_cell_id, "scores.parquet")},
            order=("doc_key", "choice", "position"),
            extra_columns=(),
            at_exit={"score": "score[{e}]", "logprob": "logprob[{e}]", "is_greedy": "emitted_id[{e}] >= 0"},
        )
        longest = longest_of(texts)
        exit_table = simulated_exits(
            self, recorded, lambda method: method.exit_layer_sql(depth, longest, "score[l]", first_position)
        )
        columns = (exit_table[name].to_pylist() for name in ("doc_key", "choice", "exit_layer", *recorded.at_exit))
        exited: dict[tuple[str, int], list[tuple[int, float, float, bool]]] = {}
        for doc_key, choice, *values in zip(*columns, strict=True):
            exited.setdefault((doc_key, choice), []).append(tuple(values))
        scored: dict[str, list[ScoredText]] = {}
        for text in texts:
            of_document, (pair,) = scored.setdefault(text.doc_key, []), text.pairs
            scored_tokens = Scored(list(pair.continuation_ids))
            for token_id, token in zip(
                scored_tokens.token_ids, exited[text.doc_key, len(of_document) + 1], strict=True
            ):
                layer, score, logprob, is_greedy = token
                scored_tokens.logprobs.append(logprob)
                scored_tokens.greedy.append(is_greedy)
                scored_tokens.records.append(
                    TokenRecord(
                        token_id,
                        layer,
                        depth if parts.runs_all_blocks else layer,
                        score=None if layer == depth else score,
                        logprob=logprob,
                        is_greedy=is_greedy,
                    )
                )
            of_document.append(ScoredText(text.text, len(pair.context_ids), pair.n_cut, (scored_tokens,)))
        responses = {
            key: [(text.logprob, text.is_greedy) for text in scored_tokens] for key, scored_tokens in scored.items()
        }
        scores = self.task.score_responses(self.documents, responses, self.model.confirms_unsafe_code)
        metrics = task_metrics(self.task, [scores[document.key] for document in self.documents])
        return metrics | self._record_choices(writer, scored, parts, None)

    # --- Calibration

    def exit_layers(self, answer: Answer) -> Sequence[int]:
        """Return the exit layers of all tokens in all scored texts of a document, in one list."""
        return [layer for text in answer for layer in text.exit_layers]

    def losses(self, settings: CalibrationSettings, full: Sequence[Answer], early: Sequence[Answer]) -> np.ndarray:
        """Return the loss that early exit causes for each document, [n documents].

        `settings.consistency` defines it. ``textual``: 1 if early exit selects another choice than full depth, else 0.
        ``risk``: decrease of the document's score by early exit, as a share of the metric's range, 0..1.

        Args:
            settings: Settings of the calibration.
            full: Answers at full depth, one per document.
            early: Answers with early exit, one per document.
        """
        task, documents = self.task, self.documents
        if settings.consistency == "textual":
            pairs = zip(documents, full, early, strict=True)
            return np.array([float(chosen_index(task, doc, a) != chosen_index(task, doc, b)) for doc, a, b in pairs])
        metric = task.consistency_metric
        full_scores, early_scores = (
            task.score_responses(
                documents,
                {
                    document.key: [(text.logprob, text.is_greedy) for text in texts]
                    for document, texts in zip(documents, arm_answers, strict=True)
                },
            )
            for arm_answers in (full, early)
        )
        lost = [
            task.shortfall(metric, early_scores[document.key].values[metric], full_scores[document.key].values[metric])
            for document in documents
        ]
        return np.clip(lost, 0, 1)

    # --- Timing and fitting

    def timed_parts(self) -> Parts:
        """Return the parts of the method for a timed run; raise Skip for oracles, whose gates look ahead."""
        parts = self.parts()
        if parts.gate.looks_ahead:
            raise Skip("an oracle reads all blocks, and texts of one context leave at layers of their own: not timed")
        return parts

    def requests(self, documents: Sequence[Document]) -> list[Context]:
        """Return the contexts of the given documents, each with the continuations to score after it."""
        return [shared.context for shared in self._contexts(documents)]

    def timed_work(self) -> TimedScoring:
        """Return an object that scores batches of contexts while clocks are read."""
        longest = longest_of(self.texts(self.documents))
        return TimedScoring(self.model.checkpoint, self.settings, longest, self.cell.batch_size)

    def n_tokens(self, output: Sequence[Scored]) -> int:
        """Return the number of scored tokens in all continuations of a context."""
        return sum(len(scored.token_ids) for scored in output)

    def fit_data(self) -> FitData:
        """Return the data to fit a method: states of each document's correct choice, teacher-forced after its context.

        For tasks without choices, the document's first text is used.
        """
        pairs = []
        for document in self.documents:
            right = min(self.task.right_choices(document), default=0) if self._has_choices else 0
            pairs.append(self.texts([document])[right].pairs[0])
        contexts, texts = [pair.context_ids for pair in pairs], [pair.continuation_ids for pair in pairs]
        return fit_data(self.model.checkpoint, contexts, texts, self.cell.rows)


@dataclass(frozen=True)
class TimedScoring:
    """Scoring of given texts for a timed run; a batch has all contexts of its documents, each with its continuations.

    Attributes:
        settings: Settings, of which the scope of exit decisions and the rule for the first token are used.
        longest: Number of tokens in the longest text of the cell.
        rows: Maximum number of texts per batch.
    """

    checkpoint: Checkpoint
    settings: GenerationSettings
    longest: int
    rows: int

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.checkpoint.model.device

    def run(self, parts: Parts, unit: Unit[Context]) -> tuple[list[list[Scored]], Unit[Context]]:
        """Score a batch in an untimed pass that records traces.

        Returns:
            The scores of each context's continuations, and the batch.
        """
        return self._score(parts, unit, traced=True), unit

    def run_timed(self, parts: Parts, unit: Unit[Context], clock: Clock) -> tuple[tuple[str, ...], int]:
        """Score a batch without tracing, between two clock marks.

        Returns:
            No phase names, because prefill and continuations are timed together; and the number of scored tokens.
        """
        clock.mark()
        self._score(parts, unit, traced=False)
        clock.mark()
        return (), sum(len(token_ids) for context in unit.requests for token_ids in context.continuations)

    def _score(self, parts: Parts, unit: Unit[Context], *, traced: bool) -> list[list[Scored]]:
        return score_contexts(
            self.checkpoint,
            unit.requests,
            parts,
            scope="context" if self.settings.scope == "context" else "token",
            gates_first_token=self.checkpoint.kind == "seq2seq" or self.settings.gates_first_token,
            rows=self.rows,
            max_new_tokens=self.longest,
            traced=traced,
        )


def _windows(texts: Answer) -> list[Scored]:
    return [part for text in texts for part in text.parts]


def _n_documents(shared: Sequence[DocumentContext], n_contexts: int) -> int:
    """Return the number of documents in the first ``n_contexts`` contexts; the last document may be incomplete."""
    return len({context.doc_key for context in shared[:n_contexts]})


def _at_full_depth(scored: Scored, model: Engine) -> Scored:
    return Scored(scored.token_ids, records=full_depth_records(scored.token_ids, model))
