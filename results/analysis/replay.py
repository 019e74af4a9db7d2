"""Replay a gate over a probe (each block's prediction per token) at many thresholds: exit layers and agreement.

A token exits at the first gated block whose score exceeds the threshold, else at the last block. So it does not exit at
gated blocks up to l if the threshold is at least its highest score at these blocks. With sorted thresholds, one number
per gated block describes a token: how many thresholds are below its highest score so far. Sums over tokens are
collected by these numbers and cumulated over the thresholds once, at the end. The cost is tokens times blocks times the
logarithm of the number of thresholds.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

Counts = NDArray[np.int64]
Thresholds = NDArray[np.float32]

_THRESHOLDS: Final = "replay_thresholds"
_DOCUMENTS: Final = "replay_documents"


@dataclass(frozen=True)
class ThresholdSweep:
    """Sums over the tokens of each of D documents, or of all documents together (D = 1), for each of K thresholds.

    Attributes:
        documents: Document keys in order; None if all documents are summed together.
        tokens: Number of tokens, [D].
        exit_layers: Sum of the tokens' exit layers, [D, K].
        matches: Number of tokens whose block of exit predicts the full-depth token, [D, K].
    """

    documents: tuple[str, ...] | None
    tokens: Counts
    exit_layers: Counts
    matches: Counts

    @property
    def mean_exit_layer(self) -> NDArray[np.float64]:
        """Mean exit layer over the tokens of all documents, for each of K thresholds, [K]."""
        mean: NDArray[np.float64] = self.exit_layers.sum(axis=0) / self.tokens.sum()
        return mean

    @property
    def token_match(self) -> NDArray[np.float64]:
        """Share of the tokens of all documents that equal the full-depth token, for each of K thresholds, [K]."""
        share: NDArray[np.float64] = self.matches.sum(axis=0) / self.tokens.sum()
        return share


def thresholds_by_position(
    connection: duckdb.DuckDBPyConnection, expressions: Sequence[str], positions: int
) -> Thresholds:
    """Return the values of K SQL expressions over ``position`` at positions 1..P, as thresholds [P, K]."""
    columns = ", ".join(f"({expression})::FLOAT" for expression in expressions)
    rows = connection.execute(
        f"SELECT [{columns}] FROM range(1, {positions + 1}) AS positions(position) ORDER BY position"
    ).fetchall()
    return np.array([row for (row,) in rows], dtype=np.float32).reshape(positions, len(expressions))


def sweep(
    connection: duckdb.DuckDBPyConnection,
    source: str,
    score_sql: str,
    emitted_sql: str,
    gate_blocks: Sequence[int],
    n_blocks: int,
    thresholds: ArrayLike,
    per_document: bool = False,
    first_position: int = 1,
) -> ThresholdSweep:
    """Return sums of exit layers and of matches with full depth at every threshold, replayed from a probe.

    A replay recomputes exits from the probe's records; the model does not run. Scores and thresholds are compared as
    FLOAT. At a NULL score no token exits.

    Args:
        connection: Connection that can read `source`.
        source: SQL FROM clause of the probe, with one row per token and columns `doc_key`, `position` and
            `full_token_id`. No column may be named `l`, which stands for the block in the next two arguments.
        score_sql: SQL expression over a row for the gate's score at block ``l``.
        emitted_sql: SQL expression over a row for the token that block ``l`` would emit.
        gate_blocks: Blocks at which the gate is evaluated; the last block needs no gate.
        n_blocks: Number of decoder blocks, L.
        thresholds: K thresholds in any order, [K]; or K per position, [P, K], with row p - 1 for position p of 1..P.
        per_document: True to keep documents separate, for intervals over documents.
        first_position: First position whose token may exit early; tokens before it exit at the last block.

    Raises:
        ValueError: The probe has no tokens, NaN scores or NULL tokens, or a block is out of range. Or the thresholds
            are empty, NaN, of the wrong shape, missing for a position, or ordered differently at different positions.
    """
    if any(not 1 <= block <= n_blocks for block in gate_blocks):
        raise ValueError(f"the gate's blocks {sorted(gate_blocks)} are not within 1 to {n_blocks}")
    table, order = _sorted(thresholds)
    by_position = np.ndim(thresholds) == 2
    documents = _documents(connection, source, per_document, positions=len(table) if by_position else None)
    exits = [*sorted(set(gate_blocks) - {n_blocks}), n_blocks]
    n_thresholds = table.shape[1]
    width = 1 << n_thresholds.bit_length()  # a power of two, more than K, as bisection needs
    if first_position > 1:
        score_sql = f"CASE WHEN position >= {first_position} THEN {score_sql} END"
    padded = np.pad(table, ((0, 0), (0, width - n_thresholds)), constant_values=np.inf)
    row_start = f"(position::INTEGER - 1) * {width}" if by_position else "0"
    tokens = _best_so_far(f"(SELECT * FROM {source})", score_sql, emitted_sql, exits)
    tokens = f"(SELECT *, {row_start} AS row_start FROM {tokens} CROSS JOIN {_THRESHOLDS})"
    tokens = _thresholds_below(tokens, exits, width)
    if per_document:
        tokens = f"{tokens} JOIN {_DOCUMENTS} USING (doc_key)"
    with _registered(connection, {_THRESHOLDS: _sorted_list(padded), _DOCUMENTS: documents}):
        changes = connection.execute(_steps(tokens, exits, "document" if per_document else "0")).fetchnumpy()
    if changes["is_nan"].any():
        raise ValueError(f"the scores {score_sql!r} have NaN entries, which cannot be compared with thresholds")
    if changes["missing"].any():
        raise ValueError(f"the tokens {emitted_sql!r} or full_token_id are missing at some blocks of 1 to {n_blocks}")
    exit_layers, matches = (
        _cumulated((changes["document"], changes["below"]), changes[name], len(documents), order)
        for name in ("exit_layer", "matches")
    )
    keys = tuple(documents["doc_key"].to_pylist()) if per_document else None
    return ThresholdSweep(keys, documents["tokens"].to_numpy(), exit_layers, matches)


def _sorted(thresholds: ArrayLike) -> tuple[Thresholds, NDArray[np.intp]]:
    """Return the thresholds with columns in ascending order, [P, K], and the original index of each column, [K].

    P is 1 if the thresholds are the same at all positions.
    """
    table = np.atleast_2d(np.asarray(thresholds, dtype=np.float32))
    if table.ndim != 2 or table.size == 0:
        raise ValueError(f"thresholds are [K] or [positions, K], at least one; not {np.shape(thresholds)}")
    if np.isnan(table).any():
        raise ValueError("thresholds have NaN entries")
    # Sort by the first position; ties (such as clipped values) by the next.
    order = np.lexsort(table[::-1])
    table = table[:, order]
    if (table[:, 1:] < table[:, :-1]).any():
        raise ValueError(
            "thresholds cross: of two, the higher must not be the lower at another position; sweep them separately"
        )
    return table, order


def _documents(
    connection: duckdb.DuckDBPyConnection, source: str, per_document: bool, positions: int | None
) -> pa.Table:
    """Return key, index from 0 and number of tokens of every document, after checking that positions have thresholds.

    Args:
        connection: Connection that can read `source`.
        source: SQL FROM clause of the probe.
        per_document: False for a single row over all documents.
        positions: Number of positions that have thresholds; None if the thresholds do not depend on the position.
    """
    key = "doc_key" if per_document else "NULL"
    documents = connection.sql(
        f"""
        SELECT {key} AS doc_key, count(*) AS tokens, min(coalesce(position, 0)) AS first, max(position) AS last
        FROM {source} GROUP BY 1 ORDER BY 1
        """
    ).to_arrow_table()
    if not documents.num_rows:
        raise ValueError("there are no tokens to replay")
    first, last = min(documents["first"].to_pylist()), max(documents["last"].to_pylist())
    if positions is not None and not 1 <= first <= last <= positions:
        raise ValueError(f"tokens are at positions {first} to {last}, thresholds at 1 to {positions}")
    return documents.append_column("document", pa.array(range(len(documents)), pa.int32()))


def _best_so_far(tokens: str, score_sql: str, emitted_sql: str, exits: Sequence[int]) -> str:
    """Return SQL that adds columns `best_l` and `match_l` to each token row, for every block l in `exits`.

    `exits` are the gated blocks and the last block. `best_l` is the highest gate score at blocks up to l; `match_l` is
    1 if block l would emit the full-depth token. There is one nested SELECT per block: in SQL only a column named ``l``
    can bind the variable ``l``. Other arguments are as in `sweep`.
    """
    query = f"(SELECT *, NULL::FLOAT AS best_0, {exits[0]}::INTEGER AS l FROM {tokens})"
    match = f"({emitted_sql} = full_token_id)::INTEGER"
    # NaN counts as the largest value, so the last best score shows any NaN.
    for before, block, after in zip([0, *exits], exits, exits[1:], strict=False):
        query = f"""(
            SELECT * REPLACE ({after}::INTEGER AS l),
                   greatest(best_{before}, ({score_sql})::FLOAT) AS best_{block}, {match} AS match_{block}
            FROM {query})"""
    return f"(SELECT *, {match} AS match_{exits[-1]} FROM {query})"


def _thresholds_below(tokens: str, exits: Sequence[int], width: int) -> str:
    """Return SQL that adds to each token row, for every gated block l, `below_l`: the number of thresholds < `best_l`.

    The SQL bisects the list `sorted`, which has `width` thresholds per position. `exits` are the gated blocks and the
    last.
    """
    gated = exits[:-1]
    query = f"(SELECT *{''.join(f', 0::INTEGER AS below_{block}' for block in gated)} FROM {tokens})"
    step = width // 2
    while step and gated:
        halved = ", ".join(
            f"below_{block} + CASE WHEN sorted[row_start + below_{block} + {step}] < best_{block} "
            f"THEN {step} ELSE 0 END AS below_{block}"
            for block in gated
        )
        query = f"(SELECT * REPLACE ({halved}) FROM {query})"
        step //= 2
    return query


def _steps(tokens: str, exits: Sequence[int], document: str) -> str:
    """Return SQL that sums over a document's tokens how exit layer and match change from one threshold to the next.

    At the lowest thresholds a token exits at the first block in `exits`. The `below_l` thresholds below its highest
    score up to block l let it exit by block l; from the next sorted threshold on, it exits later.
    """
    pairs = list(pairwise(exits))
    places = ["0", *(f"below_{block}" for block, _ in pairs)]
    exit_layer = [str(exits[0]), *(str(after - block) for block, after in pairs)]
    matches = [f"match_{exits[0]}", *(f"match_{after} - match_{block}" for block, after in pairs)]
    is_nan = f"coalesce(isnan(best_{pairs[-1][0]}), false)" if pairs else "false"
    return f"""
        SELECT document, below, sum(exit_layer)::BIGINT AS exit_layer, coalesce(sum(matches), 0)::BIGINT AS matches,
               bool_or(is_nan) AS is_nan, bool_or(matches IS NULL) AS missing
        FROM (
            SELECT {document} AS document, {is_nan} AS is_nan, unnest([{", ".join(places)}]) AS below,
                   unnest([{", ".join(exit_layer)}]) AS exit_layer, unnest([{", ".join(matches)}]) AS matches
            FROM {tokens}
        )
        GROUP BY document, below
    """


def _sorted_list(table: Thresholds) -> pa.Table:
    """Return a one-row table. Its column `sorted` joins the rows of `table`: each position's ascending thresholds."""
    return pa.table({"sorted": pa.ListArray.from_arrays(pa.array([0, table.size], pa.int32()), table.ravel())})


@contextmanager
def _registered(connection: duckdb.DuckDBPyConnection, tables: dict[str, pa.Table]) -> Iterator[None]:
    for name, table in tables.items():
        connection.register(name, table)
    try:
        yield
    finally:
        for name in tables:
            connection.unregister(name)


def _cumulated(indices: tuple[Counts, Counts], changes: Counts, n_documents: int, order: NDArray[np.intp]) -> Counts:
    """Return the sums per document and threshold, [D, K], by adding up their changes between sorted thresholds.

    Args:
        indices: Document index and sorted threshold index of each change.
        changes: The changes.
        n_documents: Number of documents, D.
        order: Original index of each sorted threshold, [K].
    """
    steps = np.zeros((n_documents, len(order) + 1), dtype=np.int64)
    steps[indices] = changes
    sums = np.empty((n_documents, len(order)), dtype=np.int64)
    sums[:, order] = steps.cumsum(axis=1)[:, :-1]
    return sums
