"""Provenance of third-party classes: the installed package that contains them, and a digest of their source files.

This module imports nothing from this project, so that methods and tasks can both use it.
"""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType


def distribution(cls: type, group: str) -> tuple[str | None, str | None]:
    """Return name and version of the package whose entry point in `group` names the class, or (None, None)."""
    for point in entry_points(group=group):
        if (point.module, point.attr) == (cls.__module__, cls.__qualname__) and point.dist is not None:
            return point.dist.name, point.dist.version
    return None, None


def third_party_revision(cls: type, declared: str, group: str) -> str:
    """Return a revision string that changes with the code of a third-party class or its package's version.

    Args:
        cls: The class.
        declared: The version that the class declares.
        group: Entry-point group for this kind of class.
    """
    name, version = distribution(cls, group)
    origin = f"{name} {version} " if name else ""
    return f"{declared} {origin}{syntax_sha256(cls, cls.__module__.partition('.')[0])}"


def syntax_sha256(cls: type, package: str, apart_from: Path | None = None) -> str:
    """Return a digest of the syntax trees of a class's file and of all modules of a package that this file imports.

    Imports are followed transitively. Comments, docstrings, formatting and file locations do not affect the digest.

    Args:
        cls: The class.
        package: Only imports from this package are followed.
        apart_from: A file to leave out of the digest, because it computes nothing.
    """
    trees = sorted(_tree(path.read_bytes()) for path in _files(cls, package, apart_from))
    return hashlib.sha256("\0".join(trees).encode()).hexdigest()


def _files(cls: type, package: str, apart_from: Path | None) -> set[Path]:
    """Return the file of a class, and the files of `package` that it imports, directly or through other files.

    The file `apart_from` is left out.
    """
    files: set[Path] = set()
    to_visit = [(Path(inspect.getfile(cls)), _package(sys.modules.get(cls.__module__)))]
    while to_visit:
        path, inside = to_visit.pop()
        if path not in files and path != apart_from:
            files.add(path)
            to_visit += _imported(path, inside, package)
    return files


@cache
def _imported(path: Path, inside: str, package: str) -> tuple[tuple[Path, str], ...]:
    """Return, for each module of `package` that the file `path` imports, its file and the package that contains it.

    `inside` is the package that contains `path`.
    """
    names = _imported_names(ast.parse(path.read_bytes()), inside)
    modules = [_module(name) for name in names if f"{name}.".startswith(f"{package}.")]
    files = [(getattr(module, "__file__", None), _package(module)) for module in modules]  # namespaces have no file
    return tuple((Path(file), inner) for file, inner in files if file)


def _imported_names(tree: ast.AST, inside: str) -> Iterator[str]:
    """Yield the dotted names that a file imports: modules, and names from modules, which may be submodules.

    `inside` is the file's package, to which relative imports refer.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), inside or None)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _module(name: str) -> ModuleType | None:
    """Import and return the module of that dotted name, or None if the name is not a module (for example, a class)."""
    parent, _, child = name.rpartition(".")
    if parent and name not in sys.modules and hasattr(_module(parent), child):
        return None
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def _package(module: ModuleType | None) -> str:
    return getattr(module, "__package__", None) or ""


@cache
def _tree(source: bytes) -> str:
    """Return the dumped syntax tree of a source file without docstrings; cached, since many classes share a file."""
    return ast.dump(_without_docstrings(ast.parse(source)))


def _without_docstrings(tree: ast.Module) -> ast.Module:
    """Drop every statement that is only a string literal: docstrings, including those of attributes."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, name, None), list):
                setattr(node, name, [statement for statement in statements if not _is_text(statement)])
    return tree


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
