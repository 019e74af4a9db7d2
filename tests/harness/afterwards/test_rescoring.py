"""``exitbench rescore``: stored answers scored by today's metric version, with their documents and without a model."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from exitbench.harness.cells.job import DataRequest
from exitbench.harness.cli.main import main
from exitbench.results.database.connection import open_database
from exitbench.results.files.formats import content_id
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.tasks.base import documents_sha256
from exitbench.tasks.registry import get_task

TASK = get_task("squad")
DATA = DataRequest("squad", "builtin", "test", limit=6, seed=5)
LINES = "a dog\nthe cat sleeps\nwe walk\n"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


Write = Callable[..., str]


@pytest.fixture
def write(runs: Path, example: ModuleType) -> Write:
    """Return a function that writes a quality run, in which an old metric version scored every answer 1.

    Every second answer is right.
    """

    def run(exit_layer: int = 1, data: DataRequest = DATA, data_dir: Path | None = None, **told: Any) -> str:
        documents = data.load(data_dir)
        task = get_task(data.task)
        method = example.Method("static", {"exit_layer": exit_layer})
        cell = example.cell_json(example.MODELS[0], example.Task(data.task, data.task, ()), method, "quality", "full")
        cell["task"] |= {"source": data.source, "documents": len(documents), "metric_version": "old"}
        cell["task"] |= {"data_sha256": documents_sha256(documents), **told}
        cell["identity"]["task"] = cell["task"]
        cell["cell_id"] = content_id(cell["identity"])
        rows = [
            {
                "doc_key": document.key,
                "output_text": task.target(document) if number % 2 else "no",
                "output_ids": [1],
                "n_prompt": 1,
                "n_output": 1,
                "stop_reason": "eos",
                "scores": json.dumps({task.metrics[0]: 1.0}),
                "statistics": "{}",
            }
            for number, document in enumerate(documents)
        ]
        metric = {"metric": task.metrics[0], "metric_version": "old", "role": "headline", "value": 1.0, "n": len(rows)}
        with AttemptWriter(runs / "spool", cell | {"data": asdict(data)}, example.ENV) as writer:
            writer.write("samples", pa.Table.from_pylist(rows))
            writer.write("metrics", pa.Table.from_pylist([metric]))
            writer.finish("ok")
        return writer.attempt_id

    return run


def ask(runs: Path, sql: str) -> list[tuple[Any, ...]]:
    with open_database(runs / "exitbench.duckdb") as database:
        return [tuple(row.values()) for row in database.query(sql).to_pylist()]


CURRENT = "SELECT metric, metric_version, round(value, 3), n FROM metric_values WHERE is_current ORDER BY metric"


def test_rescoring_adds_current_scores_and_keeps_the_old_ones(write: Write, runs: Path) -> None:
    write()
    assert main(["rescore", "--runs", str(runs)]) == 0
    version = TASK.metric_version
    assert ask(runs, CURRENT) == [("em", version, 50.0, 6), ("f1", version, 50.0, 6)]
    assert ask(runs, "SELECT metric, value FROM metric_values WHERE NOT is_current") == [("f1", 1.0)]
    assert ask(runs, "SELECT metric, value FROM frontier") == [("f1", 50.0)]
    scored = ask(
        runs,
        "SELECT s.scores AS old, r.scores AS new FROM sample AS s JOIN sample_rescore AS r USING (attempt_id, doc_key)",
    )
    assert sorted(json.loads(new)["em"] for _, new in scored) == [0, 0, 0, 100, 100, 100]
    assert {json.loads(old)["f1"] for old, _ in scored} == {1.0}


def test_rescoring_again_reports_nothing_left_and_changes_nothing(
    write: Write, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.mkdir()
    assert main(["rescore", "--runs", str(runs)]) == 0
    write()
    assert main(["rescore", "--runs", str(runs)]) == 0
    before = ask(runs, "SELECT * FROM sample_rescore ORDER BY ALL")
    assert main(["rescore", "--runs", str(runs)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "0 runs rescored, 0 had the current metric version, 0 left.",
        "1 run rescored, 0 had the current metric version, 0 left.",
        "0 runs rescored, 1 had the current metric version, 0 left.",
    ]
    assert ask(runs, "SELECT * FROM sample_rescore ORDER BY ALL") == before


def test_a_rebuilt_database_has_the_new_scores(write: Write, runs: Path) -> None:
    write()
    main(["rescore", "--runs", str(runs)])
    tables = ("sample_rescore", "metric")
    before = [ask(runs, f"SELECT * FROM {table} ORDER BY ALL") for table in tables]
    assert main(["db", "rebuild", "--runs", str(runs)]) == 0
    assert [ask(runs, f"SELECT * FROM {table} ORDER BY ALL") for table in tables] == before
    assert len(before[0]) == 6


def test_only_named_runs_are_rescored(write: Write, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, _second = write(1), write(2)
    assert main(["rescore", "--runs", str(runs), first]) == 0
    assert ask(runs, "SELECT DISTINCT attempt_id FROM sample_rescore") == [(first,)]
    assert main(["rescore", "--runs", str(runs), "example"]) == 0  # the suite
    assert "1 run rescored, 1 had" in capsys.readouterr().out
    assert main(["rescore", "--runs", str(runs), "exampel"]) == 2
    assert "no quality run is named 'exampel'" in capsys.readouterr().err


def test_documents_other_than_the_answered_ones_are_refused(
    write: Write, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(data_sha256="0" * 64)
    assert main(["rescore", "--runs", str(runs)]) == 2
    assert "are not those that were answered: their digest is" in capsys.readouterr().err
    assert not (runs / "spool" / "rescores").exists()


def test_a_run_that_cannot_be_scored_does_not_stop_other_runs(
    write: Write, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(1, data_sha256="0" * 64), write(2)
    assert main(["rescore", "--runs", str(runs)]) == 1
    captured = capsys.readouterr()
    assert "1 run rescored, 0 had the current metric version, 1 left." in captured.out
    assert "not rescored: 1 run, such as " in captured.err


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for language in ("en", "fr"):
        (folder / f"text.{language}").write_text(LINES)
    return folder


LOCAL = DataRequest("wmt-en-fr", "local", "test", (("en", "text.en"), ("fr", "text.fr")))


def test_local_files_are_found_below_the_data_folder(
    write: Write, runs: Path, lines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(1, LOCAL, lines)
    assert main(["rescore", "--runs", str(runs)]) == 2
    assert "was read from text.en, text.fr: name the folder that holds them by --data-dir" in capsys.readouterr().err
    assert main(["rescore", "--runs", str(runs), "--data-dir", str(lines)]) == 0
    assert [row[:1] + row[3:] for row in ask(runs, CURRENT)] == [("bleu", 3), ("chrf", 3)]
    statistics = ask(runs, "SELECT statistics FROM sample_rescore")
    assert all(set(json.loads(text)) == {"bleu", "chrf"} for (text,) in statistics)


def test_a_damaged_record_is_set_aside_and_scored_again(
    write: Write, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt_id = write()
    main(["rescore", "--runs", str(runs)])
    (record,) = (runs / "spool" / "rescores" / attempt_id).iterdir()
    (record / "metrics.parquet").write_bytes(b"torn")
    assert main(["db", "rebuild", "--runs", str(runs)]) == 1
    assert "metrics.parquet: was changed after it was written" in capsys.readouterr().err
    assert ask(runs, "SELECT count(*) FROM sample_rescore") == [(0,)]
    assert main(["rescore", "--runs", str(runs)]) == 0
    assert ask(runs, "SELECT count(*) FROM sample_rescore") == [(6,)]


def test_rescoring_does_not_import_torch(write: Write, runs: Path) -> None:
    write()
    code = (
        "import sys\nfrom exitbench.harness.cli.main import main\n"
        f"code = main(['rescore', '--runs', {str(runs)!r}])\n"
        "sys.exit(code or ('torch' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_a_record_that_does_not_fit_the_database_stays_in_the_spool(
    write: Write, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt_id = write()
    assert main(["rescore", "--runs", str(runs)]) == 0
    with open_database(runs / "exitbench.duckdb", read_only=False) as database, database.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM sample_rescore")  # its metrics are still there: keys clash
    assert main(["rescore", "--runs", str(runs)]) == 1
    assert "does not fit the database" in capsys.readouterr().err
    assert len(list((runs / "spool" / "rescores" / attempt_id).iterdir())) == 1
    assert main(["db", "rebuild", "--runs", str(runs)]) == 0
    assert ask(runs, "SELECT count(*) FROM sample_rescore") == [(6,)]


def test_record_of_a_newer_format_version_is_kept_untouched(
    write: Write, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt_id = write()
    main(["rescore", "--runs", str(runs)])
    (record,) = (runs / "spool" / "rescores" / attempt_id).iterdir()
    status = json.loads((record / "status.json").read_text())
    (record / "status.json").write_text(json.dumps({**status, "format": 99}))
    digests = json.loads((record / "DONE").read_text())
    digests["status.json"] = hashlib.sha256((record / "status.json").read_bytes()).hexdigest()
    (record / "DONE").write_text(json.dumps(digests))
    assert main(["db", "rebuild", "--runs", str(runs)]) == 1
    assert "written by a newer version (format 99" in capsys.readouterr().err
    assert record.is_dir()
