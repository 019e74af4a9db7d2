"""Bundled models on built-in data: full depth equals transformers; verification and certified heads change no answer.

Certified heads give the tokens and exit layers of the exact head, and scores within their bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from prompt_decoding import decode_prompts, full_depth_tokens
from transformers import AutoTokenizer

from exitbench.harness.cells.cell import GenerationSettings
from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.engine.decoding.decode import decode, prefill, repeat_rows
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.training import find_trained, load_recipe
from exitbench.harness.training.models import is_causal, read_model
from exitbench.harness.training.store import SHIPPED
from exitbench.methods.base import Parts
from exitbench.methods.registry import get_method
from exitbench.tasks import builtin
from exitbench.tasks.builtin import TEXT_TASKS
from exitbench.tasks.registry import get_task

RECIPES = [entry.recipe for entry in load_suite("builtin").models if entry.recipe and entry.runs_task("squad")]
NEW_TOKENS, FEW_TOKENS = 40, 12
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("calm-softmax", {"threshold": 0.0}),
    ("calm-softmax", {"threshold": 0.3, "kv_policy": "state-copy-lazy"}),
    ("calm-softmax", {"threshold": 0.9, "kv_policy": "exact"}),
    ("calm-softmax", {"threshold": 0.99, "decay": "code"}),
    ("calm-softmax", {"threshold": 1.0}),
    ("max-prob", {"threshold": 0.5, "kv_policy": "recompute-backlog"}),
    ("max-prob", {"threshold": 0.95, "kv_policy": "sync-parallel"}),
    ("entropy", {"threshold": 0.2}),
    ("entropy", {"threshold": 1.5, "kv_policy": "sync-parallel", "every": 2}),
    ("free", {"threshold": 0.7}),
    ("free", {"threshold": 0.7, "kv_policy": "sync-parallel-rollback"}),
    ("full", {}),
    ("static", {"exit_layer": 3}),
    ("self-speculation", {"exit_layer": 2, "drafts": 3}),
    ("self-speculation", {"exit_layer": 2, "drafts": 3, "stop_below": 0.3}),
]


@pytest.fixture(scope="module", params=RECIPES)
def folder(request: pytest.FixtureRequest) -> Path:
    result = find_trained(load_recipe(request.param), SHIPPED)
    assert result is not None
    return result


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Checkpoint:
    return load_checkpoint(folder)


@pytest.fixture(scope="module")
def all_prompts(folder: Path, checkpoint: Checkpoint) -> list[list[int]]:
    """Return the prompts of two documents of each built-in task."""
    tokenizer, kind = AutoTokenizer.from_pretrained(folder), checkpoint.kind
    documents = [(get_task(name), doc) for name in TEXT_TASKS for doc in builtin.documents(name, "test", 2)]
    return [tokenizer(task.prompt_for(document, kind)).input_ids for task, document in documents]


@pytest.fixture(scope="module")
def prompts(all_prompts: list[list[int]]) -> list[list[int]]:
    """Return the prompts of one document of each built-in task, four at most."""
    return all_prompts[::2][:4]


def parts_of(checkpoint: Checkpoint, name: str, params: dict[str, Any]) -> Parts:
    return get_method(name).from_params(params).parts(checkpoint.model.n_blocks)


# ------------------------------------------------------------------------------------------ full depth, verification


@pytest.fixture(scope="module")
def full(checkpoint: Checkpoint, all_prompts: list[list[int]]) -> list[list[int]]:
    return full_depth_tokens(checkpoint, all_prompts, NEW_TOKENS)


def test_full_depth_equals_transformers_greedy_search(
    folder: Path, all_prompts: list[list[int]], full: list[list[int]]
) -> None:
    model, tokenizer = read_model(folder)
    side = "left" if is_causal(model) else "right"
    inputs = tokenizer.pad({"input_ids": all_prompts}, padding_side=side, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
    rows = ids[:, inputs["input_ids"].shape[1] if is_causal(model) else 1 :].tolist()
    for row, answer in zip(rows, full, strict=True):
        assert row == answer + [tokenizer.pad_token_id] * (len(row) - len(answer))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("exit_layer", "drafts"), [(1, 4), (2, 1), (5, 4)])
def test_self_speculation_equals_full_depth(
    checkpoint: Checkpoint, all_prompts: list[list[int]], full: list[list[int]], exit_layer: int, drafts: int
) -> None:
    parts = parts_of(checkpoint, "self-speculation", {"exit_layer": exit_layer, "drafts": drafts})
    result = decode_prompts(checkpoint, all_prompts, NEW_TOKENS, parts)
    assert [generation.token_ids for generation in result] == full
    assert {layer for generation in result for layer in generation.exit_layers} == {exit_layer, 8}
    alone = [decode_prompts(checkpoint, [prompt], NEW_TOKENS, parts)[0] for prompt in all_prompts[:4]]
    assert [generation.rejected for generation in alone] == [generation.rejected for generation in result[:4]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "params",
    [{"threshold": 1.0}, {"threshold": 0.3, "kv_policy": "sync-parallel-rollback", "rollback": 0.0}],
    ids=["never shallow", "every wrong token undone"],
)
def test_free_equals_full_depth_at_its_parameter_limits(
    checkpoint: Checkpoint, all_prompts: list[list[int]], full: list[list[int]], params: dict[str, Any]
) -> None:
    result = decode_prompts(checkpoint, all_prompts, NEW_TOKENS, parts_of(checkpoint, "free", params))
    assert [generation.token_ids for generation in result] == full


# ------------------------------------------------------------------------------------------ certified heads


def answered(
    checkpoint: Checkpoint, prompts: Sequence[list[int]], parts: Parts, asked: GenerationSettings | None = None
) -> list[Generation]:
    return decode_prompts(checkpoint, prompts, FEW_TOKENS, parts, settings=asked)


def decisions(generations: Sequence[Generation]) -> list[tuple[list[int], list[int], list[int], list[int]]]:
    return [(one.token_ids, one.exit_layers, one.blocks_run, one.rejected) for one in generations]


def assert_scores_lie_within(certified: Generation, exact: Generation) -> None:
    """Assert that each certified score is exact, or within its stored half-width of the exact score."""
    for record, own in zip(certified.records, exact.scores, strict=True):
        score, half_width = record.score, record.score_half_width
        if half_width is None:
            assert score == own
        else:
            assert score is not None and own is not None and abs(score - own) <= half_width * (1 + 1e-6) + 1e-7


# Each setting on an encoder-decoder and on a decoder alone, each model with half of them: no bound is a model's own.
# `nox -s tests` runs each setting on one model at least, `nox -s exhaustive` the others.
PAIRS = [
    pytest.param(
        recipe,
        setting,
        id=" ".join(map(str, (recipe, setting[0], *setting[1].values()))),
        marks=() if (number + place) % 4 == 0 else pytest.mark.exhaustive,
    )
    for number, recipe in enumerate(RECIPES)
    for place, setting in enumerate(SETTINGS)
    if (number + place) % 2 == 0
]


@pytest.mark.parametrize(("folder", "setting"), PAIRS, indirect=["folder"])
def test_tokens_and_exit_layers_equal_those_of_the_exact_head(
    checkpoint: Checkpoint, prompts: list[list[int]], setting: tuple[str, dict[str, Any]]
) -> None:
    parts = parts_of(checkpoint, *setting)
    for batch in (prompts, prompts[:1]):
        exact, certified = answered(checkpoint, batch, parts), answered(checkpoint, batch, parts.certified())
        assert decisions(certified) == decisions(exact)
        for ours, theirs in zip(certified, exact, strict=True):
            assert_scores_lie_within(ours, theirs)


def test_rows_with_different_thresholds_decide_as_with_the_exact_head(
    checkpoint: Checkpoint, prompts: list[list[int]]
) -> None:
    parts = parts_of(checkpoint, "calm-softmax", {})
    rules = [parts_of(checkpoint, "calm-softmax", {"threshold": level}).threshold for level in (0.1, 0.5, 0.9)]

    def swept(parts: Parts) -> list[Generation]:
        batch = prefill(checkpoint.model, [Request(prompt) for prompt in prompts[:2]], FEW_TOKENS)
        return decode(checkpoint, repeat_rows(batch, [rules, rules]), parts)

    assert decisions(swept(parts.certified())) == decisions(swept(parts))


def test_bfloat16_decisions_equal_those_of_the_exact_head(folder: Path, prompts: list[list[int]]) -> None:
    half = load_checkpoint(folder, torch.bfloat16)
    parts = parts_of(half, "calm-softmax", {"threshold": 0.7})
    assert decisions(answered(half, prompts, parts.certified())) == decisions(answered(half, prompts, parts))


WITH_RULES = GenerationSettings(FEW_TOKENS, repetition_penalty=1.3, no_repeat_ngram_size=3)
ONE_DEPTH = GenerationSettings(FEW_TOKENS, scope="answer")


@pytest.mark.parametrize(
    ("settings", "name", "params"),
    [
        (WITH_RULES, "calm-softmax", {"threshold": 0.7}),
        (ONE_DEPTH, "static", {"exit_layer": 3}),
        (ONE_DEPTH, "calm-softmax", {"threshold": 0.7}),
    ],
    ids=["logit-rules", "one-depth-static", "one-depth-gated"],
)
def test_decisions_with_other_settings_equal_those_of_the_exact_head(
    checkpoint: Checkpoint, prompts: list[list[int]], settings: GenerationSettings, name: str, params: dict[str, Any]
) -> None:
    parts = parts_of(checkpoint, name, params)
    exact = answered(checkpoint, prompts, parts, settings)
    assert decisions(answered(checkpoint, prompts, parts.certified(), settings)) == decisions(exact)


def test_drafts_without_a_stop_rule_read_bounds_only_where_they_exit(
    checkpoint: Checkpoint, prompts: list[list[int]]
) -> None:
    parts = parts_of(checkpoint, "self-speculation", {"exit_layer": 2, "drafts": 3}).certified()
    (result,) = answered(checkpoint, prompts[:1], parts)
    vocab_size = checkpoint.model.vocab_size
    assert {record.head_rows_int8 for record in result.records} <= {0, vocab_size, 2 * vocab_size, 3 * vocab_size}
    assert all(record.head_rows_int8 == 0 or record.exit_layer == 2 or record.rejected for record in result.records[1:])
    assert {record.score_half_width for record in result.records} == {None}


def test_full_depth_reads_each_token_from_bounds(checkpoint: Checkpoint, prompts: list[list[int]]) -> None:
    vocab_size = checkpoint.model.vocab_size
    (result,) = answered(checkpoint, prompts[:1], parts_of(checkpoint, "full", {}).certified())
    assert {record.head_rows_int8 for record in result.records} == {vocab_size}
    tied = sum(record.head_fallbacks for record in result.records)
    assert tied <= 1 and sum(result.head_rows) < vocab_size * (tied + 1)


def test_unreachable_threshold_skips_the_lm_head(checkpoint: Checkpoint, prompts: list[list[int]]) -> None:
    vocab_size, n_blocks = checkpoint.model.vocab_size, checkpoint.model.n_blocks
    parts = parts_of(checkpoint, "calm-softmax", {"threshold": 1.0}).certified()
    (result,) = answered(checkpoint, prompts[:1], parts)
    first = 0 if checkpoint.kind == "seq2seq" else 1  # that of a decoder-only model is read from the prompt's own pass
    assert {record.head_rows_int8 for record in result.records[first:]} == {vocab_size * n_blocks}
    tied = sum(record.head_fallbacks for record in result.records)
    assert tied <= 1 and sum(result.head_rows) < vocab_size * (tied + 1)


def test_undecided_scores_fall_back_to_the_exact_head_and_are_counted(
    checkpoint: Checkpoint, prompts: list[list[int]]
) -> None:
    exact = parts_of(checkpoint, "calm-softmax", {"threshold": 0.5})
    result = answered(checkpoint, prompts, exact)
    near = next(score for one in result for score in one.scores if score is not None)
    parts = parts_of(checkpoint, "calm-softmax", {"threshold": near})  # lies within the bounds of that token's score
    theirs, ours = answered(checkpoint, prompts, parts), answered(checkpoint, prompts, parts.certified())
    assert decisions(ours) == decisions(theirs)
    records = [record for one in ours for record in one.records]
    assert sum(record.head_fallbacks for record in records) > 0
    for record in records:
        assert record.head_rows >= record.head_fallbacks * checkpoint.model.vocab_size
