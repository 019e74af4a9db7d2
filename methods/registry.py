"""Registry of methods: those of this folder and those that other distributions register.

Third parties publish theirs through the entry-point group ``exitbench.methods``; the entry point names the class.
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
"""Entry points of other distributions, and the package of our own methods."""

_methods: dict[str, type[Method]] = {}
_unusable: dict[str, str] = {}
M = TypeVar("M", bound=type[Method])


def register(cls: M) -> M:
    """Class decorator: make a method known by its name.

    Raises:
        TypeError: It is not a method that a suite can name.
        ValueError: Two different classes claim one name.
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
        with _set_aside(module.name.rpartition(".")[2].replace("_", "-"), module.name):
            importlib.import_module(module.name)
    for point in entry_points(group=GROUP):
        with _set_aside(point.name, point.value):
            register(point.load())
    load_plugins()


@contextlib.contextmanager
def _set_aside(name: str, what: str) -> Iterator[None]:
    """Keep a broken method apart, so that the others still load."""
    try:
        yield
    except (Exception, SystemExit) as error:
        _unusable[name] = f"{what}: " + " ".join(f"{type(error).__name__}: {error}".split())


def method_names() -> tuple[str, ...]:
    """Every registered name, sorted."""
    _discover()
    return tuple(sorted(_methods))


def unusable_methods() -> dict[str, str]:
    """Modules and entry points that bring no method that can be used, by name, and why not."""
    _discover()
    return dict(sorted(_unusable.items()))


def get_method(name: str, location: str = "") -> type[Method]:
    """Return the method class of that name.

    Raises:
        UserError: No such method; says which exist.
    """
    _discover()
    if name not in _methods and name in _unusable:
        raise UserError(f"{location + ': ' if location else ''}method {name!r} cannot be used: {_unusable[name]}")
    if name not in _methods:
        raise UserError(f"{location + ': ' if location else ''}unknown method {name!r}.{suggestion(name, _methods)}")
    return _methods[name]


def baseline_method() -> type[Method]:
    """The method that every other is compared with."""
    _discover()
    return next(cls for cls in _methods.values() if cls.is_baseline)


@functools.cache
def certifiable() -> tuple[str, ...]:
    """Names of the methods that can decide from bounds of the logits, with their usual parameters; sorted."""
    names = []
    for name in method_names():
        with contextlib.suppress(Exception):  # of a method that is broken, its own cells say so
            if _methods[name]().parts(n_blocks=2).why_not_certified is None:
                names.append(name)
    return tuple(names)


def fixed_depth_method() -> tuple[type[Method], str]:
    """The control whose tokens all leave after the same block, and the parameter that says after which."""
    _discover()
    return next((cls, cls.fixed_depth) for cls in _methods.values() if cls.fixed_depth is not None)


def drafting_method() -> tuple[type[Method], str, str]:
    """The method that drafts and verifies, and its parameters: the draft's exit layer, and drafts per verification."""
    _discover()
    return next((cls, *cls.drafting) for cls in _methods.values() if cls.drafting is not None)


@functools.cache
def distribution(cls: type[Method]) -> tuple[str | None, str | None]:
    """Return name and version of the package that provides a method; (None, None) if none does."""
    if cls.__module__.startswith(f"{GROUP}."):
        return "exitbench", exitbench.__version__
    return provenance.distribution(cls, GROUP)


@functools.cache
def revision(cls: type[Method]) -> str:
    """Return the revision of a method for a cell's identity: it changes whenever the method may compute something else.

    For a bundled method this is the version that it declares, which the tests tie to its behaviour. For any other it
    is also the distribution's name and version and a digest of the syntax of its file and of those of its own package
    that it imports, directly or not: comments, docstrings and layout change nothing.
    """
    if cls.__module__.startswith(f"{GROUP}."):
        return str(cls.version)
    return provenance.revision_of_others(cls, str(cls.version), GROUP)


@functools.cache
def syntax_sha256(cls: type[Method]) -> str:
    """Digest of the syntax of the method's own file and of the modules of this package it imports, directly or not."""
    return provenance.syntax_sha256(cls, GROUP, apart_from=Path(__file__))
