"""A frame contains a query's rows in the query's order."""

from pathlib import Path

import pytest

from exitbench.errors import UserError
from exitbench.reports.frame import Frame
from exitbench.results.database.connection import open_database

FRAME = Frame(("task", "n"), ({"task": "b", "n": 2}, {"task": "a", "n": 3}, {"task": "b", "n": 1}))


def test_a_query_gives_its_columns_and_rows(small_database: Path) -> None:
    with open_database(small_database) as database:
        frame = Frame.query(database, "SELECT 1 AS one, NULL AS nothing UNION ALL SELECT 2, NULL ORDER BY one DESC")
    assert frame == Frame(("one", "nothing"), ({"one": 2, "nothing": None}, {"one": 1, "nothing": None}))


def test_query_refused_by_duckdb_is_a_user_error(small_database: Path) -> None:
    with open_database(small_database) as database, pytest.raises(UserError, match="no_such_view"):
        Frame.query(database, "SELECT * FROM no_such_view")


def test_groups_are_sorted_and_their_rows_keep_the_querys_order() -> None:
    groups = {key: rows.values("n") for key, rows in FRAME.groups("task")}
    assert list(groups.items()) == [(("a",), [3]), (("b",), [2, 1])]


def test_csv_has_a_header_bare_newlines_and_empty_fields_for_null() -> None:
    frame = Frame(("name", "value"), ({"name": 'a "quoted", one', "value": None},))
    assert frame.csv() == 'name,value\n"a ""quoted"", one",\n'


def test_distinct_values_are_sorted() -> None:
    assert FRAME.distinct("task") == ["a", "b"]


def test_numbers_are_rounded_to_digits_independent_of_summation_order(small_database: Path) -> None:
    sums = "SELECT 0.1::DOUBLE + 0.2::DOUBLE + 0.3::DOUBLE AS a, 0.3::DOUBLE + 0.2::DOUBLE + 0.1::DOUBLE AS b"
    with open_database(small_database) as database:
        (row,) = database.query(sums).to_pylist()
        assert row["a"] != row["b"]
        (row,) = Frame.query(database, sums).rows
        assert row["a"] == row["b"] == 0.6


def test_very_long_name_is_shortened_in_its_middle() -> None:
    rows = ({"name": "a" * 500_000 + "b" * 500_000, "n": 10**6}, {"name": "short", "n": None})
    (long, short) = Frame(("name", "n"), rows).bounded().rows
    assert (len(long["name"]), long["name"][0], long["name"][-1], long["n"]) == (1000, "a", "b", 10**6)
    assert short == rows[1]
