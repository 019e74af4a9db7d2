"""What a method is made of: gate x threshold x head x KV policy.

Shape suffixes: A rows still running at a block, B rows of the batch, D model width, V vocabulary, L blocks.
Blocks are numbered 1..L; an exit layer is the number of blocks executed.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self, get_type_hints

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

    def logits(self, hidden_AD: Tensor) -> Tensor:
        """Final norm and LM head: states [A, D] to logits [A, V]."""


class DecoderCache(Protocol):
    """What a KV policy may do to the keys and values of the token being decoded."""

    def fill_from_state(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Write keys and values of blocks block+1..L, each projected from the same state [A, D]."""


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
        position: 1 for the first generated token.
        max_new_tokens: Longest answer allowed, N of the position-decayed thresholds.
        hidden_AD: Output of the block (residual stream, not normalised).
        seeds_A: One fixed random seed a row, the same in every batch.
        memory: What the method remembers of this token's earlier blocks. Every tensor has leading dimension A; the
            decode loop drops the rows that exit. Empty at block 1 of every token.
        ahead_LAD: States after every block, only if the gate asked to look ahead.
    """

    def __init__(
        self,
        *,
        block: int,
        position: int,
        max_new_tokens: int,
        hidden_AD: Tensor,
        seeds_A: tuple[int, ...],
        memory: dict[str, Tensor],
        model: Model,
        head: Head,
        ahead_LAD: Tensor | None = None,
    ) -> None:
        self.block = block
        self.position = position
        self.max_new_tokens = max_new_tokens
        self.hidden_AD = hidden_AD
        self.seeds_A = seeds_A
        self.memory = memory
        self.model = model
        self.ahead_LAD = ahead_LAD
        self._head = head
        self._logits_AV: Tensor | None = None

    @property
    def logits_AV(self) -> Tensor:
        """Logits of the method's head, computed once however often gate and emission ask."""
        if self._logits_AV is None:
            self._logits_AV = self._head.logits(self)
        return self._logits_AV

    def rows(self, keep_A: Tensor) -> BlockView:
        """The same block seen by the rows where ``keep_A`` [A] is true."""
        if bool(keep_A.all()):
            return self
        view = BlockView(
            block=self.block,
            position=self.position,
            max_new_tokens=self.max_new_tokens,
            hidden_AD=self.hidden_AD[keep_A],
            seeds_A=tuple(seed for seed, keep in zip(self.seeds_A, keep_A.tolist(), strict=True) if keep),
            memory={name: value[keep_A] for name, value in self.memory.items()},
            model=self.model,
            head=self._head,
            ahead_LAD=None if self.ahead_LAD is None else self.ahead_LAD[:, keep_A],
        )
        if self._logits_AV is not None:
            view._logits_AV = self._logits_AV[keep_A]
        return view


class Gate(ABC):
    """Computes a confidence score at a block; higher is more confident."""

    needs_logits: ClassVar[bool] = False
    """Whether scoring reads the head's logits (the head is then part of the gate's cost)."""
    looks_ahead: ClassVar[bool] = False
    """Whether the gate must see all blocks first (oracles): the full depth is run, nothing is saved."""
    score_sql: ClassVar[str | None] = None
    """The score at block ``l`` as SQL over one probe row, for replays; None if a probe cannot tell."""

    @abstractmethod
    def score(self, view: BlockView) -> Tensor:
        """Return the confidence of each running row, [A]."""

    def cost(self, model: Model) -> Cost:
        """Work of one row at one asked block, without the head."""
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
    """Turns states into logits."""

    @abstractmethod
    def logits(self, view: BlockView) -> Tensor:
        """Return logits [A, V]."""

    @abstractmethod
    def cost(self, model: Model, block: int) -> Cost:
        """Work of one row read out after ``block``."""


class KVPolicy(ABC):
    """What happens to the keys and values of the blocks that a token skipped."""

    name: ClassVar[str]

    @abstractmethod
    def on_exit(self, cache: DecoderCache, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Handle rows that leave after ``block`` < L; ``rows_A`` None means every row of the batch."""

    @abstractmethod
    def cost(self, model: Model, exit_layer: int) -> Cost:
        """Work of one row for all the blocks it skipped."""


@dataclass(frozen=True)
class Parts:
    """A method bound to a depth: the four parts, and the blocks at which the gate is asked."""

    gate: Gate
    threshold: Threshold
    head: Head
    kv_policy: KVPolicy
    blocks: frozenset[int]

    def cost(self, model: Model, exit_layer: int) -> Cost:
        """Work of one row beside the executed blocks: gates asked, read-outs, skipped keys and values."""
        asked = [block for block in self.blocks if block <= exit_layer and block < model.n_blocks]
        gates = self.gate.cost(model) * len(asked)
        read = {exit_layer} | (set(asked) if self.gate.needs_logits else set())
        heads = sum((self.head.cost(model, block) for block in read), Cost())
        return gates + heads + self.kv_policy.cost(model, exit_layer)

    def exit_layer_sql(self, n_blocks: int, max_new_tokens: int) -> str | None:
        """The exit layer of one probe row as a SQL expression, or None where a probe cannot tell."""
        if self.gate.score_sql is None:
            return None
        asked = sorted(block for block in self.blocks if block < n_blocks)
        # The loop compares in the score's precision, so the threshold is rounded to it here too.
        test = f"({self.gate.score_sql})::FLOAT > ({self.threshold.sql(max_new_tokens)})::FLOAT"
        return f"coalesce(list_filter({asked}::INTEGER[], lambda l: {test})[1], {n_blocks})"


def param(
    default: Any, doc: str, *, low: float | None = None, high: float | None = None, choices: tuple[str, ...] = ()
) -> Any:
    """Declare a method parameter: its default, what it means, and what is allowed (bounds inclusive)."""
    return field(default=default, metadata={"doc": doc, "low": low, "high": high, "choices": choices})


@dataclass(frozen=True)
class Method(ABC):
    """A named early-exit method; the fields of a subclass are its parameters, declared with `param`."""

    name: ClassVar[str]
    source: ClassVar[str] = ""
    """Where the method is defined: paper section or equation."""
    is_baseline: ClassVar[bool] = False
    """True for the one method that every other is compared with."""

    @abstractmethod
    def parts(self, n_blocks: int) -> Parts:
        """Return the four parts for a decoder of ``n_blocks`` blocks."""

    def check(self, n_blocks: int) -> None:
        """Raise UserError if the parameters do not fit a decoder of ``n_blocks`` blocks."""

    def params(self) -> dict[str, Any]:
        """The parameters by name, as they enter the identity of a cell."""
        return dataclasses.asdict(self)

    def label(self) -> str:
        """Name and parameters on one line, as shown to people."""
        shown = ", ".join(f"{name}={value}" for name, value in self.params().items())
        return f"{self.name}({shown})" if shown else self.name

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
        types = get_type_hints(cls)
        checked: dict[str, Any] = {}
        for name, value in params.items():
            at = f"{where}: " if where else ""
            if name not in known:
                allowed = suggestion(name, known) if known else " It has no parameters."
                raise UserError(f"{at}method {cls.name!r} has no parameter {name!r}.{allowed}")
            checked[name] = _checked(value, types[name], known[name].metadata, f"{at}{cls.name}.{name}")
        return cls(**checked)


def _checked(value: Any, kind: Any, rule: Mapping[str, Any], what: str) -> Any:
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


def blocks_from(first: int, n_blocks: int) -> frozenset[int]:
    """Every block at which a gate may end a token: first..L-1."""
    return frozenset(range(first, n_blocks))


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
