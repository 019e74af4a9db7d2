"""The command line in separate processes: printed text, exit codes, and that bad input leaves no files behind."""

import csv
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import duckdb
import pytest

from exitbench import __version__
from exitbench.harness.cli.arguments.common import DAILY
from exitbench.harness.cli.main import main, parse_command_line, whole_parser
from exitbench.harness.engine.checkpoints.digest import inspect_checkpoint
from exitbench.harness.planning import plan
from exitbench.results.database.connection import open_database
from exitbench.results.spool.heartbeat import owner_of

TWO_SETTINGS = """\
[[sweep]]
method = "static"
grid = { exit_layer = [1, 2] }
kinds = ["quality"]
"""
NEWER_THAN_ANY = 10_000
SCREEN_LINES, SCREEN_WIDTH = 50, 80
COMMANDS = sorted(whole_parser()[1])


@dataclass(frozen=True)
class Done:
    """Result of a command."""

    returncode: int
    stdout: str
    stderr: str


LONG_S = 300.0
"""Longer than anything takes on a busy machine."""
Command = Callable[..., Done]


@pytest.fixture
def exitbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs one command in the test's folder. Workers are separate processes."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, given: str = "") -> Done:
        monkeypatch.setattr(sys, "stdin", io.StringIO(given))
        try:
            code = main(arguments)
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def suite(worded_model: Path, data_dir: Path, tmp_path: Path) -> Path:
    """Return a suite for a random model and four lines of text, which are in the folder `data`."""
    path = tmp_path / "small.toml"
    path.write_text(
        'schema = 1\nname = "small"\nseed = 7\n'
        f'[models.tiny]\npath = "{worded_model}"\nrandom_weights = true\n'
        '[tasks.lines]\ntask = "wmt-en-fr"\nsource = "local"\nfiles = { en = "text.en", fr = "text.fr" }\n'
        "max_new_tokens = 3\n" + TWO_SETTINGS
    )
    return path


def test_help_imports_no_heavy_packages() -> None:
    code = (
        "import sys\n"
        "from exitbench.harness.cli import main as cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print({'torch', 'transformers', 'lm_eval', 'duckdb', 'numpy'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("asked", [("--help",), (), ("help",)], ids=["--help", "nothing", "help"])
def test_help_lists_the_daily_commands_and_fits_half_a_screen(exitbench: Command, asked: tuple[str, ...]) -> None:
    completed = exitbench(*asked)
    lines = completed.stdout.splitlines()
    assert (completed.returncode, len(lines) <= SCREEN_LINES // 2, max(map(len, lines)) <= SCREEN_WIDTH) == (
        0,
        True,
        True,
    )
    assert lines.index("Start here:") < lines.index("Commands:")
    assert re.findall("^  ([a-z-]+)  +[A-Z]", completed.stdout, re.MULTILINE) == list(DAILY)
    assert "exitbench help all" in completed.stdout


def test_help_all_lists_every_command_once_by_purpose(exitbench: Command) -> None:
    completed = exitbench("help", "all")
    assert completed.returncode == 0 and len(completed.stdout.splitlines()) <= SCREEN_LINES
    assert sorted(re.findall("^  ([a-z-]+)  +[A-Z]", completed.stdout, re.MULTILINE)) == COMMANDS
    assert set(DAILY) <= set(COMMANDS) and "_cell" not in completed.stdout  # for other programs


def test_help_command_equals_the_commands_help_option(exitbench: Command) -> None:
    assert exitbench("help", "run").stdout == exitbench("run", "--help").stdout
    refused = exitbench("help", "rum")
    assert refused.returncode == 2 and "there is no command 'rum'" in refused.stderr and "run" in refused.stderr


def test_the_version_has_a_short_option(exitbench: Command) -> None:
    assert exitbench("-V").stdout == exitbench("--version").stdout == f"exitbench {__version__}\n"


def test_open_opens_the_report_page_and_fails_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    (tmp_path / "runs").mkdir()
    assert main(["open", "--runs", str(tmp_path / "runs")]) == 2
    (tmp_path / "runs/report").mkdir()
    (tmp_path / "runs/report/index.html").write_text("")
    assert main(["open", "--runs", str(tmp_path / "runs")]) == 0
    assert opened == [(tmp_path / "runs/report/index.html").as_uri()]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_examples_of_every_command_parse(
    command: str, tmp_path: Path, exitbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed = exitbench(command, "--help")
    assert completed.returncode == 0
    examples = completed.stdout.partition("examples:\n")[2].replace("\\\n", " ").splitlines()
    assert examples and all(example.startswith("  exitbench ") for example in examples)
    assert any(example.startswith(f"  exitbench {command}") for example in examples)
    for folder in ("data", "here"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for example in examples:
        for part in example.split(" && "):
            words = shlex.split(re.split(" [<>] ", part)[0])
            assert words[0] == "exitbench" and parse_command_line(words[1:]), example


def test_suite_can_be_planned_run_queried_and_run_again(
    suite: Path, tmp_path: Path, exitbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plan a suite, run it, query it and run it again, with real workers and several cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    before = exitbench("plan", str(suite), "--data-dir", "data")
    assert "3 cells: 3 new. Runs with --retry failed: 3." in before.stdout
    assert not (tmp_path / "runs").exists()

    run = exitbench("run", str(suite), "--data-dir", "data", "--threads", "1", "--table")
    assert run.returncode == 0, run.stderr
    assert "[3/3] tiny/lines/static:exit_layer=2/quality (4 documents): ok" in run.stderr
    assert "tiny on lines" in run.stdout
    assert "the weights are random, so nothing is recommended." in run.stdout
    assert (tmp_path / "runs" / "report" / "index.html").is_file()
    (query,) = [line.split('"')[1] for line in run.stdout.splitlines() if line.startswith("Query")]

    answer = exitbench("sql", query, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(answer.stdout)))
    assert sorted((row["model"], row["method"]) for row in rows) == [
        ("tiny", "full"),
        ("tiny", "static"),
        ("tiny", "static"),
    ]

    after = exitbench("plan", str(suite), "--data-dir", "data")
    assert "3 cells: 3 done. Runs with --retry failed: 0." in after.stdout
    again = exitbench("run", str(suite), "--data-dir", "data", "--no-report")
    assert "Report" in run.stdout and "Report" not in again.stdout
    assert "tiny on lines" not in again.stdout and len(again.stdout.splitlines()) <= 5
    assert (again.returncode, "Nothing to run: 3 cells are done" in again.stderr) == (0, True)

    (spec,) = (tmp_path / "runs" / "logs").glob("*.json")
    alone = exitbench("_cell", str(spec), "--spool", "elsewhere")
    events = [json.loads(line)["event"] for line in alone.stdout.splitlines()]
    assert (events.count("start"), events.count("end")) == (3, 3)
    assert len(list((tmp_path / "elsewhere").glob("*/*/*/DONE"))) == 3


def test_model_that_breaks_after_planning_fails_its_cells_with_exit_code_1(
    suite: Path, worded_model: Path, tmp_path: Path, exitbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in worded_model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "tokenizer.json").write_text("{")
    suite.write_text(suite.read_text().replace(str(worded_model), "broken"))
    completed = exitbench("run", str(suite), "--data-dir", "data", "--threads", "1", "--no-report")
    assert completed.returncode == 2
    assert "transformers cannot read the tokenizer" in completed.stderr
    sound = inspect_checkpoint("tiny", worded_model)  # as if it broke after the plan
    monkeypatch.setattr(plan, "inspect_checkpoint", lambda *_: sound)
    completed = exitbench("run", str(suite), "--data-dir", "data", "--threads", "1", "--no-report")
    assert completed.returncode == 1
    summary = completed.stderr[completed.stderr.index("3 failed:") :].splitlines()
    assert summary[1].startswith("  3 cells, such as tiny/lines/full/quality: failed: ")
    assert len(summary) == 3 and summary[2].startswith("More: exitbench sql --database ")
    assert "Traceback" not in completed.stderr


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('method = "static"', 'method = "statik"', "unknown method 'statik'. Did you mean 'static'?"),
        ('"wmt-en-fr"', '"wmt-en-frr"', "unknown task 'wmt-en-frr'. Did you mean 'wmt-en-fr'?"),
        ("exit_layer", "exit_layr", "Did you mean 'exit_layer'?"),
        ("kinds =", "kindz =", "unknown key. Did you mean 'kinds'?"),
        ("[1, 2]", "[0]", "static.exit_layer = 0 is out of range; allowed: at least 1"),
        ("[1, 2]", "[5]", "static.exit_layer = 5 is above the depth of the model; allowed: between 1 and 4"),
    ],
    ids=["method", "task", "parameter", "key", "range", "depth"],
)
@pytest.mark.parametrize("command", ["plan", "run"])
def test_invalid_suite_prints_one_message_exits_with_2_and_writes_nothing(
    suite: Path, tmp_path: Path, exitbench: Command, command: str, before: str, after: str, says: str
) -> None:
    suite.write_text(suite.read_text().replace(before, after))
    line = next(n for n, text in enumerate(suite.read_text().splitlines(), 1) if after.splitlines()[-1] in text)
    completed = exitbench(command, str(suite), "--data-dir", "data")
    assert_refused(completed, says)
    assert f"{suite}:{line}: " in completed.stderr or "above the depth" in completed.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", suite.name]


def assert_refused(done: Done, says: str) -> None:
    assert says in done.stderr
    assert done.stderr.startswith("exitbench: ")
    assert "Traceback" not in done.stderr
    assert (done.returncode, done.stdout) == (2, "")


def test_unknown_suite_is_refused_with_a_suggestion(tmp_path: Path, exitbench: Command) -> None:
    assert_refused(exitbench("run", "bultin"), "Did you mean 'builtin'?")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("runs", ["/proc/runs", "/proc"], ids=["cannot be made", "cannot be written"])
def test_unwritable_runs_folder_is_refused_before_any_work(
    suite: Path, tmp_path: Path, exitbench: Command, runs: str
) -> None:
    completed = exitbench("run", str(suite), "--data-dir", "data", "--runs", runs)  # not even root can
    assert_refused(completed, f"--runs {runs}: cannot be written (No such file or directory)")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", suite.name]


def test_database_of_a_newer_schema_is_refused_before_any_work(
    suite: Path, example_database: Path, tmp_path: Path, exitbench: Command
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "exitbench.duckdb").write_bytes(example_database.read_bytes())
    with duckdb.connect(str(runs / "exitbench.duckdb")) as connection:
        connection.execute("INSERT INTO schema_version VALUES (?, now(), 'future')", [NEWER_THAN_ANY])
    says = f"another version of ExitBench (schema {NEWER_THAN_ANY}, "
    assert_refused(exitbench("run", str(suite), "--data-dir", "data"), says)
    assert [path.name for path in runs.iterdir() if not path.name.startswith(".")] == ["exitbench.duckdb"]


class CommandProcess:
    """Process of one command, a fork of one that has all modules imported."""

    def __init__(self, snippets: ModuleType, folder: Path, *arguments: str) -> None:
        self._snippets, self._python = snippets, snippets.Python(folder)
        self.pid = int(self._output_of(START.format(arguments=arguments)))

    def is_running(self) -> bool:
        return self._output_of("print(process.poll())") == "None\n"

    def end(self) -> Done:
        """Wait for the end of the process, and of all that write to its standard output or error."""
        done = Done(*json.loads(self._output_of(END)))
        self._python.end()
        return done

    def _output_of(self, source: str) -> str:
        return str(self._python.output_of(self._snippets.Block("process", "python", None, source)))


START = """\
import json, subprocess, sys, warnings
warnings.filterwarnings("ignore", ".* found in sys.modules after import")  # a new process would not have it there
command = [sys.executable, "-m", "exitbench.harness.cli.main", *{arguments!r}]
process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
print(process.pid)
"""
END = f"""\
out, err = process.communicate(timeout={LONG_S})
print(json.dumps([process.returncode, out, err]))
"""


def test_ctrl_c_records_the_interrupted_cell_and_exits_with_130(
    suite: Path, tmp_path: Path, exitbench: Command, snippets: ModuleType
) -> None:
    for side in ("en", "fr"):
        (tmp_path / "data" / f"text.{side}").write_text("".join(f"line {number}\n" for number in range(5000)))
    process = CommandProcess(snippets, tmp_path, "run", str(suite), "--data-dir", "data")
    deadline = time.monotonic() + LONG_S
    while not any(is_decoding(attempt) for attempt in tmp_path.glob("runs/spool/*/*/*Z-*")):
        assert time.monotonic() < deadline and process.is_running()
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    done = process.end()
    assert done.returncode == 130
    assert "Interrupted. What is finished is kept" in done.stderr and "Traceback" not in done.stderr
    status = exitbench("sql", "SELECT status FROM failures", "--format", "json")
    assert json.loads(status.stdout) == [{"status": "interrupted"}]


def is_decoding(attempt: Path) -> bool:
    owner = owner_of(attempt)
    return owner is not None and owner.done > 0


def test_a_training_without_its_data_prints_its_error_alone(tmp_path: Path, snippets: ModuleType) -> None:
    done = CommandProcess(snippets, tmp_path, "train", "multi30k-free", "--data-dir", ".").end()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("exitbench: ") and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("table", "name    list    half  none\n------  ------  ----  ----\na\\x1bb  [1, 2]   0.5\n"),
        ("csv", 'name,list,half,none\na\x1bb,"[1, 2]",0.5,\n'),
        ("json", json.dumps([{"name": "a\x1bb", "list": [1, 2], "half": 0.5, "none": None}], indent=1) + "\n"),
    ],
)
def test_sql_prints_three_formats_and_escapes_control_characters_in_tables(
    form: str, expected: str, example_database: Path, exitbench: Command
) -> None:
    query = "SELECT 'a' || chr(27) || 'b' AS name, [1, 2] AS list, 0.5::DOUBLE AS half, NULL AS none"
    completed = exitbench("sql", "--database", str(example_database), "--format", form, "-", given=query)
    assert (completed.returncode, completed.stdout) == (0, expected)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("methods", "static                  Every token exits after the same number of blocks"),
        ("tasks", "squad "),
        ("models", "multi30k-weighted "),
        ("suites", "builtin                The built-in suite"),
        ("figures", "frontier "),
    ],
)
def test_list_prints_existing_names(what: str, expected: str, exitbench: Command) -> None:
    completed = exitbench("list", what)
    assert completed.returncode == 0, completed.stderr
    assert any(line.startswith(expected) for line in completed.stdout.splitlines())


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("status", "builtin"),
        ("db", "check"),
        ("db", "rebuild"),
        ("db", "rebuild", "--database", "other.duckdb"),
        ("gc",),
        ("rescore",),
        ("compare", "a", "b"),
        ("env", "show", "a"),
        ("verify", "a"),
        ("export", "folder"),
        ("report",),
        ("sql", "SELECT 1"),
    ],
    ids=" ".join,
)
def test_missing_runs_folder_is_refused(command: tuple[str, ...], exitbench: Command, tmp_path: Path) -> None:
    assert_refused(exitbench(*command, "--runs", "typo"), "--runs typo: there is no such folder.")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("sql", "SELECT 1"), ("export", "folder"), ("report", "--paper", "heads")])
def test_database_option_needs_no_runs_folder(
    command: tuple[str, ...], exitbench: Command, tmp_path_factory: pytest.TempPathFactory
) -> None:
    database = tmp_path_factory.mktemp("elsewhere") / "empty.duckdb"
    open_database(database, read_only=False).close()
    completed = exitbench(*command, "--database", str(database))
    assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--organization", "X"), "--organization: only goes with --format every-eval-ever."),
        (("--relationship", "other"), "--relationship: only goes with --format every-eval-ever."),
        (("--format", "every-eval-ever", "--with-texts"), "--with-texts: only goes with --format parquet."),
    ],
)
def test_option_of_another_export_format_is_refused(
    arguments: tuple[str, ...], says: str, exitbench: Command, example_database: Path, tmp_path: Path
) -> None:
    assert_refused(exitbench("export", "folder", "--database", str(example_database), *arguments), says)
    assert list(tmp_path.iterdir()) == []


def test_report_without_a_database_is_refused(exitbench: Command) -> None:
    Path("runs").mkdir()
    assert_refused(exitbench("report"), "There is no database at runs/exitbench.duckdb")
