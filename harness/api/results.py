"""Read the result database as Arrow tables and data frames, without importing torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from exitbench.errors import UserError, suggestion
from exitbench.harness.service.comparing import compare_runs
from exitbench.results.analysis.traces import run_index, traced_runs
from exitbench.results.database.connection import Database, open_database
from exitbench.results.queries import saved_query

if TYPE_CHECKING:
    from exitbench.harness.afterwards.replaying import Probe
    from exitbench.reports.plotting.style import ReportFigure

_TOKENS = """
    SELECT * FROM token_trace WHERE attempt_id IN (SELECT unnest($attempts::VARCHAR[]))
    ORDER BY attempt_id, doc_key, choice, position
"""


@dataclass(frozen=True)
class Results:
    """A result database opened read-only by `open_results`. Close it, or use it as a context manager.

    Tabular results are Arrow tables; ``.to_pandas()`` converts them to data frames.
    """

    database: Database

    def frontier(self) -> pa.Table:
        """Return quality, depth, cost and speed of every setting (model, task, method, parameters): view `frontier`.

        Examples:
            >>> import exitbench as eb
            >>> with eb.open_results("runs") as results:
            ...     frontier = results.frontier()
            >>> frontier.select(["method", "mean_exit_layer"]).to_pylist()[0]
            {'method': 'full', 'mean_exit_layer': 8.0}
        """
        return self.database.query("FROM frontier ORDER BY model, task_label, method, params")

    def tokens(self, run: str) -> pa.Table:
        """Return every generated or scored token of the named runs (the view `token_trace`).

        Args:
            run: Id of a cell (one method on one model and task) or of one attempt to run it, or a glob over
                MODEL/TASK/METHOD.

        Raises:
            UserError: No run matches.

        Examples:
            >>> import exitbench as eb
            >>> with eb.open_results("runs") as results:
            ...     tokens = results.tokens("weighted/squad/full")
            >>> set(tokens["exit_layer"].to_pylist())
            {8}
        """
        attempts = [run_entry.attempt_id for run_entry in run_index(traced_runs(self.database)).find(run)]
        return self.database.query(_TOKENS, {"attempts": attempts})

    def sql(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> pa.Table:
        """Query any view or table in DuckDB SQL; ``?`` and ``$name`` are parameters.

        Raises:
            UserError: DuckDB rejects the query.

        Examples:
            >>> import exitbench as eb
            >>> with eb.open_results("runs") as results:
            ...     settings = results.sql("SELECT count(*) AS n FROM frontier WHERE method = ?", ["static"])
            >>> settings.to_pylist()
            [{'n': 3}]
        """
        return self.database.query(query, parameters)

    def ask(self, name: str, **parameters: Any) -> pa.Table:
        """Run a saved query: ``results.ask(NAME, margin=0.01)`` is ``exitbench sql @NAME --set margin=0.01``.

        Args:
            name: A name that ``exitbench sql`` lists.
            **parameters: Query parameters that override their defaults.

        Raises:
            UserError: The query or one of its parameters does not exist.
        """
        saved = saved_query(name.removeprefix("@"))
        for parameter in parameters.keys() - saved.defaults.keys():
            allowed = suggestion(parameter, saved.defaults) if saved.defaults else " It has no parameters."
            raise UserError(f"Saved query {saved.name} has no parameter {parameter!r}.{allowed}")
        return self.database.query(saved.sql, {**saved.defaults, **parameters})

    def compare(self, run_a: str, run_b: str) -> pa.Table:
        """Compare runs on the same documents, by paired confidence intervals and tests: one row per metric and run B.

        Args:
            run_a: Name of exactly one run, as for `tokens`.
            run_b: Name of one or more runs.

        Raises:
            UserError: A name matches no run or too many, or the runs have different documents.

        Examples:
            >>> import exitbench as eb
            >>> with eb.open_results("runs") as results:
            ...     contrasts = results.compare("weighted/squad/full", "weighted/squad/static*")
            >>> set(contrasts["run_a"].to_pylist())
            {'weighted/squad/full'}
        """
        return pa.Table.from_pylist(
            [asdict(contrast) for contrast in compare_runs(self.database, run_a, run_b).contrasts]
        )

    def figure(self, name: str, *, draft: bool = False) -> ReportFigure:
        """Return one figure of the report as a matplotlib figure. Notebooks display it; ``.savefig(path)`` writes it.

        The figure's attribute ``caption`` explains its content and how to read it.

        Args:
            name: A name listed by ``exitbench list figures``.
            draft: Whether to draw the figure even if ``exitbench check`` finds that runs of this database must not be
                cited.

        Raises:
            UserError: The figure does not exist, the database has no rows for it, or findings forbid it.
        """
        from exitbench.reports.render import one_figure  # loads matplotlib

        return one_figure(self.database, name, draft=draft)

    def probe(self, name: str) -> Probe:
        """Return the newest probe (each block's predictions per token) of a model on a task, for `exitbench.replay`.

        Args:
            name: Glob over MODEL/TASK that matches one probe.

        Raises:
            UserError: The glob matches none, or several.

        Examples:
            >>> import exitbench as eb
            >>> report = eb.run("builtin", only="weighted/squad/full/probe", limit=2, report=False)
            ... # doctest: +ELLIPSIS
            squad (weighted): ...
            >>> with eb.open_results("runs") as results:
            ...     probe = results.probe("weighted/squad")
            >>> probe.n_blocks
            8
        """
        from exitbench.harness.afterwards.replaying import stored_probe  # loads torch

        return stored_probe(self.database, name)

    def close(self) -> None:
        """Close the database file."""
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.database.__exit__(*raised)


def open_results(path: str | Path = "runs") -> Results:
    """Open a folder of runs, a database file, a snapshot or a lake for reading.

    Args:
        path: A folder of runs, a database file, a snapshot or a lake. A snapshot is a folder that `exitbench export`
            wrote, or `snapshot:NAME` for one that comes with ExitBench. A lake is a folder that `exitbench export lake`
            filled, or s3://BUCKET/PREFIX, for which deltalake reads the credentials.

    Raises:
        UserError: The path is none of these, or it cannot be opened.

    Examples:
        >>> import exitbench as eb
        >>> with eb.open_results("runs") as results:
        ...     frame = results.frontier().to_pandas()
        >>> sorted(set(frame["method"]))
        ['full', 'static']
    """
    name = str(path).removeprefix("snapshot:")
    if name != str(path) or (Path(path) / "manifest.json").is_file():
        from exitbench.results.ingest.opening import open_snapshot

        return Results(open_snapshot(name))
    if "://" in str(path) or any(Path(path).glob("schema=*/attempt/_delta_log")):
        from exitbench.results.lake.reading import open_lake

        return Results(open_lake(str(path)))
    path = Path(path)
    file = path / "exitbench.duckdb" if path.is_dir() else path
    if not file.is_file():
        raise UserError(
            f"{path}: there is no database. Allowed: a folder of runs, a file of DuckDB, a snapshot or a lake."
        )
    return Results(open_database(file))
