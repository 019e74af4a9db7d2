"""Commands that write files to begin with: new."""

from pathlib import Path

from exitbench.harness.cli.arguments.common import Commands, Parser, add_data_dir, add_plugins, add_runs, command


def add_commands(commands: Commands) -> None:
    """Add the commands of this file."""
    examples = (
        "  exitbench new method my-method\n"
        "  exitbench new task my-task\n"
        "  exitbench new suite my-suite --model ../models/mine"
    )
    about = "Write files to begin with: a method, a task or a suite that runs as it is, with a test."
    kinds = command(commands, "new", "new:new", about, examples).add_subparsers(required=True, metavar="KIND")
    _add_method(kinds)
    _add_task(kinds)
    _add_suite(kinds)


def _add_method(kinds: Commands) -> None:
    examples = "  exitbench new method my-method\n  exitbench new method my-method --to my-project"
    about = "Write a method: a plug-in with a gate that works, its test, and a suite that runs it beside others."
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
    add_data_dir(parser, "that the task names, for the commands told")
    add_plugins(parser)
    add_runs(parser)


def _add_name(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="its name: lower-case words and digits joined by hyphens")
    about = "folder to write into, made if there is none (the current one); nothing in it is replaced"
    parser.add_argument("--to", type=Path, default=Path(), metavar="DIR", help=about)
