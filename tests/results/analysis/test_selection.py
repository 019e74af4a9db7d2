"""Naming runs: ids and their prefixes, globs over names, and messages about names with no match or several."""

from typing import Any

import pytest

from exitbench.errors import UserError
from exitbench.results.analysis.selection import Run, RunIndex

A, B, C = "20260101T000000000000Z-aaaa0000", "20260102T000000000000Z-bbbb0000", "20260103T000000000000Z-cccc0000"


def run(attempt_id: str, cell_id: str, method: str = "calm", newest: bool = True, **params: Any) -> Run:
    return Run(attempt_id, cell_id, "tiny", "squad", method, params, newest, "batch 1")


RUNS = RunIndex(
    [
        run(C, "cell-three", threshold=0.9, min_exit=1),
        run(B, "cell-two", threshold=0.3, min_exit=1),
        run(A, "cell-one", "full"),
    ]
)


def attempts(text: str) -> list[str]:
    return [matched.attempt_id for matched in RUNS.find(text)]


@pytest.mark.parametrize("text", [A, A[:8], "cell-one", "cell-o", "tiny/squad/full", "*/full"])
def test_a_run_is_named_by_attempt_cell_prefix_or_glob(text: str) -> None:
    assert attempts(text) == [A]


def test_run_name_shows_differing_parameters_and_globs_match_all_parameters() -> None:
    assert RUNS.name(RUNS.find_one(B)) == "tiny/squad/calm:threshold=0.3"
    assert RUNS.name(RUNS.find_one(A)) == "tiny/squad/full"
    assert attempts("tiny/*/calm:threshold=0.3") == attempts("*calm:min_exit=1,threshold=0.3") == [B]
    assert attempts("tiny/squad/calm") == attempts("*threshold=*") == [B, C]


def test_ambiguous_run_name_lists_the_matching_runs() -> None:
    with pytest.raises(UserError, match=r"names 2 runs") as error:
        RUNS.find_one("*/calm")
    assert f"{B}  tiny/squad/calm:threshold=0.3  batch 1" in str(error.value)
    with pytest.raises(UserError, match="names 3 runs"):
        RUNS.find_one("2026")


def test_unknown_run_name_suggests_a_similar_one() -> None:
    with pytest.raises(UserError, match=r"Did you mean 'tiny/squad/full'"):
        RUNS.find("tiny/squat/full")
    with pytest.raises(UserError, match="no run is named 'cel'"):  # too short to be an id
        RUNS.find("cel")
    with pytest.raises(UserError, match="There is none yet"):
        RunIndex([]).find("*")


def test_globs_match_only_newest_runs_and_attempt_ids_also_replaced_ones() -> None:
    runs = RunIndex([run(A, "cell-one", newest=False), run(B, "cell-one")])
    assert [matched.attempt_id for matched in runs.find("*")] == [B]
    assert runs.find_one(A).attempt_id == A
    assert runs.find_one("cell-one").attempt_id == B
