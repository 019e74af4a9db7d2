"""Parts of a suite for several machines: together they are the whole suite, and compared cells run on one machine."""

from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from exitbench.errors import UserError
from exitbench.harness.cli.main import main
from exitbench.harness.planning.plan import Plan, make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.running.shard import Shard, part


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Return a plan of the built-in suite, restricted to one task with two documents."""
    runs = tmp_path_factory.mktemp("runs")
    return make_plan(load_suite("builtin"), runs / "spool", runs / "models", None, only="*/squad/*", limit=2)


def cells(plan: Plan) -> list[str]:
    return [cell.item.cell.cell_id for group in plan.groups for cell in group.cells]


@pytest.mark.parametrize("of", [1, 2, 5])
def test_shards_partition_the_plan(whole: Plan, of: int) -> None:
    parts = [cells(part(whole, [Shard(number, of)])) for number in range(1, of + 1)]
    assert sorted(chain(*parts)) == sorted(cells(whole))
    assert all(parts)


def test_shard_includes_the_dependencies_of_its_cells(whole: Plan) -> None:
    for number in (1, 2, 3):
        shard = part(whole, [Shard(number, 3)])
        known = set(cells(shard))
        for group in shard.groups:
            for cell in (planned.item.cell for planned in group.cells):
                assert {*cell.depends_on, cell.full_depth_cell_id or cell.cell_id} <= known


def test_several_shards_can_be_combined(whole: Plan) -> None:
    both = cells(part(whole, [Shard(1, 4), Shard(3, 4)]))
    one, three = (cells(part(whole, [Shard(number, 4)])) for number in (1, 3))
    assert sorted(both) == sorted(one + three)


def test_plan_without_shards_is_unchanged(whole: Plan) -> None:
    assert part(whole, []) is whole


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ([Shard(1, 2), Shard(2, 3)], "parts of two splits"),
        ([Shard(1, 2), Shard(1, 2)], "name each part once"),
        ([Shard(2, 1000)], "Allowed: K/N with N up to"),
    ],
)
def test_invalid_shards_are_refused(whole: Plan, shards: list[Shard], message: str) -> None:
    with pytest.raises(UserError, match=message):
        part(whole, shards)


@pytest.mark.parametrize("text", ["", "2", "0/3", "4/3", "1/0", "-1/3", "a/b", "1/2/3", "1.5/2", "1/99999", "²/3"])
def test_malformed_shard_option_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "builtin", f"--shard={text}", "--runs", str(tmp_path)]) == 2
    assert "--shard" in capsys.readouterr().err


def test_sharding_a_suite_with_an_untrained_model_is_refused(whole: Plan) -> None:
    first, *others = whole.groups
    untrained = replace(whole, groups=(replace(first, folder=None, cells=()), *others))
    with pytest.raises(UserError, match="to be trained first: builtin-"):
        part(untrained, [Shard(1, 2)])
