"""Blocks and gates on static buffers: the same tokens, exit layers and scores as the ordinary way, graphs or not.

No CUDA is needed: `EmulatedGraphs` captures what CUDA graphs capture, and refuses what they refuse.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from exitbench.errors import UserError
from exitbench.harness.engine.decoding.block_runner import BlockRunner, RunnerFactory
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.static import gates as static_gates
from exitbench.harness.engine.static import step as static_step
from exitbench.harness.engine.static.gates import Asked
from exitbench.harness.engine.static.step import StaticStep, StaticSteps
from exitbench.methods.base import BlockView, Parts
from exitbench.methods.gates import SoftmaxMargin
from exitbench.methods.registry import get_method

L = 5
NEW_TOKENS = 6
OPEN: dict[str, Any] = {"threshold": 0.3, "decay": "none"}
STATIC_GATES: dict[str, tuple[str, dict[str, Any]]] = {
    "static": ("static", {"exit_layer": 2}),
    "softmax": ("calm-softmax", OPEN),
    "softmax-decayed": ("calm-softmax", {"threshold": 0.5, "decay": "paper", "every": 2}),
    "softmax-never": ("calm-softmax", {"threshold": 1.0, "decay": "none"}),
    "softmax-noisy-cache": ("calm-softmax", {**OPEN, "kv_policy": "noisy"}),
    "softmax-exact-cache": ("calm-softmax", {**OPEN, "kv_policy": "exact"}),
    "saturation": ("calm-saturation", {"threshold": 0.8, "decay": "none"}),
    "saturation-first-zero": ("calm-saturation", {"threshold": 0.8, "decay": "none", "first": "zero"}),
}
STATIC_BLOCKS: dict[str, tuple[str, dict[str, Any]]] = {  # their gates remember, or ask for seeds
    "full": ("full", {}),
    "random": ("random", {"mean_exit": 3.0}),
    "patience": ("patience", {"patience": 1}),
    "softmax-pruned": ("calm-softmax", {**OPEN, "head": "pruned-fixed", "k_first": 20, "k_min": 5}),
}
ORDINARY: dict[str, tuple[str, dict[str, Any]]] = {"oracle": ("oracle", {})} | {
    policy: ("calm-softmax", {**OPEN, "kv_policy": policy})
    for policy in ("state-copy-lazy", "sync-parallel", "recompute-backlog")
}
WAITING = (torch.ops.aten.item, torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero)
METHODS = STATIC_GATES | STATIC_BLOCKS | ORDINARY


class EmulatedGraphs:
    """CUDA graphs as far as they can be had on a CPU: a replay is the same operations on the same memory."""

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        work()  # as a capture is warmed up
        with Capture() as capture:
            work()
        return capture.replay


class Capture(TorchDispatchMode):
    """Notes operations with the tensors that they read and wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[[], Any], list[bool], list[Tensor]]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation.overloadpacket in WAITING:
            raise RuntimeError("operation not permitted when stream is capturing")
        call = partial(operation, *args, **(kwargs or {}))
        result = call()
        given = {tensor.untyped_storage().data_ptr() for tensor in tensors((args, kwargs))}
        made = tensors(result)
        is_new = [tensor.untyped_storage().data_ptr() not in given for tensor in made]  # neither a view nor in place
        self.calls.append((call, is_new, made))
        return result

    def replay(self) -> None:
        for call, is_new, made in self.calls:
            for new, old, result in zip(is_new, made, tensors(call()), strict=True):
                if new:
                    old.copy_(result)


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@pytest.fixture(autouse=True)
def emulated_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_step, "Graphs", EmulatedGraphs)
    monkeypatch.setattr(static_gates, "refusing_to_wait", lambda device: Capture())


def counting(counts: Counter[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*args: Any) -> Any:
        counts[name] += 1
        return function(*args)

    return counted


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a block ran on static buffers, and how often a gate's score was computed there."""
    counts: Counter[str] = Counter()
    monkeypatch.setattr(StaticStep, "run", counting(counts, "block", StaticStep.run))
    monkeypatch.setattr(Asked, "show", counting(counts, "gate", Asked.show))
    return counts


def static_steps(checkpoint: Any, *, graphs: bool = False, one_ahead: bool = False) -> StaticSteps:
    steps = StaticSteps(checkpoint.model, graphs=False, one_ahead=one_ahead)
    steps.graphs = graphs  # emulated ones
    return steps


def parts_of(name: str) -> Parts:
    method, params = METHODS[name]
    return get_method(method).from_params(params).parts(L)


def answers(
    checkpoint: Any, prompts: list[list[int]], parts: Parts, runner_of: RunnerFactory = BlockRunner
) -> list[Generation]:
    requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts)]
    return decode(checkpoint, prefill(checkpoint.model, requests, NEW_TOKENS), parts, runner_of=runner_of)


def assert_same(ours: list[Generation], ordinary: list[Generation]) -> None:
    """All of a trace, scores up to rounding."""
    for made, expected in zip(map(dataclasses.asdict, ours), map(dataclasses.asdict, ordinary), strict=True):
        scores = [[math.inf if score is None else score for score in trace.pop("scores")] for trace in (made, expected)]
        assert made == expected
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("t5", 1),
        *((name, 4) for name in ("t5", "umt5", "llama", "gpt2", "qwen3", "phi3-partly-rotated", "smollm3", "olmo2")),
    ],
)
def test_answers_are_those_of_the_ordinary_way(
    name: str, rows: int, twin: Any, prompts: Any, used: Counter[str]
) -> None:
    """Rows leave together and apart, end apart, and come with sources and prompts of mixed length."""
    checkpoint = twin(name).checkpoint
    full = answers(checkpoint, prompts[:30], parts_of("full"))
    lasting = [prompt for prompt, made in zip(prompts, full, strict=False) if len(made.token_ids) > 2]
    batches = [lasting[:rows], lasting[rows : 2 * rows]]
    ways = [static_steps(checkpoint), static_steps(checkpoint, graphs=True, one_ahead=True)]
    for method in METHODS:
        parts = parts_of(method)
        ordinary = [answers(checkpoint, batch, parts) for batch in batches]
        for steps in ways:
            used.clear()
            for batch, expected in zip(batches, ordinary, strict=True):
                assert_same(answers(checkpoint, batch, parts, steps), expected)
            assert ("block" in used, "gate" in used) == (method not in ORDINARY, method in STATIC_GATES), method


def test_batches_of_alike_length_share_buffers_and_find_nothing_of_each_other(twin: Any, prompts: Any) -> None:
    checkpoint, parts = twin("t5").checkpoint, parts_of("softmax")
    steps = static_steps(checkpoint)
    expected = answers(checkpoint, prompts[:2], parts)
    answers(checkpoint, prompts[2:4], parts, steps)
    (made,) = steps._made.values()
    with torch.inference_mode():
        for left_behind in (made.own.self_kv, made.own.cross_kv):
            left_behind.fill_(math.nan)
    assert_same(answers(checkpoint, prompts[:2], parts, steps), expected)
    assert list(steps._made.values()) == [made]
    for rows in range(1, static_step.SHAPES_KEPT + 2):
        answers(checkpoint, prompts[:rows], parts, steps)
    assert len(steps._made) == static_step.SHAPES_KEPT
    assert made not in steps._made.values()


def test_a_block_enqueued_ahead_is_run_once(twin: Any, prompts: Any) -> None:
    """Once where the row goes on, and in vain where it leaves."""
    checkpoint = twin("llama").checkpoint
    ran: Counter[int] = Counter()
    for method, in_vain in (("softmax-never", 0), ("static", 1)):
        steps = static_steps(checkpoint, one_ahead=True)
        answers(checkpoint, prompts[9:10], parts_of("full"), steps)  # makes the buffers
        (made,) = steps._made.values()
        ran.clear()
        for index, work in enumerate(made._blocks):
            made._blocks[index] = counting(ran, index + 1, work)
        (generation,) = answers(checkpoint, prompts[9:10], parts_of(method), steps)
        decoded = generation.exit_layers[1:]  # the prompt holds the first token
        assert len(decoded) > 2
        assert ran == {block: len(decoded) for block in range(1, decoded[0] + 1 + in_vain)}


class ReadsTheScore(SoftmaxMargin):
    """A gate that has the host look at the device."""

    def score(self, view: BlockView) -> Tensor:
        score_A = super().score(view)
        return score_A if float(score_A[0]) < 2 else -score_A


def test_gates_that_wait_for_the_device_are_asked_the_ordinary_way(twin: Any, prompts: Any, used: Counter[str]) -> None:
    checkpoint = twin("t5").checkpoint
    parts = dataclasses.replace(parts_of("softmax"), gate=ReadsTheScore())
    expected = answers(checkpoint, prompts[:1], parts)
    assert_same(answers(checkpoint, prompts[:1], parts, static_steps(checkpoint, graphs=True)), expected)
    assert used["block"] > 0 == used["gate"]


def test_graphs_without_cuda_are_refused(twin: Any) -> None:
    with pytest.raises(UserError, match="graphs need a model on a CUDA device, not on cpu"):
        StaticSteps(twin("t5").checkpoint.model, graphs=True)
