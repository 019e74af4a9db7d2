"""Generate the parameter tables of docs/methods from the declarations in the code.

    python tests/methods/document.py

A table stands between `<!-- parameters: NAME -->` and `<!-- end -->`. `shared` is the table in index.md of the
parameters that base classes declare. A method's table has only what differs from it.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from exitbench.methods.base import Method
from exitbench.methods.exit_networks import TrainedGate
from exitbench.methods.gated import Gated, Gating, PeriodicGating, SoftmaxGating, Thresholded
from exitbench.methods.registry import get_method

FOLDER = Path(__file__).parents[2] / "docs" / "methods"
BASES: tuple[type[Method], ...] = (Gating, PeriodicGating, Thresholded, Gated, SoftmaxGating, TrainedGate)
"""Base classes whose parameters are shared, in the order of the table."""
SHARED = "shared"
TABLE = re.compile(r"(<!-- parameters: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
HEADER = "| parameter | default | allowed | meaning |\n|---|---|---|---|\n"
KINDS = {str: "text", float: "number", int: "whole number", bool: "true or false"}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for page in FOLDER.glob("*.md"):
        page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")


def rewritten(text: str) -> str:
    """Return the page with its tables generated from the code."""
    return TABLE.sub(lambda found: found[1] + _generated(found[2]) + found[3], text)


def shared_rows() -> dict[str, str]:
    """Return the Markdown row of each parameter of `BASES`, by name; the first class in `BASES` that has it decides."""
    rows: dict[str, str] = {}
    for base in BASES:
        for name, row in _rows(base):
            rows.setdefault(name, row)
    return rows


def shared_table() -> str:
    """Return the table of the shared parameters, in the order of the base classes."""
    return HEADER + "".join(shared_rows().values())


def own_table(method: type[Method]) -> str:
    """Return the documentation of a method's parameters.

    It names those that are as in the shared table, and has a table of all others.
    """
    shared = shared_rows()
    rows = dict(_rows(method))
    own = {name: row for name, row in rows.items() if shared.get(name) != row}
    same = ", ".join(f"`{name}`" for name in rows if name not in own)
    described = f"[Shared parameters](index.md#shared-parameters): {same}.\n" if same else ""
    table = HEADER + "".join(own.values()) if own else "No parameters of its own.\n"
    return f"{described}\n{table}" if described else table


def _generated(name: str) -> str:
    return shared_table() if name == SHARED else own_table(get_method(name))


def _rows(method: type[Method]) -> Iterator[tuple[str, str]]:
    """Yield the name of each parameter and its table row."""
    types = get_type_hints(method)
    for field in dataclasses.fields(method):
        allowed, meaning = _allowed(types[field.name], field.metadata), _escaped(field.metadata["doc"])
        yield field.name, f"| `{field.name}` | `{_value(field.default)}` | {allowed} | {meaning} |\n"


def _value(value: Any) -> str:
    """Return the value in the notation of a suite."""
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
