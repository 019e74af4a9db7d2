"""Labels contain the differences between settings and nothing else."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from exitbench.reports.labels import (
    against_float32,
    count,
    describe,
    is_sweep,
    labels,
    natural_key,
    number_format,
    setting,
    shorten,
)


def row(method: str, kv_policy: str | None = "state-copy", **params: Any) -> dict[str, Any]:
    return {"method": method, "params": json.dumps(params), "kv_policy": kv_policy}


def test_number_format_is_described_by_its_deviation_from_float32() -> None:
    measured = {"format_logprob_gap": 0.1442, "format_choice_gap": 0.0411, "format_match": 0.98}
    expected = "0.14 nats, 0.041 between choices, 98.0 % of choices equal"
    assert against_float32({"dtype": "bfloat16", **measured}) == expected
    assert number_format({"dtype": "bfloat16", **measured}) == f"bfloat16 against float32: {expected}"
    tokens = {"dtype": "int8", **measured, "format_choice_gap": None}
    assert against_float32(tokens) == "0.14 nats, 98.0 % of tokens equal"
    unknown = dict.fromkeys(measured)
    assert number_format({"dtype": "int8", **unknown}) == "int8 against float32: not measured"
    assert number_format({"dtype": "float32", **measured}) is None


def test_parameters_that_are_the_same_everywhere_are_left_out() -> None:
    rows = [row("calm", threshold=0.5, decay=False), row("calm", threshold=0.9, decay=False)]
    assert list(labels(rows).values()) == ["calm threshold=0.5", "calm threshold=0.9"]


def test_the_only_setting_of_a_method_names_its_parameters_but_not_its_kv_policy() -> None:
    assert list(labels([row("static", exit_layer=2), row("full", None)]).values()) == ["static exit_layer=2", "full"]


def test_a_kv_policy_that_varies_is_named() -> None:
    rows = [row("calm", "state-copy", threshold=0.5), row("calm", "exact", threshold=0.5)]
    assert list(labels(rows).values()) == ["calm kv_policy=state-copy", "calm kv_policy=exact"]
    assert setting(rows[0]) != setting(rows[1])


def test_parameter_values_are_formatted_readably() -> None:
    params = {"a": 0.30000000000000004, "b": True, "c": "x", "d": [1, 2], "e": None}
    assert describe(params) == "a=0.3, b=yes, c=x, d=[1, 2], e=null"


def test_a_sweep_differs_in_exactly_one_parameter() -> None:
    assert is_sweep([row("calm", t=1), row("calm", t=2)])
    assert not is_sweep([row("calm", t=1)])
    assert not is_sweep([row("calm", t=1, u=1), row("calm", t=2, u=2)])


def test_numbers_in_names_sort_as_numbers() -> None:
    names = ["x=10", "x=9", "a=0.95", "a=0.9", "b"]
    assert sorted(names, key=natural_key) == ["a=0.9", "a=0.95", "b", "x=9", "x=10"]


def test_long_texts_are_cut_and_newlines_are_spaces() -> None:
    assert shorten("ab\ncd", 5) == "ab cd"
    assert shorten("abcdef", 5) == "abcd…"


def test_counts_are_one_number_or_a_range() -> None:
    assert count([1200, 1200], "tokens") == "n = 1,200 tokens"
    assert count([5, 7], "documents") == "n = 5 to 7 documents"


def test_labels_omit_common_values_and_put_the_threshold_first() -> None:
    rows = [
        row("calm", rule="constant", threshold=0.3),
        row("calm", rule="constant", threshold=0.5),
        row("calm", rule="epsilon", threshold=0.5),
        row("calm", "exact", rule="constant", threshold=0.5),
    ]
    assert list(labels(rows).values()) == [
        "calm threshold=0.3",
        "calm threshold=0.5",
        "calm threshold=0.5, rule=epsilon",
        "calm threshold=0.5, kv_policy=exact",
    ]


def test_the_only_setting_of_a_method_with_many_parameters_names_its_threshold_or_patience() -> None:
    (label,) = labels([row("calm", threshold=0.5, rule="constant", every=1, min_exit=1)]).values()
    assert label == "calm threshold=0.5"
    (label,) = labels([row("pabee", patience=3, batch="row", every=1, min_exit=1)]).values()
    assert label == "pabee patience=3"


def test_labels_omit_disabled_parameters() -> None:
    (label,) = labels([{"method": "full", "params": '{"temperature": 0.0}', "kv_policy": "state-copy"}]).values()
    assert label == "full"
    (label,) = labels([{"method": "full", "params": '{"temperature": 0.7}', "kv_policy": "state-copy"}]).values()
    assert label == "full temperature=0.7"


PARAMETERS = st.dictionaries(
    st.sampled_from(["threshold", "rule", "every", "decay"]),
    st.one_of(st.floats(0, 1), st.integers(0, 3), st.booleans(), st.sampled_from(["a", "b", "exact"])),
)
KV_POLICIES = st.sampled_from(["state-copy", "exact"])


@given(st.lists(st.tuples(st.sampled_from(["m", "n"]), PARAMETERS, KV_POLICIES), min_size=1), st.booleans())
def test_distinct_settings_never_share_a_label(settings: list[tuple[str, dict[str, Any], str]], brief: bool) -> None:
    rows = [{"method": m, "params": json.dumps(p, sort_keys=True), "kv_policy": kv} for m, p, kv in settings]
    named = labels(rows, brief=brief)
    assert set(named) == set(map(setting, rows))
    assert len(set(named.values())) == len(named)


def test_nearly_equal_numbers_are_written_in_full() -> None:
    rows = [row("calm", threshold=0.1234567), row("calm", threshold=0.1234568), row("calm", threshold=0.5)]
    assert list(labels(rows).values()) == [
        "calm threshold=0.1234567",
        "calm threshold=0.1234568",
        "calm threshold=0.5",
    ]
