"""Speed-ups of early exit over full depth in the same number format: does it still pay with small weights?

Effects of a number format on answers, scores and exits are measured on trained models, by pairs of runs:

    exitbench run builtin-full && exitbench run builtin-int8
    exitbench sql @number_formats --set dtype=int8
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from exits import ForcedExits
from goals import Recorder
from models import BASE_NAME, FORMATS, REAL_NAME, SMALL_NAME, Pair
from ratios import compare

from exitbench.methods.base import Parts

pytestmark = pytest.mark.benchmark(disable_gc=True)


@pytest.mark.parametrize("gate", ["static", "softmax"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("pair", [REAL_NAME, SMALL_NAME, BASE_NAME], indirect=True)
def test_exit_after_a_third(pair: Pair, name: str, gate: str, benchmark: Any, record: Recorder) -> None:
    """Measure the speed-up if all tokens exit after a third of the blocks: static, or by a gate at every block."""
    exit_layer, checkpoint, prompts = round(pair.n_blocks / 3), pair.loaded(FORMATS[name]), pair.prompts()
    full, early = (
        pair.decoding(parts, prompts, checkpoint=checkpoint) for parts in (pair.full(), leaving(pair, gate, exit_layer))
    )
    assert set(early.run_traced()[0].exit_layers[1:]) == {exit_layer}, "a decoder-only prompt leaves at full depth"
    comparison = compare(benchmark, full, early)
    tokens_per_s = pair.shape.new_tokens / benchmark.stats.stats.median
    note = f"exit {exit_layer} of {pair.n_blocks}; {tokens_per_s:.1f} tokens/s"
    record(comparison, "x full depth", note=note, tokens_per_s=tokens_per_s)


def leaving(pair: Pair, gate: str, exit_layer: int) -> Parts:
    """Return a method whose tokens all exit after `exit_layer`."""
    if gate == "static":
        return pair.parts("static", exit_layer=exit_layer)
    return replace(pair.parts("calm-softmax"), threshold=ForcedExits([exit_layer]))
