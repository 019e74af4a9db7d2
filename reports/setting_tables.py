"""Tables of real models' settings in Markdown pages, from the snapshot of results in the package.

Such a table lies between two comments, ``<!-- settings: CONDITION -->`` and ``<!-- /settings -->``, and has a row for
each setting that meets the condition (SQL on the columns of table `summary`). With
``<!-- settings by task: CONDITION -->``, it has a row for each setting of a method and a column for each task; with
``by model``, one for each model. `exitbench.reports.documentation` writes the tables of docs/.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from exitbench.errors import UserError
from exitbench.reports import tables
from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import OTHER_LENGTH, Setting, labels, natural_key, setting
from exitbench.reports.registry import discover
from exitbench.reports.tables.columns import ABSENT, TableCell, TableColumn, fill_columns, metric_digits, number, text
from exitbench.reports.tables.summary import change, quality, speedup
from exitbench.reports.tables.writing import pipe_table
from exitbench.results.database.connection import Database
from exitbench.results.ingest.opening import open_snapshot

_NOTHING: Final = TableCell(ABSENT, None)
_BLOCK: Final = re.compile(
    r"(?P<start><!-- settings(?: by (?P<by>task|model))?: (?P<condition>.+?) -->\n).*?(?=<!-- /settings -->)", re.DOTALL
)
_SQL: Final = """
CREATE TEMP TABLE setting_rows AS
WITH summary AS ({summary}),
generated AS (SELECT attempt_id, count(*) AS tokens FROM token_exit GROUP BY attempt_id)
SELECT s.*, g.tokens / full_depth.tokens AS length, 100 * accepted.value AS accepted_percent
FROM summary AS s
JOIN frontier AS f USING (cell_id)
LEFT JOIN generated AS g ON g.attempt_id = f.attempt_id
LEFT JOIN generated AS full_depth ON full_depth.attempt_id = f.full_depth_attempt_id
LEFT JOIN metric_values AS accepted
    ON accepted.attempt_id = f.attempt_id AND accepted.metric = 'acceptance_rate' AND accepted.is_current
"""


def with_settings(pages: Mapping[Path, str]) -> dict[Path, str]:
    """Return Markdown pages, with current rows in their tables of settings.

    Raises:
        UserError: The condition of a table is not SQL, no setting meets it, or several are for one cell.
    """
    (summary,) = (source for source in discover(tables) if source.name == "summary")
    with open_snapshot("real") as database:
        database.duck.execute(_SQL.format(summary=summary.sql.rstrip().removesuffix(";")))
        return {path: _BLOCK.sub(lambda block: _filled(database, block), page) for path, page in pages.items()}


def _filled(database: Database, block: re.Match[str]) -> str:
    return f"{block['start']}{_table(database, block['condition'], block['by'])}\n"


def _table(database: Database, condition: str, by: str | None) -> str:
    unsorted = Frame.query(database, f"SELECT * FROM setting_rows WHERE {condition} ORDER BY cell_id").rows
    if not unsorted:
        raise UserError(f"no setting of the snapshot meets the condition {condition!r}.")
    names = labels(unsorted, brief=True)
    rows = sorted(unsorted, key=lambda row: (row["model"], row["task"], *_place(row, names)))
    if by is None:
        columns, _, cells = fill_columns((*_COLUMNS[:2], _setting(names), *_COLUMNS[2:]), rows)
        return pipe_table(columns, cells)
    values = sorted({row[by] for row in rows})
    by_name: dict[str, dict[str, Row]] = {}
    for row in sorted(rows, key=lambda row: _place(row, names)):
        if by_name.setdefault(names[setting(row)], {}).setdefault(row[by], row) is not row:
            raise UserError(f"several rows of {condition!r} are {names[setting(row)]} for {by} {row[by]}.")
    columns = (TableColumn("Method", _score), *(TableColumn(value, _score, numeric=True) for value in values))
    return pipe_table(
        columns,
        [
            [TableCell(name, name), *(_score(scored[value]) if value in scored else _NOTHING for value in values)]
            for name, scored in by_name.items()
        ],
    )


def _place(row: Row, names: Mapping[Setting, str]) -> tuple[bool, list[tuple[str, float]]]:
    """Return a sort key: full depth first, then by name, with numbers in order."""
    return not row["is_full_depth"], natural_key(names[setting(row)])


def _setting(names: Mapping[Setting, str]) -> TableColumn:
    return TableColumn("Method", lambda row: TableCell(names[setting(row)], names[setting(row)]))


def _score(row: Row) -> TableCell:
    """Return the cell ``'93.4 after 4.1'``: quality and mean exit layer."""
    return TableCell(f"{row['value']:.{metric_digits(row)}f} after {row['mean_exit_layer']:.1f}", row["value"])


def _change(row: Row) -> TableCell:
    return _NOTHING if row["is_full_depth"] else change(row)


def _speedup(row: Row) -> TableCell:
    """Return the cell of the measured speed-up, with a mark if the timed answers have another length."""
    if row["is_full_depth"]:
        return _NOTHING
    cell = speedup(row)
    return TableCell(f"{OTHER_LENGTH} {cell.text}", cell.key) if row["is_other_length"] else cell


def _decoding(row: Row) -> TableCell:
    return _NOTHING if row["is_full_depth"] else number("", "speedup_decode", "{:.2f}").cell(row)


_COLUMNS: Final = (
    text("Model", "model", collapses=True),
    text("Task", "task", collapses=True),
    TableColumn("Quality", quality, numeric=True),
    TableColumn("Δ", _change, numeric=True),
    number("Exit layer", "mean_exit_layer", "{:.1f}"),
    number("Tokens", "length", "{:.2f}", hidden_if_empty=True),
    number("Ideal speed-up", "ideal_speedup_bytes", "{:.2f}"),
    number("Drafts accepted", "accepted_percent", "{:.0f} %", hidden_if_empty=True),
    TableColumn("Speed-up", _speedup, numeric=True, hidden_if_empty=True),
    TableColumn("Decoding", _decoding, numeric=True, hidden_if_empty=True),
)
