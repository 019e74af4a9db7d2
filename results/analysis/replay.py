"""Replay a gate over a probe (each block's prediction per token) at many thresholds: exit layers and agreement.

A token exits at the first gated block whose score exceeds the threshold, else at the last block. So it does not exit at
gated blocks up to l if the threshold is at least its highest score at these blocks. With sorted thresholds, one number
per gated block describes a token: how many thresholds are below its highest score so far. Sums over tokens are
collected by these numbers and cumulated over the thresholds once, at the end. The cost is tokens times blocks times the
logarithm of the number of thresholds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Thresholds = NDArray[np.float32]
Means = NDArray[np.float64]

_THRESHOLDS: Final = "replay_thresholds"


@dataclass(frozen=True)
class ThresholdSweep:
    """Means over a probe's tokens, for each of K thresholds.

    Attributes:
        mean_exit_layer: Mean exit layer, [K].
        token_match: Share of tokens whose block of exit predicts the full-depth token, [K].
    """

    mean_exit_layer: Means
    token_match: Means


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
    thresholds: Thresholds,
    first_position: int = 1,
) -> ThresholdSweep:
    """Return mean exit layer and share of matches with full depth at every threshold, replayed from a probe.

    A replay recomputes exits from the probe's records; the model does not run. Scores and thresholds are compared as
    FLOAT. At a NULL score no token exits.

    Args:
        connection: Connection that can read `source`.
        source: SQL FROM clause of the probe, with one row per token and columns `position` and `full_token_id`.
            No column may be named `l`, which stands for the block in the next two arguments.
        score_sql: SQL expression over a row for the gate's score at block ``l``.
        emitted_sql: SQL expression over a row for the token that block ``l`` would emit.
        gate_blocks: Blocks at which the gate is evaluated; the last block needs no gate.
        n_blocks: Number of decoder blocks, L.
        thresholds: K thresholds in any order per position, [P, K]; row p - 1 is for position p of 1..P.
        first_position: First position whose token may exit early; tokens before it exit at the last block.

    Raises:
        ValueError: The probe has no tokens, NaN scores or NULL tokens, or a block is out of range. Or the thresholds
            are empty, NaN, of the wrong shape, missing for a position, or ordered differently at different positions.
    """
    if any(not 1 <= block <= n_blocks for block in gate_blocks):
        raise ValueError(f"the gate's blocks {sorted(gate_blocks)} are not within 1 to {n_blocks}")
    table, order = _sorted(thresholds)
    n_tokens = _count_tokens(connection, source, len(table))
    exits = [*sorted(set(gate_blocks) - {n_blocks}), n_blocks]
    n_thresholds = table.shape[1]
    width = 1 << n_thresholds.bit_length()  # a power of two, more than K, as bisection needs
    if first_position > 1:
        score_sql = f"CASE WHEN position >= {first_position} THEN {score_sql} END"
    padded = np.pad(table, ((0, 0), (0, width - n_thresholds)), constant_values=np.inf)
    tokens = _best_so_far(f"(SELECT * FROM {source})", score_sql, emitted_sql, exits)
    row_start = f"(position::INTEGER - 1) * {width}"
    tokens = f"(SELECT *, {row_start} AS row_start FROM {tokens} CROSS JOIN {_THRESHOLDS})"
    tokens = _thresholds_below(tokens, exits, width)
    connection.register(_THRESHOLDS, _sorted_list(padded))
    try:
        changes = connection.execute(_steps(tokens, exits)).fetchnumpy()
    finally:
        connection.unregister(_THRESHOLDS)
    if changes["is_nan"].any():
        raise ValueError(f"the scores {score_sql!r} have NaN entries, which cannot be compared with thresholds")
    if changes["missing"].any():
        raise ValueError(f"the tokens {emitted_sql!r} or full_token_id are missing at some blocks of 1 to {n_blocks}")
    exit_layer, matches = (
        _cumulated(changes["below"], changes[name], order) / n_tokens for name in ("exit_layer", "matches")
    )
    return ThresholdSweep(exit_layer, matches)


def _sorted(thresholds: Thresholds) -> tuple[Thresholds, NDArray[np.intp]]:
    """Return the thresholds with columns in ascending order, [P, K], and the original index of each column, [K]."""
    if thresholds.ndim != 2 or thresholds.size == 0:
        raise ValueError(f"thresholds are [positions, K], at least one; not {thresholds.shape}")
    if np.isnan(thresholds).any():
        raise ValueError("thresholds have NaN entries")
    # Sort by the first position; ties (such as clipped values) by the next.
    order = np.lexsort(thresholds[::-1])
    table = thresholds[:, order]
    if (table[:, 1:] < table[:, :-1]).any():
        raise ValueError(
            "thresholds cross: of two, the higher must not be the lower at another position; sweep them separately"
        )
    return table, order


def _count_tokens(connection: duckdb.DuckDBPyConnection, source: str, positions: int) -> int:
    """Return the number of tokens of a probe, after checking that all are at the positions that have thresholds."""
    n_tokens, first, last = connection.sql(
        f"SELECT count(*), min(coalesce(position, 0)), max(position) FROM {source}"
    ).fetchall()[0]
    if not n_tokens:
        raise ValueError("there are no tokens to replay")
    if not 1 <= first <= last <= positions:
        raise ValueError(f"tokens are at positions {first} to {last}, thresholds at 1 to {positions}")
    return int(n_tokens)


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


def _steps(tokens: str, exits: Sequence[int]) -> str:
    """Return SQL that sums over tokens how exit layer and match change from one threshold to the next.

    At the lowest thresholds a token exits at the first block in `exits`. The `below_l` thresholds below its highest
    score up to block l let it exit by block l; from the next sorted threshold on, it exits later.
    """
    pairs = list(pairwise(exits))
    places = ["0", *(f"below_{block}" for block, _ in pairs)]
    exit_layer = [str(exits[0]), *(str(after - block) for block, after in pairs)]
    matches = [f"match_{exits[0]}", *(f"match_{after} - match_{block}" for block, after in pairs)]
    is_nan = f"coalesce(isnan(best_{pairs[-1][0]}), false)" if pairs else "false"
    return f"""
        SELECT below, sum(exit_layer)::BIGINT AS exit_layer, coalesce(sum(matches), 0)::BIGINT AS matches,
               bool_or(is_nan) AS is_nan, bool_or(matches IS NULL) AS missing
        FROM (
            SELECT {is_nan} AS is_nan, unnest([{", ".join(places)}]) AS below,
                   unnest([{", ".join(exit_layer)}]) AS exit_layer, unnest([{", ".join(matches)}]) AS matches
            FROM {tokens}
        )
        GROUP BY below
    """


def _sorted_list(table: Thresholds) -> pa.Table:
    """Return a one-row table. Its column `sorted` joins the rows of `table`: each position's ascending thresholds."""
    return pa.table({"sorted": pa.ListArray.from_arrays(pa.array([0, table.size], pa.int32()), table.ravel())})


def _cumulated(below: NDArray[np.int64], changes: NDArray[np.int64], order: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return the sum per threshold, [K], by adding up its changes between sorted thresholds.

    Args:
        below: Sorted threshold index of each change.
        changes: The changes.
        order: Original index of each sorted threshold, [K].
    """
    steps = np.zeros(len(order) + 1, dtype=np.int64)
    steps[below] = changes
    sums = np.empty(len(order), dtype=np.int64)
    sums[order] = steps.cumsum()[:-1]
    return sums
