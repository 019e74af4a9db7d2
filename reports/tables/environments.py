"""Environments of the runs: commit, versions and hardware."""

from exitbench.reports.frame import Row
from exitbench.reports.tables.columns import ABSENT, TableCell, TableColumn, number, parameters, text

SECTION = "provenance"
ORDER = 40
TITLE = "Environments"
CAPTION = "One row per software environment and machine of attempts. Times are UTC."
EMPTY = "No data yet: run `nox -s bench`."


def _commit(row: Row) -> TableCell:
    commit = row["git_commit"]
    return TableCell((commit[:12] if commit else ABSENT) + (" + changes" if row["git_dirty"] else ""), commit)


def _processor(row: Row) -> TableCell:
    label = f"{row['cpu'] or 'unknown'}, {row['cores']} cores, {row['threads']} threads"
    return TableCell(label, label)


def _memory(row: Row) -> TableCell:
    ram = row["ram_bytes"]
    return TableCell(ABSENT if ram is None else f"{ram / 2**30:.0f} GiB", ram)


def _gpu(row: Row) -> TableCell:
    if not row["gpu"]:
        return TableCell("none", "")
    label = f"{row['gpu_count']} × {row['gpu']}, driver {row['driver']}, CUDA {row['cuda']}"
    return TableCell(label, label)


COLUMNS = (
    TableColumn("Commit", _commit),
    number("Attempts", "attempts", "{:,}"),
    text("First start", "first_start"),
    text("Last end", "last_end"),
    TableColumn("Processor", _processor),
    TableColumn("Memory", _memory, numeric=True),
    TableColumn("GPU", _gpu),
    text("Python", "python"),
    text("Platform", "platform", long=True),
    parameters("Packages", "packages"),
    parameters("Variables", "env_vars"),
)
