"""The engine's own score, run by `nox -s perf`; nothing here is part of the test suite.

Ratios only, both things in one process and interleaved (ABBA), because nothing else survives a shared machine. Weights
are random: they cost what trained ones cost, and say nothing about quality.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from exitbench.harness.checkpoint import Checkpoint, load_checkpoint
from exitbench.harness.cost import TokenPlace, answer_cost, ideal_speedup
from exitbench.harness.decode import Request, decode, prefill
from exitbench.methods.base import Parts
from exitbench.methods.registry import baseline_method, get_method

PROMPT_TOKENS = 24


@dataclass(frozen=True)
class Shape:
    """A T5 shape, how long its answers are and how often they are repeated, so that a run takes about a minute."""

    label: str
    new_tokens: int
    rounds: int
    goal: float
    config: dict[str, int]

    @property
    def n_blocks(self) -> int:
        return self.config["num_decoder_layers"]


SHAPES = [
    Shape(
        "small-random",
        new_tokens=48,
        rounds=20,
        goal=2.5,
        config=dict(vocab_size=2048, d_model=128, d_kv=32, d_ff=512, num_heads=4, num_layers=8, num_decoder_layers=8),
    ),
    Shape(
        "t5-base-random",
        new_tokens=16,
        rounds=8,
        goal=1.5,
        config=dict(
            vocab_size=32128, d_model=768, d_kv=64, d_ff=3072, num_heads=12, num_layers=12, num_decoder_layers=12
        ),
    ),
]


@dataclass(frozen=True)
class Pair:
    """One model in transformers and in the engine; nothing ends an answer but its length."""

    shape: Shape
    reference: Any
    checkpoint: Checkpoint
    prompt: list[int]

    def transformers(self) -> list[int]:
        out = self.reference.generate(
            input_ids=torch.tensor([self.prompt]), max_new_tokens=self.shape.new_tokens, do_sample=False
        )
        tokens: list[int] = out[0, 1:].tolist()
        return tokens

    def prefilled(self) -> Any:
        return prefill(self.checkpoint.model, [Request(self.prompt)], self.shape.new_tokens)

    def engine(self, parts: Parts) -> list[int]:
        (generation,) = decode(self.checkpoint, self.prefilled(), parts)
        return generation.token_ids


@pytest.fixture(scope="session", params=SHAPES, ids=lambda shape: shape.label)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    shape: Shape = request.param
    torch.manual_seed(0)
    config = transformers.T5Config(**shape.config, decoder_start_token_id=0, eos_token_id=None)
    reference = transformers.T5ForConditionalGeneration(config).eval()
    folder = Path(tmp_path_factory.mktemp(shape.label))
    reference.save_pretrained(folder)
    checkpoint = load_checkpoint(folder)
    prompt = torch.randint(3, shape.config["vocab_size"], (PROMPT_TOKENS,)).tolist()
    return Pair(shape, reference, Checkpoint(checkpoint.model, frozenset(), checkpoint.start_id), prompt)


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def ratios(slow: Callable[[], object], fast: Callable[[], object], rounds: int) -> list[float]:
    """How many times faster ``fast`` is, once a round in the order slow, fast, fast, slow."""
    slow(), fast()
    found = []
    for _ in range(rounds):
        first, second, third, fourth = seconds(slow), seconds(fast), seconds(fast), seconds(slow)
        found.append((first + fourth) / (second + third))
    return found


def described(found: list[float]) -> str:
    low, middle, high = statistics.quantiles(found, n=4)
    return f"{middle:.2f} (quartiles {low:.2f} to {high:.2f}, {len(found)} rounds)"


def report(benchmark: Any, capsys: pytest.CaptureFixture[str], line: str, **about: object) -> None:
    """Print a result now, and store it with the benchmark."""
    benchmark.extra_info.update(about, threads=torch.get_num_threads())
    with capsys.disabled():
        print(f"\n{line}; {torch.get_num_threads()} thread(s)")


def test_full_depth_against_transformers(pair: Pair, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal, measured on an idle machine: the shape's own."""
    parts = baseline_method()().parts(pair.shape.n_blocks)
    assert pair.engine(parts) == pair.transformers(), "two things that differ cannot be compared"
    found = ratios(pair.transformers, lambda: pair.engine(parts), pair.shape.rounds)
    benchmark.pedantic(pair.engine, args=(parts,), rounds=3)
    line = (
        f"{pair.shape.label}: full depth, batch 1, fp32: {described(found)} times transformers; goal {pair.shape.goal}"
    )
    report(benchmark, capsys, line, ratio=statistics.median(found), ratios=found)


@pytest.mark.parametrize("share", [1 / 3, 1 / 2, 2 / 3], ids=["third", "half", "two-thirds"])
def test_realised_fraction(pair: Pair, share: float, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured over ideal speed-up of decoding, prefill apart; goal 0.95."""
    shape, model = pair.shape, pair.checkpoint.model
    exit_layer = round(shape.n_blocks * share)
    full = baseline_method()().parts(shape.n_blocks)
    early = get_method("static").from_params({"exit_layer": exit_layer}).parts(shape.n_blocks)
    places = [TokenPlace(context=position, source=PROMPT_TOKENS) for position in range(1, shape.new_tokens + 1)]
    head_rows = [model.vocab_size] * len(places)  # both read out once a token: no score is asked for
    ideal = ideal_speedup(
        answer_cost(model, full, [shape.n_blocks] * len(places), head_rows, places),
        answer_cost(model, early, [exit_layer] * len(places), head_rows, places),
    ).by_bytes

    def decode_seconds(parts: Parts) -> float:
        batch = pair.prefilled()
        return seconds(lambda: decode(pair.checkpoint, batch, parts))

    decode_seconds(full), decode_seconds(early)
    found = []
    for _ in range(shape.rounds):
        first, second, third, fourth = (decode_seconds(parts) for parts in (full, early, early, full))
        found.append((first + fourth) / (second + third) / ideal)
    benchmark.pedantic(decode_seconds, args=(early,), rounds=3)
    line = f"{shape.label}: exit {exit_layer} of {shape.n_blocks}: realised fraction {described(found)} of {ideal:.2f}"
    report(benchmark, capsys, line, realised_fraction=statistics.median(found), fractions=found, ideal=ideal)
