"""Where a class of others comes from: its distribution, and a digest of what its source files say.

It lies beneath every package, as `errors` does: methods and tasks of others are told apart in the same way.
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
    """Return name and version of the distribution whose entry point in a group names a class; (None, None) of none."""
    for point in entry_points(group=group):
        if (point.module, point.attr) == (cls.__module__, cls.__qualname__) and point.dist is not None:
            return point.dist.name, point.dist.version
    return None, None


def revision_of_others(cls: type, declared: str, group: str) -> str:
    """Return what tells apart what a class of others computes from what it computed before.

    Args:
        cls: The class.
        declared: The version it declares.
        group: Entry points of its kind.
    """
    name, version = distribution(cls, group)
    brought = f"{name} {version} " if name else ""
    return f"{declared} {brought}{syntax_sha256(cls, cls.__module__.partition('.')[0])}"


def syntax_sha256(cls: type, package: str, apart_from: Path | None = None) -> str:
    """Digest of the syntax of a class's file and of the modules of a package that it imports, directly or not.

    Comments, docstrings and layout change nothing, nor does where the files lie.

    Args:
        cls: The class.
        package: Modules of others are not followed.
        apart_from: A file that computes nothing.
    """
    trees = sorted(_tree(path.read_bytes()) for path in _files(cls, package, apart_from))
    return hashlib.sha256("\0".join(trees).encode()).hexdigest()


def _files(cls: type, package: str, apart_from: Path | None) -> set[Path]:
    """The file of a class, and those of a package that it imports."""
    found: set[Path] = set()
    left = [(Path(inspect.getfile(cls)), _package(sys.modules.get(cls.__module__)))]
    while left:
        path, inside = left.pop()
        if path not in found and path != apart_from:
            found.add(path)
            left += _imported(path, inside, package)
    return found


@cache
def _imported(path: Path, inside: str, package: str) -> tuple[tuple[Path, str], ...]:
    """The files of a package that a source file in one of its packages imports, and the packages they are in."""
    names = _named(ast.parse(path.read_bytes()), inside)
    modules = [_module(name) for name in names if f"{name}.".startswith(f"{package}.")]
    files = [(getattr(module, "__file__", None), _package(module)) for module in modules]  # of a namespace: none
    return tuple((Path(file), inner) for file, inner in files if file)


def _named(tree: ast.AST, inside: str) -> Iterator[str]:
    """Names that a file's imports could mean: modules, and what is imported from them, which may be modules too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), inside or None)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _module(name: str) -> ModuleType | None:
    """A module; None for a name that is none, such as a class within one."""
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
    """What a file says without comments and docstrings; most files are of many classes."""
    return ast.dump(_without_docstrings(ast.parse(source)))


def _without_docstrings(tree: ast.Module) -> ast.Module:
    """Drop every statement that is a text alone: docstrings, of attributes too."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, name, None), list):
                setattr(node, name, [one for one in statements if not _is_text(one)])
    return tree


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
