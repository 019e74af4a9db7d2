"""The method `heads`: exit heads that it evaluates, models that it refuses, and its cost with each kind of head."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.exit_head_files import new_exit_heads
from exitbench.harness.engine.decoding.block_runner import BlockRunner
from exitbench.harness.engine.decoding.decode import decode_step
from exitbench.harness.engine.decoding.trace import Trace
from exitbench.harness.engine.model.cost import TokenPlace, answer_cost
from exitbench.harness.engine.model.exit_heads import KINDS, ExitHeads, HeadKind
from exitbench.harness.engine.model.model import Transformer
from exitbench.methods.base import FitData, argmax_token
from exitbench.methods.registry import get_method

L = 6
HEADS = (1, 3, 4)


def heads(**params: Any) -> Any:
    return get_method("heads").from_params(params)


# ------------------------------------------------------------------------------------------ which heads


def test_exit_blocks_selects_heads_and_defaults_to_all() -> None:
    assert heads().bound_to(HEADS).parts(L).blocks == {1, 3, 4}
    assert heads(exit_blocks=[4, 1]).bound_to(HEADS).parts(L).blocks == {1, 4}


def test_checkpoint_without_the_requested_exit_heads_is_refused() -> None:
    with pytest.raises(UserError, match=r"'heads' needs a checkpoint with trained exit heads.*\[exit_heads\] table"):
        heads().bound_to(())
    with pytest.raises(UserError, match=re.escape("heads.exit_blocks has 2, where the checkpoint has no exit head;")):
        heads(exit_blocks=[2, 3]).bound_to(HEADS)
    with pytest.raises(UserError, match=r"heads\.exit_blocks has 6; allowed: between 1 and 5"):
        heads(exit_blocks=[3, L]).check(L)


def test_methods_without_exit_heads_ignore_the_checkpoints_heads() -> None:
    method = get_method("max-prob").from_params({})
    assert method.bound_to(()) == method.bound_to(HEADS) == method


# ------------------------------------------------------------------------------------------ thresholds


def test_logit_thresholds_may_lie_outside_0_and_1() -> None:
    assert heads(confidence="max-logit", threshold=-3.5).bound_to(HEADS).parts(L).threshold.value(1, 1, 8) == -3.5
    assert heads(rule="per-block", levels=[12.0, -1.0, 0.0, 3.0, 0.0]).parts(L).threshold.value(2, 1, 8) == -1.0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_fitted_thresholds_reach_the_required_agreement_with_full_depth(tiny: Any, temperature: float) -> None:
    """Tokens above a block's fitted threshold agree with full depth as often as required (``epsilon``).

    A block without a head, or where no threshold is enough, gets an infinite one: no token exits there.
    """
    model, n_tokens = tiny.checkpoint.model, 400
    states = torch.randn(L + 1, n_tokens, model.d_model, generator=torch.Generator().manual_seed(5))
    final = argmax_token(model.exit_logits(4, states[4]))  # so that the head of block 4 is always right
    data = FitData(model, states, final, final, torch.arange(n_tokens) // 40)
    method = heads(rule="epsilon", epsilon=0.6, temperature=temperature).bound_to(HEADS)
    rule = method.threshold_rule(method.fit(data, lambda share: None).tensors)
    levels = torch.tensor([rule.value(block, 1, 1) for block in range(1, L)])
    assert levels[[1, 4]].isinf().all(), "no heads there"
    score_N = torch.softmax(model.exit_logits(4, states[4]), -1).topk(2).values.diff(dim=-1).neg()[:, 0]
    assert levels[3] < score_N.min() and levels[3] == pytest.approx(float(score_N.min()), abs=1e-6)
    for block in (1, 3):
        logits = model.exit_logits(block, states[block])
        top = torch.softmax(logits, -1).topk(2).values
        leaves = (top[:, 0] - top[:, 1]) > levels[block - 1]
        agrees = argmax_token(logits) == final
        assert not leaves.any() or agrees[leaves].double().mean() >= 0.6


def test_temperature_changes_neither_fit_nor_score_parameters() -> None:
    greedy, drawn = heads(rule="epsilon"), heads(rule="epsilon", temperature=0.7)
    assert greedy.fit_params() == drawn.fit_params() != {}
    assert greedy.score_params() == drawn.score_params()
    assert heads(confidence="max-prob").score_params() != heads().score_params()
    assert not heads().probe_has_score(), "a probe reads the model's own head"


# ------------------------------------------------------------------------------------------ cost


@pytest.mark.parametrize("kind", KINDS)
def test_declared_cost_of_an_exit_head_equals_counted_flops(tiny: Any, kind: HeadKind) -> None:
    base = tiny.checkpoint.model
    width, vocabulary, hidden_width = base.d_model, base.vocab_size, 10
    weights, generator = base.weights, torch.Generator().manual_seed(0)
    norm = weights.final_norm.weight
    tensors = new_exit_heads(
        kind, (2, 4), width, vocabulary, "layer", "scratch", norm, None, norm, hidden_width, generator=generator
    )
    model = Transformer(base.arch, weights, ExitHeads(kind, (2, 4), tensors))
    prompt = [5, 6, 7]
    for level, exit_layer in ((-1e9, 2), (1e9, L)):
        parts = heads(threshold=level).bound_to(model.exit_blocks).parts(L)
        cache, state = model.start([prompt], room=2)
        place = TokenPlace(cache.length + 1, len(prompt) if state is None else 0)
        trace = Trace(model)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            decode_step(BlockRunner(model, cache, parts), torch.tensor([5]), (1,), 8, (0,), observer=trace)
        declared = answer_cost(model, parts, trace.records, [place])
        assert trace.exit_layers == [exit_layer]
        assert declared.matmul_flops == pytest.approx(counter.get_total_flops(), rel=1e-3)
