"""Generation: the model decodes answers from prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from exitbench.harness.cells.cell import CalibrationSettings, FirstToken, GenerationSettings
from exitbench.harness.cells.prompts import Fitting, Prompt
from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.branches import Context
from exitbench.harness.engine.decoding.decode import Batch, IsStopped, decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.kept_depth import with_exit_layer
from exitbench.harness.engine.decoding.likelihood import score as score_given
from exitbench.harness.engine.decoding.probe import probe_table, states_of
from exitbench.harness.engine.model.batches import in_batches
from exitbench.harness.engine.model.cost import TokenPlace, answer_cost, answer_parts
from exitbench.harness.engine.model.engine import Engine
from exitbench.harness.engine.model.token_record import TokenRecord, full_depth_records
from exitbench.harness.work.base import MODEL_READS, Progress
from exitbench.harness.work.lm import DocumentAnswer, EarlyExitLM, stops
from exitbench.harness.work.lm_eval_work import LmEvalWork
from exitbench.harness.work.metrics import (
    Metric,
    agreement_metrics,
    depth_metrics,
    format_sample,
    ideal_speedups,
    token_gaps,
    with_role,
)
from exitbench.harness.work.recording import record_internals, time_tokens
from exitbench.harness.work.sharing import ReplaySource, differ_in_threshold_alone, rows_of, simulated_exits
from exitbench.harness.work.timed import Clock, Unit
from exitbench.methods.base import Cost, FitData, Parts, argmax_token
from exitbench.methods.offline import score_states
from exitbench.results.files.arrow import lists
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import TABLES
from exitbench.results.statistics.intervals import Interval, bounded_ratio_interval, ratio_interval
from exitbench.tasks.base import Task
from exitbench.tasks.document import Document
from exitbench.tasks.lm_eval.task import LmEvalTask
from exitbench.terminal import number_of


@dataclass(frozen=True)
class FullOutput:
    """Full depth's answer to one document: number of prompt tokens, and token ids of the answer.

    `head_reads` has the rows read for each token of the LM head and of its int8 copy; None if each token read the whole
    head.
    """

    n_prompt: int
    token_ids: list[int]
    head_reads: list[tuple[int, int]] | None = None


class GenerationWork(LmEvalWork[DocumentAnswer]):
    """Work of cells whose task requests generated text; tasks of this project and of lm-eval."""

    output_types = ("generate_until",)
    generates = True
    probe_has_scores = True

    @classmethod
    def about(cls, task: Task, max_new_tokens: int) -> str:
        """Return one line for users that states the maximum number of tokens in an answer."""
        return f"answers: up to {number_of(max_new_tokens, 'token')}"

    @classmethod
    def readable_texts(cls, task: Task, documents: Sequence[Document]) -> Iterator[list[tuple[str, str]]]:
        """Yield (title, text) pairs of each document: each distinct prompt, then the reference answer."""
        if not isinstance(task, LmEvalTask):
            yield from super().readable_texts(task, documents)
            return
        requests = task.instances(documents)
        for document in documents:
            contexts = dict.fromkeys(str(request.args[0]) for request in requests[document.key])
            yield [*((MODEL_READS, context) for context in contexts), ("target", task.target(document))]

    # --- Documents, prompts and references

    def _fit_documents(self) -> Fitting:
        """Return the documents whose prompts are short enough; all for lm-eval's tasks, whose prompts are truncated."""
        documents = self.model.documents(self.data)[0]
        if isinstance(self.task, LmEvalTask):
            cut = sum(bool(prompt.n_cut) for prompt in self._lm_eval_prompts.values())
            return Fitting(tuple(documents), truncated=cut)
        return self.prompts.fitting([(document, self._text(document)) for document in documents])

    @property
    def _lm_eval_prompts(self) -> Mapping[str, Prompt]:
        """Encoded and truncated prompt of each document of an lm-eval task, by document key."""
        return self.model.cached(("prompts", self.data, self.settings), self._make_lm_eval_prompts)

    def _make_lm_eval_prompts(self) -> Mapping[str, Prompt]:
        budget = self.settings.max_new_tokens
        return {key: self.encoding.prompt(requests[0].args[0], budget) for key, requests in self.instances().items()}

    def _text(self, document: Document) -> str:
        return self.task.prompt_for(document, self.model.checkpoint.kind)

    def prompt(self, document: Document) -> Prompt:
        """Return the encoded prompt of a document."""
        if isinstance(self.task, LmEvalTask):
            return self._lm_eval_prompts[document.key]
        return self.prompts(self._text(document))

    def request(self, document: Document) -> Request:
        """Return the engine's request for a document: the token ids of its prompt, and the seed."""
        return Request(self.prompt(document).ids, self.seed_of(document.key))

    @cached_property
    def is_stopped(self) -> IsStopped | None:
        """Function that tells whether an answer contains a stop string; None if the settings have none."""
        reads_special = isinstance(self.task, LmEvalTask) or self.prompts.is_chat
        return stops(self.model.tokenizer, self.settings.stop, reads_special=reads_special)

    def target_ids(self, document: Document) -> list[int]:
        """Return the token ids of a document's first reference."""
        target = self.task.target(document)
        if isinstance(self.task, LmEvalTask) and self.model.checkpoint.kind == "causal":
            # The target continues the prompt, after lm-eval's delimiter, and ends with an end-of-sequence token.
            ids = self.encoding.ids(f" {target}", add_special_tokens=False)
            return [*ids, *sorted(self.model.checkpoint.eos_ids)[:1]]
        tokenizer = self.model.tokenizer
        return list(self.model.cached(("target", target), lambda: tuple(tokenizer(target)["input_ids"])))

    def token_kinds(self, document: Document) -> list[str]:
        """Return the kind of word of each target token, with ``end`` for the end of sequence; built-in data only.

        The list is empty for other data, or if target words and tokens do not correspond one to one.
        """
        kinds = document.token_kinds
        return [*kinds, "end"] if kinds and len(kinds) + 1 == len(self.target_ids(document)) else []

    # --- Quality

    def answers_of(self, lm: EarlyExitLM) -> Mapping[str, DocumentAnswer]:
        """Return the answers that an lm-eval model has generated, by document key."""
        return lm.answers

    def answer(self, parts: Parts, on_progress: Progress) -> list[DocumentAnswer]:
        """Answer every document without lm-eval; return the answers in the order of the documents."""
        lm = self.lm(parts, on_progress)
        lm.answer({document.key: self.prompt(document) for document in self.documents})
        return [lm.answers[document.key] for document in self.documents]

    def sample(self, document: Document, answer: DocumentAnswer) -> dict[str, Any]:
        """Return a document's row for the table ``samples``: text, token ids, lengths and stop reason of its answer."""
        generation = answer.generation
        return {
            "output_text": answer.text,
            "output_ids": generation.token_ids,
            "n_prompt": answer.n_prompt,
            "n_cut": answer.n_cut,
            "n_output": len(generation.token_ids),
            "stop_reason": generation.stop_reason,
        }

    def record(self, writer: AttemptWriter, answers: Mapping[str, DocumentAnswer], parts: Parts) -> dict[str, Metric]:
        """Write one row per generated token to the spool; return metrics of depth, agreement and cost."""
        full = {
            key: FullOutput(answer.n_prompt, answer.generation.token_ids, _head_reads(answer.generation.records))
            for key, answer in answers.items()
        }
        if differ_in_threshold_alone(parts, self.full_parts) and not self.settings.logit_rules:
            # A probe reuses these answers instead of decoding; it does not support rules that change logits.
            self.model.full_answers[self.data, self.settings] = {key: answer.token_ids for key, answer in full.items()}
        if self.cell.full_depth_cell_id is not None:
            full = self._full_outputs(self.cell.full_depth_cell_id)
        writer.write("tokens", self._token_table(answers, full, parts))
        return self._metrics(answers, full, parts)

    def _full_outputs(self, cell_id: str) -> dict[str, FullOutput]:
        path = self.model.file_of(cell_id, "samples.parquet")
        rows = pq.read_table(path, columns=["doc_key", "n_prompt", "output_ids"]).to_pylist()
        reads: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        if self.cell.head_precision == "certified":
            columns = ["doc_key", "position", "head_rows", "head_rows_int8"]
            tokens = pq.read_table(self.model.file_of(cell_id, "tokens.parquet"), columns=columns)
            for token in tokens.sort_by("position").to_pylist():
                reads[token["doc_key"]].append((token["head_rows"], token["head_rows_int8"]))
        return {
            row["doc_key"]: FullOutput(row["n_prompt"], row["output_ids"], reads.get(row["doc_key"])) for row in rows
        }

    def _token_table(
        self, answers: Mapping[str, DocumentAnswer], full: Mapping[str, FullOutput], parts: Parts
    ) -> pa.Table:
        rows: list[dict[str, Any]] = []
        for document in self.documents:
            kinds, full_ids = self.token_kinds(document), full[document.key].token_ids
            rows += [
                {
                    **record.to_row(parts),
                    "doc_key": document.key,
                    "position": index + 1,
                    "token_kind": kinds[index] if index < len(kinds) else None,
                    "full_token_id": full_ids[index] if index < len(full_ids) else None,
                }
                for index, record in enumerate(answers[document.key].generation.records)
            ]
        return pa.Table.from_pylist(rows, schema=TABLES["tokens"])

    def _metrics(
        self, answers: Mapping[str, DocumentAnswer], full: Mapping[str, FullOutput], parts: Parts
    ) -> dict[str, Metric]:
        """Return mean exit layer, mean blocks run, token match with full depth, costs, and the draft acceptance rate.

        Costs are ideal speed-ups of whole answers, and the bytes read per token by each component (blocks, heads,
        gates, KV, verification), as a share of full depth's total. Each metric is a ratio of sums over documents.
        """
        generations = [answer.generation for answer in answers.values()]
        outputs = [full[key] for key in answers]
        matches = [
            sum(a == b for a, b in zip(generation.token_ids, output.token_ids, strict=False))
            for generation, output in zip(generations, outputs, strict=True)
        ]
        lengths = [answer.n_prompt for answer in answers.values()]
        checkpoint, first_token = self.model.checkpoint, self.cell.first_token
        keeps_depth = self.settings.scope == "answer"
        costs = answer_costs(checkpoint, parts, generations, lengths, first_token, keeps_depth=keeps_depth)
        by_part = answer_costs_by_part(checkpoint, parts, generations, lengths, first_token, keeps_depth=keeps_depth)
        full_made = [_at_full_depth(output, checkpoint.model) for output in outputs]
        full_lengths = [output.n_prompt for output in outputs]
        full_costs = answer_costs(checkpoint, self.full_parts, full_made, full_lengths, first_token)
        seed = self.bootstrap_seed
        tokens, n_blocks = [len(generation.token_ids) for generation in generations], checkpoint.model.n_blocks
        exits, runs = [sum(g.exit_layers) for g in generations], [sum(g.blocks_run) for g in generations]
        depth = depth_metrics(exits, runs, tokens, n_blocks, parts)
        agreement = {"token_match": bounded_ratio_interval(matches, [len(output.token_ids) for output in outputs])}
        work = ideal_speedups(full_costs, costs, seed)
        full_tokens = sum(len(output.token_ids) for output in outputs)
        full_bytes = sum(cost.read_numel for cost in full_costs) / full_tokens
        as_full = [n * full_bytes for n in tokens]
        for part in by_part[0] if by_part else ():
            read = [cost[part].read_numel for cost in by_part]
            work[f"cost_{part}_bytes"] = ratio_interval(read, as_full, seed=seed)
        work["cost_total_bytes"] = ratio_interval([cost.read_numel for cost in costs], as_full, seed=seed)
        if parts.kv_policy.verifies:
            accepted = [
                sum(record.exit_layer < n_blocks == record.blocks_run for record in generation.records)
                for generation in generations
            ]
            drafts = [
                n_accepted + sum(generation.rejected)
                for n_accepted, generation in zip(accepted, generations, strict=True)
            ]
            if sum(drafts):
                agreement["acceptance_rate"] = bounded_ratio_interval(accepted, drafts)
        return with_role("depth", depth) | agreement_metrics(agreement) | with_role("cost", work)

    def compare_formats(self, reference: Any, answers: Mapping[str, DocumentAnswer]) -> dict[str, Interval]:
        """Compare the log-probabilities of full depth's tokens in the cell's number format with those in float32."""
        contexts = [
            Context(self.request(document).prompt_ids, [answers[document.key].generation.token_ids])
            for document in format_sample(self.documents)
            if answers[document.key].generation.token_ids
        ]
        assert isinstance(reference, Checkpoint), "the planner gives encoders tasks of their own"
        scored, reference_scored = (
            score_given(model, contexts, self.full_parts, rows=1, traced=False)
            for model in (self.model.checkpoint, reference)
        )
        return token_gaps(zip(scored, reference_scored, strict=True), self.bootstrap_seed)

    # --- Offline

    def probe(self, writer: AttemptWriter, on_progress: Progress) -> None:
        """Decode at full depth, then record each block's prediction for every token in one teacher-forced pass.

        Answers that a quality cell of full depth has already decoded on this loaded model are reused.
        """
        if self.cell.record is not None:
            return record_internals(self, self.cell.record, writer, on_progress)
        checkpoint, settings, documents = self.model.checkpoint, self.settings, self.documents
        requests = [self.request(document) for document in documents]
        order = sorted(range(len(documents)), key=lambda index: len(requests[index].prompt_ids))
        full_answers = self.model.full_answers.get((self.data, settings), {})

        def outputs_of(chosen: Sequence[int]) -> list[list[int]]:
            keys = [documents[index].key for index in chosen]
            if all(key in full_answers for key in keys):
                return [full_answers[key] for key in keys]
            rows = [requests[index] for index in chosen]
            batch = prefill(
                checkpoint.model, rows, settings.max_new_tokens, gates_first_token=settings.gates_first_token
            )
            answers = decode(checkpoint, batch, self.full_parts, self.is_stopped)
            return [generation.token_ids for generation in answers]

        def probe(chosen: Sequence[int]) -> None:
            answered = [documents[index] for index in chosen]
            probed = probe_table(
                checkpoint,
                [document.key for document in answered],
                [requests[index].prompt_ids for index in chosen],
                outputs_of(chosen),
                gold_ids=[self.target_ids(document) for document in answered],
                kinds=[self.token_kinds(document) for document in answered],
            )
            writer.write("probe", probed)

        in_batches(order, self.cell.rows, probe, on_progress)

    def score_blocks(self, writer: AttemptWriter, on_progress: Progress) -> None:
        """Write the method's gate score at every block, for each token of full depth's answers (from the probe)."""
        assert self.cell.probe_cell_id is not None, "the planner gives every scores cell its probe"
        path = self.model.file_of(self.cell.probe_cell_id, "probe.parquet")
        outputs: dict[str, list[int]] = defaultdict(list)
        for row in pq.read_table(path, columns=["doc_key", "position", "token_id"]).to_pylist():
            outputs[row["doc_key"]].append(row["token_id"])
        parts, schema = self.parts(), TABLES["scores"]

        def score(chosen: Sequence[Document]) -> None:
            token_ids = [outputs[document.key] for document in chosen]
            requests = [self.request(document) for document in chosen]
            score_NL, emitted_NL = _block_scores(self.model.checkpoint, parts, requests, token_ids)
            columns = {
                "doc_key": [document.key for document, tokens in zip(chosen, token_ids, strict=True) for _ in tokens],
                "position": pa.array(
                    [place for tokens in token_ids for place in range(1, len(tokens) + 1)], pa.int32()
                ),
                "score": lists(score_NL.cpu().numpy(), schema.field("score").type),
                "emitted_id": lists(emitted_NL.cpu().numpy(), schema.field("emitted_id").type),
            }
            writer.write("scores", pa.table(columns))

        in_batches(self.documents, self.cell.rows, score, on_progress)

    def replay(self, writer: AttemptWriter) -> dict[str, Metric]:
        """Recompute the method's exits from a probe (predictions of every block), without running the model.

        Each token's exit layer is written to the spool; metrics of depth and agreement with full depth are returned.
        """
        depth, parts = self.model.model.n_blocks, self.parts()
        tokens = self._replayed_tokens(parts)
        writer.write("tokens", tokens)
        is_match = pc.cast(pc.equal(tokens["token_id"], tokens["full_token_id"]), pa.int64())
        summed = [("exit_layer", "sum"), ("blocks_run", "sum"), ("position", "count"), ("is_match", "sum")]
        by_document = (
            tokens.append_column("is_match", is_match).group_by("doc_key", use_threads=False).aggregate(summed)
        )
        exit_layers, blocks, n_tokens, matches = (by_document[f"{name}_{how}"].to_numpy() for name, how in summed)
        depths = depth_metrics(exit_layers, blocks, n_tokens, depth, parts)
        if parts.kv_policy.deferred is not None:  # later tokens of a real decode run skipped blocks too
            del depths["mean_blocks_run"]
        match = bounded_ratio_interval(matches, n_tokens)
        return with_role("depth", depths) | agreement_metrics({"token_match": match})

    def _replayed_tokens(self, parts: Parts) -> pa.Table:
        """Return one row per token of the probe: its simulated exit layer, and the token predicted there.

        The gate's scores are computed from the probe's columns if possible, otherwise read from a scores cell.
        """
        cell, depth = self.cell, self.model.model.n_blocks
        assert cell.probe_cell_id is not None, "the planner gives every replay its probe"
        files = {"probe": self.model.file_of(cell.probe_cell_id, "probe.parquet")}
        source, emitted_sql = f"{rows_of('probe')} AS probe", "top1_id[{e}]"
        if cell.scores_cell_id is not None:
            files["scores"] = self.model.file_of(cell.scores_cell_id, "scores.parquet")
            source = f"{source} JOIN {rows_of('scores')} AS scores USING (doc_key, position)"
            emitted_sql = "emitted_id[{e}]"
        first_position = 1 if cell.first_token == "gated" else 2

        def rule_of(method: Parts) -> str:
            score_sql = "score[l]" if cell.scores_cell_id is not None else method.score_sql(depth)
            assert score_sql is not None, "the planner gives every replay that a probe cannot score its scores"
            return method.exit_layer_sql(depth, self.settings.max_new_tokens, score_sql, first_position)

        order, kept_columns = ("doc_key", "position"), ("token_kind", "full_token_id")
        recorded = ReplaySource(source, files, order, kept_columns, {"token_id": emitted_sql})
        table = simulated_exits(self, recorded, rule_of)
        exit_layer, last = table["exit_layer"], pa.scalar(depth, table["exit_layer"].type)
        blocks_run = pc.if_else(parts.runs_all_blocks, last, exit_layer)
        reason = pc.if_else(pc.equal(exit_layer, last), "last", "threshold")
        return table.append_column("blocks_run", blocks_run).append_column("reason", reason)

    # --- Calibration

    def exit_layers(self, answer: DocumentAnswer) -> Sequence[int]:
        """Return the exit layer of each token of an answer."""
        return answer.generation.exit_layers

    def losses(
        self, settings: CalibrationSettings, full: Sequence[DocumentAnswer], early: Sequence[DocumentAnswer]
    ) -> np.ndarray:
        """Return the loss of each early-exit answer, from 0 to 1; 0 if its text equals full depth's text."""
        texts = zip(self.documents, (answer.text for answer in full), (answer.text for answer in early), strict=True)
        return np.array([text_loss(self.task, settings, *each) for each in texts])

    # --- Timing and fitting

    def requests(self, documents: Sequence[Document]) -> list[Request]:
        """Return the engine's request (prompt token ids and seed) for each document."""
        return [self.request(document) for document in documents]

    def timed_work(self) -> TimedGeneration:
        """Return an object that decodes batches of prompts while clocks are read."""
        return TimedGeneration(self.model.checkpoint, self.settings, self.is_stopped)

    def n_tokens(self, output: Generation) -> int:
        """Return the number of generated tokens of an answer."""
        return len(output.token_ids)

    def ideal_speedup(
        self, parts: Parts, documents: Sequence[Document], full: Sequence[Generation], method: Sequence[Generation]
    ) -> float:
        """Return full depth's decode cost over the method's: bytes read at batch size 1, FLOPs for larger batches."""
        checkpoint, lengths = self.model.checkpoint, [len(self.prompt(document).ids) for document in documents]
        keeps = self.settings.scope == "answer"
        full_cost, own_cost = (
            sum(answer_costs(checkpoint, arm, generations, lengths, self.cell.first_token, keeps_depth=keeps), Cost())
            for arm, generations in ((self.full_parts, full), (parts, method))
        )
        if self.cell.batch_size == 1:
            return full_cost.read_numel / own_cost.read_numel
        # The rows of a batch share the weights that are read, so FLOPs limit the speed of a batch.
        return full_cost.flops / own_cost.flops

    def time_tokens(self, writer: AttemptWriter, on_progress: Progress) -> None:
        """Write the wall time of every token; answers are decoded one at a time."""
        time_tokens(self, writer, on_progress)

    @torch.no_grad()
    def fit_data(self) -> FitData:
        """Return the data to fit a method: hidden states of the reference tokens, teacher-forced, and these tokens.

        References are cut to the maximum answer length.
        """
        longest = self.settings.max_new_tokens
        prompts = [self.request(document).prompt_ids for document in self.documents]
        return fit_data(
            self.model.checkpoint,
            prompts,
            [self.target_ids(document)[:longest] for document in self.documents],
            self.cell.rows,
        )


@dataclass(frozen=True)
class TimedGeneration:
    """Greedy decoding of prompts for a timed run; prefill and decode are timed separately.

    Attributes:
        settings: Answer length and logit rules.
        is_stopped: Tells whether an answer contains a stop string. Only the untimed pass calls it; the timed passes are
            given the lengths of its answers.
    """

    checkpoint: Checkpoint
    settings: GenerationSettings
    is_stopped: IsStopped | None = None

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.checkpoint.model.device

    def run(self, parts: Parts, unit: Unit[Request]) -> tuple[list[Generation], Unit[Request]]:
        """Decode a batch in an untimed pass that records traces; return its answers, and the batch to time.

        The batch to time has the lengths of the answers.
        """
        answers = decode(self.checkpoint, self.prefilled(unit), parts, self.is_stopped, self.settings)
        timed = [
            replace(request, length=len(answer.token_ids))
            for request, answer in zip(unit.requests, answers, strict=True)
        ]
        return answers, replace(unit, requests=tuple(timed))

    def run_timed(self, parts: Parts, unit: Unit[Request], clock: Clock) -> tuple[tuple[str, ...], int]:
        """Prefill and decode a batch without tracing, with a clock mark before, between and after the two phases.

        Returns:
            The names of the phases, and the number of generated tokens.
        """
        clock.mark()
        batch = self.prefilled(unit)
        clock.mark()
        generations = decode(self.checkpoint, batch, parts, settings=self.settings, traced=False)
        clock.mark()
        return ("prefill", "decode"), sum(len(generation.token_ids) for generation in generations)

    def prefilled(self, unit: Unit[Request]) -> Batch:
        """Return the batch of a unit's prompts after their prefill."""
        gates_first = self.settings.gates_first_token
        return prefill(
            self.checkpoint.model, unit.requests, self.settings.max_new_tokens, gates_first_token=gates_first
        )


def text_loss(task: Task, settings: CalibrationSettings, document: Document, full: str, early: str) -> float:
    """Return the calibration loss of an early-exit answer relative to full depth's answer, in [0, 1].

    Args:
        task: The task that scores the answers.
        settings: Settings of the calibration, whose `consistency` defines the loss; see `Work.losses`.
        document: The document.
        full: Text of full depth's answer.
        early: Text of the early-exit answer.
    """
    metric = task.consistency_metric
    if full == early:
        return 0.0
    if settings.consistency == "textual":
        score = task.score(task.with_reference(document, full), early).values[metric]
        loss = task.shortfall(metric, score)
    else:
        scores = (task.score(document, text).values[metric] for text in (early, full))
        loss = task.shortfall(metric, *scores)
    return min(1.0, max(0.0, loss))


@torch.no_grad()
def fit_data(
    checkpoint: Checkpoint, prompts: Sequence[Sequence[int]], gold: Sequence[Sequence[int]], rows: int
) -> FitData:
    """Return the states of reference tokens after every block, teacher-forced after their prompts, and the tokens.

    Args:
        checkpoint: The model.
        prompts: Token ids of the prompts, by document.
        gold: Token ids of the references, by document.
        rows: Maximum number of documents per batch.
    """
    pieces = [
        states_of(checkpoint, prompts[start : start + rows], gold[start : start + rows])
        for start in range(0, len(prompts), rows)
    ]
    states_LND = torch.cat(pieces, dim=1)
    flat = [(index, token) for index, tokens in enumerate(gold) for token in tokens]
    document_N, gold_token_N = torch.tensor(flat, device=states_LND.device).unbind(1)
    final_token_N = argmax_token(checkpoint.model.logits(states_LND[-1]))
    return FitData(checkpoint.model, states_LND, final_token_N, gold_token_N, document_N)


@torch.inference_mode()
def _block_scores(
    checkpoint: Checkpoint, parts: Parts, requests: Sequence[Request], outputs: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """Return the gate's score, and the token that the head would emit, of each output token at each block; [N, L].

    The N output tokens of all requests follow each other in the order of the requests; L is the number of blocks.
    """
    model = checkpoint.model
    states_LND = states_of(checkpoint, [request.prompt_ids for request in requests], outputs)
    seeds = [request.seed for request, tokens in zip(requests, outputs, strict=True) for _ in tokens]
    position_N = torch.cat([torch.arange(1, len(tokens) + 1) for tokens in outputs])
    score_NL = torch.empty(len(seeds), model.n_blocks)
    emitted_NL = torch.empty(score_NL.shape, dtype=torch.long)
    for position in sorted(set(position_N.tolist())):
        at_N = (position_N == position).nonzero()[:, 0]
        scores_LN, emitted_LN = score_states(
            parts, model, states_LND[:, at_N], position=position, seeds_N=[seeds[index] for index in at_N.tolist()]
        )
        score_NL[at_N], emitted_NL[at_N] = scores_LN.T, emitted_LN.T
    return score_NL, emitted_NL


def _head_reads(records: Sequence[TokenRecord]) -> list[tuple[int, int]]:
    return [(record.head_rows, record.head_rows_int8) for record in records]


def _at_full_depth(output: FullOutput, model: Engine) -> Generation:
    records = full_depth_records(output.token_ids, model)
    if output.head_reads is not None:
        reads = zip(records, output.head_reads, strict=True)
        records = [record._replace(head_rows=exact, head_rows_int8=int8) for record, (exact, int8) in reads]
    return Generation(output.token_ids, records)


def answer_costs(
    checkpoint: Checkpoint,
    parts: Parts,
    generations: Sequence[Generation],
    prompt_lengths: Sequence[int],
    first_token: FirstToken,
    *,
    keeps_depth: bool = False,
) -> list[Cost]:
    """Return the cost of decoding each document's answer, in FLOPs and numbers read.

    Args:
        checkpoint: The model.
        parts: The method's parts.
        generations: Answers, one per document.
        prompt_lengths: Number of prompt tokens, by document.
        first_token: ``gated`` if the first token may exit early, ``full`` if it is read from the prompt's own pass.
        keeps_depth: Whether an answer keeps the depth of its first token, so that its other tokens have no gate.
    """
    return [
        sum((answer_cost(checkpoint.model, *cost_input) for cost_input in cost_inputs), Cost())
        for cost_inputs in _cost_inputs(checkpoint, parts, generations, prompt_lengths, first_token, keeps_depth)
    ]


def answer_costs_by_part(
    checkpoint: Checkpoint,
    parts: Parts,
    generations: Sequence[Generation],
    prompt_lengths: Sequence[int],
    first_token: FirstToken,
    *,
    keeps_depth: bool = False,
) -> list[dict[str, Cost]]:
    """Return, for each document, the cost of decoding its answer by component: blocks, heads, gates, KV, verification.

    Verification is included only for methods that verify drafts. Arguments as in `answer_costs`.
    """
    return [
        _summed([answer_parts(checkpoint.model, *cost_input) for cost_input in cost_inputs])
        for cost_inputs in _cost_inputs(checkpoint, parts, generations, prompt_lengths, first_token, keeps_depth)
    ]


def _summed(by_part: Sequence[dict[str, Cost]]) -> dict[str, Cost]:
    return {name: sum((costs[name] for costs in by_part), Cost()) for name in by_part[0]}


_CostInput = tuple[Parts, Sequence[TokenRecord], Sequence[TokenPlace]]


def _cost_inputs(
    checkpoint: Checkpoint,
    parts: Parts,
    generations: Sequence[Generation],
    prompt_lengths: Sequence[int],
    first_token: FirstToken,
    keeps_depth: bool,
) -> Iterator[list[_CostInput]]:
    """Yield, for each answer, a list of (parts, token records, places) to be priced by `answer_cost`.

    The list has one tuple. It has two, for the first token and for the others, if `keeps_depth` is True and later
    tokens were decoded: they have no gate.
    """
    for generation, n_prompt in zip(generations, prompt_lengths, strict=True):
        records, places = _answer_inputs(checkpoint, generation, n_prompt, first_token)
        if keeps_depth and len(places) > 1:
            later = with_exit_layer(parts, records[0].exit_layer)
            yield [(parts, records[:1], places[:1]), (later, records[1:], places[1:])]
        else:
            yield [(parts, records, places)]


def _answer_inputs(
    checkpoint: Checkpoint, answer: Generation, n_prompt: int, first_token: FirstToken
) -> tuple[Sequence[TokenRecord], Sequence[TokenPlace]]:
    """Return an answer's token records, and a place (context and source length) for each token that was decoded.

    A first token that is read from the prompt's own pass has no place: it is no decode step, and only its read-out is
    counted.
    """
    positions = range(1, len(answer.token_ids) + 1)
    if checkpoint.kind == "seq2seq":
        places = [TokenPlace(context=position, source=n_prompt) for position in positions]
    else:  # the first token is chosen at the position of the prompt's last token
        places = [TokenPlace(context=n_prompt + position - 1, source=0) for position in positions]
    return answer.records, places[1 if first_token == "full" else 0 :]
