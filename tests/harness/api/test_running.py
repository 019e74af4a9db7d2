"""`exitbench.run` from Python; that it runs is in its example."""

from pathlib import Path

import pytest

import exitbench as eb


@pytest.mark.parametrize(
    ("suite", "options", "says"),
    [
        ("builtin", {"only": "--limit"}, "--limit"),
        ("--version", {}, "--version"),
        ("builtin", {"kinds": ["qality"]}, "qality"),
        ("builtin", {"retry": "-all"}, "-all"),
    ],
)
def test_a_value_is_never_taken_for_an_option(
    suite: str, options: dict[str, object], says: str, tmp_path: Path
) -> None:
    with pytest.raises(eb.UserError, match=says):
        eb.run(suite, runs=tmp_path, **options)
