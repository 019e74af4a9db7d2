"""Base class of methods: a name, documented parameters, optional fitting, and the four parts for a model's depth.

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
    """Training data of a method: hidden states of the train split, teacher-forced on the reference answers.

    Attributes:
        model: The frozen model.
        states_LND: Residual stream after the embedding and every block, [L+1, N, D].
        final_token_N: Token that the last block predicts at each position, y^L.
        gold_token_N: Token of the reference answer at each position.
        document_N: Index of the document that each token belongs to, from 0; documents are in no particular order.
    """

    model: ModelInterface
    states_LND: Tensor
    final_token_N: Tensor
    gold_token_N: Tensor
    document_N: Tensor

    def split(self, unseen_share: float) -> tuple[FitData, FitData]:
        """Split the data by document; return training data and held-out data.

        Args:
            unseen_share: Share of the documents, taken from the end, to hold out; at least 1 document is held out.

        Raises:
            UserError: There are fewer than 2 documents.
        """
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
    """Result of `Method.fit`.

    Attributes:
        tensors: Fitted weights or thresholds, by name.
        curve: Training curve: one dictionary per epoch, with its losses by name; empty if nothing was trained.
    """

    tensors: dict[str, Tensor]
    curve: list[dict[str, float]] = field(default_factory=list)


NOTHING_FITTED: Mapping[str, Tensor] = MappingProxyType({})


@dataclass(frozen=True)
class Method(ABC):
    """Base class of early-exit methods; the fields of a subclass are its parameters, declared with `param`.

    Examples:
        `LargestProbability` is the gate from the example of `Gate`: its score is the largest token probability.

        >>> from dataclasses import dataclass
        >>> from exitbench.methods.base import Method, Parts, blocks_from, param
        >>> from exitbench.methods.heads import LMHead
        >>> from exitbench.methods.kv_policies import StateCopy
        >>> from exitbench.methods.thresholds import Constant
        >>> @dataclass(frozen=True)
        ... class Likely(Method):
        ...     name = "likely"
        ...     level: float = param(0.9, "probability above which a token exits", low=0.0, high=1.0)
        ...
        ...     def parts(self, n_blocks, fitted={}):
        ...         blocks = blocks_from(1, n_blocks)
        ...         return Parts(LargestProbability(), Constant(self.level), LMHead(), StateCopy(), blocks)
        >>> Likely(level=0.5).params()
        {'level': 0.5}
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Version of the method's behavior, part of a cell's identity; raised whenever the method may choose otherwise."""
    source: ClassVar[str] = ""
    """Where the method is defined: paper section or equation."""
    is_baseline: ClassVar[bool] = False
    """True for the one method that all other methods are compared with."""
    fixed_depth: ClassVar[str | None] = None
    """Name of the parameter that sets one exit layer for all tokens; None for methods without such a parameter."""
    drafting: ClassVar[tuple[str, str] | None] = None
    """Parameters of a method that drafts at one block and verifies: the draft's exit layer, and drafts per pass."""
    needs_exit_heads: ClassVar[bool] = False
    """Whether the checkpoint must have trained exit heads."""

    @abstractmethod
    def parts(self, n_blocks: int, fitted: Mapping[str, Tensor] = NOTHING_FITTED) -> Parts:
        """Return gate, threshold, head and KV policy for a decoder of ``n_blocks`` blocks.

        Args:
            n_blocks: Number of decoder blocks, L.
            fitted: Tensors by name that `fit` returned; empty for methods that fit nothing.
        """

    def score_params(self) -> dict[str, Any]:
        """Return the parameters that affect the gate's score, by name; by default, all parameters.

        Settings that differ only in other parameters, such as the threshold, share one cell of stored scores.
        """
        return self.params()

    def unused_params(self) -> frozenset[str]:
        """Return the names of parameters that have no effect, given the values of the others.

        An example is the constant threshold while thresholds are given per block.
        """
        return frozenset()

    def probe_has_score(self) -> bool:
        """Return whether the gate's score can be computed from a probe, the stored record of every block's predictions.

        If not, a replay, which recomputes exits without running the model, needs a cell of kind `scores` first.
        """
        return self.parts(n_blocks=2).score_sql(n_blocks=2) is not None

    def fit_params(self) -> dict[str, Any]:
        """Return the parameters that affect the result of `fit`, by name; empty if nothing is fitted."""
        return {}

    def fit(self, data: FitData, on_progress: Callable[[float], None]) -> Fitted:
        """Fit gate or thresholds on a frozen model; by default, fit nothing.

        The same data and parameters must give the same tensors.

        Args:
            data: The train split.
            on_progress: Called with the finished share of the work, 0 to 1.
        """
        return Fitted({})

    def check(self, n_blocks: int) -> None:
        """Raise UserError if the parameters are not valid for a decoder of ``n_blocks`` blocks."""

    def bound_to(self, exit_blocks: tuple[int, ...]) -> Self:
        """Return the method adapted to a checkpoint's exit heads; by default, the method itself.

        Args:
            exit_blocks: Blocks after which the checkpoint has trained exit heads; () if it has none.

        Raises:
            UserError: The method needs exit heads that the checkpoint does not have.
        """
        return self

    def params(self) -> dict[str, Any]:
        """Return all parameters by name; the id of a cell is a hash that includes them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_params(cls, params: Mapping[str, Any], location: str = "") -> Self:
        """Return the method with the given parameters, after a check of their names, types and ranges.

        Args:
            params: Parameter values by name.
            location: File and line that contain them, for the error message.

        Raises:
            UserError: A parameter is unknown, or its value has the wrong type or is not allowed.
        """
        return cls(**checked_params(cls, cls.name, params, location))


def check_block(method: Method, parameter: str, n_blocks: int) -> None:
    """Raise UserError if the block number in a method's parameter, given by its name, exceeds ``n_blocks``."""
    value = getattr(method, parameter)
    if value > n_blocks:
        raise UserError(
            f"{method.name}.{parameter} = {value} is above the depth of the model; "
            f"allowed: between 1 and {n_blocks} (its decoder blocks)."
        )
