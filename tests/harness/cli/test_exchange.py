"""``exitbench export`` and ``exitbench import`` as commands: printed text and exit codes."""

import json
from pathlib import Path

import pytest

from exitbench.harness.cli.main import main
from exitbench.results.database.connection import open_database


def test_imported_export_has_the_same_frontier(
    few_database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, runs = tmp_path / "out", tmp_path / "runs"
    assert main(["export", str(folder), "--database", str(few_database)]) == 0
    assert capsys.readouterr().out.startswith(f"{folder}: ")
    assert main(["import", str(folder), "--runs", str(runs)]) == 0
    assert capsys.readouterr().out.endswith("attempts are new, 0 were here already.\n")
    assert main(["import", str(folder), "--runs", str(runs)]) == 0
    assert ": an export; 0 attempts are new, " in capsys.readouterr().out
    query = "SELECT * FROM frontier ORDER BY ALL"
    with open_database(few_database) as there, open_database(runs / "exitbench.duckdb") as here:
        assert here.query(query).to_pylist() == there.query(query).to_pylist()


@pytest.fixture(scope="module")
def unlicensed(few_spool: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of runs with texts of SAMSum, whose license forbids copies."""
    runs = tmp_path_factory.mktemp("unlicensed") / "runs"
    assert main(["import", str(few_spool), "--runs", str(runs)]) == 0
    with open_database(runs / "exitbench.duckdb", read_only=False) as database, database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE dataset_artifact SET source = 'hub' WHERE label = 'samsum'")
    return runs


@pytest.mark.parametrize(("options", "left_out"), [([], True), (["--with-texts"], False)])
def test_export_omits_texts_whose_license_forbids_copies_unless_requested(
    options: list[str], left_out: bool, unlicensed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tmp_path / "out"), "--runs", str(unlicensed), *options]) == 0
    told = (
        "Texts omitted, since the licenses of samsum do not allow copies: "
        "attempt.log_tail, sample.output_text, sample.output_ids, "
    )
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (told in capsys.readouterr().out) == left_out
    assert (manifest["left_out"] or "").startswith(told) == left_out
    assert manifest["texts_left_out_of"] == ["samsum"] * left_out


def test_every_eval_ever_export_counts_records_and_refuses_to_overwrite(
    example_database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(tmp_path / "out"), "--format", "every-eval-ever", "--database", str(example_database)]
    assert main(command) == 0
    count = len(list((tmp_path / "out").rglob("*.json")))
    assert capsys.readouterr().out == f"{tmp_path / 'out'}: {count} records.\n"
    assert main(command) == 2
    assert "exists already" in capsys.readouterr().err


def test_importing_a_missing_folder_exits_with_2_and_creates_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(tmp_path / "missing"), "--runs", str(tmp_path / "runs")]) == 2
    assert "does not exist. Allowed: a spool folder" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
