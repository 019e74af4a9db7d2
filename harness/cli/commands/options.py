"""Options of a run from the arguments of a command."""

from argparse import Namespace
from dataclasses import fields
from typing import Any

from exitbench.harness.service.options import RunOptions


def run_options(arguments: Namespace) -> RunOptions:
    """Return the options that the arguments name; those that the command does not take have their defaults."""
    known: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in vars(arguments).items()
    }
    return RunOptions(**{field.name: known[field.name] for field in fields(RunOptions) if field.name in known})
