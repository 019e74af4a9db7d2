"""Cards of the report: the recommendation for each allowed loss, computed again from the runs, and its wording."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exitbench.reports.answers.document_choice import recommended
from exitbench.reports.frame import Row
from exitbench.reports.front import read_front
from exitbench.reports.front.cards import BASELINES, Card, cards, findings_line, is_confirmed
from exitbench.reports.front.suite_toml import suite_toml
from exitbench.reports.front.words import CardText, data_warning, describe_card, facts, recommends_faster, size
from exitbench.reports.labels import labels
from exitbench.results.database.connection import open_database


@pytest.fixture(scope="module")
def built_cards(results: tuple[Row, ...]) -> tuple[Card, ...]:
    return cards(results)


def worded(card: Card, calibrations: tuple[Row, ...] = ()) -> CardText:
    return describe_card(card, labels(card.rows), {}, calibrations)


def card_with(results: tuple[Row, ...], condition: dict[str, Any], **values: Any) -> Card:
    """Return the card of the first task, with `values` set in the result rows that match `condition`."""
    rows = [
        {**row, **values} if all(row[name] == value for name, value in condition.items()) else row
        for row in results
        if row["task"] == results[0]["task"]
    ]
    (card,) = cards(rows)
    return card


@pytest.mark.parametrize("step", [1, -1], ids=["in order", "the other way round"])
def test_card_shows_the_chosen_run_of_every_loss_only_if_confirmed(results: tuple[Row, ...], step: int) -> None:
    built_cards = cards(results[::step])[::step]
    assert [card.full["task"] for card in built_cards] == ["samsum", "squad"]
    headline_ids = set()
    for card in built_cards:
        untils = [answer.until_percent for answer in card.recommendations]
        assert card.recommendations[0].from_percent == 0
        assert untils == [*(answer.from_percent for answer in card.recommendations[1:]), None]
        for percent in np.arange(0, 20, 0.1).tolist():
            answer = card.at(percent)
            confirmed = []
            for is_static, chosen in ((False, answer.method), (True, answer.static)):
                allowed = [
                    row
                    for row in card.rows
                    if (row["method"] == "static") == is_static
                    and row["method"] not in ("random", "oracle", "full")
                    and row["choosing_speedup"] is not None
                    and row["choosing_loss_high_percent"] <= percent
                ]
                assert chosen is max(allowed, key=lambda row: row["choosing_speedup"], default=None)
                if (
                    chosen is not None
                    and chosen["confirming_loss_high_percent"] <= percent
                    and chosen["confirming_speedup_low"] > max(1, chosen["aa_high"] or 1)
                ):
                    confirmed.append(chosen)
            assert answer.headline is max(confirmed, key=lambda row: row["choosing_speedup"], default=None)
            headline_ids.add(answer.headline and answer.headline["cell_id"])
    assert len(headline_ids) > 3


def test_untimed_card_names_the_setting_with_fewest_blocks_without_recommending_it(results: tuple[Row, ...]) -> None:
    of_speed = (
        *("speedup", "speedup_low", "speedup_high", "is_static_step", "next_percent", "confirmed_percent"),
        *("choosing_speedup", "confirming_speedup", "confirming_speedup_low", "confirming_speedup_high"),
    )
    untimed = {**dict.fromkeys(of_speed), "speed_status": "not timed"}
    (card,) = cards([{**row, **untimed} for row in results if row["task"] == "squad"])
    assert card.timed == 0
    for percent in (0, 8, 19):
        allowed = [
            row
            for row in card.rows
            if (row["method"] not in ("random", "oracle"))
            and row["choosing_loss_high_percent"] is not None
            and row["choosing_loss_high_percent"] <= percent
        ]
        best = min(allowed, key=lambda row: row["mean_blocks_run"], default=None)
        assert (card.at(percent).headline, card.at(percent).untimed) == (best, best)
    recommendations = worded(card).recommendations
    assert recommendations[-1].verdict == "No method was timed: add --kinds timing. So nothing is recommended."
    assert recommendations[-1].gains[0][1] == "blocks run; not timed" and not any(
        each.is_faster for each in recommendations
    )
    assert recommendations[0].verdict == "No method was timed: add --kinds timing."


def test_card_uses_the_setting_with_the_most_documents(results: tuple[Row, ...]) -> None:
    part = [{**row, "setting_id": "part", "n": 5, "limited": True} for row in results if row["task"] == "squad"]
    both = sorted([*part, *results], key=lambda row: str(row["task"]))
    assert {row["setting_id"] for card in cards(both) for row in card.rows}.isdisjoint({"part"})
    (card,) = cards(part)
    assert "(subset)" in worded(card).footer
    assert cards([{**row, "random_weights": True} for row in results]) == ()


def static_comparison(results: tuple[Row, ...], low: float, high: float) -> str:
    """Return the verdict on the fastest method against a confirmed static depth with speed-up interval [low, high]."""
    speeds = {"confirming_speedup_low": low, "confirming_speedup": (low + high) / 2, "confirming_speedup_high": high}
    card = card_with(results, {"is_static_step": True}, **speeds)
    answer = card.recommendations[-1]
    assert answer.method is not None and answer.headline is answer.method and answer.static is not None
    assert 1.4 < answer.method["confirming_speedup_low"] < answer.method["confirming_speedup_high"] < 1.6
    return worded(card).recommendations[-1].verdict


def test_method_is_called_faster_only_if_its_interval_exceeds_the_static_depth(results: tuple[Row, ...]) -> None:
    assert (
        static_comparison(results, 1.1, 1.2) == "It is faster than the best static depth (static exit_layer=5, 1.15×)."
    )
    overlapping = static_comparison(results, 1.1, 1.9)
    assert overlapping.startswith(
        "It is not shown to be faster than the best static depth (static exit_layer=5, 1.50×)"
    )
    assert static_comparison(results, 1.8, 1.9).startswith("It is slower than the best static depth")


def test_missing_static_depth_is_stated(results: tuple[Row, ...]) -> None:
    without_static = [row for row in results if row["method"] != "static" and row["task"] == "squad"]
    (card,) = cards(without_static)
    assert worded(card).recommendations[-1].verdict == "No static depth was run to compare it with."


def test_safest_static_depth_has_the_smallest_possible_loss(built_cards: tuple[Card, ...]) -> None:
    for card in built_cards:
        depths = [row for row in card.rows if row["method"] == "static"]
        assert card.safest_static is min(depths, key=lambda row: row["loss_high_percent"])
        for answer in worded(card).recommendations:
            if "No static depth is chosen" in answer.verdict:
                assert f"exit_layer={card.safest_static['blocks'] - 1}" in answer.verdict


def test_setting_not_confirmed_on_other_documents_is_not_recommended(results: tuple[Row, ...]) -> None:
    card = card_with(results, {"is_static_step": False}, confirming_loss_high_percent=30.0, confirmed_percent=30.0)
    answers = [answer for answer in worded(card).recommendations if "was chosen, but may lose 30.0 %" in answer.verdict]
    assert answers and all(
        answer.name in ("full depth", "static exit_layer=5") for answer in worded(card).recommendations
    )
    card = card_with(results, {"is_static_step": False}, confirmed_percent=None)
    assert any(
        "not shown to be faster on the other timed documents" in recommendation.verdict
        for recommendation in worded(card).recommendations
    )


def test_near_floor_caution_precedes_the_verdict(results: tuple[Row, ...]) -> None:
    card = card_with(results, {"is_full_depth": True}, caution="full depth scores 0.0 f1, near the floor")
    for answer in worded(card).recommendations:
        assert answer.verdict.startswith("Caution: full depth scores 0.0 f1, near the floor. ")


def test_card_states_its_smallest_detectable_loss_and_the_next_confirmed_setting(
    built_cards: tuple[Card, ...],
) -> None:
    first = worded(built_cards[0]).recommendations[0]
    assert (first.name, first.is_faster, first.cell_id) == ("full depth", False, None)
    assert first.verdict.startswith("No timed setting is shown to lose so little. 206 confirming documents cannot")
    full = built_cards[0].full["value"]
    least = 100 * 100 * (1 - 0.025 ** (1 / 206)) / full
    assert f"show a loss below {least:.1f} %" in first.verdict
    assert first.next_recommendation is not None
    percent, text = first.next_recommendation
    now, later = built_cards[0].at(percent - 0.1), built_cards[0].at(percent)
    assert now.headline is None and later.headline is not None
    assert text == f"calm-softmax at 0.9, {later.headline['confirming_speedup']:.2f}×"


def test_card_of_another_number_format_reports_its_deviation_from_float32(results: tuple[Row, ...]) -> None:
    expected = {"dtype": "int8", "format_logprob_gap": 0.25, "format_choice_gap": 0.16, "format_match": 0.9}

    def facts(card: Card) -> set[str | None]:
        return {dict(answer.facts).get("Number format") for answer in worded(card).recommendations if answer.cell_id}

    for card in cards(results):
        assert facts(card) <= {None}
    (card,) = cards([{**row, **expected} for row in results if row["task"] == "squad"])
    assert facts(card) == {"int8 against float32: 0.25 nats, 0.16 between choices, 90.0 % of choices equal"}


def test_recommendation_states_whether_it_was_calibrated(
    built_cards: tuple[Card, ...], results: tuple[Row, ...], calibrations: tuple[Row, ...]
) -> None:
    promised = {row["params"] for row in results if row["promised_delta"] is not None}
    passed = {row["threshold"] for row in calibrations if row["verdict"] != "failed"}
    assert {f'"threshold":{threshold:g}' in " ".join(promised) for threshold in passed} == {True}
    recommendations = [
        answer for answer in worded(built_cards[0]).recommendations if answer.name.startswith("calm-softmax")
    ]
    guaranteed = [dict(answer.facts)["Guaranteed"] for answer in recommendations]
    assert guaranteed and all(
        text.startswith("yes: calibrated for an expected loss (textual) of at most 0.35") for text in guaranteed
    )
    card = card_with(results, {}, promised_delta=None)
    (guarantee,) = {dict(answer.facts)["Guaranteed"] for answer in worded(card).recommendations if answer.cell_id}
    assert guarantee.startswith("no calibration: chosen among 3 timed settings on a third of the documents, confirmed")
    guarantee = dict(worded(card, calibrations).recommendations[-1].facts)["Guaranteed"]
    assert "A calibration chose calm-softmax at " in guarantee and "confidence 0.7" in guarantee


def test_card_lists_static_random_and_oracle_alternatives_and_describes_its_data(
    built_cards: tuple[Card, ...],
) -> None:
    card = worded(built_cards[0])
    alternatives = {line.what: line for line in card.recommendations[-1].alternatives}
    assert set(alternatives) == {"Best static", "Random, about as deep", "Oracle"}
    assert alternatives["Oracle"].blocks.startswith("exits at ")
    assert alternatives["Random, about as deep"].name == "mean_exit=2.5"
    assert card.is_generated and card.footer.startswith("6 M parameters · float32, cpu, batch 1 · 300 documents")


def test_card_prefers_a_decoded_oracle_over_a_replayed_one(
    results: tuple[Row, ...],
) -> None:
    first = [row for row in results if row["task"] == results[0]["task"]]
    (decoded,) = (row for row in first if row["method"] == "oracle" and row["execution"] == "real")
    replay = {**decoded, "execution": "simulated", "mean_exit_layer": 0.5, "cell_id": "replay"}
    for oracles, shown in (((decoded, replay), decoded), ((replay,), replay)):
        others = [row for row in first if row["method"] != "oracle"]
        (card,) = cards([*others, *oracles])
        assert card.oracle is not None and card.oracle["cell_id"] == shown["cell_id"]


def test_card_highlights_speed_and_quality_and_from_which_loss_early_exit_is_faster(
    built_cards: tuple[Card, ...],
) -> None:
    card = worded(built_cards[0])
    first, last = card.recommendations[0], card.recommendations[-1]
    quality = f"{built_cards[0].full['value']:.1f}"
    assert first.gains == ((quality, f"{built_cards[0].full['metric']} at full depth"),)
    (speed, about), (_, compared) = last.gains
    assert re.fullmatch(r"\d\.\d\d×", speed) and re.match(r"faster per request \(95 % CI [\d.]+ to [\d.]+\)", about)
    assert compared.endswith(f" (full depth {quality})")
    for recommendation, is_faster in ((first, False), (last, True)):
        assert recommends_faster(card, recommendation.from_percent) == recommendation.is_faster == is_faster


def test_run_facts_summarize_models_data_and_machine(front_database: Path, results: tuple[Row, ...]) -> None:
    with open_database(front_database) as database:
        front = read_front(database)
    fact_texts = dict(facts(front.runs, results))
    assert fact_texts["Models"] == "world-t5 (6 blocks, 6 M parameters)"
    assert fact_texts["Data"] == "samsum, squad (generated)"
    assert fact_texts["Documents"].startswith("300 per task")
    assert (fact_texts["Machine"], fact_texts["Commit"], fact_texts["Date"]) == (
        "Test CPU, 2 threads",
        "0123456789ab",
        "2026-01-02",
    )
    assert data_warning(front.runs).startswith("All data are generated, for models of at most 6 M parameters")
    real = [{**row, "is_generated": False} for row in front.runs]
    assert data_warning(real) == "" and data_warning([*real, *front.runs]).startswith("Part of the data is")
    assert facts((), ()) == ()
    assert [size(n) for n in (None, 7, 1_747_584, 2_100_000_000)] == ["an unknown number of", "7", "1.75 M", "2.1 B"]


def test_findings_are_one_line_of_counts() -> None:
    assert findings_line([]) == ("No rule has a finding about these runs.", 0)
    rows = [{"severity": severity} for severity in (3, 2, 2, 1)]
    assert findings_line(rows) == ("4 findings: 1 × do not cite, 2 × look before you cite, 1 × a remark.", 3)


def test_hostile_names_are_escaped_in_an_exported_suite(front_database: Path) -> None:
    with open_database(front_database) as database:
        row = read_front(database).exports[0]
    name = '"]\n[defaults]\ndevice = "cuda"\n# \x7f\u2028'
    text = suite_toml({**row, "model": name, "task_label": name, "recipe": name}, name)
    assert text is not None
    suite = tomllib.loads(text)
    assert suite["name"] == name and suite["models"] == {name: {"recipe": name}} and set(suite["tasks"]) == {name}
    assert suite["defaults"]["device"] == "cpu"
    more = {
        "batch_rows": 50,
        "engine": "hosted",
        "model_source": "hub:a/b@c",
        "fit_data_asked": '{"limit": 9, "files": []}',
    }
    suite = tomllib.loads(suite_toml({**row, **more}, "x") or "")
    assert suite["defaults"]["batch_rows"] == 50 and suite["fit"] == {"documents": 9}
    assert list(suite["models"].values()) == [{"path": "hub:a/b@c", "engine": "hosted"}]
    for wrong in ("[]", '"x"', '{"source": "builtin"}'):
        assert suite_toml({**row, "data_asked": wrong}, "x") is None
    assert suite_toml({**row, "data_asked": None}, "x") is None


def test_timed_methods_exclude_baselines_and_full_depth(built_cards: tuple[Card, ...]) -> None:
    for card in built_cards:
        without_recommendations = replace(card, recommendations=())
        assert without_recommendations.timed == sum(
            row["speedup"] is not None and row["method"] not in (*BASELINES, "full") for row in card.rows
        )


@pytest.mark.parametrize("percent", [0, 5, 10, 20])
def test_document_browser_opens_on_the_settings_recommended_by_the_cards(
    front_database: Path, built_cards: tuple[Card, ...], percent: int
) -> None:
    with open_database(front_database) as database:
        attempts = database.query("SELECT attempt_id, cell_id FROM frontier").to_pylist()
        cells = {row["attempt_id"]: row["cell_id"] for row in attempts}
        best = [cells[attempt_id] for attempt_id in recommended(database, percent)]
    methods = [
        row for card in built_cards if (row := card.at(percent).method) is not None and is_confirmed(row, percent)
    ]
    assert any(methods) or percent < 20
    assert sorted(best) == sorted(row["cell_id"] for row in methods)
