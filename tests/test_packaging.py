"""Built distributions contain the files of the repository, and imports go one way (docs/architecture.md)."""

from __future__ import annotations

import ast
import itertools
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from exitbench.harness.engine.checkpoints.families import FAMILIES
from exitbench.methods.registry import get_method, method_names
from exitbench.results.spool.schema import TABLES
from exitbench.tasks.registry import task_names

ROOT = Path(__file__).parents[1]
FOLDERS = ("harness", "methods", "tasks", "results", "reports")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def package_of(folder: Path) -> str:
    """Return the import name of a folder of the repository."""
    inside = folder.relative_to(ROOT).parts
    return "exitbench" if inside == ("harness", "_root") else ".".join(("exitbench", *inside))


def tree_packages() -> dict[str, Path]:
    return {package_of(init.parent): init.parent for top in FOLDERS for init in (ROOT / top).rglob("__init__.py")}


def modules(folder: str) -> list[Path]:
    """Return every module of a top-level folder, except those in harness/_root, which belong to the package root."""
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if "_root" not in path.parts]


# ------------------------------------------------------------------------------------------ what is installed


def copy_without_data(file: str, to: str) -> None:
    """Copy a file; weights and rows, which would take seconds to compress, become empty files."""
    if file.endswith((".safetensors", ".parquet")):
        Path(to).touch()
    else:
        shutil.copy(file, to)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the files that are packaged, so that building leaves the repository unchanged."""
    source = tmp_path_factory.mktemp("source")
    for name in (*FOLDERS, "pyproject.toml", "setup.py", "README.md", "LICENSE"):
        if (ROOT / name).is_dir():
            # Descriptions of checkpoints, which other tests may be writing, are hidden files.
            unpacked = shutil.ignore_patterns("__pycache__", ".*")
            shutil.copytree(ROOT / name, source / name, ignore=unpacked, copy_function=copy_without_data)
        elif (ROOT / name).is_file():
            shutil.copy(ROOT / name, source / name)
    return source


def build(kind: str, source: Path, out: Path) -> Path:
    """Build a distribution as pip does, and return its file."""
    run = f"import sys, setuptools.build_meta as b; b.build_{kind}(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", run, out], cwd=source, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("exitbench-*")
    return built


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", source, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the names of the files in the wheel that is built from the source distribution."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as files:
        files.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    return set(zipfile.ZipFile(build("wheel", source, tmp_path_factory.mktemp("wheel"))).namelist())


def test_wheel_contains_every_module_and_data_file(wheel: set[str]) -> None:
    expected = set()
    for package, folder in tree_packages().items():
        files = [path for path in folder.iterdir() if path.is_file() and path.suffix not in (".md", ".pyc")]
        expected |= {f"{package.replace('.', '/')}/{path.name}" for path in files}
        nested = [path for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"]
        for data in (path for path in nested if not any(path.rglob("__init__.py"))):
            expected |= {
                f"{package.replace('.', '/')}/{path.relative_to(folder)}"
                for path in data.rglob("*")
                if path.is_file() and not path.name.startswith(".") and path.suffix != ".pyc"
            }
    assert {name for name in wheel if ".dist-info/" not in name} == expected


def test_wheel_contains_no_data_set_or_checkpoint_except_the_bundled_ones(wheel: set[str]) -> None:
    bundled = (".dist-info/", "/harness/checkpoints/", "/results/snapshots/")  # snapshots have no records of data sets
    ours = {name for name in wheel if not any(part in name for part in bundled)}
    kinds = {Path(name).suffix for name in ours}
    assert kinds <= {".py", ".typed", ".sql", ".csv", ".toml", ".html", ".css", ".js", ".yaml", ".tmpl"}


# ------------------------------------------------------------------------------------------ what is pinned

PINS = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(text: str) -> dict[str, str]:
    return {normal(name): version for name, version in PINS.findall(text)}


def test_every_pinned_package_has_file_hashes() -> None:
    pins, hashed = ((ROOT / name).read_text(encoding="utf-8") for name in ("constraints.txt", "hashes.txt"))
    assert pinned(hashed) == pinned(pins), "nox -s lock"
    for block in re.split(r"\n(?=\w)", hashed)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", block), block


def test_every_requirement_is_pinned() -> None:
    groups = PROJECT["dependency-groups"].values()
    optional = PROJECT["project"]["optional-dependencies"].values()
    required = [
        *PROJECT["build-system"]["requires"],
        *PROJECT["project"]["dependencies"],
        *itertools.chain(*groups, *optional),
    ]
    names = {normal(re.match(r"[\w.-]+", requirement)[0]) for requirement in required}
    assert names <= pinned((ROOT / "constraints.txt").read_text(encoding="utf-8")).keys()


# ------------------------------------------------------------------------------------------ import directions


def imported(path: Path, for_types: bool = True) -> list[str]:
    """Return the full names of the modules that a file imports, also inside functions.

    Imports under TYPE_CHECKING are left out unless `for_types` is set.
    """
    return [name for name, is_for_types in all_imported(path) if for_types or not is_for_types]


@cache
def all_imported(path: Path) -> tuple[tuple[str, bool], ...]:
    """Return the full name of each module that a file imports, and whether that is under TYPE_CHECKING."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    guards = [
        node
        for node in nodes
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    guarded = {id(node) for guard in guards for node in ast.walk(guard)}
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in guarded) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where they lead"
            found += [(f"{node.module}.{alias.name}", id(node) in guarded) for alias in node.names]
    return tuple(found)


BENEATH_ALL = {
    "__version__",
    "errors",
    "lm_eval_registration",
    "plugins",
    "progress",
    "provenance",
    "terminal",
    "user_cache",
}
MAY_IMPORT = {
    "harness": {"harness", "methods", "tasks", "results"},
    "harness/service": {"harness", "methods", "tasks", "results", "reports"},
    "harness/cli/commands": {"harness", "methods", "tasks", "results", "reports"},  # the command line stands above all
    "harness/api": {"harness", "methods", "tasks", "results", "reports"},  # and so does the Python API
    "methods": {"methods"},
    "tasks": {"tasks"},
    "results": {"results"},
    "reports": {"reports", "results"},
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_package_imports_follow_the_allowed_directions(folder: str) -> None:
    wrong = []
    for path in modules(folder):
        inside = str(path.parent.relative_to(ROOT))
        allowed = BENEATH_ALL | MAY_IMPORT.get(inside, MAY_IMPORT[folder])
        project = [name for name in imported(path) if name.split(".")[0] == "exitbench"]
        wrong += [f"{inside}/{path.name}: {name}" for name in project if name.split(".")[1] not in allowed]
    assert not wrong


STOREYS = {
    "exitbench.harness": (
        *("reading", "processes", "cells", "engine", "conformance", "work"),
        *("training", "planning", "inspecting", "scaffolds", "running", "afterwards", "service", "cli", "api"),
    ),
    "exitbench.harness.engine": ("model", "hosted", "encoders", "products", "checkpoints", "decoding"),
    "exitbench.results": (
        *("snapshots", "files", "tables", "statistics", "spool", "queries", "database", "side_records"),
        *("ingest", "lake", "analysis", "maintenance"),
    ),
}
"""Rooms of a package, from the lowest up: each imports those before it."""


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """Return the modules that each module imports when it runs, without imports under TYPE_CHECKING."""
    paths = {package_of(path.parent) + ("" if path.stem == "__init__" else f".{path.stem}"): path for path in every()}
    return {
        module: {name if name in paths else name.rpartition(".")[0] for name in imported(path, for_types=False)}
        & paths.keys()
        for module, path in paths.items()
    }


def every() -> Iterator[Path]:
    return (path for top in FOLDERS for path in (ROOT / top).rglob("*.py"))


@pytest.mark.parametrize("package", STOREYS)
def test_subpackages_import_only_lower_layers(package: str, graph: dict[str, set[str]]) -> None:
    rooms = STOREYS[package]
    inner = {
        name.removeprefix(f"{package}.").split(".")[0] for name in tree_packages() if name.startswith(f"{package}.")
    }
    assert inner == set(rooms), "a room without a storey"

    def storey(module: str) -> int | None:
        return rooms.index(module[len(package) + 1 :].split(".")[0]) if module.startswith(f"{package}.") else None

    back = []
    for module, targets in graph.items():
        for target in targets:
            low, high = storey(target), storey(module)
            if low is not None and high is not None and low > high:
                back.append(f"{module} -> {target}")
    assert not back


def test_there_are_no_import_cycles(graph: dict[str, set[str]]) -> None:
    left = {module: targets - {module} for module, targets in graph.items()}
    while ends := {
        module
        for module, targets in left.items()
        if not targets & left.keys() or not any(module in others for others in left.values())
    }:
        left = {module: targets - ends for module, targets in left.items() if module not in ends}
    assert [f"{module} -> {target}" for module, targets in left.items() for target in sorted(targets)] == []


def test_no_folder_has_more_than_15_modules() -> None:
    """Folders with one module per method, command or table are exempt."""
    kinds = {"methods", "harness/cli/commands", "reports/tables"}
    crowded = {}
    for folder in tree_packages().values():
        name, found = str(folder.relative_to(ROOT)), sum(1 for path in folder.glob("*.py") if path.stem != "__init__")
        if found > 15 and name not in kinds:
            crowded[name] = found
    assert crowded == {}


@pytest.mark.parametrize("folder", ["results", "reports"])
def test_results_and_reports_do_not_import_torch(folder: str) -> None:
    heavy = {"torch", "transformers", "safetensors", "lm_eval"}
    wrong = [
        f"{path.name}: {name}" for path in modules(folder) for name in imported(path) if name.split(".")[0] in heavy
    ]
    assert not wrong


def test_argparse_is_imported_only_by_the_command_line() -> None:
    outside = [path for folder in FOLDERS for path in modules(folder) if "cli" not in path.parts]
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in outside
        for name in imported(path)
        if name.startswith(("argparse", "exitbench.harness.cli"))
    ]
    assert not wrong


def test_duckdb_is_connected_only_in_duckdb_files() -> None:
    paths = [path for folder in FOLDERS for path in modules(folder)]
    assert [str(path.relative_to(ROOT)) for path in paths if "duckdb.connect(" in path.read_text()] == [
        "results/files/duckdb_files.py"
    ]


def test_methods_import_torch_and_the_standard_library_only() -> None:
    allowed = {"torch", "exitbench", *sys.stdlib_module_names}
    wrong = [
        f"{path.name}: {n}" for path in modules("methods") for n in imported(path) if n.split(".")[0] not in allowed
    ]
    assert not wrong


def test_no_module_unpickles_evaluates_or_trusts_remote_code() -> None:
    for folder in FOLDERS:
        for path in modules(folder):
            assert not {"pickle", "dill", "marshal", "shelve"} & {name.split(".")[0] for name in imported(path)}, path
            code = path.read_text()
            if not re.search(r"\b(trust_remote_code|eval|exec|load)\b", code):
                continue
            calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
            for call in calls:
                trust = [k for k in call.keywords if k.arg == "trust_remote_code"]
                assert all(isinstance(k.value, ast.Constant) and k.value.value is False for k in trust), path
                # Its process is there for what a model wrote, which runs after somebody has confirmed it.
                allowed = {"exec"} if path.name == "confined.py" else set()
                assert ast.unparse(call.func) not in {"eval", "exec", "torch.load", "np.load"} - allowed, path


# ------------------------------------------------------------------------------------------ names in their place


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the string constants of a file with their line numbers, without docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_harness_contains_no_method_names() -> None:
    """Exempt are the baseline's name, which is also an arm of timings, and names that are also columns of a probe."""
    names = {name for name in method_names() if not get_method(name).is_baseline} - set(TABLES["probe"].names)
    wrong = [f"{p.name}:{line} {text!r}" for p in modules("harness") for line, text in texts(p) if text in names]
    assert not wrong


def test_methods_contain_no_task_names() -> None:
    word = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in task_names()), re.IGNORECASE)
    assert not [str(path) for path in modules("methods") if word.search(path.read_text())]


def test_harness_names_model_families_only_in_families_py_and_training() -> None:
    """Names in quotes are exempt, because the prompt style of T5's tasks is named after it."""
    word = re.compile(r"(?<![\"`])\b(" + "|".join([*FAMILIES, "gpt-2", "t5x?"]) + r")\b(?![\"`])", re.IGNORECASE)
    readers = [path for path in modules("harness") if path.name != "families.py" and "training" not in path.parts]
    wrong = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in readers
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if word.search(line)
    ]
    assert not wrong
