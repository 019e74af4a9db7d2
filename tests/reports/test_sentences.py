"""Wording of shares, ratios, ranges and names in the sentences that captions begin with."""

import pytest

from exitbench.reports.labels import between, join_words, percent, short_name, times


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.834, "83 %"), (1, "100 %"), (0, "0 %"), (0.999, "more than 99 %"), (0.001, "0.1 %"), (1.24, "124 %")],
)
def test_a_share_is_whole_only_where_it_is(share: float, text: str) -> None:
    assert percent(share) == text


def test_ratios_have_their_interval_and_lists_their_last_word() -> None:
    assert (times(1.736), times(2, 1.5, 2.5), times(2, None, 2.5)) == ("1.74×", "2.00× [1.50, 2.50]", "2.00×")
    assert [join_words(list(parts)) for parts in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]


def test_a_range_says_where_its_ends_are_and_is_one_number_where_all_agree() -> None:
    rows = [{"share": 0.5, "model": "m"}, {"share": None, "model": "none"}, {"share": 0.9, "model": "n"}]
    assert between(rows, "share", percent, ("model",)) == "50 % (m) to 90 % (n)"
    assert between(rows[:2], "share", percent, ("model",)) == "50 %"


def test_no_name_makes_a_sentence_long() -> None:
    assert len(short_name("x" * 900)) < 60
