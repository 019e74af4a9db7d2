"""Penalties, forced first tokens and minimum lengths give the tokens of transformers' greedy search."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from prompt_decoding import decode_prompts

from exitbench.errors import UserError
from exitbench.harness.cells.cell import GenerationSettings
from exitbench.harness.engine.decoding.generation import Generation
from exitbench.harness.engine.decoding.logit_rules import why_not
from exitbench.methods.registry import baseline_method, get_method, method_names

LONGEST, DEPTH = 14, 5
FORCED = 7
RULES: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.4},
    "a reward for repeating": {"repetition_penalty": 0.7},
    "no_repeat_ngram_size 1": {"no_repeat_ngram_size": 1},
    "no_repeat_ngram_size 2": {"no_repeat_ngram_size": 2},
    "no_repeat_ngram_size 3": {"no_repeat_ngram_size": 3},
    "min_length": {"min_length": 10},
    "several": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "min_length": 8},
}


def answers_of_transformers(family: Any, model: Any, prompts: list[list[int]], **rules: Any) -> list[list[int]]:
    """Return transformers' greedy answers, cut after the end-of-sequence token.

    Decoder-only models get one prompt at a time, because penalties would count padding as text.
    """
    eos, answers = family.checkpoint.eos_ids, list[list[int]]()
    for batch in [prompts] if family.is_seq2seq else [[prompt] for prompt in prompts]:
        inputs = family.padded(batch)
        generated = model.generate(
            **inputs, max_new_tokens=LONGEST, do_sample=False, num_beams=1, use_cache=False, **rules
        )
        new = generated[:, 1 if family.is_seq2seq else inputs["input_ids"].shape[1] :].tolist()
        answers += [row[: next((i + 1 for i, token in enumerate(row) if token in eos), None)] for row in new]
    return answers


def run(family: Any, prompts: list[list[int]], method: Any, rules: dict[str, Any]) -> list[Generation]:
    settings = GenerationSettings(LONGEST, **rules)
    return decode_prompts(family.checkpoint, prompts, LONGEST, method.parts(DEPTH), settings=settings)


def tokens(generations: list[Generation]) -> list[list[int]]:
    return [generation.token_ids for generation in generations]


def assert_is_greedy_search(family: Any, rows: list[list[int]], what: str) -> None:
    ours = tokens(run(family, rows, baseline_method()(), RULES[what]))
    assert ours == answers_of_transformers(family, family.reference, rows, **RULES[what])
    assert ours != tokens(run(family, rows, baseline_method()(), {})), "the rule must change something here"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", [what for what in RULES if what != "several"])
@pytest.mark.parametrize("name", ["t5", "gpt2"])
def test_full_depth_equals_transformers_greedy_search(
    twin: Any, prompts: list[list[int]], name: str, what: str
) -> None:
    """Tested with one family whose answers follow a start token and one whose answers follow the prompt."""
    assert_is_greedy_search(twin(name), prompts[:16], what)


def test_every_family_equals_transformers_greedy_search_under_several_rules(
    family: Any, prompts: list[list[int]]
) -> None:
    assert_is_greedy_search(family, prompts[:8], "several")


@pytest.mark.parametrize("rules", [{}, RULES["several"]], ids=["alone", "with others"])
def test_forced_first_token_equals_transformers(twin: Any, prompts: list[list[int]], rules: Any) -> None:
    family, rules = twin("t5"), {"forced_bos_token_id": FORCED, **rules}
    ours = run(family, prompts[:20], baseline_method()(), rules)
    assert {generation.token_ids[0] for generation in ours} == {FORCED}
    assert tokens(ours) == answers_of_transformers(family, family.reference, prompts[:20], **rules)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("exit_layer", [1, 3])
@pytest.mark.parametrize("what", ["repetition_penalty", "several"])
def test_static_exit_tokens_equal_those_of_a_truncated_model(
    twin: Any, prompts: list[list[int]], what: str, exit_layer: int
) -> None:
    family = twin("t5")
    shorter = copy.deepcopy(family.reference)
    shorter.decoder.block = shorter.decoder.block[:exit_layer]
    ours = run(family, prompts[:20], get_method("static")(exit_layer=exit_layer), RULES[what])
    assert tokens(ours) == answers_of_transformers(family, shorter, prompts[:20], **RULES[what])


def test_gate_reads_raw_head_logits_before_the_rules(twin: Any, prompts: list[list[int]]) -> None:
    family, method = twin("t5"), get_method("calm-softmax")(threshold=0.05)
    plain = run(family, prompts[:20], method, {})
    forced = run(family, prompts[:20], method, {"forced_bos_token_id": FORCED})
    first = [[(g.exit_layers[0], g.scores[0]) for g in result] for result in (plain, forced)]
    assert first[0] == first[1]
    assert len({layer for layer, _ in first[0]}) > 1
    assert {g.token_ids[0] for g in forced} == {FORCED} != {g.token_ids[0] for g in plain}


@pytest.mark.parametrize("name", ["t5", "gpt2"])
def test_batch_equals_its_rows_decoded_alone(twin: Any, prompts: list[list[int]], name: str) -> None:
    family, method = twin(name), get_method("calm-softmax")(threshold=0.1)
    together = run(family, prompts[:12], method, RULES["several"])
    alone = [run(family, [prompt], method, RULES["several"])[0] for prompt in prompts[:12]]
    assert [(g.token_ids, g.exit_layers) for g in together] == [(g.token_ids, g.exit_layers) for g in alone]


def test_forced_token_outside_the_vocabulary_is_refused(twin: Any, prompts: list[list[int]]) -> None:
    with pytest.raises(UserError, match="forced_bos_token_id is 100; the vocabulary has tokens 0 to 99"):
        run(twin("t5"), prompts[:1], baseline_method()(), {"forced_bos_token_id": 100})


def test_pruned_heads_are_refused(twin: Any, prompts: list[list[int]]) -> None:
    pruned = get_method("calm-softmax")(threshold=0.05, head="pruned-fixed", k_first=4, k_min=2)
    assert why_not(pruned.parts(DEPTH)) == "reads only a part of the vocabulary"
    with pytest.raises(UserError, match="min_length: the head must read the whole vocabulary"):
        run(twin("t5"), prompts[:20], pruned, RULES["min_length"])


def test_drafting_oracle_and_contrastive_methods_do_not_support_logit_rules() -> None:
    refused = {name for name in method_names() if why_not(get_method(name)().parts(DEPTH)) is not None}
    drafting = {"self-speculation", "del", "prompt-lookup"}
    assert refused == drafting | {"oracle", "contrastive", "contrastive-reweighted", "contrastive-jsd"}
