"""`exitbench try`: from a model to a verdict on early exit, within a given time."""

import dataclasses
import shutil
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import exitbench as eb
from exitbench.errors import UserError
from exitbench.harness.afterwards.candidates import Candidate
from exitbench.harness.cells.cell import TimingSettings
from exitbench.harness.cli.main import main
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.service import trying
from exitbench.harness.service.trying import FEWEST_DOCUMENTS, Pace, _floor
from exitbench.results.database.connection import open_database


def one_candidate_per_method(*asked: Any, every: Any = trying.unsearched_candidates) -> tuple[Candidate, ...]:
    return tuple({candidate.point.method.name: candidate for candidate in every(*asked)}.values())


def run_try(model: str, folder: Path) -> str:
    """Try a model on as few documents and settings as possible, whatever time there is; return the output."""
    words = ("--max-loss", "20%", "--minutes", "60", "--runs", str(folder / "runs"))
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(StringIO()) as out, redirect_stderr(out):
        patched.setattr(trying, "MOST_DOCUMENTS", FEWEST_DOCUMENTS)
        patched.setattr(trying, "TimingSettings", partial(TimingSettings, documents=4, max_rounds=1))
        patched.setattr(trying, "unsearched_candidates", one_candidate_per_method)
        code = main(["try", model, *words])
    assert code == 0, out.getvalue()
    return out.getvalue()


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder of runs and the printed output of a finished trial."""
    folder = tmp_path_factory.mktemp("tried")
    printed = run_try("builtin-weighted", folder)
    return folder / "runs", printed


def test_trial_warns_only_if_full_depth_is_near_the_worst_score(tried: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copy(tried[0] / "exitbench.duckdb", tmp_path)
    with open_database(tmp_path / "exitbench.duckdb", read_only=False) as database:
        cells = {row["cell_id"]: "" for row in database.query("SELECT cell_id FROM cell").to_pylist()}

        def floor(value: float, *, lower_is_better: bool) -> str | None:
            with database.engine.begin() as connection:
                connection.exec_driver_sql(
                    f"UPDATE metric SET value = {value}, ci_low = {value}, ci_high = {value}, "
                    f"lower_is_better = {lower_is_better} WHERE role = 'headline'"
                )
            return _floor(database, cells)

        assert floor(3.0, lower_is_better=True) is floor(97.0, lower_is_better=False) is None
        for value, lower_is_better in ((97.0, True), (3.0, False)):
            message = floor(value, lower_is_better=lower_is_better)
            assert message is not None and message.startswith(f"Full depth scores {value} of 100 (")
            assert "exitbench show-prompts" in message
            assert message.endswith("So nothing here says what early exit is worth.")


def test_try_prints_a_verdict_and_the_next_step(tried: tuple[Path, str]) -> None:
    _, printed = tried
    for heading in ("1. Pilot", "2. Probing", "3. Decoding", "4. Timing"):
        assert heading in printed
    verdict, next_step = printed.index("\nsquad (builtin-weighted): "), printed.index("\nNext: ")
    assert verdict < next_step


def test_settings_are_chosen_and_reported_on_disjoint_documents(tried: tuple[Path, str]) -> None:
    runs, _ = tried
    with eb.open_results(runs) as results:
        rows = results.sql(
            "SELECT DISTINCT task_label, doc_key FROM runs JOIN document_exit USING (attempt_id)"
        ).to_pylist()
    chosen = {row["doc_key"] for row in rows if row["task_label"] == "squad-calibration"}
    reported = {row["doc_key"] for row in rows if row["task_label"] == "squad"}
    assert chosen and reported and not chosen & reported


def test_repeated_try_runs_no_new_cells_and_writes_a_loadable_suite(tried: tuple[Path, str]) -> None:
    runs, _ = tried

    def attempts() -> int:
        with eb.open_results(runs) as results:
            return int(results.sql("SELECT count(*) AS n FROM attempt")["n"][0].as_py())

    before = attempts()
    assert "squad (builtin-weighted): " in run_try("builtin-weighted", runs.parent)
    assert attempts() == before
    suite = load_suite(runs / "tried" / "builtin-weighted-squad.toml")
    assert [model.name for model in suite.models] == ["builtin-weighted"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("no-such-model",), "there is no folder 'no-such-model' and no recipe of that name."),
        (("builtin-weighted", "--task", "squat"), "unknown task 'squat'. Did you mean 'squad'?"),
        (("builtin-weighted", "--data", "no.json"), "--data no.json: there is no such file."),
        (("builtin-weighted", "--task", "my.toml"), "--task my.toml: needs its records too: --data FILE."),
        (("builtin-weighted", "--task", "sst2"), "requires labels or numbers, and model 'builtin-weighted' generates"),
        (("builtin-weighted", "--task", "lm-eval:hellaswag"), "`try` needs generated answers or labels."),
        (
            ("builtin-encoder-joint", "--task", "squad"),
            "task 'squad' requires texts, and model 'builtin-encoder-joint'",
        ),
        (("builtin-weighted", "--minutes", "0"), "'0' is not a number of minutes from 0.1 to 10000"),
    ],
)
def test_invalid_input_is_refused_before_running(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["try", *words, "--runs", str(tmp_path / "runs")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs" / "spool").exists()


def test_a_classifier_is_tried_on_the_task_with_its_labels(tmp_path: Path) -> None:
    printed = run_try("builtin-encoder-joint", tmp_path)
    assert "a classifier that answers one of negative, positive." in printed
    assert "\nsst2 (builtin-encoder-joint): " in printed
    with eb.open_results(tmp_path / "runs") as results:
        tried = set(results.sql("SELECT DISTINCT method FROM runs")["method"].to_pylist())
    assert {"static", "deebert", "pabee", "fastbert", "max-prob"} <= tried
    assert "random" not in tried, "its seed is no number of blocks"


def test_encoder_without_a_classifier_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    assert main(["try", str(tmp_path), "--task", "mrpc", "--runs", str(tmp_path / "runs")]) == 2
    assert "`exitbench train` makes a classifier of an encoder" in " ".join(capsys.readouterr().err.split())


def test_too_few_documents_for_two_halves_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.toml").write_text(
        'schema = 1\nname = "own"\nprompt = "{text}"\ntarget = "answer"\nmetrics = ["f1"]\nmax_new_tokens = 4\n'
        '[fields]\ntext = "text"\nanswer = "answer"\n'
    )
    (tmp_path / "few.csv").write_text("text,answer\n" + "".join(f"word {n},word\n" for n in range(15)))
    words = ("--task", str(tmp_path / "own.toml"), "--data", str(tmp_path / "few.csv"))
    assert main(["try", "builtin-weighted", *words, "--runs", str(tmp_path / "runs")]) == 2
    assert "15 documents; at least 16 are needed" in capsys.readouterr().err


PACE = Pace(together_s=0.5, alone_s=1.0, stage_s=5.0, pilot_s=30.0, minutes=10.0)


@pytest.mark.parametrize("minutes", [2.0, 10.0, 60.0])
def test_planned_work_fits_the_given_minutes(minutes: float) -> None:
    pace = dataclasses.replace(PACE, minutes=minutes)
    timing = pace.timing(settings=4)
    choosing_s = pace.n_search_documents(decodes=11) * pace.together_s * (3 + 8)
    reporting_s = pace.n_report_documents * pace.together_s * 5
    timing_s = 4 * 3 * 2 * timing.documents * timing.least_rounds * pace.alone_s
    floor_s = 4 * 3 * 2 * 4 * 2 * pace.alone_s  # four documents in two rounds are always timed
    stages_s = pace.pilot_s + 3 * pace.stage_s
    assert stages_s + choosing_s + reporting_s + max(timing_s - floor_s, 0) <= 60 * minutes


def test_fast_model_uses_the_default_timing_settings() -> None:
    assert dataclasses.replace(PACE, alone_s=0.01).timing(settings=4) == TimingSettings()


def test_too_little_time_is_refused_with_the_time_needed() -> None:
    PACE.require_enough(11)
    slow = dataclasses.replace(PACE, together_s=60.0)
    with pytest.raises(
        UserError, match=r"there is time for \d+ documents to choose or report on. Needed: 8, about --minutes"
    ) as refusal:
        slow.require_enough(11)
    needed = float(str(refusal.value).rsplit(maxsplit=1)[-1].rstrip("."))
    enough = dataclasses.replace(slow, minutes=needed)
    assert enough.n_search_documents(11) >= FEWEST_DOCUMENTS
