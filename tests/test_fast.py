"""`-m fast` leaves out exactly the tests that tests/slow.txt names; every folder still has fast tests."""

import re
import tomllib
from pathlib import Path

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
