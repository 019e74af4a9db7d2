"""What timing cells save by recording nothing while the clock runs: a traced decode's time over a timed one's, by gate.

On a small model, where everything beside products counts most.
"""

from __future__ import annotations

from typing import Any

import pytest
from goals import record
from models import SMALL_NAME, Pair
from ratios import Timed, compare

pytestmark = pytest.mark.benchmark(disable_gc=True)

NEVER = {"threshold": 1.0, "decay": "none"}
GATES: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("full", {}),
    "static": ("static", {"exit_layer": 4}),
    "softmax": ("calm-softmax", NEVER),
    "softmax-pruned-adaptive": ("calm-softmax", {**NEVER, "head": "pruned-adaptive"}),
    "patience": ("patience", {"patience": 8}),
    "saturation": ("calm-saturation", NEVER),
    "self-speculation": ("self-speculation", {"exit_layer": 4, "drafts": 3}),
}


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("pair", [SMALL_NAME], indirect=True)
def test_timed_section(pair: Pair, gate: str, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Decoding one answer, prefill apart; the same tokens are asserted first."""
    name, params = GATES[gate]
    timed = pair.decoding(pair.parts(name, **params), pair.prompts())
    assert timed.traced is not None, "a decode has a trace"
    assert [made.token_ids for made in timed.once()] == [made.token_ids for made in timed.told()]
    found = compare(benchmark, Timed(timed.traced, timed.prepare), timed)
    ms_per_token = benchmark.stats.stats.median / pair.shape.new_tokens * 1e3
    note = f"{ms_per_token:.2f} ms a token; {found.spread()}"
    record(benchmark, capsys, found.ratio, "x traced", note=note, **found.about())
