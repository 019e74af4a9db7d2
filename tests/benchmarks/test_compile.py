"""`torch.compile` of the small parts of a step, where it could help; the engine does not use it.

A whole block cannot be compiled usefully: it writes to a cache whose length changes at every token.
"""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import patch

import pytest
import torch
from goals import Recorder
from models import BASE_NAME, SMALL_NAME, Pair
from ratios import compare

pytestmark = pytest.mark.benchmark(disable_gc=True)


@pytest.mark.parametrize("piece", ["normalise", "feed_forward"], ids=["norm", "feed-forward"])
@pytest.mark.parametrize("pair", [SMALL_NAME, BASE_NAME], indirect=True)
def test_compiled_piece(pair: Pair, piece: str, benchmark: Any, record: Recorder) -> None:
    """Time decoding with one part compiled against decoding without, and the compilation before the first tokens."""
    prompts, (usual, other) = pair.prompts(), (pair.loaded(torch.float32, measured=False) for _ in range(2))
    plain, compiled = (pair.decoding(pair.full(), prompts, checkpoint=used) for used in (usual, other))
    with patch.object(other.model, piece, torch.compile(getattr(other.model, piece), dynamic=True)):
        started = time.perf_counter()
        assert compiled.once()[0].token_ids == plain.once()[0].token_ids, "what differs cannot be compared"
        compile_s = time.perf_counter() - started
        comparison = compare(benchmark, plain, compiled)
    note = f"first answer after {compile_s:.1f} s"
    record(comparison, "x plain", note=note, compile_s=compile_s)
