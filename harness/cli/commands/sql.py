"""``exitbench sql``: run one read-only query, or list the questions that saved queries answer."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any, Final

import duckdb

from exitbench.errors import UserError, suggestion
from exitbench.harness.cli.commands.common import existing_database
from exitbench.harness.cli.commands.rows import FORMATS, save
from exitbench.results.database.access import DatabaseInUse
from exitbench.results.database.answers import QueryResult, answer
from exitbench.results.database.connection import WAIT_S, Database, open_database
from exitbench.results.database.schema_doc import described_views, schema_markdown
from exitbench.results.queries import SavedQuery, parameter_text, parameter_value, query_names, saved_query
from exitbench.results.queries.cookbook import SECTIONS, cookbook_markdown

MAX_SCREEN_ROWS: Final = 200
"""Maximum number of table rows printed without ``--all``."""

_SILENT_S: Final = 1.0
"""Seconds to wait for a database in use before a message is printed."""

_INSTEAD: Final = ("views", "explain_view", "queries", "schema", "cookbook")
"""Options that print something other than the result of a query."""
_OF_A_QUERY: Final = ("query", "set", "format", "out", "force", "all")
_READING: Final = ("SELECT", "EXPLAIN")
_WRITING: Final = ("COPY", "INSERT", "UPDATE", "DELETE", "MERGE")
_SAVED: Final = "@"


def sql(arguments: Namespace) -> int:
    """Print or save the result rows of a query; or list views, saved queries or the schema.

    Raises:
        UserError: The query is not one read-only statement, or DuckDB rejects it; a saved query or view does not exist.
            Or a parameter is missing or unknown, an argument would have no effect, or the file cannot be written.
    """
    _require_used(arguments)
    if arguments.queries is not None:
        print(listed(_with_words(arguments.queries), in_full=True))
    elif arguments.views:
        print("\n".join(f"{view.name:18} {_first_sentence(view.description)}" for view in described_views()))
    elif arguments.explain_view is not None:
        print(_explained(arguments.explain_view))
    elif arguments.schema:
        print(schema_markdown(), end="")
    elif arguments.cookbook:
        print(cookbook_markdown(), end="")
    elif arguments.query is None and not _used_names(arguments, _OF_A_QUERY):
        print(listed(saved_queries(), in_full=False))
        print(
            "\nexitbench sql @NAME answers one; exitbench sql --queries WORD says how to read it, and what can be set."
        )
    else:
        _ask(arguments)
    return 0


def _used_names(arguments: Namespace, names: Sequence[str]) -> list[str]:
    """Return those of `names` whose arguments were given on the command line."""
    return [name for name in names if getattr(arguments, name) not in (None, False, [])]


def _require_used(arguments: Namespace) -> None:
    """Check that the command line has no argument that would have no effect.

    Raises:
        UserError: There is such an argument.
    """
    instead, unused = _used_names(arguments, _INSTEAD), _used_names(arguments, _OF_A_QUERY)
    if arguments.queries == []:
        instead.append("queries")
    if instead and unused:
        option = instead[0].replace("_", "-")
        raise UserError(f"--{option}: takes neither a query nor its options; given: {', '.join(unused)}.")
    if arguments.force and arguments.out is None:
        raise UserError("--force: only goes with --out.")


def _ask(arguments: Namespace) -> None:
    query, parameters = _query(arguments.query, arguments.set)
    form = _format(arguments.format, arguments.out)
    with _open_source(arguments) as database, answer(database, query, parameters) as result:
        if arguments.out is not None:
            rows = save(result, arguments.out, form, arguments.force)
            print(f"{arguments.out}: {rows} row{'' if rows == 1 else 's'}", file=sys.stderr)
        elif form == "table" and not arguments.all:
            _print_beginning(result)
        else:
            FORMATS[form](result.schema.names, result.rows())


def _open_source(arguments: Namespace) -> Database:
    """Open the database, snapshot or lake that the command line names."""
    if arguments.lake is None:
        path = existing_database(arguments)
        if arguments.out is not None and arguments.out.resolve() == path.resolve():
            raise UserError(f"--out {arguments.out} is the database itself. Name another file.")
        return _opened(path)
    if arguments.database is not None or arguments.snapshot is not None:
        raise UserError("--lake: is queried in place of a database; leave out --database and --snapshot.")
    from exitbench.results.lake.reading import open_lake

    return open_lake(arguments.lake)


def _opened(path: Path) -> Database:
    try:
        return open_database(path, wait_s=_SILENT_S)
    except DatabaseInUse as error:
        print(f"{path} is in use by {error.who}; waiting up to {WAIT_S:g} s.", file=sys.stderr, flush=True)
        return open_database(path)


def _print_beginning(result: QueryResult) -> None:
    rows = list(islice(result.rows(), MAX_SCREEN_ROWS + 1))
    FORMATS["table"](result.schema.names, rows[:MAX_SCREEN_ROWS])
    if len(rows) > MAX_SCREEN_ROWS:
        sys.stdout.flush()
        print(f"The first {MAX_SCREEN_ROWS} rows; --all prints every one, --out FILE saves them.", file=sys.stderr)


def _query(query: str | None, assignments: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Return the SQL text that the command's argument QUERY stands for, and the values of its parameters.

    Args:
        query: SQL text, `@NAME` of a saved query, or `-` for standard input.
        assignments: Values of parameters, as NAME=VALUE.

    Raises:
        UserError: There is no query, it is not read-only, or a parameter is missing, unknown or given twice.
    """
    if query is None:
        raise UserError(
            "There is no query. Give one, @NAME of a saved one (`exitbench sql` lists them), or - for standard input."
        )
    saved = saved_query(query.removeprefix(_SAVED)) if query.startswith(_SAVED) else None
    text = saved.sql if saved is not None else _utf8("The query", None if query == "-" else query)
    named = require_reading(text)
    assigned: dict[str, Any] = {}
    for name, value in (_assignment(_utf8("--set", text)) for text in assignments):
        if name in assigned:
            raise UserError(f"--set {name}: is given more than once.")
        assigned[name] = value
    for name in assigned:
        if name not in named:
            allowed = suggestion(name, named) if named else " The query has no parameters."
            raise UserError(f"--set {name}: the query has no parameter ${name}.{allowed}")
    values = {**(saved.defaults if saved is not None else {}), **assigned}
    if missing := sorted(named - set(values)):
        raise UserError(f"The query needs {', '.join(f'--set {name}=VALUE' for name in missing)}.")
    return text, values


def _utf8(what: str, text: str | None) -> str:
    """Return a text given by the user, after checking that it is UTF-8; for None, read it from standard input.

    Raises:
        UserError: The text contains bytes that are not UTF-8.
    """
    try:
        text = sys.stdin.read() if text is None else text
        text.encode()
    except UnicodeError:
        raise UserError(f"{what} holds a byte that is not UTF-8. Allowed: text in UTF-8.") from None
    return text


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UserError(f"--set {text}: not NAME=VALUE.")
    return name, parameter_value(value)


def _format(requested: str | None, file: Path | None) -> str:
    """Return the output format: the requested one or, if there is none, that of the file's suffix or a table."""
    if file is None:
        if requested == "parquet":
            raise UserError("--format parquet cannot be printed. Add --out FILE.")
        return requested or "table"
    files = ("csv", "json", "parquet")
    form = requested or file.suffix.removeprefix(".")
    if form not in files:
        raise UserError(f"--out {file}: which format? Add --format {', '.join(files[:-1])} or {files[-1]}.")
    return form


def require_reading(query: str) -> set[str]:
    """Check that a query is a single read-only SQL statement.

    Returns:
        The names of its parameters.

    Raises:
        UserError: The query is not one read-only statement.
    """
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise UserError(f"The query failed: {error}") from None
    kinds = [statement.type.name for statement in statements]
    if len(kinds) != 1:
        raise UserError(f"{len(kinds)} statements were given; exactly one is allowed.")
    if (kind := _nested_write(query) or kinds[0]) not in _READING:
        raise UserError(f"{kind} is refused: the database is read-only here. Allowed: {', '.join(_READING)}.")
    return set(statements[0].named_parameters)


def _nested_write(query: str) -> str | None:
    """Return the keyword of a writing statement inside EXPLAIN ANALYZE or WITH x AS (COPY ...); None if there is none.

    A read-only connection does not prevent COPY from overwriting the database's own file and log.
    """
    starts = [start for start, kind in duckdb.tokenize(query) if kind != duckdb.token_type.comment]
    encoded = query.encode()
    words = [encoded[a:b].decode(errors="replace") for a, b in pairwise([*starts, len(encoded)])]
    plain = [word.partition("--")[0].partition("/*")[0].strip().upper() for word in words]
    if plain[0] == "EXPLAIN":
        return next((word for word in plain[1:] if word in _WRITING), None)
    return next((word for before, word in pairwise(plain) if before.endswith("(") and word in _WRITING), None)


def _explained(name: str) -> str:
    views = {view.name: view for view in described_views()}
    if name not in views:
        raise UserError(f"There is no view {name!r}.{suggestion(name, views)}")
    view = views[name]
    width = max(len(column.name) for column in view.columns)
    types = max(len(column.type) for column in view.columns)
    columns = "\n".join(
        f"  {column.name:{width}}  {column.type:{types}}  {column.description}" for column in view.columns
    )
    return f"{view.description}\n\n{columns}\n\n{view.sql}"


def _first_sentence(comment: str) -> str:
    return comment.replace("\n", " ").partition(". ")[0].removesuffix(".") + "."


def _with_words(words: Sequence[str]) -> list[SavedQuery]:
    """Return the saved queries that contain all words; without words, return all saved queries.

    Raises:
        UserError: No query contains all words.
    """
    wanted = [word.lower() for word in words]
    matches = [query for query in saved_queries() if all(word in _all_words(query) for word in wanted)]
    if not matches:
        raise UserError(f"No question has {' and '.join(map(repr, wanted))}. `exitbench sql` lists them all.")
    return matches


def saved_queries() -> list[SavedQuery]:
    """Return all saved queries, sorted by topic."""
    return sorted(map(saved_query, query_names()), key=lambda query: SECTIONS.index(query.section))


def listed(queries: Sequence[SavedQuery], *, in_full: bool) -> str:
    """Return saved queries as text, grouped by topic: one line each, or in full with explanation and parameters."""
    width = max(len(query.name) for query in queries)
    lines = []
    for section, members in groupby(queries, key=lambda query: query.section):
        lines.append(f"{section}\n" if in_full else section)
        for query in members:
            lines += _in_full(query) if in_full else [f"  @{query.name:{width}}  {query.question}"]
        lines.append("")
    return "\n".join(lines[:-1])


def _in_full(query: SavedQuery) -> Iterator[str]:
    yield f"@{query.name}\n    {query.question} {query.reading}"
    for name, value in query.defaults.items():
        yield f"    --set {name}={parameter_text(value)}: {query.meanings[name]}"


def _all_words(query: SavedQuery) -> str:
    return f"{query.section} {query.name} {query.question} {query.reading}".lower()
