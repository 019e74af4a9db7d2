"""Contract tests of methods in a separate process, and their stored results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from exitbench.harness.cells.cell import MethodRef
from exitbench.harness.cli import main as cli
from exitbench.harness.conformance import ConformanceResult
from exitbench.harness.conformance.process import examine_apart
from exitbench.harness.planning import contracts as kept
from exitbench.harness.planning.contracts import CACHE, Setting, verdicts
from exitbench.methods.registry import method_names

EXAMINE = """\
import json, sys
sys.path.insert(0, {site!r})
from exitbench.harness.conformance.process import examine_apart
print(json.dumps([[str(result) for result in examine_apart(*arguments)] for arguments in {examined!r}]))
"""


def asked(name: str, **params: Any) -> dict[str, Any]:
    return {"name": name, "params": params, "n_blocks": 6, "exit_blocks": []}


def test_hanging_or_crashing_method_fails_and_other_methods_are_still_examined(
    site: Path, snippets: ModuleType, tmp_path: Path
) -> None:
    hanging, crashing, exiting = (asked("broken", how=how) for how in ("Hangs", "Crashes", "Exits"))
    several = [exiting, asked("broken", how="Honest"), asked("static")]
    python = snippets.Python(tmp_path)
    try:
        source = EXAMINE.format(site=str(site), examined=[([hanging], 1.0), ([crashing], 60.0), (several, 60.0)])
        verdicts = json.loads(python.output_of(snippets.Block("examine", "python", None, source)))
    finally:
        python.end()
    assert verdicts == [
        ["fails: hangs: no answer within 1 s"],
        ["fails: ends the process it runs in, with signal SIGABRT"],
        [*["fails: ends the process it runs in, with exit code 3"] * 2, "conforms"],
    ]


def test_unknown_method_fails_with_its_name() -> None:
    (result,) = examine_apart([asked("no-such")])
    assert not result.conforms
    assert "unknown method 'no-such'" in result.problems[0]


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the names of the tested methods; their results are made up."""
    names: list[str] = []

    def examine(settings: list[dict[str, Any]]) -> list[ConformanceResult]:
        names.extend(setting["name"] for setting in settings)
        return [ConformanceResult(("made up",), "of now") for _ in settings]

    monkeypatch.setattr(kept, "examine_apart", examine)
    return names


def setting(syntax_sha256: str = "0" * 64, **params: Any) -> Setting:
    result = Setting.from_method_ref(MethodRef("static", {"exit_layer": 2, **params}, "1"), 6, ())
    return replace(result, syntax_sha256=syntax_sha256)


def test_verdicts_are_cached_by_parameters_and_source(tmp_path: Path, trials: list[str]) -> None:
    first = verdicts([setting()], tmp_path)
    assert verdicts([setting(), setting()], tmp_path) == first
    assert trials == ["static"]
    verdicts([setting(exit_layer=3), setting(syntax_sha256="1" * 64)], tmp_path)
    assert trials == ["static"] * 3
    assert verdicts([setting()], tmp_path) == first
    assert trials == ["static"] * 3


@pytest.mark.parametrize("damage", ["", "[]", '{"x": 1}', '{"x": {"verdict": "conforms", "problems": ["no"]}}'])
def test_damaged_verdict_cache_is_rebuilt(tmp_path: Path, trials: list[str], damage: str) -> None:
    (tmp_path / CACHE).write_text(damage)
    verdicts([setting()], tmp_path)
    verdicts([setting()], tmp_path)
    assert trials == ["static"]
    assert list(json.loads((tmp_path / CACHE).read_text())) == [setting().key]


def test_the_list_of_methods_has_one_line_per_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(method_names())
    (column,) = {len(line) - len(line.split(maxsplit=1)[1]) for line in lines}
    assert column == max(map(len, method_names())) + 2


def test_a_methods_parameters_are_listed_with_needs_and_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "methods", "mee-*"]) == 0
    printed = capsys.readouterr().out
    matching = [name for name in method_names() if name.startswith("mee-")]
    assert printed.count("  conformance: conforms\n") == len(matching) == 3
    assert "  needs: a fit on the train split, states of earlier blocks, a scores cell before a replay\n" in printed
    assert printed.count("  kv_policy = 'state-copy'  ") == 1, "a shared parameter is explained once"
    own, shared = printed.split("Shared parameters:")
    assert "  hidden = 250 " in own and "  kv_policy = 'state-copy'  " in shared


def test_a_pattern_that_matches_no_method_is_refused_with_all_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "methods", "calm-sofmax"]) == 2
    message = capsys.readouterr().err
    assert "no method is named 'calm-sofmax'" in message and "calm-softmax" in message
