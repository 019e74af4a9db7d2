"""Choose how linear layers of transformers' modules are multiplied, for models of the hosted engine and encoders.

torch's default product and weights packed by oneDNN are timed for each shape, with one row of input and with
several. A packed weight is a copy: the module's own weight stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn

from exitbench.harness.engine.hosted.calls import SparedLinear
from exitbench.harness.engine.model.weights import Linear
from exitbench.harness.engine.products.forms import (
    TIMED_ROWS,
    ByMatrix,
    Packed,
    PackedForRows,
    Rows,
    chosen_ways,
    packed_ways,
)
from exitbench.harness.engine.products.timing import (
    SAMPLE_BYTES,
    TimedProduct,
    fastest,
    last_rows,
    ones_inputs,
    step_clock,
)

_DEFAULT: Final = "matrix"
"""The default form of a module; the others are packed."""
LEAST_NUMEL: Final = 2**17
"""Least weights of a layer that may be packed: for smaller ones, calling oneDNN takes as long as the product."""


def linear_modules(lm: nn.Module, dtype: torch.dtype) -> list[nn.Linear]:
    """Return a model's linear layers on a CPU in a number format, except small layers and those with hooks.

    They are in the order of the model's modules.
    """
    linears = [module for module in lm.modules() if type(module) is nn.Linear and module.weight.dtype == dtype]
    return [module for module in linears if _is_replaceable(module)]


def _is_replaceable(module: nn.Linear) -> bool:
    own_forward = vars(module).get("forward")
    is_hooked = own_forward is not None and not isinstance(own_forward, SparedLinear)
    return module.weight.numel() >= LEAST_NUMEL and module.weight.device.type == "cpu" and not is_hooked


def module_places(modules: Sequence[nn.Linear]) -> dict[str, Any]:
    """Return what is chosen for the modules: by shape and number of rows, the number of products and the forms."""
    places: dict[str, Any] = {}
    for module in modules:
        for rows in TIMED_ROWS:
            place = places.setdefault(_key(module, rows), {"products": 0, "forms": [_DEFAULT, *packed_ways(rows)]})
            place["products"] += 1
    return places


def time_modules(modules: Sequence[nn.Linear]) -> dict[str, str]:
    """Time the products of some modules of each shape; return the name of the chosen form by shape and rows."""
    sample: list[tuple[nn.Linear, Linear, Packed]] = []
    budget, seen = SAMPLE_BYTES, set[torch.Size]()
    for module in modules:
        if budget > 0 or module.weight.shape not in seen:
            part = last_rows(_projection(module))
            sample.append((module, ByMatrix(part.weight, part.bias), Packed.from_projection(part)))
            budget -= module.weight.nbytes
            seen.add(module.weight.shape)
    chosen: dict[str, str] = {}
    for rows, numbers in TIMED_ROWS.items():
        step = []
        for module, default, packed in sample:
            forms: dict[str, Linear] = {_DEFAULT: default}
            for way in packed_ways(rows):
                forms[way] = replace(packed, padded=way == "padded")
            inputs = ones_inputs(numbers, module.in_features, module.weight.dtype)
            step.append(TimedProduct(_key(module, rows), inputs, forms))
        chosen |= fastest(step, step_clock())
    return chosen


def convert_modules(modules: Sequence[nn.Linear], chosen: Mapping[str, str]) -> None:
    """Replace the forward pass of each module by the chosen forms; modules without a packed form are left alone."""
    for module in modules:
        if ways := chosen_ways({rows: chosen[_key(module, rows)] for rows in TIMED_ROWS}):
            own = _projection(module)
            forward = PackedForRows(own.weight, own.bias, base=ByMatrix(own.weight, own.bias), ways=ways)
            if isinstance(spared := vars(module).get("forward"), SparedLinear):
                spared.run = forward
            else:
                module.forward = forward  # type: ignore[method-assign, assignment]


def _projection(module: nn.Linear) -> Linear:
    return Linear(module.weight.detach(), None if module.bias is None else module.bias.detach())


def _key(module: nn.Linear, rows: Rows) -> str:
    return f"module {module.out_features}x{module.in_features} {rows} {'row' if rows == 'one' else 'rows'}"
