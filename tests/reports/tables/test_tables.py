"""The results table in the terminal and in the README, and the content of its cells."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pytest
from jinja2 import Environment, PackageLoader, StrictUndefined

from exitbench.reports import tables
from exitbench.reports.frame import Frame
from exitbench.reports.labels import setting
from exitbench.reports.material import read_only
from exitbench.reports.registry import discover
from exitbench.reports.tables import highlights
from exitbench.reports.tables.calibrations import needed
from exitbench.reports.tables.columns import (
    FilledTable,
    TableCell,
    TableColumn,
    fill,
    number,
    parameters,
    text,
    with_interval,
)
from exitbench.reports.tables.summary import (
    blocks_run,
    change,
    delta,
    energy,
    exit_layer,
    joules,
    length,
    length_ratio,
    quality,
    speedup,
    timed,
)
from exitbench.reports.tables.text import _lines, calibration_text, summary_text
from exitbench.reports.tables.writing import latex, markdown
from exitbench.results.database.connection import open_database

Rows = Callable[[Path, ModuleType, str], Frame]

ROW: dict[str, Any] = {
    "value": 0.8123,
    "ci_low": 0.79,
    "ci_high": 0.84,
    "full_value": 0.83,
    "delta": -0.0177,
    "mean_exit_layer": 3.456,
    "mean_blocks_run": 8.0,
    "blocks": 8,
    "speedup": 1.456,
    "speedup_low": 1.4,
    "speedup_high": 1.5,
    "speed_status": "timed",
    "inside_noise_floor": False,
    "is_full_depth": False,
    "tokens_per_request": 2.8,
    "full_tokens_per_request": 10.0,
    "is_other_length": True,
    "timed_documents": 20,
    "timed_rounds": 3,
    "energy_ratio": 1.2,
    "energy_ratio_low": 1.1,
    "energy_ratio_high": 1.3,
    "inside_energy_floor": False,
    "joules_per_token": 0.012345,
    "full_joules_per_token": 0.0148,
}


def test_no_line_is_wider_than_118_columns_whatever_the_names(
    example: ModuleType, world: Any, make_database: Callable[[Any], Path]
) -> None:
    models = (example.Model("m" * 200, "causal", 24, 0),)
    swept = (example.Method("calm-softmax", {"threshold": 0.3, "note": "A" * 10_000}),)
    lines = summary_text(make_database(replace(world, models=models, swept=swept))).splitlines()
    assert max(map(len, lines)) <= 118
    assert any("AAAA…" in line for line in lines)


def test_the_text_has_every_real_setting_with_its_numbers(small_database: Path, rows_of: Rows) -> None:
    printed = summary_text(small_database)
    real = [row for row in rows_of(small_database, tables, "summary").rows if row["execution"] == "real"]
    assert len(re.findall(r"\d of \d", printed)) == len(real)
    for row in real:
        numbers = [quality(row).text, blocks_run(row).text, length_ratio(row)]
        assert any(all(number in line for number in numbers) for line in printed.splitlines())


def test_columns_are_aligned(small_database: Path) -> None:
    block = summary_text(small_database).split("\n\n")[0].splitlines()[1:]
    assert len({len(line) for line in block}) == 1


def test_summary_counts_omitted_settings_and_unfinished_cells(small_database: Path) -> None:
    printed = summary_text(small_database)
    assert "6 simulated settings" in printed
    assert "2 cells did not finish" in printed


def test_empty_database_has_no_results_yet(empty_database: Path) -> None:
    assert summary_text(empty_database) == "No results yet.\n"


def test_random_weights_are_marked(untrained_database: Path) -> None:
    assert "n = 8 documents, n = 8 timed, random weights" in summary_text(untrained_database)


HOSTILE = "<b>a|b*_`\x1b[31m%$"


@pytest.fixture(scope="module")
def hostile(example: ModuleType, world: Any, database_of: Callable[[Any], Path]) -> FilledTable:
    """Return the table of results of a model with a hostile name, which its caption contains."""
    database = database_of(replace(world, models=(example.Model(HOSTILE, "causal", 4, 0),)))
    (table,) = (fill(*queried) for queried in read_only(database, tables, "highlights"))
    return table


def test_markdown_tables_survive_any_name(hostile: FilledTable) -> None:
    printed = markdown(hostile)
    assert r"Model: \<b\>a\|b\*\_\`\\x1b\[31m%\$;" in printed
    table = [line for line in printed.splitlines() if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in table} == {len(hostile.columns) + 1}
    assert len(table) == len(hostile.rows) + 2


def test_latex_tables_survive_any_name(hostile: FilledTable) -> None:
    printed = latex(hostile)
    assert r"Model: <b>a|b*\_`\textbackslash{}x1b[31m\%\$;".replace("`", "") in printed
    rows = [line for line in printed.splitlines() if line.endswith(r"\\")]
    parts = printed.count(r"\begin{table*}")
    assert len(rows) == parts * (len(hostile.rows) + 1), "all parts are of the same rows, of other columns"
    texts = sum(not column.numeric for column in hostile.columns)
    headings = [line for before, line in pairwise(printed.splitlines()) if before == r"\toprule"]
    cells = [re.sub(r"\\&", "", line).count("&") + 1 for line in headings]
    assert sum(cells) == len(hostile.columns) + (parts - 1) * texts
    assert printed.count("{") == printed.count("}")


def test_oversized_latex_table_is_split_into_several_tables(hostile: FilledTable) -> None:
    cell = TableColumn("x", lambda row: TableCell("1.23 [1.00, 1.50]", 1.0), numeric=True)
    key = TableColumn("Method", lambda row: TableCell(f"method {row['n']}", ""))
    long = TableColumn("Parameters", lambda row: TableCell("a parameter, " * 9, ""))
    rows = [{"n": number} for number in range(70)]
    columns = (key, long, *(replace(cell, heading=f"Number {place}") for place in range(9)))
    filled = tuple(tuple(column.cell(row) for column in columns) for row in rows)
    printed = latex(replace(hostile, columns=columns, rows=filled))
    headings = [line for line in printed.splitlines() if line.startswith("Method &")]
    assert all(heading.startswith("Method & Parameters & Number") for heading in headings)
    assert sorted(set(re.findall(r"Number \d", printed))) == [f"Number {place}" for place in range(9)]
    widths = [_width(form) for form in re.findall(r"\\begin{tabular}{(.*)}", printed)]
    assert len(widths) == len(headings) > 4 and max(widths) <= 468
    for place in range(70):
        assert printed.count(f"method {place} &") == len({tuple(heading.split("&")[2:]) for heading in headings})
    assert len(set(re.findall(r"\\label{(.*)}", printed))) == len(headings)


def _width(form: str) -> float:
    """Return the estimated width in points of a LaTeX `tabular` with the column specification `form`."""
    fixed = [float(points) for points in re.findall(r"p{(\d+)pt}", form)]
    return (
        sum(fixed) + 8 * len(fixed) + 17 * 3.5 * form.count("r") + 8 * form.count("r") + (9 * 3.5 + 8) * form.count("l")
    )


def test_latex_distinguishes_minus_signs_from_hyphens(hostile: FilledTable) -> None:
    table = replace(hostile, columns=hostile.columns[:1], rows=((TableCell("state-copy, -0.3 [-1.5, 2-3]", None),),))
    assert "state-copy, $-$0.3 [$-$1.5, 2-3]" in latex(table)


def test_a_metric_is_written_on_its_own_scale() -> None:
    assert quality(ROW).text == "0.812 [0.790, 0.840]"
    assert delta(ROW).text == "-0.018"
    percent = {**ROW, "value": 81.23, "ci_low": None, "ci_high": None, "full_value": 83.0, "delta": 1.77}
    assert (quality(percent).text, delta(percent).text) == ("81.2", "+1.8")


@pytest.mark.parametrize(
    ("low", "high", "lower_is_better", "tone"),
    [
        (-3.0, -1.0, False, "worse"),
        (1.0, 3.0, False, "better"),
        (-3.0, -1.0, True, "better"),
        (1.0, 3.0, True, "worse"),
        (-1.0, 3.0, True, ""),
    ],
)
def test_change_color_respects_metric_direction(low: float, high: float, lower_is_better: bool, tone: str) -> None:
    row = {**ROW, "delta": 2.0, "delta_low": low, "delta_high": high, "lower_is_better": lower_is_better}
    assert (change(row).tone, change(row).muted) == (tone, not tone)


def test_a_speedup_inside_the_noise_floor_is_grey_and_marked() -> None:
    assert (speedup(ROW).text, speedup(ROW).muted) == ("1.46 [1.40, 1.50]", False)
    inside = speedup({**ROW, "inside_noise_floor": True})
    assert (inside.text, inside.muted) == ("≈ 1.46 [1.40, 1.50]", True)


def test_unmeasurable_speedup_is_labeled_and_sorts_last() -> None:
    untimed = dict.fromkeys(("speedup", "speedup_low", "speedup_high"))
    cell = speedup({**ROW, **untimed, "speed_status": "not measurable"})
    assert (cell.text, cell.key, cell.muted) == ("not measurable now", None, True)
    assert speedup({**ROW, "is_full_depth": True, "speedup": 1.0, "speed_status": "not measurable"}).text == "1"


def test_energy_ratio_inside_the_noise_floor_is_marked_like_a_speedup() -> None:
    assert (energy(ROW).text, energy(ROW).tone) == ("1.20 [1.10, 1.30]", "better")
    inside = energy({**ROW, "inside_energy_floor": True})
    assert (inside.text, inside.muted) == ("≈ 1.20 [1.10, 1.30]", True)
    assert joules(ROW).text == "0.0123 of 0.0148"


ENERGY = """
    INSERT INTO metric BY NAME
    SELECT
        attempt_id, 100 * range AS ordinal,
        ['energy_ratio', 'joules_per_token', 'full_joules_per_token'][range] AS metric,
        metric_version, value, ci_low, ci_high, ci_method, n, scored_at, 'energy' AS role
    FROM metric, range(1, 4) WHERE metric = 'speedup'
"""


def test_energy_columns_appear_only_if_energy_was_measured(small_database: Path, tmp_path: Path, rows_of: Rows) -> None:
    (source,) = (source for source in discover(tables) if source.name == "summary")

    def energy_options(database: Path) -> set[str]:
        filled = fill(source, rows_of(database, tables, "summary"))
        return {column.heading for column in filled.columns} & {"Energy", "Joules a token", "Net joules"}

    assert energy_options(small_database) == set()
    path = tmp_path / "measured.duckdb"
    shutil.copyfile(small_database, path)
    with duckdb.connect(path) as connection:
        connection.execute(ENERGY)
    assert energy_options(path) == {"Energy", "Joules a token"}  # idle power was not asked for in this one


FORMAT = """
    INSERT INTO metric BY NAME
    SELECT
        attempt_id, 200 + range AS ordinal, ['format_logprob_gap', 'format_token_match'][range] AS metric,
        metric_version, [0.1442, 0.98][range] AS value, n, scored_at, 'format' AS role
    FROM metric JOIN attempt USING (attempt_id) JOIN cell USING (cell_id), range(1, 3)
    WHERE metric = 'mean_exit_layer' AND full_depth_cell_id IS NULL
"""


def test_summary_reports_the_deviation_of_another_number_format(
    small_database: Path, tmp_path: Path, rows_of: Rows
) -> None:
    (source,) = (source for source in discover(tables) if source.name == "summary")
    heading = "Against float32"

    def energy_options(database: Path) -> set[str] | None:
        filled = fill(source, rows_of(database, tables, "summary"))
        places = [place for place, column in enumerate(filled.columns) if column.heading == heading]
        return {row[places[0]].text for row in filled.rows} if places else None

    assert energy_options(small_database) is None and "against float32" not in summary_text(small_database)
    path = tmp_path / "formats.duckdb"
    shutil.copyfile(small_database, path)
    with duckdb.connect(path) as connection:
        connection.execute("UPDATE cell SET dtype = 'bfloat16'")
    assert energy_options(path) == {"not measured"}
    assert summary_text(path).splitlines()[1] == "bfloat16 against float32: not measured"
    with duckdb.connect(path) as connection:
        connection.execute(FORMAT)
    assert energy_options(path) == {"0.14 nats, 98.0 % of tokens equal"}
    assert summary_text(path).splitlines()[1] == "bfloat16 against float32: 0.14 nats, 98.0 % of tokens equal"


@pytest.mark.parametrize("is_known", [False, True])
def test_chart_offers_energy_only_if_it_was_measured(is_known: bool) -> None:
    environment = Environment(loader=PackageLoader("exitbench.reports", "page"), undefined=StrictUndefined)
    points = {"styles": {}, "points": [{"row": 0}, {"row": 1, **({"energy_ratio": 1.2} if is_known else {})}]}
    drawn = environment.get_template("chart.html").render(points=points)
    assert ('<option value="energy">' in drawn) is is_known


def test_speedup_of_full_depth_is_exactly_one() -> None:
    assert speedup({**ROW, "is_full_depth": True}).text == "1"


def test_missing_values_are_dashes_without_a_sort_key() -> None:
    nothing = {**ROW, "value": None, "delta": None, "speedup": None, "speedup_low": None}
    assert [(cell.text, cell.key) for cell in (quality(nothing), delta(nothing), speedup(nothing))] == [("–", None)] * 3
    assert with_interval(1.0, None, 2.0, 2) == "1.00"
    assert text("", "x").cell({"x": None}).text == number("", "x", "{:.1f}").cell({"x": None}).text == "–"
    assert parameters("", "x").cell({"x": "{}"}).text == "–"


def test_a_sweep_over_two_parameters_shows_the_values_of_both(small_database: Path, rows_of: Rows) -> None:
    row = next(row for row in rows_of(small_database, tables, "summary").rows if row["execution"] == "real")
    # The longest name among the shipped suites; cut off, its rows would look alike.
    name = "calm-softmax decay=paper, threshold=0.3"
    assert " ".join(line[0].strip() for line in _lines(row, {setting(row): name})) == name


def test_answers_of_different_length_are_marked() -> None:
    assert (length(ROW).text, length(ROW).key, length_ratio(ROW)) == ("† 2.8 of 10.0", pytest.approx(0.28), "†0.28")
    same_length = {**ROW, "tokens_per_request": 10.2, "is_other_length": False}
    assert (length(same_length).text, length_ratio(same_length)) == ("10.2 of 10.0", "1.02")
    untimed = {**ROW, "tokens_per_request": None, "is_other_length": None, "timed_documents": None}
    assert (length(untimed).text, length_ratio(untimed), timed(untimed).text) == ("–", "–", "–")
    assert timed(ROW).text == "20 × 3"


def test_exit_layer_and_blocks_run_are_two_columns() -> None:
    assert (exit_layer(ROW).text, blocks_run(ROW).text) == ("3.46 of 8", "8.00 of 8")
    for name, hidden_columns in (
        ("summary", {"Per token", "Tokens", "Decoding", "Ideal"}),
        ("highlights", {"Tokens = full"}),
    ):
        (source,) = (source for source in discover(tables) if source.name == name)
        assert {"Exit layer", "Blocks run", *hidden_columns} <= {column.heading for column in source.module.COLUMNS}


def test_readme_speedups_are_marked_when_answers_differ_in_length() -> None:
    (speedup,) = (column for column in highlights.COLUMNS if column.heading == "Speed-up")
    assert speedup.cell(ROW).text == "† 1.46 [1.40, 1.50]"
    assert speedup.cell(ROW | {"is_other_length": False}).text == "1.46 [1.40, 1.50]"


def test_terminal_shows_every_calibration_step(small_database: Path) -> None:
    lines = calibration_text(small_database).splitlines()
    assert lines[0] == "Calibrated thresholds"
    assert lines[1].split()[:4] == ["Model", "Task", "Method", "Consistency"]
    with open_database(small_database) as database:
        (stored_row,) = database.query(
            "SELECT count(*) AS n, count_if(chosen) AS chosen FROM calibrations WHERE NOT random_weights"
        ).to_pylist()
    assert len(lines) - 2 == stored_row["n"] > 0
    assert sum("  chosen  " in line for line in lines) == stored_row["chosen"]


def test_failed_level_shows_the_number_of_documents_needed() -> None:
    row = {"verdict": "failed", "rule": "hoeffding-bentkus", "mean_loss": 0.005, "delta": 0.01, "epsilon": 0.1}
    assert needed(row).text == "1,489"
    assert needed({**row, "mean_loss": 0.01}).text == "–", "the loss is not below what may be lost"
    assert needed({**row, "verdict": "passed"}).text == needed({**row, "rule": "wsr"}).text == "–"


def test_rescored_metric_does_not_duplicate_calibration_levels(
    small_database: Path, tmp_path: Path, rows_of: Rows
) -> None:
    path = tmp_path / "rescored.duckdb"
    shutil.copyfile(small_database, path)
    with duckdb.connect(path) as connection:
        connection.execute(
            """
            INSERT INTO metric
            SELECT * REPLACE ('0' AS metric_version, value + 1 AS value, scored_at - INTERVAL 1 DAY AS scored_at)
            FROM metric WHERE metric = 'held_out_loss'
            """
        )
    assert rows_of(path, tables, "calibrations").rows == rows_of(small_database, tables, "calibrations").rows != ()
