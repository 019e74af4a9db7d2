"""Environments of the runs: commit, versions and hardware."""

from exitbench.reports.frame import Row
from exitbench.reports.tables.columns import ABSENT, Cell, Column, number, parameters, text

SECTION = "provenance"
ORDER = 40
TITLE = "Environments"
CAPTION = "One row an environment and machine that attempts ran on. Times are UTC."
EMPTY = "No data yet: run `nox -s bench`."


def _commit(row: Row) -> Cell:
    commit = row["git_commit"]
    return Cell((commit[:12] if commit else ABSENT) + (" + changes" if row["git_dirty"] else ""), commit)


def _processor(row: Row) -> Cell:
    label = f"{row['cpu'] or 'unknown'}, {row['cores']} cores, {row['threads']} threads"
    return Cell(label, label)


def _memory(row: Row) -> Cell:
    ram = row["ram_bytes"]
    return Cell(ABSENT if ram is None else f"{ram / 2**30:.0f} GiB", ram)


def _gpu(row: Row) -> Cell:
    if not row["gpu"]:
        return Cell("none", "")
    label = f"{row['gpu_count']} × {row['gpu']}, driver {row['driver']}, CUDA {row['cuda']}"
    return Cell(label, label)


COLUMNS = (
    Column("Commit", _commit),
    number("Attempts", "attempts", "{:,}"),
    text("First start", "first_start"),
    text("Last end", "last_end"),
    Column("Processor", _processor),
    Column("Memory", _memory, numeric=True),
    Column("GPU", _gpu),
    text("Python", "python"),
    text("Platform", "platform", long=True),
    parameters("Packages", "packages"),
    parameters("Variables", "env_vars"),
)
