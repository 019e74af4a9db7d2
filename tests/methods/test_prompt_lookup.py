"""Prompt lookup: the token after the first earlier occurrence of the longest n-gram that the text ends in."""

from hypothesis import given
from hypothesis import strategies as st

from exitbench.methods.prompt_lookup import next_token

TEXTS = st.lists(st.integers(0, 2), max_size=14)


@given(text=TEXTS, longest=st.integers(1, 4))
def test_draft_continues_the_first_occurrence_of_the_longest_repeated_ngram(text: list[int], longest: int) -> None:
    """Texts have few different tokens, so that n-grams often repeat, in whole or in part."""
    expected = None
    for n in range(1, longest + 1):
        after = [text[at] for at in range(n, len(text)) if text[at - n : at] == text[-n:]]
        expected = after[0] if after else expected
    assert next_token(text, longest) == expected
