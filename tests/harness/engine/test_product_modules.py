"""Linear layers of transformers' modules give the same numbers with packed weights: hosted engine and encoders."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from prompt_decoding import decode_prompts
from torch import nn

from exitbench.harness.cells.texts import EncodedText
from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.engine.encoders.classify import classify
from exitbench.harness.engine.encoders.model import EncoderClassifier
from exitbench.harness.engine.encoders.stack import find_encoder_stack
from exitbench.harness.engine.hosted.calls import SparedLinear
from exitbench.harness.engine.products import choosing, modules
from exitbench.harness.engine.products.choosing import SWITCH, use_fastest
from exitbench.harness.engine.products.forms import PackedForRows, can_pack
from exitbench.harness.engine.products.timing import TimedProduct
from exitbench.methods.registry import get_method

pytestmark = pytest.mark.skipif(not can_pack(torch.float32), reason="torch cannot pack weights here")


@pytest.fixture
def packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Choose packed weights for every layer, however small; the returned list gets the keys of each timed step."""
    steps: list[list[str]] = []

    def always_packed(step: list[TimedProduct], clock: object) -> Mapping[str, str]:
        steps.append([timed.weight_key for timed in step])
        return {timed.weight_key: "packed" for timed in step}

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(SWITCH)
    monkeypatch.setattr(modules, "fastest", always_packed)
    monkeypatch.setattr(modules, "LEAST_NUMEL", 0)
    return steps


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(
    ("packed_rows", "way"),
    [("one", "packed"), ("one", "padded"), ("two", "packed"), ("two", "padded"), ("few", "packed"), ("many", "packed")],
)
def test_rows_are_multiplied_packed_or_not_with_equal_results(
    packed_rows: str, way: str, with_bias: bool, dtype: torch.dtype, limit: float
) -> None:
    """Also without rows, as experts of a mixture may be called, and with inputs that are not contiguous."""
    if not can_pack(dtype):
        pytest.skip("torch cannot pack weights of this format here")
    draw = torch.Generator().manual_seed(1)
    layer = nn.Linear(32, 48, bias=with_bias, dtype=dtype).requires_grad_(False)
    chosen = {key: way if f" {packed_rows} row" in key else "matrix" for key in modules.module_places([layer])}
    for n_rows, kind in ((0, "none"), (1, "one"), (2, "two"), (3, "few"), (16, "few"), (17, "many"), (40, "many")):
        converted = copy.deepcopy(layer)
        modules.convert_modules([converted], chosen)
        x = torch.randn(n_rows, 32, generator=draw).to(dtype)
        strided = torch.randn(32, n_rows, generator=draw).to(dtype).t()
        for given in (x, x[None], x[:, None], strided):
            torch.testing.assert_close(converted(given), layer(given), atol=limit, rtol=0)
        assert ("_packed" in vars(converted.forward)) == (kind == packed_rows)  # packed at its first use
        assert ("_padded" in vars(converted.forward)) == (kind == packed_rows and way == "padded")


@pytest.mark.parametrize("name", ["t5", "gpt2", "qwen3", "olmo2"])
def test_hosted_model_gives_the_usual_answers_and_fills(name: str, twin: Any, packs: list[list[str]]) -> None:
    """Blocks that only store keys and values leave projections out, packed or not."""
    usual, packed = twin(name).hosted, load_checkpoint(twin(name).folder, engine="hosted")
    choices = use_fastest(packed.model)
    linears = [layer for layer in packed.model.stack.lm.modules() if type(layer) is nn.Linear]
    assert choices is not None and set(choices.values()) == {"packed"} and len(packs) == 4
    assert len(choices) == 4 * len({layer.weight.shape for layer in linears})
    forwards = [vars(layer)["forward"] for layer in linears]
    spared = [forward for forward in forwards if isinstance(forward, SparedLinear)]
    assert all(isinstance(getattr(forward, "run", forward), PackedForRows) for forward in forwards)
    assert bool(spared) == (name != "gpt2")  # it has no such layers
    for method, params in (("full", {}), ("static", {"exit_layer": 2})):
        parts = get_method(method).from_params(params).parts(usual.model.n_blocks)
        for prompts in ([[5, 6, 7]], [[9, 8, 7, 6], [5, 6]]):
            ours, theirs = (
                [each.token_ids for each in decode_prompts(used, prompts, 6, parts)] for used in (packed, usual)
            )
            assert ours == theirs


def test_choice_for_modules_is_stored_and_used_again(twin: Any, packs: list[list[str]]) -> None:
    first, second = (use_fastest(load_checkpoint(twin("gpt2").folder, engine="hosted").model) for _ in range(2))
    assert first == second and len(packs) == 4


def test_encoder_gives_the_usual_probabilities(packs: list[list[str]]) -> None:
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=48, num_labels=3
    )
    torch.manual_seed(0)
    lm = transformers.BertForSequenceClassification(config).eval().requires_grad_(False)
    texts = [EncodedText((5, 6, 7, 8), None, seed=0), EncodedText((9, 10), None, seed=1)]
    model, full = EncoderClassifier(find_encoder_stack(lm)), get_method("full")().parts(3)
    before = [(answer.label, answer.value) for answer in classify(model, texts, full)]
    assert use_fastest(model) is not None
    assert isinstance(lm.bert.encoder.layer[2].output.dense.forward, PackedForRows)
    after = [(answer.label, answer.value) for answer in classify(model, texts, full)]
    assert after == [(label, pytest.approx(probability, abs=1e-5)) for label, probability in before]


@pytest.mark.parametrize(("lacking", "is_packed"), [(0, True), (1, False), (None, False)])
def test_copies_take_at_most_a_quarter_of_machine_memory(
    lacking: int | None, is_packed: bool, twin: Any, packs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_checkpoint(twin("gpt2").folder, engine="hosted").model
    copied = sum(layer.weight.nbytes for layer in modules.linear_modules(model.stack.lm, model.dtype))
    monkeypatch.setattr(choosing, "machine_bytes", lambda: None if lacking is None else 4 * copied - lacking)
    assert (use_fastest(model) is not None) == is_packed


def test_small_layers_and_layers_with_hooks_are_left_alone() -> None:
    large, small, hooked = nn.Linear(512, 256), nn.Linear(512, 255), nn.Linear(512, 256)
    hooked.forward = lambda x: x  # type: ignore[method-assign]
    assert modules.linear_modules(nn.Sequential(large, small, hooked), torch.float32) == [large]
