"""Small decoder with random weights on which methods are tried: its prompts, answers and states.

A method is watched while it is tried: what its gate returns, and whether it changes tensors it was shown.

Shape suffixes: A rows still running at a block, K columns of the head, L blocks, N tokens, D model width.
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
from exitbench.methods.base import BlockView, Cost, FitData, Gate, Head, Method, Model, Parts, Reading, argmax_token
from exitbench.methods.offline import score_states

Kept = list[tuple[str, Tensor, Tensor]]
"""What was shown, itself, and as it was."""


class Breach(Exception):
    """What a gate did that it must not, in words."""


def watched(parts: Parts) -> Parts:
    """Return parts that do the same, and raise Breach where a score is none or something shown was changed."""
    read: Kept = []
    return dataclasses.replace(parts, gate=_watched_gate(parts.gate, read), head=_watched_head(parts.head, read))


def _watched_gate(gate: Gate, read: Kept) -> Gate:
    class Watched(Gate):
        needs_history = gate.needs_history
        looks_ahead = gate.looks_ahead

        @property
        def chooses_from_logits(self) -> bool:
            return gate.chooses_from_logits

        def score(self, view: BlockView) -> Tensor:
            shown = _shown(view)
            read.clear()
            score_A = gate.score(view)
            _check_score(score_A, view)
            _check_unchanged("score()", view, [*shown, *read])
            return score_A

        def choose(self, view: BlockView) -> Tensor:
            shown = _shown(view)
            token_A = gate.choose(view)
            _check_shape("choose() must return one token a row", token_A, len(view.positions_A))
            _check_unchanged("choose()", view, shown)
            return token_A

        def score_sql(self, asked: Sequence[int]) -> str | None:
            return gate.score_sql(asked)

        def cost(self, model: Model, asked: Sequence[int]) -> Cost:
            return gate.cost(model, asked)

    return Watched()


def _watched_head(head: Head, read: Kept) -> Head:
    """The head, which keeps what it says: the gate is given it while it scores."""

    class Watched(Head):
        reads_vocabulary = head.reads_vocabulary

        def read(self, view: BlockView) -> Reading:
            reading = head.read(view)
            read.append(("view.logits_AK", reading.logits_AK, reading.logits_AK.clone()))
            return reading

        def earlier_logits(self, view: BlockView, block: int) -> Tensor:
            logits_AK = head.earlier_logits(view, block)
            read.append((f"view.earlier_logits({block})", logits_AK, logits_AK.clone()))
            return logits_AK

        def cost(self, model: Model, rows: float) -> Cost:
            return head.cost(model, rows)

    return Watched()


def _check_score(score_A: object, view: BlockView) -> None:
    _check_shape("score() must return one number a row", score_A, len(view.positions_A))
    assert isinstance(score_A, Tensor)
    if not score_A.is_floating_point():
        raise Breach(f"score() must return floating-point numbers, got {score_A.dtype}; `.float()` makes them so")
    if not bool(score_A.isfinite().all()):
        raise Breach(f"score() must return finite numbers, got {score_A.tolist()} at block {view.block}")
    for name, value in view.memory.items():
        if value.ndim == 0 or len(value) != len(score_A):
            raise Breach(
                f"view.memory[{name!r}] must have one row a running row: [A, ...] = [{len(score_A)}, ...], "
                f"got {list(value.shape)}"
            )


def _check_shape(rule: str, value: object, n_rows: int) -> None:
    if not isinstance(value, Tensor):
        raise Breach(f"{rule}: a tensor [A] = [{n_rows}], got {type(value).__name__}")
    if value.shape != (n_rows,):
        raise Breach(f"{rule}: [A] = [{n_rows}], got {list(value.shape)}")


def _check_unchanged(by: str, view: BlockView, shown: Kept) -> None:
    now = {name: tensor for name, tensor, _ in _shown(view)}
    for name, tensor, before in shown:
        if now.get(name, tensor) is not tensor or not torch.equal(tensor, before):
            raise Breach(f"{by} changes {name} at block {view.block}: what it is shown is not its own")


def _shown(view: BlockView) -> Kept:
    """What the view shows, and would show others after it."""
    tensors = {"view.hidden_AD": view.hidden_AD, "view.previous_score_A": view.previous_score_A}
    tensors |= {"view.ahead_LAD": view.ahead_LAD}
    tensors |= {f"view.state({block})": state_AD for block, state_AD in enumerate(view.earlier)}
    return [(name, tensor, tensor.clone()) for name, tensor in tensors.items() if tensor is not None]


WIDTH, HEADS, VOCABULARY, MAX_NEW_TOKENS = 16, 2, 40, 6
ANSWERED = [[2 + (7 * row + 3 * place) % 37 for place in range(1 + row % 5)] for row in range(32)]
PROMPTS = ANSWERED[:8]
_DRAWN = torch.randint(2, VOCABULARY, (len(ANSWERED), MAX_NEW_TOKENS), generator=torch.Generator().manual_seed(1))
ANSWERS: list[list[int]] = _DRAWN.tolist()
"""What the decoder is made to read after the prompts of `ANSWERED` where states are looked at; of one length."""


@dataclass(frozen=True)
class Shape:
    """What a method's parameters may depend on: decoder blocks L, and after which of them there are exit heads."""

    n_blocks: int = 6
    exit_blocks: tuple[int, ...] = (2, 4)


USUAL = Shape()


class Trial:
    """A method with its parameters, fitted where it asks for that, on the random decoder."""

    def __init__(self, method: Method, shape: Shape, strength: float = 1.0) -> None:
        self.shape, self.n_blocks = shape, shape.n_blocks
        self.checkpoint = random_checkpoint(shape, strength)
        self.model = self.checkpoint.model
        self.method = method.bound_to(self.model.exit_blocks)
        self.fitted = self._fit()
        self.plain = self.method.parts(self.n_blocks, self.fitted)
        """The parts as the method gives them; every check but that of costs asks through a watch (`parts`)."""
        self.parts = watched(self.plain)

    @property
    def asked(self) -> list[int]:
        """The blocks at which the gate is asked."""
        return self.plain.asked(self.n_blocks)

    @property
    def first_exit(self) -> int:
        """The least number of blocks after which a token can leave."""
        return min([*self.asked, self.n_blocks])

    def fresh(self) -> Parts:
        """The parts made anew from the parameters as they are written, as another process would."""
        made = type(self.method).from_params(self.method.params()).bound_to(self.model.exit_blocks)
        return watched(made.parts(self.n_blocks, self.fitted))

    def answers(self, parts: Parts, prompts: list[list[int]] = PROMPTS, first_seed: int = 0) -> list[Generation]:
        """What the method answers to prompts together."""
        requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts, first_seed)]
        return decode(self.checkpoint, prefill(self.model, requests, MAX_NEW_TOKENS), parts)

    @functools.cached_property
    def states_LND(self) -> Tensor:
        """States of the tokens of `ANSWERS`, row by row."""
        with torch.no_grad():
            return states_of(self.checkpoint, ANSWERED, ANSWERS)

    @functools.cached_property
    def final_token_N(self) -> Tensor:
        """What the last block says of each."""
        return argmax_token(self.model.logits(self.states_LND[-1]))

    def scored(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """Scores (NaN where the gate is not asked) and the tokens that would be emitted, [L, N] each."""
        n_tokens = self.states_LND.shape[1]
        scores_LN = torch.empty(self.n_blocks, n_tokens)
        emitted_LN = torch.empty(scores_LN.shape, dtype=torch.long)
        for position, at_N in self.positions():
            scores_LN[:, at_N], emitted_LN[:, at_N] = score_states(
                parts, self.model, self.states_LND[:, at_N], position=position, seeds_N=range(len(at_N))
            )
        return scores_LN, emitted_LN

    def positions(self) -> Iterator[tuple[int, Tensor]]:
        """Every position of the answers, from 1, and which of the N tokens stand there, one a row."""
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
    """A small encoder-decoder with exit heads; random weights, so that its answers mean nothing.

    Args:
        shape: Its blocks and exit heads.
        strength: What six blocks add to the residual stream is multiplied with it. The less blocks add, the more often
            does an early one already say what the last one will, above all where it is sure of it.
    """
    generator = torch.Generator().manual_seed(3)
    strength *= (6 / shape.n_blocks) ** 0.5

    def linear(out: int, width: int, scale: float = 1.0) -> Linear:
        return Linear(torch.randn(out, width, generator=generator) * (scale * width**-0.5))

    def block() -> BlockWeights:
        qkv, out = linear(3 * WIDTH, WIDTH), linear(WIDTH, WIDTH, strength)
        up, down = linear(2 * WIDTH, WIDTH), linear(WIDTH, 2 * WIDTH, strength)
        cross = (linear(WIDTH, WIDTH), linear(2 * WIDTH, WIDTH), linear(WIDTH, WIDTH, strength))
        return BlockWeights(qkv, out, up, down, *cross)

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
