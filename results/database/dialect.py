"""SQLAlchemy over a result database, with reflection: ``create_engine("duckdb+exitbench:///runs/exitbench.duckdb")``.

The dialect of duckdb-engine (0.17) inherits how PostgreSQL's tables are reflected. With SQLAlchemy 2.1 that asks for
pg_catalog.pg_collation (columns), the type REGCLASS (keys) and pg_catalog.pg_inherits (options), which DuckDB lacks.
This one asks DuckDB itself, and so has the comments of columns too. It opens files for reading unless asked otherwise.

It has a name of its own: of two distributions that both offer `duckdb` chance would choose, and importing ExitBench
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


def _nothing(default: Callable[[], Any]) -> Callable[..., Iterator[tuple[Name, Any]]]:
    """Return a method that says of every table asked for that it has none of something, as ours have."""

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
    """DuckDB's dialect, whose tables and views can be reflected."""

    supports_statement_cache = True
    supports_comments = True

    def create_connect_args(self, url: sa.URL) -> tuple[Any, Any]:
        """Return how the file is opened: for reading, unless the URL or the caller says `read_only`."""
        positional, named = super().create_connect_args(url)
        return positional, {"read_only": url.database not in (None, ":memory:"), **named}

    get_multi_foreign_keys = _nothing(ReflectionDefaults.foreign_keys)
    get_multi_indexes = _nothing(ReflectionDefaults.indexes)
    get_multi_unique_constraints = _nothing(ReflectionDefaults.unique_constraints)
    get_multi_check_constraints = _nothing(ReflectionDefaults.check_constraints)
    get_multi_table_comment = _nothing(ReflectionDefaults.table_comment)
    get_multi_table_options = _nothing(ReflectionDefaults.table_options)

    def get_multi_pk_constraint(
        self,
        connection: sa.Connection,
        schema: str | None = None,
        filter_names: Collection[str] | None = None,
        **_: Any,
    ) -> Iterator[tuple[Name, Any]]:
        """Return the primary keys of tables, by schema and name."""
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
        """Return the columns of tables and views, by schema and name."""
        found: dict[Name, list[ReflectedColumn]] = {}
        rows = connection.exec_driver_sql(_COLUMNS, {"schema": schema})
        for table, column, type_, nullable, comment in rows:
            if not filter_names or table in filter_names:
                found.setdefault((schema, table), []).append(
                    {
                        "name": column,
                        "type": sql_type(type_),
                        "nullable": nullable,
                        "default": None,
                        "comment": comment,
                    }
                )
        return iter(found.items())

    def get_columns(
        self, connection: sa.Connection, table_name: str, schema: str | None = None, **_: Any
    ) -> list[ReflectedColumn]:
        """Return the columns of one table or view.

        Raises:
            sqlalchemy.exc.NoSuchTableError: There is none of that name.
        """
        for _key, columns in self.get_multi_columns(connection, schema, [table_name]):
            return columns
        raise sa.exc.NoSuchTableError(table_name)
