"""Heads: the model's LM head, whole or pruned to a part of the vocabulary, and trained exit heads."""

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
    """Head that applies the model's own final norm and LM head at every block, without extra output layers."""

    def read(self, view: BlockView) -> Reading:
        """Return the logits of the whole vocabulary after the view's block."""
        view.head_rows += view.model.vocab_size
        return Reading(self.logits_after(view.model, view.block, view.hidden_AD))

    def logits_after(self, model: ModelInterface, block: int, hidden_AD: Tensor) -> Tensor:
        """Return the logits [A, V] of states [A, D] after ``block``; subclasses may use another head per block."""
        return model.logits(hidden_AD)

    def earlier_logits(self, view: BlockView, block: int) -> Tensor:
        """Return the logits [A, V] after an earlier block, computed once per token."""
        memory_key = f"logits_{block}"
        if memory_key not in view.memory:
            view.memory[memory_key] = self.logits_after(view.model, block, view.state(block))
            view.head_rows += view.model.vocab_size
        return view.memory[memory_key]

    def certified(self) -> Head | None:
        """Return the LM head that bounds logits before reading them; None for subclasses, whose logits differ."""
        return BoundedLMHead() if type(self) is LMHead else None


class BoundedLMHead(LMHead):
    """LM head that first bounds logits with an int8 copy of itself; exact logits are read only if bounds do not decide.

    See `docs/methods/index.md`, certified gates.
    """

    def bounds(self, view: BlockView) -> LogitBounds:
        """Return bounds of the logits of the whole vocabulary, computed from the int8 copy of the LM head."""
        view.head_rows_int8 += view.model.vocab_size
        return view.model.logit_bounds(view.hidden_AD)


class TrainedHead(LMHead):
    """Head that reads the checkpoint's exit head after blocks that have one, and the model's own LM head elsewhere."""

    reads_vocabulary: ClassVar[bool] = False

    def logits_after(self, model: ModelInterface, block: int, hidden_AD: Tensor) -> Tensor:
        """Return the logits [A, V] of states [A, D] from the block's exit head, or the LM head if there is none."""
        return model.exit_logits(block, hidden_AD) if block in model.exit_blocks else model.logits(hidden_AD)

    def cost_beyond_rows(self, model: ModelInterface, blocks: Sequence[int]) -> Cost:
        """Return the cost of the given blocks' exit heads, minus that of one whole LM-head read for each exit head."""
        trained = [block for block in blocks if block in model.exit_blocks]
        more = sum(model.exit_head_numel(block) - model.vocab_size * model.d_model for block in trained)
        return Cost(matmul_flops=2 * more, read_numel=more)

    def logits_ahead(self, model: ModelInterface, ahead_LAD: Tensor) -> Tensor:
        """Return the logits after every block, [L, A, V], from the block's exit head or else the LM head."""
        states = enumerate(ahead_LAD.unbind(), start=1)
        return torch.stack([self.logits_after(model, block, state_AD) for block, state_AD in states])


class DraftHead(LMHead):
    """Head that reads only the first ids of the vocabulary, except after the last block (after FR-Spec).

    Args:
        n_ids: Number of ids to read, from 0 on.
    """

    reads_vocabulary: ClassVar[bool] = False
    reads_part: ClassVar[bool] = True

    def __init__(self, n_ids: int) -> None:
        self.n_ids = n_ids
        self._weights_1KD: Tensor | None = None

    def read(self, view: BlockView) -> Reading:
        """Return the logits of the first ids; after the last block, of all."""
        if view.is_last:
            return super().read(view)
        n_ids, n_rows = min(self.n_ids, view.model.vocab_size), len(view.hidden_AD)
        ids_1K = torch.arange(n_ids, device=view.hidden_AD.device)[None]
        if self._weights_1KD is None:  # a copy, made once for all tokens
            self._weights_1KD = view.model.head_weights(ids_1K)
        view.head_rows += n_ids
        logits_AK = view.model.logits_of(view.hidden_AD, self._weights_1KD.expand(n_rows, -1, -1))
        return Reading(logits_AK, ids_1K.expand(n_rows, -1))


@dataclass(frozen=True)
class PrunedHead(LMHead):
    """Head with vocabulary pruning (PRUNE): after the first gate block, only token ids that were best there are read.

    The first gate block j reads the whole vocabulary and keeps its k(j) best ids. At a later block l, ``fixed`` reads
    all kept ids, and ``decaying`` the k(l) best of them. ``adaptive`` reads the best k_l of them, where k_l =
    clip(floor(k(j) (1 - 0.9 c)), k_min, k(j)), and c is the score at the previous gate block, clipped to [0, 1].

    Two variants reproduce published code, which sorts the kept ids by token id. ``decaying-idsorted`` reads the first
    k(l) of this list. ``adaptive-code`` reads the first int(V (1 - 0.9 c)), which is the whole list in practice. The
    last block always reads the whole vocabulary.

    Attributes:
        keeping: The variant: which of the kept ids are read at later blocks.
        k_first: Number of ids k_1 from which the schedule starts.
        k_min: Smallest number of ids that are read.
        schedule: ``inverse``: k(l) = max(k_min, floor(k_1 / (1 + (k_1 - k_min) / k_min * l / L))); ``constant``: k_1.
    """

    reads_vocabulary: ClassVar[bool] = False
    reads_part: ClassVar[bool] = True

    keeping: Keeping
    k_first: int
    k_min: int
    schedule: Schedule

    def size(self, block: int, n_blocks: int, vocab_size: int) -> int:
        """Return k(l) of the schedule, the number of token ids to read at a block; at most ``vocab_size``."""
        if self.schedule == "constant":
            return min(self.k_first, vocab_size)
        slope = (self.k_first - self.k_min) / self.k_min
        size = max(self.k_min, math.floor(self.k_first / (1 + slope * block / n_blocks)))
        return min(size, vocab_size)

    def read(self, view: BlockView) -> Reading:
        """Return the logits of the kept token ids; at the first gate block and the last block, of all token ids."""
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
        return Reading(_mask_beyond(logits_AK, sizes), ids_AK)

    def earlier_logits(self, view: BlockView, block: int) -> Tensor:
        """Return an earlier block's logits for the ids read at this block; -inf for ids that a row does not read."""
        if view.ids_AK is None:
            return super().earlier_logits(view, block)
        memory_key, sizes = f"pruned_logits_{block}", self._sizes(view)
        if memory_key not in view.memory:
            # Read once, for as many ids as later blocks may need: a decaying list only shrinks, an adaptive one varies.
            weights_AKD = self._weights(view, sizes)
            most = sizes if isinstance(sizes, int) else weights_AKD.shape[1]
            view.head_rows = view.head_rows + most
            view.memory[memory_key] = view.model.logits_of(view.state(block), weights_AKD[:, :most])
        return _mask_beyond(view.memory[memory_key][:, : view.ids_AK.shape[1]], sizes)

    def _best_ids(self, view: BlockView, logits_AV: Tensor) -> Tensor:
        model = view.model
        best_ids = logits_AV.topk(self.size(view.block, model.n_blocks, model.vocab_size)).indices
        return best_ids.sort().values if self.keeping in ("decaying-idsorted", "adaptive-code") else best_ids

    def _weights(self, view: BlockView, sizes: int | Tensor) -> Tensor:
        """Return the LM head's weight rows of the kept ids, copied once per token; blocks read a contiguous slice.

        ``sizes`` is the number of ids to read at this block. If it is the same for all batch rows, it only shrinks with
        depth, so one copy is enough.
        """
        if "kept_weights" not in view.memory:
            ids_AK = view.memory["kept_ids"]
            most = sizes if isinstance(sizes, int) else ids_AK.shape[1]
            view.memory["kept_weights"] = view.model.head_weights(ids_AK[:, :most])
        return view.memory["kept_weights"]

    def _sizes(self, view: BlockView) -> int | Tensor:
        """Return the number of token ids read at this block: one for all rows, or one per row for adaptive variants."""
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


def _mask_beyond(logits_AK: Tensor, sizes: int | Tensor) -> Tensor:
    """Return the logits with -inf in the columns beyond each row's own number of ids, ``sizes``."""
    if isinstance(sizes, int) or logits_AK.shape[0] == 1:
        return logits_AK
    columns = torch.arange(logits_AK.shape[1], device=logits_AK.device)
    return logits_AK.masked_fill(columns >= sizes[:, None], float("-inf"))
