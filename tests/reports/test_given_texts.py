"""Given texts are stored with answers: queries about answers exclude them, queries about exits include both."""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from exitbench.reports import figures, tables
from exitbench.reports.claims.claim import read_claims
from exitbench.reports.frame import NAMING_VIEWS, computed_once
from exitbench.reports.registry import discover
from exitbench.results.database.connection import Database, open_database
from exitbench.results.queries import query_names, saved_query

TOKENS = ("token_exit", "probe_token", "score_token")
READS_TOKENS = re.compile(
    r"\b(token_exit|token_trace|token_probe|probe_token|probe_trace|layer_trace|score_token|score_trace|exit_histogram)\b"
)
SHARED = ("metric_values", "published", "frontier", "paired", "pareto")
"""Views that many of the queries read."""
OF_BOTH = {"exit_by_position", "gate_never_opens", "head_work", "work_caught_up", "exit_histogram"}
"""Queries about exits and their cost, which cover scored and generated tokens."""


def sources() -> Iterator[tuple[str, str]]:
    for name in query_names():
        yield name, saved_query(name).with_defaults()
    for package in (figures, tables):
        for source in discover(package):
            yield source.name, source.sql
    for claim in read_claims():
        yield claim.claim_id, claim.evidence_sql or ""


@pytest.fixture(scope="module")
def databases(few_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Database]]:
    """Yield three forms of the example database: unchanged, with all tokens from given texts, and without tokens."""
    folder = tmp_path_factory.mktemp("given")
    changes = {
        "answers": "SELECT 1",
        "given": "; ".join(
            [
                "UPDATE token_exit SET full_token_id = NULL, token_kind = NULL",
                "UPDATE probe_token SET token_kind = NULL",
                *(f"UPDATE {table} SET choice = 1" for table in TOKENS),
            ]
        ),
        "none": "; ".join(f"DELETE FROM {table}" for table in TOKENS),
    }
    opened = {}
    for name, change in changes.items():
        path = Path(shutil.copy(few_database, folder / f"{name}.duckdb"))
        with duckdb.connect(str(path)) as connection:
            connection.execute(change)
            if name != "answers":  # ingest makes these of answers
                connection.execute("DELETE FROM document_exit; DELETE FROM document_probe")
        opened[name] = open_database(path)
        losses = "model_artifact, (VALUES ('last'), ('weighted')) AS losses(loss)"
        opened[name].duck.execute(  # claims and figures are of trained models
            "CREATE TEMP VIEW trainings AS "
            f"SELECT DISTINCT name AS model, NULL::VARCHAR AS recipe, loss, weights_sha256 FROM {losses};"
            "CREATE TEMP VIEW objectives AS "
            "SELECT DISTINCT name AS model, loss, NULL::INTEGER[] AS trained_blocks, NULL::VARCHAR AS training "
            f"FROM {losses}"
        )
    with ExitStack() as stack:
        for database in opened.values():
            stack.enter_context(closing(database))
            stack.enter_context(computed_once(database, (*NAMING_VIEWS, *SHARED)))
        yield opened


def rows_of(database: Database, sql: str) -> list[Any]:
    return sorted(map(repr, database.rows(sql)[1]))


def test_only_queries_about_exits_include_tokens_of_given_texts(databases: Mapping[str, Database]) -> None:
    queries = {name: sql for name, sql in sources() if READS_TOKENS.search(sql)}
    assert len(queries) > 50
    given_rows, rows_without = (
        {name: rows_of(databases[name_of_database], sql) for name, sql in queries.items()}
        for name_of_database in ("given", "none")
    )
    assert {name for name in queries if given_rows[name] != rows_without[name]} == OF_BOTH
    assert all(given_rows[name] == rows_of(databases["answers"], queries[name]) for name in OF_BOTH)
