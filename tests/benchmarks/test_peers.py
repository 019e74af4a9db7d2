"""Decoding against OpenVINO and llama.cpp, which run in processes of their own (peer.py)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from goals import Recorder
from models import BASE_NAME, FORMATS, REAL_NAME, Pair
from ratios import Timed, compare
from test_bf16 import MULTIPLIES_BF16
from tokenizers import Tokenizer

pytestmark = pytest.mark.benchmark(disable_gc=True)

PEER = Path(__file__).with_name("peer.py")
FORMATS_OF = {"openvino": ("fp32", "bf16"), "llama.cpp": tuple(FORMATS)}
MODELS_OF = {"openvino": (REAL_NAME, BASE_NAME), "llama.cpp": (REAL_NAME,)}
PEERS = [
    pytest.param(model, engine, kind, marks=MULTIPLIES_BF16 if kind == "bf16" else ())
    for engine, models in MODELS_OF.items()
    for model in models
    for kind in FORMATS_OF[engine]
]
PROMPT_TOKENS, NEW_TOKENS = 8, 48
BUDGET_S = 20.0


class Peer:
    """Another engine in a process, which decodes one request at a time."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def decode(self, prompts: list[list[int]]) -> list[Any]:
        """Return an answer per prompt: token ids or a text."""
        assert self.process.stdin and self.process.stdout
        print(json.dumps({"prompts": prompts, "new_tokens": NEW_TOKENS}), file=self.process.stdin, flush=True)
        answers: list[Any] = json.loads(self.process.stdout.readline())
        return answers


@pytest.fixture
def peer(request: pytest.FixtureRequest, pair: Pair, engine: str, number_format: str) -> Iterator[Peer]:
    """Yield the other engine; skip without its environment or its file."""
    python, file = request.config.getoption("peers"), request.config.getoption("gguf")
    model = file if engine == "llama.cpp" else pair.folder
    if python is None or model is None:
        pytest.skip("without --peers=PYTHON and --gguf=FILE: see peer.py")
    started = Peer([python, str(PEER), engine, str(model), number_format, str(torch.get_num_threads())])
    yield started
    started.process.communicate()


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize(("pair", "engine", "number_format"), PEERS, indirect=["pair"])
def test_peer(
    pair: Pair,
    engine: str,
    number_format: str,
    rows: int,
    peer: Peer,
    benchmark: Any,
    record: Recorder,
) -> None:
    """Time prefill and decoding of rows of equal length; in fp32, OpenVINO's greedy tokens are equal."""
    (text_ids,) = pair.prompts(1, PROMPT_TOKENS * rows)
    prompts = [text_ids[start : start + PROMPT_TOKENS] for start in range(0, len(text_ids), PROMPT_TOKENS)]
    decoding = pair.decoding(pair.full(), prompts, NEW_TOKENS, pair.loaded(FORMATS[number_format]))
    ours, theirs = [answer.token_ids for answer in decoding.once()], peer.decode(prompts)
    if engine == "llama.cpp":
        tokenizer = Tokenizer.from_file(str(pair.folder / "tokenizer.json"))
        ours = [tokenizer.decode(token_ids) for token_ids in ours]
    same = sum(own == other for own, other in zip(ours, theirs, strict=True))
    exact = (engine, number_format) == ("openvino", "fp32")  # llama.cpp's keys and values are in fp16
    assert same == rows or not exact, "what differs cannot be compared"
    comparison = compare(benchmark, Timed(lambda _: peer.decode(prompts)), Timed(lambda _: decoding.once()), BUDGET_S)
    tokens_per_s = rows * NEW_TOKENS / benchmark.stats.stats.median
    record(
        comparison,
        f"x {engine}",
        note=f"{tokens_per_s:.1f} tokens/s; {same} of {rows} answers are equal",
        tokens_per_s=tokens_per_s,
        same_answers=same,
    )
