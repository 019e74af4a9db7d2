"""Write the latest measurements into the tables of tests/benchmarks/performance.md.

    python tests/benchmarks/document.py runs/exitbench.duckdb

A table is between `<!-- measured: FILE -->` and `<!-- end -->`; it has the benchmarks of
tests/benchmarks/test_FILE.py, with one column per number of threads. The machine, the day and the commit are below it.
Rows that the database lacks are kept, and so are the lines below them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from goals import is_met, shown

from exitbench.results.database.connection import open_database

DOCUMENT = Path(__file__).with_name("performance.md")
TABLE = re.compile(r"(<!-- measured: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
LATEST = """
SELECT benchmark, threads, cpu, cores, left(commit, 7) AS commit, dirty, measured_at::DATE AS day, extra
FROM perf WHERE extra ->> 'measured' IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY benchmark, threads ORDER BY measured_at DESC) = 1
"""

EMPTY = "|  |\n| --- |\n"

ExtraInfo = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""Extra info of each benchmark, by name and number of threads."""


def main() -> None:
    """Rewrite the tables of performance.md with a database's latest measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database", type=Path)
    info: dict[str, dict[int, Mapping[str, Any]]] = {}
    with open_database(parser.parse_args().database) as database:
        for row in database.query(LATEST).to_pylist():
            measured = {**json.loads(row["extra"]), "on": _provenance(row)}
            info.setdefault(row["benchmark"], {})[row["threads"]] = measured
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text(encoding="utf-8"), info), encoding="utf-8")


def rewritten(text: str, info: ExtraInfo) -> str:
    """Return the document with its tables rebuilt; a table without measurements is left alone."""
    files = {name.partition("/")[0] for name in info}
    return TABLE.sub(
        lambda match: match[1] + table(info, match[2], match[3] or EMPTY) + match[4] if match[2] in files else match[0],
        text,
    )


def table(info: ExtraInfo, file: str, before: str = EMPTY) -> str:
    """Return a Markdown table of the benchmarks of a file, with those rows of the table before that it lacks."""
    chosen = {name.partition("/")[2]: by_threads for name, by_threads in info.items() if name.startswith(f"{file}/")}
    rows = {name.replace("-random", ""): _row(by_threads) for name, by_threads in chosen.items()}
    header, _, *lines = [_cells(line) for line in before.splitlines() if line.startswith("|")]
    kept = {name: dict(zip(header[1:], cells, strict=True)) for name, *cells in lines if name not in rows}
    below = [line.rstrip(".") for line in before.splitlines() if kept and line and not line.startswith("|")]
    of = "smollm2: " if kept and all(_is_real(name) for name in rows) else ""
    if not any(_is_real(name) for name in kept):
        below = [line for line in below if not line.startswith("smollm2: ")]
    places = {info["on"] for by_threads in chosen.values() for info in by_threads.values() if "on" in info}
    below = list(dict.fromkeys([*(of + place for place in sorted(places)), *below]))
    threads = sorted({column for row in (*rows.values(), *kept.values()) for column in row} - {"goal", "beside it"})
    columns = [*threads, "goal", "beside it"]
    made = [["", *columns], ["---", *["---:"] * len(threads), "---", "---"]]
    for name, row in sorted((rows | kept).items(), key=lambda item: _in_order(item[0])):
        made.append([name, *(row.get(column, "") for column in columns)])
    return "\n".join([*(f"| {' | '.join(line)} |" for line in made), *(f"\n{line}." for line in below)]) + "\n"


def _row(by_threads: Mapping[int, Mapping[str, Any]]) -> dict[str, str]:
    """Return a row's cells by column."""
    first = by_threads[min(by_threads)]
    measured = {f"{n} thread{'s' * (n > 1)}": _measured(info) for n, info in by_threads.items()}
    return {**measured, "goal": _goal(first), "beside it": first["note"]}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def _provenance(row: Mapping[str, Any]) -> str:
    """Return the machine, day and commit of a measurement."""
    instructions = json.loads(row["extra"]).get("instructions", "unknown instructions")
    changed = " and changes" if row["dirty"] else ""
    return f"{row['cpu']}, {row['cores']} cores, {instructions}; {row['day']}; commit {row['commit']}{changed}"


def _in_order(name: str) -> tuple[bool, list[tuple[int, str]]]:
    """Return a sort key: the real model first, then alphabetical, with numbers by value."""
    parts = [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
    return not _is_real(name), parts


def _is_real(name: str) -> bool:
    return "[smollm2" in name


def _measured(info: Mapping[str, Any]) -> str:
    text = shown(info["measured"], info["unit"])
    return f"**{text}**" if is_met(info) is False else text


def _goal(info: Mapping[str, Any]) -> str:
    bounds = {"at_least": "≥", "at_most": "≤"}
    unit = info["unit"] if info["unit"] == "%" else ""
    return next((f"{sign} {shown(info[key], unit)}" for key, sign in bounds.items() if key in info), "")


if __name__ == "__main__":
    main()
