"""Commands that plan and run: plan, run, train, fit, calibrate, _cell."""

from pathlib import Path

from exitbench.harness.cli.arguments.common import (
    Commands,
    Parser,
    add_data_dir,
    add_executor,
    add_runs,
    add_selection,
    add_threads,
    add_unsafe_code,
    command,
)


def add_commands(commands: Commands) -> None:
    """Add the commands of this file."""
    _add_plan(commands)
    _add_run(commands)
    _add_train(commands)
    _add_fit(commands)
    _add_calibrate(commands)
    _add_lm_eval(commands)
    _add_cell(commands)


def _add_plan(commands: Commands) -> None:
    examples = "  exitbench plan builtin\n  exitbench plan builtin --only '*/squad/*' --limit 10"
    about = "Show what a suite would run: every cell is new, done, stale (with the reason) or failed. Nothing is run."
    parser = command(commands, "plan", "plan:plan", about, examples)
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
    add_executor(parser)
    add_threads(parser)
    parser.add_argument(
        "--hub",
        action="store_true",
        help="allow downloads of hub:OWNER/NAME; without it only the cache on this machine is read",
    )
    add_unsafe_code(parser)
    parser.add_argument("--no-report", action="store_true", help="draw no report; `exitbench report` does it later")
    parser.add_argument("--table", action="store_true", help="print every setting, not only the best of each task")


def _add_train(commands: Commands) -> None:
    examples = (
        "  exitbench train builtin\n"
        "  exitbench train builtin-free\n"
        "  exitbench train my-recipe.toml --data-dir ../data --models-dir models"
    )
    about = "Train the models of a suite, or one recipe. Interrupted, the same command goes on where it stopped."
    parser = command(commands, "train", "train:train", about, examples)
    parser.add_argument("what", metavar="SUITE", help="name or TOML file of a suite, or of a recipe")
    add_data_dir(parser, "that recipes name")
    add_runs(parser)
    parser.add_argument("--models-dir", type=Path, metavar="DIR", help="folder of the models (default: RUNS/models)")
    add_threads(parser)


def _add_fit(commands: Commands) -> None:
    examples = "  exitbench fit builtin\n  exitbench fit multi30k-en-fr --data-dir ../data --only '*/mee-lstm*'"
    about = "Fit what methods learn on a frozen model (classifiers, thresholds by block): a suite's fit cells only."
    parser = command(commands, "fit", "run:run", about, examples)
    add_selection(parser, kinds=("fit",))
    _add_what_runs(parser)


def _add_calibrate(commands: Commands) -> None:
    examples = "  exitbench calibrate builtin\n  exitbench calibrate my-suite.toml --data-dir ../data"
    about = "Choose thresholds with a statistical guarantee (Learn then Test): a suite's calibration cells only."
    parser = command(commands, "calibrate", "run:run", about, examples)
    add_selection(parser, kinds=("calibration",))
    _add_what_runs(parser)


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
