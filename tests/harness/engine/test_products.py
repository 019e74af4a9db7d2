"""Products in alternative forms give the same numbers. The fastest form is measured once and stored."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from prompt_decoding import full_depth_tokens
from torch import Tensor

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.engine.model.exit_heads import ExitHeads
from exitbench.harness.engine.model.weights import Linear
from exitbench.harness.engine.products import choice_store, choosing, timing
from exitbench.harness.engine.products.choosing import SWITCH, use_fastest
from exitbench.harness.engine.products.forms import (
    FORMS,
    WIDENED_NUMEL,
    ByMatrix,
    Fp16Copy,
    Packed,
    PackedForRows,
    available_forms,
    can_copy_to_fp16,
    can_pack,
    fp16_copy_bytes,
)
from exitbench.harness.engine.products.int8 import Int8
from exitbench.harness.engine.products.timing import BUDGET_S, LEAST_ROUNDS, TimedProduct, fastest

EVERY_FORM = [(dtype, role, name) for dtype, forms in FORMS.items() for role in forms for name in forms[role]]


EACH_TOKEN = [name for names in choosing._EACH_TOKEN.values() for name in names]
SEVERAL = (" two rows", " few rows", " many rows")
"""Ends of the keys of products with several rows."""


class Clock:
    """A clock that advances only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, seconds: Callable[[], float]) -> Callable[[Tensor], Tensor]:
        def product(x: Tensor) -> Tensor:
            self.now += seconds()
            return x

        return product


def timed(clock: Clock, **seconds: float | Callable[[], float]) -> TimedProduct:
    """Return a product whose forms take the given seconds on the fake clock."""

    def told(value: float | Callable[[], float]) -> Callable[[], float]:
        return value if callable(value) else lambda: value

    return TimedProduct(
        "block", (torch.zeros(1),), {name: clock.taking(told(value)) for name, value in seconds.items()}
    )


# ------------------------------------------------------------------------------------------------- what is fastest


def test_fastest_form_is_chosen() -> None:
    clock = Clock()
    assert fastest([timed(clock, default=0.010, slow=0.012, fast=0.002, faster=0.001)], clock) == {"block": "faster"}


@pytest.mark.parametrize(("took", "chosen"), [(0.0092, "default"), (0.0090, "other")])
def test_form_must_be_a_tenth_faster_than_the_default_to_be_chosen(took: float, chosen: str) -> None:
    """A form must be a tenth faster than the default to be chosen."""
    clock = Clock()
    assert fastest([timed(clock, default=0.010, other=took)], clock) == {"block": chosen}


@pytest.mark.parametrize(("took", "chosen"), [(0.0019, "first"), (0.0018, "second")])
def test_later_form_must_be_a_tenth_faster_than_an_earlier_one_to_be_chosen(took: float, chosen: str) -> None:
    """A packed form, of which few and many rows need no copy, is kept where the next one is hardly faster."""
    clock = Clock()
    assert fastest([timed(clock, default=0.010, first=0.002, second=took)], clock) == {"block": chosen}


@pytest.mark.parametrize(("took", "chosen"), [(7.1e-6, "default"), (6.9e-6, "other")])
def test_form_must_save_3_microseconds_per_product_to_be_chosen(took: float, chosen: str) -> None:
    """Calling another routine may take longer in a decode step than in a loop of products."""
    clock = Clock()
    assert fastest([timed(clock, default=10e-6, other=took)] * 2, clock) == {"block": chosen}


def test_products_of_a_step_follow_each_other_before_the_next_input() -> None:
    """Right after another product, a weight is in the cache less often than right after its own."""
    calls: list[tuple[str, int]] = []

    def product(name: str, inputs: tuple[int, ...]) -> TimedProduct:
        forms = {"default": lambda x: calls.append((name, len(x))) or x}
        return TimedProduct(name, tuple(torch.ones(rows, 2) for rows in inputs), forms)

    fastest([product("up", (4, 8)), product("down", (4, 8)), product("head", (4,))], Clock())
    assert calls[:5] == [("up", 4), ("down", 4), ("head", 4), ("up", 8), ("down", 8)]


def test_form_that_is_faster_only_in_some_rounds_is_not_chosen() -> None:
    """Times that vary this much come from a busy machine, so the default form is kept."""
    clock, rounds = Clock(), iter(range(1000))
    assert fastest([timed(clock, default=0.010, other=lambda: (0.001, 0.020)[next(rounds) % 2])], clock) == {
        "block": "default"
    }


def test_single_slow_round_does_not_change_the_choice() -> None:
    clock, rounds = Clock(), iter(range(1000))
    assert fastest([timed(clock, default=0.010, other=lambda: 0.05 if next(rounds) == 3 else 0.004)], clock) == {
        "block": "other"
    }


def test_measuring_time_is_bounded_and_too_few_rounds_keep_the_default() -> None:
    clock = Clock()
    assert fastest([timed(clock, default=1.0, other=0.1)], clock) == {"block": "default"}
    assert clock.now < 1.1 * LEAST_ROUNDS


def test_slow_first_use_does_not_count_against_a_form() -> None:
    clock, took = Clock(), iter([2 * BUDGET_S])
    packed = timed(clock, default=0.010, packed=lambda: next(took, 0.001))
    assert fastest([packed], clock) == {"block": "packed"}


def test_one_form_is_chosen_per_weight_key() -> None:
    clock = Clock()
    one, two = timed(clock, default=0.001, other=0.003), timed(clock, default=0.010, other=0.001)
    head = dataclasses.replace(timed(clock, default=0.010, other=0.020), weight_key="head")
    assert fastest([one, two, head], clock) == {"block": "other", "head": "default"}


# ------------------------------------------------------------------------------------------------------- the forms


@pytest.mark.parametrize("n_rows", [1, 2, 3, 20])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("dtype", "role", "name"), EVERY_FORM)
def test_every_form_gives_the_exact_product_up_to_rounding(
    dtype: torch.dtype, role: Any, name: str, with_bias: bool, n_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each form gives the exact product up to rounding, and its result has the number format of the states."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    if name not in available_forms(dtype, role, (48, 32)):
        pytest.skip("this processor does not multiply so")
    draw = torch.Generator().manual_seed(1)
    computes = torch.bfloat16 if dtype == torch.int8 else dtype
    bias = torch.randn(48, generator=draw).to(computes) if with_bias else None
    plain = Linear(torch.randn(48, 32, generator=draw).to(computes), bias)
    loaded = Int8.from_projection(plain) if dtype == torch.int8 else plain
    weight = (
        loaded.weight.double() * loaded.scale.double()[:, None] if isinstance(loaded, Int8) else plain.weight.double()
    )
    form = FORMS[dtype][role][name](loaded)
    x, stream = (torch.randn(n_rows, width, generator=draw).to(computes) for width in (32, 48))
    exact = x.double() @ weight.T + (0 if bias is None else bias.double())
    digits = torch.finfo(computes).eps
    for result, expected in ((form(x), exact), (form.onto(stream, x), stream.double() + exact)):
        assert result.dtype == computes and result.shape == (n_rows, 48)
        assert (result.double() - expected).abs().max() <= 4 * digits * exact.abs().max()
    for shaped in (x[None], x[:, None], x.t().contiguous().t()):
        result = form(shaped).reshape(n_rows, 48).double()
        torch.testing.assert_close(result, exact, atol=8 * digits * exact.abs().max(), rtol=0)
    tail = form.outputs(40)(x)
    assert (tail.double() - exact[:, 40:]).abs().max() <= 4 * digits * exact.abs().max()


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("ways", [{"two": "padded"}, {"few": "packed"}, {"two": "packed", "many": "packed"}])
@pytest.mark.parametrize("name", FORMS[torch.float32]["block"])
def test_two_rows_few_or_many_use_a_packed_copy_of_the_weight(name: str, ways: Any, with_bias: bool) -> None:
    """Inputs of 2 rows, of 3 to 16, or of more, use a packed copy of the weight, made at its first use; others do not.

    A weight that is packed for single rows already is not copied.
    """
    draw = torch.Generator().manual_seed(1)
    plain = Linear(torch.randn(48, 32, generator=draw), torch.randn(48, generator=draw) if with_bias else None)
    one = FORMS[torch.float32]["block"][name](plain)
    for n_rows, rows in ((1, "one"), (2, "two"), (3, "few"), (4, "few"), (16, "few"), (17, "many"), (40, "many")):
        form = PackedForRows(one.weight, one.bias, base=one, ways=ways)
        x, stream = (torch.randn(n_rows, width, generator=draw) for width in (32, 48))
        exact = x.double() @ plain.weight.double().T + (0 if plain.bias is None else plain.bias.double())
        torch.testing.assert_close(form(x).double(), exact, atol=2e-5, rtol=0)
        torch.testing.assert_close(form.onto(stream, x).double(), stream.double() + exact, atol=2e-5, rtol=0)
        torch.testing.assert_close(form(x[None])[0].double(), exact, atol=2e-5, rtol=0)
        assert ("_packed" in vars(form)) == (rows in ways) and ("_padded" in vars(form)) == (ways.get(rows) == "padded")
        assert name != "packed" or rows not in ways or form._packed is one
        assert rows in ways or torch.equal(form(x), one(x))
    assert torch.equal(form.outputs(40)(x), one.outputs(40)(x))


@pytest.mark.parametrize(("dtype", "name"), [(torch.float32, "split"), (torch.bfloat16, "fp16-copy")])
def test_forms_for_single_rows_multiply_two_as_well(
    dtype: torch.dtype, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rows, such as those of one draft, take hardly longer than one in these forms; more are left to torch."""
    if name not in available_forms(dtype, "block", (48, 32)):
        pytest.skip("torch has no such product here")
    form = FORMS[dtype]["block"][name](Linear(torch.ones(48, 32, dtype=dtype)))
    left: list[int] = []
    for base in (Linear, ByMatrix):
        monkeypatch.setattr(base, "__call__", lambda form, x: left.append(len(x)) or x @ form.weight.t())
    for n_rows in (1, 2, 3):
        form(torch.ones(n_rows, 32, dtype=dtype))
    assert left == [3]


@pytest.mark.parametrize("n_rows", [1, 2, 3, 4, 5])
def test_padded_product_multiplies_one_or_two_rows_as_four(n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = Packed.from_projection(Linear(torch.ones(48, 32)))
    multiplied: list[int] = []
    product = Packed._product
    monkeypatch.setattr(Packed, "_product", lambda form, x: multiplied.append(len(x)) or product(form, x))
    dataclasses.replace(packed, padded=True)(torch.ones(n_rows, 32))
    packed(torch.ones(n_rows, 32))
    assert multiplied == [4 if n_rows <= 2 else n_rows, n_rows]


def test_large_matrices_are_not_copied_to_fp32() -> None:
    side = int(WIDENED_NUMEL**0.5)
    assert "widened" in available_forms(torch.bfloat16, "block", (side, side))
    assert "widened" not in available_forms(torch.bfloat16, "block", (side, 2 * side))


def test_outputs_are_split_only_into_equal_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are as many parts as threads, but two at least."""
    for threads, is_offered in ((1, True), (2, True), (3, True), (4, False)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert ("split" in available_forms(torch.float32, "block", (6, 5))) == is_offered
    part = Linear(torch.randn(7, 5))  # such as the part of an LM head that is timed
    torch.testing.assert_close(FORMS[torch.float32]["head"]["split"](part)(torch.ones(1, 5)), part(torch.ones(1, 5)))


def test_bf16_is_packed_only_if_onednn_supports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_multiplied in (False, True):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda said=is_multiplied: said)
        assert ("packed" in available_forms(torch.bfloat16, "head", (5, 5))) == is_multiplied
        assert "packed" in available_forms(torch.float32, "head", (5, 5))


def test_without_onednn_nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert available_forms(torch.float32, "head", (5, 5)) == ("output-major", "input-major")


@given(seed=st.integers(0, 2**32), binades=st.integers(0, 60), exponent=st.integers(-30, 30), width=st.integers(1, 80))
@example(seed=0, binades=35, exponent=-30, width=1)
def test_copy_in_fp16_loses_less_than_the_sum_in_fp32(seed: int, binades: int, exponent: int, width: int) -> None:
    """Weights of very different magnitudes: bf16 has as many exponents as fp32, fp16 has far fewer.

    Each output's largest weight is between 2**-90 and 2**90; others are not copied (the next test).
    """
    if not can_copy_to_fp16():
        pytest.skip("torch has no such product here")
    random = torch.Generator().manual_seed(seed)
    below_largest = binades * torch.rand(6, width, generator=random)
    below_largest[:, 0] = 0
    exponents = exponent * torch.arange(-2, 4)[:, None] - below_largest
    weight = (torch.randn(6, width, generator=random).sign() * torch.exp2(exponents)).bfloat16()
    x = torch.randn(1, width, generator=random) * torch.exp2(-min(binades, 30) * torch.rand(1, width, generator=random))
    exact, terms = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    copied = 2.0**-40 * weight.double().abs().amax(1) * x.double().abs().sum()
    lost = (Fp16Copy(weight)(x).double() - exact).abs()
    assert (lost <= (width + 1) * 2.0**-24 * terms + copied).all()


@pytest.mark.parametrize("extreme", [torch.inf, 2.0**120, 2.0**-120])
def test_weights_without_a_scale_are_not_copied_to_fp16(extreme: float) -> None:
    """Infinity would become a number of fp16; other scales are no numbers of fp32."""
    weight = torch.ones(3, 4, dtype=torch.bfloat16)
    weight[1] = extreme
    weight[2] = 0
    product = FORMS[torch.bfloat16]["block"]["fp16-copy"](Linear(weight))(torch.ones(1, 4, dtype=torch.bfloat16))
    assert product.tolist() == [[4.0, 4 * extreme, 0.0]]


# ------------------------------------------------------------------------------------------------- a loaded model


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty user cache, with the choice of forms enabled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(SWITCH)
    return tmp_path / "cache" / "exitbench"


@pytest.fixture
def choosing_last(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace timing by choosing the last form of every product; the returned list gets one entry per measurement."""
    measured: list[int] = []

    def last(step: list[TimedProduct], clock: object) -> Mapping[str, str]:
        keys = [each.weight_key for each in step]
        if any(key.startswith("head ") and not key.endswith(SEVERAL) for key in keys):  # other steps follow
            measured.append(len(step))
        return {each.weight_key: list(each.forms)[-1] for each in step}

    monkeypatch.setattr(choosing, "fastest", last)
    return measured


def choose(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Replace timing by choosing ``form`` where it is available, else the default."""
    monkeypatch.setattr(
        choosing,
        "fastest",
        lambda step, clock: {each.weight_key: form if form in each.forms else next(iter(each.forms)) for each in step},
    )


def answers(checkpoint: Any) -> list[list[int]]:
    """Return full depth's answers to a batch of two prompts and to a batch of one."""
    batches = [[5, 6, 7], [9, 8]], [[11, 12, 13, 14]]
    return [token_ids for batch in batches for token_ids in full_depth_tokens(checkpoint, batch, 6)]


@pytest.mark.parametrize("name", ["t5", "llama-rope3-biases", "gpt2", "olmo2", "qwen3"])
def test_model_gives_the_same_answers_in_every_form(
    name: str, twin: Any, cache: Path, choosing_last: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared in fp32, where rounding of the last bits changes no token."""
    family = twin(name)
    for position in range(max(len(forms) for forms in FORMS[torch.float32].values())):
        monkeypatch.setattr(
            choosing,
            "fastest",
            lambda step, clock, at=position: {each.weight_key: [*each.forms][at % len(each.forms)] for each in step},
        )
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache / str(position)))
        checkpoint = load_checkpoint(family.folder)
        assert use_fastest(checkpoint.model) is not None
        assert answers(checkpoint) == answers(family.checkpoint)


@pytest.mark.parametrize("n_rows", [1, 2])
@pytest.mark.parametrize("dtype", FORMS)
def test_parts_of_weights_are_multiplied_equally_in_the_last_form_of_each_dtype(
    dtype: torch.dtype, n_rows: int, twin: Any, cache: Path, choosing_last: list[int]
) -> None:
    """Parts are keys and values of skipped blocks, and rows of the LM head."""
    usual, converted = (load_checkpoint(twin("llama").folder, dtype).model for _ in range(2))
    use_fastest(converted)
    state = torch.randn(n_rows, 32).to(usual.dtype)
    expected, result = (model.skip_kv(2)(state).float() for model in (usual, converted))
    assert (result - expected).norm() <= 4 * torch.finfo(usual.dtype).eps * expected.norm()
    expected, result = (model.block_kv(2)(state).float() for model in (usual, converted))
    assert (result - expected).norm() <= 4 * torch.finfo(usual.dtype).eps * expected.norm()
    rows = usual.head_weights(torch.tensor([[9, 4, 2, 7]] * n_rows))
    expected, result = (model.logits_of(state, rows).float() for model in (usual, converted))
    assert (result - expected).norm() <= 4 * torch.finfo(usual.dtype).eps * expected.norm()


def test_packed_lm_head_keeps_its_unpacked_rows(twin: Any, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, "packed")
    model, ids = load_checkpoint(twin("t5").folder).model, torch.tensor([[4, 2]])
    use_fastest(model)
    assert model.weights.read_out is not None and model.weights.read_out.weight.is_mkldnn
    assert torch.equal(model.head_weights(ids), twin("t5").checkpoint.model.head_weights(ids))
    assert model.vocab_size == twin("t5").checkpoint.model.vocab_size


@pytest.mark.parametrize("name", FORMS[torch.float32]["head"])
def test_exit_heads_of_the_lm_heads_shape_have_its_form(
    name: str, twin: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, name)
    model = load_checkpoint(twin("llama").folder).model
    width, draw = model.d_model, torch.Generator().manual_seed(3)
    tensors = {"2.norm.weight": torch.ones(width)}
    tensors["2.out.weight"] = torch.randn(model.vocab_size, width, generator=draw)
    model.exit_heads = ExitHeads("linear", (2,), tensors)
    states = [torch.randn(rows, width, generator=draw) for rows in (1, 2, 3, 20)]
    expected = [model.exit_logits(2, state) for state in states]
    use_fastest(model)
    assert type(model.exit_heads.outputs[2]) is type(model.weights.read_out or model.lm_head)
    for state, logits in zip(states, expected, strict=True):
        torch.testing.assert_close(model.exit_logits(2, state), logits)
    counted = dataclasses.replace(model.exit_heads, outputs={2: lambda normed: torch.tensor(len(normed))})
    assert counted.logits(2, states[1], model) == 2, "the stored form is the one that multiplies"


def test_exit_heads_of_another_width_keep_the_default_product(twin: Any, cache: Path, choosing_last: list[int]) -> None:
    model = load_checkpoint(twin("llama").folder).model
    tensors = {"2.out.weight": torch.ones(model.vocab_size, 2 * model.d_model)}
    model.exit_heads = ExitHeads("mlp", (2,), tensors)
    use_fastest(model)
    assert model.exit_heads.outputs == {}


@pytest.mark.parametrize("rows", SEVERAL)
@pytest.mark.parametrize("way", ["packed", "padded"])
def test_packed_weights_for_several_rows_are_used_if_measured_faster(
    rows: str, way: str, twin: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks and LM head get a packed weight for some numbers of rows, even if the form for one row is the default.

    The projections that fill skipped blocks are not packed. Only two rows can be padded.
    """

    def told(step: list[TimedProduct], clock: object) -> Mapping[str, str]:
        return {
            each.weight_key: way if each.weight_key.endswith(rows) and way in each.forms else next(iter(each.forms))
            for each in step
        }

    monkeypatch.setattr(choosing, "fastest", told)
    model = load_checkpoint(twin("t5").folder).model
    choices = use_fastest(model)
    assert choices is not None
    roles = {place.split()[0] for place, form in choices.items() if place.endswith(rows) and form == way}
    block = model.weights.blocks[0]
    if way == "padded" and rows != SEVERAL[0]:
        assert not roles and not isinstance(block.qkv, PackedForRows)
        return
    assert roles == {"block", "residual", "head"}
    for product in (block.qkv, block.cross_out, block.down, model.weights.read_out):
        assert isinstance(product, PackedForRows) and "_packed" not in vars(product)
        assert product.ways == {rows.split()[0]: way}
    assert not isinstance(block.cross_kv, PackedForRows) and not isinstance(model.skip_kv(1), PackedForRows)
    tokens = answers(dataclasses.replace(twin("t5").checkpoint, model=model))
    assert tokens == answers(twin("t5").checkpoint)
    assert ("_packed" in vars(block.qkv)) == ("_packed" in vars(model.weights.read_out)) == (rows == SEVERAL[0])


@pytest.mark.parametrize("way", [None, "padded"])
def test_weight_that_is_packed_for_single_rows_may_be_padded_for_two(
    way: str | None, twin: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: dict[str, list[str]] = {}

    def told(step: list[TimedProduct], clock: object) -> Mapping[str, str]:
        offered.update({each.weight_key: [*each.forms] for each in step})
        return {
            each.weight_key: next(name for name in (way, "packed", *each.forms) if name in each.forms) for each in step
        }

    monkeypatch.setattr(choosing, "fastest", told)
    model = load_checkpoint(twin("t5").folder).model
    use_fastest(model)
    of_head = [names for key, names in offered.items() if key.startswith("head ") and key.endswith(SEVERAL)]
    assert of_head == [["as-one-row", "padded"], ["as-one-row"], ["as-one-row"]]
    qkv = model.weights.blocks[0].qkv
    assert isinstance(qkv, PackedForRows if way else Packed)
    tokens = answers(dataclasses.replace(twin("t5").checkpoint, model=model))
    assert tokens == answers(twin("t5").checkpoint)


def test_form_packed_for_one_row_is_used_for_all_without_a_copy(
    twin: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, "packed")
    model = load_checkpoint(twin("t5").folder).model
    choices = use_fastest(model)
    assert choices is not None
    assert {form for place, form in choices.items() if place.endswith(SEVERAL)} == {"as-one-row"}
    encoder, block = model.weights.encoder_blocks[0], model.weights.blocks[0]
    for product in (encoder.qkv, encoder.down, block.qkv, block.cross_kv, model.weights.read_out):
        assert type(product) is Packed
    assert answers(dataclasses.replace(twin("t5").checkpoint, model=model)) == answers(twin("t5").checkpoint)


def weights_of_each_token(model: Any) -> list[Tensor]:
    """Return the weights that the decoder multiplies for each token."""
    parts = [getattr(block, name) for block in model.weights.blocks for name in EACH_TOKEN]
    return [part.weight for part in [*parts, model.lm_head]]


@pytest.mark.parametrize(("lacking", "is_offered"), [(0, True), (1, False), (None, False)])
def test_packed_copies_are_offered_only_within_a_quarter_of_machine_memory(
    lacking: int | None,
    is_offered: bool,
    twin: Any,
    cache: Path,
    choosing_last: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Packed copies may take a quarter of the machine's memory. None are made if that memory is unknown."""
    model = load_checkpoint(twin("t5").folder).model
    copied = sum(weight.nbytes for weight in weights_of_each_token(model))
    monkeypatch.setattr(choosing, "machine_bytes", lambda: None if lacking is None else 4 * copied - lacking)
    choices = use_fastest(model)
    assert choices is not None and any(place.endswith(SEVERAL) for place in choices) == is_offered


@pytest.mark.parametrize(("lacking", "is_offered"), [(0, True), (1, False), (None, False)])
def test_copies_in_fp16_are_offered_only_within_a_quarter_of_machine_memory(
    lacking: int | None, is_offered: bool, twin: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy in fp16 must fit, and the packed copy for few rows if there can be one."""
    if not can_copy_to_fp16():
        pytest.skip("torch has no such product here")
    model = load_checkpoint(twin("t5").folder, torch.bfloat16).model
    weights = weights_of_each_token(model)
    assert fp16_copy_bytes((33, 513)) == 2 * 64 * 1024
    copied = sum(fp16_copy_bytes(weight.shape) + can_pack(torch.bfloat16) * weight.nbytes for weight in weights)
    monkeypatch.setattr(choosing, "machine_bytes", lambda: None if lacking is None else 4 * copied - lacking)
    offered = {name for timed in choosing._step(model) for name in timed.forms}
    assert ("fp16-copy" in offered) == is_offered and {"vector", "matrix"} <= offered


@pytest.mark.parametrize("name", ["t5", "gpt2", "olmo2"])
def test_model_with_copies_in_fp16_gives_the_usual_states(
    name: str, twin: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tied heads, biases and norms after projections; rounding differs in the last bits of bf16."""
    if not can_copy_to_fp16():
        pytest.skip("torch has no such product here")
    choose(monkeypatch, "fp16-copy")
    usual, converted = (load_checkpoint(twin(name).folder, torch.bfloat16).model for _ in range(2))
    choices = use_fastest(converted)
    assert choices is not None and "fp16-copy" in choices.values()
    draw = torch.Generator().manual_seed(1)
    for plain, copied in zip(usual.weights.blocks, converted.weights.blocks, strict=True):
        for part in EACH_TOKEN:
            if (projection := getattr(plain, part)) is not None:
                x = torch.randn(1, projection.weight.shape[1], generator=draw).bfloat16()
                expected, result = projection(x).float(), getattr(copied, part)(x).float()
                assert (result - expected).norm() <= 4 * torch.finfo(torch.bfloat16).eps * expected.norm()
    x = torch.randn(1, usual.lm_head.weight.shape[1], generator=draw).bfloat16()
    expected, result = usual.lm_head(x).float(), converted.weights.read_out(x).float()
    assert (result - expected).norm() <= 4 * torch.finfo(torch.bfloat16).eps * expected.norm()


def test_products_are_timed_with_one_row_and_with_several(
    twin: Any, cache: Path, choosing_last: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products are timed as they are used: parts of a weight in their layout, sums into the residual stream as sums."""
    last, rows, sums = choosing.fastest, {}, list[Tensor]()
    onto = Linear.onto
    monkeypatch.setattr(Linear, "onto", lambda *product: sums.append(product[1]) or onto(*product))

    def told(step: list[TimedProduct], clock: Any) -> Mapping[str, str]:
        rows.update({each.weight_key: [len(x) for x in each.inputs] for each in step})
        for each in step:
            if each.weight_key.startswith("part "):
                form = each.forms["output-major"]
                assert isinstance(form, Linear) and form.weight.is_contiguous()
            if each.inputs and "output-major" in each.forms:
                sums.clear()
                each.forms["output-major"](each.inputs[0])
                assert len(sums) == each.weight_key.startswith("residual ")
        return last(step, clock)  # type: ignore[arg-type]

    monkeypatch.setattr(choosing, "fastest", told)
    chosen(twin, torch.float32, "t5")
    kinds = {(key.split()[0], key.partition(" ")[2].partition(" ")[2]): inputs for key, inputs in rows.items()}
    one = {(role, ""): [1] for role in ("block", "residual", "head", "part")}
    several = {
        (role, f"{name} rows"): [*numbers]
        for role in ("block", "residual", "head")
        for name, numbers in (("two", (2,)), ("few", (4, 8)), ("many", (32,)))
    }
    assert kinds == {**one, **several, ("source", ""): [32]}


def test_timed_part_of_an_lm_head_can_be_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SAMPLE_BYTES", 7 * 5 * 4)
    for threads, rows in ((1, 6), (3, 6), (5, 5)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert len(timing.last_rows(Linear(torch.ones(30, 5))).weight) == rows


def test_choosing_forms_does_not_change_the_model_files(twin: Any, cache: Path, choosing_last: list[int]) -> None:
    """The ids of cells contain digests of these files, so that a change would make finished cells stale."""
    folder = twin("llama").folder
    before = {path: path.read_bytes() for path in folder.iterdir()}
    use_fastest(load_checkpoint(folder).model)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


# ------------------------------------------------------------------------------------------- kept for the next run


def chosen(twin: Any, dtype: torch.dtype = torch.bfloat16, name: str = "llama") -> Mapping[str, str] | None:
    return use_fastest(load_checkpoint(twin(name).folder, dtype).model)


def of_one_row(choices: Mapping[str, str]) -> set[str]:
    return {form for place, form in choices.items() if not place.endswith(SEVERAL)}


def test_choices_are_measured_once(twin: Any, cache: Path, choosing_last: list[int]) -> None:
    first = chosen(twin)
    assert first and of_one_row(first) == {"widened", "matrix"} and len(choosing_last) == 1
    assert chosen(twin) == first and len(choosing_last) == 1
    assert [path.name.startswith("products-") for path in cache.iterdir()] == [True]


@pytest.mark.parametrize(
    "other",
    [
        lambda patch: patch.setattr(choice_store, "cpu_model", lambda: "another processor"),
        lambda patch: patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "other"),
        lambda patch: patch.setattr(torch, "__version__", "9.9"),
        lambda patch: torch.set_num_threads(2),
        lambda patch: patch.setattr(torch.backends.mkldnn, "is_available", lambda: False),
    ],
    ids=["processor", "instructions", "torch", "threads", "forms"],
)
def test_changed_machine_or_torch_is_measured_again(
    other: Callable[[pytest.MonkeyPatch], None],
    twin: Any,
    cache: Path,
    choosing_last: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen(twin, torch.float32)
    other(monkeypatch)
    chosen(twin, torch.float32)
    assert len(choosing_last) == 2 and len(list(cache.iterdir())) == 2


def test_other_shapes_and_number_formats_are_measured_separately(
    twin: Any, cache: Path, choosing_last: list[int]
) -> None:
    chosen(twin), chosen(twin, torch.float32), chosen(twin, name="t5")
    assert len(choosing_last) == 3


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path, kept: path.write_text("{"),
        lambda path, kept: path.write_bytes(b"\xff\xfe"),
        lambda path, kept: path.write_text("[]"),
        lambda path, kept: path.write_text(json.dumps({**kept, "chosen": {}})),
        lambda path, kept: path.write_text(json.dumps({**kept, "chosen": dict.fromkeys(kept["chosen"], "magic")})),
        lambda path, kept: path.write_text(json.dumps({**kept, "chosen": {place: [] for place in kept["chosen"]}})),
        lambda path, kept: path.write_text(json.dumps({**kept, "key": {**kept["key"], "threads": 64}})),
        lambda path, kept: path.write_text(json.dumps(kept) + " " * 2**17),
    ],
    ids=["torn", "no text", "no object", "nothing", "no form", "no name", "foreign", "too large"],
)
def test_invalid_stored_choice_is_measured_again_and_overwritten(
    spoil: Callable[[Path, Any], object], twin: Any, cache: Path, choosing_last: list[int]
) -> None:
    first = chosen(twin)
    (path,) = cache.iterdir()
    good = path.read_text()
    spoil(path, json.loads(good))
    assert chosen(twin) == first and len(choosing_last) == 2
    assert path.read_text() == good and len(list(cache.iterdir())) == 1
    assert chosen(twin) == first and len(choosing_last) == 2


def test_choice_stored_first_by_another_process_wins(
    twin: Any, cache: Path, choosing_last: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another process stores its choice while this one measures, the stored choice is used."""

    def beaten(step: list[TimedProduct], clock: object) -> Mapping[str, str]:
        monkeypatch.setattr(
            choosing, "fastest", lambda step, clock: {each.weight_key: [*each.forms][1] for each in step}
        )
        chosen(twin)
        return {each.weight_key: next(iter(each.forms)) for each in step}

    monkeypatch.setattr(choosing, "fastest", beaten)
    result = chosen(twin)
    assert result and of_one_row(result) == {"matrix"}


def test_no_form_is_chosen_if_the_cache_is_not_writable(twin: Any, cache: Path, choosing_last: list[int]) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file in the folder's place")
    checkpoint = load_checkpoint(twin("llama").folder)
    assert use_fastest(checkpoint.model) is None
    assert checkpoint.model.weights.read_out is None


def test_choosing_can_be_turned_off(
    twin: Any, cache: Path, choosing_last: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "default")
    assert chosen(twin) is None and not choosing_last and not cache.exists()
    monkeypatch.setenv(SWITCH, "fast")
    with pytest.raises(UserError, match=r"EXITBENCH_PRODUCTS is 'fast'; allowed: measured, default\."):
        chosen(twin)


def test_small_hosted_models_and_float16_keep_the_defaults(twin: Any, cache: Path, choosing_last: list[int]) -> None:
    assert chosen(twin, torch.float16) is None
    assert use_fastest(load_checkpoint(twin("llama").folder, engine="hosted").model) is None
    assert not choosing_last


def test_real_measurement_covers_every_kind_of_product_and_is_stored(twin: Any, cache: Path) -> None:
    model = load_checkpoint(twin("t5").folder, torch.bfloat16).model
    result = use_fastest(model)
    assert result is not None
    assert {place.split()[0] for place in result} == {"block", "residual", "head", "part", "source"}
    assert os.listdir(cache) == [path.name for path in cache.glob("products-????????????????.json")]
