"""`exitbench carry-over`: results of the version before under today's ids, if repeating some gives the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from exitbench.harness.afterwards.carrying_over import find_groups
from exitbench.harness.cells.cell import INPUTS
from exitbench.harness.cli.main import main
from exitbench.results.files.atomic_folder import SEAL, sha256, write_json
from exitbench.results.files.canonical import content_id
from exitbench.results.spool.attempts import Attempt, attempt_path, free_tables, latest_status, scan_spool

CarryOver = Callable[..., tuple[int, str]]


def seal(folder: Path) -> None:
    write_json(folder / SEAL, {file.name: sha256(file) for file in sorted(folder.iterdir()) if file.name != SEAL})


def described(attempt: Attempt) -> dict[str, Any]:
    cell: dict[str, Any] = json.loads((attempt.path / "cell.json").read_text())
    return cell


@pytest.fixture
def today(runs: Path) -> set[str]:
    """Ids of the cells of a run of today."""
    return {attempt.cell_id for attempt in scan_spool(runs / "spool")}


@pytest.fixture
def before(runs: Path, today: set[str]) -> Path:
    """The same run as the version before would have left it: other ids, which hold the digest of a method's source."""
    attempts = {attempt.cell_id: attempt for attempt in scan_spool(runs / "spool")}
    earlier: dict[str, str] = {}

    def rewritten(cell_id: str) -> str:
        if cell_id in earlier:
            return earlier[cell_id]
        attempt = attempts[cell_id]
        cell = described(attempt)
        method = {**cell["method"], "source_sha256": content_id(cell["method"]["name"])}
        del method["revision"], cell["engine_version"]
        identity = {**cell["identity"], "id_version": 2}
        del identity["engine_version"]
        identity["method"] = {name: method[name] for name in ("name", "params", "source_sha256")}
        for name in (*INPUTS, "full_depth_cell_id"):
            if cell[name] is not None:
                cell[name] = rewritten(cell[name])
                identity |= {name: cell[name]} if name in identity else {}
        cell["depends_on"] = [rewritten(one) for one in cell["depends_on"]]
        earlier[cell_id] = content_id(identity)
        cell |= {"cell_id": earlier[cell_id], "id_version": 2, "method": method, "identity": identity}
        place = attempt_path(runs / "spool", earlier[cell_id], attempt.attempt_id)
        shutil.copytree(attempt.path, place)
        write_json(place / "cell.json", cell)
        seal(place)
        return earlier[cell_id]

    for cell_id, attempt in attempts.items():
        rewritten(cell_id)
        shutil.rmtree(attempt.path.parent)
    return runs


@pytest.fixture
def carry_over(before: Path, capsys: pytest.CaptureFixture[str]) -> CarryOver:
    def run(*words: str) -> tuple[int, str]:
        code = main(["carry-over", "--runs", str(before), *words])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return run


def done(runs: Path) -> set[str]:
    return {cell_id for cell_id, status in latest_status(runs / "spool").items() if status.status == "ok"}


def test_results_of_the_version_before_get_the_ids_that_a_run_of_today_gives(
    before: Path, today: set[str], carry_over: CarryOver
) -> None:
    old = done(before)
    assert not old & today
    code, shown = carry_over()
    assert (code, f"{len(today)} results carried over, 0 had today's ids, 0 left; " in shown) == (0, True), shown
    assert done(before) == old | today
    for attempt in scan_spool(before / "spool"):
        cell = described(attempt)
        if attempt.cell_id in today:
            assert "source_sha256" not in cell["method"]
            (path,) = (before / "spool").glob(f"*/*/{cell['carried_over_from']}")
            for file in path.iterdir():
                assert file.name in ("cell.json", SEAL) or file.read_bytes() == (attempt.path / file.name).read_bytes()
    assert main(["db", "check", "--runs", str(before)]) == 0


def test_a_second_time_nothing_is_left_to_do(today: set[str], carry_over: CarryOver) -> None:
    carry_over()
    code, shown = carry_over("--sample", "1")
    assert (code, f"0 results carried over, {len(today)} had today's ids, 0 left; " in shown) == (0, True), shown


def test_of_two_sources_of_one_method_the_newer_result_is_carried_over_once(
    before: Path, today: set[str], carry_over: CarryOver
) -> None:
    """Both have the same id today."""
    (old,) = (
        one
        for one in scan_spool(before / "spool")
        if (cell := described(one))["kind"] == "quality" and cell["method"]["name"] == "random"
    )
    cell = described(old)
    cell["method"]["source_sha256"] = cell["identity"]["method"]["source_sha256"] = "0" * 64
    cell["cell_id"] = content_id(cell["identity"])
    newer = attempt_path(before / "spool", cell["cell_id"], f"2999{old.attempt_id[4:]}")
    shutil.copytree(old.path, newer)
    write_json(newer / "cell.json", cell)
    seal(newer)
    code, shown = carry_over("--sample", "1")
    assert (code, f"{len(today)} results carried over, 1 had today's ids, 0 left; " in shown) == (0, True), shown
    carried = [described(one).get("carried_over_from") for one in scan_spool(before / "spool")]
    assert newer.name in carried and old.attempt_id not in carried


def test_a_damaged_result_is_told_and_the_others_are_carried_over(
    before: Path, today: set[str], carry_over: CarryOver
) -> None:
    (attempt,) = (one for one in scan_spool(before / "spool") if described(one)["kind"] == "timing")
    (attempt.path / "timings.parquet").write_bytes(b"not what was written")
    code, shown = carry_over("--sample", "1")
    assert (code, f"{len(today) - 1} results carried over, 0 had today's ids, 1 left" in shown) == (1, True), shown
    assert "timings.parquet" in shown


def test_what_gives_something_else_today_stays_and_so_does_what_was_computed_from_it(
    before: Path, today: set[str], carry_over: CarryOver
) -> None:
    (attempt,) = (
        one
        for one in scan_spool(before / "spool")
        if (cell := described(one))["kind"] == "quality" and cell["method"]["name"] == "random"
    )
    path = attempt.path / "tokens.parquet"
    rows = pq.read_table(path)
    place = rows.schema.get_field_index("exit_layer")
    deeper = pc.add(rows["exit_layer"], 1).cast(rows.schema.field(place).type)
    pq.write_table(rows.set_column(place, rows.schema.field(place), deeper), path)
    seal(attempt.path)
    code, shown = carry_over()
    assert (code, "  1 left: random gives something else today" in shown) == (1, True), shown
    assert len(done(before) & today) == len(today) - 1


def test_a_method_that_is_gone_is_told(before: Path, carry_over: CarryOver) -> None:
    for attempt in scan_spool(before / "spool"):
        cell = described(attempt)
        if cell["method"]["name"] == "random":
            cell["method"]["name"] = "gone"
            write_json(attempt.path / "cell.json", cell)
            seal(attempt.path)
    code, shown = carry_over("--sample", "1")
    assert (code, "1 left: unknown method 'gone'" in shown) == (1, True), shown


def test_traces_that_only_a_database_has_are_told(before: Path, carry_over: CarryOver) -> None:
    (attempt,) = (one for one in scan_spool(before / "spool") if described(one)["kind"] == "timing")
    free_tables(attempt.path, {"timings": pq.read_metadata(attempt.path / "timings.parquet").num_rows})
    code, shown = carry_over("--sample", "1")
    assert (code, "1 left: its traces were freed" in shown) == (1, True), shown


def test_a_sample_is_of_every_task_and_of_what_answers_show_first(before: Path) -> None:
    for group in find_groups(before / "spool", on_damage=pytest.fail):
        kinds = [one.cell["kind"] for one in group.sample(10)]
        assert "timing" not in kinds and kinds == sorted(
            kinds, key=["quality", "probe", "replay", "fit", "calibration"].index
        )
        assert len(group.sample(1)) == min(1, len(kinds))


def test_where_there_is_nothing_from_before_it_says_so(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["carry-over", "--runs", str(runs)]) == 0
    assert capsys.readouterr().out.startswith("Nothing to carry over")
