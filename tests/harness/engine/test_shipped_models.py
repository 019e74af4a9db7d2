"""Bundled models on built-in data: full depth gives transformers' greedy answers, and verification changes none."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.training import find_trained, load_recipe
from exitbench.harness.training.models import is_causal, read_model
from exitbench.harness.training.store import SHIPPED
from exitbench.methods.registry import get_method
from exitbench.tasks import builtin
from exitbench.tasks.builtin import TEXT_TASKS
from exitbench.tasks.registry import get_task

RECIPES = [entry.recipe for entry in load_suite("builtin").models if entry.recipe and entry.runs_task("squad")]
NEW_TOKENS = 40


@pytest.fixture(scope="module", params=RECIPES)
def folder(request: pytest.FixtureRequest) -> Path:
    result = find_trained(load_recipe(request.param), SHIPPED)
    assert result is not None
    return result


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Checkpoint:
    return load_checkpoint(folder)


@pytest.fixture(scope="module")
def prompts(folder: Path, checkpoint: Checkpoint) -> list[list[int]]:
    tokenizer, kind = AutoTokenizer.from_pretrained(folder), checkpoint.kind
    documents = [(get_task(name), doc) for name in TEXT_TASKS for doc in builtin.documents(name, "test", 2)]
    texts = [task.prompt_for(document, kind) for task, document in documents]
    return [tokenizer(text).input_ids for text in texts]


def answers(checkpoint: Checkpoint, prompts: list[list[int]], name: str, **params: Any) -> list[Generation]:
    parts = get_method(name).from_params(params).parts(checkpoint.model.n_blocks)
    requests = [Request(prompt) for prompt in prompts]
    return decode(checkpoint, prefill(checkpoint.model, requests, NEW_TOKENS), parts)


@pytest.fixture(scope="module")
def full(checkpoint: Checkpoint, prompts: list[list[int]]) -> list[list[int]]:
    return [result.token_ids for result in answers(checkpoint, prompts, "full")]


def test_full_depth_equals_transformers_greedy_search(
    folder: Path, prompts: list[list[int]], full: list[list[int]]
) -> None:
    model, tokenizer = read_model(folder)
    side = "left" if is_causal(model) else "right"
    inputs = tokenizer.pad({"input_ids": prompts}, padding_side=side, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
    rows = ids[:, inputs["input_ids"].shape[1] if is_causal(model) else 1 :].tolist()
    for row, answer in zip(rows, full, strict=True):
        assert row == answer + [tokenizer.pad_token_id] * (len(row) - len(answer))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("exit_layer", "drafts"), [(1, 4), (2, 1), (5, 4)])
def test_self_speculation_equals_full_depth(
    checkpoint: Checkpoint, prompts: list[list[int]], full: list[list[int]], exit_layer: int, drafts: int
) -> None:
    result = answers(checkpoint, prompts, "self-speculation", exit_layer=exit_layer, drafts=drafts)
    assert [generation.token_ids for generation in result] == full
    assert {layer for generation in result for layer in generation.exit_layers} == {exit_layer, 8}
    alone = [
        answers(checkpoint, [prompt], "self-speculation", exit_layer=exit_layer, drafts=drafts)[0]
        for prompt in prompts[:4]
    ]
    assert [generation.rejected for generation in alone] == [generation.rejected for generation in result[:4]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "params",
    [{"threshold": 1.0}, {"threshold": 0.3, "kv_policy": "sync-parallel-rollback", "rollback": 0.0}],
    ids=["never shallow", "every wrong token undone"],
)
def test_free_equals_full_depth_at_its_parameter_limits(
    checkpoint: Checkpoint, prompts: list[list[int]], full: list[list[int]], params: dict[str, Any]
) -> None:
    assert [result.token_ids for result in answers(checkpoint, prompts, "free", **params)] == full
