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
from exitbench.harness.cells.cell import DeviceMap, EngineChoice, FirstToken, GenerationSettings
from exitbench.harness.cells.job import CellJob, DataRequest, WorkerSpec
from exitbench.harness.cells.prompts import Fitting, Prompt, Prompts, render_turns
from exitbench.harness.cells.seeds import seed_for
from exitbench.harness.cells.sharing import PASS_ROWS, may_share, sharing
from exitbench.harness.cells.texts import EncodedText, TextEncoding
from exitbench.harness.engine.checkpoints.encoder_loading import EncoderCheckpoint, is_encoder, load_encoder
from exitbench.harness.engine.checkpoints.generation_config import not_applied
from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.likelihood import why_not as why_no_likelihood
from exitbench.harness.engine.encoders.model import EncoderClassifier
from exitbench.harness.engine.model.cost import TokenPlace, answer_cost, answer_parts
from exitbench.harness.engine.model.engine import Engine
from exitbench.harness.engine.products.choosing import use_fastest
from exitbench.harness.running.encoding import Encoding, Unscorable, reads_up_to
from exitbench.harness.running.lm import Answer, EarlyExitLM
from exitbench.harness.running.scored_texts import ScoredText, TextRequest
from exitbench.harness.running.scoring import Metric, metric_table
from exitbench.harness.running.sharing import Passes
from exitbench.methods.base import NOTHING_FITTED, Cost, Method, Parts
from exitbench.methods.registry import baseline_method, get_method
from exitbench.results.beside.vocabularies import record_vocabulary
from exitbench.results.files.atomic import SpoolError
from exitbench.results.spool.attempts import AttemptWriter, attempt_status, read_attempt
from exitbench.results.spool.schema import FITTED_FILE
from exitbench.results.statistics.intervals import NONE_DIFFERS, Interval, bounded_ratio_interval, point
from exitbench.tasks.classification import ClassificationTask
from exitbench.tasks.document import Document
from exitbench.tasks.lm_eval.leaves import Chat
from exitbench.tasks.lm_eval.task import LmEvalTask

METRIC_VERSION = "2"
"""Version of the metrics made here (depth, faithfulness, cost, speed); tasks version their own."""

_TOLD = 5
"""Documents without a text to score that a worker's log names."""

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

    Attributes:
        products: In which form weights are multiplied, where that was measured (`engine.products`).
    """

    def __init__(self, spec: WorkerSpec, loaded: Checkpoint | None = None) -> None:
        asked = {(item.cell.dtype, item.cell.engine, item.cell.device_map) for item in spec.cells}
        if len(asked) != 1:
            raise ValueError(f"one worker loads one number format, engine and device map, not {asked}")
        ((dtype, engine, device_map),) = asked
        self.spool, self.inputs, self.data_dir = spec.spool, spec.inputs or spec.spool, spec.data_dir
        self.model_path = spec.model_path
        self._checkpoint = loaded or load_model(spec.model_path, getattr(torch, dtype), spec.device, engine, device_map)
        is_new = loaded is None and isinstance(self._checkpoint, Checkpoint)
        self.products = use_fastest(self.checkpoint.model) if is_new else None
        self.tokenizer: Any = load_tokenizer(spec.model_path)
        self._record_vocabulary(spec.cells[0].cell.model.tokenizer_sha256)
        self.confirms_unsafe_code = spec.confirm_run_unsafe_code
        self._loaded, self.fitting = functools.cache(self._load), functools.cache(self._fitting)
        self._prompted, self._texts = functools.cache(self._lm_eval_prompts), functools.cache(self._lm_eval_texts)
        self.prompts = functools.cache(self._prompts)
        self._checked = functools.cache(read_attempt)  # many cells compute from one
        self._ids = functools.cache(self._tokenized)  # of references, which all cells of a task have
        self.passes = Passes()
        self._full_answers: dict[tuple[DataRequest, GenerationSettings], Mapping[str, list[int]]] = {}

    @property
    def checkpoint(self) -> Checkpoint:
        """The model, where it generates."""
        assert isinstance(self._checkpoint, Checkpoint), "the planner gives classifiers tasks of their own"
        return self._checkpoint

    @property
    def classifier(self) -> EncoderClassifier:
        """The model, where it is an encoder."""
        assert isinstance(self._checkpoint, EncoderCheckpoint), "the planner gives encoders tasks of their own"
        return self._checkpoint.model

    @property
    def model(self) -> Engine | EncoderClassifier:
        """The model, whatever it is."""
        return self._checkpoint.model

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
        return Prompts(self.tokenizer, generation, self.model.max_positions)

    def _fitting(self, data: DataRequest, generation: GenerationSettings) -> Fitting:
        task = data.task_object
        if isinstance(task, LmEvalTask):
            return self._lm_eval_fitting(data, generation, task)
        if isinstance(task, ClassificationTask):
            return self._encoded_fitting(data, generation, task)
        texts = [(document, task.prompt_for(document, self._checkpoint.kind)) for document in self.documents(data)]
        return self.prompts(generation).fitting(texts)

    def _encoded_fitting(self, data: DataRequest, generation: GenerationSettings, task: ClassificationTask) -> Fitting:
        documents, encoding = self.documents(data), self.text_encoding(generation)
        cut = [bool(encoding(task.texts(document), 0).n_cut) for document in documents]
        if not encoding.drops:
            return Fitting(tuple(documents), truncated=sum(cut))
        kept = tuple(document for document, is_cut in zip(documents, cut, strict=True) if not is_cut)
        if not kept:
            raise UserError(f"none of the {len(documents)} inputs has {encoding.longest} tokens or fewer.")
        return Fitting(kept, dropped=sum(cut))

    def text_encoding(self, generation: GenerationSettings) -> TextEncoding:
        """Makes token ids of what an encoder classifies."""
        return TextEncoding(self.tokenizer, generation, self.classifier.max_positions)

    def encoded(self, item: CellJob, documents: Sequence[Document]) -> list[EncodedText]:
        """What documents of a cell give to be classified."""
        task, encoding = item.data.task_object, self.text_encoding(item.cell.generation)
        assert isinstance(task, ClassificationTask), "what encoders are asked for"
        seeds = [seed_for("decode", item.cell.seed, document.key) for document in documents]
        return [encoding(task.texts(document), seed) for document, seed in zip(documents, seeds, strict=True)]

    @functools.cached_property
    def encoding(self) -> Encoding:
        """Makes token ids of lm-eval's requests."""
        longest = reads_up_to(self.model_path, self.tokenizer, self.model.max_positions)
        return Encoding(self.tokenizer, self._checkpoint.kind, longest)

    def chat(self, generation: GenerationSettings) -> Chat | None:
        """System message and chat template of lm-eval's prompts, where they go through one."""
        if generation.chat_template_sha256 is None:
            return None
        self.prompts(generation)  # refuses another template than was planned with
        return generation.system, functools.partial(_turns, self.tokenizer)

    def _lm_eval_fitting(self, data: DataRequest, generation: GenerationSettings, task: LmEvalTask) -> Fitting:
        """What is too long is cut; a document is left out where a text of its own cannot be scored."""
        documents = self.documents(data)
        if task.output_type == "generate_until":
            cut = {key for key, prompt in self._prompted(data, generation).items() if prompt.n_cut}
            return Fitting(tuple(documents), truncated=len(cut))
        texts, refusals = self._texts(data, generation)
        if not texts:
            raise UserError(f"none of the {len(documents)} documents can be scored; the first: {refusals[0]}")
        for refusal in refusals[:_TOLD]:
            print(f"Left out: {refusal}", file=sys.stderr)
        by_key = {document.key: document for document in documents}
        kept = tuple(by_key[key] for key in dict.fromkeys(text.doc_key for text in texts))
        cut = {text.doc_key for text in texts if any(pair.n_cut for pair in text.pairs)}
        return Fitting(kept, unscorable=len(refusals), truncated=len(cut))

    def _lm_eval_prompts(self, data: DataRequest, generation: GenerationSettings) -> dict[str, Prompt]:
        """Prompt of each document of a task of lm-eval that generates."""
        task, documents = data.task_object, self.documents(data)
        assert isinstance(task, LmEvalTask)
        asked = task.instances(documents, self.chat(generation))
        return {key: self.encoding.prompt(own[0].args[0], generation.max_new_tokens) for key, own in asked.items()}

    def _lm_eval_texts(
        self, data: DataRequest, generation: GenerationSettings
    ) -> tuple[tuple[TextRequest, ...], tuple[str, ...]]:
        """What each document of a task of lm-eval gives to be scored, and why some give nothing."""
        task, documents = data.task_object, self.documents(data)
        assert isinstance(task, LmEvalTask)
        asked = task.instances(documents, self.chat(generation))
        texts: list[TextRequest] = []
        refusals = []
        for key, own in asked.items():
            try:
                texts += [TextRequest.of(self.encoding, key, *one.args) for one in own]
            except Unscorable as refusal:
                refusals.append(str(refusal))
        return tuple(texts), tuple(refusals)

    def texts(self, item: CellJob, documents: Sequence[Document]) -> list[TextRequest]:
        """What documents of a cell give to be scored; those of a document stand together, in their order."""
        keys = {document.key for document in documents}
        return [text for text in self._texts(item.data, item.cell.generation)[0] if text.doc_key in keys]

    def answered(self, item: CellJob) -> Sequence[Document]:
        """The documents of a cell whose prompts fit: the same for every cell of its model, task and generation."""
        return self.fitting(item.data, item.cell.generation).documents

    def units(self, item: CellJob) -> int:
        """What progress counts up to: documents (over all levels of a calibration), or timed units."""
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
        return -(-min(documents, settings.documents) // item.cell.batch_size)

    def cell_record(self, item: CellJob) -> dict[str, Any]:
        """The content of ``cell.json``: the cell, and what of its checkpoint's own settings is not applied."""
        if isinstance(self._checkpoint, EncoderCheckpoint):
            return item.cell_record()
        ignored = not_applied(self.model_path, item.cell.generation).settings
        return {**item.cell_record(), **({"not_applied": ignored} if ignored else {})}

    def method(self, item: CellJob) -> Method:
        """The method of a cell, bound to the exit heads of this model."""
        method = get_method(item.cell.method.name).from_params(item.cell.method.params)
        method.check(self.model.n_blocks)
        return method.bound_to(self.model.exit_blocks)

    def parts(self, item: CellJob) -> Parts:
        """The method of a cell, bound to this model and to what was fitted for it.

        Raises:
            Skip: The engine cannot run it on this model.
        """
        return self.parts_of(item, self.method(item))

    def parts_of(self, item: CellJob, method: Method) -> Parts:
        """The same of a method that may differ from the cell's in its threshold."""
        parts = self.runnable(item, method.parts(self.model.n_blocks, self.fitted(item)))
        return parts.certified() if item.cell.head_precision == "certified" else parts

    def runnable(self, item: CellJob, parts: Parts) -> Parts:
        """The parts, if the engine can run them on this model.

        Raises:
            Skip: It cannot, and why.
        """
        if (why_not := self.model.why_not(parts, item.cell.rows)) is not None:
            raise Skip(why_not)
        return parts

    def sharing(self, item: CellJob, others: Iterable[CellJob]) -> Iterator[tuple[CellJob, Parts]]:
        """Yield cells that one pass can see to with a cell, and their methods (`harness.cells.sharing`)."""
        if not may_share(item):
            return
        with contextlib.suppress(Exception):  # its own pass says what is wrong
            parts, tokens = self.parts(item), self._kept_tokens(item)
            if item.cell.kind == "replay" or self.model.why_not(parts, PASS_ROWS) is None:
                yield from sharing(item, others, tokens, self.parts)

    def _kept_tokens(self, item: CellJob) -> int:
        """Of how many tokens a cell that shares a pass keeps something, at most."""
        if item.cell.kind == "quality":
            return self.units(item) * item.cell.generation.max_new_tokens
        return int(pq.read_metadata(self.replayed_file(item)).num_rows)

    def replayed_file(self, item: CellJob) -> Path:
        """What a replay reads: its probe, or what the method's gate said of the probed tokens."""
        cell = item.cell
        if cell.scores_cell_id is not None:
            return self.file_of(cell.scores_cell_id, "scores.parquet")
        assert cell.probe_cell_id is not None, "the planner gives every replay its probe"
        return self.file_of(cell.probe_cell_id, "probe.parquet")

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
        tensors: dict[str, Tensor] = load_file(path, device=str(self.model.device))
        return tensors

    def note_full_depth(self, item: CellJob, answers: Mapping[str, list[int]]) -> None:
        """Keep what greedy full depth answered to a cell's documents, by their keys: a probe then need not decode.

        Not where rules change logits, which a probe's own decode knows nothing of.
        """
        if not item.cell.generation.logit_rules:
            self._full_answers[item.data, item.cell.generation] = answers

    def answers_of_full_depth(self, item: CellJob) -> Mapping[str, list[int]]:
        """What greedy full depth has answered to the same documents in this session; empty where it has not."""
        return self._full_answers.get((item.data, item.cell.generation), {})

    def full_parts(self) -> Parts:
        """Full depth on this model."""
        return baseline_method()().parts(self.model.n_blocks)

    def request(self, item: CellJob, document: Document) -> Request:
        """Prompt tokens and seed of a document."""
        if item.data.settings is not None:
            prompt = self._prompted(item.data, item.cell.generation)[document.key]
        else:
            text = item.data.task_object.prompt_for(document, self._checkpoint.kind)
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
        if item.data.settings is not None and self._checkpoint.kind == "causal":
            # Goes on from the prompt, behind lm-eval's delimiter, until the model ends it.
            target = self.encoding.ids(f" {item.data.task_object.target(document)}", add_special_tokens=False)
            return [*target, *sorted(self.checkpoint.eos_ids)[:1]]
        return list(self._ids(item.data.task_object.target(document)))

    def _tokenized(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text)["input_ids"])

    def answers(
        self, item: CellJob, documents: Sequence[Document], parts: Parts, on_progress: Progress
    ) -> list[Answer]:
        """Answer documents under the cell's settings, without lm-eval."""
        task, lm = item.data.task_object, self.lm(item, parts, on_progress)
        if isinstance(task, LmEvalTask):
            prompts = self._prompted(item.data, item.cell.generation)
            lm.answer({document.key: prompts[document.key] for document in documents})
        else:
            texts = {document.key: task.prompt_for(document, self._checkpoint.kind) for document in documents}
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


def load_model(
    folder: Path, dtype: torch.dtype, device: str, engine: EngineChoice, device_map: DeviceMap | None
) -> Checkpoint | EncoderCheckpoint:
    """Load a checkpoint, whatever it is.

    Raises:
        UserError: It cannot be read, or does not fit into memory.
    """
    if is_encoder(folder):
        return load_encoder(folder, dtype, device)
    return load_checkpoint(folder, dtype, device, engine, device_map)


def _turns(tokenizer: Any, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
    return render_turns(tokenizer, messages, add_generation_prompt=add_generation_prompt)


def write_prompt_counts(session: Session, item: CellJob, writer: AttemptWriter) -> None:
    """Write how many documents were left out and how many prompts were cut, where any was.

    `documents_shared` is of the whole split, before its limit; the others are of the documents asked.
    """
    found = [session.fitting(data, item.cell.generation) for data in (item.data, item.held_out) if data is not None]
    counts = {
        "documents_dropped": sum(one.dropped for one in found),
        "documents_unscorable": sum(one.unscorable for one in found),
        "prompts_truncated": sum(one.truncated for one in found),
    }
    asked = sum(len(one.documents) + one.dropped + one.unscorable for one in found)
    counts["documents_shared"] = session.shared(item.data)
    metrics = {name: point(n, asked) for name, n in counts.items() if n}
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
    return point(found.value, found.n) if is_fixed and found.method == NONE_DIFFERS else found


def with_role(role: str, metrics: Mapping[str, Interval], lower_is_better: bool | None = None) -> dict[str, Metric]:
    """Return metrics made here, by name, which are all about one thing (`results.schema.ROLES`)."""
    return {name: Metric(METRIC_VERSION, role, interval, lower_is_better) for name, interval in metrics.items()}


def agreement_metrics(metrics: Mapping[str, Interval], *, lower_is_better: bool = False) -> dict[str, Metric]:
    """Return metrics made here, by name, which are all about agreement with full depth."""
    return with_role("agreement", metrics, lower_is_better)


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
    return layers, made.head_rows, places[first:], rejected, wasted, made.int8_rows
