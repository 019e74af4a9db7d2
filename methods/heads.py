"""LM heads: the model's own, whole or pruned to a part of the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from exitbench.methods.base import BlockView, Cost, Head, LogitBounds, ModelInterface, Reading

Keeping = Literal["fixed", "decaying", "decaying-idsorted", "adaptive", "adaptive-code"]
Schedule = Literal["inverse", "constant"]


class LMHead(Head):
    """The model's own LM head after its own final norm, at every block (no extra output layers)."""

    def read(self, view: BlockView) -> Reading:
        """Return logits of the whole vocabulary."""
        view.head_rows += view.model.vocab_size
        return Reading(self.logits_after(view.model, view.block, view.hidden_AD))

    def logits_after(self, model: ModelInterface, block: int, hidden_AD: Tensor) -> Tensor:
        """Return logits [A, V] of states [A, D] after a block."""
        return model.logits(hidden_AD)

    def earlier_logits(self, view: BlockView, block: int) -> Tensor:
        """Return logits [A, V] of an earlier block."""
        memory_key = f"logits_{block}"
        if memory_key not in view.memory:
            view.memory[memory_key] = self.logits_after(view.model, block, view.state(block))
            view.head_rows += view.model.vocab_size
        return view.memory[memory_key]

    def certified(self) -> Head | None:
        """Return the head with bounds; None for subclasses, which read something else."""
        return BoundedLMHead() if type(self) is LMHead else None


class BoundedLMHead(LMHead):
    """The model's own LM head, of which an int8 copy is read first; see `docs/methods/index.md`, certified gates."""

    def bounds(self, view: BlockView) -> LogitBounds:
        """Return bounds of the logits of the whole vocabulary."""
        view.head_rows_int8 += view.model.vocab_size
        return view.model.logit_bounds(view.hidden_AD)


class TrainedHead(LMHead):
    """The checkpoint's exit head where it has one, else the model's own LM head."""

    reads_vocabulary: ClassVar[bool] = False

    def logits_after(self, model: ModelInterface, block: int, hidden_AD: Tensor) -> Tensor:
        """Return logits [A, V] of the block's own head."""
        return model.exit_logits(block, hidden_AD) if block in model.exit_blocks else model.logits(hidden_AD)

    def cost_beyond_rows(self, model: ModelInterface, blocks: Sequence[int]) -> Cost:
        """Return the cost of trained heads beyond the vocabulary's rows of the LM head."""
        trained = [block for block in blocks if block in model.exit_blocks]
        more = sum(model.exit_head_numel(block) - model.vocab_size * model.d_model for block in trained)
        return Cost(matmul_flops=2 * more, read_numel=more)

    def logits_ahead(self, model: ModelInterface, ahead_LAD: Tensor) -> Tensor:
        """Return logits [L, A, V], each block's from its own head."""
        states = enumerate(ahead_LAD.unbind(), start=1)
        return torch.stack([self.logits_after(model, block, state_AD) for block, state_AD in states])


@dataclass(frozen=True)
class PrunedHead(LMHead):
    """Vocabulary pruning (PRUNE): the first gate block reads everything, later ones its best ids only.

    At the first block j the k(j) best ids are kept. ``fixed`` reads them at every later block; ``decaying`` the k(l)
    best ranked of them; ``adaptive`` k_l = clip(floor(k(j) (1 - 0.9 c)), k_min, k(j)) of them, where c is the score at
    the previous gate block, cut to [0, 1]. Two forms reproduce published code: ``decaying-idsorted`` takes the first
    k(l) *by token id*, and ``adaptive-code`` the first int(V (1 - 0.9 c)) by id, which is the whole list in practice.
    The last block always reads the whole vocabulary.

    Attributes:
        keeping: Which of the forms.
        k_first: Size k_1 that the schedule starts from.
        k_min: Least number of ids kept.
        schedule: ``inverse``: k(l) = max(k_min, floor(k_1 / (1 + (k_1 - k_min) / k_min * l / L))); ``constant``: k_1.
    """

    reads_vocabulary: ClassVar[bool] = False
    reads_part: ClassVar[bool] = True

    keeping: Keeping
    k_first: int
    k_min: int
    schedule: Schedule

    def size(self, block: int, n_blocks: int, vocab_size: int) -> int:
        """Ids kept at a block, k(l), at most V."""
        if self.schedule == "constant":
            return min(self.k_first, vocab_size)
        slope = (self.k_first - self.k_min) / self.k_min
        size = max(self.k_min, math.floor(self.k_first / (1 + slope * block / n_blocks)))
        return min(size, vocab_size)

    def read(self, view: BlockView) -> Reading:
        """Return logits of the ids kept; of all at the first gate block and at the last."""
        if "kept_ids" not in view.memory or view.is_last:
            view.head_rows += view.model.vocab_size
            logits_AV = view.model.logits(view.hidden_AD)
            if not view.is_last:
                view.memory["kept_ids"] = self._best_ids(view, logits_AV)
            return Reading(logits_AV)
        sizes = self._sizes(view)
        widest = sizes if isinstance(sizes, int) else int(sizes.max())
        ids_AK = view.memory["kept_ids"][:, :widest]
        view.head_rows = view.head_rows + sizes
        logits_AK = view.model.logits_of(view.hidden_AD, self._weights(view, sizes)[:, :widest])
        return Reading(_beyond(logits_AK, sizes), ids_AK)

    def earlier_logits(self, view: BlockView, block: int) -> Tensor:
        """Return an earlier block's logits of the ids read at this block; -inf for ids beyond a row's own list."""
        if view.ids_AK is None:
            return super().earlier_logits(view, block)
        memory_key, sizes = f"pruned_logits_{block}", self._sizes(view)
        if memory_key not in view.memory:
            # Read once, and as many as later blocks may ask for: a decaying list only shrinks, an adaptive one varies.
            weights_AKD = self._weights(view, sizes)
            most = sizes if isinstance(sizes, int) else weights_AKD.shape[1]
            view.head_rows = view.head_rows + most
            view.memory[memory_key] = view.model.logits_of(view.state(block), weights_AKD[:, :most])
        return _beyond(view.memory[memory_key][:, : view.ids_AK.shape[1]], sizes)

    def _best_ids(self, view: BlockView, logits_AV: Tensor) -> Tensor:
        model = view.model
        best_ids = logits_AV.topk(self.size(view.block, model.n_blocks, model.vocab_size)).indices
        return best_ids.sort().values if self.keeping in ("decaying-idsorted", "adaptive-code") else best_ids

    def _weights(self, view: BlockView, sizes: int | Tensor) -> Tensor:
        """The kept rows of the LM head, copied together once a token: later blocks read a contiguous piece.

        A list of fixed size a block only shrinks, so that no more are copied than the first to ask reads.
        """
        if "kept_weights" not in view.memory:
            ids_AK = view.memory["kept_ids"]
            most = sizes if isinstance(sizes, int) else ids_AK.shape[1]
            view.memory["kept_weights"] = view.model.head_weights(ids_AK[:, :most])
        return view.memory["kept_weights"]

    def _sizes(self, view: BlockView) -> int | Tensor:
        """Ids read at this block: one number, or one per row if it depends on the confidence."""
        model, n_kept = view.model, view.memory["kept_ids"].shape[1]
        if self.keeping == "fixed":
            return n_kept
        if not self.keeping.startswith("adaptive"):
            return min(n_kept, self.size(view.block, model.n_blocks, model.vocab_size))
        assert view.previous_score_A is not None, "the first gate block reads everything"
        alive_A = 1 - 0.9 * view.previous_score_A.double().clamp(0, 1)
        if self.keeping == "adaptive":
            return (n_kept * alive_A).floor().long().clamp(min(self.k_min, n_kept), n_kept)
        return (model.vocab_size * alive_A).long().clamp(1, n_kept)


def _beyond(logits_AK: Tensor, sizes: int | Tensor) -> Tensor:
    """-inf in the columns that a row does not read because another one reads more."""
    if isinstance(sizes, int) or logits_AK.shape[0] == 1:
        return logits_AK
    columns = torch.arange(logits_AK.shape[1], device=logits_AK.device)
    return logits_AK.masked_fill(columns >= sizes[:, None], float("-inf"))
