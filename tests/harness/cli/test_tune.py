"""`exitbench tune`: from a model and a task to one recommended setting and a suite that repeats it."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import exitbench as eb
from exitbench.harness.afterwards.candidates import SHARES, threshold_grid
from exitbench.harness.cli.main import main
from exitbench.harness.planning.plan import make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.methods.registry import get_method
from exitbench.reports.front.suite_toml import stored_suite
from exitbench.reports.tables.text import recommendation_lines
from exitbench.results.database.connection import open_database

METHODS = "max-prob,contrastive-reweighted"
WORDS = ("tune", "weighted", "wmt-en-fr", f"--methods={METHODS}", "--documents=6", "--limit=6", "--max-loss=5%")


def words(runs: Path) -> list[str]:
    """Return the words of a command that tunes with the built-in suite, but times one round."""
    return [*WORDS, "--suite", str(runs / "suite.toml"), "--runs", str(runs)]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the runs folder of a finished `exitbench tune`."""
    runs = tmp_path_factory.mktemp("tuned")
    text = files("exitbench.harness.suites").joinpath("builtin.toml").read_text()
    shorter = text.replace("[timing]\ndocuments = 20", "[timing]\nmax_rounds = 1\ndocuments = 3")
    assert shorter != text
    (runs / "suite.toml").write_text(shorter)
    assert main(words(runs)) == 0
    return runs


TOLD: dict[str, tuple[str, str]] = {
    "max-prob": ("p1", "top1_id"),  # by the probe
    "contrastive-reweighted": ("score", "emitted_id"),  # by the gate itself, in a cell of its own
}


@pytest.mark.parametrize("method", TOLD)
def test_candidates_are_the_shallowest_thresholds_per_token_match_level(method: str, tuned: Path) -> None:
    score, token = TOLD[method]
    with eb.open_results(tuned) as results:
        rows = results.sql(
            "SELECT p.*, s.score, s.emitted_id FROM probe_token AS p JOIN score_token AS s USING (doc_key, position)"
        ).to_pylist()
        decoded = results.sql(
            f"SELECT DISTINCT threshold FROM runs WHERE method = '{method}' AND kind = 'quality' "
            "AND task_label = 'wmt-en-fr-calibration'"
        )["threshold"].to_pylist()
    assert rows

    def outcome(threshold: float) -> tuple[float, float]:
        exits = [next((block for block in range(1, 8) if row[score][block - 1] > threshold), 8) for row in rows]
        same = [row[token][at - 1] == row["full_token_id"] for row, at in zip(rows, exits, strict=True)]
        return sum(exits) / len(rows), sum(same) / len(rows)

    outcomes = {level: outcome(level) for level in threshold_grid(get_method(method))}
    expected = set()
    for share in SHARES:
        kept = [pair for pair in outcomes.values() if pair[1] >= 1 - share * 0.05 and pair[0] < 8]
        expected |= {min(kept, key=lambda pair: (pair[0], -pair[1]))} if kept else set()
    assert {outcomes[level] for level in decoded} == expected


def final_cells(runs: Path) -> list[dict[str, Any]]:
    """Return the cells that were timed on the task's own documents."""
    with eb.open_results(runs) as results:
        result: list[dict[str, Any]] = results.sql(
            "SELECT cell_id, method, label FROM frontier "
            "WHERE task_label = 'wmt-en-fr' AND method IN ('max-prob', 'contrastive-reweighted') ORDER BY ALL"
        ).to_pylist()
    return result


def test_suite_of_the_chosen_setting_has_no_cells_left_to_run(tuned: Path, tmp_path: Path) -> None:
    cell = final_cells(tuned)[0]
    with open_database(tuned / "exitbench.duckdb") as database:
        text = stored_suite(database, str(cell["cell_id"]), "again")
    assert text is not None
    (tmp_path / "again.toml").write_text(text)
    plan = make_plan(load_suite(tmp_path / "again.toml"), tuned / "spool", tuned / "models", None)
    labels = [planned.item.label for group in plan.groups for planned in group.cells]
    assert any(f"/{cell['method']}:" in label and label.endswith("/timing") for label in labels)
    assert set(plan.states().elements()) == {"done"}


def test_repeated_tune_runs_no_new_cells_and_prints_the_recommendation(
    tuned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def attempts() -> int:
        with eb.open_results(tuned) as results:
            return int(results.sql("SELECT count(*) AS n FROM attempt")["n"][0].as_py())

    before = attempts()
    assert main(words(tuned)) == 0
    assert attempts() == before
    with open_database(tuned / "exitbench.duckdb") as database:
        (line,) = (line for line in recommendation_lines(database) if line.startswith("wmt-en-fr (weighted)"))
    # Six documents bound no loss by 5 %, however fast the settings seem.
    assert line.startswith("wmt-en-fr (weighted): full depth, at an allowed loss of 1 %.")
    assert line.replace("loss of 1 %", "loss of 5 %") in capsys.readouterr().out
    assert not (tuned / "tuned").exists()


def test_recommended_setting_is_written_as_a_suite(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = final_cells(tuned)[0]
    monkeypatch.setattr("exitbench.harness.service.tuning.conclusion", lambda *_: ("use it", cell["cell_id"]))
    assert main([*words(tuned), "--out", str(tmp_path / "out.toml")]) == 0
    assert "use it" in capsys.readouterr().out
    names = [sweep.points[0].method.name for sweep in load_suite(tmp_path / "out.toml").sweeps]
    assert [name for name in names if name != "full"] == [cell["method"]]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("weightd", "squad"), "suite 'builtin' has no model 'weightd'. Did you mean 'weighted'?"),
        (("weighted", "squat"), "suite 'builtin' has no task 'squat'. Did you mean 'squad'?"),
        (("weighted", "squad", "--methods", "static"), "method 'static' has no threshold that a replay can search."),
        (("weighted", "squad", "--methods", "max-prb"), "unknown method 'max-prb'. Did you mean 'max-prob'?"),
        (("weighted", "squad", "--max-loss", "0%"), "'0%' is not a percentage above 0 and below 100"),
        (("weighted", "squad", "--max-loss", "much"), "'much' is not a percentage"),
        (("weighted", "squad", "--guarantee", "1"), "'1' is not a chance between 0 and 1"),
        (
            ("weighted", "squad", "--guarantee", "0.1"),
            "takes 339 documents or more, even if none of them loses anything, and 2105 where they lose half as much.",
        ),
        (("weighted", "squad", "--out", "no/such/folder.toml"), "--out no/such/folder.toml: its folder is not there."),
        (("weighted", "squad", "--out", __file__), "is there already. Allowed: a new file"),
        (("weighted", "squad", "--suite", "nowhere.toml"), "no suite 'nowhere.toml'"),
    ],
)
def test_invalid_input_is_refused_before_running(
    words: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *words, "--runs", str(tmp_path / "runs")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
