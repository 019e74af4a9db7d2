"""A sweep of thresholds gives the result of evaluating the gate block by block, for every token and threshold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exitbench.results.analysis.replay import ThresholdSweep, sweep, thresholds_by_position

L = 6
POSITIONS = 5
GRID = [0.0, 0.25, 0.5, 0.75, 1.0]
PROBE = pa.schema(
    {
        "doc_key": pa.string(),
        "position": pa.int16(),
        "full_token_id": pa.int32(),
        "top1_id": pa.list_(pa.int32()),
        "p1": pa.list_(pa.float32()),
        "p2": pa.list_(pa.float32()),
    }
)
Row = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """Score of a gate, written by hand in SQL and in Python."""

    sql: str
    python: Callable[[Row, int], float]


def _rising(row: Row, block: int) -> float:
    p1 = [None, *row["p1"]]
    rises = block >= 3 and p1[block - 2] < p1[block - 1] < p1[block]
    return float(p1[block]) if rises else 0.0


RULES = {
    "margin": Rule("p1[l] - p2[l]", lambda row, block: row["p1"][block - 1] - row["p2"][block - 1]),
    "top": Rule("p1[l]", lambda row, block: row["p1"][block - 1]),
    "rising": Rule("CASE WHEN l >= 3 AND p1[l-2] < p1[l-1] AND p1[l-1] < p1[l] THEN p1[l] ELSE 0 END", _rising),
    "settled": Rule(
        "top1_id[l] = top1_id[-1]", lambda row, block: float(row["top1_id"][block - 1] == row["top1_id"][-1])
    ),
}


def _probe(n: int, seed: int = 0) -> list[Row]:
    """Return tokens with scores on a coarse grid, so that many scores equal each other and a threshold."""
    rng = np.random.default_rng(seed)
    return [
        {
            "doc_key": f"d{i // POSITIONS:03}",
            "position": i % POSITIONS + 1,
            "full_token_id": 1,
            "top1_id": [*rng.integers(1, 3, L - 1).tolist(), 1],
            "p1": rng.choice(GRID, L).tolist(),
            "p2": rng.choice(GRID, L).tolist(),
        }
        for i in range(n)
    ]


def _exit(row: Row, rule: Rule, gate_blocks: Sequence[int], threshold: float) -> int:
    for block in sorted(gate_blocks):
        if block < L and rule.python(row, block) > threshold:
            return block
    return L


def _loop(
    rows: list[Row], rule: Rule, gate_blocks: Sequence[int], thresholds: np.ndarray
) -> list[list[tuple[int, int]]]:
    """Return the exit layer and the match for each token and threshold; the match is 1 if the token is full depth's."""
    expected_exits = []
    for row in rows:
        exits = [_exit(row, rule, gate_blocks, threshold) for threshold in thresholds[row["position"] - 1].tolist()]
        expected_exits.append([(e, int(row["top1_id"][e - 1] == row["full_token_id"])) for e in exits])
    return expected_exits


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


def _sweep(
    connection: duckdb.DuckDBPyConnection,
    rows: list[Row],
    thresholds: np.ndarray,
    gate_blocks: Sequence[int] = range(1, L),
    score_sql: str = RULES["margin"].sql,
    first_position: int = 1,
) -> ThresholdSweep:
    connection.register("probe", pa.Table.from_pylist(rows, schema=PROBE))
    return sweep(connection, "probe", score_sql, "top1_id[l]", gate_blocks, L, thresholds, first_position)


def _assert_means(swept: ThresholdSweep, exits: list[list[tuple[int, int]]]) -> None:
    """Compare a sweep with the exit layer and the match of each token and threshold."""
    assert swept.mean_exit_layer.tolist() == (np.array(exits)[:, :, 0].sum(axis=0) / len(exits)).tolist()
    assert swept.token_match.tolist() == (np.array(exits)[:, :, 1].sum(axis=0) / len(exits)).tolist()


def _constant(levels: Sequence[float]) -> np.ndarray:
    return np.float32([levels] * POSITIONS)


def _decayed(levels: Sequence[float]) -> np.ndarray:
    fading = np.exp(-4 * np.arange(1, POSITIONS + 1) / POSITIONS)
    return np.float32([[0.9 * level + 0.1 * level * fade for level in levels] for fade in fading])


THRESHOLDS = {
    "on and between the scores": _constant([0.0, 0.1, 0.25, 0.3, 0.5, 0.75, 0.9]),
    "repeated, in no order": _constant([0.5, -0.5, 0.5, 0.0, 0.25, 0.0]),
    "below every score": _constant([-9.0]),
    "above every score": _constant([9.0, 10.0]),
    "eight, a power of two": _constant(np.linspace(-1, 1, 8).tolist()),
    "infinite": _constant([np.inf, 0.25, -np.inf]),
    "decayed": _decayed([1.0, 0.8, 0.25, 0.0, 0.25]),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", THRESHOLDS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "gate_blocks",
    [range(1, L), [3], [5, 2, 3], [L], [2, L], []],
    ids=["all", "one", "some", "last", "and last", "none"],
)
def test_threshold_sweep_equals_a_per_token_loop(
    connection: duckdb.DuckDBPyConnection, name: str, rule: str, gate_blocks: Sequence[int]
) -> None:
    rows, thresholds = _probe(60), THRESHOLDS[name]
    swept = _sweep(connection, rows, thresholds, gate_blocks, RULES[rule].sql)
    _assert_means(swept, _loop(rows, RULES[rule], gate_blocks, thresholds))


@pytest.mark.parametrize("name", THRESHOLDS)
def test_tokens_before_first_position_run_to_full_depth(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    rows, thresholds, gate_blocks = _probe(60), THRESHOLDS[name], range(1, L)
    gated_rows = [(row, [] if row["position"] == 1 else gate_blocks) for row in rows]
    exits = [_loop([row], RULES["margin"], blocks, thresholds)[0] for row, blocks in gated_rows]
    _assert_means(_sweep(connection, rows, thresholds, first_position=2), exits)


RULES_OF_METHODS = {
    "constant": "'{level!r}'::DOUBLE",
    "code": "0.9::DOUBLE * '{level!r}'::DOUBLE + 0.1::DOUBLE * '{level!r}'::DOUBLE * exp(-(4.0) * position / 5)",
    "paper": "least(1, greatest(0, 0.9::DOUBLE * '{level!r}'::DOUBLE + 0.1::DOUBLE * exp(-(4.0) * position / 5)))",
}


@pytest.mark.parametrize("name", RULES_OF_METHODS)
def test_sweep_equals_one_sql_replay_per_threshold(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """One sweep over many thresholds equals one SQL query per threshold, as a replay cell runs it.

    Scores are arbitrary numbers, and some thresholds equal a score after rounding to 32 bits.
    """
    rng = np.random.default_rng(1)
    rows = [row | {"p1": rng.random(L).tolist(), "p2": rng.random(L).tolist()} for row in _probe(200)]
    margins = [float(np.float32(row["p1"][2]) - np.float32(row["p2"][2])) for row in rows]
    levels = [*np.linspace(0, 1, 30).tolist(), *(margin for margin in margins if margin >= 0)]
    rules = [RULES_OF_METHODS[name].format(level=level) for level in levels]
    swept = _sweep(connection, rows, thresholds_by_position(connection, rules, POSITIONS), range(2, L))
    for at, rule in enumerate(rules):
        test = f"(p1[l] - p2[l])::FLOAT > ({rule})::FLOAT"
        exit_layer = f"coalesce(list_filter([2, 3, 4, 5], lambda l: {test})[1], {L})"
        alone = connection.execute(
            f"SELECT avg(e), avg((top1_id[e] = full_token_id)::INT) FROM (SELECT *, {exit_layer} AS e FROM probe)"
        )
        assert alone.fetchall() == [(swept.mean_exit_layer[at], swept.token_match[at])]


@given(st.data())
@settings(max_examples=40)
def test_depth_never_falls_as_the_threshold_rises(data: st.DataObject) -> None:
    score = st.sampled_from([*GRID, -1.0, 0.1, float("inf"), float("-inf")])
    scores = data.draw(st.lists(st.lists(score, min_size=L, max_size=L), min_size=1, max_size=8))
    tokens = st.lists(st.integers(1, 2), min_size=L, max_size=L)
    rows = [row | {"p1": p1, "top1_id": data.draw(tokens)} for row, p1 in zip(_probe(len(scores)), scores, strict=True)]
    gate_blocks = data.draw(st.lists(st.integers(1, L), max_size=L))
    levels = data.draw(st.lists(score | st.floats(-2, 2, width=32), min_size=1, max_size=9))
    thresholds = np.float32([levels] * len(rows))
    with duckdb.connect() as connection:
        swept = _sweep(connection, rows, thresholds, gate_blocks, RULES["top"].sql)
    _assert_means(swept, _loop(rows, RULES["top"], gate_blocks, thresholds))
    assert (np.diff(swept.mean_exit_layer[np.argsort(levels)]) >= 0).all()


@pytest.mark.parametrize("block", [1, 3, L - 1])
def test_nan_scores_are_refused(connection: duckdb.DuckDBPyConnection, block: int) -> None:
    rows = _probe(10)
    rows[3]["p1"][block - 1] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        _sweep(connection, rows, _constant([0.5]), score_sql="p1[l]")
    rows[3]["p1"][block - 1], rows[3]["p1"][L - 1] = 1.0, float("nan")
    _sweep(connection, rows, _constant([0.5]), score_sql="p1[l]")  # the last block is not asked


def test_null_score_prevents_an_exit(connection: duckdb.DuckDBPyConnection) -> None:
    swept = _sweep(connection, _probe(10), _constant([-9.0]), score_sql="CASE WHEN l >= 3 THEN p1[l] END")
    assert swept.mean_exit_layer.tolist() == [3]


def test_missing_token_at_a_block_is_refused(connection: duckdb.DuckDBPyConnection) -> None:
    rows = _probe(10)
    rows[7]["top1_id"].pop()
    with pytest.raises(ValueError, match="missing at some blocks"):
        _sweep(connection, rows, _constant([0.5]))


@pytest.mark.parametrize(
    ("thresholds", "message"),
    [
        ([[]], "at least one"),
        ([0.5], "at least one"),
        ([[0.5, float("nan")]], "NaN"),
        ([[0.1, 0.2]] * (POSITIONS - 1), "positions 1 to 5, thresholds at 1 to 4"),
        ([[0.1, 0.2], [0.2, 0.1]] * POSITIONS, "cross"),
    ],
)
def test_invalid_thresholds_are_refused(connection: duckdb.DuckDBPyConnection, thresholds: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _sweep(connection, _probe(10), np.float32(thresholds))


def test_thresholds_equal_at_one_position_are_ordered_by_the_others(connection: duckdb.DuckDBPyConnection) -> None:
    thresholds = np.float32([[1.0, 1.0], *[[0.75, 0.25]] * (POSITIONS - 1)])
    rows = _probe(60)
    _assert_means(
        _sweep(connection, rows, thresholds, score_sql="p1[l]"), _loop(rows, RULES["top"], range(1, L), thresholds)
    )


@pytest.mark.parametrize("gate_blocks", [[0, 1], [1, L + 1]])
def test_blocks_that_do_not_exist_are_refused(connection: duckdb.DuckDBPyConnection, gate_blocks: list[int]) -> None:
    with pytest.raises(ValueError, match="not within 1 to 6"):
        _sweep(connection, _probe(10), _constant([0.5]), gate_blocks)


def test_a_probe_without_tokens_is_refused(connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(ValueError, match="no tokens"):
        _sweep(connection, [], _constant([0.5]))
