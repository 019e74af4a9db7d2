"""What ran, in a few words: the block under the page's title."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from exitbench.reports.frame import Row
from exitbench.reports.front.words import size


def facts(runs: Sequence[Row], results: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    """Return what ran, term by term.

    Args:
        runs: Rows of title.sql.
        results: Rows of the results table.
    """
    if not runs:
        return ()
    shapes: dict[str, list[str]] = defaultdict(list)
    for model, blocks, parameters, random in _distinct(runs, "model", "blocks", "parameters", "random_weights"):
        weights = ", never trained" if random else ""
        shapes[f"{blocks} blocks, {size(parameters)} parameters{weights}"].append(model)
    kinds: dict[str, list[str]] = defaultdict(list)
    for task, is_generated in _distinct(runs, "task", "is_generated"):
        kinds["generated" if is_generated else "real"].append(task)
    # where anything was timed, the machine is that of the times
    measured = [row for row in runs if row["is_timed"]] or runs
    days = sorted({row["first_day"] for row in runs} | {row["last_day"] for row in runs})
    machines = (
        machine if has_gpu else f"{machine}, {threads} thread{'s' * (threads != 1)}"
        for machine, has_gpu, threads in _distinct(measured, "machine", "has_gpu", "threads")
    )
    commits = (
        (commit[:12] if commit else "unknown") + (" with changes" if dirty else "")
        for commit, dirty in _distinct(runs, "commit", "dirty")
    )
    timed = _range(row["timed_documents"] for row in results)
    return (
        ("Models", "; ".join(f"{', '.join(models)} ({shape})" for shape, models in shapes.items())),
        ("Data", "; ".join(f"{', '.join(tasks)} ({kind})" for kind, tasks in kinds.items())),
        ("Documents", f"{_range(row['documents'] for row in runs)} a task" + (f", {timed} timed" if timed else "")),
        ("Machine", "; ".join(machines)),
        ("Commit", ", ".join(commits)),
        ("Date", days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"),
    )


def warning(runs: Sequence[Row]) -> str:
    """Return what nobody should overlook: that data are generated and models small; nothing where they are not."""
    generated = [row for row in runs if row["is_generated"]]
    if not generated:
        return ""
    largest = max((row["parameters"] or 0 for row in generated), default=0)
    whole = "All data are" if len(generated) == len(runs) else "Part of the data is"
    return (
        f"{whole} generated, for models of at most {size(largest)} parameters: it shows how methods compare here, not "
        "how they do on real text."
    )


def _distinct(rows: Sequence[Row], *names: str) -> list[tuple[Any, ...]]:
    return list(dict.fromkeys(tuple(row[name] for name in names) for row in rows))


def _range(numbers: Iterable[int | None]) -> str:
    known = sorted({number for number in numbers if number is not None})
    if not known:
        return ""
    return f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} to {known[-1]:,}"
