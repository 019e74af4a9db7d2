"""Tables with one row per document agree with the token tables, and queries give the same results from both."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from exitbench.results.database.connection import Database, open_database
from exitbench.results.ingest.load import fill_sql
from exitbench.results.queries import saved_query
from exitbench.results.tables import TABLES

# What the queries asked before there were tables of documents: every token, joined by its place.
TOKENS = """
    WITH compared AS (
        SELECT
            attempt_id, doc_key, count(full_token_id) > 0 AS is_known,
            min(position) FILTER (token_id IS DISTINCT FROM full_token_id) AS first_divergence
        FROM token_exit GROUP BY ALL
    ),
    tokens AS (
        SELECT
            n.*, t.* EXCLUDE (attempt_id),
            CASE WHEN is_known THEN coalesce(t.token_id = t.full_token_id, false) END AS equal_full,
            CASE WHEN is_known THEN coalesce(t.position >= first_divergence, false) END AS diverged,
            coalesce(t.position <= first_divergence, true) AND is_known AS is_probed
        FROM token_exit AS t JOIN compared USING (attempt_id, doc_key) JOIN run_names AS n USING (attempt_id)
        WHERE execution = 'real'
    ),
    probed AS (
        SELECT t.*, p.first_match, r.first_token
        FROM tokens AS t
        JOIN runs AS r USING (attempt_id)
        JOIN plain_probes AS b ON b.full_depth_cell_id = r.full_depth_cell_id AND b.is_latest
        JOIN probe_token AS p ON p.attempt_id = b.attempt_id AND p.doc_key = t.doc_key AND p.position = t.position
        WHERE p.choice IS NULL AND t.is_probed
    )
"""
PLAIN = {
    "after_the_first_error": """
        SELECT
            model, task_label, method, label, kv_policy, seed, diverged, avg(equal_full::INTEGER), avg(exit_layer),
            count(*)
        FROM tokens WHERE method <> 'full' AND diverged IS NOT NULL GROUP BY ALL
    """,
    "deeper_was_right": """
        SELECT
            model, task_label, method, label, kv_policy, seed, avg(first_match - exit_layer),
            avg((first_match - exit_layer = 1)::INTEGER), avg(score), count(*)
        FROM probed WHERE diverged AND exit_layer < first_match GROUP BY ALL
    """,
    "wasted_blocks": """
        SELECT
            model, task_label, method, label, kv_policy, seed, avg(greatest(exit_layer - first_match, 0)),
            avg((exit_layer < first_match)::INTEGER), avg((exit_layer = first_match)::INTEGER), count(*)
        FROM probed WHERE NOT diverged AND method <> 'full' AND (position > 1 OR first_token = 'gated') GROUP BY ALL
    """,
    "overlap_of_methods": """
        SELECT
            a.model, a.task_label, a.method, a.label, a.kv_policy, seed, b.method, b.label, b.kv_policy,
            avg((a.exit_layer = b.exit_layer)::INTEGER), nullif(corr(a.exit_layer, b.exit_layer), 'nan'),
            avg((a.equal_full AND b.equal_full)::INTEGER), count(*)
        FROM tokens AS a JOIN tokens AS b USING (model, task_label, seed, doc_key, position)
        WHERE a.method GLOB 'calm-*' AND a.method <> b.method GROUP BY ALL
    """,
}
REPLAY = """
    WITH probes AS (
        SELECT attempt_id, model, task_label, first_token FROM plain_probes WHERE is_largest AND {kept}
    ),
    replayed AS (
        SELECT
            model, task_label, threshold, top1_id, full_token_id,
            CASE WHEN position = 1 AND first_token = 'full' THEN len(p1)
                ELSE coalesce(list_position([x[1] - x[2] > threshold for x in list_zip(p1, p2)], true), len(p1))
            END AS exit_layer
        FROM probe_token
        JOIN probes USING (attempt_id)
        CROSS JOIN (SELECT unnest(range(5, 100, 5)) / 100 AS threshold)
        WHERE choice IS NULL AND doc_key <= (
            SELECT doc_key FROM document_probe GROUP BY ALL ORDER BY ALL LIMIT 1 OFFSET 3
        )
    )
    SELECT
        model, task_label, threshold, avg(exit_layer) AS depth,
        avg((top1_id[exit_layer] = full_token_id)::INTEGER) AS matched, count(*) AS n
    FROM replayed GROUP BY ALL
"""


@pytest.fixture(scope="module")
def edited(example_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Yield the example database after edits, with its tables of one row per document filled again.

    One run's trace lacks full depth's tokens, another lacks a token of each document, and first tokens of causal models
    are read from the prompt's own pass.
    """
    path = tmp_path_factory.mktemp("edited") / "exitbench.duckdb"
    shutil.copyfile(example_database, path)
    runs = "SELECT attempt_id FROM runs WHERE method = 'calm-softmax' AND kind = 'quality' ORDER BY 1"
    with duckdb.connect(path) as duck:
        duck.execute(f"UPDATE token_exit SET full_token_id = NULL WHERE attempt_id = ({runs} LIMIT 1)")
        duck.execute(f"DELETE FROM token_exit WHERE position = 5 AND attempt_id = ({runs} LIMIT 1 OFFSET 1)")
        duck.execute("""UPDATE cell SET generation = json_merge_patch(generation, '{"first_token": "full"}')""")
        for table, derived in (("token_exit", "document_exit"), ("probe_token", "document_probe")):
            duck.execute(f"DELETE FROM {derived}")
            duck.execute(fill(table))
    with open_database(path) as opened:
        yield opened


def fill(table: str) -> str:
    """Return the SQL that fills a table of one row per document."""
    sql = fill_sql(table, f"FROM {table}")
    assert sql is not None
    return sql


def _close(rows: list[tuple[Any, ...]]) -> list[Any]:
    return [tuple(pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for v in row) for row in rows]


def _by_key(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: [str(value) for value in row])


def test_document_lists_contain_its_tokens_in_order(edited: Database) -> None:
    tokens = """
        SELECT attempt_id, doc_key, position, exit_layer, coalesce(token_id = full_token_id, false) FROM token_exit
    """
    unnested = """
        SELECT
            attempt_id, doc_key, unnest(range(1, len(exit_layer) + 1)), unnest(exit_layer), unnest(is_equal)
        FROM document_exit
    """
    probes = "SELECT attempt_id, doc_key, position, first_match FROM probe_token WHERE choice IS NULL"
    matches = """
        SELECT attempt_id, doc_key, unnest(range(1, len(first_match) + 1)), unnest(first_match) FROM document_probe
    """
    for stored, derived in ((tokens, unnested), (probes, matches)):
        assert edited.rows(f"{stored} ORDER BY ALL")[1] == edited.rows(f"{derived} ORDER BY ALL")[1]


def test_divergence_is_null_when_full_depth_tokens_are_unknown(edited: Database) -> None:
    rows = edited.rows("SELECT DISTINCT diverged, equal_full FROM token_trace WHERE full_token_id IS NULL")[1]
    assert rows == [(None, None)]


def test_documents_with_missing_positions_have_no_lists(tmp_path: Path) -> None:
    path = tmp_path / "exitbench.duckdb"
    with open_database(path, read_only=False) as database:
        for position in (1, 3):
            database.duck.execute(
                "INSERT INTO token_exit BY NAME SELECT 'x' AS attempt_id, 'a' AS doc_key, $1 AS position, "
                "7 AS token_id, 7 AS full_token_id, 2 AS exit_layer, 2 AS blocks_run, 'threshold' AS reason",
                [position],
            )
        database.duck.execute(fill("token_exit"))
        assert database.rows("SELECT is_known, first_divergence, exit_layer, is_equal FROM document_exit")[1] == [
            (True, None, None, None)
        ]


def test_probed_tokens_of_given_texts_are_left_out_of_document_probe(tmp_path: Path) -> None:
    values = {
        column.name: "[1]" if column.type.endswith("[]") else "1"
        for column in TABLES["probe_token"].columns
        if column.name not in ("attempt_id", "choice")
    }
    with open_database(tmp_path / "exitbench.duckdb", read_only=False) as database:
        rows = f"SELECT {', '.join(f'{value} AS {name}' for name, value in values.items())}"
        for attempt_id, choice in (("x", "NULL"), ("y", "0")):
            database.duck.execute(
                f"INSERT INTO probe_token BY NAME SELECT '{attempt_id}' AS attempt_id, {choice}::INTEGER AS choice, *"
                f" FROM ({rows})"
            )
        database.duck.execute(fill("probe_token"))
        assert database.rows("SELECT attempt_id, first_match FROM document_probe")[1] == [("x", [1])]


@pytest.mark.parametrize("name", PLAIN)
def test_query_over_documents_equals_query_over_tokens(edited: Database, name: str) -> None:
    query = saved_query(name)
    answer = edited.rows(query.sql, query.defaults or None)[1]
    expected = edited.rows(f"{TOKENS} {PLAIN[name]}")[1]
    assert answer
    assert _by_key(answer) == _close(_by_key(expected))


@pytest.mark.parametrize("name", ["threshold_replay", "threshold_for_agreement"])
def test_replay_of_a_document_subset_equals_token_by_token_replay(edited: Database, name: str) -> None:
    query = saved_query(name)
    plain = REPLAY.format(kept="NOT random_weights" if name == "threshold_replay" else "true")
    smallest = f"""
        FROM ({plain}) WHERE matched >= 0.9
        QUALIFY row_number() OVER (PARTITION BY model, task_label ORDER BY threshold) = 1
    """
    chosen = plain if name == "threshold_replay" else smallest
    params = {**query.defaults, "documents": 4} | ({"agreement": 0.9} if "agreement" in query.defaults else {})
    columns = "model, task_label, threshold, mean_exit_layer, token_match, n"
    answer = edited.rows(f"SELECT {columns} FROM ({query.sql.rstrip().rstrip(';')})", params)[1]
    expected = edited.rows(f"SELECT model, task_label, threshold, depth, matched, n FROM ({chosen})")[1]
    assert answer
    assert _by_key(answer) == _close(_by_key(expected))
