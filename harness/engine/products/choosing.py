"""Choose the fastest forms (implementations) of a loaded model's matrix products, by timing them on this machine."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from exitbench.errors import UserError
from exitbench.harness.engine.encoders.model import EncoderClassifier
from exitbench.harness.engine.hosted.model import HostedTransformer
from exitbench.harness.engine.model.available import machine_bytes
from exitbench.harness.engine.model.engine import Engine
from exitbench.harness.engine.model.exit_heads import WITH_LM_HEAD
from exitbench.harness.engine.model.model import Transformer
from exitbench.harness.engine.model.weights import BlockWeights, Linear, NormedLinear
from exitbench.harness.engine.products.choice_store import store_choices, stored_choices, this_machine
from exitbench.harness.engine.products.forms import (
    COPIES,
    FORMS,
    TIMED_ROWS,
    Packed,
    PackedForRows,
    Role,
    Rows,
    available_forms,
    can_copy_to_fp16,
    can_pack,
    chosen_ways,
    convert_blocks,
    fp16_copy_bytes,
    packed_ways,
)
from exitbench.harness.engine.products.int8 import computes_in, table_bytes
from exitbench.harness.engine.products.modules import convert_modules, linear_modules, module_places, time_modules
from exitbench.harness.engine.products.timing import (
    SAMPLE_BYTES,
    Product,
    TimedProduct,
    fastest,
    last_rows,
    ones_inputs,
    step_clock,
)

COPIED_SHARE: Final = 0.25
"""Largest share of the machine's memory that copies of the weights may take: packed, in fp16, or as a table.

The share is of total memory: free memory varies from run to run, and the last bits of results would vary with it.
"""

Choices = Mapping[str, str]
"""Chosen form by weight key (`_Product.weight_key`)."""

SWITCH: Final = "EXITBENCH_PRODUCTS"
"""Environment variable: ``measured`` (the default), or ``default`` for the same forms on every machine."""

_EACH_TOKEN: Final[Mapping[Role, Sequence[str]]] = {
    "block": ("qkv", "cross_q", "up"),
    "residual": ("attention_out", "cross_out", "down"),
}
"""Projections of a decoder block that every token is multiplied with, by role."""
_OF_SOURCE: Final = ("cross_kv",)
"""Projections of a decoder block that only the encoder's output is multiplied with."""
_OF_ENCODER: Final = ("qkv", "attention_out", "up", "down")
"""Projections of an encoder block."""

_AS_ONE_ROW: Final = "as-one-row"
"""The default for several rows."""
_SEVERAL: Final[Sequence[Rows]] = ("two", "few", "many")


@dataclass(frozen=True)
class _Product:
    """Matrix product whose form can be chosen: a projection as it was loaded, and its role."""

    role: Role
    projection: Linear

    @property
    def weight_key(self) -> str:
        """Key under which a form is chosen: role and shape of the weight, such as ``block 2304x768``."""
        return f"{self.role} {'x'.join(map(str, self.projection.weight.shape))}"

    def rows_key(self, rows: Rows) -> str:
        """Return the key under which a form is chosen for inputs of several rows."""
        return f"{self.weight_key} {rows} rows"

    @property
    def is_decoded(self) -> bool:
        """Whether it multiplies tokens of answers: one row or several at once."""
        return self.role in ("block", "residual", "head")


def use_fastest(model: Engine | EncoderClassifier) -> Choices | None:
    """Convert a model's linear layers to the forms that are fastest on this machine, before its first decode.

    Returns the name of the chosen form by weight key: the role and shape of a weight, such as ``block 2304x768``.
    Returns None, and changes nothing, for devices other than a CPU, and for weights in other formats than fp32, bf16
    and int8. None is also returned if the choice cannot be stored for later runs, or if the environment variable
    EXITBENCH_PRODUCTS (`SWITCH`) is ``default``. A model that transformers computes (of the hosted engine, or an
    encoder) has nothing to choose if its layers are small, if their weights cannot be packed, or if copies of them
    would take too much memory.

    Raises:
        UserError: This environment variable has an unknown value.
    """
    if not _is_measured():
        return None
    if model.device.type != "cpu":
        return None
    if isinstance(model, (HostedTransformer, EncoderClassifier)):
        return _use_fastest_modules(model)
    if not isinstance(model, Transformer) or model.lm_head.weight.dtype not in FORMS:
        return None
    chosen = _stored_or_timed(_cache_key(model), lambda: time_forms(model))
    if chosen is not None:
        _use(model, chosen)
    return chosen


def _stored_or_timed(key: Mapping[str, Any], time_products: Callable[[], dict[str, str]]) -> Choices | None:
    """Return the choices stored for this key, else those of ``time_products``, stored; None if they cannot be."""
    stored = stored_choices(key)
    return store_choices(key, time_products()) if stored is None else stored


def _use_fastest_modules(model: HostedTransformer | EncoderClassifier) -> Choices | None:
    modules = linear_modules(model.stack.lm, model.dtype)
    copied_bytes = sum(module.weight.nbytes for module in modules)
    if not modules or model.dtype not in FORMS or not can_pack(model.dtype) or not _fits(copied_bytes):
        return None
    dtype = str(model.dtype).removeprefix("torch.")
    key = {**this_machine(torch.get_num_threads()), "dtype": dtype, "places": module_places(modules)}
    chosen = _stored_or_timed(key, lambda: time_modules(modules))
    if chosen is not None:
        convert_modules(modules, chosen)
    return chosen


def time_forms(model: Transformer) -> dict[str, str]:
    """Time a model's matrix products on this machine; return the name of the chosen form by weight key.

    The weight key is the role and shape of a weight. The default form is chosen unless another one is clearly faster.
    """
    clock = step_clock()
    chosen = fastest(_step(model), clock) | fastest(_step_of_sources(model), clock)
    if _may_pack(model):
        packed_sample = list(_packed_sample(model, chosen))
        for rows in _SEVERAL:
            chosen |= fastest(_step_of_several_rows(packed_sample, rows), clock)
    return chosen


def _is_measured() -> bool:
    setting = os.environ.get(SWITCH, "measured")
    if setting not in ("measured", "default"):
        raise UserError(f"{SWITCH} is {setting!r}; allowed: measured, default.")
    return setting == "measured"


def _cache_key(model: Transformer) -> dict[str, Any]:
    """Return the cache key of a model's choices: machine, number of threads, number format, and available forms."""
    products = list(_products(model))
    counts = Counter(product.weight_key for product in products)
    may_copy = _may_copy(model)
    forms = {product.weight_key: list(_forms(product, may_copy)) for product in products}
    dtype = str(model.lm_head.weight.dtype).removeprefix("torch.")
    places = {place: {"products": counts[place], "forms": names} for place, names in forms.items()}
    if _may_pack(model):
        for product in products:
            if product.is_decoded:
                for rows in _SEVERAL:
                    several = {"products": counts[product.weight_key], "forms": [_AS_ONE_ROW, *packed_ways(rows)]}
                    places[product.rows_key(rows)] = several
    return {**this_machine(torch.get_num_threads()), "dtype": dtype, "places": places}


def _may_pack(model: Transformer) -> bool:
    return can_pack(model.lm_head.weight.dtype) and _may_copy(model)


def _may_copy(model: Transformer) -> bool:
    """Return whether copies of the weights take at most `COPIED_SHARE` of the memory; False if that is unknown.

    Weights may be copied twice: in fp16 or as a table, and packed.
    """
    dtype = model.lm_head.weight.dtype
    weights = [product.projection.weight for product in _products(model) if product.is_decoded]
    copied = sum(weight.nbytes for weight in weights) if can_pack(dtype) else 0
    if dtype == torch.bfloat16 and can_copy_to_fp16():
        copied += sum(fp16_copy_bytes(weight.shape) for weight in weights)
    if dtype == torch.int8:
        copied += sum(table_bytes(weight.shape) for weight in weights)
    return _fits(copied)


def _fits(copied_bytes: int) -> bool:
    """Return whether copies of this size take at most `COPIED_SHARE` of the memory; False if that is unknown."""
    memory = machine_bytes()
    return memory is not None and copied_bytes <= COPIED_SHARE * memory


def _forms(product: _Product, may_copy: bool) -> tuple[str, ...]:
    """Return the names of the forms to choose from, the default first, with or without forms that copy it."""
    weight = product.projection.weight
    names = available_forms(weight.dtype, product.role, weight.shape)
    return tuple(name for name in names if may_copy or name not in COPIES)


def _products(model: Transformer) -> Iterator[_Product]:
    """Yield the matrix products whose form can be chosen, in order of execution.

    They include those that only prompts are multiplied with, and the key/value projections of skipped blocks.
    """
    yield from _sources(model)
    for block in model.weights.blocks:
        yield from _of_block(model, block)
    yield _Product("head", model.lm_head)
    for output in _exit_outputs(model).values():
        yield _Product("head", output)


def _exit_outputs(model: Transformer) -> dict[int, Linear]:
    """Return the output layers of trained exit heads that have the LM head's shape and number format, by block."""
    heads, lm_head = model.exit_heads, model.lm_head.weight
    if heads is None or heads.kind in WITH_LM_HEAD:
        return {}
    outputs = {
        block: Linear(heads.tensors[f"{block}.out.weight"], heads.tensors.get(f"{block}.out.bias"))
        for block in heads.blocks
    }
    return {
        block: output
        for block, output in outputs.items()
        if output.weight.shape == lm_head.shape and output.weight.dtype == lm_head.dtype
    }


def _named(block: BlockWeights, role: Role, names: Sequence[str]) -> Iterator[_Product]:
    """Yield the products of a block's projections of the given names, except those that it lacks."""
    for name in names:
        if (part := getattr(block, name)) is not None:
            yield _Product(role, part.projection if isinstance(part, NormedLinear) else part)


def _sources(model: Transformer) -> Iterator[_Product]:
    """Yield the matrix products that only prompts are multiplied with, in order of execution."""
    if "source" in FORMS[model.lm_head.weight.dtype]:
        for block in model.weights.encoder_blocks:
            yield from _named(block, "source", _OF_ENCODER)
        for block in model.weights.blocks:
            yield from _named(block, "source", _OF_SOURCE)


def _of_block(model: Transformer, block: BlockWeights) -> Iterator[_Product]:
    for role, names in _EACH_TOKEN.items():
        yield from _named(block, role, names)
    yield _Product("part", block.qkv.outputs(model.arch.n_heads * model.arch.head_dim))


def _step(model: Transformer) -> list[TimedProduct]:
    """Return the products to time with inputs of one row: some of those of a decode step, each in every form."""
    may_copy = _may_copy(model)
    return [_timed(product, sample, TIMED_ROWS["one"], may_copy) for product, sample in _sample(model)]


def _step_of_sources(model: Transformer) -> list[TimedProduct]:
    """Return the products to time with inputs of many rows: one of each shape that only prompts are multiplied with."""
    by_key = {product.weight_key: product for product in _sources(model)}
    return [_timed(product, product.projection, TIMED_ROWS["many"], may_copy=False) for product in by_key.values()]


def _timed(product: _Product, sample: Linear, rows: Sequence[int], may_copy: bool) -> TimedProduct:
    names, forms = _forms(product, may_copy), FORMS[product.projection.weight.dtype][product.role]
    inputs = ones_inputs(rows if len(names) > 1 else (), sample.weight.shape[1], computes_in(sample.weight.dtype))
    return TimedProduct(product.weight_key, inputs, {name: _used(product, forms[name](sample)) for name in names})


def _used(product: _Product, form: Linear) -> Product:
    """Return a product as a decode step computes it: a ``residual`` one is added to the residual stream."""
    if product.role != "residual":
        return form
    stream_1D = torch.zeros(1, len(product.projection.weight), dtype=computes_in(product.projection.weight.dtype))
    return lambda x: form.onto(stream_1D.expand(len(x), -1), x)


def _packed_sample(model: Transformer, chosen: Choices) -> Iterator[tuple[_Product, Linear, Packed]]:
    """Yield decoded products to time with several rows, each in the form chosen for one row and packed."""
    for product, sample in _sample(model):
        if product.is_decoded:
            single = FORMS[product.projection.weight.dtype][product.role][chosen[product.weight_key]](sample)
            yield product, single, single if isinstance(single, Packed) else Packed.from_projection(sample)


def _step_of_several_rows(sample: Sequence[tuple[_Product, Linear, Packed]], rows: Rows) -> list[TimedProduct]:
    """Return the products to time with inputs of several rows: as for one row, and packed in ways that differ."""
    step = []
    for product, single, packed in sample:
        forms = {_AS_ONE_ROW: single}
        for way in packed_ways(rows):
            if way == "padded" or packed is not single:
                forms[way] = replace(packed, padded=way == "padded")
        weight = product.projection.weight
        inputs = ones_inputs(TIMED_ROWS[rows], weight.shape[1], weight.dtype)
        products = {name: _used(product, form) for name, form in forms.items()}
        step.append(TimedProduct(product.rows_key(rows), inputs, products))
    return step


def _sample(model: Transformer) -> Iterator[tuple[_Product, Linear]]:
    """Yield the products of the first blocks and of the LM head, each with the projection (or a part of it) to time."""
    budget = SAMPLE_BYTES
    for block in model.weights.blocks:
        if budget <= 0:
            break
        for product in _of_block(model, block):
            budget -= product.projection.weight.nbytes
            yield product, product.projection
    yield _Product("head", model.lm_head), last_rows(model.lm_head)


def _use(model: Transformer, chosen: Choices) -> None:
    """Convert a model's projections to the forms that were chosen, given by role and shape of the weight; in place."""
    forms = FORMS[model.lm_head.weight.dtype]

    def convert(role: Role, projection: Linear) -> Linear:
        product = _Product(role, projection)
        single = forms[role][chosen[product.weight_key]](projection)
        ways = chosen_ways({rows: chosen.get(product.rows_key(rows), _AS_ONE_ROW) for rows in _SEVERAL})
        return PackedForRows(single.weight, single.bias, base=single, ways=ways) if ways else single

    def decoder_block(block: BlockWeights) -> BlockWeights:
        for role, names in _EACH_TOKEN.items():
            block = block.map_projections(partial(convert, role), names)
        return source_block(block, _OF_SOURCE)

    def source_block(block: BlockWeights, names: Sequence[str] = _OF_ENCODER) -> BlockWeights:
        return block.map_projections(partial(convert, "source"), names) if "source" in forms else block

    part = next(chosen[place] for place in chosen if place.startswith("part "))
    convert_blocks(model, decoder_block, source_block)
    model.weights = replace(model.weights, part_form=forms["part"][part])
    if model.exit_heads is not None:
        outputs = {block: convert("head", output) for block, output in _exit_outputs(model).items()}
        model.exit_heads = replace(model.exit_heads, outputs=outputs)
    read_out = convert("head", model.lm_head)
    if read_out is not model.lm_head:  # the original stays: single rows are read too
        model.weights = replace(model.weights, read_out=read_out)
