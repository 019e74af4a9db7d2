"""Losses for training early exits: cross-entropy of a decoder's blocks, and losses of exit heads on a frozen model.

Every block's output is read out exactly like the last block's: shared final norm, T5's tied scaling d_model ** -0.5,
shared LM head. Shape suffixes: N tokens, V vocabulary, D hidden size, K heads, L blocks, S tokens of a slice.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from exitbench.errors import UserError, suggestion

IGNORED = -100
SLICE_TOKENS = 512
VOCABULARY_SLICE_TOKENS = 128
"""Tokens of a slice with all logits of a large vocabulary."""

JointLoss = Literal["last", "uniform", "weighted", "geometric", "branchynet", "last-70"]


def block_weights(n_blocks: int, loss: JointLoss, blocks: Sequence[int] = ()) -> Tensor:
    """Return the weight of each block's cross-entropy in a joint loss, the weighted sum over all blocks, [L].

    The weights sum to 1, except for `branchynet`.

    Args:
        n_blocks: L, the number of decoder blocks.
        loss: Name of the loss, which gives the weights of blocks l = 1..L. `last`: the last block only. `uniform`:
            1 / L (FREE's `ce`). `weighted`: l / sum_j j (CALM, Schuster et al. 2022; t5x aggregation 1). `geometric`:
            proportional to 2 ** l (t5x aggregation -1). `branchynet`: 1 for every block, the un-normalized sum of
            "Early Exit Is a Natural Capability". `last-70`: equal weights for blocks l > 0.3 L and 0 before, as
            proposed in the Monotonic-Early-Exit blog. The blog does not give the scale; normalizing to 1 is this
            project's choice.
        blocks: Blocks whose losses count, including the last block; other blocks have weight 0. Empty for all blocks.

    Raises:
        UserError: The loss is unknown, or the last of `blocks` is not the model's last block.

    Examples:
        >>> block_weights(4, "weighted")
        tensor([0.1000, 0.2000, 0.3000, 0.4000])
        >>> block_weights(4, "weighted", blocks=(1, 4))
        tensor([0.2000, 0.0000, 0.0000, 0.8000])
    """
    if blocks and blocks[-1] != n_blocks:
        raise UserError(f"[objective] blocks ends with {blocks[-1]}. Allowed: the model's last block, {n_blocks}.")
    depth = torch.arange(1, n_blocks + 1, dtype=torch.float64)
    counts = torch.isin(depth, torch.tensor(blocks)) if blocks else torch.ones(n_blocks, dtype=torch.bool)
    if loss == "branchynet":
        return counts.float()
    if loss == "last":
        weights = (depth == n_blocks).double()
    elif loss == "uniform":
        weights = torch.ones_like(depth)
    elif loss == "weighted":
        weights = depth
    elif loss == "geometric":
        weights = 2 ** (depth - n_blocks)
    elif loss == "last-70":
        weights = (10 * depth > 3 * n_blocks).double()
    else:
        raise UserError(f"Joint loss {loss!r} is not known.{suggestion(loss, get_args(JointLoss))}")
    weights *= counts
    return (weights / weights.sum()).float()


def shallow_deep_weights(n_blocks: int, shallow: int) -> Tensor:
    """Return FREE's weight of each block's loss, [L]: S / (S + L) at block S, L / (S + L) at block L, and 0 elsewhere.

    S is `shallow`, the only block with an early exit, and L is `n_blocks`, the last block (Bae et al. 2023).

    Raises:
        UserError: S is not the number of a block before the last.
    """
    check_shallow(n_blocks, shallow)
    weights = torch.zeros(n_blocks)
    weights[shallow - 1], weights[-1] = shallow / (shallow + n_blocks), n_blocks / (shallow + n_blocks)
    return weights


def check_shallow(n_blocks: int, shallow: int) -> None:
    """Raise a `UserError` unless `shallow` is the number of a block before the last: 1 to `n_blocks` - 1."""
    if not 1 <= shallow < n_blocks:
        raise UserError(f"Shallow depth {shallow} of {n_blocks} blocks. Allowed: 1 to {n_blocks - 1}.")


def exit_head_loss(logits_NV: Tensor, target: Tensor, lam: float) -> Tensor:
    """Return an exit head's loss (1 - lambda) CE(p, target) - lambda H(p) in nats, mean over tokens.

    p is the head's distribution. Its entropy H is subtracted, which rewards uncertain heads.

    Args:
        logits_NV: The exit head's logits, [N tokens, V vocabulary].
        target: The frozen model's most probable tokens, [N] (as in the published code), or its probabilities, [N, V]
            (as in the paper).
        lam: lambda, 0 to 1; 0.95 in "self-supervised heads on Phi-2".

    Returns:
        A scalar in fp32 or a wider format.
    """
    log_p = logits_NV.log_softmax(-1, dtype=_at_least_fp32(logits_NV))
    entropy = -(log_p.exp() * log_p).sum(-1).mean()
    if target.is_floating_point():
        cross_entropy = -(target.detach() * log_p).sum(-1).mean()
    else:
        cross_entropy = F.nll_loss(log_p, target)
    return (1 - lam) * cross_entropy - lam * entropy


def tuned_lens_loss(logits_NV: Tensor, final_logits_NV: Tensor) -> Tensor:
    """Return the divergence KL(final || lens) of an exit head from the last block, in nats, mean over tokens.

    This is how a tuned lens is trained (Belrose et al. 2023).

    Args:
        logits_NV: The exit head's logits (lens), [N tokens, V vocabulary].
        final_logits_NV: The last block's logits for the same tokens (final), [N, V]; they get no gradient.

    Returns:
        A scalar in fp32 or a wider format.
    """
    dtype = _at_least_fp32(logits_NV)
    final = final_logits_NV.detach().log_softmax(-1, dtype=dtype)
    return F.kl_div(logits_NV.log_softmax(-1, dtype=dtype), final, log_target=True, reduction="batchmean")


def lm_head_divergences(
    inputs: Sequence[Tensor], final_ND: Tensor, head: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return divergence from the last block, agreement with it, and entropy for K inputs of one LM head, each [K].

    The K inputs are what K exit heads pass to the model's LM head for the same tokens. The divergence equals
    `tuned_lens_loss(F.linear(input, head, bias), F.linear(final, head, bias))` for each of them. The last block's
    distribution is computed once for all. No array of tokens times vocabulary is kept, to save memory.

    Args:
        inputs: K inputs of the LM head, each [N tokens, D hidden size]; only they receive gradients.
        final_ND: The LM head's input after the last block, [N, D]; without gradient.
        head: Weights of the LM head, [V vocabulary, D]; without gradient.
        bias: Bias of the LM head, [V]; without gradient.

    Returns:
        KL(last block || exit head) in nats, mean over tokens; share of tokens for which both have the same most
        probable token; mean entropy of the exit head in nats. Only the first has a gradient.
    """
    inputs_KND, device = torch.stack(list(inputs)), head.device.type
    if torch.is_autocast_enabled(device):
        inputs_KND = inputs_KND.to(torch.get_autocast_dtype(device))
    constants = (final_ND, head) if bias is None else (final_ND, head, bias)
    with torch.autocast(device, enabled=False):
        same_dtype = [constant.detach().to(inputs_KND.dtype) for constant in constants]
        results: tuple[Tensor, Tensor, Tensor] = _LmHeadDivergences.apply(inputs_KND, *same_dtype)  # type: ignore[no-untyped-call]
    return results


class _LmHeadDivergences(torch.autograd.Function):
    """LM head fused with the divergence from the last block; gradients are computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, inputs_KND: Tensor, final_ND: Tensor, head: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        n, dtype = len(final_ND), _at_least_fp32(final_ND)
        d_inputs_KND = torch.empty_like(inputs_KND)
        losses_K, agreements_K, entropies_K = torch.zeros(3, len(inputs_KND), dtype=dtype, device=head.device)
        for start in range(0, n, VOCABULARY_SLICE_TOKENS):
            tokens = slice(start, start + VOCABULARY_SLICE_TOKENS)
            final_SV = F.linear(final_ND[tokens], head, bias).to(dtype)
            choices_S = final_SV.argmax(-1)
            log_q_SV = final_SV.log_softmax(-1)
            q_SV = log_q_SV.exp()
            negative_entropy = torch.linalg.vecdot(q_SV, log_q_SV).sum()
            for k, (inputs_ND, d_inputs_ND) in enumerate(zip(inputs_KND, d_inputs_KND, strict=True)):
                z_SV = F.linear(inputs_ND[tokens], head, bias).to(dtype)
                agreements_K[k] += (z_SV.argmax(-1) == choices_S).sum()
                log_total_S = z_SV.logsumexp(-1)
                losses_K[k] += negative_entropy + (log_total_S - torch.linalg.vecdot(q_SV, z_SV)).sum()
                p_SV = (z_SV - log_total_S[:, None]).exp_()
                entropies_K[k] += (log_total_S - torch.linalg.vecdot(p_SV, z_SV)).sum()
                torch.mm(p_SV.sub_(q_SV).to(head.dtype), head, out=d_inputs_ND[tokens])
        ctx.save_for_backward(d_inputs_KND / n)
        ctx.mark_non_differentiable(agreements_K, entropies_K)
        return losses_K / n, agreements_K.div_(n), entropies_K.div_(n)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (d_inputs_KND,) = ctx.saved_tensors
        return d_inputs_KND * gradients[0][:, None, None].to(d_inputs_KND.dtype), None, None, None


def _at_least_fp32(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which sums are accumulated: the tensor's own, but at least fp32."""
    return torch.promote_types(tensor.dtype, torch.float32)


def head_loss(
    states: Tensor, head: Tensor, target: Tensor, label_smoothing: float = 0.0, bias: Tensor | None = None
) -> Tensor:
    """Return the mean cross-entropy of one block in nats, with LM head and loss fused to save memory.

    It equals `F.cross_entropy(states @ head.T + bias, target, label_smoothing=label_smoothing)`.

    Args:
        states: Input of the LM head, [N tokens, d_model].
        head: Weights of the LM head, which all blocks share, [V vocabulary, d_model].
        target: Correct token ids, [N].
        label_smoothing: Share of the correct token's probability that is spread over the vocabulary.
        bias: Bias of the LM head, [V]; None if it has none.

    Returns:
        A scalar in fp32 or a wider format.
    """
    if bias is not None:  # fold the bias in: one more column of the head, and a 1 in every state
        states = torch.cat((states, torch.ones_like(states[:, :1])), dim=1)
        head = torch.cat((head, bias[:, None]), dim=1)
    device = states.device.type
    if torch.is_autocast_enabled(device):
        states = states.to(torch.get_autocast_dtype(device))
    with torch.autocast(device, enabled=False):
        loss: Tensor = _HeadLoss.apply(states, head.to(states.dtype), target, label_smoothing)  # type: ignore[no-untyped-call]
    return loss


class _HeadLoss(torch.autograd.Function):
    """LM head fused with the cross-entropy; gradients are computed in the forward pass.

    If every block is read out, logits dominate the memory traffic of a training step. Here they are visited three times
    (product, softmax, product), in slices of tokens that fit into the processor's cache. Label smoothing is linear in
    the logits, so its term needs no array of tokens times vocabulary.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, head: Tensor, target: Tensor, smoothing: float) -> Tensor:
        n, vocabulary = len(states), len(head)
        dtype = _at_least_fp32(states)
        head_mean = head.to(dtype).mean(0)
        loss = torch.zeros((), dtype=dtype, device=states.device)
        d_states, d_head = torch.empty_like(states), torch.zeros_like(head, dtype=dtype)
        for h, gold, d_h in zip(*(torch.split(x, SLICE_TOKENS) for x in (states, target, d_states)), strict=True):
            logits = F.linear(h, head)
            gold_logit = logits.gather(1, gold[:, None]).squeeze(1).to(dtype)
            p = logits.softmax(-1)
            p_gold = p.gather(1, gold[:, None]).squeeze(1).to(dtype).clamp_min(torch.finfo(dtype).tiny)
            mean_logit = h.to(dtype) @ head_mean
            loss += (smoothing * (gold_logit - mean_logit)).sum() - p_gold.log().sum()
            p[torch.arange(len(gold), device=gold.device), gold] = (p_gold - (1 - smoothing)).to(p.dtype)
            torch.mm(p, head, out=d_h)
            d_head += p.T @ h
        d_states -= (smoothing * head_mean).to(states.dtype)
        d_head -= smoothing / vocabulary * states.to(dtype).sum(0)
        ctx.save_for_backward(d_states / n, (d_head / n).to(head.dtype))
        return loss / n

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d_states, d_head = ctx.saved_tensors
        return d_states * gradients[0], d_head * gradients[0], None, None
