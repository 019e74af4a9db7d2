"""When blocks stop changing their mind: against a walk over each token's lists, written from the definitions."""

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitbench.results.database.migrations import migration_scripts
from exitbench.results.statistics.stability import FILL_SQL, SIMILAR, TOLERANCE, stability

VALUES = st.sampled_from([0.1, 0.5, 0.495, 0.485, 0.9, 0.95])
LISTS = st.integers(1, 6).flatmap(
    lambda blocks: st.lists(
        st.tuples(*[st.lists(VALUES, min_size=blocks, max_size=blocks)] * 2), min_size=1, max_size=4
    )
)
NEARLY = ("nearly_monotone_from", "nearly_grows_from", "tolerance")


@given(LISTS)
def test_each_number_is_what_a_walk_over_the_blocks_finds(tokens: list[tuple[list[float], list[float]]]) -> None:
    p_final, cosine = (np.array(lists) for lists in zip(*tokens, strict=True))
    columns = stability(p_final, cosine)
    for n, (p, s) in enumerate(tokens):
        blocks = len(p)
        s = [*s[:-1], 1.0]  # a state is its own equal
        rises = [all(p[k] >= p[k - 1] for k in range(start, blocks)) for start in range(1, blocks + 1)]
        grows = [all(s[k] > s[k - 1] for k in range(start, blocks - 1)) for start in range(1, blocks + 1)]
        assert columns["monotone_from"][n] == 1 + rises.index(True)
        assert columns["first_similar"][n] == 1 + [value >= SIMILAR for value in s].index(True)
        assert columns["similar_blocks"][n] == sum(value >= SIMILAR for value in s[:-1])
        assert columns["grows_from"][n] == 1 + grows.index(True)
        assert columns["nearly_monotone_from"][n] == nearly_from(p)
        assert columns["nearly_grows_from"][n] == nearly_from(s[:-1])


def nearly_from(values: list[float]) -> int:
    """The first block from which no later value lies more than the tolerance below an earlier one."""
    for start in range(len(values)):
        rest = values[start:]
        if all(early - late <= TOLERANCE for k, early in enumerate(rest) for late in rest[k + 1 :]):
            return start + 1
    return 1


def test_a_wiggle_of_rounding_size_is_no_fall_and_many_small_falls_are_one() -> None:
    wiggles = [0.5, 0.9, 0.8999, 0.9, 0.8998]
    slides = [0.93, 0.924, 0.92, 0.914, 0.911]
    columns = stability(np.array([wiggles, slides]), np.ones((2, 5)))
    assert columns["monotone_from"].tolist() == [5, 5]
    assert columns["nearly_monotone_from"].tolist() == [1, 3]
    assert columns["tolerance"].tolist() == pytest.approx([TOLERANCE] * 2)


@pytest.mark.parametrize("fill", ["of files without them", "of rows of an older schema"])
def test_what_an_older_version_did_not_store_is_filled_from_the_lists(fill: str) -> None:
    rng = np.random.default_rng(3)
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE probe_token (attempt_id TEXT, n INT, p_final FLOAT[], cosine_last FLOAT[])")
        expected = {}
        for blocks in (1, 2, 3, 7):
            lists = (0.9 + rng.integers(-2, 3, (2, 20, blocks)) / 150).astype(np.float32)
            columns = stability(*lists.copy())
            for n in range(20):
                connection.execute(
                    "INSERT INTO probe_token VALUES ('a', ?, ?, ?)", [100 * blocks + n, *lists[:, n].tolist()]
                )
                expected[100 * blocks + n] = tuple(columns[name][n] for name in NEARLY)
        if fill == "of files without them":
            connection.execute("ALTER TABLE probe_token ADD COLUMN tolerance DOUBLE")
            for name in NEARLY[:2]:
                connection.execute(f"ALTER TABLE probe_token ADD COLUMN {name} SMALLINT")
            connection.execute(FILL_SQL, [["b"]])
            assert connection.execute("SELECT count(tolerance) FROM probe_token").fetchone() == (0,)
            connection.execute(FILL_SQL, [["a"]])
        else:
            connection.execute("CREATE TABLE published_result (x INT); CREATE TABLE published_source (x INT)")
            (script,) = [script for script in migration_scripts() if "nearly_monotone_from" in script]
            connection.execute(script)
        rows = connection.execute(f"SELECT n, {', '.join(NEARLY)} FROM probe_token").fetchall()
    assert len(expected) == 80 and {n: tuple(row) for n, *row in rows} == expected
    assert len({row[1] for row in rows}) > 3
