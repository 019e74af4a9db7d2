"""A number that is not finite ends the decode with an error that names the block. It never decides about an exit."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from prompt_decoding import decode_prompts
from torch import Tensor

from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.decode import Batch, decode, prefill
from exitbench.harness.engine.decoding.generation import Request
from exitbench.harness.engine.model.model import Transformer
from exitbench.harness.engine.model.weights import Linear
from exitbench.methods.base import BlockView, Gate, Parts, Reading, blocks_from
from exitbench.methods.exit_networks import TrainedGate
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import KV_POLICIES, StateCopy
from exitbench.methods.registry import get_method, method_names
from exitbench.methods.thresholds import Constant

L = 5
POISONED = 3
BAD = [math.nan, math.inf]
STATE_GATES = ("calm-saturation", "calm-classifier", "mee-mlp3", "mee-lstm", "berxit")
LOGIT_GATES = (
    "calm-softmax",
    "adainfer",
    "free",
    "heads",
    "max-prob",
    "entropy",
    "contrastive",
    "contrastive-jsd",
    "deebert",
    "fastbert",
)
ROBUST_GATES = ("patience", "pabee", "mee-top3", "contrastive-reweighted")
"""Gates whose score stays finite with bad logits, because they compare an argmax, an order or a masked sum."""


@pytest.fixture(params=["t5", "llama"])
def family(request: pytest.FixtureRequest, twin: Any) -> Any:
    """Return an encoder-decoder or a decoder-only model; the decode loop is the same for all families."""
    return twin(request.param)


def poisoned(checkpoint: Checkpoint, block: int, bad: float) -> Checkpoint:
    """Return a copy of the checkpoint with a bad number in the last weights of a block."""
    model = checkpoint.model
    weight = model.weights.blocks[block - 1].down.weight.clone()
    weight[0, 0] = bad
    blocks = list(model.weights.blocks)
    blocks[block - 1] = dataclasses.replace(blocks[block - 1], down=Linear(weight, blocks[block - 1].down.bias))
    weights = dataclasses.replace(model.weights, blocks=tuple(blocks))
    return dataclasses.replace(checkpoint, model=Transformer(model.arch, weights), eos_ids=frozenset())


def prefilled(family: Any, prompts: list[list[int]]) -> Batch:
    """Prefill eight prompts with weights that are all finite."""
    return prefill(family.checkpoint.model, [Request(prompt, seed) for seed, prompt in enumerate(prompts[:8])], 6)


def method_with_threshold(name: str, level: float = math.inf, **params: Any) -> Parts:
    """Return a method with a gate at every block and the given threshold. A gate's network is not trained."""
    method = get_method(name)(**params)
    fitted: dict[str, Tensor] = {}
    if isinstance(method, TrainedGate):
        torch.manual_seed(0)
        fitted = method.build_network(32).state_dict()
    elif name == "berxit":
        fitted = {"weight": torch.ones(32), "bias": torch.zeros(())}
    parts = method.parts(L, fitted)
    return dataclasses.replace(parts, threshold=Constant(level), blocks=blocks_from(1, L))


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", [*LOGIT_GATES, *STATE_GATES])
def test_error_names_the_first_block_with_non_finite_scores(family: Any, prompts: Any, name: str, bad: float) -> None:
    with pytest.raises(
        ArithmeticError, match=rf"^the (logits|confidence scores) at block {POISONED} are not finite: \["
    ):
        decode(poisoned(family.checkpoint, POISONED, bad), prefilled(family, prompts), method_with_threshold(name))


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", ROBUST_GATES)
@pytest.mark.parametrize("level", [0.0, 1.5, math.inf])
def test_non_finite_logits_raise_an_error_even_if_the_gate_hides_them(
    family: Any, prompts: Any, name: str, level: float, bad: float
) -> None:
    with pytest.raises(ArithmeticError, match=r"^the (logits|confidence scores) at block \d are not finite"):
        decode(poisoned(family.checkpoint, 1, bad), prefilled(family, prompts), method_with_threshold(name, level))


@pytest.mark.parametrize("bad", BAD)
def test_non_finite_logits_at_the_last_block_raise_an_error(family: Any, prompts: Any, bad: float) -> None:
    for name in ("full", "max-prob", "calm-saturation", "patience"):
        parts = get_method("full")().parts(L) if name == "full" else method_with_threshold(name)
        with pytest.raises(
            ArithmeticError, match=rf"^the (logits|confidence scores) at block {L} are not finite: .*(nan|inf)"
        ):
            decode(poisoned(family.checkpoint, L, bad), prefilled(family, prompts), parts)


@pytest.mark.parametrize("bad", BAD)
def test_non_finite_logits_at_a_static_exit_raise_an_error(family: Any, prompts: Any, bad: float) -> None:
    static = get_method("static")(exit_layer=POISONED).parts(L)
    with pytest.raises(ArithmeticError, match=rf"^the logits at block {POISONED} are not finite"):
        decode(poisoned(family.checkpoint, POISONED, bad), prefilled(family, prompts), static)


@pytest.mark.parametrize("policy", KV_POLICIES)
def test_non_finite_block_past_the_exit_fails_only_with_the_noisy_policy(
    family: Any, prompts: Any, policy: str
) -> None:
    """Tokens that exit before the bad block are valid, even if the KV policy runs that block for their keys and values.

    The policy `noisy` emits full depth's token, which is read after the bad block: the decode is refused.
    """
    parts = get_method("static")(exit_layer=2, kv_policy=policy).parts(L)
    batch, bad = prefilled(family, prompts), poisoned(family.checkpoint, 4, math.nan)
    batch.cache.model = bad.model  # which runs the rest
    if policy == "noisy":  # the token is read from the last block, behind the bad one
        with pytest.raises(ArithmeticError, match=r"^the logits at block \d are not finite"):
            decode(bad, batch, parts)
    else:
        tokens = [g.token_ids for g in decode(bad, batch, parts)]
        assert tokens == [g.token_ids for g in decode(family.endless, prefilled(family, prompts), parts)]


def test_first_token_read_from_non_finite_states_raises_an_error(family: Any, prompts: Any) -> None:
    checkpoint = poisoned(family.checkpoint, 2, math.nan)
    with pytest.raises(ArithmeticError, match=rf"^the logits at block {2 if family.is_seq2seq else L} are not finite"):
        decode_prompts(checkpoint, prompts[:8], 6, get_method("static")(exit_layer=2).parts(L))


class OneRowBad(Gate):
    """Gate that gives the row of seed 5 a bad score at one block and lets all other rows exit there."""

    def __init__(self, bad: float) -> None:
        self.bad = bad

    def score(self, view: BlockView) -> Tensor:
        return torch.tensor([self.bad if seed == 5 and view.block == POISONED else 1.0 for seed in view.seeds_A])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_non_finite_row_stops_the_whole_batch(family: Any, prompts: Any, bad: float) -> None:
    parts = Parts(OneRowBad(bad), Constant(0.5), LMHead(), StateCopy(), frozenset({POISONED}))
    with pytest.raises(ArithmeticError, match=rf"^the confidence scores at block {POISONED} are not finite: .*{bad}"):
        decode_prompts(family.endless, prompts[:8], 6, parts)


class BadAt(LMHead):
    """LM head whose logits are not finite at one block, although the states are, as after an overflow in float16."""

    def __init__(self, block: int, bad: float) -> None:
        self.block, self.bad = block, bad

    def read(self, view: BlockView) -> Reading:
        reading = super().read(view)
        return Reading(torch.full_like(reading.logits_AK, self.bad)) if view.block == self.block else reading


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", [*LOGIT_GATES, *ROBUST_GATES])
def test_non_finite_logits_of_finite_states_name_the_block(family: Any, prompts: Any, name: str, bad: float) -> None:
    parts = dataclasses.replace(method_with_threshold(name), head=BadAt(POISONED, bad))
    with pytest.raises(ArithmeticError, match=rf"^the (logits|confidence scores) at block {POISONED} are not finite"):
        decode(family.checkpoint, prefilled(family, prompts), parts)


def test_noisy_policy_error_names_the_last_block(family: Any, prompts: Any) -> None:
    parts = get_method("static")(exit_layer=2, kv_policy="noisy").parts(L)
    batch, bad = prefilled(family, prompts), poisoned(family.checkpoint, L, math.nan)
    batch.cache.model = bad.model
    with pytest.raises(ArithmeticError, match=rf"^the logits at block {L} are not finite"):
        decode(bad, batch, parts)


def test_lists_of_this_file_cover_every_bundled_method() -> None:
    without_a_score = {"full", "static", "random", "oracle", "self-speculation", "del", "prompt-lookup"}
    named = {*LOGIT_GATES, *ROBUST_GATES, *STATE_GATES, *without_a_score}
    assert {name for name in method_names() if get_method(name).__module__.startswith("exitbench.")} == named
