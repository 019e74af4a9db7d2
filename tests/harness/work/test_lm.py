"""The lm-eval adapter: budgets and stop strings apply to new tokens; order and batches do not affect results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from transformers import AutoTokenizer

from exitbench.errors import UserError
from exitbench.harness.cells.cell import GenerationSettings
from exitbench.harness.cells.prompts import Prompts
from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.work.lm import EarlyExitLM
from exitbench.methods.registry import get_method

PROMPTS = {
    "long": "translate English to French : " + "the cat sees the old house . " * 8,
    "short": "the cat",
    "middle": "the small dog sees the house .",
}


@pytest.fixture(scope="module")
def loaded(worded_model: Path) -> tuple[Any, Any]:
    return load_checkpoint(worded_model), AutoTokenizer.from_pretrained(worded_model)


def instances(**generation: Any) -> list[Instance]:
    settings = {"until": [], "max_gen_toks": 6, "do_sample": False, **generation}
    return [
        Instance("generate_until", {"doc_key": key}, (prompt, settings), index, metadata=("t", index, 1))
        for index, (key, prompt) in enumerate(PROMPTS.items())
    ]


def adapter(loaded: tuple[Any, Any], batch_size: int = 1, threshold: float = 1.0) -> EarlyExitLM:
    checkpoint, tokenizer = loaded
    parts = get_method("calm-softmax").from_params({"threshold": threshold}).parts(checkpoint.model.n_blocks)
    prompts = Prompts(tokenizer, GenerationSettings(6))
    return EarlyExitLM(checkpoint, prompts, parts, batch_size, lambda key: 0, lambda done: None)


def test_max_gen_toks_counts_only_new_tokens(loaded: tuple[Any, Any]) -> None:
    lm = adapter(loaded)
    lm.generate_until(instances(max_gen_toks=3))
    assert {key: len(answer.generation.token_ids) for key, answer in lm.answers.items()} == dict.fromkeys(PROMPTS, 3)


def test_answers_are_returned_in_request_order(loaded: tuple[Any, Any]) -> None:
    lm = adapter(loaded)
    texts = lm.generate_until(instances())
    assert texts == [lm.answers[key].text for key in PROMPTS]
    assert len(set(texts)) > 1


@pytest.mark.parametrize("threshold", [0.0, 0.3, 1.0])
def test_batch_size_does_not_change_answers_and_exits(loaded: tuple[Any, Any], threshold: float) -> None:
    one, three = adapter(loaded, 1, threshold), adapter(loaded, 3, threshold)
    assert one.generate_until(instances()) == three.generate_until(instances())
    for key in PROMPTS:
        assert one.answers[key].generation.exit_layers == three.answers[key].generation.exit_layers


def test_stop_string_ends_the_answer_and_is_removed(loaded: tuple[Any, Any]) -> None:
    free = adapter(loaded)
    words = free.generate_until(instances())[0].split(" ")
    at = next(index for index in range(1, len(words)) if words[index] not in words[:index])
    lm = adapter(loaded)
    text = lm.generate_until(instances(until=[words[at]]))[0]
    assert text.strip() == " ".join(words[:at])
    assert lm.answers["long"].generation.stop_reason == "stop_string"
    assert len(lm.answers["long"].generation.token_ids) == at + 1


def test_stop_string_in_the_prompt_is_ignored(loaded: tuple[Any, Any]) -> None:
    free, lm = adapter(loaded), adapter(loaded)
    texts = free.generate_until(instances())
    word = next(word for word in ("house", "sees", "old") if all(word not in text for text in texts))
    assert lm.generate_until(instances(until=[word])) == texts


def test_likelihood_requests_are_refused_by_the_generation_adapter(loaded: tuple[Any, Any]) -> None:
    with pytest.raises(UserError, match="tasks of ExitBench generate text"):
        adapter(loaded).loglikelihood([Instance("loglikelihood", {}, ("a", "b"), 0)])
