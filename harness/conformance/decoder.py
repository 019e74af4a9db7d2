"""Small decoder with random weights for conformance checks, with fixed prompts and answers; and monitoring of methods.

Two things are monitored during the checks: the values that a method's gate returns, and modifications of input tensors.

Shape suffixes: A batch rows still running at a block, K columns of the head, L blocks, N tokens, D hidden size.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exitbench.harness.engine.checkpoints.exit_head_files import new_exit_heads
from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.probe import states_of
from exitbench.harness.engine.model.exit_heads import ExitHeads
from exitbench.harness.engine.model.model import Transformer
from exitbench.harness.engine.model.weights import Architecture, BlockWeights, Linear, Weights
from exitbench.methods.base import (
    BlockView,
    Cost,
    FitData,
    Gate,
    Head,
    Method,
    ModelInterface,
    Parts,
    Reading,
    argmax_token,
)
from exitbench.methods.offline import score_states

TensorSnapshots = list[tuple[str, Tensor, Tensor]]
"""Tensors passed to a method: (name, tensor, copy from before the call)."""


class Breach(Exception):
    """Raised if a gate or head violates a contract during the checks; the message describes the violation."""


def monitored(parts: Parts) -> Parts:
    """Return a method's parts, wrapped to raise Breach if the gate returns invalid values or modifies its input.

    Parts are gate, threshold, head and KV policy; gate and head are wrapped.
    """
    read: TensorSnapshots = []
    return dataclasses.replace(parts, gate=_monitored_gate(parts.gate, read), head=_monitored_head(parts.head, read))


def _monitored_gate(gate: Gate, read: TensorSnapshots) -> Gate:
    class MonitoredGate(Gate):
        needs_history = gate.needs_history
        looks_ahead = gate.looks_ahead
        remembers = gate.remembers

        @property
        def chooses_from_logits(self) -> bool:
            return gate.chooses_from_logits

        def score(self, view: BlockView) -> Tensor:
            snapshots = _snapshot(view)
            read.clear()
            score_A = gate.score(view)
            _check_score(score_A, view)
            _check_unchanged("score()", view, [*snapshots, *read])
            return score_A

        def choose(self, view: BlockView) -> Tensor:
            snapshots = _snapshot(view)
            token_A = gate.choose(view)
            _check_shape("choose() must return one token a row", token_A, len(view.positions_A))
            _check_unchanged("choose()", view, snapshots)
            return token_A

        def draft(self, view: BlockView) -> Tensor | None:
            snapshots = _snapshot(view)
            token_A = gate.draft(view)
            if token_A is not None:
                _check_shape("draft() must return one token a row", token_A, len(view.positions_A))
            _check_unchanged("draft()", view, snapshots)
            return token_A

        def start_answers(self, n_rows: int, device: torch.device) -> dict[str, Tensor]:
            return gate.start_answers(n_rows, device)

        def remember(self, view: BlockView, token_A: Tensor) -> None:
            snapshots = [entry for entry in _snapshot(view) if not entry[0].startswith("view.answer_memory")]
            gate.remember(view, token_A)
            _check_unchanged("remember()", view, snapshots)
            _check_memory("view.answer_memory", view.answer_memory, len(token_A))

        def score_sql(self, gate_blocks: Sequence[int]) -> str | None:
            return gate.score_sql(gate_blocks)

        def cost(self, model: ModelInterface, gate_blocks: Sequence[int]) -> Cost:
            return gate.cost(model, gate_blocks)

        def remember_cost(self, model: ModelInterface, exit_layer: int) -> Cost:
            return gate.remember_cost(model, exit_layer)

    return MonitoredGate()


def _monitored_head(head: Head, read: TensorSnapshots) -> Head:
    """Return a head, wrapped to record its logits in `read`, so that modifications of them by the gate are detected."""

    class MonitoredHead(Head):
        reads_vocabulary = head.reads_vocabulary

        def read(self, view: BlockView) -> Reading:
            reading = head.read(view)
            read.append(("view.logits_AK", reading.logits_AK, reading.logits_AK.clone()))
            return reading

        def earlier_logits(self, view: BlockView, block: int) -> Tensor:
            logits_AK = head.earlier_logits(view, block)
            read.append((f"view.earlier_logits({block})", logits_AK, logits_AK.clone()))
            return logits_AK

        def cost(self, model: ModelInterface, rows: float) -> Cost:
            return head.cost(model, rows)

    return MonitoredHead()


def _check_score(score_A: object, view: BlockView) -> None:
    _check_shape("score() must return one number a row", score_A, len(view.positions_A))
    assert isinstance(score_A, Tensor)
    if not score_A.is_floating_point():
        raise Breach(f"score() must return floating-point numbers, got {score_A.dtype}; `.float()` makes them so")
    if not bool(score_A.isfinite().all()):
        raise Breach(f"score() must return finite numbers, got {score_A.tolist()} at block {view.block}")
    _check_memory("view.memory", view.memory, len(score_A))


def _check_memory(what: str, memory: dict[str, Tensor], n_rows: int) -> None:
    for name, value in memory.items():
        if value.ndim == 0 or len(value) != n_rows:
            raise Breach(
                f"{what}[{name!r}] must have one row a running row: [A, ...] = [{n_rows}, ...], got {list(value.shape)}"
            )


def _check_shape(rule: str, value: object, n_rows: int) -> None:
    if not isinstance(value, Tensor):
        raise Breach(f"{rule}: a tensor [A] = [{n_rows}], got {type(value).__name__}")
    if value.shape != (n_rows,):
        raise Breach(f"{rule}: [A] = [{n_rows}], got {list(value.shape)}")


def _check_unchanged(by: str, view: BlockView, snapshots: TensorSnapshots) -> None:
    now = {name: tensor for name, tensor, _ in _snapshot(view)}
    for name, tensor, before in snapshots:
        if now.get(name, tensor) is not tensor or not torch.equal(tensor, before):
            raise Breach(f"{by} changes {name} at block {view.block}: what it is shown is not its own")


def _snapshot(view: BlockView) -> TensorSnapshots:
    """Return (name, tensor, copy) of all tensors in a gate's input `view`, to detect later that a gate modified one."""
    tensors = {"view.hidden_AD": view.hidden_AD, "view.previous_score_A": view.previous_score_A}
    tensors |= {"view.ahead_LAD": view.ahead_LAD}
    tensors |= {f"view.answer_memory[{name!r}]": value for name, value in view.answer_memory.items()}
    tensors |= {f"view.state({block})": state_AD for block, state_AD in enumerate(view.earlier)}
    return [(name, tensor, tensor.clone()) for name, tensor in tensors.items() if tensor is not None]


WIDTH, HEADS, VOCABULARY, MAX_NEW_TOKENS = 16, 2, 40, 6
ANSWERED = [[2 + (7 * row + 3 * place) % 37 for place in range(1 + row % 5)] for row in range(32)]
PROMPTS = ANSWERED[:8]
_DRAWN = torch.randint(2, VOCABULARY, (len(ANSWERED), MAX_NEW_TOKENS), generator=torch.Generator().manual_seed(1))
ANSWERS: list[list[int]] = _DRAWN.tolist()
"""Teacher-forced answers to the prompts of `ANSWERED`, all of the same length."""


@dataclass(frozen=True)
class Shape:
    """Properties of a model on which the parameters of a method may depend.

    Attributes:
        n_blocks: Number of decoder blocks.
        exit_blocks: Blocks that have a trained exit head.
    """

    n_blocks: int = 6
    exit_blocks: tuple[int, ...] = (2, 4)


USUAL = Shape()


class Trial:
    """A method together with a random decoder on which it is tested; methods that need a fit are fitted to it.

    Args:
        method: The method with its parameters.
        shape: Number of the decoder's blocks, and blocks with an exit head.
        strength: Factor on what each block adds to the residual stream. With a smaller one, early blocks agree more
            often with the last block.
    """

    def __init__(self, method: Method, shape: Shape, strength: float = 1.0) -> None:
        self.shape, self.n_blocks = shape, shape.n_blocks
        self.checkpoint = random_checkpoint(shape, strength)
        self.model = self.checkpoint.model
        self.method = method.bound_to(self.model.exit_blocks)
        self.fitted = self._fit()
        self.plain = self.method.parts(self.n_blocks, self.fitted)
        """The parts as the method returns them. All checks except that of costs use the monitored `parts`."""
        self.parts = monitored(self.plain)

    @property
    def gate_blocks(self) -> list[int]:
        """Blocks at which the method's gate is evaluated."""
        return self.plain.gate_blocks(self.n_blocks)

    @property
    def first_exit(self) -> int:
        """Earliest block after which a token can exit: the first gate block or, if there is none, the last block."""
        return min([*self.gate_blocks, self.n_blocks])

    def fresh(self) -> Parts:
        """Return the method's monitored parts, built again from its parameters as another process would build them."""
        method = type(self.method).from_params(self.method.params()).bound_to(self.model.exit_blocks)
        return monitored(method.parts(self.n_blocks, self.fitted))

    def answers(self, parts: Parts, prompts: list[list[int]] = PROMPTS, first_seed: int = 0) -> list[Generation]:
        """Decode answers to prompts by a method's parts, in one batch; return them with their tokens' exit layers.

        Args:
            parts: Gate, threshold, head and KV policy of a method.
            prompts: Token ids of the prompts.
            first_seed: Seed of the first prompt's random numbers; later prompts have the following seeds.
        """
        requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts, first_seed)]
        return decode(self.checkpoint, prefill(self.model, requests, MAX_NEW_TOKENS), parts)

    @functools.cached_property
    def states_LND(self) -> Tensor:
        """Hidden states of the N tokens of `ANSWERS` after the embedding and every block, [L + 1, N, D].

        They are computed teacher-forced. The tokens of an answer follow each other.
        """
        with torch.no_grad():
            return states_of(self.checkpoint, ANSWERED, ANSWERS)

    @functools.cached_property
    def final_token_N(self) -> Tensor:
        """Most probable token at the last block, for each token of `ANSWERS`."""
        return argmax_token(self.model.logits(self.states_LND[-1]))

    def scored(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """Return gate scores, and the tokens that an exit would emit, at each block for the N tokens of `ANSWERS`.

        Both are [L, N], computed from stored states without decoding. At blocks without a gate, scores are NaN and
        tokens -1; the last block has tokens but no scores.
        """
        n_tokens = self.states_LND.shape[1]
        scores_LN = torch.empty(self.n_blocks, n_tokens)
        emitted_LN = torch.empty(scores_LN.shape, dtype=torch.long)
        for position, at_N in self.positions():
            scores_LN[:, at_N], emitted_LN[:, at_N] = score_states(
                parts, self.model, self.states_LND[:, at_N], position=position, seeds_N=range(len(at_N))
            )
        return scores_LN, emitted_LN

    def positions(self) -> Iterator[tuple[int, Tensor]]:
        """Yield, for each position in an answer (from 1), the position and the indices of its tokens.

        There is one index per answer, among the N tokens of `ANSWERS`.
        """
        starts = torch.tensor([0, *itertools.accumulate(map(len, ANSWERS[:-1]))])
        for place in range(len(ANSWERS[0])):
            yield place + 1, starts + place

    def _fit(self) -> dict[str, Tensor]:
        if not self.method.fit_params():
            return {}
        document_N = torch.arange(len(ANSWERS)).repeat_interleave(len(ANSWERS[0]))
        data = FitData(self.model, self.states_LND, self.final_token_N, torch.tensor(ANSWERS).flatten(), document_N)
        return self.method.fit(data, lambda share: None).tensors


def random_checkpoint(shape: Shape, strength: float = 1.0) -> Checkpoint:
    """Return a small encoder-decoder with exit heads and fixed random weights; its answers are meaningless.

    Args:
        shape: Number of decoder blocks, and blocks with exit heads.
        strength: Factor on what each block adds to the residual stream, normalized to six blocks. With a smaller
            factor, early blocks agree more often with the last block, above all if they are confident.
    """
    generator = torch.Generator().manual_seed(3)
    strength *= (6 / shape.n_blocks) ** 0.5

    def linear(n_outputs: int, width: int, scale: float = 1.0) -> Linear:
        return Linear(torch.randn(n_outputs, width, generator=generator) * (scale * width**-0.5))

    def block() -> BlockWeights:
        qkv, output = linear(3 * WIDTH, WIDTH), linear(WIDTH, WIDTH, strength)
        up, down = linear(2 * WIDTH, WIDTH), linear(WIDTH, 2 * WIDTH, strength)
        cross = (linear(WIDTH, WIDTH), linear(2 * WIDTH, WIDTH), linear(WIDTH, WIDTH, strength))
        return BlockWeights(qkv, output, up, down, *cross)

    arch = Architecture(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        n_heads=HEADS,
        n_kv_heads=HEADS,
        head_dim=WIDTH // HEADS,
        d_ff=2 * WIDTH,
        n_blocks=shape.n_blocks,
        encoder_blocks=1,
        norm="rms",
        norm_eps=1e-6,
        positions="relative",
        activation="relu",
        gated=False,
        attention_scale=1.0,
        relative_buckets=8,
        relative_max_distance=16,
    )
    weights = Weights(
        token_embedding_VD=torch.randn(VOCABULARY, WIDTH, generator=generator),
        lm_head=Linear(torch.randn(VOCABULARY, WIDTH, generator=generator) * 0.6),
        final_norm=Linear(torch.ones(WIDTH)),
        blocks=tuple(block() for _ in range(shape.n_blocks)),
        encoder_blocks=(block(),),
        relative_bias=torch.randn(8, HEADS, generator=generator),
        encoder_relative_bias=torch.randn(8, HEADS, generator=generator),
    )
    tensors = new_exit_heads(
        "linear",
        shape.exit_blocks,
        WIDTH,
        VOCABULARY,
        norm="rms",
        init="scratch",
        final_norm_weight=weights.final_norm.weight,
        final_norm_bias=None,
        lm_head_weight=weights.lm_head.weight,
        hidden_width=WIDTH,
        generator=generator,
    )
    heads = ExitHeads("linear", shape.exit_blocks, tensors) if shape.exit_blocks else None
    model = Transformer(arch, weights, heads)
    return Checkpoint(model, eos_ids=frozenset({1}), start_id=0)
