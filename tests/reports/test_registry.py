"""A figure or table is a pair of files; putting the pair into the folder puts it into the report."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from exitbench.reports import figures, tables
from exitbench.reports.registry import PAPERS, discover


@pytest.mark.parametrize("package", [figures, tables])
def test_every_query_has_its_module(package: ModuleType) -> None:
    files = Path(package.__path__[0]).rglob("*.sql")
    queries = {path.stem for path in files if path.parent.name != "shared"}
    assert len(queries) > 10
    assert queries == {source.name for source in discover(package)}


@pytest.mark.parametrize("package", [figures, tables])
def test_every_source_is_complete(package: ModuleType) -> None:
    for source in discover(package):
        assert all((source.module.TITLE, source.module.CAPTION, source.empty)), source.name
        numbered = any(source.name.startswith(f"{paper}_") for paper in (*PAPERS, "explain"))
        assert hasattr(source.module, "ORDER") != numbered, source.name
        assert hasattr(source.module, "plot") != hasattr(source.module, "COLUMNS"), source.name
        assert hasattr(source.module, "plot") == hasattr(source.module, "finding"), source.name


@pytest.mark.parametrize("package", [figures, tables])
def test_every_query_has_an_order_by_clause(package: ModuleType) -> None:
    assert [source.name for source in discover(package) if "ORDER BY" not in source.sql] == []


def test_new_figure_files_are_discovered_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "new_figures"
    folder.mkdir()
    orders, numbered = (
        {"__init__": 0, "added": 2, "begun": 1, "helper": 0},
        ("heads_fig1_a", "mee_fig10_b", "mee_fig9_c"),
    )
    for name in (*orders, *numbered):
        (folder / f"{name}.py").write_text(f"ORDER = {orders[name]}\n" if name in orders else "")
    for name in ("added", "begun", *numbered):
        (folder / f"{name}.sql").write_text(f"SELECT '{name}'")
    monkeypatch.syspath_prepend(tmp_path)
    sources = discover(import_module("new_figures"))
    assert [source.name for source in sources] == ["begun", "added", "mee_fig9_c", "mee_fig10_b", "heads_fig1_a"]
    assert all(source.sql == f"SELECT '{source.name}'" for source in sources)
    for name in [name for name in sys.modules if name.startswith("new_figures")]:
        del sys.modules[name]


def test_query_includes_its_shared_sql_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sharing_figures"
    (folder / "shared").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "mee_fig1.py").touch()
    (folder / "mee_fig1.sql").write_text("WITH one AS (SELECT 1)\n-- continues in shared/rest.sql\n")
    (folder / "shared" / "rest.sql").write_text("FROM one;\n")
    monkeypatch.syspath_prepend(tmp_path)
    (source,) = discover(import_module("sharing_figures"))
    assert source.sql == "WITH one AS (SELECT 1)\nFROM one;\n"
    for name in [name for name in sys.modules if name.startswith("sharing_figures")]:
        del sys.modules[name]
