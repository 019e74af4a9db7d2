"""`exitbench replay`: a sweep over a stored probe gives, at every threshold, the result of a replay cell."""

import csv
import io
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import duckdb
import pytest

import exitbench as eb
from exitbench.harness.cli.main import main


def asked(capsys: pytest.CaptureFixture[str], database: Path, *words: str) -> tuple[int, str, str]:
    code = main(["replay", *words, "--database", str(database)])
    return code, *capsys.readouterr()


@pytest.fixture(scope="module")
def probed(example_database: Path) -> tuple[str, str]:
    """Return a model and a task of the example that were probed."""
    with eb.open_results(example_database) as results:
        (row, *_) = results.sql("SELECT model, task_label FROM runs WHERE kind = 'probe' ORDER BY ALL").to_pylist()
    return row["model"], row["task_label"]


def test_replay_prints_one_row_per_threshold(
    example_database: Path, probed: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("/".join(probed), "calm-softmax", "--thresholds=0,0.2,0.6,1", "--format", "csv")
    code, printed, stderr = asked(capsys, example_database, *words)
    assert (code, "simulated: 4 thresholds over" in stderr) == (0, True)
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [float(row["threshold"]) for row in rows] == [0, 0.2, 0.6, 1]
    depths = [float(row["mean_exit_layer"]) for row in rows]
    assert depths == sorted(depths) and depths[0] < depths[-1]
    assert float(rows[-1]["token_match"]) == 1
    with eb.open_results(example_database) as results:
        swept = eb.replay(results.probe("/".join(probed)), "calm-softmax", [0, 0.2, 0.6, 1])
    assert swept["mean_exit_layer"].to_pylist() == pytest.approx(depths)


def test_replay_accepts_a_threshold_range_and_writes_a_figure(
    example_database: Path, probed: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("/".join(probed), "calm-softmax", "--thresholds=0:0.3:0.1", "--format", "csv")
    code, printed, _ = asked(capsys, example_database, *words, "--figure", str(tmp_path / "sweep.svg"))
    assert code == 0
    assert [row["threshold"] for row in csv.DictReader(io.StringIO(printed))] == ["0.0", "0.1", "0.2", "0.3"]
    drawn = ElementTree.parse(tmp_path / "sweep.svg").getroot()
    assert drawn.tag.endswith("svg") and len(list(drawn.iter())) > 50


@pytest.mark.parametrize("thresholds", ["0:1:0", "1:0:0.1", "0:1", "0:1:a", "0:1:0.00001", "0:inf:1", "nan:1:0.1", ""])
def test_invalid_threshold_range_is_refused(
    thresholds: str, example_database: Path, probed: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("/".join(probed), "calm-softmax", f"--thresholds={thresholds}")
    code, _, stderr = asked(capsys, example_database, *words)
    assert (code, "nor FROM:TO:STEP with a STEP above 0" in stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("{probe}", "calm-softmax", "--figure", "sweep.gif"), "its name must end in .pdf, .png, .svg"),
        (("{probe}", "calm-softmax", "--figure", "no/such/folder.svg"), "No such file or directory"),
        (("no/such", "calm-softmax"), "'no/such' fits no probe. One is needed, as MODEL/TASK. There are: "),
        (("*", "calm-softmax"), "One is needed"),
        (("{probe}", "calm-sofmax"), "Did you mean 'calm-softmax'"),
        (("{probe}", "static"), "method 'static' has no threshold"),
        (("{probe}", "calm-softmax", "--thresholds", "0.1,a"), "numbers separated by commas"),
        (("{probe}", "calm-softmax", "--thresholds", ",".join(["0"] * 10_001)), "are not at most 10,000 numbers"),
        (("{probe}", "calm-softmax", "--param", "decay"), "allowed: NAME=VALUE"),
        (("{probe}", "calm-softmax", "--param", "deckay=none"), "deckay"),
        (("{probe}", "calm-softmax", "--param", "min_exit=99"), "calm-softmax.min_exit = 99 is above the depth"),
        (
            ("{probe}", "calm-softmax", "--param", "rule=epsilon"),
            "does not use its threshold with rule = 'epsilon'",
        ),
        (("{probe}", "heads", "--param", "exit_blocks=[0]"), "exit_blocks[0] = 0 is out of range"),
    ],
)
def test_invalid_input_exits_with_2_and_names_the_allowed_values(
    words: tuple[str, ...],
    says: str,
    example_database: Path,
    probed: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, stderr = asked(capsys, example_database, *(word.format(probe="/".join(probed)) for word in words))
    assert (code, says in stderr) == (2, True), stderr


def test_probe_of_given_texts_is_not_replayed_as_a_probe_of_answers(
    few_database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(shutil.copy(few_database, tmp_path / "given.duckdb"))
    sql = "SELECT model || '/' || task_label AS place FROM runs WHERE kind = 'probe' ORDER BY attempt_id"
    with eb.open_results(path) as results:
        place = results.sql(sql)["place"][0].as_py()
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE probe_token SET choice = 1")
    code, _, stderr = asked(capsys, path, place, "calm-softmax")
    assert (code, f"'{place}' fits no probe" in stderr) == (2, True), stderr
