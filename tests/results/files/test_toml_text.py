"""Written TOML is read back equal by tomllib."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitbench.results.files.formats import toml_table, toml_value

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
VALUES = st.recursive(
    TEXTS | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_written_toml_tables_are_parsed_back_equal(values: dict[str, object]) -> None:
    assert tomllib.loads("\n".join(toml_table("[it]", values))) == {"it": values}


@pytest.mark.parametrize("value", [None, {1}, [None]])
def test_values_unsupported_by_toml_are_refused(value: object) -> None:
    with pytest.raises(TypeError):
        toml_value(value)
