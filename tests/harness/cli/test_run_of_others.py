"""One suite with third-party tasks, through a worker process: lm-eval, TOML and plug-ins; then rescore and compare."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from exitbench.harness.cli.main import main
from exitbench.results.database.connection import open_database
from exitbench.tasks import registry
from exitbench.tasks.lm_eval import configs, task
from exitbench.tasks.lm_eval.configs import leaf_configs

LOCAL = {"dataset_path": "json", "test_split": "test"}
MEAN = {"aggregation": "mean", "higher_is_better": True}
TASKS: dict[str, dict[str, Any]] = {
    **{
        name: {
            **LOCAL,
            "dataset_kwargs": {"data_files": {"test": f"{name}.jsonl"}},
            "output_type": "multiple_choice",
            "doc_to_text": "{{q}} =",
            "doc_to_choice": ["la clef", "le train bleu"],
            "doc_to_target": "{{a}}",
            "metric_list": [{"metric": "acc", **MEAN}],
        }
        for name in ("red", "blue")
    },
    "vote": {
        **LOCAL,
        "dataset_kwargs": {"data_files": {"test": "vote.jsonl"}},
        "output_type": "generate_until",
        "doc_to_text": "{{q}}",
        "doc_to_target": "{{a}}",
        "repeats": 3,
        "generation_kwargs": {"until": ["."], "max_gen_toks": 5, "do_sample": False},
        "metric_list": [{"metric": "exact_match", **MEAN}, {"metric": "bleu"}],
        "filter_list": [
            {
                "name": "three",
                "filter": [
                    {"function": "take_first_k", "k": 3},
                    {"function": "majority_vote"},
                    {"function": "take_first"},
                ],
            },
            {"name": "low", "filter": [{"function": "lowercase"}, {"function": "take_first"}]},
        ],
    },
}
GROUP = {"group": "both", "task": ["red", "blue"], "aggregate_metric_list": [{"metric": "acc"}]}
RECORDS = {
    "red": [{"q": "the key", "a": 0}, {"q": "the train", "a": 1}, {"q": "Ben", "a": 0}],
    "blue": [{"q": "Julia sees the key", "a": 0}],
    "vote": [{"q": "the key is lost", "a": "la clef"}, {"q": "Ben sees Julia", "a": "Ben"}],
    "mbpp": [  # what is written is empty, so that the tests alone decide
        {"task_id": 11, "text": "Add.", "code": "x = 2", "test_list": ["assert 1 + 1 == 2", "pass", "pass"]},
        {"task_id": 12, "text": "Subtract.", "code": "x = 0", "test_list": ["assert 1 - 1 == 2", "pass", "pass"]},
        {"task_id": 600, "text": "Not a test.", "code": "", "test_list": ["pass", "pass", "pass"]},
    ],
}
PLUGIN = '''
import exitbench
from exitbench.tasks.squad import Squad
from exitbench_plugins.words import turned

@exitbench.register_task
class Backwards(Squad):
    """Questions from their end."""
    name = "backwards"
    metric_version = "1"
    def prompt(self, doc):
        return turned(super().prompt(doc))
'''
METHOD = '''
from dataclasses import dataclass
import exitbench
from exitbench.methods.static import Static

@exitbench.register_method
@dataclass(frozen=True)
class Halfway(Static):
    """Static under another name."""
    name = "halfway"
'''
WORDS = 'def turned(text):\n    return " ".join(reversed(text.split()))\n'
INSTALLED = '''
from exitbench.tasks.squad import Squad

class Shouted(Squad):
    """Questions in capitals."""
    name = "shouted"
    metric_version = "1"
    def prompt(self, doc):
        return super().prompt(doc).upper()
'''
ECHO = """\
schema = 1
name = "echo"
prompt = "translate English to French: {text}"
target = "answer"
metrics = ["f1", "chrf"]
max_new_tokens = 5
fields = { text = "text", answer = "answer" }
"""
PICK = """\
schema = 1
name = "pick"
prompt = "{text} ="
choices = ["{a}", "{b}"]
target = "right"
metrics = ["acc"]
fields = { text = "text", a = "a", b = "b", right = "right" }
"""
PICKED = "text,a,b,right\nthe key,la clef,le train,A\nBen,Julia,Ben,B\n"
SUITE = """
schema = 1
name = "asked"
seed = 1
[defaults]
kinds = ["quality"]
[models.m]
path = "{model}"
random_weights = true
[tasks.both]
task = "lm-eval:both"
include = "yaml"
[tasks.vote]
task = "lm-eval:vote"
include = "yaml"
[tasks.mbpp]
task = "lm-eval:mbpp"
source = "local"
files = {{ test = "mbpp.jsonl" }}
num_fewshot = 1
gen_kwargs = {{ max_gen_toks = 3, until = {every_letter} }}
[tasks.backwards]
source = "local"
files = {{ data = "squad.json" }}
[tasks.shouted]
source = "local"
files = {{ data = "squad.json" }}
[tasks.mine]
task = "echo.toml"
files = {{ data = "echo.csv" }}
[tasks.picked]
task = "pick.toml"
files = {{ data = "pick.csv" }}
[[sweep]]
method = "halfway"
grid = {{ exit_layer = [2] }}
"""
UNSAFE = "--confirm-run-unsafe-code"


def _write(folder: Path, model: Path) -> None:
    (folder / "yaml").mkdir(parents=True)
    for name, config in TASKS.items():
        (folder / "yaml" / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **config}))
    (folder / "yaml" / "both.yaml").write_text(yaml.safe_dump(GROUP))
    for name, records in RECORDS.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    qas = [{"id": "1", "question": "where is Ben ?", "answers": [{"text": "Paris", "answer_start": 0}]}]
    squad = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": "Ben visits Paris .", "qas": qas}]}]}
    (folder / "squad.json").write_text(json.dumps(squad))
    (folder / "plug").mkdir()
    (folder / "plug" / "backwards.py").write_text(PLUGIN)
    (folder / "plug" / "halfway.py").write_text(METHOD)
    for name, declared, lines in (("echo", ECHO, "text,answer\nthe key is lost .,la clef\n"), ("pick", PICK, PICKED)):
        (folder / f"{name}.toml").write_text(declared)
        (folder / f"{name}.csv").write_text(lines)
    (folder / "plug" / "words.py").write_text(WORDS)
    told = folder / "site" / "shouting-1.2.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.2\n")
    (told / "entry_points.txt").write_text("[exitbench.tasks]\nshouted = shouting:Shouted\n")
    (folder / "site" / "shouting.py").write_text(INSTALLED)
    letters = [chr(code) for code in range(33, 127)]
    (folder / "asked.toml").write_text(SUITE.format(model=model, every_letter=json.dumps(letters)))


ARGUMENTS = ("asked.toml", "--plugins", "plug", "--data-dir", ".", "--runs", "runs")


@pytest.fixture(scope="session")
def finished(worded_model: Path, snippets: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder after the suite has run. Read only."""
    folder = tmp_path_factory.mktemp("asked") / "here"
    _write(folder, worded_model)
    command = ("run", *ARGUMENTS, "--no-report", "--threads", "1", UNSAFE)
    code, _, error = snippets.run_installed(folder, folder / "site", *command)
    assert code == 0, error
    assert "Plug-ins of plug: backwards.py, halfway.py, words.py. Their code runs with your rights." in error
    return folder


@pytest.fixture
def runs(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the finished runs, in a copy of their folder that is the working folder."""
    copy = Path(shutil.copytree(finished, tmp_path / "copy"))
    monkeypatch.chdir(copy)
    return copy / "runs"


def cells(runs: Path) -> dict[str, Path]:
    """Return the folder of each attempt, by the label of its task and its method."""
    results = {}
    for told in runs.glob("spool/??/*/*/cell.json"):
        cell = json.loads(told.read_text())
        results[f"{cell['task']['label']}/{cell['method']['name']}"] = told.parent
    return results


def metrics(attempt: Path) -> dict[str, float]:
    return {row["metric"]: row["value"] for row in pq.read_table(attempt / "metrics.parquet").to_pylist()}


def ask(runs: Path, sql: str) -> list[tuple[Any, ...]]:
    with open_database(runs / "exitbench.duckdb") as database:
        return [tuple(row.values()) for row in database.query(sql).to_pylist()]


def test_every_cell_of_the_third_party_suite_succeeds(finished: Path) -> None:
    result = cells(finished / "runs")
    assert sorted(result) == sorted(
        f"{label}/{method}"
        for label in ("both", "vote", "mbpp", "backwards", "shouted", "mine", "picked")
        for method in ("full", "halfway")
    )
    assert {json.loads((path / "status.json").read_text())["status"] for path in result.values()} == {"ok"}


def test_lm_eval_group_is_one_task_averaged_over_all_documents(finished: Path) -> None:
    attempt = cells(finished / "runs")["both/halfway"]
    rows = pq.read_table(attempt / "samples.parquet").to_pylist()
    assert len(rows) == len(RECORDS["red"]) + len(RECORDS["blue"])
    scores = [json.loads(row["scores"])["acc"] for row in rows]
    assert metrics(attempt)["acc"] == pytest.approx(sum(scores) / len(scores))
    assert {row["exit_layer"] for row in pq.read_table(attempt / "tokens.parquet").to_pylist()} == {2}


def test_repeated_request_is_decoded_once_and_scored_by_every_filter(finished: Path) -> None:
    attempt = cells(finished / "runs")["vote/full"]
    assert len(pq.read_table(attempt / "samples.parquet")) == len(RECORDS["vote"])
    assert {name for name in metrics(attempt) if "," in name} == {
        f"{metric},{kind}" for metric in ("exact_match", "bleu") for kind in ("three", "low")
    }


def test_worker_executes_model_written_code_if_confirmed(finished: Path) -> None:
    attempt = cells(finished / "runs")["mbpp/full"]
    rows = pq.read_table(attempt / "samples.parquet").to_pylist()
    assert [row["output_text"] for row in rows] == ["", ""]
    assert sorted(json.loads(row["scores"])["pass_at_1"] for row in rows) == [0, 100]
    assert metrics(attempt)["pass_at_1"] == 50


def test_run_that_executes_model_code_is_refused_without_confirmation(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, tail = Path("asked.toml").read_text().split("[tasks.both]")
    mbpp = tail[tail.index("[tasks.mbpp]") : tail.index("[tasks.backwards]")]
    Path("only.toml").write_text(f'{head}{mbpp}[[sweep]]\nmethod = "static"\n')
    assert main(["run", "only.toml", "--data-dir", ".", "--runs", "other"]) == 2
    assert "mbpp: scoring runs what the model wrote" in capsys.readouterr().err
    assert not Path("other").exists()


def test_verify_of_code_scored_run_requires_confirmation(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["verify", "*/mbpp/full", "--data-dir", ".", "--runs", str(runs)]
    assert main(asked) == 2
    assert "mbpp/full/quality: scoring runs what the model wrote" in capsys.readouterr().err
    assert not (runs / "repetitions").exists()
    assert main([*asked, UNSAFE]) == 0
    assert "equal" in capsys.readouterr().out.splitlines()


def test_tasks_of_every_source_are_in_the_database(finished: Path) -> None:
    sql = "SELECT DISTINCT task, task_label, metric FROM metric_values WHERE role = 'headline' ORDER BY task_label"
    assert ask(finished / "runs", sql) == [
        ("backwards", "backwards", "f1"),
        ("lm-eval:both", "both", "acc"),
        ("lm-eval:mbpp", "mbpp", "pass_at_1"),
        ("toml:echo", "mine", "f1"),
        ("toml:pick", "picked", "acc"),
        ("shouted", "shouted", "f1"),
        ("lm-eval:vote", "vote", "exact_match,three"),
    ]
    sql = "SELECT DISTINCT method, exit_layer FROM token_trace WHERE choice IS NOT NULL ORDER BY ALL"
    assert ask(finished / "runs", sql) == [("full", 4), ("halfway", 2)]


def test_plugins_are_logged_and_cells_store_their_version_and_digest(finished: Path) -> None:
    logs = "".join(path.read_text(errors="replace") for path in (finished / "runs" / "logs").iterdir())
    assert f"Plug-ins of {finished / 'plug'}: backwards.py, halfway.py, words.py" in logs
    result = cells(finished / "runs")
    shouted, backwards = (
        json.loads((result[f"{name}/halfway"] / "cell.json").read_text()) for name in ("shouted", "backwards")
    )
    assert re.fullmatch(r"1 shouting 1\.2 [0-9a-f]{64}", shouted["task"]["metric_version"])
    assert re.fullmatch(r"1 [0-9a-f]{64}", backwards["task"]["metric_version"])
    assert re.fullmatch(r"\S+ [0-9a-f]{64}", backwards["method"]["revision"])
    assert metrics(result["backwards/halfway"])["mean_exit_layer"] == 2


def test_cells_depend_on_the_content_of_yaml_and_plugins_not_on_their_path(
    finished: Path, worded_model: Path, snippets: ModuleType, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "somewhere" / "else"
    _write(elsewhere, worded_model)
    # What they say is what counts.
    path = elsewhere / "yaml" / "red.yaml"
    path.write_text(path.read_text().replace("{{q}} =", "{{q}} is"))
    path = elsewhere / "plug" / "words.py"
    path.write_text(path.read_text().replace('" "', '"  "'))
    # Another process, since one can trust only one folder of plug-ins.
    command = ("plan", *ARGUMENTS[:-1], str(finished / "runs"))
    code, told, error = snippets.run_installed(elsewhere, elsewhere / "site", *command)
    assert code == 0, error
    states = {line.split()[1]: line.split()[0] for line in told.splitlines() if "/quality" in line}
    stale = {label for label, state in states.items() if state != "done"}
    assert len(states) == 14 and {label.split("/")[1] for label in stale} == {"both", "backwards"}, told


def test_compare_uses_the_metrics_of_third_party_tasks(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = (("both", "acc"), ("vote", "bleu,three"), ("mbpp", "pass_at_1"), ("mine", "chrf"))
    for label, quantity in asked:
        code = main(["compare", f"m/{label}/full", f"m/{label}/halfway*", "--runs", "runs", "--format", "json"])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        rows = {row["quantity"]: row for row in json.loads(captured.out)}
        values = [metrics(cells(runs)[f"{label}/{method}"])[quantity] for method in ("full", "halfway")]
        assert [rows[quantity]["a"], rows[quantity]["b"]] == pytest.approx(values)


SCORES = "SELECT task_label, method, metric, value FROM metric_values WHERE is_current AND role IN ('headline', 'task')"


def test_third_party_metrics_can_be_rescored(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"m/{label}/*" for label in ("both", "vote", "mbpp", "picked")]
    before = ask(runs, f"{SCORES} ORDER BY ALL")
    monkeypatch.setattr(task, "lm_eval_version", lambda: "another version")
    registry._lm_eval_task.cache_clear()
    assert main(["rescore", *names, "--runs", "runs", "--data-dir", "."]) == 1
    captured = capsys.readouterr()
    assert captured.out == "6 runs rescored, 0 had the current metric version, 2 left.\n"
    assert UNSAFE in captured.err
    assert main(["rescore", *names, "--runs", "runs", "--data-dir", ".", UNSAFE]) == 0
    assert capsys.readouterr().out == "2 runs rescored, 6 had the current metric version, 0 left.\n"
    assert ask(runs, f"{SCORES} ORDER BY ALL") == before
    versions = "SELECT count(DISTINCT metric_version) FROM metric_values WHERE task_label IN ('vote', 'mbpp', 'both')"
    assert ask(runs, f"{versions} AND role = 'headline' GROUP BY task_label") == [(2,)] * 3
    registry._lm_eval_task.cache_clear()


def test_metric_added_to_the_yaml_is_scored_without_the_model(
    runs: Path, finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell stores the folder of the YAML file, so that rescoring can start in any folder."""
    path = finished / "yaml" / "vote.yaml"
    whole = path.read_text()
    path.write_text(whole.replace("metric_list:", "metric_list:\n- metric: chrf"))
    configs.catalogue.cache_clear()
    registry._lm_eval_task.cache_clear()
    leaf_configs.cache_clear()
    try:
        monkeypatch.chdir("plug")
        assert main(["rescore", "m/vote/*", "--runs", str(runs)]) == 2
        assert "was read from the files that its YAML names: name the folder" in capsys.readouterr().err
        assert main(["rescore", "m/vote/*", "--runs", str(runs), "--data-dir", ".."]) == 0
    finally:
        path.write_text(whole)
        for kept in (configs.catalogue, registry._lm_eval_task, leaf_configs):
            kept.cache_clear()
    scored = ask(runs, "SELECT DISTINCT metric FROM metric_values WHERE task_label = 'vote' AND metric LIKE 'chrf%'")
    assert sorted(scored) == [("chrf,low",), ("chrf,three",)]
