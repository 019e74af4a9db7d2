"""Write the latest measurements into the tables of tests/benchmarks/performance.md.

    python tests/benchmarks/document.py runs/exitbench.duckdb

A table is between `<!-- measured: FILE -->` and `<!-- end -->`; it has the benchmarks of
tests/benchmarks/test_FILE.py, with one column per number of threads. The machine, the day and the commit are below it.
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
TABLE = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
LATEST = """
SELECT benchmark, threads, cpu, cores, left(commit, 7) AS commit, dirty, measured_at::DATE AS day, extra
FROM perf WHERE extra ->> 'measured' IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY benchmark, threads ORDER BY measured_at DESC) = 1
"""

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
    return TABLE.sub(lambda match: match[1] + table(info, match[2]) + match[3] if match[2] in files else match[0], text)


def table(info: ExtraInfo, file: str) -> str:
    """Return a Markdown table of the benchmarks of a file."""
    chosen = {name.partition("/")[2]: by_threads for name, by_threads in info.items() if name.startswith(f"{file}/")}
    threads = sorted({n for by_threads in chosen.values() for n in by_threads})
    columns = [f"{n} thread{'s' * (n > 1)}" for n in threads]
    lines = [["", *columns, "goal", "beside it"], ["---", *["---:"] * len(threads), "---", "---"]]
    for name, by_threads in sorted(chosen.items(), key=lambda item: _in_order(item[0])):
        first = by_threads[min(by_threads)]
        cells = [_measured(by_threads[n]) if n in by_threads else "" for n in threads]
        lines.append([name.replace("-random", ""), *cells, _goal(first), first["note"]])
    places = sorted({info["on"] for by_threads in chosen.values() for info in by_threads.values() if "on" in info})
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), *(f"\n{place}." for place in places)]) + "\n"


def _provenance(row: Mapping[str, Any]) -> str:
    """Return the machine, day and commit of a measurement."""
    instructions = json.loads(row["extra"]).get("instructions", "unknown instructions")
    changed = " and changes" if row["dirty"] else ""
    return f"{row['cpu']}, {row['cores']} cores, {instructions}; {row['day']}; commit {row['commit']}{changed}"


def _in_order(name: str) -> tuple[bool, list[tuple[int, str]]]:
    """Return a sort key: the real model first, then alphabetical, with numbers by value."""
    parts = [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
    return "[smollm2" not in name, parts


def _measured(info: Mapping[str, Any]) -> str:
    text = shown(info["measured"], info["unit"])
    return f"**{text}**" if is_met(info) is False else text


def _goal(info: Mapping[str, Any]) -> str:
    bounds = {"at_least": "≥", "at_most": "≤"}
    unit = info["unit"] if info["unit"] == "%" else ""
    return next((f"{sign} {shown(info[key], unit)}" for key, sign in bounds.items() if key in info), "")


if __name__ == "__main__":
    main()
