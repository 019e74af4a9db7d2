"""`exitbench new`: the files that it writes run unchanged, up to a row of the report; unusable names are reported."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from exitbench.harness.cli.main import main, parse_command_line
from exitbench.harness.scaffolds import MOST_CHARACTERS, method_files, python_task_files, task_files
from exitbench.results.database.connection import open_database

ROOT = Path(__file__).parents[3]
METHOD, TASK, PYTHON_TASK = "my-gate", "my-task", "my-other-task"
LIMIT = "4"


def _output_of(arguments: list[str]) -> str:
    """Run a command without plug-ins in this process, which can trust only one folder of them; return its output."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(arguments) == 0, arguments
    return out.getvalue()


def _next(told: str) -> list[list[str]]:
    """Return the commands that `exitbench new` lists as next steps."""
    return [shlex.split(line) for line in told.partition("next:\n")[2].splitlines()]


@pytest.fixture(scope="module")
def created_folder(snippets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a read-only folder with a new method and two new tasks (TOML, Python), whose next steps have been run."""
    folder = tmp_path_factory.mktemp("made")
    tests: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        for arguments in (["method", METHOD], ["task", TASK], ["task", PYTHON_TASK, "--python"]):
            for number, step in enumerate(_next(_output_of(["new", *arguments]))):
                if step[0] == "python":
                    tests.append(step[-1])
                    continue
                # Of timing, whose place is a quiet machine, nothing; and one report of all at the end.
                if step[1] == "run":
                    step += ["--kinds", "quality,probe", "--limit", LIMIT, "--no-report"]
                told = snippets.output_of(folder, step, "made") if "--plugins" in step else _output_of(step[1:])
                (folder / f"{arguments[1]}-{number}-{step[1]}.out").write_text(told)
    python = snippets.Python(folder)
    try:
        options = ["-p", "no:cacheprovider", *tests]
        source = f"import pytest, sys; sys.path.insert(0, ''); print(int(pytest.main({options})))"
        told = python.output_of(snippets.Block("tests", "python", None, source))
    finally:
        python.end()
    assert told.endswith("\n0\n"), told
    return folder


def rows(folder: Path, sql: str) -> list[dict[str, Any]]:
    with open_database(folder / "runs" / "exitbench.duckdb") as database:
        return database.query(sql).to_pylist()


def test_files_of_all_kinds_share_one_folder_layout(created_folder: Path) -> None:
    files = {
        str(path.relative_to(created_folder))
        for name in ("plugins", "tests", "tasks", "data")
        for path in created_folder.glob(f"{name}/*.*")
    }
    assert files == {
        *("plugins/my_gate.py", "tests/test_my_gate.py"),
        *("tasks/my-task.toml", "data/my-task.jsonl", "tests/test_my_task.py"),
        *("plugins/my_other_task.py", "data/my-other-task.jsonl", "tests/test_my_other_task.py"),
    }
    assert {path.stem for path in created_folder.glob("*.toml")} == {METHOD, TASK, PYTHON_TASK}


def test_new_method_is_in_the_database_with_the_baselines_and_conforms(created_folder: Path) -> None:
    result = rows(created_folder, f"SELECT * FROM runs WHERE suite = '{METHOD}' AND kind = 'quality'")
    assert {row["method"] for row in result} == {"full", "static", "max-prob", METHOD}
    assert {row["conforms"] for row in result} == {True}


def test_unchanged_method_template_equals_max_prob(created_folder: Path) -> None:
    sql = "SELECT threshold, value, mean_exit_layer FROM frontier WHERE method = $1 AND suite = $2 ORDER BY ALL"
    with open_database(created_folder / "runs" / "exitbench.duckdb") as database:
        mine, theirs = (database.query(sql, [name, METHOD]).to_pylist() for name in (METHOD, "max-prob"))
    assert len(mine) == 2 and mine == theirs


def test_new_method_can_be_replayed_over_thresholds(created_folder: Path) -> None:
    (told,) = (path.read_text() for path in created_folder.glob("*-replay.out"))
    lines = told.splitlines()  # what goes to stderr stands before the table
    rows_from = next(number for number, line in enumerate(lines) if "mean_exit_layer" in line) + 2
    depths = [float(line.split()[1]) for line in lines[rows_from:]]
    assert len(depths) == 21 and depths == sorted(depths) and depths[0] < depths[-1]


def test_new_tasks_are_in_the_database_with_their_metrics(created_folder: Path) -> None:
    result = rows(
        created_folder, "SELECT DISTINCT task, metric, suite FROM frontier WHERE task_label LIKE 'my-%' ORDER BY ALL"
    )
    assert [tuple(row.values()) for row in result] == [
        (PYTHON_TASK, "words_in_place", PYTHON_TASK),
        (f"toml:{TASK}", "chrf", TASK),
    ]


def test_new_method_and_tasks_are_in_the_report_table(created_folder: Path, snippets: ModuleType) -> None:
    told = snippets.output_of(
        created_folder, shlex.split("exitbench report --format md --only summary --draft"), "report"
    )
    assert METHOD in told and TASK in told and PYTHON_TASK in told


def test_show_prompts_prints_the_prompts_of_the_new_tasks(created_folder: Path) -> None:
    told = [path.read_text() for path in created_folder.glob("*-show-prompts.out")]
    assert len(told) == 2 and all("translate English to French: Anna likes the ducks ." in one for one in told)


# ------------------------------------------------------------------------------------------------ the text of the files

LONGEST = "-".join(["x" * 9] * 4) + "y"


@pytest.mark.parametrize("name", ["a", "my-method", LONGEST])
def test_generated_python_passes_ruff_check_and_format(name: str, tmp_path: Path) -> None:
    assert len(LONGEST) == MOST_CHARACTERS
    paths = []
    for number, files in enumerate((method_files(name), task_files(name, "run"), python_task_files(name, "run"))):
        for path, text in files.items():
            if path.endswith(".py"):
                paths.append(tmp_path / str(number) / path)
                paths[-1].parent.mkdir(parents=True, exist_ok=True)
                paths[-1].write_text(text, encoding="utf-8")
                compile(text, path, "exec")
    if shutil.which("ruff") is None:
        pytest.skip("ruff is not here: that it is Python is all that was tried")
    ours = ["--config", str(ROOT / "pyproject.toml"), "--config", "lint.isort.known-first-party=[]"]
    for options in (ours, ["--isolated"]):
        completed = subprocess.run(
            ["ruff", "check", "--no-cache", "--extend-per-file-ignores", "test_*.py:D", *options, *paths],
            capture_output=True,
            text=True,
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr
        completed = subprocess.run(
            ["ruff", "format", "--diff", "--no-cache", *options, *paths], capture_output=True, text=True
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr


def test_method_template_has_at_most_45_lines() -> None:
    assert len(method_files(METHOD)["plugins/my_gate.py"].splitlines()) <= 45


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("method My-Gate", "'My-Gate' cannot be a name. Allowed: lower-case"),
        ("task ../mine", "'../mine' cannot be a name"),
        ("method max-prob", "there is a method named 'max-prob'"),
        ("task squad --python", "there is a task named 'squad'"),
        ("suite builtin --model builtin-free", "there is a suite named 'builtin'"),
        ("method mine --to file", "file/plugins/mine.py: cannot be written (Not a directory)"),
        ("suite mine", "required: --model"),
        ("suite mine --model nowhere", "there is no folder 'nowhere' and no recipe of that name"),
        ("suite mine --model empty", "empty: not a Hugging Face checkpoint folder (no config.json)"),
        ("suite mine --model damaged", "damaged/config.json, line 1: not valid JSON"),
        ("suite mine --model encoder", "is an encoder only; allowed: models that generate text"),
        ("suite mine --model unweighted", "unweighted: no model.safetensors"),
        ("suite mine --model hub:me", "'hub:me' is not the name of a model; allowed: hub:OWNER/NAME"),
        ("suite mine --model hub:me/small", "hub:me/small@main is not on this machine"),
        ("suite mine --model builtin-free --task squat", "unknown task 'squat'. Did you mean 'squad'?"),
        ("suite mine --model builtin-free --task no.toml", "no.toml: cannot be read: No such file"),
        ("suite mine --model builtin-free --task squad --set levl=1", "unknown key. Did you mean 'level'?"),
        ("suite mine --model builtin-free --set level=1", "goes with one --task"),
        ("suite mine --model builtin-free --task squad --task squad", "another one has the label 'squad'"),
        ("thing mine", "invalid choice: 'thing' (choose from 'method', 'task', 'suite')"),
        ("", "required: KIND"),
    ],
)
def test_invalid_arguments_print_a_short_message_and_leave_no_files(
    arguments: str, says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "file").touch()
    for name in ("empty", "damaged", "encoder", "unweighted"):
        (here / name).mkdir()
    (here / "damaged" / "config.json").write_text("{")
    (here / "encoder" / "config.json").write_text('{"model_type": "t5", "architectures": ["T5EncoderModel"]}')
    (here / "unweighted" / "config.json").write_text('{"model_type": "gpt2", "n_layer": 2}')
    before = found(here)
    assert main(["new", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert says in captured.err and captured.out == ""
    assert len(captured.err.splitlines()) <= 20 and "Traceback" not in captured.err
    assert found(here) == before


@pytest.mark.parametrize("there", ["plugins/mine.py", "tests/test_mine.py", "mine.toml"])
def test_existing_files_are_not_overwritten(there: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / there).parent.mkdir(exist_ok=True)
    (here / there).write_text("mine")
    before = found(here)
    assert main(["new", "method", "mine"]) == 2
    assert f"{there}: is there already. Nothing was written." in capsys.readouterr().err
    assert found(here) == before and (here / there).read_text() == "mine"


@pytest.mark.parametrize("kind", ["method", "task", "suite"])
def test_help_examples_of_every_kind_parse(kind: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "data").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["new", kind, "--help"])
    assert ended.value.code == 0
    examples = re.findall(r"^  exitbench (new .*)$", capsys.readouterr().out.replace("\\\n", ""), re.MULTILINE)
    assert examples
    for example in examples:
        assert parse_command_line(shlex.split(example)).name.startswith("my-")
