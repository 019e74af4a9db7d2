"""`-m fast` leaves out the tests that tests/slow.txt names; `sampled(n)` keeps every value of a product."""

import re
import tomllib
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TESTS = Path(__file__).parent
SLOW = [line for line in (TESTS / "slow.txt").read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


def test_slow_txt_is_sorted_and_names_existing_tests() -> None:
    for name in SLOW:
        file, _, test = name.partition("::")
        assert (TESTS / file).is_file(), f"tests/slow.txt: there is no {file}"
        assert not test or re.search(rf"(?m)^def {test}\(", (TESTS / file).read_text(encoding="utf-8")), name
    assert sorted(set(SLOW)) == SLOW, "tests/slow.txt: sorted, each once"


def test_every_folder_has_fast_tests() -> None:
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    apart = project["tool"]["pytest"]["ini_options"]["norecursedirs"]
    files = [file for file in TESTS.rglob("test_*.py") if file.relative_to(TESTS).parts[0] not in apart]
    fast = {file.parent for file in files if file.relative_to(TESTS).as_posix() not in SLOW}
    assert {file.parent for file in files} == fast


@given(n=st.integers(2, 4), more_rows=st.integers(0, 6), more_columns=st.integers(0, 6), start=st.integers(0, 9))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sample_of_a_product_keeps_one_in_n_and_every_value(
    n: int, more_rows: int, more_columns: int, start: int, pytestconfig: pytest.Config
) -> None:
    rows, columns = n + more_rows, n + more_columns
    twins = [-row for row in range(rows)]
    marks = {"sampled": [SimpleNamespace(args=(n,))], "parametrize": [SimpleNamespace(args=("row, twin",))]}
    functions = [
        SimpleNamespace(
            callspec=SimpleNamespace(params={"row": row, "twin": twins[row], "column": column}),
            iter_markers=marks.__getitem__,
            get_closest_marker=lambda kind: marks[kind][0],
        )
        for row, column in product(range(rows), range(columns))
    ]
    sample = pytestconfig.pluginmanager.get_plugin(str(TESTS / "conftest.py"))._sample(start, functions)
    assert {one.callspec.params["row"] for one in sample} == set(range(rows))
    assert {one.callspec.params["column"] for one in sample} == set(range(columns))
    assert len(sample) == pytest.approx(rows * columns / n, abs=max(rows, columns))


def test_sample_of_fewer_sets_than_n_is_not_empty(pytestconfig: pytest.Config) -> None:
    plugin = pytestconfig.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    only = SimpleNamespace(
        callspec=SimpleNamespace(params={"row": 1}),
        iter_markers=lambda kind: [],
        get_closest_marker=lambda kind: SimpleNamespace(args=(4,)),
    )
    for start in range(4):
        assert plugin._sample(start, [only]) == [only]
