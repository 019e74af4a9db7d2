"""KV policies: how the keys and values of skipped blocks are computed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from exitbench.methods.base import Cost, DecoderCache, Drafting, KVPolicy, ModelInterface, argmax_token


def projection_cost(model: ModelInterface, n_blocks: int) -> Cost:
    """Return the cost of projecting one token's state to keys and values in ``n_blocks`` blocks."""
    numel = n_blocks * 2 * model.kv_width * model.d_model
    return Cost(matmul_flops=2 * numel, read_numel=numel)


class StateCopy(KVPolicy):
    """Policy that projects the exit state to keys and values of all skipped blocks as a token exits (CALM, eager)."""

    name: ClassVar[str] = "state-copy"

    def on_exit(self, cache: DecoderCache, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Fill keys and values of blocks block+1..L by projecting the exit state."""
        cache.fill_from_state(block, hidden_AD, rows_A)

    def cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return the cost of a key and a value projection per skipped block of every token."""
        return projection_cost(model, sum(model.n_blocks - layer for layer in exit_layers))


class Exact(KVPolicy):
    """Policy that runs the skipped blocks too: exact keys and values, no work saved (t5x oracle_cache).

    If a method loses quality under this policy, the cause is its emitted tokens, not its cache.
    """

    name: ClassVar[str] = "exact"
    runs_all_blocks: ClassVar[bool] = True

    def on_exit(self, cache: DecoderCache, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Run blocks block+1..L to write their keys and values; the token is still emitted from the exit state."""
        cache.run_rest(block, hidden_AD, rows_A)

    def cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return the cost of running the skipped blocks of every token."""
        return _skipped_cost(model, exit_layers, block_costs)


class Noisy(KVPolicy):
    """Policy that emits the full model's token, but fills the cache from the exit state (t5x oracle_tok_noisy_cache).

    If a method loses quality under this policy, the cause is its cache, not its emitted tokens.
    """

    name: ClassVar[str] = "noisy"
    runs_all_blocks: ClassVar[bool] = True

    def on_exit(self, cache: DecoderCache, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> Tensor:
        """Run blocks block+1..L and return the state after block L; replace their keys and values by projections."""
        deep_AD = cache.run_rest(block, hidden_AD, rows_A)
        cache.fill_from_state(block, hidden_AD, rows_A)
        return deep_AD

    def cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return the cost of running the skipped blocks of every token, and of projecting its exit state there."""
        skipped = sum(model.n_blocks - layer for layer in exit_layers)
        return _skipped_cost(model, exit_layers, block_costs) + projection_cost(model, skipped)


class Evict(KVPolicy):
    """Policy without keys and values in skipped blocks: later tokens do not attend to the position there (D-LLM).

    It is the control for `state-copy`: the difference in quality is what copied states contribute.
    """

    name: ClassVar[str] = "evict"
    evicts: ClassVar[bool] = True

    def on_exit(self, cache: DecoderCache, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Mask the token's position in blocks block+1..L for later tokens."""
        cache.evict(block, rows_A)

    def cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return zero cost: masking is free, and the cost of the blocks run includes attention to masked keys."""
        return Cost()


class Deferred(KVPolicy):
    """Base class of policies that fill a token's skipped blocks only when a later token of the answer runs them."""

    def on_exit(self, cache: DecoderCache, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Store the exit state in the cache, so that a later token can complete blocks block+1..L."""
        cache.defer(block, hidden_AD, rows_A)


class StateCopyLazy(Deferred):
    """Policy that projects the exit state to keys and values of a skipped block once a later token runs that block.

    Keys and values are those of `state-copy`, except that those never read by a later token are not computed.
    """

    name: ClassVar[str] = "state-copy-lazy"
    deferred: ClassVar[Literal["project", "run", "rerun"] | None] = "project"

    def cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return the cost, for one answer, of projecting keys and values of skipped blocks that later tokens run.

        FLOPs count for each skipped block of each token. Weights count as read once per block and later token, even if
        several earlier tokens are projected there together.

        Args:
            model: The model.
            exit_layers: Exit layer of every token.
            block_costs: Cost of running one block, for each token; not used.
        """
        flops = projection_cost(model, len(_completions(exit_layers))).matmul_flops
        passes = {(later, block) for _, later, block in _completions(exit_layers)}
        return Cost(matmul_flops=flops, read_numel=projection_cost(model, len(passes)).read_numel)


class SyncParallel(Deferred):
    """Policy that runs exited tokens through skipped blocks together with a later, deeper token (FREE section 4.2).

    All keys and values that are ever read equal those of full depth over the same tokens.
    """

    name: ClassVar[str] = "sync-parallel"
    deferred: ClassVar[Literal["project", "run", "rerun"] | None] = "run"

    def cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return the FLOPs, for one answer, of running exited tokens through skipped blocks together with later tokens.

        Weights and caches are read once, by the later token, so these reads are not counted here.
        """
        flops = sum(block_costs[later].matmul_flops for _, later, _ in _completions(exit_layers))
        return Cost(matmul_flops=flops)


class Verified(SyncParallel):
    """Base class of policies for which early-exited tokens are drafts: full depth verifies them and keeps some.

    A later token runs the drafts' skipped blocks together with its own. Drafts that still wait when the answer ends are
    verified too, unless `verifies_tail` is False.
    """

    verifies: ClassVar[bool] = True

    def cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return the cost of running drafts to full depth; drafts that end an answer count only if `verifies_tail`."""
        if not exit_layers or not self.verifies_tail:
            return super().cost(model, exit_layers, block_costs)
        tail_cost = block_costs[-1] * (model.n_blocks - exit_layers[-1])
        return tail_cost + super().cost(model, [*exit_layers[:-1], model.n_blocks], block_costs)

    def verification_cost(
        self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost], drafting: Drafting
    ) -> Cost:
        """Return the cost of discarded drafts and of judging all drafts of one answer, minus surplus LM-head reads.

        A discarded draft counts the FLOPs of all blocks. Its reads of weights count only up to its exit layer, since
        the verifying pass reads the weights of deeper blocks once for all its tokens. All drafts verified in one pass,
        and the new token if there is one, also share one read of the LM head. `head_rows` counts one read for each of
        them, so the surplus is subtracted.
        """
        in_vain = Cost()
        for cost, layers, n_fed in zip(block_costs, drafting.rejected_layers, drafting.n_fed_rejected, strict=True):
            flops = cost.matmul_flops * model.n_blocks * n_fed
            in_vain += Cost(flops, read_numel=cost.read_numel * sum(layers[:n_fed]))
        rejected = sum(map(len, drafting.rejected_layers))
        tail = sum(1 for _ in itertools.takewhile(lambda layer: layer < model.n_blocks, reversed(exit_layers)))
        accepted = sum(layer < model.n_blocks for layer in exit_layers)
        accepted -= 0 if self.verifies_tail else tail
        endings = rejected - sum(drafting.n_fed_rejected) + (self.verifies_tail and tail > 0)
        verified = accepted + rejected
        shared = Cost(read_numel=-float((verified - endings) * model.vocab_size * model.d_model))
        return in_vain + shared + self.judging_cost(model) * verified

    def judging_cost(self, model: ModelInterface) -> Cost:
        """Return the cost of judging one draft in `rejects`; by default 0, since an argmax is not counted as work."""
        return Cost()


class Rollback(Verified):
    """FREE's RollBack policy: discard a draft, and all tokens after it, if it is too improbable at full depth.

    Args:
        bound: Largest cross-entropy of the draft under the full model, nats; 0 rejects every draft.
    """

    name: ClassVar[str] = "sync-parallel-rollback"

    def __init__(self, bound: float) -> None:
        self.bound = bound

    def rejects(self, logits_NV: Tensor, token_N: Tensor) -> Tensor:
        """Return a mask [N], True for drafts ``token_N`` whose cross-entropy under the full model exceeds the bound."""
        log_p_NV = torch.log_softmax(logits_NV.float(), dim=-1)
        return -log_p_NV.gather(1, token_N[:, None])[:, 0] > self.bound

    def judging_cost(self, model: ModelInterface) -> Cost:
        """Return the cost of judging one draft: a softmax over the vocabulary."""
        return Cost(elementwise_flops=5 * model.vocab_size)


class RollbackCode(Rollback):
    """RollBack policy as in FREE's code: drafts that still wait when an answer ends are kept without verification."""

    name: ClassVar[str] = "sync-parallel-rollback-code"
    verifies_tail: ClassVar[bool] = False


ROLLBACKS: dict[str, type[Rollback]] = {policy.name: policy for policy in (Rollback, RollbackCode)}
"""RollBack policies by name; the constructor takes the bound."""


class Speculation(Verified):
    """Policy of self-speculative decoding: keep drafts that are the full model's greedy choice (LayerSkip section 4.3).

    Args:
        max_drafts: Maximum number of drafts before they are verified together.
    """

    name: ClassVar[str] = "self-speculation"

    def __init__(self, max_drafts: int = 6) -> None:
        self.max_drafts = max_drafts

    def rejects(self, logits_NV: Tensor, token_N: Tensor) -> Tensor:
        """Return a mask [N], True for drafts ``token_N`` that are not the full model's most probable token."""
        return argmax_token(logits_NV) != token_N


class RecomputeBacklog(Deferred):
    """Policy that runs exited tokens again from block 1 with each later token, until one runs all blocks (EE-LLM)."""

    name: ClassVar[str] = "recompute-backlog"
    deferred: ClassVar[Literal["project", "run", "rerun"] | None] = "rerun"

    def cost(self, model: ModelInterface, exit_layers: Sequence[int], block_costs: Sequence[Cost]) -> Cost:
        """Return the FLOPs, for one answer, of running exited tokens again in the blocks that each later token runs.

        Weights and caches are read once, by the later token, so these reads are not counted here.
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
    """Return (token, later token, block) for each block that a token skipped and the later token is the first to run.

    Tokens are indices into ``exit_layers``, the exit layers of one answer.
    """
    waiting: dict[int, int] = {}  # number of blocks run so far, by token
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
