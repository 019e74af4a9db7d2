"""Differences between two stored attempts: software and machine, field by field."""

import copy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from exitbench.errors import UserError
from exitbench.harness.cli.main import main
from exitbench.results.analysis.repeats import EnvironmentDescription, FieldDifference, differences, find
from exitbench.results.files.formats import content_id
from exitbench.results.ingest.ingest import ingest

Json = dict[str, Any]


@pytest.fixture
def other_env(env: Json) -> Json:
    other = copy.deepcopy(env)
    other["environment"]["packages"] = {"torch": "2.14.0", "numpy": "2.3.0"}
    other["environment"]["git_dirty"] = True
    other["hardware"]["threads"] = 8
    return other


@pytest.fixture
def attempts(example: ModuleType, env: Json, other_env: Json, tmp_path: Path) -> tuple[str, str, Json, Json]:
    """Return the ids of two attempts at different cells, followed by the two cells."""
    cells = [
        example.cell_json(example.MODELS[0], example.TASKS[0], example.Method("static", {"exit_layer": n}), "quality")
        for n in (1, 2)
    ]
    ids = [example.write_attempt(tmp_path / "spool", cells[n], {}, env=used) for n, used in enumerate((env, other_env))]
    return ids[0], ids[1], cells[0], cells[1]


CHANGED = [
    FieldDifference("environment.git_dirty", False, True),
    FieldDifference("environment.packages.numpy", None, "2.3.0"),
    FieldDifference("environment.packages.torch", "2.13.0", "2.14.0"),
    FieldDifference("environment.packages.transformers", "5.23.0", None),
    FieldDifference("hardware.threads", 2, 8),
]


@pytest.mark.parametrize("source", ["spool", "database"])
def test_differences_lists_exactly_the_fields_that_differ(
    source: str, attempts: tuple[str, str, Json, Json], tmp_path: Path
) -> None:
    spool, database = tmp_path / "spool", tmp_path / "x.duckdb"
    if source == "database":
        ingest(spool, database)
        spool = tmp_path / "gone"
    a, b = (find(attempt_id, spool, database) for attempt_id in attempts[:2])
    assert differences(a, b) == CHANGED
    assert differences(b, a) == [FieldDifference(each.field, each.b, each.a) for each in CHANGED]
    assert differences(a, a) == []


@pytest.mark.parametrize("source", ["spool", "database"])
def test_cells_environments_and_machines_are_found_by_id_prefix(
    source: str, attempts: tuple[str, str, Json, Json], env: Json, other_env: Json, tmp_path: Path
) -> None:
    spool, database = tmp_path / "spool", tmp_path / "x.duckdb"
    if source == "database":
        ingest(spool, database)
        spool = tmp_path / "gone"
    cell = find(attempts[3]["cell_id"][:12], spool, database)
    assert cell.sections == other_env
    assert attempts[1] in cell.name
    software = find(content_id(env["environment"])[:12], spool, database)
    machine = find(content_id(other_env["hardware"])[:12], spool, database)
    assert (software.sections, machine.sections) == (
        {"environment": env["environment"]},
        {"hardware": other_env["hardware"]},
    )
    assert differences(software, cell) == [each for each in CHANGED if each.field.startswith("environment")]


def test_cell_id_resolves_to_its_latest_attempt(
    example: ModuleType, attempts: tuple[str, str, Json, Json], other_env: Json, tmp_path: Path
) -> None:
    example.write_attempt(tmp_path / "spool", attempts[2], {}, env=other_env)
    assert find(attempts[2]["cell_id"], tmp_path / "spool", tmp_path / "x.duckdb").sections == other_env


def test_short_ambiguous_or_unknown_id_prefix_is_refused(attempts: tuple[str, str, Json, Json], tmp_path: Path) -> None:
    spool, database = tmp_path / "spool", tmp_path / "x.duckdb"
    with pytest.raises(UserError, match="at least 4 characters"):
        find(attempts[0][:3], spool, database)
    with pytest.raises(UserError, match=f"(?s)2 ids .*{attempts[0]}.*{attempts[1]}"):
        find(attempts[0][:8], spool, database)
    with pytest.raises(UserError, match=r"No attempt, cell, environment or machine .* begins with 'ffffffffffff'"):
        find("ffffffffffff", spool, database)


def test_software_cannot_be_compared_with_a_machine(env: Json) -> None:
    software, machine = (EnvironmentDescription(name, {name: env[name]}) for name in ("environment", "hardware"))
    with pytest.raises(UserError, match="environment and hardware cannot be compared"):
        differences(software, machine)


def test_env_diff_exit_codes_match_those_of_diff(
    attempts: tuple[str, str, Json, Json], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> tuple[int, str]:
        code = main(["env", *words, "--runs", str(tmp_path)])
        output = capsys.readouterr()
        return code, output.out + output.err

    code, output = run("diff", *attempts[:2])
    assert code == 1
    assert "  environment.packages.torch: 2.13.0 -> 2.14.0\n" in output
    assert "  environment.packages.numpy: absent -> 2.3.0\n" in output
    assert run("diff", attempts[0], attempts[0])[0] == 0
    assert run("diff", attempts[0], "now")[0] == 1
    assert run("diff", "now", "now")[0] == 0
    code, output = run("show", attempts[1])
    assert (code, "  hardware.threads: 8\n" in output) == (0, True)
    assert run("diff", attempts[0])[0] == 2
    assert run("diff", attempts[0], "nothing-like-it")[0] == 2
