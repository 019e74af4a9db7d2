"""SQLAlchemy over a result database, with reflection: ``create_engine("duckdb+exitbench:///runs/exitbench.duckdb")``.

The dialect of duckdb-engine (0.17) inherits the reflection of PostgreSQL's tables. With SQLAlchemy 2.1 it queries
pg_catalog.pg_collation (columns), the type REGCLASS (keys) and pg_catalog.pg_inherits (options), which DuckDB lacks.
This dialect queries DuckDB's own catalogue, including comments of columns. By default it opens files for reading.

It has a separate name: if two distributions offered `duckdb`, the choice would be arbitrary, and importing ExitBench
would change how other programs open their databases.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

import duckdb_engine
import sqlalchemy as sa
from sqlalchemy.engine.reflection import ReflectionDefaults

from exitbench.results.database.catalogue import sql_type

_COLUMNS: Final = """
    SELECT table_name, column_name, data_type, is_nullable, comment FROM duckdb_columns()
    WHERE database_name = current_database() AND schema_name = coalesce($schema, 'main')
    ORDER BY table_name, column_index
"""

_KEYS: Final = """
    SELECT table_name, constraint_column_names FROM duckdb_constraints()
    WHERE database_name = current_database() AND schema_name = coalesce($schema, 'main')
        AND constraint_type = 'PRIMARY KEY'
"""

ReflectedColumn = dict[str, Any]
Name = tuple[str | None, str]
"""Schema and table."""


def _empty_reflection(default: Callable[[], Any]) -> Callable[..., Iterator[tuple[Name, Any]]]:
    """Return a reflection method that returns SQLAlchemy's default value for every requested table.

    It serves for objects that no table of ExitBench has, such as foreign keys.
    """

    def reflect(
        self: object,
        connection: sa.Connection,
        *,
        schema: str | None = None,
        filter_names: Collection[str] | None = None,
        **_: Any,
    ) -> Iterator[tuple[Name, Any]]:
        return iter([((schema, name), default()) for name in filter_names or ()])

    return reflect


class ExitBenchDialect(duckdb_engine.Dialect):  # type: ignore[misc]
    """SQLAlchemy dialect for DuckDB that supports reflection of tables and views."""

    supports_statement_cache = True
    supports_comments = True

    def create_connect_args(self, url: sa.URL) -> tuple[Any, Any]:
        """Return the arguments for opening the file: read-only, unless the URL or the caller sets `read_only`."""
        positional, named = super().create_connect_args(url)
        return positional, {"read_only": url.database not in (None, ":memory:"), **named}

    get_multi_foreign_keys = _empty_reflection(ReflectionDefaults.foreign_keys)
    get_multi_indexes = _empty_reflection(ReflectionDefaults.indexes)
    get_multi_unique_constraints = _empty_reflection(ReflectionDefaults.unique_constraints)
    get_multi_check_constraints = _empty_reflection(ReflectionDefaults.check_constraints)
    get_multi_table_comment = _empty_reflection(ReflectionDefaults.table_comment)
    get_multi_table_options = _empty_reflection(ReflectionDefaults.table_options)

    def get_multi_pk_constraint(
        self,
        connection: sa.Connection,
        schema: str | None = None,
        filter_names: Collection[str] | None = None,
        **_: Any,
    ) -> Iterator[tuple[Name, Any]]:
        """Return an iterator of ((schema, table), primary key) over the tables in `filter_names`, or over all."""
        keys = {table: list(columns) for table, columns in connection.exec_driver_sql(_KEYS, {"schema": schema})}
        return iter(
            ((schema, table), {"constrained_columns": keys.get(table, []), "name": None})
            for table in filter_names or keys
        )

    def get_multi_columns(
        self,
        connection: sa.Connection,
        schema: str | None = None,
        filter_names: Collection[str] | None = None,
        **_: Any,
    ) -> Iterator[tuple[Name, list[ReflectedColumn]]]:
        """Return an iterator of ((schema, name), columns) over the tables and views in `filter_names`, or over all."""
        reflected: dict[Name, list[ReflectedColumn]] = {}
        rows = connection.exec_driver_sql(_COLUMNS, {"schema": schema})
        for table, column, type_, nullable, comment in rows:
            if not filter_names or table in filter_names:
                reflected.setdefault((schema, table), []).append(
                    {
                        "name": column,
                        "type": sql_type(type_),
                        "nullable": nullable,
                        "default": None,
                        "comment": comment,
                    }
                )
        return iter(reflected.items())

    def get_columns(
        self, connection: sa.Connection, table_name: str, schema: str | None = None, **_: Any
    ) -> list[ReflectedColumn]:
        """Return the columns of one table or view.

        Raises:
            sqlalchemy.exc.NoSuchTableError: There is no table or view of this name.
        """
        for _key, columns in self.get_multi_columns(connection, schema, [table_name]):
            return columns
        raise sa.exc.NoSuchTableError(table_name)
