"""The suite `glue`: each classifier runs the task that it learned, on other texts than it was trained on."""

import gzip
from pathlib import Path

import pytest

from exitbench.errors import UserError
from exitbench.harness.cli.main import main
from exitbench.harness.planning.expand import expand
from exitbench.harness.planning.plan import make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.training import load_recipe

SUITE = load_suite("glue")
LABELS = {"sst2", "mrpc", "cola", "rte", "qnli"}
BLOCKS = 6
PAIR = "index\tsentence1\tsentence2\t"
CONTENT = {
    "sst2": "sentence\tlabel\na fine film{}\t1\n",
    "mrpc": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t11\t12\tIt rained.\tRain fell{}.\n",
    "cola": "cj99\t1\t\tShe left{}.\n",
    "rte": PAIR + "label\n0\tIt rained.\tIt was dry{}.\tnot_entailment\n",
    # A fifth of the file is the test.
    "qnli": "index\tquestion\tsentence\tlabel\n"
    + "".join(f"{number}\tDid it rain?\tIt was day {number}.\tnot_entailment\n" for number in range(40)),
    "stsb": PAIR + "score\n0\tIt rains.\tIt snows.\t2.333\n",
}


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Return a folder with one text in each of the suite's files, in the file's format and with different words."""
    for task in SUITE.tasks:
        for (_, name), ending in ((task.data.files[0], ""), *((file, " then") for file in task.train_files)):
            path = tmp_path / "data" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(CONTENT[task.label].format(ending).encode()))
    return tmp_path / "data"


def test_every_model_runs_its_trained_task_without_training_texts() -> None:
    for model in SUITE.models:
        recipe = load_recipe(model.recipe or "")
        (source,), (validation,) = recipe.train, recipe.validation
        task = SUITE.task(source.task)
        assert model.tasks == (task.label,)
        assert (validation.files, validation.part) == (task.data.files, task.data.part) != (source.files, source.part)
        assert task.train_files in ((), source.files)  # nothing is fitted on a regression, nor without a training file


def test_every_exit_rule_is_run_with_full_static_and_random_baselines() -> None:
    controls, rules = {"full", "static", "random"}, {"max-prob", "deebert", "fastbert", "pabee", "oracle"}
    for model in SUITE.models:
        (label,) = model.tasks or ()
        fitted = {"berxit"} if SUITE.task(label).train_files else set()
        cells = [cell for cell in expand(SUITE) if cell.model is model and cell.kind == "quality"]
        assert {cell.method.name for cell in cells} == controls | (rules | fitted if label in LABELS else {"pabee"})
        for cell in cells:
            cell.check(BLOCKS, ())


def test_plan_of_untrained_models_prints_the_training_command(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "glue", "--data-dir", str(data_dir)]) == 0
    output = capsys.readouterr().out
    assert "minilm-rte: recipe minilm-rte, not trained yet" in output
    assert "`exitbench train minilm-rte --data-dir DIR`" in output
    assert output.count("not trained yet") == len(SUITE.models)


def test_missing_data_dir_is_refused_with_the_suite_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"glue\.toml:\d+: \[tasks\.sst2\]: .*--data-dir"):
        make_plan(SUITE, tmp_path / "spool", tmp_path / "models", None)
