"""Inspection of a checkpoint: architecture, engines, cost of methods, and reasons why it cannot run."""

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
from exitbench.harness.engine.hosted.proof import as_user_errors
from exitbench.harness.engine.hosted.stack import Stack, find_stack
from exitbench.harness.engine.model.available import available_bytes
from exitbench.harness.engine.model.cost import TokenPlace
from exitbench.harness.engine.model.exit_heads import ExitHeads
from exitbench.harness.engine.model.model import Transformer
from exitbench.harness.inspecting.gate_costs import (
    GateCost,
    HasBlockCost,
    SkipCost,
    WhyNot,
    gate_costs,
    refused_choices,
    skip_costs,
)
from exitbench.harness.inspecting.parameters import (
    Parameters,
    Sketch,
    StoredWeights,
    TrainedHeads,
    conversion,
    count_parameters,
    read_stored,
)
from exitbench.harness.reading.regular_files import is_file, read_json
from exitbench.methods.base import Parts

CONTEXT: Final = 1000
"""Default context length of the token whose cost is reported, unless the model has fewer positions."""
T = TypeVar("T")


@dataclass(frozen=True)
class ArchitectureSummary:
    """Architecture of a model.

    Attributes:
        decoder_blocks: Number of decoder blocks, L.
        encoder_blocks: Number of encoder blocks; 0 for a decoder-only model.
        width: Width of the residual stream.
        heads: Number of query heads; 0 if the configuration has none.
        kv_heads: Number of key/value heads.
        head_size: Width of a head.
        vocabulary: Rows of the LM head.
        positions: Maximum tokens of prompt and answer together; None if unlimited.
        parameters: Number of parameters by part.
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
    """Special tokens and tokenizer of a checkpoint. A missing or unknown value is None.

    Attributes:
        start_id: First decoder token of an encoder-decoder.
        end_ids: Tokens that end an answer; None if unknown.
        tokenizer: Class of the tokenizer.
        n_tokens: Size of the tokenizer's vocabulary.
        has_chat_template: Whether the tokenizer has a chat template.
    """

    start_id: int | None
    end_ids: tuple[int, ...] | None
    tokenizer: str | None
    n_tokens: int | None
    has_chat_template: bool | None


@dataclass(frozen=True)
class TokenCost:
    """Costs of decoding one token.

    Attributes:
        context: Number of preceding tokens that the token attends to.
        source: Number of source tokens that it attends to in an encoder-decoder; 0 for decoder-only models.
        block_weights: Number of weights of one block.
        head_weights: Number of weights of the LM head.
        kv_per_token: Number of elements of keys and values that one token adds to the cache, over all blocks.
        is_counted: True if an engine counted the costs; False if they are derived from the configuration.
        methods: For every method with default parameters, the cost of one gate evaluation relative to one block.
        kv_policies: For every KV policy, the cost of a skipped block's keys and values, relative to running one block.
        refused_choices: For each reason, the parameter values that the engine refuses, as texts ``name = value``.
    """

    context: int
    source: int
    block_weights: float
    head_weights: int
    kv_per_token: int
    is_counted: bool
    methods: tuple[GateCost, ...]
    kv_policies: tuple[SkipCost, ...]
    refused_choices: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Inspection:
    """Facts about a checkpoint. Unknown values are None, with the reasons in ``lacks``.

    Attributes:
        folder: Path of the folder.
        family: The model_type in config.json.
        model_class: The transformers class.
        engines: Whether each engine can run the checkpoint: the chosen engine first.
        shape: Number and sizes of blocks, heads and parameters.
        tokens: Special tokens and tokenizer.
        stored: Weight files.
        exit_heads: Trained exit heads, if there are any.
        work: Costs of decoding one token.
        lacks: Messages of the errors that keep the checkpoint from running.
        convert: A command that converts a pickle checkpoint to safetensors; None if it is not needed.
        remarks: Notes (not errors) about the checkpoint.
    """

    folder: str
    family: str | None
    model_class: str | None
    engines: tuple[Tried, ...]
    shape: ArchitectureSummary | None
    tokens: Tokens
    stored: StoredWeights | None
    exit_heads: TrainedHeads | None
    work: TokenCost | None
    lacks: tuple[str, ...]
    convert: str | None
    remarks: tuple[str, ...]


class _Findings:
    """Collector of error messages during an inspection; each message is stored once."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def collect(self, look: Callable[[], T]) -> T | None:
        """Return the result of the function `look`; if it raises a `UserError`, store its message and return None."""
        try:
            return look()
        except UserError as refusal:
            self.add(str(refusal))
            return None

    def add(self, message: str) -> None:
        """Add a message, unless it is stored already."""
        if message not in self.errors:
            self.errors.append(message)


def inspect_folder(folder: Path, engine: EngineChoice = "auto", context: int | None = None) -> Inspection:
    """Inspect a checkpoint: its architecture, and the engines and methods that can run it.

    Opens no pickle file, and executes no code from the checkpoint.

    Args:
        folder: Folder of the checkpoint.
        engine: Engine to use, as in a suite.
        context: Context length of the token whose cost is reported; None for `CONTEXT`, or for the model's positions if
            it has fewer.

    Raises:
        UserError: The folder has no readable config.json, or the model has fewer positions than `context`.
    """
    path = folder / CONFIG
    if not is_file(path):
        raise UserError(not_a_checkpoint(folder))
    raw, findings = read_json(path), _Findings()
    is_known = findings.collect(lambda: read_config(folder)) is not None
    stored = findings.collect(lambda: read_stored(folder))
    engines, checkpoint = try_engines(folder, raw, engine, stored.numel) if is_known and stored else ((), None)
    if engines and engines[0].why_not is not None:
        findings.add(engines[0].why_not)
    sketch, shape = _described(folder, raw, checkpoint, findings)
    tokens = _tokens(folder, checkpoint, shape, findings)
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
        exit_heads=None if sketch is None else TrainedHeads.of(sketch.exit_heads),
        work=None if sketch is None else _token_cost(sketch, checkpoint, engines, context),
        lacks=tuple(findings.errors),
        convert=None if stored else conversion(folder, auto_class, has_tokenizer=tokens.tokenizer is not None),
        remarks=checkpoint_remarks(folder) if stored else (),
    )


def _described(
    folder: Path, raw: dict[str, Any], checkpoint: Checkpoint | None, findings: _Findings
) -> tuple[Sketch, ArchitectureSummary] | tuple[None, None]:
    """Return a `Sketch` of the checkpoint, from which sizes and costs are computed, and its architecture.

    The sketch has the parts of the hosted engine's model if that is loaded, else of one built from config.json. If that
    fails, return (None, None).
    """
    try:
        with as_user_errors(str(raw.get("model_type"))):
            model = None if checkpoint is None else checkpoint.model
            stack = model.stack if isinstance(model, HostedTransformer) else find_stack(skeleton(folder, raw))
            sketch = Sketch(stack, findings.collect(lambda: _exit_heads(folder, stack)))
            return sketch, _shape(sketch, checkpoint)
    except UserError:  # already reported when loading failed
        return None, None


def _exit_heads(folder: Path, stack: Stack) -> ExitHeads | None:
    vocabulary, width = stack.head.weight.shape
    return load_exit_heads(folder, len(stack.blocks), width, vocabulary, device="meta")


def _shape(sketch: Sketch, checkpoint: Checkpoint | None) -> ArchitectureSummary:
    model = sketch if checkpoint is None else checkpoint.model
    parameters = count_parameters(sketch.stack)
    if isinstance(model, Transformer):  # the lean engine reads tensors by name, including a separate LM head
        is_tied = model.lm_head.weight is model.weights.token_embedding_VD
        parameters = replace(parameters, head=0 if is_tied else model.lm_head.weight.numel())
    return ArchitectureSummary(
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
    folder: Path,
    checkpoint: Checkpoint | None,
    shape: ArchitectureSummary | None,
    findings: _Findings,
) -> Tokens:
    tokenizer = findings.collect(lambda: load_tokenizer(folder))
    if tokenizer is not None and shape is not None:
        findings.collect(lambda: check_vocabulary(folder, tokenizer, shape.vocabulary))
    return Tokens(
        start_id=None if checkpoint is None else checkpoint.start_id,
        end_ids=None if checkpoint is None else tuple(sorted(checkpoint.eos_ids)),
        tokenizer=None if tokenizer is None else type(tokenizer).__name__,
        n_tokens=None if tokenizer is None else len(tokenizer),
        has_chat_template=None if tokenizer is None else bool(tokenizer.chat_template),
    )


def _token_cost(
    sketch: Sketch, checkpoint: Checkpoint | None, engines: tuple[Tried, ...], context: int | None
) -> TokenCost:
    """Return a token's decoding cost, counted by an engine with verified results or derived from the configuration."""
    model: HasBlockCost = sketch
    why_not: WhyNot = _nothing_known
    if checkpoint is not None and engines[0].is_proved:
        model, why_not = checkpoint.model, checkpoint.model.why_not
    positions = sketch.max_positions
    if context is not None and positions is not None and context > positions:
        raise UserError(f"--context is {context}; allowed: at most {positions}, the positions of the model.")
    tokens = context if context is not None else min(CONTEXT, positions or CONTEXT)
    place = TokenPlace(tokens, 0 if sketch.stack.encoder is None else tokens)
    return TokenCost(
        context=place.context,
        source=place.source,
        block_weights=model.block_cost(TokenPlace(0, 0)).read_numel,
        head_weights=model.vocab_size * model.d_model,
        kv_per_token=2 * model.kv_width * model.n_blocks,
        is_counted=model is not sketch,
        methods=gate_costs(model, place, why_not),
        kv_policies=skip_costs(model, place, why_not),
        refused_choices=refused_choices(model, why_not),
    )


def _nothing_known(parts: Parts, n_rows: int) -> str | None:
    return None


_MEMORY_SHARE: Final = 0.5
"""Maximum share of the available memory that float32 weights may use."""
_FLOAT32_BYTES: Final = 4


@dataclass(frozen=True)
class Tried:
    """Result of trying an engine on a checkpoint.

    Attributes:
        engine: Name of the engine.
        why_not: Error message if the engine cannot run the model, else None.
        is_proved: Whether the engine is known to compute what transformers does: always for the lean engine, for the
            hosted engine only if weights were loaded, so that outputs could be compared.
    """

    engine: EngineName
    why_not: str | None
    is_proved: bool


def try_engines(
    folder: Path, raw: dict[str, Any], choice: EngineChoice, numel: int
) -> tuple[tuple[Tried, ...], Checkpoint | None]:
    """Try the chosen engine, and check whether the other engine could read the checkpoint.

    Args:
        folder: Folder of the checkpoint.
        raw: Content of its config.json.
        choice: Engine choice, as in a suite.
        numel: Number of elements in its weight files.

    Returns:
        The results of the used engine and of the other, and the checkpoint loaded by the used engine (None if it
        fails).
    """
    try:
        chosen = engine_for(folder / CONFIG, raw, choice)
    except UserError:  # a family that the lean engine does not support, which `_try` reports
        chosen = "lean"
    available = available_bytes("cpu")
    fits = available is None or numel * _FLOAT32_BYTES <= _MEMORY_SHARE * available
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
