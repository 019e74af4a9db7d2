"""Session of a loaded model: what the cells that run on it share."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from numpy.typing import ArrayLike
from safetensors.torch import load_file
from torch import Tensor

from exitbench.errors import UserError
from exitbench.harness.cells.cell import FirstToken, GenerationSettings
from exitbench.harness.cells.job import CellJob, DataRequest, WorkerSpec
from exitbench.harness.cells.prompts import Fitting, Prompt, Prompts, render_turns
from exitbench.harness.cells.seeds import seed_for
from exitbench.harness.engine.checkpoints.generation_config import not_applied
from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.likelihood import why_not as why_no_likelihood
from exitbench.harness.engine.model.cost import TokenPlace, answer_cost, answer_parts
from exitbench.harness.running.encoding import Encoding, reads_up_to
from exitbench.harness.running.lm import Answer, EarlyExitLM
from exitbench.harness.running.scored_texts import ScoredText, TextRequest
from exitbench.harness.running.scoring import Metric, metric_table
from exitbench.harness.running.sharing import (
    PASS_ROWS,
    Passes,
    asking_the_same,
    cells_of_a_pass,
    differ_in_threshold_alone,
)
from exitbench.methods.base import NOTHING_FITTED, Cost, Method, Parts, Threshold
from exitbench.methods.registry import baseline_method, get_method
from exitbench.results.beside.vocabularies import record_vocabulary
from exitbench.results.files.atomic_folder import SpoolError
from exitbench.results.spool.attempts import AttemptWriter, attempt_status, read_attempt
from exitbench.results.spool.schema import FITTED_FILE
from exitbench.results.statistics.intervals import NONE_DIFFERS, Interval, bounded_ratio_interval
from exitbench.tasks.document import Document
from exitbench.tasks.lm_eval.leaves import Chat
from exitbench.tasks.lm_eval.task import LmEvalTask

METRIC_VERSION = "2"
"""Version of the metrics made here (depth, faithfulness, cost, speed); tasks version their own."""

Progress = Callable[[int], None]


class Skip(Exception):
    """This cell cannot be run, and why; stored as a row with status ``skipped``."""


@dataclass(frozen=True)
class FullOutput:
    """What full depth answered for one document."""

    n_prompt: int
    token_ids: list[int]


def full_outputs(session: Session, cell_id: str) -> dict[str, FullOutput]:
    """What full depth's quality cell answered, by document key."""
    path = session.file_of(cell_id, "samples.parquet")
    rows = pq.read_table(path, columns=["doc_key", "n_prompt", "output_ids"]).to_pylist()
    return {row["doc_key"]: FullOutput(row["n_prompt"], row["output_ids"]) for row in rows}


class Session:
    """One loaded model and what its cells share.

    Args:
        spec: The cells and where things lie.
        loaded: The model, where it has been loaded already.
    """

    def __init__(self, spec: WorkerSpec, loaded: Checkpoint | None = None) -> None:
        asked = {(item.cell.dtype, item.cell.engine, item.cell.device_map) for item in spec.cells}
        if len(asked) != 1:
            raise ValueError(f"one worker loads one number format, engine and device map, not {asked}")
        ((dtype, engine, device_map),) = asked
        self.spool, self.inputs, self.data_dir = spec.spool, spec.inputs or spec.spool, spec.data_dir
        self.model_path = spec.model_path
        self.checkpoint = loaded or load_checkpoint(
            spec.model_path, getattr(torch, dtype), spec.device, engine, device_map
        )
        self.tokenizer: Any = load_tokenizer(spec.model_path)
        self._record_vocabulary(spec.cells[0].cell.model.tokenizer_sha256)
        self.confirms_unsafe_code = spec.confirm_run_unsafe_code
        self._loaded, self.fitting = functools.cache(self._load), functools.cache(self._fitting)
        self._prompted, self._texts = functools.cache(self._lm_eval_prompts), functools.cache(self._lm_eval_texts)
        self.prompts = functools.cache(self._prompts)
        self._checked = functools.cache(read_attempt)  # many cells compute from one
        self.passes = Passes()

    def _record_vocabulary(self, tokenizer_sha256: str) -> None:
        texts = self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer)))
        try:
            record_vocabulary(self.spool, tokenizer_sha256, texts, self.tokenizer.all_special_ids)
        except UserError as error:  # no cell needs it
            print(f"The tokens' spellings were not stored: {error}", file=sys.stderr)

    def _load(self, data: DataRequest) -> tuple[list[Document], int]:
        return data.load_apart(self.data_dir)

    def documents(self, data: DataRequest) -> list[Document]:
        """Documents of a split."""
        return self._loaded(data)[0]

    def shared(self, data: DataRequest) -> int:
        """How many documents of a split were left out because they have another use."""
        return self._loaded(data)[1]

    def _prompts(self, generation: GenerationSettings) -> Prompts:
        return Prompts(self.tokenizer, generation, self.checkpoint.model.max_positions)

    def _fitting(self, data: DataRequest, generation: GenerationSettings) -> Fitting:
        task = data.task_object
        if isinstance(task, LmEvalTask):
            return self._lm_eval_fitting(data, generation, task)
        texts = [(document, task.prompt_for(document, self.checkpoint.kind)) for document in self.documents(data)]
        return self.prompts(generation).fitting(texts)

    @functools.cached_property
    def encoding(self) -> Encoding:
        """Makes token ids of lm-eval's requests."""
        longest = reads_up_to(self.model_path, self.tokenizer, self.checkpoint.model.max_positions)
        return Encoding(self.tokenizer, self.checkpoint.kind, longest)

    def chat(self, generation: GenerationSettings) -> Chat | None:
        """System message and chat template of lm-eval's prompts, where they go through one."""
        if generation.chat_template_sha256 is None:
            return None
        self.prompts(generation)  # refuses another template than was planned with
        return generation.system, functools.partial(_turns, self.tokenizer)

    def _lm_eval_fitting(self, data: DataRequest, generation: GenerationSettings, task: LmEvalTask) -> Fitting:
        """All documents: what is too long is cut."""
        documents = self.documents(data)
        if task.output_type == "generate_until":
            cut = {key for key, prompt in self._prompted(data, generation).items() if prompt.n_cut}
        else:
            texts = self._texts(data, generation)
            cut = {text.doc_key for text in texts if any(pair.n_cut for pair in text.pairs)}
        return Fitting(tuple(documents), truncated=len(cut))

    def _lm_eval_prompts(self, data: DataRequest, generation: GenerationSettings) -> dict[str, Prompt]:
        """Prompt of each document of a task of lm-eval that generates."""
        task, documents = data.task_object, self.documents(data)
        assert isinstance(task, LmEvalTask)
        asked = task.instances(documents, self.chat(generation))
        return {key: self.encoding.prompt(own[0].args[0], generation.max_new_tokens) for key, own in asked.items()}

    def _lm_eval_texts(self, data: DataRequest, generation: GenerationSettings) -> tuple[TextRequest, ...]:
        """What each document of a task of lm-eval gives to be scored."""
        task, documents = data.task_object, self.documents(data)
        assert isinstance(task, LmEvalTask)
        asked = task.instances(documents, self.chat(generation))
        return tuple(TextRequest.of(self.encoding, key, *one.args) for key, own in asked.items() for one in own)

    def texts(self, item: CellJob, documents: Sequence[Document]) -> list[TextRequest]:
        """What documents of a cell give to be scored; those of a document stand together, in their order."""
        keys = {document.key for document in documents}
        return [text for text in self._texts(item.data, item.cell.generation) if text.doc_key in keys]

    def answered(self, item: CellJob) -> Sequence[Document]:
        """The documents of a cell whose prompts fit: the same for every cell of its model, task and generation."""
        return self.fitting(item.data, item.cell.generation).documents

    def units(self, item: CellJob) -> int:
        """What progress counts up to: documents (over all levels of a calibration), or timed units over all rounds."""
        try:
            documents = len(self.answered(item))
        except UserError:  # nothing has begun yet that could fail with it: the pass does
            documents = len(self.documents(item.data))
        if item.cell.calibration is not None:
            return documents * (1 + len(item.cell.calibration.levels))
        if item.cell.record is not None:
            return min(documents, item.cell.record.documents)
        settings = item.cell.timing
        if settings is None:
            return documents
        return -(-min(documents, settings.documents) // item.cell.batch_size) * settings.max_rounds

    def cell_record(self, item: CellJob) -> dict[str, Any]:
        """The content of ``cell.json``: the cell, and what of its checkpoint's own settings is not applied."""
        ignored = not_applied(self.model_path, item.cell.generation).settings
        return {**item.cell_record(), **({"not_applied": ignored} if ignored else {})}

    def method(self, item: CellJob) -> Method:
        """The method of a cell, bound to the exit heads of this model."""
        method = get_method(item.cell.method.name).from_params(item.cell.method.params)
        method.check(self.checkpoint.model.n_blocks)
        return method.bound_to(self.checkpoint.model.exit_blocks)

    def parts(self, item: CellJob) -> Parts:
        """The method of a cell, bound to this model and to what was fitted for it.

        Raises:
            Skip: The engine cannot run it on this model.
        """
        return self.runnable(item, self.method(item).parts(self.checkpoint.model.n_blocks, self.fitted(item)))

    def runnable(self, item: CellJob, parts: Parts) -> Parts:
        """The parts, if the engine can run them on this model.

        Raises:
            Skip: It cannot, and why.
        """
        if (why_not := self.checkpoint.model.why_not(parts, item.cell.rows)) is not None:
            raise Skip(why_not)
        return parts

    def sharing(self, item: CellJob, others: Iterable[CellJob]) -> Iterator[tuple[CellJob, Threshold]]:
        """Yield cells that one pass could answer with a cell, and their thresholds; no more than may share one."""
        candidates = asking_the_same(item, others)
        if not candidates:
            return
        try:
            parts, most = self.parts(item), cells_of_a_pass(self.units(item), item.cell.generation.max_new_tokens)
            if self.checkpoint.model.why_not(parts, PASS_ROWS) is not None:
                return
        except Exception:  # its own pass says what is wrong
            return
        for other in candidates:
            if most == 1:
                return
            with contextlib.suppress(Exception):  # likewise
                other_parts = self.parts(other)
                if differ_in_threshold_alone(parts, other_parts):
                    most -= 1
                    yield other, other_parts.threshold

    def scoring(self, item: CellJob, parts: Parts) -> Parts:
        """The parts, if log-likelihoods can be had of them.

        Raises:
            Skip: They cannot, and why.
        """
        if (reason := why_no_likelihood(parts)) is not None:
            raise Skip(f"log-likelihoods cannot be had of {item.cell.method.name}: it {reason}")
        return parts

    def fitted(self, item: CellJob) -> Mapping[str, Tensor]:
        """What the cell's method was fitted to; nothing for most."""
        if item.cell.fit_cell_id is None:
            return NOTHING_FITTED
        path = self.file_of(item.cell.fit_cell_id, FITTED_FILE)
        tensors: dict[str, Tensor] = load_file(path, device=str(self.checkpoint.model.device))
        return tensors

    def full_parts(self) -> Parts:
        """Full depth on this model."""
        return baseline_method()().parts(self.checkpoint.model.n_blocks)

    def request(self, item: CellJob, document: Document) -> Request:
        """Prompt tokens and seed of a document."""
        if item.data.settings is not None:
            prompt = self._prompted(item.data, item.cell.generation)[document.key]
        else:
            text = item.data.task_object.prompt_for(document, self.checkpoint.kind)
            prompt = self.prompts(item.cell.generation)(text)
        return Request(prompt.ids, seed_for("decode", item.cell.seed, document.key))

    def reference(self, item: CellJob, document: Document) -> tuple[Sequence[int], Sequence[int]]:
        """Tokens of a document's prompt and of its reference, which methods are fitted on.

        Of tasks that score given texts these are a context and its right choice, or the text itself.
        """
        task = item.data.task_object
        if task.output_type == "generate_until":
            gold = self.target_ids(item, document)[: item.cell.generation.max_new_tokens]
            return self.request(item, document).prompt_ids, gold
        assert isinstance(task, LmEvalTask), "only lm-eval's tasks ask for log-likelihoods"
        right = min(task.right_choices(document), default=0) if task.output_type == "multiple_choice" else 0
        pair = self.texts(item, [document])[right].pairs[0]
        return pair.context_ids, pair.continuation_ids

    def kinds(self, item: CellJob, document: Document) -> list[str]:
        """Kind of each target token of built-in data, end of sequence included; empty where it is not known."""
        known = document.token_kinds
        return [*known, "end"] if known and len(known) + 1 == len(self.target_ids(item, document)) else []

    def target_ids(self, item: CellJob, document: Document) -> list[int]:
        """Tokens of the first reference."""
        if item.data.settings is not None and self.checkpoint.kind == "causal":
            # Goes on from the prompt, behind lm-eval's delimiter, until the model ends it.
            target = self.encoding.ids(f" {item.data.task_object.target(document)}", add_special_tokens=False)
            return [*target, *sorted(self.checkpoint.eos_ids)[:1]]
        return list(self.tokenizer(item.data.task_object.target(document))["input_ids"])

    def answers(
        self, item: CellJob, documents: Sequence[Document], parts: Parts, on_progress: Progress
    ) -> list[Answer]:
        """Answer documents under the cell's settings, without lm-eval."""
        task, lm = item.data.task_object, self.lm(item, parts, on_progress)
        if isinstance(task, LmEvalTask):
            prompts = self._prompted(item.data, item.cell.generation)
            lm.answer({document.key: prompts[document.key] for document in documents})
        else:
            texts = {document.key: task.prompt_for(document, self.checkpoint.kind) for document in documents}
            lm.answer({key: lm.prompts(text) for key, text in texts.items()})
        return [lm.answers[document.key] for document in documents]

    def scored(
        self, item: CellJob, documents: Sequence[Document], parts: Parts, on_progress: Progress
    ) -> list[list[ScoredText]]:
        """Score the texts of documents under the cell's settings, without lm-eval."""
        lm = self.lm(item, self.scoring(item, parts), on_progress)
        lm.score(self.texts(item, documents), on_progress)
        return [lm.scored[document.key] for document in documents]

    def lm(self, item: CellJob, parts: Parts, on_progress: Progress) -> EarlyExitLM:
        """This model with a method, as lm-eval sees it."""
        seed_of = functools.partial(seed_for, "decode", item.cell.seed)
        prompts = self.prompts(item.cell.generation)
        lm = EarlyExitLM(self.checkpoint, prompts, parts, item.cell.rows, seed_of, on_progress)
        cell_id = item.cell.cell_id
        lm.known, lm.beside, lm.shared_rows = self.passes.known(cell_id), self.passes.beside(cell_id), PASS_ROWS
        lm.on_giving_up = functools.partial(self.passes.give_up, cell_id)
        if item.data.settings is not None:
            places = {(one.fields["task"], one.fields["doc_id"]): one.key for one in self.documents(item.data)}
            lm.encoding, lm.key_of = self.encoding, lambda request: places[request.task_name, request.doc_id]
        return lm

    def file_of(self, cell_id: str, name: str) -> Path:
        """A file of the latest attempt at another cell.

        Raises:
            Skip: That cell has not ended well, or its files are not what was written, or are no longer there.
        """
        status = attempt_status(self.inputs, cell_id)
        if status is None or status.status != "ok":
            found = "was never run" if status is None else f"ended as {status.status}"
            raise Skip(f"needs cell {cell_id[:12]}, which {found}")
        try:
            freed = self._checked(status.path).freed
        except SpoolError as error:
            raise Skip(f"needs cell {cell_id[:12]}, which is damaged: {error}") from error
        if name.removesuffix(".parquet") in freed:
            raise Skip(f"needs {name} of cell {cell_id[:12]}, which `exitbench gc` removed; run that cell again")
        return status.path / name


def _turns(tokenizer: Any, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
    return render_turns(tokenizer, messages, add_generation_prompt=add_generation_prompt)


def write_prompt_counts(session: Session, item: CellJob, writer: AttemptWriter) -> None:
    """Write how many documents were left out and how many prompts were cut, where any was.

    `documents_shared` is of the whole split, before its limit; the others are of the documents asked.
    """
    found = [session.fitting(data, item.cell.generation) for data in (item.data, item.held_out) if data is not None]
    dropped, truncated = sum(one.dropped for one in found), sum(one.truncated for one in found)
    asked = dropped + sum(len(one.documents) for one in found)
    shared = session.shared(item.data)
    counts = {"documents_dropped": dropped, "prompts_truncated": truncated, "documents_shared": shared}
    metrics = {name: Interval(n, None, None, None, asked) for name, n in counts.items() if n}
    if metrics:
        write_metrics(writer, with_role("data", metrics))


def depth_interval(blocks: ArrayLike, tokens: ArrayLike, n_blocks: int, *, is_fixed: bool) -> Interval:
    """Return the mean blocks of a token with its interval.

    Args:
        blocks: Blocks of all tokens of a document, [n].
        tokens: Tokens of a document, [n].
        n_blocks: Decoder blocks, L.
        is_fixed: The method gives every token the same depth, whatever the documents: where it did, the mean is known
            and has no interval.
    """
    found = bounded_ratio_interval(blocks, tokens, (1, n_blocks))
    return Interval(found.value, None, None, None, found.n) if is_fixed and found.method == NONE_DIFFERS else found


def with_role(role: str, metrics: Mapping[str, Interval]) -> dict[str, Metric]:
    """Return metrics made here, by name, which are all about one thing (`results.schema.ROLES`)."""
    return {name: Metric(METRIC_VERSION, role, interval) for name, interval in metrics.items()}


def write_metrics(writer: AttemptWriter, metrics: Mapping[str, Metric]) -> None:
    """Write metric rows: role, value, interval and how it was found."""
    writer.write("metrics", metric_table(metrics))


def answer_costs(
    checkpoint: Checkpoint,
    parts: Parts,
    generations: Sequence[Generation],
    prompt_lengths: Sequence[int],
    first_token: FirstToken,
) -> list[Cost]:
    """Decode cost of each document; ``first_token`` as of its cell."""
    return [
        answer_cost(checkpoint.model, parts, *_work(checkpoint, generation, n_prompt, first_token))
        for generation, n_prompt in zip(generations, prompt_lengths, strict=True)
    ]


def answer_costs_by_part(
    checkpoint: Checkpoint,
    parts: Parts,
    generations: Sequence[Generation],
    prompt_lengths: Sequence[int],
    first_token: FirstToken,
) -> list[dict[str, Cost]]:
    """Decode cost of each document, by the part of the work; ``first_token`` as of its cell."""
    return [
        answer_parts(checkpoint.model, parts, *_work(checkpoint, generation, n_prompt, first_token))
        for generation, n_prompt in zip(generations, prompt_lengths, strict=True)
    ]


def _work(checkpoint: Checkpoint, made: Generation, n_prompt: int, first_token: FirstToken) -> tuple[Any, ...]:
    """What the cost of an answer depends on, in the order of `answer_cost`.

    A first token read from the prompt's own pass is no step of decoding: only its read-out is.
    """
    positions = range(1, len(made.token_ids) + 1)
    if checkpoint.kind == "seq2seq":
        places = [TokenPlace(context=position, source=n_prompt) for position in positions]
    else:  # the first token is chosen where the last one of the prompt is fed
        places = [TokenPlace(context=n_prompt + position - 1, source=0) for position in positions]
    first = 1 if first_token == "full" else 0
    layers, rejected, wasted = made.exit_layers[first:], made.rejected[first:], made.wasted[first:]
    return layers, made.head_rows, places[first:], rejected, wasted
