"""Texts for encoders: truncation, the number of tokens cut off, and the mapping of labels."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from exitbench.errors import UserError
from exitbench.harness.cells.cell import GenerationSettings
from exitbench.harness.cells.texts import TextEncoding, label_indices
from exitbench.tasks.builtin.corpus import build_tokenizer


@pytest.fixture
def tokenizer() -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=build_tokenizer(), pad_token="<pad>", unk_token="<unk>")


def encoding(tokenizer: Any, longest: int, **asked: Any) -> TextEncoding:
    return TextEncoding(tokenizer, GenerationSettings(max_new_tokens=1, **asked), longest)


@pytest.mark.parametrize(
    ("asked", "has", "places"),
    [
        (("bad", "good"), ("bad", "good"), (0, 1)),
        (("bad", "good"), ("GOOD", "Bad"), (1, 0)),
        (("bad", "good"), ("LABEL_0", "LABEL_1"), (0, 1)),
        (None, ("LABEL_0",), (0,)),
    ],
)
def test_labels_are_matched_by_name_or_else_by_order(asked: Any, has: Any, places: tuple[int, ...]) -> None:
    assert label_indices("task", asked, has) == places


def test_mismatched_label_count_is_refused() -> None:
    with pytest.raises(UserError, match="one of 2 labels"):
        label_indices("task", ("bad", "good"), ("a", "b", "c"))


@pytest.mark.parametrize("side", ["right", "left"])
def test_long_text_is_truncated_on_the_requested_side_and_counted(side: Any, tokenizer: Any) -> None:
    """The end-of-sequence token is kept."""
    text = "a dog runs a dog runs a dog runs"
    whole = encoding(tokenizer, 100)([text], 0)
    cut = encoding(tokenizer, 100, max_prompt_tokens=5, truncate=side)([text], 0)
    *words, end = whole.ids
    assert cut.ids == (*(words[:4] if side == "right" else words[-4:]), end)
    assert (cut.n_cut, whole.n_cut) == (len(whole.ids) - 5, 0)


def test_longer_text_of_a_pair_is_truncated_first(tokenizer: Any) -> None:
    short, long = "a dog", "a dog runs a dog runs a dog runs"
    *words, _ = encoding(tokenizer, 100)([short], 0).ids
    cut = encoding(tokenizer, len(words) + 3)([long, short], 0)
    assert cut.n_cut > 0 and len(cut.ids) == len(words) + 3
    assert _contains(cut.ids, words)


def _contains(ids: tuple[int, ...], words: list[int]) -> bool:
    return any(list(ids[start : start + len(words)]) == words for start in range(1, len(ids)))


def test_text_to_be_dropped_is_not_truncated(tokenizer: Any) -> None:
    result = encoding(tokenizer, 4, truncate="drop", max_prompt_tokens=4)(["a dog runs a dog runs"], 0)
    assert len(result.ids) == 4 + result.n_cut and result.n_cut > 0


def test_classifier_input_of_three_texts_is_refused(tokenizer: Any) -> None:
    with pytest.raises(UserError, match="a text or a pair, not 3 texts"):
        encoding(tokenizer, 9)(["a", "dog", "runs"], 0)
