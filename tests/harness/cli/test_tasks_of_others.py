"""Tasks of TOML files and plug-ins from the command line: listed and shown; and lm-eval's own command line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exitbench import plugins
from exitbench.harness.cli.main import main, parse_command_line
from exitbench.methods import registry as methods
from exitbench.tasks import registry

TOML = """\
schema = 1
name = "echo"
prompt = "translate English to French: {text}"
causal_prompt = "{text} ="
target = "answer"
metrics = ["f1", "chrf"]
max_new_tokens = 5
[fields]
text = "text"
answer = "answer"
"""
PLUGIN = '''
import exitbench
from exitbench.tasks.squad import Squad

@exitbench.register_task
class Backwards(Squad):
    """Questions from their end."""
    name = "backwards"
    metric_version = "1"
    def prompt(self, doc):
        return " ".join(reversed(super().prompt(doc).split()))
'''
SUITE = """
schema = 1
name = "others"
seed = 1
[defaults]
kinds = ["quality"]
[models.m]
path = "{model}"
random_weights = true
[tasks.mine]
task = "echo.toml"
files = {{ data = "echo.csv" }}
[tasks.picked]
task = "pick.toml"
files = {{ data = "pick.csv" }}
[tasks.theirs]
task = "backwards"
source = "local"
files = {{ data = "squad.json" }}
[[sweep]]
method = "static"
grid = {{ exit_layer = [2] }}
"""
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, worded_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder with a suite for a TOML task and a plug-in's task, and with their files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))
    (tmp_path / "echo.toml").write_text(TOML)
    (tmp_path / "echo.csv").write_text("text,answer\nthe key is lost .,la clef\nBen sees \x1b[31mJulia .,Julia\n")
    pick = 'schema = 1\nname = "pick"\nprompt = "{text} ="\nchoices = ["{a}", "{b}"]\ntarget = "right"\n'
    columns = "".join(f'{name} = "{name}"\n' for name in ("text", "a", "b", "right"))
    (tmp_path / "pick.toml").write_text(f'{pick}metrics = ["acc"]\n[fields]\n{columns}')
    (tmp_path / "pick.csv").write_text("text,a,b,right\nthe key,la clef,le train,A\nBen,Julia,Ben,B\n")
    (tmp_path / "plug").mkdir()
    (tmp_path / "plug" / "backwards.py").write_text(PLUGIN)
    (tmp_path / "plug" / "said.toml").write_text(TOML.replace('"echo"', '"said"'))
    qas = [{"id": "1", "question": "where is Ben ?", "answers": [{"text": "Paris", "answer_start": 0}]}]
    paragraph = {"context": "Ben visits Paris .", "qas": qas}
    squad = {"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]}
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    (tmp_path / "others.toml").write_text(SUITE.format(model=worded_model))
    yield tmp_path
    os.environ.pop(plugins._VARIABLE, None)
    for name in [name for name in sys.modules if name.startswith(plugins.PACKAGE)]:
        del sys.modules[name]
    for cached in (registry._discover, methods._discover, plugins._load):
        cached.cache_clear()


@pytest.fixture
def exitbench(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str) -> tuple[int, str, str]:
        registry._discover.cache_clear()
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_plugin_task_is_unknown_without_the_plugins_option(folder: Path, exitbench: Command) -> None:
    code, _, err = exitbench("plan", "others.toml", "--data-dir", ".")
    assert code == 2 and "unknown task 'backwards'" in err


def test_listed_tasks_name_their_plugin_source(folder: Path, exitbench: Command) -> None:
    code, stdout, _ = exitbench("list", "tasks", "--plugins", "plug")
    lines = {line.split()[0]: line for line in stdout.splitlines()}
    assert code == 0 and {"squad", "backwards", "said", "lm-eval:NAME"} <= set(lines)
    assert lines["backwards"].endswith("From exitbench_plugins.backwards.")
    assert lines["said"].endswith("From a TOML file among the plug-ins.")
    assert "From" not in lines["squad"]


@pytest.mark.parametrize(
    ("pattern", "listed"),
    [("hellasw*", "lm-eval:hellaswag"), ("sq*", "squad"), ("lm-eval:mmlu", "lm-eval:mmlu")],
)
def test_list_tasks_accepts_a_pattern(exitbench: Command, pattern: str, listed: str) -> None:
    code, stdout, _ = exitbench("list", "tasks", pattern)
    assert code == 0 and stdout.startswith(listed)


def test_list_pattern_without_a_match_or_not_supported_is_refused(exitbench: Command) -> None:
    assert "no task is named 'qqqq*'" in exitbench("list", "tasks", "qqqq*")[2]
    assert "only methods and tasks are listed by a pattern" in exitbench("list", "suites", "b*")[2]


def test_show_prompts_prints_the_prompt_of_each_model_kind(folder: Path, exitbench: Command) -> None:
    settings = ("--set", 'files = { data = "echo.csv" }', "--data-dir", ".")
    code, stdout, stderr = exitbench("show-prompts", "echo.toml", "-n", "2", *settings)
    assert code == 0, stderr
    assert stdout.splitlines()[:3] == [
        "echo: toml:echo, 2 documents of echo.csv",
        "metrics: f1, chrf",
        "answers: up to 5 tokens",
    ]
    first = stdout.split("\n\n")[1].splitlines()
    assert first[1:] == [
        "  an encoder-decoder reads:",
        "    translate English to French: the key is lost .",
        "  a decoder-only model reads:",
        "    the key is lost . =",
        "  target:",
        "    la clef",
    ]
    assert "\x1b" not in stdout and r"\x1b[31mJulia" in stdout
    assert exitbench("show-prompts", "echo.toml", "-n", "1", *settings)[1].count("target") == 1


def test_show_prompts_uses_the_task_settings_of_a_suite(folder: Path, exitbench: Command) -> None:
    code, stdout, stderr = exitbench(
        "show-prompts", "mine", "--suite", "others.toml", "--data-dir", ".", "--plugins", "plug", "-n", "1"
    )
    assert code == 0 and stdout.startswith("mine: toml:echo, 2 documents"), stderr
    assert (
        "Allowed: mine, picked, theirs"
        in exitbench("show-prompts", "x", "--suite", "others.toml", "--data-dir", ".", "--plugins", "plug")[2]
    )


def test_show_prompts_prints_the_requests_of_an_lm_eval_task(folder: Path, exitbench: Command) -> None:
    (folder / "yaml").mkdir()
    (folder / "yaml" / "pick.yaml").write_text(
        "task: pick\ndataset_path: json\ntest_split: test\ndataset_kwargs: {data_files: {test: pick.jsonl}}\n"
        "output_type: multiple_choice\ndoc_to_text: '{{q}} ='\ndoc_to_choice: [red, blue]\ndoc_to_target: '{{a}}'\n"
        "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n"
    )
    (folder / "pick.jsonl").write_text('{"q": "sky", "a": 1}\n')
    code, stdout, stderr = exitbench("show-prompts", "lm-eval:pick", "--set", 'include="yaml"', "--data-dir", ".")
    assert code == 0, stderr
    assert "log-likelihoods are computed" in stdout
    assert [line.strip() for line in stdout.split("\n\n")[1].splitlines()[1:]] == [
        *("the model reads:", "sky =", "choice 1:", "red", "choice 2 (right):", "blue")
    ]


def test_show_prompts_prints_the_labels_of_a_classification_task(exitbench: Command) -> None:
    code, stdout, stderr = exitbench("show-prompts", "sst2", "-n", "1")
    assert code == 0, stderr
    assert stdout.splitlines()[1:3] == ["metrics: acc", "labels: negative, positive"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("squat",), "unknown task 'squat'. Did you mean 'squad'?"),
        (("none.toml",), "none.toml: cannot be read"),
        (("squad", "--set", "level"), "--set level:"),
        (("squad", "--set", "levl=1"), "unknown key. Did you mean 'level'?"),
        (("squad", "--set", "level=1", "--suite", "builtin"), "does not go with --suite"),
    ],
)
def test_show_prompts_refuses_invalid_arguments(
    folder: Path, exitbench: Command, arguments: tuple[str, ...], message: str
) -> None:
    code, _, err = exitbench("show-prompts", *arguments)
    assert code == 2 and message in err


# ----------------------------------------------------------------------------------------------- lm-eval's command line


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep lm-eval from setting up logging, which would stay on the standard error of the first test that runs it."""
    monkeypatch.setattr("lm_eval.__main__.setup_logging", lambda: None)


def test_lm_eval_command_passes_all_arguments_through() -> None:
    given = ["run", "--model", "exitbench", "--tasks", "x", "-h"]
    assert parse_command_line(["lm-eval", *given]).arguments == given
    assert parse_command_line(["lm-eval", "--model", "exitbench"]).arguments == ["--model", "exitbench"]
    with pytest.raises(SystemExit) as end:
        parse_command_line(["lm-eval", "--help"])
    assert end.value.code == 0


def test_lm_eval_command_evaluates_and_writes_results(
    folder: Path, worded_model: Path, exitbench: Command, monkeypatch: pytest.MonkeyPatch, quiet: None
) -> None:
    import lm_eval.tasks

    class Only(lm_eval.tasks.TaskManager):  # type: ignore[misc]
        """Task manager without lm-eval's fourteen thousand task files."""

        def __init__(self, **given: object) -> None:
            super().__init__(**{**given, "include_defaults": False})

    monkeypatch.setattr(lm_eval.tasks, "TaskManager", Only)
    (folder / "yaml").mkdir()
    (folder / "yaml" / "say.yaml").write_text(
        "task: say\ndataset_path: json\ntest_split: test\ndataset_kwargs: {data_files: {test: say.jsonl}}\n"
        "output_type: generate_until\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{a}}'\n"
        "generation_kwargs: {until: ['.'], max_gen_toks: 4, do_sample: false}\n"
        "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n"
    )
    (folder / "say.jsonl").write_text('{"q": "the key is lost", "a": "la clef"}\n')
    code, stdout, stderr = exitbench(
        *("lm-eval", "run", "--model", "exitbench", "--tasks", "say", "--include_path", "yaml", "--output_path", "out"),
        *("--model_args", f"pretrained={worded_model},method=static,exit_layer=2", "--device", "cpu"),
    )
    assert code == 0 and "exact_match" in stdout, stderr
    (results,) = (folder / "out").rglob("results_*.json")
    record = json.loads(results.read_text())["config"]
    assert record["exitbench"]["mean_exit_layer"] == 2 and record["model"] == "exitbench"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model_args", "pretrained=.,methd=x"), "--model exitbench: unknown argument 'methd'"),
        (("--model_args", "method=full"), "--model exitbench: pretrained is missing"),
    ],
)
def test_invalid_lm_eval_arguments_are_refused_without_a_traceback(
    exitbench: Command, monkeypatch: pytest.MonkeyPatch, quiet: None, arguments: tuple[str, ...], message: str
) -> None:
    import lm_eval.config.evaluate_config as config

    monkeypatch.setattr(config.EvaluatorConfig, "process_tasks", lambda self, metadata=None: object())
    code, _, err = exitbench("lm-eval", "run", "--model", "exitbench", "--tasks", "x", *arguments)
    assert code == 2 and message in err and "Traceback" not in err
