"""Each state is normed once: gate, LM head, skipped blocks and the next block use the same normed state."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from prompt_decoding import decode_prompts
from torch import Tensor

from exitbench.harness.engine.model.model import Transformer
from exitbench.methods.base import Method
from exitbench.methods.calm_classifier import CalmClassifier
from exitbench.methods.calm_saturation import CalmSaturation
from exitbench.methods.calm_softmax import CalmSoftmax
from exitbench.methods.full import Full
from exitbench.methods.mee_mlp3 import MeeMlp3
from exitbench.methods.thresholds import Constant

# An encoder-decoder and a decoder-only model: the decode loop is the same for all families.
pytestmark = pytest.mark.parametrize("family", ["t5", "llama"], indirect=True)

L, WIDTH, N_NEW = 5, 32, 6
NEVER = 2.0
READERS: list[Method] = [
    CalmClassifier(decay="none"),
    CalmSaturation(decay="none"),
    MeeMlp3(min_exit=2, decay="none"),
    CalmSoftmax(decay="none"),
]


def answers(family: Any, prompts: Any, method: Method, threshold: float | None = None) -> Any:
    """Return the traced answers to a few prompts; a gate's network has random weights."""
    torch.manual_seed(0)
    network = method.build_network(WIDTH).state_dict() if hasattr(method, "build_network") else {}
    parts = method.parts(L, network)
    if threshold is not None:
        parts = dataclasses.replace(parts, threshold=Constant(threshold))
    return decode_prompts(family.checkpoint, prompts[:3], N_NEW, parts)


@pytest.mark.parametrize("method", READERS, ids=lambda method: method.name)
def test_shared_norms_give_bit_identical_scores(
    family: Any, prompts: Any, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [score for result in answers(family, prompts, method, -NEVER) for score in result.scores]
    scores = sorted(score for score in told if score is not None)
    level = scores[len(scores) // 2]  # so that some rows leave and others go on
    shared = answers(family, prompts, method, level)
    monkeypatch.setattr(Transformer, "_normalised", Transformer.normalise)
    assert answers(family, prompts, method, level) == shared
    exits = {layer for result in shared for layer in result.exit_layers}
    assert len(exits) > 1, "or nothing was shared among different rows"


@pytest.mark.parametrize("method", READERS, ids=lambda method: method.name)
def test_gates_add_no_norms_of_current_states_while_no_row_exits(
    family: Any, prompts: Any, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Tensor] = []
    normalise = Transformer.normalise

    def counted(self: Transformer, x: Tensor) -> Tensor:
        calls.append(x)
        return normalise(self, x)

    monkeypatch.setattr(Transformer, "normalise", counted)
    n_calls = []
    for asked in (Full(), method):
        calls.clear()
        result = answers(family, prompts, asked, NEVER if asked is method else None)
        n_calls.append(len(calls))
    n_steps = max(len(each.token_ids) for each in result) - (family.checkpoint.kind == "causal")
    before_first_asked = {"calm-saturation": 1, "mee-mlp3": 2}  # states that are looked back at
    assert n_calls[1] - n_calls[0] == n_steps * before_first_asked.get(method.name, 0)
