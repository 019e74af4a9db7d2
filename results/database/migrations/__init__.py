"""Numbered SQL files that bring a database from any older schema to this one."""

from functools import cache
from importlib.resources import files


@cache
def migration_scripts() -> tuple[str, ...]:
    """Return the migrations' scripts; the one at index i leads from schema i to i + 1."""
    scripts = [file for file in files(__name__).iterdir() if file.name.endswith(".sql")]
    return tuple(file.read_text(encoding="utf-8") for file in sorted(scripts, key=lambda file: file.name))
