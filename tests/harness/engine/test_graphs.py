"""Blocks captured as CUDA graphs give the same tokens and exits; a fake on the CPU replaces the GPU's capture.

The fake runs the captured function again at every replay, on the same tensors. The tests thus show that only the
contents of buffers change between steps. `tests/benchmarks/gpu.py` checks that a GPU can capture these kernels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from prompt_decoding import decode_prompts
from torch import Tensor

from exitbench.harness.engine.model import graphs, model
from exitbench.methods.base import Method
from exitbench.methods.calm_saturation import CalmSaturation
from exitbench.methods.calm_softmax import CalmSoftmax
from exitbench.methods.full import Full
from exitbench.methods.oracle import Oracle
from exitbench.methods.patience import Patience
from exitbench.methods.self_speculation import SelfSpeculation
from exitbench.methods.static import Static

L, N_NEW = 5, 6
SOFTMAX = CalmSoftmax(threshold=0.05, decay="none")
METHODS: list[Method] = [
    *(Full(), Static(exit_layer=3), SOFTMAX, CalmSaturation(threshold=0.6, decay="none"), Patience(patience=1)),
    *(Oracle(), SelfSpeculation(exit_layer=2, drafts=2)),
    *(dataclasses.replace(SOFTMAX, kv_policy=policy) for policy in ("exact", "sync-parallel", "recompute-backlog")),
]


@pytest.fixture
def replays(family: Any) -> Iterator[list[int]]:
    """Replace graph capture by a fake on the CPU; yield a list that gets one entry per replay of a captured block."""
    engine, replayed = family.checkpoint.model, []

    def capture(run: Callable[[], Tensor], pool: Any) -> tuple[Tensor, Callable[[], None]]:
        before = engine.newest
        result = run()
        normed = engine.newest.normed if engine.newest.hidden is result else None
        result.fill_(torch.nan)  # a capture runs nothing
        if normed is not None:
            normed.fill_(torch.nan)

        def replay() -> None:
            replayed.append(1)
            engine.newest = before
            result.copy_(run())
            if normed is not None:
                normed.copy_(engine.newest.normed)

        return result, replay

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(graphs, "capture", capture)
        patched.setattr(graphs, "new_pool", lambda: None)
        patched.setattr(model, "DEVICES", frozenset({"cpu"}))
        yield replayed


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", [0, 1], ids=["even", "odd"])
def test_captured_blocks_give_the_same_tokens_and_exits(
    family: Any, prompts: Any, part: int, request: pytest.FixtureRequest
) -> None:
    batches = [prompts[:1], prompts[5:6], prompts[:4], prompts[4:12]]
    cases = [(batch, method) for batch in batches for method in METHODS[part::2]]
    expected = [decode_prompts(family.checkpoint, batch, N_NEW, method.parts(L)) for batch, method in cases]
    replays = request.getfixturevalue("replays")
    for (batch, method), reference in zip(cases, expected, strict=True):
        n_before = len(replays)
        captured = decode_prompts(family.checkpoint, batch, N_NEW, method.parts(L))
        assert [(g.token_ids, g.exit_layers) for g in captured] == [(g.token_ids, g.exit_layers) for g in reference]
        if method.parts(L).kv_policy.deferred is not None:
            assert len(replays) == n_before, "deferred tokens keep states beyond their step"
    assert replays
