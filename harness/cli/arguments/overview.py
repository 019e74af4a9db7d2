"""The first screen, `exitbench --help`: every command, by what it is for."""

from collections.abc import Mapping
from typing import Final

from exitbench.harness.cli.arguments.common import Parser, brief

PURPOSES: Final[Mapping[str, tuple[str, ...]]] = {
    "Run": ("plan", "run", "status", "lm-eval"),
    "Ask and compare": ("report", "show", "compare", "ask", "sql", "replay", "claims"),
    "Models and training": ("list", "inspect", "show-prompts", "new", "train", "fit", "calibrate", "tune"),
    "Keep and share": ("export", "import", "rescore", "annotate", "db", "gc"),
    "Check": ("check", "verify", "doctor", "env"),
}
"""Headings, and the commands below each in the order in which they are needed."""
_START: Final = """\
usage: exitbench COMMAND ...

Benchmark early-exit methods of language models, and ask the results in SQL.

Start here:
  exitbench run builtin --limit 20    small models, generated data: a first run
  exitbench ask                       questions that the results answer
"""
_END: Final = """\
A suite is a TOML file, or the name of one that comes along (list suites).
exitbench COMMAND --help explains a command, with examples.
"""


class Overview(Parser):
    """The parser of the program itself, whose help lists commands by purpose."""

    commands: Mapping[str, Parser]

    def format_help(self) -> str:
        """Return the first screen."""
        parts = [_START]
        for heading, names in PURPOSES.items():
            lines = [f"  {name:<14}{brief(self.commands[name].description or '')}" for name in names]
            parts.append("\n".join((f"{heading}:", *lines, "")))
        return "\n".join((*parts, _END))
