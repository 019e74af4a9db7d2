"""Tables with one row per document, built from the tokens of its answer, for queries about whole documents."""

from typing import Final

_IN_ORDER: Final = "min(position) = 1 AND max(position) = count(*)"
"""SQL condition that index and position agree in a list; every version of ExitBench has written positions 1..n."""

_FILL: Final = {
    "token_exit": f"""
        INSERT INTO document_exit BY NAME
        SELECT
            attempt_id, doc_key, count(full_token_id) > 0 AS is_known,
            min(position) FILTER (token_id IS DISTINCT FROM full_token_id) AS first_divergence,
            arg_min_null(score, position) FILTER (token_id IS DISTINCT FROM full_token_id) AS divergence_score,
            CASE WHEN {_IN_ORDER} THEN list(exit_layer ORDER BY position) END AS exit_layer,
            CASE WHEN {_IN_ORDER} THEN list(coalesce(token_id = full_token_id, false) ORDER BY position) END AS is_equal
        FROM ({{rows}}) WHERE choice IS NULL GROUP BY attempt_id, doc_key
    """,
    "probe_token": f"""
        INSERT INTO document_probe BY NAME
        SELECT
            attempt_id, doc_key, CASE WHEN {_IN_ORDER} THEN list(first_match ORDER BY position) END AS first_match
        FROM ({{rows}}) WHERE choice IS NULL
        GROUP BY attempt_id, doc_key
    """,
}


def fill_sql(table: str, rows: str) -> str | None:
    """Return SQL that adds the documents of new rows; None if no table of documents is built from the table.

    Args:
        table: Table of the new rows.
        rows: SQL that selects the new rows.
    """
    fill = _FILL.get(table)
    return None if fill is None else fill.format(rows=rows)
