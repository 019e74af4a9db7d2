"""Every method against its definition (methods.md 1.2, 1.8, 1.12), written again in NumPy and decoded slowly."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from exitbench.harness.decode import Request, decode, prefill
from exitbench.methods.random_exit import uniform
from exitbench.methods.registry import get_method

Array = NDArray[np.float64]
L = 6
MAX_NEW_TOKENS = 7


def margin(logits: Array) -> float:
    """p_(1) - p_(2)."""
    shares = np.exp(logits - logits.max())
    second, first = np.sort(shares / shares.sum())[-2:]
    return float(first - second)


def calm_threshold(level: float, decay: str, temperature: float, t: int, n: int) -> float:
    if decay == "none":
        return level
    if decay == "code":
        return 0.9 * level + 0.1 * level * float(np.exp(-temperature * t / n))
    return float(np.clip(0.9 * level + 0.1 * np.exp(-temperature * t / n), 0, 1))


def calm_softmax(logits: Array, t: int, n: int, seed: int, params: dict[str, Any]) -> tuple[int, float | None]:
    level = calm_threshold(params["threshold"], params["decay"], params["temperature"], t, n)
    for block in range(params["min_exit"], L):
        score = margin(logits[block - 1])
        assert abs(score - level) > 1e-5, "too near the threshold for a comparison in single precision"
        if score > level:
            return block, score
    return L, None


def static(logits: Array, t: int, n: int, seed: int, params: dict[str, Any]) -> tuple[int, float | None]:
    return params["exit_layer"], None if params["exit_layer"] == L else 1.0


def full(logits: Array, t: int, n: int, seed: int, params: dict[str, Any]) -> tuple[int, float | None]:
    return L, None


def oracle(logits: Array, t: int, n: int, seed: int, params: dict[str, Any]) -> tuple[int, float | None]:
    choices = logits.argmax(1)
    agrees = choices == choices[-1]
    if params["stable"]:
        layer = next(block for block in range(1, L + 1) if agrees[block - 1 :].all())
    else:
        layer = next(block for block in range(1, L + 1) if agrees[block - 1])
    return layer, None if layer == L else 1.0


def random(logits: Array, t: int, n: int, seed: int, params: dict[str, Any]) -> tuple[int, float | None]:
    draw = uniform(params["seed"], seed, t)
    layer = 1 + int(np.searchsorted(np.cumsum(geometric(params["mean_exit"], L))[:-1], draw, side="right"))
    return layer, None if layer == L else 1.0


@functools.cache
def geometric(mean: float, n_blocks: int) -> Array:
    """p_l proportional to r^l with the given mean, r found on a fine grid and then by secant steps."""
    blocks = np.arange(1, n_blocks + 1)

    def distribution(log_r: float) -> Array:
        weights = np.exp(log_r * blocks - max(log_r, log_r * n_blocks))
        return np.asarray(weights / weights.sum())

    grid = np.linspace(-40, 40, 4001)
    means = np.array([distribution(log_r) @ blocks for log_r in grid])
    return distribution(float(np.interp(mean, means, grid)))


CASES = [
    ("full", full, {}),
    ("static", static, {"exit_layer": 1}),
    ("static", static, {"exit_layer": 4}),
    ("static", static, {"exit_layer": L}),
    ("calm-softmax", calm_softmax, {"threshold": 0.3, "decay": "none", "temperature": 4.0, "min_exit": 1}),
    ("calm-softmax", calm_softmax, {"threshold": 0.3, "decay": "code", "temperature": 9.0, "min_exit": 1}),
    ("calm-softmax", calm_softmax, {"threshold": 0.1, "decay": "paper", "temperature": 4.0, "min_exit": 2}),
    ("oracle", oracle, {"stable": False}),
    ("oracle", oracle, {"stable": True}),
    ("random", random, {"mean_exit": 3.0, "seed": 5}),
    ("random", random, {"mean_exit": 1.0, "seed": 0}),
    ("random", random, {"mean_exit": float(L), "seed": 0}),
]


@pytest.mark.parametrize(("name", "rule", "params"), CASES, ids=lambda value: value if isinstance(value, str) else None)
def test_tokens_exit_layers_and_scores_are_those_of_the_definition(
    tiny: Any, prompts: Any, slow_decode: Any, name: str, rule: Any, params: dict[str, Any]
) -> None:
    method = get_method(name).from_params(params)
    requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts[:4])]
    batch = prefill(tiny.checkpoint.model, requests, MAX_NEW_TOKENS)
    for request, ours in zip(requests, decode(tiny.checkpoint, batch, method.parts(L)), strict=True):
        theirs = slow_decode(
            tiny, request.prompt_ids, request.seed, MAX_NEW_TOKENS, lambda *about: rule(*about, params)
        )
        assert ours.token_ids == [made.token for made in theirs]
        assert ours.exit_layers == [made.exit_layer for made in theirs]
        assert [score is None for score in ours.scores] == [made.score is None for made in theirs]
        known = [(a, b.score) for a, b in zip(ours.scores, theirs, strict=True) if a is not None]
        assert [a for a, _ in known] == pytest.approx([b for _, b in known], abs=1e-4)


@pytest.mark.parametrize("threshold", [0.3, 0.5])
def test_the_checkpoints_spread_the_exits_of_the_softmax_gate(tiny: Any, prompts: Any, threshold: float) -> None:
    """Else the comparisons above would say little."""
    parts = get_method("calm-softmax")(threshold=threshold).parts(L)
    batch = prefill(tiny.checkpoint.model, [Request(prompt) for prompt in prompts], MAX_NEW_TOKENS)
    exits = [layer for g in decode(tiny.checkpoint, batch, parts) for layer in g.exit_layers]
    assert len(set(exits)) >= 4
