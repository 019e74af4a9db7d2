"""``exitbench compare`` as a command: formats, warnings separate from rows, and names without a match."""

import csv
import io
import json
from pathlib import Path

import pytest

from exitbench.harness.cli.main import main

FULL, STATIC = "world-t5/squad/full", "world-t5/squad/static"


def test_comparison_is_printed_as_table_csv_and_json(
    example_database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", FULL, STATIC, "--database", str(example_database)]
    assert main(command) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[:2] == [f"a: {FULL}", f"b: {STATIC}"]
    assert [line.split()[0] for line in table[5:]] == [
        *("f1", "em", "equal_tokens", "equal_answers", "first_divergence", "tokens_per_answer", "speedup")
    ]
    assert main([*command, "--format", "csv"]) == 0
    from_csv = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert main([*command, "--format", "json"]) == 0
    from_json = json.loads(capsys.readouterr().out)
    assert [row["quantity"] for row in from_csv] == [row["quantity"] for row in from_json]
    assert from_json[0]["run_b"] == from_csv[0]["run_b"] == STATIC
    assert from_json[0]["estimate"] == pytest.approx(float(from_csv[0]["estimate"]))
    assert from_json[0]["how"] == "permutation, exact"


def test_comparison_with_a_pattern_names_the_run_in_each_row(
    example_database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", FULL, "world-t5/squad/calm-*", "--database", str(example_database)]) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[2].split()[0] == "run_b"
    assert "world-t5/squad/calm-softmax:threshold=0.6" in output


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        ("world-t5/squad/calm-softmax", STATIC, "names 3 quality runs"),
        ("world-t5/squad/fulll", STATIC, f"Did you mean {FULL!r}"),
        (FULL, "feedfeed", "no quality run is named 'feedfeed'"),
    ],
)
def test_unknown_run_name_exits_with_2(
    a: str, b: str, says: str, example_database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", a, b, "--database", str(example_database)]) == 2
    assert says in capsys.readouterr().err
