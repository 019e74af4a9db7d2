"""Finding third-party tasks: entry points, and the folder that the user trusts."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exitbench import plugins, provenance
from exitbench.errors import UserError
from exitbench.tasks import registry
from exitbench.tasks.registry import get_task, register, task_names, task_origin, unusable_tasks
from exitbench.tasks.squad import Squad

SHOUTED = '''
"""A task of others."""
from exitbench.tasks.squad import Squad
{helper}

class Shouted(Squad):
    """Questions in capitals."""

    name = "shouted"
    metric_version = "7"

    def prompt(self, doc):
        return {shout}
'''
ALONE = SHOUTED.format(helper="", shout="super().prompt(doc).upper()")


@pytest.fixture
def forget_tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Yield a function that makes the registry look for tasks again, as a new process would."""
    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))
    monkeypatch.setattr(registry, "_unusable", {})
    monkeypatch.delenv(plugins._VARIABLE, raising=False)
    builtin_names = set(registry._TASKS)

    def clear() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("shouting", plugins.PACKAGE)]:
            del sys.modules[name]
        for name in set(registry._TASKS) - builtin_names:
            del registry._TASKS[name]
        importlib.invalidate_caches()
        for cached in (registry._discover, registry._revision, plugins._load, provenance._imported):
            cached.cache_clear()

    clear()
    yield clear
    os.environ.pop(plugins._VARIABLE, None)
    clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget_tasks: Callable[[], None]) -> Callable[..., None]:
    """Return a function that simulates the installation of a distribution with one task."""

    def write_module(source: str, version: str = "1.0") -> None:
        (tmp_path / "shouting.py").write_text(source)
        info = tmp_path / "shouting-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: shouting\nVersion: {version}\n")
        (info / "entry_points.txt").write_text("[exitbench.tasks]\nshouted = shouting:Shouted\n")
        monkeypatch.syspath_prepend(tmp_path)
        forget_tasks()

    return write_module


@pytest.fixture
def trust(tmp_path: Path, forget_tasks: Callable[[], None]) -> Callable[..., None]:
    """Return a function that writes Python files into a folder and uses it like `--plugins`."""

    def write_files(**files: str) -> None:
        folder = tmp_path / "plugins"
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        plugins.use_plugins(folder)
        forget_tasks()

    return write_files


REGISTERED = "\nimport exitbench\nexitbench.register_task(Shouted)\n"


# -------------------------------------------------------------------------------------------------------- entry points


def test_third_party_task_is_discovered_with_its_origin(install: Callable[..., None]) -> None:
    assert "shouted" not in task_names()
    install(ALONE)
    assert "shouted" in task_names()
    task = get_task("shouted")
    assert task_origin(type(task)) == "shouting 1.0" and task_origin(Squad) is None
    assert task.metric_version.startswith("7 shouting 1.0 ")


@pytest.mark.parametrize(
    ("old", "new", "is_other"),
    [
        ("upper", "lower", True),
        ('"7"', '"8"', True),
        ("Questions in capitals.", "Questions, loud.", False),
        ("return", "# a remark\n        return", False),
    ],
)
def test_third_party_metric_version_follows_its_source_code(
    install: Callable[..., None], old: str, new: str, is_other: bool
) -> None:
    install(ALONE)
    before = get_task("shouted").metric_version
    install(ALONE.replace(old, new))
    assert (get_task("shouted").metric_version != before) == is_other


def test_distribution_version_changes_the_metric_version(install: Callable[..., None]) -> None:
    install(ALONE)
    before = get_task("shouted").metric_version
    install(ALONE, version="1.1")
    assert get_task("shouted").metric_version != before


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import a_module_that_is_not", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("Shouted = 1", "no subclass of exitbench.tasks.base.Task"),
        (ALONE.replace('"shouted"', '"squad"'), "two tasks are named 'squad'"),
        (ALONE.replace('"shouted"', '"toml:shouted"'), "names with ':'"),
        (ALONE.replace('metric_version = "7"', "metric_version = 7"), "needs metric_version"),
        (
            ALONE.replace('metric_version = "7"', 'metric_version = "7"; lower_is_better = frozenset({"f2"})'),
            "lower_is_better has 'f2', which is none of its metrics",
        ),
    ],
)
def test_broken_third_party_task_is_disabled_without_affecting_others(
    install: Callable[..., None], source: str, why: str
) -> None:
    install(source)
    assert {"squad", "samsum"} <= set(task_names()) and "shouted" not in task_names()
    assert why in unusable_tasks()["shouted"]
    with pytest.raises(UserError, match="task 'shouted' cannot be used"):
        get_task("shouted")


def test_bundled_tasks_have_their_declared_version() -> None:
    assert get_task("squad").metric_version == Squad.metric_version


def test_registering_a_task_again_is_allowed_and_other_classes_are_refused(forget_tasks: Callable[[], None]) -> None:
    assert register(Squad) is Squad
    with pytest.raises(TypeError, match="no subclass"):
        register(int)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------ plug-ins


def test_plugin_folder_files_register_their_tasks(trust: Callable[..., None]) -> None:
    trust(mine=ALONE + REGISTERED)
    assert task_origin(type(get_task("shouted"))) == "exitbench_plugins.mine"


def test_metric_version_covers_imported_plugin_files(trust: Callable[..., None]) -> None:
    for imported in ("from exitbench_plugins.loud import shout", "from .loud import shout", "from . import loud"):
        call = "loud.shout(super().prompt(doc))" if imported.endswith("loud") else "shout(super().prompt(doc))"
        mine = SHOUTED.format(helper=imported, shout=call) + REGISTERED
        trust(mine=mine, loud="def shout(text): return text.upper()", other="")
        before = get_task("shouted").metric_version
        trust(other="UNUSED = 1")
        assert get_task("shouted").metric_version == before
        trust(loud="def shout(text): return text.upper() + '!'")
        assert get_task("shouted").metric_version != before, imported


def test_plugin_folder_is_not_run_unless_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget_tasks: Callable[[], None]
) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "mine.py").write_text("raise AssertionError('run')")
    monkeypatch.chdir(tmp_path)
    assert "squad" in task_names() and plugins.plugins_folder() is None


def test_failing_plugin_file_is_named(trust: Callable[..., None]) -> None:
    trust(mine="1 / 0")
    with pytest.raises(UserError, match=r"plug-in .*mine\.py: ZeroDivisionError"):
        task_names()


@pytest.mark.parametrize(
    ("make", "message"),
    [(lambda folder: None, "is not a folder"), (Path.mkdir, r"holds no \.py file and no \.toml file")],
)
def test_missing_or_empty_plugin_folder_is_refused(
    tmp_path: Path, forget_tasks: Callable[[], None], make: Callable[[Path], None], message: str
) -> None:
    make(tmp_path / "none")
    with pytest.raises(UserError, match=message):
        plugins.use_plugins(tmp_path / "none")


def test_second_plugin_folder_in_a_process_is_refused(trust: Callable[..., None], tmp_path: Path) -> None:
    trust(mine="")
    (tmp_path / "second").mkdir()
    with pytest.raises(UserError, match="is in use"):
        plugins.use_plugins(tmp_path / "second")
