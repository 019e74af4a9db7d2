"""What a run says at its end: a sentence a task that can be understood without the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from exitbench.reports.frame import Frame
from exitbench.reports.tables import gist
from exitbench.reports.tables.gist import MOST_LINES, best_so_far, gist_lines
from exitbench.results.database.connection import open_database

ROW: dict[str, Any] = {
    "task_label": "squad",
    "metric": "f1",
    "model": "weighted",
    "method": "calm-softmax",
    "params": '{"threshold": 0.9}',
    "kv_policy": "state-copy",
    "delta": -1.2,
    "delta_low": -2.4,
    "delta_high": 0.1,
    "loss_high_percent": 0.4,
    "loss_is_shown": True,
    "speedup": 1.8,
    "ideal_speedup_bytes": 2.5,
    "mean_blocks_run": 2.0,
    "blocks": 8,
    "static_block": 6,
    "static_speedup": 1.3,
    "static_delta": -1.0,
    "verdict": "faster",
    "random_is_as_good": False,
    "candidates": 3,
}
STATIC = "the fastest static depth that may lose as much (block 6) runs 1.3x"


def said(**changed: Any) -> str:
    return gist._sentence({**ROW, **changed}, {})


def test_a_sentence_says_what_is_gained_and_lost_and_whether_it_is_real() -> None:
    names = {("calm-softmax", ROW["params"], "state-copy"): "calm-softmax threshold=0.9"}
    assert gist._sentence(ROW, names) == (
        "calm-softmax at 0.9 (model weighted) runs 1.8x as fast as full depth for 1.2 points of f1 less [-2.4, +0.1]; "
        f"{STATIC}: the difference is real."
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"verdict": "not to be told apart"}, f"{STATIC}: the difference may be chance."),
        ({"verdict": "slower", "static_speedup": 2.0}, "runs 2x: the static depth is faster, and that is real."),
        (
            {"static_delta": None, "static_block": 8},
            "; no static depth is shown to lose as little: the difference is real.",
        ),
        (
            {"loss_is_shown": False, "loss_high_percent": 4.24},
            "is real. It may lose 4.2 %: none is shown to lose 1 % at most.",
        ),
        ({"random_is_as_good": True}, "is real. Random exits no deeper do as well."),
        ({"delta": 0.0, "delta_low": None}, "as full depth and loses no f1; "),
        ({"delta": 3.0, "delta_low": 1.0, "delta_high": 5.0}, "and gains 3.0 points of f1 [+1.0, +5.0]; "),
        (
            {"speedup": None},
            "reads 2.5x fewer bytes than full depth for 1.2 points of f1 less [-2.4, +0.1]; it was not",
        ),
        ({"speedup": None, "ideal_speedup_bytes": 0.5}, "reads 2.0x more bytes than full depth"),
        ({"speedup": None, "ideal_speedup_bytes": None}, "runs 4.0x fewer blocks than full depth"),
        ({"method": None, "candidates": 0}, "only full depth and baselines were run; nothing to recommend."),
        ({"method": None}, "no method is shown to be faster than full depth and to lose little; full depth it is."),
        ({"model": "a\x1b[2J"}, "(model a\\x1b[2J)"),
    ],
)
def test_what_is_not_shown_is_said(changed: dict[str, Any], words: str) -> None:
    assert words in said(**changed)


def test_a_run_has_a_line_for_each_task_and_the_best_so_far_too(small_database: Path) -> None:
    with open_database(small_database) as database:
        lines, short = gist_lines(database), best_so_far(database)
        tasks = {row["task_label"] for row in Frame.query(database, "SELECT task_label FROM frontier").rows}
        assert gist_lines(database, "another suite") == []
    assert [line.partition(":")[0] for line in lines] == sorted(tasks)
    assert all("full depth" in line for line in lines)
    assert all(len(line) < 120 for line in short)


def test_of_many_tasks_five_are_told(monkeypatch: pytest.MonkeyPatch, small_database: Path) -> None:
    rows = tuple({**ROW, "task_label": f"task-{number}"} for number in range(MOST_LINES + 2))
    monkeypatch.setattr(gist, "_read", lambda database, suite: (rows, {}))
    with open_database(small_database) as database:
        lines = gist_lines(database)
    assert len(lines) == MOST_LINES + 1 and lines[-1] == "… and 2 more tasks: exitbench sql @what_to_use"
