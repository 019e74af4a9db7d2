"""Decode documents with this project, and record the same quantities as published.py does for the published code."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from comparing import Answer
from configurations import Configuration
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer

from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Request
from exitbench.harness.training import find_trained, load_recipe
from exitbench.harness.training.store import SHIPPED
from exitbench.methods.base import BlockView, Cost, Gate, ModelInterface, Parts
from exitbench.methods.registry import get_method
from exitbench.methods.thresholds import Constant
from exitbench.tasks import builtin
from exitbench.tasks.builtin import TEXT_TASKS
from exitbench.tasks.registry import get_task

SEEDS = {0: 60, 987123: 34}
"""Documents per task by seed of their generator; those of the built-in suite are among the first."""


@dataclass(frozen=True)
class Document:
    """Document to answer."""

    key: str
    prompt: list[int]
    max_new_tokens: int


class ScoreRecordingGate(Gate):
    """Wrapper of a gate that records its scores by decode step."""

    def __init__(self, gate: Gate, first_block: int) -> None:
        self.gate, self.first_block = gate, first_block
        self.needs_history = gate.needs_history  # type: ignore[misc]
        self.steps: list[list[tuple[int, float]]] = []

    @property
    def chooses_from_logits(self) -> bool:
        return self.gate.chooses_from_logits

    def score(self, view: BlockView) -> Tensor:
        score_A = self.gate.score(view)
        if view.block == self.first_block:
            self.steps.append([])
        self.steps[-1].append((view.block, float(score_A[0])))
        return score_A

    def choose(self, view: BlockView) -> Tensor:
        return self.gate.choose(view)

    def cost(self, model: ModelInterface, asked: Sequence[int]) -> Cost:
        return self.gate.cost(model, asked)


def folder(recipe: str) -> Path:
    """Return the folder of a bundled model."""
    model = find_trained(load_recipe(recipe), SHIPPED)
    assert model is not None, recipe
    return model


@cache
def checkpoint(recipe: str) -> Checkpoint:
    """Return a bundled model's weights, bf16 converted to fp32."""
    return load_checkpoint(folder(recipe))


@cache
def documents(recipe: str, every: int, most: int | None) -> list[Document]:
    """Return one in `every` documents per task and seed; at most `most` of them, evenly spaced, if given."""
    tokenizer = AutoTokenizer.from_pretrained(folder(recipe))
    selected = []
    for name in TEXT_TASKS:
        task = get_task(name)
        for seed, n in SEEDS.items():
            for document in builtin.documents(name, "test", n, seed)[::every]:
                ids = tokenizer(task.prompt(document)).input_ids
                selected.append(Document(f"{name} {seed} {document.key}", ids, task.default_max_new_tokens))
    if most is None or most >= len(selected):
        return selected
    return [selected[at * len(selected) // most] for at in range(most)]


def networks(d_model: int, place: Path) -> Mapping[str, Path]:
    """Write gates' networks with random weights, large enough to spread their scores, and return the files.

    No training is needed to test whether two programs agree on the same weights.
    """
    generator = torch.Generator().manual_seed(8)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=generator) * scale * (shape[-1] ** -0.5 if len(shape) > 1 else 0.3)

    d, hidden = d_model, 250
    layers = {"0.weight": normal(d, d), "2.weight": normal(2, d, scale=2.5)}
    states = {
        "mlp": {**layers, "0.bias": normal(d), "2.bias": normal(2)},
        "mlp without biases": {**layers, "0.bias": torch.zeros(d), "2.bias": torch.zeros(2)},
        "mlp3": {"0.weight": normal(d, 3 * d), "2.weight": normal(2, d, scale=3.0)},
        "lstm": {
            "lstm.weight_ih_l0": normal(4 * hidden, d),
            "lstm.weight_hh_l0": normal(4 * hidden, hidden),
            "lstm.bias_ih_l0": normal(4 * hidden),
            "lstm.bias_hh_l0": normal(4 * hidden),
            "out.weight": normal(2, hidden, scale=8.0),
            "out.bias": normal(2),
        },
    }
    paths = {name: place / f"{name.replace(' ', '-')}.safetensors" for name in states}
    for name, weights in states.items():
        save_file(weights, paths[name])
    return paths


def answers(
    configuration: Configuration,
    documents: Sequence[Document],
    weights: Mapping[str, Tensor],
    levels: Sequence[float | None],
) -> Iterator[Answer]:
    """Decode each document alone.

    Args:
        configuration: The method, its parameters and the model.
        documents: Documents to decode.
        weights: Weights of the gate's network.
        levels: Threshold of each document; None for the method's own.
    """
    model = checkpoint(configuration.model)
    n_blocks = model.model.n_blocks
    method = get_method(configuration.method).from_params(dict(configuration.params))
    for document, level in zip(documents, levels, strict=True):
        used = method if level is None else dataclasses.replace(method, threshold=level)  # type: ignore[call-arg]
        parts = used.parts(n_blocks, weights)
        if configuration.runtime == "full depth":
            parts = dataclasses.replace(parts, threshold=Constant(math.inf))
        yield _answer(model, parts, document)


def _answer(model: Checkpoint, parts: Parts, document: Document) -> Answer:
    gated = parts.gate_blocks(model.model.n_blocks)
    gate = ScoreRecordingGate(parts.gate, min(gated, default=0))
    batch = prefill(model.model, [Request(document.prompt)], document.max_new_tokens)
    (answer,) = decode(model, batch, dataclasses.replace(parts, gate=gate))
    scores: list[list[tuple[int, float]]] = []
    steps = iter(gate.steps if gated else [[]] * len(answer.token_ids))
    for record in answer.records:
        for _ in range(record.wasted):  # skip steps of undone tokens; the next step is the full-depth pass
            next(steps)
        scores.append(next(steps))
    return Answer(document.key, answer.token_ids, answer.exit_layers, scores, sum(answer.rejected))


def histories(n: int) -> list[tuple[list[float], list[int]]]:
    """Return synthetic data for fitting FREE's threshold: confidences, and agreement with the full model (1 or 0).

    They vary in number, confidence, rate of agreement, and correlation of agreement with confidence.
    """
    draw, results = np.random.default_rng(1), []
    for _ in range(n):
        tokens = int(draw.choice([2, 3, 5, 10, 30, 100, 400]))
        scores = draw.beta(*draw.choice([0.4, 1.0, 1.5, 4.0, 12.0], size=2), size=tokens)
        steepness, level = draw.choice([0.0, 2.0, 6.0, 20.0]), draw.uniform(-4, 4)
        chance = 1 / (1 + np.exp(-(steepness * (scores - scores.mean()) + level)))
        results.append((scores.tolist(), (draw.random(tokens) < chance).astype(int).tolist()))
    return results
