"""`exitbench.run` from Python, apart from what its own docstring's example tests."""

from pathlib import Path
from typing import Any

import pytest

import exitbench as eb


@pytest.mark.parametrize(
    ("suite", "options", "says"),
    [
        ("builtin", {"only": "--limit"}, "--limit"),
        ("--version", {}, "no suite '--version'"),
        ("builtin", {"kinds": ["qality"]}, "kinds has 'qality'. Did you mean 'quality'? Allowed: calibration, fit,"),
        ("builtin", {"kinds": "quality"}, "kinds has 'q'. Allowed"),
        ("builtin", {"retry": "-all"}, "retry has '-all'. Did you mean 'all'? Allowed: all, failed, none, stale."),
        ("builtin", {"limit": 0}, "limit is 0. Allowed: a whole number from 1 to 1000000000."),
        ("builtin", {"limit": 2.5}, "limit is 2.5. Allowed: a whole number"),
        ("builtin", {"limit": True}, "limit is True. Allowed: a whole number"),
        ("builtin", {"threads": 4097}, "threads is 4097. Allowed: a whole number from 1 to 4096."),
        ("builtin", {"data_dir": "no/where"}, "data_dir: there is no folder 'no/where'."),
    ],
)
def test_invalid_options_are_refused_before_running(
    suite: str, options: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(eb.UserError) as caught:
        eb.run(suite, runs=tmp_path / "runs", **options)
    assert says in str(caught.value)
    assert not (tmp_path / "runs").exists()
