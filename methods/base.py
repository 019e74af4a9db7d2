"""What a method is made of: gate x threshold x head x KV policy.

Shape suffixes: A rows still running at a block, B rows of the batch, D model width, V vocabulary, L blocks.
Blocks are numbered 1..L; an exit layer is the number of blocks executed.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, Self, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from exitbench.errors import UserError, suggestion


class Model(Protocol):
    """What a method may know of the model it runs on."""

    @property
    def n_blocks(self) -> int:
        """Decoder blocks, L."""

    @property
    def d_model(self) -> int:
        """Width of the residual stream, D."""

    @property
    def kv_width(self) -> int:
        """Width of the keys (and of the values) of one block: KV heads times head size."""

    @property
    def vocab_size(self) -> int:
        """Rows of the LM head, V."""

    @property
    def exit_blocks(self) -> tuple[int, ...]:
        """Blocks with a trained exit head, ascending; () without."""

    def exit_logits(self, block: int, hidden_AD: Tensor) -> Tensor:
        """The trained exit head of a block: states [A, D] to logits [A, V]."""

    def exit_head_numel(self, block: int) -> int:
        """Weights that one read-out with the exit head of a block multiplies."""

    def final_normed(self, hidden: Tensor) -> Tensor:
        """The model's final norm of states [..., D]."""

    def logits(self, hidden_AD: Tensor) -> Tensor:
        """Final norm and LM head: states [A, D] to logits [A, V]."""

    def head_weights(self, ids_AK: Tensor) -> Tensor:
        """Rows of the LM head, [A, K, D] (width D + 1 if the head has a bias)."""

    def logits_of(self, hidden_AD: Tensor, weights_AKD: Tensor) -> Tensor:
        """Final norm and only these rows of the LM head: logits [A, K]."""


class DecoderCache(Protocol):
    """What a KV policy may do to the keys and values of the token being decoded."""

    def fill_from_state(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Have keys and values of blocks block+1..L projected from the same state [A, D], as the step ends.

        What is written there before, by `run_rest` say, is overwritten. Deeper exits of a step come later.
        """

    def run_rest(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> Tensor:
        """Run blocks block+1..L, which writes their exact keys and values; returns the state after block L."""

    def defer(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Write nothing now: later tokens that run deeper blocks first complete this one (`KVPolicy.deferred`)."""


@dataclass(frozen=True)
class Cost:
    """Work of one row: matrix products (a multiply-add counts two), the rest apart, and numbers read from memory."""

    matmul_flops: float = 0.0
    elementwise_flops: float = 0.0
    read_numel: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.matmul_flops + other.matmul_flops,
            self.elementwise_flops + other.elementwise_flops,
            self.read_numel + other.read_numel,
        )

    def __mul__(self, times: float) -> Cost:
        return Cost(self.matmul_flops * times, self.elementwise_flops * times, self.read_numel * times)


class BlockView:
    """What a method sees after one block, for the A rows that are still running.

    Attributes:
        block: Blocks executed so far, 1..L.
        positions_A: 1 for the first generated token of a row; rows differ where drafts of some were cut.
        max_new_tokens: Longest answer allowed, N of the position-decayed thresholds.
        hidden_AD: Output of the block (residual stream, not normalised).
        seeds_A: One fixed random seed a row, the same in every batch.
        memory: What the method remembers of this token's earlier blocks. Every tensor has leading dimension A; the
            decode loop drops the rows that exit. Empty at block 1 of every token.
        earlier: States [A, D] after blocks 0 (the embedding) to block-1, only if the gate asked for the history.
        previous_score_A: Score at the block asked before; None at the first.
        ahead_LAD: States after every block, only if the gate asked to look ahead.
        waiting_A: Earlier tokens of each row whose skipped blocks wait (`KVPolicy.deferred`).
        head_rows: Rows of the LM head multiplied through this view, one number or [A].
    """

    def __init__(
        self,
        *,
        block: int,
        positions_A: tuple[int, ...],
        max_new_tokens: int,
        hidden_AD: Tensor,
        seeds_A: tuple[int, ...],
        memory: dict[str, Tensor],
        model: Model,
        head: Head,
        earlier: Sequence[Tensor] = (),
        previous_score_A: Tensor | None = None,
        ahead_LAD: Tensor | None = None,
        waiting_A: tuple[int, ...] = (),
    ) -> None:
        self.block = block
        self.positions_A = positions_A
        self.max_new_tokens = max_new_tokens
        self.hidden_AD = hidden_AD
        self.seeds_A = seeds_A
        self.memory = memory
        self.model = model
        self.earlier = earlier
        self.previous_score_A = previous_score_A
        self.ahead_LAD = ahead_LAD
        self.waiting_A = waiting_A
        self.head_rows: int | Tensor = 0
        self._head = head
        self._read: Reading | None = None

    @property
    def logits_AK(self) -> Tensor:
        """Logits of the method's head, computed once however often gate and emission ask."""
        return self._reading().logits_AK

    @property
    def ids_AK(self) -> Tensor | None:
        """Token ids behind the columns of `logits_AK`; None where the head reads the whole vocabulary."""
        return self._reading().ids_AK

    @property
    def is_last(self) -> bool:
        """Whether no block is left."""
        return self.block == self.model.n_blocks

    def state(self, block: int) -> Tensor:
        """State after an earlier block (0: the embedding) or this one, [A, D]."""
        return self.hidden_AD if block == self.block else self.earlier[block]

    def earlier_logits(self, block: int) -> Tensor:
        """Logits of an earlier block over the same ids as `logits_AK`; each is computed once a token."""
        self._reading()
        return self._head.earlier_logits(self, block)

    def token(self, index_A: Tensor) -> Tensor:
        """Token ids [A] of chosen columns [A]."""
        ids_AK = self.ids_AK
        return index_A if ids_AK is None else ids_AK.gather(1, index_A[:, None])[:, 0]

    def best(self, value_AK: Tensor) -> Tensor:
        """Token ids [A] with the highest value of the columns of `logits_AK`; the lowest id wins a tie."""
        ids_AK = self.ids_AK
        if ids_AK is None:
            return argmax_token(value_AK)
        # Columns may stand by rank.
        return ids_AK.masked_fill(value_AK < value_AK.amax(-1, keepdim=True), self.model.vocab_size).amin(-1)

    def rows(self, places: Sequence[int], places_A: Tensor) -> BlockView:
        """The same block seen by the rows at some places, which ``places_A`` are on the device."""
        before_A, ahead_LAD = self.previous_score_A, self.ahead_LAD
        view = BlockView(
            block=self.block,
            positions_A=tuple(self.positions_A[at] for at in places),
            max_new_tokens=self.max_new_tokens,
            hidden_AD=self.hidden_AD.index_select(0, places_A),
            seeds_A=tuple(self.seeds_A[at] for at in places),
            memory={name: value.index_select(0, places_A) for name, value in self.memory.items()},
            model=self.model,
            head=self._head,
            earlier=[state.index_select(0, places_A) for state in self.earlier],
            previous_score_A=None if before_A is None else before_A.index_select(0, places_A),
            ahead_LAD=None if ahead_LAD is None else ahead_LAD.index_select(1, places_A),
            waiting_A=tuple(self.waiting_A[at] for at in places),
        )
        if (read := self._read) is not None:
            ids_AK = None if read.ids_AK is None else read.ids_AK.index_select(0, places_A)
            view._read = Reading(read.logits_AK.index_select(0, places_A), ids_AK)
        return view

    def at_full_depth(self, hidden_AD: Tensor) -> BlockView:
        """The view of the last block, for rows whose state there is known."""
        return BlockView(
            block=self.model.n_blocks,
            positions_A=self.positions_A,
            max_new_tokens=self.max_new_tokens,
            hidden_AD=hidden_AD,
            seeds_A=self.seeds_A,
            memory=self.memory,
            model=self.model,
            head=self._head,
        )

    @classmethod
    def joined(cls, views: Sequence[BlockView]) -> BlockView:
        """What rows of several views have in common that left after different blocks: states, positions and seeds."""
        first = views[0]
        return cls(
            block=first.model.n_blocks,
            positions_A=tuple(itertools.chain(*(view.positions_A for view in views))),
            max_new_tokens=first.max_new_tokens,
            hidden_AD=torch.cat([view.hidden_AD for view in views]),
            seeds_A=tuple(itertools.chain(*(view.seeds_A for view in views))),
            memory={},
            model=first.model,
            head=first._head,
        )

    @property
    def is_read(self) -> bool:
        """Whether logits have been asked for."""
        return self._read is not None

    def _reading(self) -> Reading:
        if self._read is None:
            self._read = self._head.read(self)
        return self._read


@dataclass(frozen=True)
class Reading:
    """Logits [A, K] and the token ids of their columns; ids None means the whole vocabulary, K = V."""

    logits_AK: Tensor
    ids_AK: Tensor | None = None


class Gate(ABC):
    """Computes a confidence score at a block; higher is more confident."""

    needs_history: ClassVar[bool] = False
    """Whether scoring reads the states of earlier blocks (`BlockView.earlier`)."""
    looks_ahead: ClassVar[bool] = False
    """Whether the gate must see all blocks first (oracles): the full depth is run, nothing is saved."""
    decides: ClassVar[bool] = True
    """Whether a token's exit depends on its score; False: on the blocks at which the gate is asked alone."""

    @property
    def chooses_from_logits(self) -> bool:
        """Whether `choose` looks at logits, seeds and positions only.

        Rows that left after different blocks are then read out together. False for every other `choose` that does not
        say so itself.
        """
        return type(self).choose is Gate.choose

    @abstractmethod
    def score(self, view: BlockView) -> Tensor:
        """Return the confidence of each running row, [A]."""

    def choose(self, view: BlockView) -> Tensor:
        """Return the token that each row emits, [A]: by default the most probable one."""
        return view.best(view.logits_AK)

    def score_sql(self, asked: Sequence[int]) -> str | None:
        """The score at block ``l`` as SQL over one row of a probe, for replays; None if a probe cannot tell.

        Args:
            asked: The blocks at which the gate is asked, ascending.
        """
        return None

    def cost(self, model: Model, asked: Sequence[int]) -> Cost:
        """Work of one token whose gate was asked at these blocks (ascending), rows of the LM head apart."""
        return Cost()


class Threshold(ABC):
    """What a score is compared with: a row exits where score > value."""

    @abstractmethod
    def value(self, block: int, position: int, max_new_tokens: int) -> float:
        """Return the threshold for this block and position (1 = first generated token)."""

    @abstractmethod
    def sql(self, max_new_tokens: int) -> str:
        """The same as SQL over the probe columns ``position`` and the block ``l``."""


class Head(ABC):
    """Turns states into logits, of the whole vocabulary or of a part of it."""

    reads_vocabulary: ClassVar[bool] = True
    """Whether every block is read out over the whole vocabulary with the model's own head (as a probe does)."""

    @abstractmethod
    def read(self, view: BlockView) -> Reading:
        """Return logits at this block, and add the rows multiplied to ``view.head_rows``."""

    @abstractmethod
    def earlier_logits(self, view: BlockView, block: int) -> Tensor:
        """Return logits [A, K] of an earlier block over the ids read at this one; counts rows too."""

    def cost(self, model: Model, rows: float) -> Cost:
        """Work of multiplying so many rows of the head."""
        numel = rows * model.d_model
        return Cost(matmul_flops=2 * numel, read_numel=numel)


class KVPolicy(ABC):
    """What happens to the keys and values of the blocks that a token skipped."""

    name: ClassVar[str]
    deferred: ClassVar[Literal["project", "run", "rerun"] | None] = None
    """How a deferred token is completed when a later one runs a block that it skipped: its exit state is projected to
    keys and values; or it runs the block beside the later one; or it runs again from block 1 on."""
    runs_all_blocks: ClassVar[bool] = False
    """Whether the skipped blocks are run after all, before the next token."""
    verifies: ClassVar[bool] = False
    """Whether a token that waited is kept only if `rejects` lets it, once a later one has run all blocks beside it."""
    verifies_tail: ClassVar[bool] = True
    """Whether a policy that verifies also runs and verifies what waits when an answer ends."""

    @abstractmethod
    def on_exit(self, cache: DecoderCache, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> Tensor | None:
        """Handle rows that leave after ``block`` < L; ``rows_A`` None means every row of the batch.

        Returns:
            The state after block L if the token is to be emitted from there; None for the exit.
        """

    @abstractmethod
    def cost(self, model: Model, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Work of one answer beside its tokens' own blocks up to their exits.

        Args:
            model: The model.
            exit_layers: Of every token.
            block_costs: Work of one block for each token.
        """

    def rejects(self, logits_NV: Tensor, token_N: Tensor) -> Tensor:
        """Which drafts the full model rejects, [N]; asked of policies that verify.

        Args:
            logits_NV: The full model's, where each draft was chosen.
            token_N: The drafts.
        """
        raise NotImplementedError(f"KV policy {self.name!r} verifies nothing")

    def verification_cost(
        self, model: Model, exit_layers: Sequence[int], block_costs: Sequence[Cost], drafting: Drafting
    ) -> Cost:
        """Work of one answer that verifying adds to `cost`, the LM head's products apart."""
        return Cost()


@dataclass(frozen=True)
class Drafting:
    """What an answer's verification threw away, told at the token that took its place.

    Attributes:
        rejected: Drafted tokens thrown away right before each token was decided.
        wasted: Positions run for them in vain: as many, or one fewer if the last draft was to end the answer, so that
            nothing had been fed behind it.
        exit_layer: Blocks after which drafts leave.
    """

    rejected: Sequence[int]
    wasted: Sequence[int]
    exit_layer: int


@dataclass(frozen=True)
class Parts:
    """A method bound to a depth: the four parts, and the blocks at which the gate is asked."""

    gate: Gate
    threshold: Threshold
    head: Head
    kv_policy: KVPolicy
    blocks: frozenset[int]

    def asked(self, n_blocks: int) -> list[int]:
        """The blocks at which the gate of an L-block decoder is asked, ascending; never the last."""
        return sorted(block for block in self.blocks if block < n_blocks)

    @property
    def runs_all_blocks(self) -> bool:
        """Whether every token runs all blocks, wherever it leaves."""
        return self.kv_policy.runs_all_blocks or self.gate.looks_ahead

    @property
    def runs_fixed_blocks(self) -> bool:
        """Whether every token runs as many blocks as any other, whatever it says."""
        return self.runs_all_blocks or not (self.gate.decides or self.kv_policy.deferred)

    def cost(
        self,
        model: Model,
        exit_layers: Sequence[int],
        head_rows: Sequence[float],
        block_costs: Sequence[Cost],
        rejected: Sequence[int] = (),
        wasted: Sequence[int] = (),
    ) -> Cost:
        """Work of one answer: blocks, gates, read-outs, keys and values of skipped blocks, and verification.

        Args:
            model: The model.
            exit_layers: Of every token that a step of decoding made.
            head_rows: Rows of the LM head multiplied for every token, as the trace has them; of a first one too that
                the prompt's own pass made.
            block_costs: Work of one block for each token.
            rejected: Drafts thrown away before each token; empty if none were.
            wasted: Positions run in vain before each token; empty if none were.
        """
        asked = self.asked(model.n_blocks)
        blocks = sum((cost * layer for cost, layer in zip(block_costs, exit_layers, strict=True)), Cost())
        gates = {layer: self.gate.cost(model, [b for b in asked if b <= layer]) for layer in set(exit_layers)}
        gating = sum((gates[layer] for layer in exit_layers), Cost())
        reading = self.head.cost(model, sum(head_rows))
        total = blocks + gating + reading + self.kv_policy.cost(model, exit_layers, block_costs)
        if not self.kv_policy.verifies:
            return total
        in_vain = self.gate.cost(model, asked) * sum(wasted)
        drafting = Drafting(rejected, wasted, min(asked, default=model.n_blocks))
        return total + in_vain + self.kv_policy.verification_cost(model, exit_layers, block_costs, drafting)

    def score_sql(self, n_blocks: int) -> str | None:
        """The score at block ``l`` as SQL over one row of a probe; None if the probe's columns cannot tell."""
        return self.gate.score_sql(self.asked(n_blocks)) if self.head.reads_vocabulary else None

    def exit_layer_sql(self, n_blocks: int, max_new_tokens: int, score_sql: str, first_position: int = 1) -> str:
        """The exit layer of one probe row as a SQL expression.

        Args:
            n_blocks: Decoder blocks, L.
            max_new_tokens: Longest answer allowed.
            score_sql: The score at block ``l``.
            first_position: The first position whose token may exit early: 2 where the first token is read from the
                prompt's own pass.
        """
        # The loop compares in the score's precision, so the threshold is rounded to it here too.
        test = f"({score_sql})::FLOAT > ({self.threshold.sql(max_new_tokens)})::FLOAT"
        asked = f"{self.asked(n_blocks)}::INTEGER[]"
        exit_layer = f"coalesce(list_filter({asked}, lambda l: {test})[1], {n_blocks})"
        if first_position == 1:
            return exit_layer
        return f"CASE WHEN position < {first_position} THEN {n_blocks} ELSE {exit_layer} END"


@dataclass(frozen=True)
class FitData:
    """What a method is fitted on: states of documents of the train split, teacher-forced on the reference answers.

    Attributes:
        model: The frozen model.
        states_LND: Residual stream after the embedding and every block, [L+1, N, D].
        final_token_N: Choice of the last block, y^L.
        gold_token_N: The reference's token.
        document_N: Which document the token belongs to, 0 upwards; documents are in no particular order.
    """

    model: Model
    states_LND: Tensor
    final_token_N: Tensor
    gold_token_N: Tensor
    document_N: Tensor

    def split(self, held_out: float) -> tuple[FitData, FitData]:
        """Split by document: the first ones, and the given share of the last ones."""
        n_documents = int(self.document_N.max()) + 1
        if n_documents < 2:
            raise UserError("fitting needs at least 2 documents: one to learn from and one to hold out.")
        first_N = self.document_N < n_documents - max(1, round(held_out * n_documents))
        return self._where(first_N), self._where(~first_N)

    def _where(self, keep_N: Tensor) -> FitData:
        documents_N = self.document_N[keep_N]
        return FitData(
            self.model,
            self.states_LND[:, keep_N],
            self.final_token_N[keep_N],
            self.gold_token_N[keep_N],
            documents_N - documents_N.min(),
        )


@dataclass(frozen=True)
class Fitted:
    """What fitting gave: tensors by name, and the curve, one row a pass over the data."""

    tensors: dict[str, Tensor]
    curve: list[dict[str, float]] = field(default_factory=list)


def param(
    default: Any, doc: str, *, low: float | None = None, high: float | None = None, choices: tuple[str, ...] = ()
) -> Any:
    """Declare a method parameter: its default, what it means, and what is allowed (bounds inclusive)."""
    return field(default=default, metadata={"doc": doc, "low": low, "high": high, "choices": choices})


NOTHING_FITTED: Mapping[str, Tensor] = MappingProxyType({})


@dataclass(frozen=True)
class Method(ABC):
    """A named early-exit method; the fields of a subclass are its parameters, declared with `param`."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raised whenever the method may choose otherwise than before; part of a cell's identity."""
    source: ClassVar[str] = ""
    """Where the method is defined: paper section or equation."""
    is_baseline: ClassVar[bool] = False
    """True for the one method that every other is compared with."""
    needs_exit_heads: ClassVar[bool] = False
    """Whether the checkpoint must have trained exit heads."""

    @abstractmethod
    def parts(self, n_blocks: int, fitted: Mapping[str, Tensor] = NOTHING_FITTED) -> Parts:
        """Return the four parts for a decoder of ``n_blocks`` blocks.

        Args:
            n_blocks: Decoder blocks, L.
            fitted: What `fit` gave; empty for methods that fit nothing.
        """

    def score_params(self) -> dict[str, Any]:
        """The parameters that change what the gate says of a token, as against what is done about it."""
        return self.params()

    def unused_params(self) -> frozenset[str]:
        """The parameters that others leave without effect, such as a threshold that the rule does not look at."""
        return frozenset()

    def probe_tells_score(self) -> bool:
        """Whether a probe's columns tell the score; if not, a replay first asks the gate itself."""
        return self.parts(n_blocks=2).score_sql(n_blocks=2) is not None

    def fit_params(self) -> dict[str, Any]:
        """The parameters that change what `fit` gives; empty if nothing is to be fitted."""
        return {}

    def fit(self, data: FitData, on_progress: Callable[[float], None]) -> Fitted:
        """Fit what the method needs, on a frozen model; the same data and parameters give the same tensors.

        Args:
            data: The train split.
            on_progress: Told the finished share, 0 to 1.
        """
        return Fitted({})

    def check(self, n_blocks: int) -> None:
        """Raise UserError if the parameters do not fit a decoder of ``n_blocks`` blocks."""

    def bound_to(self, exit_blocks: tuple[int, ...]) -> Self:
        """Return the method as it is on a checkpoint with trained exit heads after these blocks (() without any).

        Raises:
            UserError: It needs heads that the checkpoint does not have.
        """
        return self

    def params(self) -> dict[str, Any]:
        """The parameters by name, as they enter the identity of a cell."""
        return dataclasses.asdict(self)

    @classmethod
    def from_params(cls, params: Mapping[str, Any], where: str = "") -> Self:
        """Build the method from untrusted parameters.

        Args:
            params: Parameter values by name.
            where: Where they were written (file, line), for the message.

        Raises:
            UserError: An unknown parameter, a wrong type or a value that is not allowed.
        """
        known = {item.name: item for item in dataclasses.fields(cls)}
        types = _types(cls)
        checked: dict[str, Any] = {}
        for name, value in params.items():
            at = f"{where}: " if where else ""
            if name not in known:
                allowed = suggestion(name, known) if known else " It has no parameters."
                raise UserError(f"{at}method {cls.name!r} has no parameter {name!r}.{allowed}")
            checked[name] = _checked(value, types[name], known[name].metadata, f"{at}{cls.name}.{name}")
        return cls(**checked)


_types = functools.cache(get_type_hints)


def _checked(value: Any, kind: Any, rule: Mapping[str, Any], what: str) -> Any:
    if get_origin(kind) is tuple:
        if not isinstance(value, (list, tuple)):
            raise UserError(f"{what} must be a list, not {value!r}.")
        return tuple(_checked(item, get_args(kind)[0], rule, f"{what}[{place}]") for place, item in enumerate(value))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UserError(f"{what} must be of type {kind.__name__}, not {value!r}.")
    if rule["choices"] and value not in rule["choices"]:
        raise UserError(f"{what} cannot be {value!r}.{suggestion(str(value), rule['choices'])}")
    if kind is float and not math.isfinite(value):
        raise UserError(f"{what} must be a finite number, not {value}.")
    low, high = rule["low"], rule["high"]
    if (low is not None and value < low) or (high is not None and value > high):
        bounds = f"between {low} and {high}" if high is not None else f"at least {low}"
        raise UserError(f"{what} = {value} is out of range; allowed: {bounds}.")
    return value


def blocks_from(first: int, n_blocks: int, every: int = 1) -> frozenset[int]:
    """The blocks at which a gate may end a token: first, first + every, ... below L."""
    return frozenset(range(first, n_blocks, every))


def check_block(method: Method, parameter: str, n_blocks: int) -> None:
    """Raise UserError if the block named by a parameter is deeper than the decoder."""
    value = getattr(method, parameter)
    if value > n_blocks:
        raise UserError(
            f"{method.name}.{parameter} = {value} is above the depth of the model; "
            f"allowed: between 1 and {n_blocks} (its decoder blocks)."
        )


def argmax_token(logits_AV: Tensor) -> Tensor:
    """Greedy choice [A]; the lowest id wins a tie, as in transformers."""
    return torch.argmax(logits_AV, dim=-1)
