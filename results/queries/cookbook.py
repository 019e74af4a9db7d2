"""SQL cookbook (`exitbench sql --cookbook`): questions of early-exit research, and saved queries that answer them."""

from collections.abc import Sequence
from typing import Final

from exitbench.results.queries import SavedQuery, parameter_text, query_names, saved_query

SECTIONS: Final = (
    "Exits",
    "Choices",
    "Encoders",
    "Agreement",
    "Confidence",
    "Cost and speed",
    "Quality",
    "Provenance",
    "Published",
)
_OPENING: Final = """# Questions and the SQL that answers them

Made by `exitbench sql --cookbook`; do not edit. Every query here is a saved one: `exitbench sql @NAME` runs it,
`--set NAME=VALUE` gives a parameter another value, `--out rows.parquet` saves the rows.

    exitbench sql @near_ties --set margin=0.01 --set 'method=calm-*'

`exitbench sql` lists the questions, `exitbench sql --queries near ties` those with these words. `label` has the
parameters that distinguish a run from others of its method; filter by `threshold`, or by `name` and `value` of the
view `parameters`.

Parameters below have their default values, so a query can be pasted into any program that reads DuckDB files:

    duckdb -readonly runs/exitbench.duckdb < query.sql

DuckDB 1.4 and newer reads the file, and so do DBeaver and others through its drivers. SQLAlchemy reflects views and
tables through `create_engine("duckdb+exitbench:///runs/exitbench.duckdb")`, which opens the file for reading.

Patterns are globs: `*` anything, `?` a letter, `[ab]` one of these. Queries that scan tokens use the first documents of
each run by key, the same for every run; raise `documents` for more precise numbers. `exitbench sql --schema` explains
the views; blocks and positions are numbered from 1. A token exits after block `exit_layer`; `blocks_run` blocks were
executed for it, more than the exit layer if skipped blocks are run later. `token_match` is the agreement: a share of
full depth's tokens."""


def cookbook_markdown() -> str:
    """Return the SQL cookbook in Markdown: contents, and every saved query with its question and parameters."""
    queries = [saved_query(name) for name in query_names()]
    parts = [_OPENING, _contents(queries)]
    for section in SECTIONS:
        parts += [f"## {section}", *(_chapter(query) for query in _in_section(section, queries))]
    return "\n\n".join(parts) + "\n"


def _in_section(section: str, queries: Sequence[SavedQuery]) -> list[SavedQuery]:
    return [query for query in queries if query.section == section]


def _contents(queries: Sequence[SavedQuery]) -> str:
    return "\n\n".join(
        "\n".join(
            [f"**{section}**", "", *(f"- [{query.question}](#{query.name})" for query in _in_section(section, queries))]
        )
        for section in SECTIONS
    )


def _chapter(query: SavedQuery) -> str:
    lines = [f'### <a id="{query.name}"></a>{query.question}', "", f"`exitbench sql @{query.name}`", "", query.reading]
    if query.defaults:
        lines += ["", "| parameter | default | |", "|---|---|---|"]
        lines += [
            f"| {name} | `{parameter_text(value)}` | {query.meanings[name]} |" for name, value in query.defaults.items()
        ]
    return "\n".join([*lines, "", "```sql", query.with_defaults().strip(), "```"])
