"""What every method must hold, those of other distributions included.

A method registered through the entry-point group ``exitbench.methods`` is tested with its default parameters; add
parameters worth testing to `EXAMPLES`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from exitbench.harness.cost import TokenPlace, token_cost
from exitbench.harness.decode import Generation, Request, decode, decode_step, prefill
from exitbench.methods.base import BlockView, Method, Parts, Threshold
from exitbench.methods.gates import Always
from exitbench.methods.registry import baseline_method, get_method, method_names
from exitbench.methods.thresholds import Constant

L = 6
MAX_NEW_TOKENS = 8
EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "calm-softmax": [
        {"threshold": 0.3},
        {"threshold": 0.3, "decay": "none", "min_exit": 2},
        {"threshold": 0.1, "decay": "paper"},
    ],
    "static": [{"exit_layer": 4}, {"exit_layer": L}],
    "random": [{"mean_exit": 3.5}, {"mean_exit": 2.0, "seed": 9}],
    "oracle": [{"stable": True}],
}
CASES = [(name, params) for name in method_names() for params in ({}, *EXAMPLES.get(name, ()))]
NEVER, ALWAYS = Constant(math.inf), Constant(-math.inf)


@pytest.fixture(
    params=CASES, ids=[f"{name}-{'-'.join(map(str, params.values())) or 'default'}" for name, params in CASES]
)
def method(request: pytest.FixtureRequest) -> Method:
    """Every registered method."""
    name, params = request.param
    made = get_method(name).from_params(params)
    made.check(L)
    return made


def run(tiny: Any, parts: Parts, prompts: list[list[int]], first_seed: int = 0) -> list[Generation]:
    requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts, first_seed)]
    return decode(tiny.checkpoint, prefill(tiny.checkpoint.model, requests, MAX_NEW_TOKENS), parts)


def decoded_layers(tiny: Any, generations: list[Generation]) -> list[int]:
    """Exit layers of all tokens but those that the prompt itself gave (decoder-only models)."""
    skip = 0 if tiny.checkpoint.kind == "seq2seq" else 1
    return [layer for g in generations for layer in g.exit_layers[skip:]]


def allowed(parts: Parts) -> set[int]:
    """Blocks after which a token may end."""
    return {block for block in parts.blocks if block < L} | {L}


# ---------------------------------------------------------------------------------------------- thresholds


def test_threshold_never_is_full_depth_token_for_token(tiny: Any, prompts: Any, method: Method) -> None:
    never = run(tiny, dataclasses.replace(method.parts(L), threshold=NEVER), prompts)
    full = run(tiny, baseline_method()().parts(L), prompts)
    assert [g.token_ids for g in never] == [g.token_ids for g in full]
    assert {layer for g in never for layer in g.exit_layers} == {L}


def test_threshold_always_exits_at_the_first_allowed_block(tiny: Any, prompts: Any, method: Method) -> None:
    always = dataclasses.replace(method.parts(L), threshold=ALWAYS)
    assert set(decoded_layers(tiny, run(tiny, always, prompts))) == {min(allowed(always))}


def test_every_token_has_one_exit_layer_among_the_allowed_blocks(tiny: Any, prompts: Any, method: Method) -> None:
    parts = method.parts(L)
    for g in run(tiny, parts, prompts):
        assert len(g.exit_layers) == len(g.token_ids) > 0
        assert set(g.exit_layers) <= allowed(parts)


def full_depth_states(tiny: Any, prompts: list[list[int]]) -> Tensor:
    """A probe: states of 24 tokens after every block at full depth, [L, 24, D]."""
    model = tiny.checkpoint.model
    cache, _ = model.start(prompts[:6], room=4)
    tokens = torch.randint(2, model.vocab_size, (6, 4), generator=torch.Generator().manual_seed(8))
    hidden = model.embed(tokens, cache)
    states = []
    for block in range(1, L + 1):
        hidden = model.block(block, hidden, cache)
        states.append(hidden.flatten(0, 1))
    return torch.stack(states)


def replayed_exits(tiny: Any, parts: Parts, states_LAD: Tensor, threshold: Threshold) -> Tensor:
    """Exit layer of every probed token under a threshold, rows dropped as the decode loop drops them, [A]."""
    exits = torch.full((states_LAD.shape[1],), L)
    rows, memory = torch.arange(states_LAD.shape[1]), {}
    for block in sorted(allowed(parts) - {L}):
        view = BlockView(
            block=block,
            position=1,
            max_new_tokens=MAX_NEW_TOKENS,
            hidden_AD=states_LAD[block - 1, rows],
            seeds_A=tuple(rows.tolist()),
            memory=memory,
            model=tiny.checkpoint.model,
            head=parts.head,
            ahead_LAD=states_LAD[:, rows] if parts.gate.looks_ahead else None,
        )
        score = parts.gate.score(view)
        assert score.shape == rows.shape
        assert not score.isnan().any()
        leaves = score > threshold.value(block, 1, MAX_NEW_TOKENS)
        exits[rows[leaves]] = block
        rows, memory = rows[~leaves], {name: value[~leaves] for name, value in memory.items()}
    return exits


def test_mean_exit_layer_never_falls_as_the_threshold_rises(tiny: Any, prompts: Any, method: Method) -> None:
    parts = method.parts(L)
    states = full_depth_states(tiny, prompts)
    levels = [-math.inf, *torch.linspace(-0.05, 1.05, 23).tolist(), math.inf]
    means = [replayed_exits(tiny, parts, states, Constant(level)).double().mean().item() for level in levels]
    assert means == sorted(means)
    assert (means[0], means[-1]) == (min(allowed(parts)), L)


# ------------------------------------------------------------------------------------------- independence


def test_a_batch_equals_its_rows_alone(tiny: Any, prompts: Any, method: Method) -> None:
    together = run(tiny, method.parts(L), prompts)
    for seed, (prompt, expected) in enumerate(zip(prompts, together, strict=True)):
        (alone,) = run(tiny, method.parts(L), [prompt], first_seed=seed)
        assert (alone.token_ids, alone.exit_layers) == (expected.token_ids, expected.exit_layers)


def test_the_same_seed_gives_the_same_trace(tiny: Any, prompts: Any, method: Method) -> None:
    again = type(method).from_params(method.params())
    assert run(tiny, method.parts(L), prompts) == run(tiny, again.parts(L), prompts)


# ------------------------------------------------------------------------------------------- cost


@dataclasses.dataclass(frozen=True)
class From(Threshold):
    """Every score leaves from this block on, none before."""

    first: int

    def value(self, block: int, position: int, max_new_tokens: int) -> float:
        return -math.inf if block >= self.first else math.inf

    def sql(self, max_new_tokens: int) -> str:
        return f"CASE WHEN l >= {self.first} THEN '-infinity' ELSE 'infinity' END"


def test_declared_cost_is_what_a_flop_counter_sees_at_every_exit(tiny: Any, prompts: Any, method: Method) -> None:
    """Oracles declare the cost of a gate that knew without running the full depth, so such a gate stands in here."""
    model, parts = tiny.checkpoint.model, method.parts(L)
    if parts.gate.looks_ahead:
        parts = dataclasses.replace(parts, gate=Always())
    prompt, fed = prompts[1], 3
    for exit_layer in sorted(allowed(parts)):
        at = dataclasses.replace(parts, threshold=From(exit_layer))
        cache, state = model.start([prompt], room=fed + 2)
        before = cache.length
        for position in range(1, fed + 1):
            decode_step(model, cache, torch.tensor([5]), at, position, MAX_NEW_TOKENS, (0,))
        # The counter does not know the fused attention of CPUs; its plain form is made of products it counts.
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            step = decode_step(model, cache, torch.tensor([5]), at, fed + 1, MAX_NEW_TOKENS, (0,))
        assert step.exit_layer_B.tolist() == [exit_layer]
        place = TokenPlace(context=before + fed + 1, source=len(prompt) if state is None else 0)
        declared = token_cost(model, at, exit_layer, place).matmul_flops
        assert declared == pytest.approx(counter.get_total_flops(), rel=0.01)
