"""Arguments of the commands that create and run: new, plan, run, train, tune, lm-eval, _cell."""

import argparse
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from exitbench.harness.cli.arguments.common import (
    Commands,
    Parser,
    add_data_dir,
    add_executor,
    add_plugins,
    add_runs,
    add_selection,
    add_threads,
    add_unsafe_code,
    command,
    up_to,
)
from exitbench.harness.service.options import MOST_DOCUMENTS


def _number(is_allowed: Callable[[float], bool], what: str, suffix: str = "") -> Callable[[str], float]:
    """Return an argparse type for allowed numbers, which `what` describes; `suffix` may follow them."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if is_allowed(number := float(text.removesuffix(suffix))):
                return number
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")

    return read


_MINUTES = _number(lambda it: 0.1 <= it <= 10_000, "a number of minutes from 0.1 to 10000")
_PERCENT = _number(lambda it: 0 < it < 100, "a percentage above 0 and below 100, such as 1%", "%")
_CHANCE = _number(lambda it: 0 < it < 1, "a chance between 0 and 1, such as 0.1")


def add_commands(commands: Commands) -> None:
    """Add the commands of this module, with their arguments, to the parser of `exitbench`."""
    _add_plan(commands)
    _add_run(commands)
    _add_train(commands)
    _add_try(commands)
    _add_tune(commands)
    _add_lm_eval(commands)
    _add_cell(commands)
    _add_new(commands)


def _add_plan(commands: Commands) -> None:
    examples = "  exitbench plan builtin\n  exitbench plan builtin --only '*/squad/*' --limit 10"
    about = "Show what a suite would run: every cell is new, done, stale (with the reason) or failed. Nothing is run."
    parser = command(commands, "plan", "run:plan", about, examples)
    add_selection(parser)


def _add_run(commands: Commands) -> None:
    examples = (
        "  exitbench run builtin\n"
        "  exitbench run builtin --only '*/static*' --kinds quality --limit 20\n"
        "  exitbench run multi30k-en-fr --data-dir ../data\n"
        "  exitbench run my-suite.toml --hub\n"
        "  exitbench run builtin --executor slurm --slurm partition=gpu --slurm gpus-per-node=1 --slurm time=8:00:00"
    )
    about = "Run what a suite has not run yet: train missing models, run cells, fill the database, write the report."
    parser = command(commands, "run", "run:run", about, examples)
    add_selection(parser)
    _add_what_runs(parser)


def _add_what_runs(parser: Parser) -> None:
    _add_where(parser)
    parser.add_argument("--no-report", action="store_true", help="draw no report; `exitbench report` does it later")
    parser.add_argument("--table", action="store_true", help="print every setting, not only the best of each task")


def _add_where(parser: Parser) -> None:
    add_executor(parser)
    add_threads(parser, default="the cores that no other process holds")
    parser.add_argument(
        "--hub",
        action="store_true",
        help="allow downloads of hub:OWNER/NAME; without it only the cache on this machine is read",
    )
    add_unsafe_code(parser)


def _add_train(commands: Commands) -> None:
    examples = (
        "  exitbench train builtin\n"
        "  exitbench train builtin-free\n"
        "  exitbench train my-recipe.toml --data-dir ../data --models-dir models\n"
        "  exitbench train smollm2-tuned-lens --start smollm2 --data-dir ../data"
    )
    about = "Train the models of a suite, or one recipe. If interrupted, the same command continues where it stopped."
    parser = command(commands, "train", "run:train", about, examples)
    parser.add_argument("what", metavar="SUITE", help="name or TOML file of a suite, or of a recipe")
    about = "checkpoint to start from, in place of [start] checkpoint of the recipe"
    parser.add_argument("--start", type=Path, metavar="DIR", help=about)
    add_data_dir(parser, "that recipes name")
    add_runs(parser)
    parser.add_argument("--models-dir", type=Path, metavar="DIR", help="folder of the models (default: RUNS/models)")
    add_threads(parser)


def _add_try(commands: Commands) -> None:
    examples = (
        "  exitbench try builtin-weighted\n"
        "  exitbench try checkpoints/mine --task samsum --data ../data/samsum/test.json --minutes 20\n"
        "  exitbench try hub:OWNER/NAME --hub --task tasks/my-task.toml --data mine.csv"
    )
    about = (
        "Say whether early exit is worth it for a model: choose settings on one half of the documents, measure them "
        "on the other, and recommend one of them or full depth, with the reason and the next step."
    )
    parser = command(commands, "try", "trying:try_model", about, examples)
    parser.add_argument("model", metavar="MODEL", help="folder of a checkpoint, hub:OWNER/NAME, or a recipe")
    about = "a bundled task, or a TOML file that declares one (squad; for a classifier, the task with its labels)"
    parser.add_argument("--task", metavar="TASK", help=about)
    about = "file of records in the task's original format; without it the data are generated"
    parser.add_argument("--data", type=Path, metavar="FILE", help=about)
    about = "time that it may take (10); more minutes give narrower intervals"
    parser.add_argument("--minutes", type=_MINUTES, default=10.0, metavar="M", help=about)
    about = "of full depth's quality, in percent: what may be lost (5%%)"
    parser.add_argument("--max-loss", type=_PERCENT, default=5.0, metavar="P%", help=about)
    add_plugins(parser)
    add_runs(parser)
    add_threads(parser, default="the cores that no other process holds")
    parser.add_argument("--hub", action="store_true", help="allow downloads of hub:OWNER/NAME")


def _add_tune(commands: Commands) -> None:
    examples = (
        "  exitbench tune weighted squad --max-loss 1%\n"
        "  exitbench tune weighted wmt-en-fr --methods calm-softmax,max-prob --documents 400\n"
        "  exitbench tune weighted squad --max-loss 2% --guarantee 0.1 --documents 400\n"
        "  exitbench tune mine news --suite my-suite.toml --data-dir ../data --out tuned.toml"
    )
    about = (
        "Choose a method and its threshold: search by replay, confirm by decoding, time what is left, recommend one "
        "setting. Thresholds are chosen on documents of another split than those it is reported on."
    )
    parser = command(commands, "tune", "run:tune", about, examples)
    parser.add_argument("model", metavar="MODEL", help="a model of the suite")
    parser.add_argument("task", metavar="TASK", help="a task of the suite")
    parser.add_argument("--suite", default="builtin", metavar="SUITE", help="whose model and task (builtin)")
    about = "of full depth's quality, in percent: what may be lost (1%%)"
    parser.add_argument("--max-loss", type=_PERCENT, default=1.0, metavar="P%", help=about)
    about = "methods with a threshold (those whose score can be computed from a probe and that need no training)"
    parser.add_argument("--methods", type=_names, default=(), metavar="NAME,..", help=about)
    about = "documents that thresholds are chosen on (200)"
    parser.add_argument("--documents", type=up_to(MOST_DOCUMENTS), default=200, metavar="N", help=about)
    about = "methods that are timed at the end (3)"
    parser.add_argument("--finalists", type=up_to(100), default=3, metavar="N", help=about)
    about = (
        "keep the bound on other documents too, except with this probability, by a calibration (Learn then Test). It "
        "needs many --documents: of three finalists, to show 1%% at EPSILON 0.1, 339 if no document loses anything "
        "and 2,105 if they lose half of it"
    )
    parser.add_argument("--guarantee", type=_CHANCE, metavar="EPSILON", help=about)
    about = "at most N documents of the task at the end"
    parser.add_argument("--limit", type=up_to(MOST_DOCUMENTS), metavar="N", help=about)
    about = "write the suite that repeats the choice here (RUNS/tuned/MODEL-TASK.toml)"
    parser.add_argument("--out", type=Path, metavar="FILE", help=about)
    add_data_dir(parser, "that tasks and recipes name")
    add_plugins(parser)
    add_runs(parser)
    _add_where(parser)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _add_lm_eval(commands: Commands) -> None:
    examples = (
        "  exitbench lm-eval run --model exitbench --tasks hellaswag \\\n"
        "      --model_args pretrained=DIR,method=calm-softmax,threshold=0.9,trace=runs/x\n"
        "  exitbench lm-eval run --help\n"
        "  exitbench lm-eval ls tasks"
    )
    about = "Run lm-eval's own command line with early exits: all arguments are lm-eval's (docs/lm-eval.md)."
    parser = command(commands, "lm-eval", "lm_eval:lm_eval", about, examples)
    parser.set_defaults(arguments=[])
    parser.add_argument("ARGS", nargs="*", help="arguments of lm-eval")


def _add_cell(commands: Commands) -> None:
    examples = "  exitbench _cell runs/logs/20260101T000000-vanilla.json --spool runs/spool"
    parser = command(
        commands, "_cell", "cell:cell", "Run one worker's specification, events on standard output.", examples
    )
    parser.add_argument("spec", type=Path, metavar="SPEC.json", help="as `run` leaves it in RUNS/logs")
    parser.add_argument("--spool", type=Path, metavar="DIR", help="write the attempts here instead")


def _add_new(commands: Commands) -> None:
    examples = (
        "  exitbench new method my-method\n"
        "  exitbench new task my-task\n"
        "  exitbench new suite my-suite --model ../models/mine"
    )
    about = "Write starter files: a method, a task or a suite that runs unchanged, with a test."
    kinds = command(commands, "new", "new:new", about, examples).add_subparsers(required=True, metavar="KIND")
    _add_method(kinds)
    _add_task(kinds)
    _add_suite(kinds)


def _add_method(kinds: Commands) -> None:
    examples = "  exitbench new method my-method\n  exitbench new method my-method --to my-project"
    about = "Write a method: a plug-in with a gate that works, its test, and a suite that compares it with others."
    parser = command(kinds, "method", "new:new_method", about, examples)
    _add_name(parser)


def _add_task(kinds: Commands) -> None:
    examples = "  exitbench new task my-task\n  exitbench new task my-task --python --to my-project"
    about = "Write a task: a TOML file or a class, ten example records, its test, and a suite that runs it."
    parser = command(kinds, "task", "new:new_task", about, examples)
    _add_name(parser)
    about = "as a class in a plug-in, which may score as it likes, instead of a TOML file"
    parser.add_argument("--python", action="store_true", help=about)


def _add_suite(kinds: Commands) -> None:
    examples = (
        "  exitbench new suite my-suite --model ../models/mine\n"
        "  exitbench new suite my-suite --model hub:OWNER/NAME --hub\n"
        "  exitbench new suite my-suite --model ../models/mine --task squad --task samsum\n"
        "  exitbench new suite my-suite --model ../models/mine --task tasks/my-task.toml \\\n"
        "      --set 'files={data=\"my-task.jsonl\"}' --data-dir data"
    )
    about = "Write a suite for a model: methods that it runs and that need nothing trained, tasks for its kind."
    parser = command(kinds, "suite", "new:new_suite", about, examples)
    _add_name(parser)
    naming = "folder of a checkpoint, hub:OWNER/NAME@REVISION, or name of a recipe"
    parser.add_argument("--model", required=True, metavar="MODEL", help=naming)
    parser.add_argument("--hub", action="store_true", help="fetch hub:OWNER/NAME; else only what is cached is read")
    about = "name of a task or path of its TOML file; may be repeated (generated data for its kind of model)"
    parser.add_argument("--task", action="append", default=[], metavar="TASK", help=about)
    about = "of a single --task: a key of [tasks.LABEL] of a suite, as TOML has it; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=about)
    add_data_dir(parser, "that the task names; used in the suggested commands")
    add_plugins(parser)
    add_runs(parser)


def _add_name(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="its name: lower-case words and digits joined by hyphens")
    about = "folder to write into, created if missing (the current one); no existing file is replaced"
    parser.add_argument("--to", type=Path, default=Path(), metavar="DIR", help=about)
