"""KV policies: how the keys and values of skipped blocks are computed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from exitbench.methods.base import Cost, DecoderCache, Drafting, KVPolicy, ModelInterface, argmax_token


def projection_cost(model: ModelInterface, n_blocks: int) -> Cost:
    """Return the cost of projecting one token's state to keys and values in n blocks."""
    numel = n_blocks * 2 * model.kv_width * model.d_model
    return Cost(matmul_flops=2 * numel, read_numel=numel)


class StateCopy(KVPolicy):
    """Project the exit state to the keys and values of every skipped block when the token exits (CALM, eager)."""

    name: ClassVar[str] = "state-copy"

    def on_exit(self, cache: DecoderCache, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Fill blocks block+1..L from the exit state."""
        cache.fill_from_state(block, hidden_AD, rows_A)

    def cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return the cost of two projections per skipped block."""
        return projection_cost(model, sum(model.n_blocks - layer for layer in exit_layers))


class Exact(KVPolicy):
    """Run the skipped blocks after the token was emitted: exact keys and values, no work saved (t5x oracle_cache).

    The damage that a method still does under this policy comes from its tokens, not from its cache.
    """

    name: ClassVar[str] = "exact"
    runs_all_blocks: ClassVar[bool] = True

    def on_exit(self, cache: DecoderCache, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Run blocks block+1..L."""
        cache.run_rest(block, hidden_AD, rows_A)

    def cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return the cost of the skipped blocks."""
        return _skipped_cost(model, exit_layers, block_costs)


class Noisy(KVPolicy):
    """Emit the full model's token, but write the cache from the exit state (t5x oracle_tok_noisy_cache).

    The damage that a method does under this policy comes from its cache, not from its tokens.
    """

    name: ClassVar[str] = "noisy"
    runs_all_blocks: ClassVar[bool] = True

    def on_exit(self, cache: DecoderCache, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> Tensor:
        """Run blocks block+1..L for the token, then overwrite the keys and values that they wrote."""
        deep_AD = cache.run_rest(block, hidden_AD, rows_A)
        cache.fill_from_state(block, hidden_AD, rows_A)
        return deep_AD

    def cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return the cost of the skipped blocks and of the projections."""
        skipped = sum(model.n_blocks - layer for layer in exit_layers)
        return _skipped_cost(model, exit_layers, block_costs) + projection_cost(model, skipped)


class Evict(KVPolicy):
    """Leave the skipped blocks empty: later tokens do not attend to the position there (D-LLM).

    The control that shows what copied states are worth.
    """

    name: ClassVar[str] = "evict"
    evicts: ClassVar[bool] = True

    def on_exit(self, cache: DecoderCache, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Mask the position in blocks block+1..L."""
        cache.evict(block, rows_A)

    def cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return no cost: masked keys are still multiplied, and counted with the blocks."""
        return Cost()


class Deferred(KVPolicy):
    """Base class of policies that fill skipped blocks when a later token of the same answer runs them."""

    def on_exit(self, cache: DecoderCache, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Store the exit state in the cache for later."""
        cache.defer(block, hidden_AD, rows_A)


class StateCopyLazy(Deferred):
    """State copying, but deferred until a later token runs the block.

    The cache has the same values as under `state-copy`, except that values that no later token reads are not computed.
    """

    name: ClassVar[str] = "state-copy-lazy"
    deferred: ClassVar[Literal["project", "run", "rerun"] | None] = "project"

    def cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return the cost of two projections for each skipped block that a later token runs.

        A block's weights are read once for all tokens that waited for it.
        """
        flops = projection_cost(model, len(_completions(exit_layers))).matmul_flops
        passes = {(later, block) for _, later, block in _completions(exit_layers)}
        return Cost(matmul_flops=flops, read_numel=projection_cost(model, len(passes)).read_numel)


class SyncParallel(Deferred):
    """Run the waiting tokens together with a later token that runs deeper, each block in one pass (FREE section 4.2).

    All keys and values that are ever read equal those of a full run over the same tokens.
    """

    name: ClassVar[str] = "sync-parallel"
    deferred: ClassVar[Literal["project", "run", "rerun"] | None] = "run"

    def cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return the cost of the later token's matrix products for each waiting token.

        Weights and caches are read once, by the later token, and not counted here.
        """
        flops = sum(block_costs[later].matmul_flops for _, later, _ in _completions(exit_layers))
        return Cost(matmul_flops=flops)


class Verified(SyncParallel):
    """Base class of policies that run drafts as `SyncParallel` does, read out the full model, and keep accepted drafts.

    All tokens of a row are verified before the answer ends, unless `verifies_tail` is False.
    """

    verifies: ClassVar[bool] = True

    def cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return the cost of completing drafts, including those at the end of an answer if `verifies_tail`."""
        if not exit_layers or not self.verifies_tail:
            return super().cost(model, exit_layers, block_costs)
        tail_cost = block_costs[-1] * (model.n_blocks - exit_layers[-1])
        return tail_cost + super().cost(model, [*exit_layers[:-1], model.n_blocks], block_costs)

    def verification_cost(
        self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost], drafting: Drafting
    ) -> Cost:
        """Return the cost of discarded positions, which ran all blocks, and of judging drafts.

        A discarded draft reads weights only for the blocks up to its exit. Drafts verified in one pass are read out
        together with the new token, if there is one. So the LM head is read once, while `head_rows` counts one read-out
        for each draft; the difference is subtracted here.
        """
        in_vain = Cost()
        for cost, layers, wasted in zip(block_costs, drafting.rejected_layers, drafting.wasted, strict=True):
            flops = cost.matmul_flops * model.n_blocks * wasted
            in_vain += Cost(flops, read_numel=cost.read_numel * sum(layers[:wasted]))
        rejected = sum(map(len, drafting.rejected_layers))
        tail = sum(1 for _ in itertools.takewhile(lambda layer: layer < model.n_blocks, reversed(exit_layers)))
        accepted = sum(layer < model.n_blocks for layer in exit_layers)
        accepted -= 0 if self.verifies_tail else tail
        endings = rejected - sum(drafting.wasted) + (self.verifies_tail and tail > 0)
        verified = accepted + rejected
        shared = Cost(read_numel=-float((verified - endings) * model.vocab_size * model.d_model))
        return in_vain + shared + self.judging_cost(model) * verified

    def judging_cost(self, model: ModelInterface) -> Cost:
        """Return the work of `rejects` for one draft; an argmax counts as 0 throughout."""
        return Cost()


class Rollback(Verified):
    """FREE's RollBack: discard a draft if the full model gives it too small a probability, and all tokens after it.

    Args:
        bound: Largest cross-entropy of the draft under the full model, nats; 0 rejects every draft.
    """

    name: ClassVar[str] = "sync-parallel-rollback"

    def __init__(self, bound: float) -> None:
        self.bound = bound

    def rejects(self, logits_NV: Tensor, token_N: Tensor) -> Tensor:
        """Return the mask of drafts with -log p_full(draft) > bound."""
        log_p_NV = torch.log_softmax(logits_NV.float(), dim=-1)
        return -log_p_NV.gather(1, token_N[:, None])[:, 0] > self.bound

    def judging_cost(self, model: ModelInterface) -> Cost:
        """Return the cost of a softmax over the vocabulary."""
        return Cost(elementwise_flops=5 * model.vocab_size)


class RollbackCode(Rollback):
    """RollBack as in FREE's code: drafts that still wait when an answer ends are kept without verification."""

    name: ClassVar[str] = "sync-parallel-rollback-code"
    verifies_tail: ClassVar[bool] = False


ROLLBACKS: dict[str, type[Rollback]] = {policy.name: policy for policy in (Rollback, RollbackCode)}
"""RollBack policies by name; the constructor takes the bound."""


class Speculation(Verified):
    """Self-speculative decoding: a draft is kept if it is the full model's greedy choice (LayerSkip section 4.3).

    Args:
        max_drafts: Tokens drafted before all of them are verified.
    """

    name: ClassVar[str] = "self-speculation"

    def __init__(self, max_drafts: int = 6) -> None:
        self.max_drafts = max_drafts

    def rejects(self, logits_NV: Tensor, token_N: Tensor) -> Tensor:
        """Return the mask of drafts for which the full model chooses another token."""
        return argmax_token(logits_NV) != token_N


class RecomputeBacklog(Deferred):
    """Run exited tokens again from block 1, together with each later token, until one runs all blocks (EE-LLM)."""

    name: ClassVar[str] = "recompute-backlog"
    deferred: ClassVar[Literal["project", "run", "rerun"] | None] = "rerun"

    def cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return the cost of running each backlog token through the later token's blocks again.

        Weights and caches are read once, by the later token.
        """
        flops, backlog = 0.0, 0
        for layer, cost in zip(exit_layers, block_costs, strict=True):
            flops += backlog * layer * cost.matmul_flops
            backlog = 0 if layer == model.n_blocks else backlog + 1
        return Cost(matmul_flops=flops)


def _skipped_cost(model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
    pairs = zip(block_costs, exit_layers, strict=True)
    return sum((cost * (model.n_blocks - layer) for cost, layer in pairs), Cost())


def _completions(exit_layers: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (token, later token, block) for each block that a token skipped and the later token is first to run."""
    waiting: dict[int, int] = {}  # blocks that each token has by now
    completions = []
    for later, layer in enumerate(exit_layers):
        for token, n_run in waiting.items():
            completions += [(token, later, block) for block in range(n_run + 1, layer + 1)]
            waiting[token] = max(n_run, layer)
        waiting[later] = layer
    return completions


KV_POLICIES: dict[str, KVPolicy] = {
    policy.name: policy
    for policy in (StateCopy(), StateCopyLazy(), SyncParallel(), RecomputeBacklog(), Evict(), Exact(), Noisy())
}
"""KV policies by name; each can be combined with any method whose tokens exit one by one."""

GATE_POLICIES: dict[str, KVPolicy] = {**KV_POLICIES, Speculation.name: Speculation()}
"""KV policies of methods with a gate: under the last one, confident tokens are drafts that the full model verifies."""
