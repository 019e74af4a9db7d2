"""Puts the parameters of the methods, as the code declares them, into the tables of docs/methods.md.

    python tests/methods/document.py

A table stands between `<!-- parameters: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from exitbench.methods.base import Method
from exitbench.methods.registry import get_method

DOCUMENT = Path(__file__).parents[2] / "docs" / "methods.md"
TABLE = re.compile(r"(<!-- parameters: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
HEADER = "| parameter | default | allowed | meaning |\n|---|---|---|---|\n"
KINDS = {str: "text", float: "number", int: "whole number", bool: "true or false"}


def main() -> None:
    """Rewrite the tables."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")


def rewritten(text: str) -> str:
    """The document with its tables as the code has them."""
    return TABLE.sub(lambda found: found[1] + table(get_method(found[2])) + found[3], text)


def table(method: type[Method]) -> str:
    """Markdown of a method's parameters."""
    types = get_type_hints(method)
    rows = [
        f"| `{field.name}` | `{_value(field.default)}` | {_allowed(types[field.name], field.metadata)} "
        f"| {_escaped(field.metadata['doc'])} |\n"
        for field in dataclasses.fields(method)
    ]
    return HEADER + "".join(rows) if rows else "No parameters.\n"


def _value(value: Any) -> str:
    """As a suite would write it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _allowed(kind: Any, rule: Any) -> str:
    if rule["choices"]:
        return ", ".join(f"`{choice}`" for choice in rule["choices"])
    if get_origin(kind) is tuple:
        return f"list: {_allowed(get_args(kind)[0], rule)}"
    low, high = rule["low"], rule["high"]
    bounds = ("" if low is None else f" from {low:g}") + ("" if high is None else f" to {high:g}")
    return KINDS[kind] + bounds


def _escaped(text: str) -> str:
    return re.sub(r"([|*])", r"\\\1", text)


if __name__ == "__main__":
    main()
