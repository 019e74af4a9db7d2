"""All that can be told of a checkpoint: what it is, what runs it, what methods cost on it, and what it lacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from exitbench.errors import UserError
from exitbench.harness.cells.cell import EngineChoice, EngineName
from exitbench.harness.engine.checkpoints.exit_head_files import load_exit_heads
from exitbench.harness.engine.checkpoints.files import CONFIG, checkpoint_remarks, not_a_checkpoint
from exitbench.harness.engine.checkpoints.hosted_loading import skeleton
from exitbench.harness.engine.checkpoints.loading import Checkpoint, engine_for, load_checkpoint, read_config
from exitbench.harness.engine.checkpoints.tokenizer_files import check_vocabulary, load_tokenizer
from exitbench.harness.engine.hosted.model import HostedTransformer
from exitbench.harness.engine.hosted.proof import tried
from exitbench.harness.engine.hosted.stack import Stack, find_stack
from exitbench.harness.engine.model.available import available_bytes
from exitbench.harness.engine.model.cost import TokenPlace
from exitbench.harness.engine.model.exit_heads import ExitHeads
from exitbench.harness.engine.model.model import Transformer
from exitbench.harness.inspecting.asking import Asking, Costed, Skipping, WhyNot, askings, refused_choices, skippings
from exitbench.harness.inspecting.parameters import (
    Parameters,
    Sketch,
    Stored,
    conversion,
    count_parameters,
    read_stored,
)
from exitbench.harness.reading.regular_files import is_file, read_json
from exitbench.methods.base import Parts

CONTEXT: Final = 1000
"""Tokens before the one whose cost is told, where the model has so many positions."""
T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """What a model is made of.

    Attributes:
        decoder_blocks: L.
        encoder_blocks: 0 of a decoder-only model.
        width: Of the residual stream.
        heads: Of queries; 0 where the configuration has none.
        kv_heads: Of keys and values.
        head_size: Their width.
        vocabulary: Rows of the LM head.
        positions: Tokens that prompt and answer may have together; None where there is no end.
        parameters: By part.
    """

    decoder_blocks: int
    encoder_blocks: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    positions: int | None
    parameters: Parameters


@dataclass(frozen=True)
class Tokens:
    """Special tokens and tokenizer; None where there is none.

    Attributes:
        start_id: First token of an encoder-decoder's answer.
        end_ids: Tokens that end an answer; None where that is not known.
        tokenizer: Class.
        n_tokens: Its tokens.
        has_chat_template: Whether it brings one.
    """

    start_id: int | None
    end_ids: tuple[int, ...] | None
    tokenizer: str | None
    n_tokens: int | None
    has_chat_template: bool | None


@dataclass(frozen=True)
class TrainedHeads:
    """Trained exit heads: their kind, the blocks that have one, and all their parameters."""

    kind: str
    blocks: tuple[int, ...]
    numel: int


@dataclass(frozen=True)
class Work:
    """What one token reads at full depth, in numbers: as many bytes as a number has, times.

    Attributes:
        context: Tokens before it, of the answer's own text.
        source: Tokens of an encoder-decoder's source.
        block_weights: Weights of one block.
        head_weights: Weights of the LM head.
        kv_per_token: Keys and values that one token leaves in all blocks.
        is_counted: False where the configuration tells it, and no engine has counted.
        methods: Every method with its default parameters.
        kv_policies: Every KV policy.
        refused_choices: Values of parameters that the engine cannot run, by the reason.
    """

    context: int
    source: int
    block_weights: float
    head_weights: int
    kv_per_token: int
    is_counted: bool
    methods: tuple[Asking, ...]
    kv_policies: tuple[Skipping, ...]
    refused_choices: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Inspection:
    """What is known of a checkpoint; None stands for what could not be found out, and ``lacks`` says why.

    Attributes:
        folder: Where it lies.
        family: Its model_type, as config.json says.
        model_class: Class of transformers.
        engines: The one chosen, then the other.
        lacks: What keeps it from being run, each in the words of what refused it.
        convert: A command that converts its pickle.
        remarks: What is not wrong but should be known.
    """

    folder: str
    family: str | None
    model_class: str | None
    engines: tuple[Tried, ...]
    shape: Shape | None
    tokens: Tokens
    stored: Stored | None
    exit_heads: TrainedHeads | None
    work: Work | None
    lacks: tuple[str, ...]
    convert: str | None
    remarks: tuple[str, ...]


class _Found:
    """Looks for one thing after the other; what is refused is kept, each message once."""

    def __init__(self) -> None:
        self.lacks: list[str] = []

    def out(self, look: Callable[[], T]) -> T | None:
        """Return what is looked for; None where it is refused."""
        try:
            return look()
        except UserError as refusal:
            self.add(str(refusal))
            return None

    def add(self, message: str) -> None:
        """Keep a refusal."""
        if message not in self.lacks:
            self.lacks.append(message)


def inspect_folder(folder: Path, engine: EngineChoice = "auto", context: int | None = None) -> Inspection:
    """Find out what a checkpoint is and what can be run on it. No pickle is opened, and no code of the folder run.

    Args:
        folder: The checkpoint.
        engine: What is to run it, as a suite says it.
        context: Tokens before the one whose cost is told; None: `CONTEXT`, or as many as the model has positions.

    Raises:
        UserError: The folder holds no config.json that can be read, or the model has fewer positions.
    """
    path = folder / CONFIG
    if not is_file(path):
        raise UserError(not_a_checkpoint(folder))
    raw, found = read_json(path), _Found()
    is_known = found.out(lambda: read_config(folder)) is not None
    stored = found.out(lambda: read_stored(folder))
    engines, checkpoint = try_engines(folder, raw, engine, stored.numel) if is_known and stored else ((), None)
    if engines and engines[0].why_not is not None:
        found.add(engines[0].why_not)
    sketch, shape = _described(folder, raw, checkpoint, found)
    tokens = _tokens(folder, raw, checkpoint, shape, found)
    is_seq2seq = sketch is not None and sketch.stack.encoder is not None
    auto_class = "AutoModelForSeq2SeqLM" if is_seq2seq else "AutoModelForCausalLM"
    family = raw.get("model_type")
    return Inspection(
        folder=str(folder),
        family=family if isinstance(family, str) else None,
        model_class=None if sketch is None else type(sketch.stack.lm).__name__,
        engines=engines,
        shape=shape,
        tokens=tokens,
        stored=stored,
        exit_heads=None if sketch is None or sketch.exit_heads is None else _told(sketch.exit_heads),
        work=None if sketch is None else _work(sketch, checkpoint, engines, context),
        lacks=tuple(found.lacks),
        convert=None if stored else conversion(folder, auto_class, has_tokenizer=tokens.tokenizer is not None),
        remarks=checkpoint_remarks(folder) if stored else (),
    )


def _described(
    folder: Path, raw: dict[str, Any], checkpoint: Checkpoint | None, found: _Found
) -> tuple[Sketch, Shape] | tuple[None, None]:
    """The model as loaded, or as config.json alone describes it; nothing where transformers cannot make one."""
    try:
        with tried(str(raw.get("model_type"))):
            model = None if checkpoint is None else checkpoint.model
            stack = model.stack if isinstance(model, HostedTransformer) else find_stack(skeleton(folder, raw))
            sketch = Sketch(stack, found.out(lambda: _exit_heads(folder, stack)))
            return sketch, _shape(sketch, checkpoint)
    except UserError:  # said already by whatever tried to load it
        return None, None


def _exit_heads(folder: Path, stack: Stack) -> ExitHeads | None:
    vocabulary, width = stack.head.weight.shape
    return load_exit_heads(folder, len(stack.blocks), width, vocabulary, device="meta")


def _told(heads: ExitHeads) -> TrainedHeads:
    return TrainedHeads(heads.kind, heads.blocks, sum(tensor.numel() for tensor in heads.tensors.values()))


def _shape(sketch: Sketch, checkpoint: Checkpoint | None) -> Shape:
    model = sketch if checkpoint is None else checkpoint.model
    parameters = count_parameters(sketch.stack)
    if isinstance(model, Transformer):  # reads tensors by their names, and a head of its own where there is one
        is_tied = model.lm_head.weight is model.weights.token_embedding_VD
        parameters = replace(parameters, head=0 if is_tied else model.lm_head.weight.numel())
    return Shape(
        decoder_blocks=model.n_blocks,
        encoder_blocks=sketch.stack.encoder_blocks,
        width=model.d_model,
        heads=sketch.heads,
        kv_heads=sketch.kv_heads,
        head_size=sketch.head_size,
        vocabulary=model.vocab_size,
        positions=model.max_positions,
        parameters=parameters,
    )


def _tokens(
    folder: Path, raw: dict[str, Any], checkpoint: Checkpoint | None, shape: Shape | None, found: _Found
) -> Tokens:
    tokenizer = found.out(lambda: load_tokenizer(folder))
    if tokenizer is not None and shape is not None:
        found.out(lambda: check_vocabulary(folder, tokenizer, shape.vocabulary))
    return Tokens(
        start_id=None if checkpoint is None else checkpoint.start_id,
        end_ids=None if checkpoint is None else tuple(sorted(checkpoint.eos_ids)),
        tokenizer=None if tokenizer is None else type(tokenizer).__name__,
        n_tokens=None if tokenizer is None else len(tokenizer),
        has_chat_template=None if tokenizer is None else bool(tokenizer.chat_template),
    )


def _work(sketch: Sketch, checkpoint: Checkpoint | None, engines: tuple[Tried, ...], context: int | None) -> Work:
    """What is counted where an engine has proved the model, and else what its configuration tells."""
    model: Costed = sketch
    why_not: WhyNot = _nothing_known
    if checkpoint is not None and engines[0].is_proved:
        model, why_not = checkpoint.model, checkpoint.model.why_not
    positions = sketch.max_positions
    if context is not None and positions is not None and context > positions:
        raise UserError(f"--context is {context}; allowed: at most {positions}, the positions of the model.")
    tokens = context if context is not None else min(CONTEXT, positions or CONTEXT)
    place = TokenPlace(tokens, 0 if sketch.stack.encoder is None else tokens)
    return Work(
        context=place.context,
        source=place.source,
        block_weights=model.block_cost(TokenPlace(0, 0)).read_numel,
        head_weights=model.vocab_size * model.d_model,
        kv_per_token=2 * model.kv_width * model.n_blocks,
        is_counted=model is not sketch,
        methods=askings(model, place, why_not),
        kv_policies=skippings(model, place, why_not),
        refused_choices=refused_choices(model, why_not),
    )


def _nothing_known(parts: Parts, n_rows: int) -> str | None:
    return None


_SHARE: Final = 0.5
"""Of the memory that is left, for weights in float32."""
_FLOAT32_BYTES: Final = 4


@dataclass(frozen=True)
class Tried:
    """What came of trying an engine.

    Attributes:
        engine: Which.
        why_not: Its own words where it refuses; None where it runs the model.
        is_proved: Whether what it computes is known to be right: of the lean engine always, of the hosted one where
            weights were loaded.
    """

    engine: EngineName
    why_not: str | None
    is_proved: bool


def try_engines(
    folder: Path, raw: dict[str, Any], choice: EngineChoice, numel: int
) -> tuple[tuple[Tried, ...], Checkpoint | None]:
    """Try the engine that is chosen, and whether the other would read the checkpoint.

    Args:
        folder: The checkpoint.
        raw: Its config.json.
        choice: As a suite says it.
        numel: Numbers in its files.

    Returns:
        The engine that runs it and the other, and what the first loaded; None where it refuses.
    """
    try:
        chosen = engine_for(folder / CONFIG, raw, choice)
    except UserError:  # a family that the lean engine does not have: it says so again where it is tried
        chosen = "lean"
    available = available_bytes("cpu")
    fits = available is None or numel * _FLOAT32_BYTES <= _SHARE * available
    first, checkpoint = _try(folder, chosen, "cpu" if chosen == "hosted" and fits else "meta")
    is_other_hosted = chosen == "lean"
    falls_back = is_other_hosted and choice == "auto" and checkpoint is None
    other, fallback = _try(folder, "hosted" if is_other_hosted else "lean", "cpu" if falls_back and fits else "meta")
    if falls_back and fallback is not None:
        return (other, first), fallback
    return (first, other), checkpoint


def _try(folder: Path, engine: EngineName, device: str) -> tuple[Tried, Checkpoint | None]:
    try:
        checkpoint = load_checkpoint(folder, device=device, engine=engine)
    except UserError as refusal:
        return Tried(engine, str(refusal), False), None
    is_proved = not isinstance(checkpoint.model, HostedTransformer) or device != "meta"
    return Tried(engine, None, is_proved), checkpoint
