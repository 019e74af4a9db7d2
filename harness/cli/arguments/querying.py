"""Arguments of the commands that query and show results: report, show, check, sql, compare, status and others."""

from argparse import ArgumentTypeError
from decimal import Decimal, InvalidOperation
from math import isfinite
from pathlib import Path
from typing import Final, get_args

from exitbench.harness.cells.cell import EngineChoice
from exitbench.harness.cli.arguments.common import (
    Commands,
    add_data_dir,
    add_database,
    add_lake,
    add_plugins,
    add_results,
    add_runs,
    add_threads,
    add_unsafe_code,
    command,
    up_to,
)
from exitbench.harness.cli.commands.listing import LISTS

_MOST_TOKENS: Final = 10**9
_MOST_THRESHOLDS: Final = 10_000


def add_commands(commands: Commands) -> None:
    """Add the commands of this module, with their arguments, to the parser of `exitbench`."""
    _add_report(commands)
    _add_open(commands)
    _add_check(commands)
    _add_claims(commands)
    _add_show(commands)
    _add_sql(commands)
    _add_compare(commands)
    _add_replay(commands)
    _add_status(commands)
    _add_env(commands)
    _add_doctor(commands)
    _add_verify(commands)
    _add_inspect(commands)
    _add_convert(commands)
    _add_list(commands)
    _add_show_prompts(commands)


def _add_report(commands: Commands) -> None:
    examples = (
        "  exitbench report\n"
        "  exitbench report --paper natcap\n"
        "  exitbench report --format pdf\n"
        "  exitbench report --format png --only frontier\n"
        "  exitbench report --single-file --out to-send\n"
        "  exitbench report --watch\n"
        "  exitbench report --format md --only summary\n"
        "  exitbench report --format latex --paper mee --out tables.tex\n"
        "  exitbench report --database other.duckdb --out other-report --draft"
    )
    about = "Write a page with every figure and table: drawn from the database, no model is loaded."
    parser = command(commands, "report", "report:report", about, examples)
    add_results(parser)
    parser.add_argument("--paper", metavar="NAME", help="only what is of this paper: mee, prune, natcap or heads")
    parser.add_argument(
        "--format",
        choices=("html", "pdf", "svg", "png", "md", "latex"),
        default="html",
        help="the page (html), figures for papers (pdf, svg, png), or tables as text (md, latex)",
    )
    parser.add_argument("--single-file", action="store_true", help="a page that holds its pictures and data, to send")
    about = "figures to draw, by name (`exitbench list figures`), or tables to print; html: as pdf, svg and png"
    parser.add_argument("--only", default="*", metavar="GLOB", help=about)
    parser.add_argument("--draft", action="store_true", help="write it even if findings say not to cite it")
    about = "go on: write the page again, as a draft, whenever a run adds results (not while you time anything)"
    parser.add_argument("--watch", action="store_true", help=about)
    parser.add_argument(
        "--out", type=Path, metavar="PATH", help="folder of the page (RUNS/report), or file of the tables"
    )


def _add_open(commands: Commands) -> None:
    about = "Open the page of the results in a browser; `exitbench report` writes it."
    add_runs(command(commands, "open", "help:open_page", about, "  exitbench open\n  exitbench open --runs my-runs"))


def _add_check(commands: Commands) -> None:
    examples = "  exitbench check\n  exitbench check --severity 2 && exitbench report"
    about = "Show what to know before citing the results: findings by severity. Exit code 1 where a report is refused."
    parser = command(commands, "check", "report:check", about, examples)
    add_results(parser)
    parser.add_argument(
        "--severity", type=int, choices=(1, 2, 3), default=1, help="findings of this severity and above (1: all)"
    )


def _add_claims(commands: Commands) -> None:
    examples = (
        "  exitbench claims --paper mee\n"
        "  exitbench claims --kind claim --verdict 'fails here' --format md\n"
        "  exitbench claims mee-measures-are-slower-than-full-depth"
    )
    about = "Test what papers claim on your results: a verdict with evidence for each claim."
    parser = command(commands, "claims", "report:claims", about, examples)
    parser.add_argument("claim", nargs="?", metavar="CLAIM", help="show this one in full, with its query")
    add_results(parser)
    papers = "only claims of mee, prune, natcap, heads, calm_free, encoders or suitability"
    parser.add_argument("--paper", metavar="NAME", help=papers)
    about = (
        "only claim (the authors' words), consistency (printed numbers against each other) or question (of ExitBench)"
    )
    parser.add_argument("--kind", metavar="KIND", help=about)
    about = (
        "only those with it: holds here, fails here (measured); consistent, inconsistent (printed numbers); undecided, "
        "not comparable or not measured"
    )
    parser.add_argument("--verdict", metavar="VERDICT", help=about)
    parser.add_argument("--format", choices=("table", "md", "json", "csv"), default="table")


def _add_show(commands: Commands) -> None:
    examples = (
        "  exitbench show 'free/squad/free' --doc 3\n"
        "  exitbench show 'weighted/squad/calm-softmax*0.9' --doc 3 --against 'weighted/squad/full'\n"
        "  exitbench show bb965132 --doc 3 --token 5"
    )
    about = "Print an answer token by token, in the colours of exit layers: alone or next to another run's answer."
    parser = command(commands, "show", "show:show", about, examples)
    naming = "attempt or cell id, or its beginning, or a glob over MODEL/TASK/METHOD"
    parser.add_argument("run", metavar="RUN", help=f"the run: {naming}")
    parser.add_argument(
        "--doc", default="1", metavar="K", help="number of the document in the order of keys, or its key (1)"
    )
    parser.add_argument("--against", metavar="RUN2", help="a second run on the same document")
    parser.add_argument(
        "--token", type=up_to(_MOST_TOKENS), metavar="N", help="also what every block read out at token N"
    )
    add_results(parser)


def _add_sql(commands: Commands) -> None:
    examples = (
        "  exitbench sql\n"
        "  exitbench sql --queries near ties\n"
        "  exitbench sql 'SELECT model, task, method, value FROM frontier'\n"
        "  exitbench sql 'SELECT * FROM exit_histogram' --out exits.parquet\n"
        "  exitbench sql @hop_exit\n"
        "  exitbench sql @near_ties --set margin=0.01 --set 'method=calm-*'\n"
        "  exitbench sql @threshold_for_agreement --set agreement=0.95\n"
        "  exitbench sql --explain-view frontier\n"
        "  exitbench sql @best_settings --lake s3://BUCKET/study\n"
        "  exitbench sql - < query.sql"
    )
    parser = command(
        commands,
        "sql",
        "sql:sql",
        "Query the database in SQL, read-only. Without a query: list the questions of the saved queries.",
        examples,
    )
    parser.add_argument(
        "query", nargs="?", metavar="QUERY", help="one DuckDB SELECT; @NAME: a saved one; -: from standard input"
    )
    add_results(parser)
    add_lake(parser, "query a lake in place of a database: a folder, or s3://BUCKET/PREFIX (`exitbench export lake`)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="value of the query's parameter $NAME"
    )
    parser.add_argument(
        "--format",
        choices=("table", "csv", "json", "parquet"),
        help="table (on a narrow terminal: one line per value), or the format that the name of --out ends in",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="save the rows: csv, json or parquet")
    parser.add_argument("--force", action="store_true", help="replace the file of --out")
    parser.add_argument("--all", action="store_true", help="print every row of a table, not the first 200")
    alternatives = parser.add_mutually_exclusive_group()
    alternatives.add_argument("--views", action="store_true", help="list the views, a line each, and stop")
    alternatives.add_argument(
        "--explain-view", metavar="NAME", help="print a view's columns, their meaning and its SQL, and stop"
    )
    alternatives.add_argument(
        "--queries",
        nargs="*",
        metavar="WORD",
        help="print saved queries in full: all, or those with all WORDs",
    )
    alternatives.add_argument(
        "--schema", action="store_true", help="print a document on all views and tables, and stop"
    )
    alternatives.add_argument(
        "--cookbook", action="store_true", help="print questions and the SQL that answers them, and stop"
    )


def _add_status(commands: Commands) -> None:
    examples = (
        "  exitbench status\n  exitbench status builtin --watch\n"
        "  exitbench status my-suite.toml --lake s3://BUCKET/study"
    )
    about = "Show what is running, done, failed and left: read from the spool, so a busy database is no obstacle."
    parser = command(commands, "status", "status:status", about, examples)
    parser.add_argument("suite", nargs="?", metavar="SUITE", help="only its cells, and the time left for all of them")
    add_data_dir(parser, "that the suite names")
    add_runs(parser)
    add_lake(parser, "its attempts in a lake, from every machine: a folder, or s3://BUCKET/PREFIX")
    parser.add_argument("--watch", action="store_true", help="refresh until Ctrl-C")


def _add_replay(commands: Commands) -> None:
    examples = (
        "  exitbench replay weighted/squad calm-softmax\n"
        "  exitbench replay weighted/squad calm-softmax --thresholds 0:1:0.01 --figure sweep.pdf\n"
        "  exitbench replay weighted/squad calm-softmax --thresholds 0.5,0.9,0.99 --param decay=code\n"
        "  exitbench replay 'weighted/wmt*' max-prob --format csv > sweep.csv"
    )
    about = "Try many thresholds on a stored probe: simulated exits, nothing is decoded."
    parser = command(commands, "replay", "compare:replay", about, examples)
    parser.add_argument(
        "probe", metavar="MODEL/TASK", help="the model and task whose newest probe is used; a glob that fits one"
    )
    parser.add_argument(
        "method", metavar="METHOD", help="a method with a threshold whose score can be computed from a probe"
    )
    levels = [level / 20 for level in range(21)]
    about = "thresholds, separated by commas, or FROM:TO:STEP (0:1:0.05)"
    parser.add_argument("--thresholds", type=_numbers, default=levels, metavar="T,..", help=about)
    about = "another parameter of the method; may be repeated"
    parser.add_argument("--param", action="append", default=[], metavar="NAME=VALUE", help=about)
    parser.add_argument("--format", choices=("table", "csv", "json"), default="table", help="how rows are written")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the sweep too: a pdf, png or svg")
    add_results(parser)
    add_plugins(parser)


def _numbers(text: str) -> list[float]:
    try:
        numbers = _stepped(text) if ":" in text else [float(word) for word in text.split(",")]
    except (ValueError, InvalidOperation):
        numbers = []
    if not all(map(isfinite, numbers)) or not 1 <= len(numbers) <= _MOST_THRESHOLDS:
        short = text if len(text) < 100 else f"{text[:100]}…"
        raise ArgumentTypeError(
            f"{short!r} are not at most {_MOST_THRESHOLDS:,} numbers separated by commas, nor FROM:TO:STEP with a STEP "
            "above 0"
        )
    return numbers


def _stepped(text: str) -> list[float]:
    """Return the numbers FROM, FROM + STEP, ... up to TO of a text FROM:TO:STEP; empty if the text is invalid.

    The numbers are computed as decimals, so that rounding errors do not add up.
    """
    low, high, step = map(Decimal, text.split(":"))
    if not (low <= high and step > 0 and (high - low) / step < _MOST_THRESHOLDS):
        return []
    return [float(low + index * step) for index in range(int((high - low) / step) + 1)]


def _add_compare(commands: Commands) -> None:
    examples = (
        "  exitbench compare 'weighted/squad/full' 'weighted/squad/static:exit_layer=4'\n"
        "  exitbench compare 20260102T0304 bb965132 --format json\n"
        "  exitbench compare 'weighted/squad/full' 'weighted/squad/calm-*' --format csv > calm.csv"
    )
    about = "Compare runs on the same documents: interval, exact test, detectable effect, speed, tokens."
    parser = command(commands, "compare", "compare:compare_runs", about, examples)
    naming = "attempt or cell id, or its beginning, or a glob over MODEL/TASK/METHOD"
    parser.add_argument("a", metavar="A", help=f"the run to compare with: {naming}")
    parser.add_argument(
        "b", metavar="B", help="the run to compare, or a glob of several, which are one family of tests"
    )
    add_results(parser)
    parser.add_argument("--format", choices=("table", "csv", "json"), default="table")
    add_plugins(parser)


def _add_env(commands: Commands) -> None:
    examples = (
        "  exitbench env diff 20260101T1200 20260301T1200\n"
        "  exitbench env diff 3f9a now\n"
        "  exitbench env show 20260101T120000"
    )
    about = "Compare software and machine of two runs (exit code 1 if they differ), or show those of one."
    parser = command(commands, "env", "verify:env", about, examples)
    parser.add_argument("action", choices=("diff", "show"))
    naming = "beginning of the id of an attempt, cell (its latest attempt), environment or machine; now: this machine"
    parser.add_argument("of", nargs="+", metavar="A", help=naming)
    add_database(parser)


def _add_doctor(commands: Commands) -> None:
    about = "Find what would stop a run on this machine: versions, disk, network, database. Exit code 1 if any does."
    parser = command(commands, "doctor", "doctor:doctor", about, "  exitbench doctor\n  exitbench doctor --runs other")
    add_runs(parser)


def _add_verify(commands: Commands) -> None:
    examples = (
        "  exitbench verify 20260101T120000\n"
        "  exitbench verify 'vanilla/squad/full'\n"
        "  exitbench verify 3f9a12c4 --model checkpoints/mine --data-dir ../data"
    )
    about = "Run a stored cell again and compare every token (exit code 1 if any differs). The database is not changed."
    parser = command(commands, "verify", "verify:verify_run", about, examples)
    parser.add_argument(
        "run", metavar="RUN", help="attempt or cell id or its beginning, or a glob of MODEL/TASK/METHOD"
    )
    parser.add_argument("--model", type=Path, metavar="DIR", help="checkpoint (default: found by the weights' digest)")
    add_data_dir(parser, "that were answered")
    add_plugins(parser)
    add_unsafe_code(parser)
    add_runs(parser)
    add_threads(parser, default="as the stored run")


def _add_inspect(commands: Commands) -> None:
    examples = (
        "  exitbench inspect checkpoints/mine\n"
        "  exitbench inspect builtin-weighted\n"
        "  exitbench inspect hub:OWNER/NAME@REVISION --hub\n"
        "  exitbench inspect checkpoints/mine --engine hosted --context 4000\n"
        "  exitbench inspect checkpoints/mine --format json"
    )
    about = "Describe a model, what runs it, and what methods cost on it. Exit code 1 if it cannot run."
    parser = command(commands, "inspect", "inspect:inspect", about, examples)
    parser.add_argument("model", metavar="MODEL", help="folder of a checkpoint, hub:OWNER/NAME, or a recipe")
    parser.add_argument(
        "--hub",
        action="store_true",
        help="allow the download of hub:OWNER/NAME; without it only the cache on this machine is read",
    )
    about = "what runs its blocks; auto: as a suite chooses"
    parser.add_argument("--engine", choices=get_args(EngineChoice), default="auto", help=about)
    about = "tokens of context for which costs are counted (1000, or as many as the model has positions)"
    parser.add_argument("--context", type=up_to(_MOST_TOKENS), metavar="N", help=about)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="one screen of text, or all as JSON")
    add_runs(parser)


def _add_convert(commands: Commands) -> None:
    examples = (
        "  exitbench convert SmolLM2-135M-Instruct.Q4_1.gguf models/smollm2\n"
        "  exitbench convert downloads/model.gguf models/mine --dtype bfloat16"
    )
    about = (
        "Convert a GGUF file to a checkpoint: dequantized weights in safetensors, configuration, tokenizer and chat "
        "template. It needs `pip install 'exitbench[gguf]'`, and memory for all weights."
    )
    parser = command(commands, "convert", "convert:convert", about, examples)
    parser.add_argument("file", type=Path, metavar="MODEL.gguf", help="the GGUF file; a link is refused")
    about = "folder to write, with safetensors that every command reads; a new or an empty one"
    parser.add_argument("folder", type=Path, metavar="DIR", help=about)
    about = "number format of the written weights (float32, which holds every dequantized number exactly)"
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help=about)


def _add_list(commands: Commands) -> None:
    examples = "  exitbench list methods\n  exitbench list methods calm-softmax\n  exitbench list tasks 'mmlu*'"
    parser = command(
        commands,
        "list",
        "listing:listing",
        "List methods, tasks, models, suites or figures: what suites and commands can name.",
        examples,
    )
    parser.add_argument("what", choices=tuple(LISTS))
    about = "methods: NAME or 'mee-*', to see their parameters; tasks: NAME or 'mmlu*', with lm-eval's"
    parser.add_argument("pattern", nargs="?", metavar="GLOB", help=about)
    add_plugins(parser)


def _add_show_prompts(commands: Commands) -> None:
    examples = (
        "  exitbench show-prompts squad -n 1\n"
        "  exitbench show-prompts samsum --suite builtin\n"
        "  exitbench show-prompts squad --model checkpoints/mine\n"
        "  exitbench show-prompts my-task.toml --set 'files={data=\"my.jsonl\"}' --data-dir ../data\n"
        "  exitbench show-prompts lm-eval:hellaswag --set num_fewshot=2"
    )
    about = "Show the prompts that models read on a task: with targets and the number of documents. No model is loaded."
    parser = command(commands, "show-prompts", "show:show_prompts", about, examples)
    naming = "name of a task, path of its TOML file, lm-eval:NAME, or with --suite a label of that suite"
    parser.add_argument("task", metavar="TASK", help=naming)
    parser.add_argument("-n", type=up_to(_MOST_TOKENS), default=3, metavar="N", help="documents to show (3)")
    parser.add_argument("--suite", metavar="SUITE", help="the suite whose task it is, with all its settings")
    about = (
        "folder of a checkpoint, hub:OWNER/NAME, or a recipe: exactly what this model reads, its chat template included"
    )
    parser.add_argument("--model", metavar="MODEL", help=about)
    add_runs(parser)
    about = "a key of [tasks.LABEL] of a suite, as TOML has it; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=about)
    add_data_dir(parser, "that the task names")
    add_plugins(parser)
