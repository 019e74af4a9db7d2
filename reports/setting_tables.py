"""Tables of real models' settings in Markdown pages, from the snapshot of results in the package.

Such a table lies between two comments, ``<!-- settings: CONDITION -->`` and ``<!-- /settings -->``, and has a row for
each setting that meets the condition (SQL on the columns of table `summary`). With
``<!-- settings by task: CONDITION -->``, it has a row for each setting of a method and a column for each task; with
``by model``, one for each model. `exitbench.reports.documentation` writes the tables of the README and of docs/.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from exitbench.errors import UserError
from exitbench.reports import tables
from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import natural_key
from exitbench.reports.registry import discover
from exitbench.reports.tables.columns import ABSENT, TableCell, TableColumn, fill_columns, number, text
from exitbench.reports.tables.summary import change, marked, quality, speedup
from exitbench.reports.tables.writing import pipe_table
from exitbench.results.database.connection import Database
from exitbench.results.ingest.opening import open_snapshot

_NOTHING: Final = TableCell(ABSENT, None)
_MARK: Final = "<!-- settings"
_BLOCK: Final = re.compile(
    rf"(?P<start>{_MARK}(?: by (?P<by>task|model))?: (?P<condition>[^\n]+) -->\n)[^<]*(?=<!-- /settings -->)"
)
_SQL: Final = """
CREATE TEMP TABLE setting_rows AS
WITH summary AS ({summary}),
generated AS (SELECT attempt_id, count(*) AS tokens FROM token_exit GROUP BY attempt_id)
SELECT
    s.* EXCLUDE (speedup_decode), f.suite, concat_ws(' ', s.method, nullif(f.label, 'usual')) AS named,
    -- An encoder reads a text at once, so its time follows operations more than bytes, and there is no decoding.
    CASE WHEN f.model_kind = 'encoder' THEN f.ideal_speedup_flops ELSE f.ideal_speedup_bytes END AS ideal_speedup,
    CASE WHEN f.model_kind <> 'encoder' THEN s.speedup_decode END AS speedup_decode,
    CASE WHEN f.model_kind <> 'encoder' THEN g.tokens / full_depth.tokens END AS length,
    100 * accepted.value AS accepted_percent
FROM summary AS s
JOIN frontier AS f USING (cell_id)
LEFT JOIN generated AS g ON g.attempt_id = f.attempt_id
LEFT JOIN generated AS full_depth ON full_depth.attempt_id = f.full_depth_attempt_id
LEFT JOIN metric_values AS accepted
    ON accepted.attempt_id = f.attempt_id AND accepted.metric = 'acceptance_rate' AND accepted.is_current
"""


@contextmanager
def open_settings() -> Iterator[Database]:
    """Open the snapshot, with the rows of all tables of settings in a temporary table."""
    (summary,) = (source for source in discover(tables) if source.name == "summary")
    with open_snapshot("real") as database:
        database.duck.execute(_SQL.format(summary=summary.sql.rstrip().removesuffix(";")))
        yield database


def with_settings(database: Database, page: str) -> str:
    """Return a Markdown page, with current rows in its tables of settings.

    Args:
        database: The snapshot, as `open_settings` opens it.
        page: The page's text.

    Raises:
        UserError: A comment of a table is misspelled or not closed. The condition of a table is not SQL, no setting
            meets it, or several are for one cell.
    """
    if page.count(_MARK) != len(_BLOCK.findall(page)):
        comments = ", ".join(re.findall(rf"{_MARK}[^\n]*", page))
        raise UserError(f"One of these comments is misspelled, or not closed by `<!-- /settings -->`: {comments}.")
    return _BLOCK.sub(lambda block: _filled(database, block), page)


def _filled(database: Database, block: re.Match[str]) -> str:
    condition, by = block["condition"], block["by"]
    rows = Frame.query(database, f"SELECT * FROM setting_rows WHERE {condition} ORDER BY model, task, cell_id").rows
    if not rows:
        raise UserError(f"no setting of the snapshot meets the condition {condition!r}.")
    if by is None:
        columns, _, cells = fill_columns(
            _COLUMNS, sorted(rows, key=lambda row: (row["model"], row["task"], *_place(row)))
        )
        return f"{block['start']}{pipe_table(columns, cells)}\n"
    return f"{block['start']}{_scores(sorted(rows, key=_place), by, condition)}\n"


def _scores(rows: Sequence[Row], by: str, condition: str) -> str:
    """Return a pipe table of scores, with a row per setting of a method and a column per value of column `by`."""
    values = sorted({row[by] for row in rows})
    cells: dict[str, dict[str, TableCell]] = {}
    for row in rows:
        of_setting = cells.setdefault(row["named"], {})
        if row[by] in of_setting:
            raise UserError(f"several rows of {condition!r} are {row['named']} for {by} {row[by]}.")
        of_setting[row[by]] = TableCell(
            f"{quality(row).text.split()[0]} after {row['mean_exit_layer']:.1f}", row["value"]
        )
    columns = (text("Method", "named"), *(number(value, value, "") for value in values))
    return pipe_table(
        columns, [[TableCell(name, name), *(of.get(value, _NOTHING) for value in values)] for name, of in cells.items()]
    )


def _place(row: Row) -> tuple[bool, list[tuple[str, float]]]:
    """Return a sort key: full depth first, then by name, with numbers in order."""
    return not row["is_full_depth"], natural_key(row["named"])


def _compared(column: TableColumn) -> TableColumn:
    """Return a column whose cells are dashes for full depth."""
    return replace(column, cell=lambda row: _NOTHING if row["is_full_depth"] else column.cell(row))


_COLUMNS: Final = (
    text("Model", "model", collapses=True),
    text("Task", "task", collapses=True),
    text("Method", "named"),
    TableColumn("Quality", quality, numeric=True),
    _compared(TableColumn("Δ", change, numeric=True)),
    number("Exit layer", "mean_exit_layer", "{:.1f}"),
    number("Tokens", "length", "{:.2f}", hidden_if_empty=True),
    number("Ideal speed-up", "ideal_speedup", "{:.2f}"),
    number("Drafts accepted", "accepted_percent", "{:.0f} %", hidden_if_empty=True),
    _compared(marked(TableColumn("Speed-up", speedup, numeric=True, hidden_if_empty=True))),
    _compared(marked(number("Decoding", "speedup_decode", "{:.2f}", hidden_if_empty=True))),
)
