"""What a run says at its end, and of the best so far while it runs: one sentence a task, from `@what_to_use`."""

from typing import Final

from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import Setting, labels, setting, spoken
from exitbench.results.database.connection import Database
from exitbench.results.queries import saved_query
from exitbench.terminal import number_of, visible

MOST_LINES: Final = 5
_NAMES: Final = "SELECT DISTINCT method, params, kv_policy FROM frontier WHERE execution = 'real' ORDER BY ALL"
_REAL: Final = {
    "faster": "the difference is real",
    "slower": "the static depth is faster, and that is real",
    "not to be told apart": "the difference may be chance",
}


def gist_lines(database: Database, suite: str | None = None) -> list[str]:
    """Return a sentence for each task, `MOST_LINES` at most: what to use, what it gains and costs, whether it is real.

    Args:
        database: Open.
        suite: Whose runs; None for all.
    """
    rows, names = _read(database, suite)
    lines = [f"{visible(row['task_label'])}: {_sentence(row, names)}" for row in rows[:MOST_LINES]]
    if more := len(rows) - MOST_LINES:
        lines += [f"… and {number_of(more, 'more task')}: exitbench sql @what_to_use"] if more > 0 else []
    return lines


def best_so_far(database: Database, suite: str | None = None) -> list[str]:
    """Return the same in a few words, of the tasks of which there is something to say."""
    rows, names = _read(database, suite)
    return [
        f"{visible(row['task_label'])}: {_name(row, names)}, {_short_gain(row)}, {_delta(row)}"
        for row in rows
        if row["method"] is not None
    ]


def _read(database: Database, suite: str | None) -> tuple[tuple[Row, ...], dict[Setting, str]]:
    query = saved_query("what_to_use")
    found = Frame.query(database, query.sql, {**query.defaults, "suite": suite})
    return found.rows, labels(Frame.query(database, _NAMES).rows)


def _sentence(row: Row, names: dict[Setting, str]) -> str:
    if not row["candidates"]:
        return "only full depth and baselines were run; nothing to recommend."
    if row["method"] is None:
        return "no method is shown to be faster than full depth and to lose little; full depth it is."
    name = f"{_name(row, names)} (model {visible(row['model'])})"
    cost = _loss(row)
    least = f" It may lose {row['loss_high_percent']:.1f} %: none is shown to lose 1 % at most."
    more = "" if row["loss_is_shown"] else least
    if row["speedup"] is None:
        return f"{name} {_work(row)} than full depth {cost}; it was not timed.{more}"
    said = f"{name} runs {row['speedup']:.2g}x as fast as full depth {cost}; {_static(row)}.{more}"
    return f"{said} Random exits no deeper do as well." if row["random_is_as_good"] else said


def _static(row: Row) -> str:
    if row["static_delta"] is None:
        return f"no static depth is shown to lose as little: {_REAL[row['verdict']]}"
    what = f"the fastest static depth that may lose as much (block {row['static_block']})"
    return f"{what} runs {row['static_speedup']:.2g}x: {_REAL[row['verdict']]}"


def _loss(row: Row) -> str:
    """What is lost, with the interval of the difference where there is one."""
    metric, interval = visible(row["metric"]), ""
    if row["delta_low"] is not None:
        interval = f" [{row['delta_low']:+.1f}, {row['delta_high']:+.1f}]"
    if row["delta"] >= 0.05:
        return f"and gains {row['delta']:.1f} points of {metric}{interval}"
    if row["delta"] >= 0:
        return f"and loses no {metric}{interval}"
    return f"for {-row['delta']:.1f} points of {metric} less{interval}"


def _delta(row: Row) -> str:
    return f"{row['delta']:+.1f} {visible(row['metric'])}"


def _short_gain(row: Row) -> str:
    if row["speedup"] is None:
        return f"{_work(row)} (not timed yet)"
    return f"{row['speedup']:.2g}x as fast as full depth"


def _work(row: Row) -> str:
    """The work that is saved: bytes, or blocks where bytes are not counted (texts that are scored)."""
    ratio = row["ideal_speedup_bytes"]
    if ratio is None:
        return f"runs {row['blocks'] / row['mean_blocks_run']:.1f}x fewer blocks"
    return f"reads {ratio:.1f}x fewer bytes" if ratio >= 1 else f"reads {1 / ratio:.1f}x more bytes"


def _name(row: Row, names: dict[Setting, str]) -> str:
    """The method and what it is set to; a threshold in words."""
    return visible(spoken(names.get(setting(row)) or str(row["method"])))
