"""int8 weights: products against a plain reference, and whole models against the same models in bf16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.engine.model.model import Transformer
from exitbench.harness.engine.model.weights import Linear
from exitbench.harness.engine.products.int8 import FEW_ROWS, ByBf16, EmbeddingBag, Int8, table_bytes

BF16_EPS = torch.finfo(torch.bfloat16).eps


def dequantized_product(weight: Tensor, x: Tensor) -> Tensor:
    """Return x times the weight, quantized to int8 and dequantized row by row, in float64."""
    rows = []
    for row in weight.double():
        scale = (row.abs().max() / 127).bfloat16().double()
        integers = torch.zeros_like(row) if scale == 0 else (row / scale).round().clamp(-127, 127)
        rows.append(x.double() @ (scale * integers))
    return torch.stack(rows, dim=-1)


@given(st.integers(0, 2**31), st.sampled_from([1, 2, FEW_ROWS, FEW_ROWS + 1, 40]), st.sampled_from([1e-3, 1.0, 50.0]))
def test_product_equals_that_of_the_dequantized_weight(seed: int, n_rows: int, size: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    weight = (torch.randn(24, 32, generator=draw) * size).bfloat16()
    weight[3] = 0
    x = torch.randn(n_rows, 32, generator=draw).bfloat16()
    exact = dequantized_product(weight, x)
    for form in (Int8.from_projection(Linear(weight)), ByBf16.from_projection(Linear(weight))):
        assert form.weight.dtype == torch.int8 and form.scale.dtype == torch.bfloat16
        assert (form(x).double() - exact).abs().max() <= 2 * BF16_EPS * exact.abs().max()


@given(st.integers(1, 900), st.integers(1, 70), st.booleans(), st.integers(0, 2**31))
@example(n_outputs=385, n_inputs=1, with_bias=False, seed=0)  # two bags, with padding
def test_embedding_bags_equal_the_product_of_the_dequantized_weight(
    n_outputs: int, n_inputs: int, with_bias: bool, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(n_outputs, n_inputs, generator=draw).bfloat16()
    bias = torch.randn(n_outputs, generator=draw).bfloat16() if with_bias else None
    x = torch.randn(1, n_inputs, generator=draw).bfloat16()
    plain = Int8.from_projection(Linear(weight, bias))
    bags = EmbeddingBag(plain.weight, bias, scale=plain.scale)
    product, added = dequantized_product(weight, x), torch.zeros(1) if bias is None else bias.double()
    terms = x.double().abs().sum() * weight.double().abs().amax(1)
    allowed = BF16_EPS * (product.abs() + added.abs()) + 2.0**-16 * terms  # rounding to bf16, and of sums in fp32
    assert ((bags(x).double() - product - added).abs() <= allowed).all()
    table, *_ = bags._bags
    assert table.nbytes == table_bytes(weight.shape)
    assert type(bags.outputs(n_outputs // 2)) is Int8  # a part of a weight is not copied to a table of its own


@given(st.integers(0, 2**31))
def test_rounding_error_is_at_most_half_a_quantization_step(seed: int) -> None:
    weight = torch.randn(16, 32, generator=torch.Generator().manual_seed(seed)).bfloat16()
    rounded = Int8.from_projection(Linear(weight))
    moved = (rounded.weight.double() * rounded.scale.double()[:, None] - weight.double()).abs()
    assert (moved <= 0.5 * (1 + 1e-9) * rounded.scale.double()[:, None]).all()
    assert rounded.weight.abs().max() <= 127


def test_stacked_and_sliced_projections_equal_the_separate_products() -> None:
    draw = torch.Generator().manual_seed(3)
    one, two = (
        Int8.from_projection(
            Linear(torch.randn(8, 32, generator=draw).bfloat16(), torch.randn(8, generator=draw).bfloat16())
        )
        for _ in range(2)
    )
    x = torch.randn(1, 32, generator=draw).bfloat16()
    both = torch.cat((one(x), two(x)), dim=-1)
    assert torch.equal(one.stacked([two])(x), both)
    assert torch.equal(one.stacked([two]).outputs(5)(x), both[:, 5:])


def test_every_projection_and_nothing_else_is_int8(family: Any) -> None:
    model, bf16 = (load_checkpoint(family.folder, dtype).model for dtype in (torch.int8, torch.bfloat16))
    assert isinstance(model, Transformer) and model.dtype == torch.bfloat16
    weights, usual = model.weights, bf16.weights
    assert torch.equal(weights.token_embedding_VD, usual.token_embedding_VD)
    assert torch.equal(weights.final_norm.weight, usual.final_norm.weight)
    pairs = [(weights.lm_head, usual.lm_head)]
    for ours, theirs in zip(
        (*weights.blocks, *weights.encoder_blocks), (*usual.blocks, *usual.encoder_blocks), strict=True
    ):
        names = ("qkv", "attention_out", "up", "down", "cross_q", "cross_kv", "cross_out")
        pairs += [(getattr(ours, name), getattr(theirs, name)) for name in names if getattr(theirs, name) is not None]
    for ours, theirs in pairs:
        assert torch.equal(ours.weight, Int8.from_projection(Linear(theirs.weight)).weight)


def test_int8_logits_are_close_to_fp32_logits_in_every_family(family: Any) -> None:
    results = []
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        model = load_checkpoint(family.folder, dtype).model
        prompts = [[7, 8, 9], [11, 12, 13]]
        cache, state = model.start(prompts, room=2)
        if state is None:
            hidden, context = model.embed(torch.full((2, 1), 7), cache)
            for block in range(1, model.n_blocks + 1):
                hidden = model.block(block, hidden, context)
            state = hidden[:, -1]
        results.append(model.logits(state).float())
    exact, bf16, int8 = results
    assert (int8 - exact).norm() / exact.norm() < 0.06
    assert not torch.equal(int8, bf16)


def test_logits_of_selected_head_rows_match_those_of_the_whole_head(family: Any) -> None:
    model, draw = load_checkpoint(family.folder, torch.int8).model, torch.Generator().manual_seed(3)
    hidden = torch.randn(3, model.d_model, generator=draw).bfloat16()
    ids = torch.stack([torch.randperm(model.vocab_size, generator=draw)[:9] for _ in range(3)])
    result, whole = model.logits_of(hidden, model.head_weights(ids)), model.logits(hidden).gather(1, ids)
    assert (result - whole).float().abs().max() <= 4 * BF16_EPS * whole.float().abs().max()


def test_the_hosted_engine_refuses_int8(twin: Any) -> None:
    folder: Path = twin("llama").folder
    with pytest.raises(UserError, match=r'dtype = "int8" is of the lean engine, and this model is run by the hosted'):
        load_checkpoint(folder, torch.int8, engine="hosted")
