"""Lines printed at the end of a run: one sentence per model and task that can be understood without the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exitbench.reports.frame import Frame, Row
from exitbench.reports.tables import text
from exitbench.reports.tables.text import MOST_LINES, best_so_far, recommendation_lines
from exitbench.results.database.connection import open_database


@pytest.fixture(scope="module")
def rows(one_task_database: Path) -> tuple[Row, ...]:
    """Return the results of one model on one task: full depth, static depths, random exits, three thresholds."""
    with open_database(one_task_database) as database:
        return text._result_rows(database, None)


@pytest.fixture
def conclusion_of(rows: tuple[Row, ...], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that returns the line printed for some methods' results, with some columns changed."""

    def say(*methods: str, **changed: Any) -> str:
        selected = [
            {**row, **({} if row["is_full_depth"] and not {"model", "random_weights"} & {*changed} else changed)}
            for row in rows
            if row["method"] in methods
        ]
        monkeypatch.setattr(text, "_result_rows", lambda database, cell_ids: tuple(selected))
        (line,) = recommendation_lines(None)  # type: ignore[arg-type]
        return line

    return say


def test_conclusion_states_speedup_loss_and_document_count_of_the_recommendation(
    conclusion_of: Callable[..., str],
) -> None:
    line = conclusion_of("full", "static", "calm-softmax")
    assert line.startswith("squad (world-t5): full depth, at an allowed loss of 1 %. No timed setting is shown to lose")
    assert "206 confirming documents cannot show a loss below" in line
    assert " At 4.8 %: calm-softmax at 0.9 is 1.12x [" in line and line.endswith("at most 2.2 % worse.")


def test_conclusion_states_missing_static_depths_and_times(conclusion_of: Callable[..., str]) -> None:
    untimed: dict[str, Any] = dict.fromkeys(("speedup", "choosing_speedup", "confirmed_percent", "is_static_step"))
    untimed["speed_status"] = "not timed"
    loss = {"choosing_loss_high_percent": 0.5}
    for line in (conclusion_of("full", "calm-softmax"), conclusion_of("full", "calm-softmax", **untimed, **loss)):
        assert "real" not in line and "no static depth is shown" not in line
    assert "No method was timed: add --kinds timing. So nothing is recommended." in line
    assert "No method was timed: add --kinds timing." in conclusion_of("full", "calm-softmax", **untimed)
    chosen = {"choosing_loss_high_percent": 0.5, "confirmed_percent": 0.5, "is_static_step": False}
    assert "No static depth was run to compare it with." in conclusion_of("full", "calm-softmax", **chosen)


def test_unmeasurable_times_are_not_reported_as_missing(conclusion_of: Callable[..., str]) -> None:
    unsteady: dict[str, Any] = dict.fromkeys(("speedup", "choosing_speedup", "confirmed_percent", "is_static_step"))
    unsteady["speed_status"] = "not measurable"
    for loss in (0.5, 50.0):
        line = conclusion_of("full", "calm-softmax", **unsteady, choosing_loss_high_percent=loss)
        assert "Times vary too much to be measured now: the machine was busy." in line
        assert "timed" not in line.partition("Times")[0] and "--kinds timing" not in line


def test_conclusion_covers_settings_scored_by_an_earlier_suite(small_database: Path) -> None:
    """A suite may time settings that an older suite scored. The timing cells alone then lead to the same line."""
    with open_database(small_database) as database:
        timing = database.query("SELECT cell_id FROM cell WHERE kind = 'timing' ORDER BY ALL LIMIT 1")["cell_id"]
        (line,) = recommendation_lines(database, set(timing.to_pylist()))
        assert line in recommendation_lines(database)


def test_conclusion_explains_why_runs_cannot_be_compared(conclusion_of: Callable[..., str]) -> None:
    assert "Only full depth and baselines were run: nothing to recommend." in conclusion_of(
        "full", "static", is_static_step=None
    )
    assert conclusion_of("calm-softmax").endswith("full depth was not run, so nothing is compared with it.")
    unscaled = dict.fromkeys(("loss_high_percent", "choosing_loss_high_percent"))
    assert conclusion_of("full", "calm-softmax", random_weights=True).endswith(
        "weights are random, so nothing is recommended."
    )
    assert "f1 has no scale or no scores of full depth" in conclusion_of("full", "calm-softmax", **unscaled)


def test_conclusion_reports_number_format_and_its_deviation(conclusion_of: Callable[..., str]) -> None:
    format_values = {"dtype": "int8", "format_logprob_gap": 0.25, "format_choice_gap": None, "format_match": 0.9}
    line = conclusion_of("full", "calm-softmax", **format_values, model="m")
    assert line.startswith("squad (m; int8 against float32: 0.25 nats")


def test_control_characters_in_names_are_escaped(conclusion_of: Callable[..., str]) -> None:
    assert "(a\\x1b[2J)" in conclusion_of("full", "calm-softmax", model="a\x1b[2J")


def test_a_run_has_a_line_for_each_model_and_task(small_database: Path) -> None:
    with open_database(small_database) as database:
        lines, short = recommendation_lines(database), best_so_far(database)
        pairs = {
            (row["task_label"], row["model"])
            for row in Frame.query(database, "SELECT task_label, model FROM frontier").rows
        }
        assert recommendation_lines(database, {"no cell of this database"}) == []
    assert {line.partition(":")[0] for line in lines} == {f"{task} ({model})" for task, model in pairs}
    assert all(len(line) < 120 for line in short)


def test_number_of_conclusions_is_limited(rows: tuple[Row, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    many = tuple({**row, "task": f"task-{number}"} for number in range(MOST_LINES + 2) for row in rows)
    monkeypatch.setattr(text, "_result_rows", lambda database, cell_ids: many)
    lines = recommendation_lines(None)  # type: ignore[arg-type]
    assert len(lines) == MOST_LINES + 1 and lines[-1] == "… and 2 more: see the report"
