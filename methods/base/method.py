"""A method: named, with documented parameters, bound to a depth and fitted where it needs that.

Shape suffixes: N tokens, D model width, L blocks.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Self

from torch import Tensor

from exitbench.errors import UserError
from exitbench.methods.base.params import checked_params
from exitbench.methods.base.parts import Parts
from exitbench.methods.base.protocols import ModelInterface


@dataclass(frozen=True)
class FitData:
    """Data that a method is fitted on: states of the train split, teacher-forced on the reference answers.

    Attributes:
        model: The frozen model.
        states_LND: Residual stream after the embedding and every block, [L+1, N, D].
        final_token_N: Choice of the last block, y^L.
        gold_token_N: The reference's token.
        document_N: Which document the token belongs to, 0 upwards; documents are in no particular order.
    """

    model: ModelInterface
    states_LND: Tensor
    final_token_N: Tensor
    gold_token_N: Tensor
    document_N: Tensor

    def split(self, unseen_share: float) -> tuple[FitData, FitData]:
        """Split by document: the first ones, and the given share of the last ones."""
        n_documents = int(self.document_N.max()) + 1
        if n_documents < 2:
            raise UserError("fitting needs at least 2 documents: one to learn from and one to hold out.")
        first_N = self.document_N < n_documents - max(1, round(unseen_share * n_documents))
        return self._select(first_N), self._select(~first_N)

    def _select(self, keep_N: Tensor) -> FitData:
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
    """Result of fitting: tensors by name, and the curve, one row per pass over the data."""

    tensors: dict[str, Tensor]
    curve: list[dict[str, float]] = field(default_factory=list)


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
    fixed_depth: ClassVar[str | None] = None
    """Of the control that gives every token the same exit layer: the parameter that says which."""
    drafting: ClassVar[tuple[str, str] | None] = None
    """Parameters of a method that drafts at one block and verifies: the draft's exit layer, and drafts per pass."""
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
        """The parameters that others leave without effect, such as a threshold that the rule does not use."""
        return frozenset()

    def probe_has_score(self) -> bool:
        """Return whether the score follows from a probe's columns; if not, a replay needs a scores cell first."""
        return self.parts(n_blocks=2).score_sql(n_blocks=2) is not None

    def fit_params(self) -> dict[str, Any]:
        """The parameters that change what `fit` gives; empty if nothing is to be fitted."""
        return {}

    def fit(self, data: FitData, on_progress: Callable[[float], None]) -> Fitted:
        """Fit what the method needs, on a frozen model; the same data and parameters give the same tensors.

        Args:
            data: The train split.
            on_progress: Called with the finished share, 0 to 1.
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
    def from_params(cls, params: Mapping[str, Any], location: str = "") -> Self:
        """Build the method from untrusted parameters.

        Args:
            params: Parameter values by name.
            location: Where they were written (file, line), for the message.

        Raises:
            UserError: An unknown parameter, a wrong type or a value that is not allowed.
        """
        return cls(**checked_params(cls, cls.name, params, location))


def check_block(method: Method, parameter: str, n_blocks: int) -> None:
    """Raise UserError if the block named by a parameter is deeper than the decoder."""
    value = getattr(method, parameter)
    if value > n_blocks:
        raise UserError(
            f"{method.name}.{parameter} = {value} is above the depth of the model; "
            f"allowed: between 1 and {n_blocks} (its decoder blocks)."
        )
