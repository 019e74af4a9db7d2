"""Counting the FLOPs of matrix products as torch's own counter does, without its imports."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from exitbench.harness.conformance.costs import _FlopCounter


def products() -> None:
    """Run operations that torch counts directly, and operations that it counts by their parts."""
    x_BTD, weight_ED = torch.ones(3, 4, 8), torch.ones(5, 8)
    F.linear(x_BTD, weight_ED)
    torch.einsum("btd,ed->bte", x_BTD, weight_ED)
    torch.bmm(x_BTD, x_BTD.mT)
    torch.addmm(torch.ones(5), x_BTD[0], weight_ED.T)
    with sdpa_kernel(SDPBackend.MATH):
        F.scaled_dot_product_attention(x_BTD[:, None], x_BTD[:, None], x_BTD[:, None])


@pytest.mark.parametrize("inferring", [True, False], ids=["inference mode", "usual"])
def test_matrix_product_flops_equal_torchs_flop_counter(inferring: bool) -> None:
    with torch.inference_mode(inferring):
        with _FlopCounter() as ours:
            products()
        with FlopCounterMode(display=False) as theirs:
            products()
    assert ours.flops == theirs.get_total_flops() > 0
