"""Registry of methods: those of this package, and those that other installed distributions or plug-ins register.

Other distributions register methods in the entry-point group ``exitbench.methods``; the entry point names the class.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeVar

import exitbench.methods
from exitbench import provenance
from exitbench.errors import UserError, suggestion
from exitbench.methods.base import Method
from exitbench.plugins import load_plugins

GROUP = "exitbench.methods"
"""Entry-point group of other distributions' methods; also the package of the bundled methods."""

_methods: dict[str, type[Method]] = {}
_unusable: dict[str, str] = {}
M = TypeVar("M", bound=type[Method])


def register(cls: M) -> M:
    """Register a method class by its name; used as a class decorator.

    Raises:
        TypeError: The class is not a concrete `Method` with a name and parameters declared by `param`.
        ValueError: Another class has the same name.
    """
    _check_usable(cls)
    registered = _methods.setdefault(cls.name, cls)
    if (registered.__module__, registered.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"two methods are named {cls.name!r}: {registered.__module__} and {cls.__module__}")
    return cls


def _check_usable(cls: object) -> None:
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise TypeError(f"what {GROUP} names must be a subclass of exitbench.methods.base.Method")
    if not isinstance(getattr(cls, "name", None), str):
        raise TypeError(f"method {cls.__name__} needs a name: name: ClassVar[str] = ...")
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise TypeError(f"method {cls.name!r} lacks {', '.join(missing)}()")
    for field in dataclasses.fields(cls):
        if "doc" not in field.metadata:
            kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", field.type)
            default = "..." if field.default is dataclasses.MISSING else repr(field.default)
            raise TypeError(
                f"parameter {field.name!r} of method {cls.name!r} is a plain field; write {field.name}: {kind} = "
                f'param({default}, "what it means"), with param from exitbench.methods.base'
            )


@functools.cache
def _discover() -> None:
    for module in pkgutil.iter_modules(exitbench.methods.__path__, "exitbench.methods."):
        with _record_failure(module.name.rpartition(".")[2].replace("_", "-"), module.name):
            importlib.import_module(module.name)
    for point in entry_points(group=GROUP):
        with _record_failure(point.name, point.value):
            register(point.load())
    load_plugins()


@contextlib.contextmanager
def _record_failure(name: str, what: str) -> Iterator[None]:
    """Catch an error while a method is loaded, and record it under the method's name; other methods still load.

    ``what`` is the module or entry point that is loaded, for the message.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        _unusable[name] = f"{what}: " + " ".join(f"{type(error).__name__}: {error}".split())


def method_names() -> tuple[str, ...]:
    """Return the names of all registered methods, sorted."""
    _discover()
    return tuple(sorted(_methods))


def unusable_methods() -> dict[str, str]:
    """Return why methods cannot be used: by name, the module or entry point that failed to load, and its error."""
    _discover()
    return dict(sorted(_unusable.items()))


def get_method(name: str, location: str = "") -> type[Method]:
    """Return the method class with the given name.

    Args:
        name: Name of the method.
        location: File and line that contain the name, for the error message.

    Raises:
        UserError: There is no such method; the message lists those that exist.
    """
    _discover()
    if name not in _methods and name in _unusable:
        raise UserError(f"{location + ': ' if location else ''}method {name!r} cannot be used: {_unusable[name]}")
    if name not in _methods:
        raise UserError(f"{location + ': ' if location else ''}unknown method {name!r}.{suggestion(name, _methods)}")
    return _methods[name]


def baseline_method() -> type[Method]:
    """Return the class of the baseline, the method that all other methods are compared with."""
    _discover()
    return next(cls for cls in _methods.values() if cls.is_baseline)


@functools.cache
def certifiable() -> tuple[str, ...]:
    """Return the sorted names of methods that, with default parameters, can decide exits from bounds of the logits."""
    names = []
    for name in method_names():
        with contextlib.suppress(Exception):  # a broken method's own cells report its error
            if _methods[name]().parts(n_blocks=2).why_not_certified is None:
                names.append(name)
    return tuple(names)


def fixed_depth_method() -> tuple[type[Method], str]:
    """Return the class of the method with one exit layer for all tokens, and the name of its exit-layer parameter."""
    _discover()
    return next((cls, cls.fixed_depth) for cls in _methods.values() if cls.fixed_depth is not None)


def drafting_method() -> tuple[type[Method], str, str]:
    """Return the class of the method that drafts at an early block and verifies, and the names of two parameters.

    They set the exit layer of drafts, and the number of drafts per verification.
    """
    _discover()
    return next((cls, *cls.drafting) for cls in _methods.values() if cls.drafting is not None)


@functools.cache
def distribution(cls: type[Method]) -> tuple[str | None, str | None]:
    """Return name and version of the Python distribution that provides a method; (None, None) if none does."""
    if cls.__module__.startswith(f"{GROUP}."):
        return "exitbench", exitbench.__version__
    return provenance.distribution(cls, GROUP)


@functools.cache
def revision(cls: type[Method]) -> str:
    """Return a method's revision, a string that changes whenever the method may compute something else.

    It is part of a cell's id. A bundled method's revision is its declared version, which tests tie to its behavior. A
    third-party method's also includes name and version of its distribution, and a digest of source syntax. The digest
    covers the class's file and the files of its package that it imports, directly or not. Comments, docstrings and
    layout do not change it.
    """
    if cls.__module__.startswith(f"{GROUP}."):
        return str(cls.version)
    return provenance.third_party_revision(cls, str(cls.version), GROUP)


@functools.cache
def syntax_sha256(cls: type[Method]) -> str:
    """Return a digest of a method's source: its file and the modules of `exitbench.methods` that it imports.

    Imports are followed transitively. Comments, docstrings and layout do not affect the digest.
    """
    return provenance.syntax_sha256(cls, GROUP, apart_from=Path(__file__))
