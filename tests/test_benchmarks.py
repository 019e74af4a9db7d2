"""`nox -s perf` stores what it measured, fails if it measured nothing, and distinguishes slower from faster."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exitbench.errors import UserError
from exitbench.harness.planning.plan import make_plan
from exitbench.harness.running.environment import environment, hardware
from exitbench.results.database.connection import open_database

PERF = Path(__file__).parent / "benchmarks"
BENCHMARK = """
def test_of_numbers(benchmark):
    benchmark.extra_info["rows"] = 7
    benchmark.pedantic(sum, (range(10),), rounds=3)

def test_of_an_error(benchmark):
    benchmark.pedantic(sum, (range(10),), rounds=3)
    assert False
"""


@pytest.fixture(autouse=True)
def not_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pytest-benchmark measure, which it does not do in a process that a worker of pytest-xdist started."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


@pytest.fixture
def benchmarks(tmp_path: Path) -> Path:
    """Return a folder with two benchmarks and the files shared by all benchmarks; one fails after it was timed."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    for name in ("conftest.py", "goals.py", "ratios.py"):
        shutil.copy(PERF / name, folder)
    (folder / "test_sums.py").write_text(BENCHMARK)
    return folder


def perf(folder: Path, *arguments: str) -> int:
    command = [sys.executable, PERF / "run.py", "--runs", folder.parent / "runs", folder, "-p", "no:cacheprovider"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *arguments], capture_output=True, env=variables).returncode


# ------------------------------------------------------------------------------------------ what is kept


def test_benchmark_results_are_stored_with_commit_and_machine(benchmarks: Path, tmp_path: Path) -> None:
    assert perf(benchmarks) == pytest.ExitCode.TESTS_FAILED
    with open_database(tmp_path / "runs" / "exitbench.duckdb") as database:
        (row,) = database.query("FROM perf").to_pylist()
    here, machine = environment(), hardware(1)
    assert (row["benchmark"], row["rounds"], row["extra"]) == ("sums/of_numbers", 3, '{"rows": 7}')
    assert row["median_s"] == sorted(row["round_s"])[1] > 0
    assert (row["commit"], row["dirty"]) == (here["git_commit"], here["git_dirty"])
    assert {name: row[name] for name in ("cpu", "gpu", "threads")} == {k: machine[k] for k in ("cpu", "gpu", "threads")}
    assert json.loads(row["packages"])["torch"] == here["packages"]["torch"]
    (told,) = (json.loads(path.read_text()) for path in (tmp_path / "runs" / "spool" / "perf").iterdir())
    assert told["machine_info"].keys() == {"environment", "hardware"}, "and no name of the machine"
    assert told["commit_info"].keys() == {"id", "dirty"}


def test_perf_session_without_measurements_fails(benchmarks: Path, tmp_path: Path) -> None:
    assert perf(benchmarks, "--benchmark-skip") == pytest.ExitCode.NO_TESTS_COLLECTED
    assert not (tmp_path / "runs" / "exitbench.duckdb").exists()


# ------------------------------------------------------------------------------------------ against a commit


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the modules `against` and `checkouts`, which compare the work tree with a commit."""
    monkeypatch.syspath_prepend(PERF)
    import against
    import checkouts

    return SimpleNamespace(against=against, checkouts=checkouts)


SAME, SLOWER, FASTER = (1.0, 1.02, 0.98, 1.01), (1.1, 1.11, 1.09, 1.12), (0.5, 0.52, 0.49, 0.5)
NOISY = (1.6, 0.9, 1.5, 1.1)


def test_slowdown_must_exceed_process_variance_and_tolerance(tools: SimpleNamespace) -> None:
    def of(ratios: tuple[float, ...]) -> Any:
        return tools.against.Comparison("tests/benchmarks/test_x.py::test_y", (2.0,) * 4, tuple(2 * r for r in ratios))

    assert [of(ratios).verdict for ratios in (SAME, SLOWER, FASTER, NOISY)] == ["", "slower", "faster", ""]
    assert [of(ratios).is_worse(0.05) for ratios in (SAME, SLOWER, FASTER, NOISY)] == [False, True, False, False]
    assert not of(SLOWER).is_worse(0.15)
    # Logarithms of 1.1, 1.11, 1.09 and 1.12: mean 0.09980, standard deviation 0.01168; 3.182 standard errors.
    assert of(SLOWER).interval == pytest.approx((1.0846, 1.1049, 1.1257), abs=2e-4)
    lines = list(tools.against.table([of(FASTER), of(SLOWER)]))
    assert [line.split()[0] for line in lines] == ["benchmark", *["test_x.py::test_y"] * 2]
    assert [line.split()[-1] for line in lines[1:]] == ["slower", "faster"]


def test_only_benchmarks_present_in_all_processes_are_compared(tools: SimpleNamespace) -> None:
    before = [{"a": 1.0, "b": 1.0}, {"a": 2.0, "b": 1.0}]
    after = [{"a": 3.0, "b": 1.0, "c": 1.0}, {"a": 4.0, "c": 1.0}]
    assert list(tools.against.paired(before, after)) == [tools.against.Comparison("a", (1.0, 2.0), (3.0, 4.0))]


CLOCK = """
now = 0.0
def clock(): return now
def work():
    global now
    now += {seconds}
"""


@pytest.fixture
def repository(tools: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository whose work tree differs from its commit.

    One function takes a second in the commit and two in the work tree, which also has further benchmarks.
    """
    root = tmp_path / "repository"
    files = {
        "harness/_root/__init__.py": "",
        "tools/__init__.py": CLOCK.format(seconds=1),
        "tests/benchmarks/conftest.py": "def pytest_addoption(parser): parser.addoption('--only-file')\n",
    }
    changes = {
        "results/__init__.py": "",  # which is also installed here
        "tools/__init__.py": CLOCK.format(seconds=2) + "def newer(): pass\n",
        "tests/benchmarks/test_it.py": "import exitbench.tools as tools\n"
        "def test_work(benchmark): benchmark.pedantic(tools.work)\n"
        "def test_newer(benchmark): benchmark.pedantic(tools.newer)\n"
        "def test_results(benchmark):\n    import exitbench.results\n    benchmark.pedantic(int)\n",
    }
    write(root, files)
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    for command in (("init",), ("add", "."), (*identity, "commit", "-m", "first")):
        subprocess.run(["git", "-C", root, *command], check=True, capture_output=True)
    write(root, changes)
    monkeypatch.setattr(tools.checkouts, "ROOT", root)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # quicker
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_benchmark.plugin")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return root


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_against_compares_the_work_tree_with_a_commit_using_its_benchmarks(
    tools: SimpleNamespace, repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tools.against.compare("HEAD", ["--benchmark-timer=exitbench.tools.clock"], 1, 0.05) == 1
    said = capsys.readouterr().out
    (row,) = (line for line in said.splitlines() if line.startswith("test_it.py::"))
    assert row.split() == ["test_it.py::test_work", "1", "s", "2", "s", "2.000", "2.000", "to", "2.000", "slower"]
    missing = {line.split(" - ")[0] for line in said.splitlines() if line.startswith("cannot run")}
    assert missing == {f"cannot run, REV: tests/benchmarks/test_it.py::test_{name}" for name in ("newer", "results")}
    assert "1 of 1 are slower by more than 5%" in said
    assert not list((tmp_path / "temporary").iterdir()), "copies are temporary"


def test_unknown_commit_and_missing_repository_are_refused(tools: SimpleNamespace, repository: Path) -> None:
    with pytest.raises(UserError, match="--against HEAD~7: there is no such commit"):
        tools.against.compare("HEAD~7", [], 1, 0.05)
    shutil.rmtree(repository / ".git")
    with pytest.raises(UserError, match="needs the repository's history"):
        tools.against.compare("HEAD", [], 1, 0.05)


# ------------------------------------------------------------------------------------------ on a GPU


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the script for machines with a GPU as a module."""
    monkeypatch.syspath_prepend(PERF)
    import gpu

    return gpu


def run_on_cpu(gpu: Any, *steps: str, out: Path) -> tuple[int, dict[str, Any]]:
    only = [argument for step in steps for argument in ("--only", step)]
    code = gpu.main(["--device", "cpu", "--quick", *only, "--out", str(out)])
    return code, {told["name"]: told for told in json.loads(out.read_text())["results"]}


def test_gpu_script_runs_its_checks_and_timings_on_a_cpu(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("test_tracing.make_plan", partial(make_plan, limit=10))
    steps = ("correctness", "realised_fraction", "gates", "tracing", "llama")
    code, told = run_on_cpu(gpu, *steps, out=tmp_path / "told.json")
    assert code == 0
    expected = ["correct", *(f"realised at exit {at}" for at in range(1, 6))]
    gates = ("softmax", "softmax, pruned", "softmax, every 4th", "saturation", "entropy", "softmax, certified")
    expected += [f"gate {name}" for name in gates] + ["methods ranked by time as by bytes", "tracing over decoding"]
    expected += ["llama-tiny-random", "llama-tiny-random, realised at exit 3"]
    assert list(told) == expected
    assert told["correct"]["measured"] == 1
    assert all(line.get("measured", 1) > 0 for line in told.values())  # of methods, none may differ beyond doubt


def test_wrong_gpu_answers_fail_and_are_not_timed(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu_checks

    right = gpu_checks._answers_of

    def wrong(case: Any) -> Iterator[list[Any]]:
        for answers in right(case):
            answers[0].token_ids[1] += 1
            yield answers

    few = ("full", "softmax", "softmax, certified")
    monkeypatch.setattr(gpu_checks, "METHODS", {name: gpu_checks.METHODS[name] for name in few})
    monkeypatch.setattr(gpu_checks, "_answers_of", wrong)
    code, told = run_on_cpu(gpu, "correctness", "llama", out=tmp_path / "told.json")
    assert code == 1
    assert told["correct"]["measured"] < 1
    assert re.search(r"wrong first: .+, answer 0, token 2, margin ", told["correct"]["note"])
    assert told["llama"] == {"name": "llama", "note": "left out: answers differ from those of the CPU"}
    monkeypatch.setattr(gpu_checks, "NEAR_TIE", math.inf)
    code, told = run_on_cpu(gpu, "correctness", out=tmp_path / "told.json")
    assert (code, told["correct"]["measured"]) == (0, 1)
    assert " 0 part at near-ties" not in told["correct"]["note"]


def test_failing_gpu_step_is_reported_and_other_steps_continue(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(setting: Any) -> Any:
        yield "before", {"measured": 1.0, "unit": "x", "note": ""}
        raise MemoryError("none left")

    def goes_on(setting: Any) -> Any:
        yield "after", {"measured": 1.0, "unit": "x", "note": ""}

    printed: list[str] = []
    monkeypatch.setattr(gpu, "STEPS", {breaks: 0.0, goes_on: 0.0})
    monkeypatch.setattr("builtins.print", lambda *text, **_: printed.extend(text))
    assert gpu.main(["--device", "cpu"]) == 1
    table = printed[-1].splitlines()
    unchecked, broken = "correctness: left out: what is timed here was not checked", "breaks: MemoryError: none left"
    assert [line.split("  ")[0] for line in table[2:]] == ["before", "after", unchecked, broken]


@pytest.fixture
def document(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module that writes the tables of times."""
    monkeypatch.syspath_prepend(PERF)
    import document

    return document


def test_performance_table_has_one_column_per_thread_count(document: Any) -> None:
    told = {"measured": 2.25, "unit": "x transformers", "note": "of 3 rounds", "at_least": 2.5}
    by_name = {"full_depth/full_depth[a-random-16]": {1: told, 2: {**told, "measured": 2.75}}}
    by_name |= {"full_depth/full_depth[a-random-4]": {2: {"measured": 0.5, "unit": "%", "note": "", "at_most": 0.6}}}
    assert document.table(by_name | {"gates/gate[b]": {1: told}}, "full_depth").splitlines() == [
        "|  | 1 thread | 2 threads | goal | beside it |",
        "| --- | ---: | ---: | --- | --- |",
        "| full_depth[a-4] |  | 50.0% | ≤ 60.0% |  |",
        "| full_depth[a-16] | **2.25 x transformers** | 2.75 x transformers | ≥ 2.50 | of 3 rounds |",
    ]


def test_performance_table_is_followed_by_machine_date_and_commit(document: Any) -> None:
    told = {"measured": 1.0, "unit": "%", "note": "", "on": "A processor, 2 cores, AVX2; 2026-01-02; commit abc"}
    newer = {**told, "on": "Another, 4 cores, AMX; 2026-01-03; commit def and changes"}
    made = document.table({"gates/gate[a]": {1: told, 2: newer}, "gates/gate[b]": {1: told}}, "gates")
    below = made.partition("| gate[b] |")[2].splitlines()[1:]
    assert below == ["", f"{told['on']}.", "", f"{newer['on']}."]


def test_performance_table_without_new_measurements_is_kept(document: Any) -> None:
    page = "<!-- measured: {} -->\n|  | 1 thread |\n| --- | ---: |\n| gate[b] | of before |\n<!-- end -->\n"
    told = {"gates/gate[b]": {1: {"measured": 0.5, "unit": "%", "note": ""}}}
    made = document.rewritten(page.format("gates") + page.format("bf16"), told)
    assert "| gate[b] | 50.0% |" in made and made.endswith(page.format("bf16")) and made.count("of before") == 1
    assert "| gate[b] | 50.0% |" in document.rewritten("<!-- measured: gates -->\n<!-- end -->\n", told)


def test_rows_without_new_measurements_are_kept_below_the_real_model(document: Any) -> None:
    told = {"measured": 0.5, "unit": "%", "note": "", "on": "A processor; 2026-01-02; commit abc"}
    first = document.table({"gates/gate[a]": {1: told}, "gates/gate[b]": {2: told}}, "gates")
    newer = {**told, "measured": 0.25, "on": "Another; 2026-01-03; commit def"}
    made = document.table({"gates/gate[smollm2-x]": {1: newer}, "gates/gate[smollm2-y]": {1: newer}}, "gates", first)
    assert made.splitlines() == [
        "|  | 1 thread | 2 threads | goal | beside it |",
        "| --- | ---: | ---: | --- | --- |",
        "| gate[smollm2-x] | 25.0% |  |  |  |",
        "| gate[smollm2-y] | 25.0% |  |  |  |",
        "| gate[a] | 50.0% |  |  |  |",
        "| gate[b] |  | 50.0% |  |  |",
        "",
        "smollm2: Another; 2026-01-03; commit def.",
        "",
        "A processor; 2026-01-02; commit abc.",
    ]
    assert document.table({"gates/gate[a]": {1: newer}, "gates/gate[b]": {2: newer}}, "gates", first).count("abc") == 0
    assert document.table({"gates/gate[a]": {1: told}}, "gates", first).count("abc") == 1
    again = {**newer, "on": "A third; 2026-01-04; commit fed"}
    made = document.table({f"gates/gate[smollm2-{name}]": {1: again} for name in "xy"}, "gates", made)
    assert [line for line in made.splitlines() if "commit" in line] == [f"smollm2: {again['on']}.", f"{told['on']}."]


# ------------------------------------------------------------------------------------------ the document


def test_every_measured_marker_names_a_benchmark_file(document: Any) -> None:
    text = document.DOCUMENT.read_text(encoding="utf-8")
    tables = re.findall(r"<!-- measured: (\w+) -->", text)
    assert tables == [file for _, file, *_ in document.TABLE.findall(text)]
    assert tables and [table for table in tables if not (PERF / f"test_{table}.py").exists()] == []
