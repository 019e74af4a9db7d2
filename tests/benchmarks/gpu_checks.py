"""Check that a device gives the CPU's tokens and exit layers in fp32, except at near ties."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from gpu_models import Line, Setting
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.model import model
from exitbench.harness.engine.model.graphs import DEVICES
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.training import find_trained, load_recipe
from exitbench.harness.training.store import SHIPPED
from exitbench.methods.base import BlockView, Gate, Parts
from exitbench.methods.registry import get_method
from exitbench.tasks import builtin
from exitbench.tasks.builtin import TEXT_TASKS
from exitbench.tasks.registry import get_task

NEAR_TIE = 1e-3
"""Largest margin, of a score over its threshold or a logit over the next, that fp32 rounding may reverse."""
OPEN: Mapping[str, Any] = {"threshold": 0.8, "decay": "none"}
METHODS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "full": ("full", {}),
    "static": ("static", {"exit_layer": 3}),
    "random": ("random", {"mean_exit": 3.0}),
    "softmax": ("calm-softmax", OPEN),
    "softmax, pruned": ("calm-softmax", {**OPEN, "head": "pruned-fixed", "k_first": 100, "k_min": 50}),
    "saturation": ("calm-saturation", {"threshold": 0.95, "decay": "none"}),
    "softmax, certified": ("calm-softmax", OPEN),
    "entropy, certified": ("entropy", {"threshold": 3.0, "decay": "none"}),
}
CERTIFIED = ", certified"
"""Suffix of methods that decide from an int8 copy of the LM head on the device and from the exact head on the CPU."""
GROUPED: Mapping[str, Any] = dict(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_hidden_layers=6,
    initializer_range=0.5,
)
"""Model with grouped-query attention, which no bundled model has, and weights so large that logits are far apart."""


class RecordingGate(Gate):
    """Wrapper of a gate that records every score, and each chosen token's logit margin over the next best."""

    def __init__(self, gate: Gate) -> None:
        self.gate, self.needs_history, self.looks_ahead = gate, gate.needs_history, gate.looks_ahead
        self.scores: dict[tuple[int, int, int], float] = {}  # by seed, position and block
        self.margins: dict[tuple[int, int], float] = {}  # of the chosen token over the next best; by seed and position

    def score(self, view: BlockView) -> Tensor:
        score_A = self.gate.score(view)
        for seed, position, score in zip(view.seeds_A, view.positions_A, score_A.tolist(), strict=True):
            self.scores[seed, position, view.block] = score
        return score_A

    def choose(self, view: BlockView) -> Tensor:
        best, second = view.logits_AK.topk(2).values.T
        for seed, position, margin in zip(view.seeds_A, view.positions_A, (best - second).tolist(), strict=True):
            self.margins[seed, position] = margin
        return self.gate.choose(view)


@dataclass(frozen=True)
class Difference:
    """Place where a device's answer first differs from the CPU's, and the margin of the CPU's decision there."""

    where: str
    margin: float


@dataclass(frozen=True)
class Case:
    """Model, method and batch, with the CPU's answers and the number of new tokens."""

    name: str
    on_device: Checkpoint
    parts: Parts
    requests: Sequence[Request]
    new_tokens: int
    expected: Sequence[Generation]
    noted: RecordingGate

    def differences(self, answers: Sequence[Generation]) -> Iterator[Difference]:
        """Yield the first difference from the CPU's answer, for each answer that differs."""
        for request, local, reference in zip(self.requests, answers, self.expected, strict=True):
            if (local.token_ids, local.exit_layers) != (reference.token_ids, reference.exit_layers):
                yield self._first_difference(request.seed, local, reference)

    def _first_difference(self, seed: int, local: Generation, reference: Generation) -> Difference:
        tokens = zip(local.token_ids, reference.token_ids, local.exit_layers, reference.exit_layers, strict=False)
        for position, (token, expected_token, exit_layer, expected_exit) in enumerate(tokens, 1):
            place = f"{self.name}, answer {seed}, token {position}"
            if exit_layer != expected_exit:
                block = min(exit_layer, expected_exit)
                level = self.parts.threshold.value(block, position, self.new_tokens)
                return Difference(f"{place}, block {block}", abs(self.noted.scores[seed, position, block] - level))
            if token != expected_token:
                return Difference(place, self.noted.margins[seed, position])
        return Difference(f"{self.name}, answer {seed}, its length", math.inf)


def correctness(setting: Setting) -> Iterator[Line]:
    """Check the device's answers against the CPU's; if any is wrong, nothing is timed afterwards."""
    cases = list(_cases(setting))
    differences = [
        difference for case in cases for answers in _answers_of(case) for difference in case.differences(answers)
    ]
    wrong = [difference for difference in differences if not difference.margin < NEAR_TIE]
    setting.is_wrong = bool(wrong)
    answers = 2 * sum(len(case.requests) for case in cases)
    near = max((difference.margin for difference in differences if difference not in wrong), default=0.0)
    note = f"of {answers} answers; {len(differences) - len(wrong)} part at near-ties, margins up to {near:.1e}"
    first = f"; wrong first: {wrong[0].where}, margin {wrong[0].margin:.1e}" if wrong else ""
    yield "correct", _result(1 - len(wrong) / answers, note + first)


def _result(share: float, note: str) -> dict[str, Any]:
    """Return the content of a line for the share of correct answers, whose goal is 100 %."""
    return {"measured": share, "unit": "%", "at_least": 1.0, "note": note, "check": True}


def _cases(setting: Setting) -> Iterator[Case]:
    n_documents, new_tokens = (1, 8) if setting.quick else (4, 40)
    for label, folder, prompts in _models(setting, n_documents):
        on_cpu, on_device = load_checkpoint(folder), load_checkpoint(folder, device=setting.device)
        requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts)]
        for batch in (requests[:1], requests[-1:], requests):
            for name, (method, params) in METHODS.items():
                parts = get_method(method).from_params(params).parts(on_cpu.model.n_blocks)
                noted = RecordingGate(parts.gate)
                expected = _answers(on_cpu, batch, new_tokens, replace(parts, gate=noted))
                variant = parts.certified() if name.endswith(CERTIFIED) else parts
                yield Case(f"{label} {name}", on_device, variant, batch, new_tokens, expected, noted)


def _models(setting: Setting, n_documents: int) -> Iterator[tuple[str, Path, list[list[int]]]]:
    """Yield label, folder and prompts of each model."""
    recipes = [entry.recipe for entry in load_suite("builtin").models if entry.recipe and entry.runs_task("squad")]
    for recipe in recipes[: 1 if setting.quick else None]:
        folder = find_trained(load_recipe(recipe), SHIPPED)
        assert folder is not None, f"{recipe} comes along"
        yield recipe, folder, _prompts(folder, n_documents)
    label = "llama-grouped-random"
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**GROUPED)).save_pretrained(setting.folder / label)
    lengths = range(24, 24 - 4 * n_documents, -4)
    yield label, setting.folder / label, [torch.randint(3, GROUPED["vocab_size"], (n,)).tolist() for n in lengths]


def _prompts(folder: Path, n_documents: int) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tasks = {name: builtin.documents(name, "test", n_documents) for name in TEXT_TASKS}
    texts = [get_task(name).prompt(document) for name, documents in tasks.items() for document in documents]
    return [tokenizer(text).input_ids for text in texts]


def _answers(checkpoint: Checkpoint, requests: Sequence[Request], new_tokens: int, parts: Parts) -> list[Generation]:
    return decode(checkpoint, prefill(checkpoint.model, requests, new_tokens), parts)


def _answers_of(case: Case) -> Iterator[list[Generation]]:
    """Yield the device's answers twice: with CUDA graphs, and without."""
    for devices in (DEVICES, frozenset[str]()):
        with patch.object(model, "DEVICES", devices):
            yield _answers(case.on_device, case.requests, case.new_tokens, case.parts)
