"""Wording of shares, ratios, ranges and names in the sentences that captions begin with."""

import pytest

from exitbench.reports.labels import between, join_words, percent, short_name, times


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.834, "83 %"), (1, "100 %"), (0, "0 %"), (0.999, "more than 99 %"), (0.001, "0.1 %"), (1.24, "124 %")],
)
def test_shares_are_never_rounded_to_0_or_100_percent(share: float, text: str) -> None:
    assert percent(share) == text


def test_ratios_show_intervals_and_lists_end_with_and() -> None:
    assert (times(1.736), times(2, 1.5, 2.5), times(2, None, 2.5)) == ("1.74×", "2.00× [1.50, 2.50]", "2.00×")
    assert [join_words(list(parts)) for parts in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]


def test_range_names_its_endpoints_and_collapses_to_one_number() -> None:
    rows = [{"share": 0.5, "model": "m"}, {"share": None, "model": "none"}, {"share": 0.9, "model": "n"}]
    assert between(rows, "share", percent, ("model",)) == "50 % (m) to 90 % (n)"
    assert between(rows[:2], "share", percent, ("model",)) == "50 %"


def test_long_names_are_shortened_in_sentences() -> None:
    assert len(short_name("x" * 900)) < 60
