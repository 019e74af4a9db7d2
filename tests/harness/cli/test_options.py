"""Arguments of the command line as options of a run."""

from dataclasses import fields
from pathlib import Path

from exitbench.harness.cli.commands.common import run_options
from exitbench.harness.cli.main import parse_command_line
from exitbench.harness.running.shard import Shard
from exitbench.harness.service.options import RunOptions


def test_every_option_of_run_reaches_the_run(tmp_path: Path) -> None:
    words = [
        *("run", "builtin", "--runs", "elsewhere", "--only", "*/squad/*", "--limit", "3", "--kinds", "fit,quality"),
        *("--shard", "1/3", "--shard", "2/3", "--data-dir", str(tmp_path), "--retry", "stale", "--threads", "2"),
        *("--executor", "slurm", "--slurm", "time=1:00", "--slurm", "mem=1G", "--hub", "--confirm-run-unsafe-code"),
    ]
    assert run_options(parse_command_line(words)) == RunOptions(
        suite="builtin",
        runs=Path("elsewhere"),
        only="*/squad/*",
        limit=3,
        kinds=("fit", "quality"),
        shard=(Shard(1, 3), Shard(2, 3)),
        data_dir=tmp_path,
        retry="stale",
        threads=2,
        executor="slurm",
        slurm=("time=1:00", "mem=1G"),
        hub=True,
        confirm_run_unsafe_code=True,
    )


def test_command_line_defaults_equal_run_option_defaults() -> None:
    arguments = parse_command_line(["run", "builtin"])
    assert {field.name for field in fields(RunOptions)} <= vars(arguments).keys()
    assert run_options(arguments) == RunOptions("builtin")
