"""Mistakes in suites and arguments: exit code 2, no file written, and a short message with place and allowed values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from exitbench.harness.cli.main import main

SUITE = """\
schema = 1
name = "small"
seed = 7

[defaults]
batch_size = 2

[models.tiny]
recipe = "builtin-vanilla"

[tasks.squad]
limit = 4
max_new_tokens = 3

[[sweep]]
method = "static"
grid = { exit_layer = [1, 2] }
kinds = ["quality"]
"""

Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Return a function that runs a command in an empty folder, checks that it is refused, and returns its message."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        before = sorted(tmp_path.iterdir())
        try:
            code = main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsys.readouterr()
        assert (code, printed.out) == (2, ""), printed
        assert printed.err.startswith("exitbench: ") and "Traceback" not in printed.err
        assert len(printed.err.splitlines()) <= 12
        assert sorted(tmp_path.iterdir()) == before
        return printed.err

    return run


# ------------------------------------------------------------------------------------------ suites

MANY = "9" * 23
OF_SUITES = {
    # numbers
    "seed beyond 64 bits": (
        "seed = 7",
        f"seed = {MANY}",
        3,
        f"seed: is {MANY}; it must lie between -2^63 and 2^63 - 1",
    ),
    "seed of minus that": ("seed = 7", f"seed = -{MANY}", 3, "it must lie between -2^63 and 2^63 - 1"),
    "seed 2^63": ("seed = 7", f"seed = {1 << 63}", 3, "it must lie between -2^63 and 2^63 - 1"),
    "seed a fraction": ("seed = 7", "seed = 7.0", 3, "seed: is 7.0; it must be a whole number"),
    "seed a date": ("seed = 7", "seed = 2026-01-01", 3, "it must be a whole number"),
    "seed nan": ("seed = 7", "seed = nan", 3, "seed: is nan; it must be a whole number"),
    "schema missing": ("schema = 1\n", "", 1, "key 'schema' is missing; it must be a whole number"),
    "schema 0": ("schema = 1", "schema = 0", 1, "schema: is 0; this version reads schema 1"),
    "batch 0": ("batch_size = 2", "batch_size = 0", 6, "batch_size: is 0; it must be 1 or more, and at most 65536"),
    "batch huge": ("batch_size = 2", "batch_size = 65537", 6, "it must be 1 or more, and at most 65536"),
    "rows 0": ("batch_size = 2", "batch_rows = 0", 6, "batch_rows: is 0; it must be 1 or more, and at most 65536"),
    "rows of a task 0": ("limit = 4", "batch_rows = 0", 12, "[tasks.squad] batch_rows: is 0; it must be 1 or more"),
    "batch a list": ("batch_size = 2", "batch_size = [2]", 6, "is [2]; it must be a whole number"),
    "limit 0": ("limit = 4", "limit = 0", 12, "[tasks.squad] limit: is 0; it must be 1 or more"),
    "limit negative": ("limit = 4", "limit = -2", 12, "limit: is -2; it must be 1 or more"),
    "limit a fraction": ("limit = 4", "limit = 1.5", 12, "limit: is 1.5; it must be a whole number"),
    "limit huge": ("limit = 4", "limit = 1_000_000_001", 12, "and at most 1000000000"),
    "tokens 0": ("tokens = 3", "tokens = 0", 13, "max_new_tokens: is 0; it must be 1 or more, and at most 1000000"),
    "tokens 10^20": ("tokens = 3", f"tokens = {10**20}", 13, "it must lie between -2^63 and 2^63 - 1"),
    "tokens 10^7": ("tokens = 3", f"tokens = {10**7}", 13, "it must be 1 or more, and at most 1000000"),
    "task seed": ("limit = 4", f"seed = {MANY}", 12, "[tasks.squad] seed: is 9999"),
    "exit layer beyond 64 bits": ("[1, 2]", f"[{MANY}]", 17, "exit_layer: is 9999"),
    "exit layer true": ("[1, 2]", "[true]", 17, "static.exit_layer must be of type int, not True"),
    "warm-up": ("[defaults]", "[timing]\nwarm_up = -1\n[defaults]", 6, "warm_up: is -1; it must be 0 or more"),
    "half width inf": ("[defaults]", "[timing]\ntarget_half_width = inf\n[defaults]", 6, "it must be a finite number"),
    "no seconds": ("[defaults]", "[timing]\nseconds = 0\n[defaults]", 6, "seconds: is 0.0; it must be above 0"),
    "rounds": ("[defaults]", f"[timing]\nmax_rounds = {MANY}\n[defaults]", 6, "it must lie between -2^63"),
    # places
    "[default]": ("[defaults]", "[default]", 5, "default: unknown key. Did you mean 'defaults'?"),
    "[[sweeps]]": ("[[sweep]]", "[[sweeps]]", 15, "sweeps: unknown key. Did you mean 'sweep'?"),
    "[model.tiny]": ("[models.tiny]", "[model.tiny]", 8, "model: unknown key. Did you mean 'models'?"),
    "[[defaults]]": ("[defaults]", "[[defaults]]", 5, "defaults: is [{'batch_size': 2}]; it must be a table"),
    "[sweep]": ("[[sweep]]", "[sweep]", 15, "it must be a list"),
    "defaults a word": ('name = "small"', 'name = "small"\ndefaults = "x"\n[other]', None, "not valid TOML"),
    "key twice": ("seed = 7", "seed = 7\nseed = 8", None, "not valid TOML"),
    "no quotes": ('"static"', "static", None, "not valid TOML"),
    # words
    "device cuda:1": (
        "batch_size = 2",
        'device = "cuda:1"',
        6,
        "Allowed: auto, cpu, cuda; auto takes a GPU where there",
    ),
    "device gpu": ("batch_size = 2", 'device = "gpu"', 6, "unknown device 'gpu'. Allowed: auto, cpu, cuda"),
    "device 0": ("batch_size = 2", "device = 0", 6, "device: is 0; it must be a string"),
    "dtype": ("batch_size = 2", 'dtype = "fp16"', 6, "unknown number format 'fp16'"),
    "kinds empty": ('["quality"]', "[]", 18, "kinds: is empty. Allowed: calibration, fit, probe, quality, replay"),
    "kinds twice": ('["quality"]', '["quality", "quality"]', 18, "names something twice: quality, quality"),
    "kinds a word": ('["quality"]', '"quality"', 18, "is 'quality'; it must be a list"),
    "kinds of numbers": ('["quality"]', "[1]", 18, "is 1; it must be a string"),
    "default kinds empty": ("batch_size = 2", "kinds = []", 6, "[defaults] kinds: is empty"),
    "models empty": ('method = "static"', 'method = "static"\nmodels = []', 17, "models: is empty. Allowed: tiny"),
    "grid a list": ("{ exit_layer = [1, 2] }", "[1]", 17, "grid: is [1]; it must be a table"),
    "grid empty list": ("[1, 2]", "[]", 17, "is [] in 'grid'; it must be a list of values"),
    "no method": ('method = "static"\n', "", 15, "key 'method' is missing; it must be a string"),
    "recipe and path": ('"builtin-vanilla"', '"builtin-vanilla"\npath = "x"', 8, "needs exactly one of 'recipe'"),
    "path of nothing": ('recipe = "builtin-vanilla"', 'path = "nowhere"', 9, "nowhere is not a checkpoint's folder"),
    "task of another": ("[tasks.squad]", "[tasks.gsm8k]", 11, "unknown task 'gsm8k'. Allowed: "),
    "split": ("limit = 4", 'split = "tset"', 11, "has no split 'tset'. Did you mean 'test'?"),
    "no models": ('[models.tiny]\nrecipe = "builtin-vanilla"\n', "", 1, "no [models.NAME]: at least one is needed"),
}


@pytest.mark.parametrize(("before", "after", "line", "says"), OF_SUITES.values(), ids=OF_SUITES.keys())
def test_mistake_in_a_suite_is_reported_with_its_line(
    refused: Refused, tmp_path: Path, before: str, after: str, line: int | None, says: str
) -> None:
    assert SUITE.count(before) == 1
    (tmp_path / "s.toml").write_text(SUITE.replace(before, after))
    message = refused("plan", "s.toml")
    assert says in message
    assert message.startswith("exitbench: s.toml:" if line is None else f"exitbench: s.toml:{line}:"), message
    assert ": :" not in message


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "schema = 1\n"])
def test_empty_suite_message_names_the_missing_key(refused: Refused, tmp_path: Path, text: str) -> None:
    (tmp_path / "s.toml").write_text(text)
    message = refused("plan", "s.toml")
    assert message.startswith("exitbench: s.toml:1: ") and ": :" not in message
    assert "is missing" in message or "at least one is needed" in message


def test_device_cuda_without_a_gpu_can_be_planned_but_not_run(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "s.toml").write_text(SUITE.replace("batch_size = 2", 'device = "cuda"'))
    assert main(["plan", "s.toml"]) == 0  # jobs may run elsewhere
    capsys.readouterr()
    assert '"cuda", but torch sees no GPU here. Allowed: "cpu", or "auto"' in refused("run", "s.toml")


# ------------------------------------------------------------------------------------------ arguments

LONG = "a" * 5000
OF_ARGUMENTS = {
    "rnu": (["rnu"], "there is no command 'rnu'. Did you mean 'run'? Allowed: annotate, check, claims, compare"),
    "RUN": (["RUN"], "there is no command 'RUN'"),
    "option": (["--verbose"], "See `exitbench --help`"),
    "run nothing": (["run"], "the following arguments are required: SUITE. See `exitbench run --help`"),
    "run option": (["run", "builtin", "--lmit", "3"], "unrecognized arguments: --lmit 3"),
    "limit 0": (["plan", "builtin", "--limit", "0"], "--limit: '0' is not a whole number from 1 to 1000000000"),
    "limit -2": (["plan", "builtin", "--limit=-2"], "--limit: '-2' is not a whole number"),
    "limit 1.5": (["plan", "builtin", "--limit", "1.5"], "--limit: '1.5' is not a whole number"),
    "limit word": (["plan", "builtin", "--limit", "ten"], "--limit: 'ten' is not a whole number"),
    "limit empty": (["plan", "builtin", "--limit", ""], "--limit: '' is not a whole number"),
    "limit huge": (["plan", "builtin", "--limit", MANY], "is not a whole number from 1 to 1000000000"),
    "limit of digits": (["plan", "builtin", "--limit", "9" * 5000], "is not a whole number from 1 to 1000000000"),
    "limit of another script": (["plan", "builtin", "--limit", "٣"], "is not a whole number"),
    "limit without": (["plan", "builtin", "--limit"], "--limit: expected one argument"),
    "threads 0": (["run", "builtin", "--threads", "0"], "--threads: '0' is not a whole number from 1 to 4096"),
    "threads 10^6": (["run", "builtin", "--threads", "1000000"], "is not a whole number from 1 to 4096"),
    "kinds typo": (["plan", "builtin", "--kinds", "qualty"], "--kinds: 'qualty' is not one of quality, timing"),
    "kinds empty": (["plan", "builtin", "--kinds", ""], "--kinds: '' is not one of quality, timing"),
    "kinds comma": (["plan", "builtin", "--kinds", "quality,"], "--kinds: '' is not one of"),
    "retry": (["run", "builtin", "--retry", "always"], "--retry: invalid choice: 'always'"),
    "executor": (["run", "builtin", "--executor", "k8s"], "--executor: invalid choice: 'k8s'"),
    "slurm alone": (["run", "builtin", "--slurm", "time=1"], "--slurm time=1: only goes with --executor slurm"),
    "data folder": (["plan", "builtin", "--data-dir", "/nonexist"], "--data-dir: there is no folder '/nonexist'"),
    "data file": (["plan", "builtin", "--data-dir", "/etc/hostname"], "--data-dir: there is no folder '/etc/hostname'"),
    "only": (["plan", "builtin", "--only", "nothing/*"], "no cell matches --only 'nothing/*'"),
    "suite": (["plan", "bultin"], "no suite 'bultin': neither a shipped suite nor a file. Did you mean 'builtin'?"),
    "suite a folder": (["plan", "/"], "neither a shipped suite nor a file"),
    "suite empty": (["plan", ""], "neither a shipped suite nor a file"),
    "suite long": (["plan", LONG], "File name too long"),
    "runs long": (["status", "--runs", LONG], "File name too long"),
    "list": (["list", "method"], "invalid choice: 'method'"),
    "sql nothing": (["sql", "--all"], "There is no query"),
    "sql format": (["sql", "SELECT 1", "--format", "xls"], "--format: invalid choice: 'xls'"),
    "sql both": (["sql", "--views", "--schema"], "not allowed with argument --views"),
    "sql with views": (["sql", "SELECT 1", "--views"], "--views: takes neither a query nor its options"),
    "sql view": (["sql", "--explain-view", "frontir"], "There is no view 'frontir'. Did you mean 'frontier'?"),
    "sql database": (["sql", "SELECT 1", "--database", "no.duckdb"], "There is no database at no.duckdb"),
    "sql saved": (["sql", "@hop_exti"], "There is no saved query 'hop_exti'. Did you mean 'hop_exit'?"),
    "sql force": (["sql", "SELECT 1", "--force"], "--force: only goes with --out"),
    "report paper": (["report", "--paper", "mme"], "No paper is called 'mme'. Did you mean 'mee'?"),
    "report only": (["report", "--only", "sumary"], "No figure is called 'sumary'. Allowed: agreement"),
    "report only of a page": (
        ["report", "--only", "summary"],
        "tables are printed by --format md or latex, figures by html",
    ),
    "report format": (["report", "--format", "gif"], "--format: invalid choice: 'gif'"),
    "check severity": (["check", "--severity", "9"], "--severity: invalid choice: 9"),
    "claims paper": (["claims", "--paper", "mme"], "there is no such paper"),
    "show token": (["show", "x", "--token", "0"], "--token: '0' is not a whole number from 1"),
    "show nothing": (["show"], "the following arguments are required: RUN"),
    "db": (["db", "repair"], "invalid choice: 'repair'"),
    "db force": (["db", "check", "--force"], "there is no such folder"),
    "env": (["env", "diff"], "the following arguments are required"),
    "train": (["train", "bultin"], "no suite or recipe 'bultin'. Did you mean 'builtin'?"),
    "annotate": (["annotate", "ner"], "invalid choice: 'ner'"),
    "export format": (["export", "x", "--format", "xml"], "--format: invalid choice: 'xml'"),
    "import nothing": (["import"], "the following arguments are required: SOURCE"),
}


@pytest.mark.parametrize(("arguments", "says"), OF_ARGUMENTS.values(), ids=OF_ARGUMENTS.keys())
def test_invalid_command_line_arguments_are_refused(refused: Refused, arguments: list[str], says: str) -> None:
    message = refused(*arguments)
    assert says in message
    assert "'_cell'" not in message and "usage:" not in message
