"""Cached conformance verdicts of a suite's methods, each found once and kept beside the spool.

They are tried in a process of their own, which may hang or die: that is a verdict too.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exitbench.harness.cells.cell import MethodRef
from exitbench.harness.conformance import Verdict, checks_version
from exitbench.harness.conformance.process import examine_apart
from exitbench.harness.conformance.shipped import conforming_sources
from exitbench.methods.registry import get_method, syntax_sha256
from exitbench.results.files.formats import canonical_json, content_id

CACHE = ".exitbench-conformance.json"


@dataclass(frozen=True)
class Setting:
    """A method with parameters for a model of some shape, as it is tried.

    Attributes:
        name: Of the method.
        params: Its parameters, as canonical JSON.
        syntax_sha256: Of the method's source.
        distribution: What brought it.
        n_blocks: Decoder blocks of the model.
        exit_blocks: Blocks after which it has trained exit heads.
    """

    name: str
    params: str
    syntax_sha256: str
    distribution: str | None
    n_blocks: int
    exit_blocks: tuple[int, ...]

    @classmethod
    def of(cls, method: MethodRef, n_blocks: int, exit_blocks: tuple[int, ...]) -> Setting:
        """Make the setting of a cell's method."""
        params = canonical_json(dict(method.params))
        syntax = syntax_sha256(get_method(method.name))
        return cls(method.name, params, syntax, method.distribution, n_blocks, exit_blocks)

    def to_json(self) -> dict[str, Any]:
        """Return what is handed to a trial."""
        shape = {"n_blocks": self.n_blocks, "exit_blocks": list(self.exit_blocks)}
        return {"name": self.name, "params": json.loads(self.params), **shape}

    @property
    def key(self) -> str:
        """What the verdict follows from: the setting, the method's source, and the checks."""
        return content_id({**self.to_json(), "syntax_sha256": self.syntax_sha256, "checks": checks_version()})


def known_verdicts(settings: Collection[Setting], folder: Path) -> dict[Setting, Verdict]:
    """Return those that are kept in a folder, which need not exist, and of methods that come along."""
    kept, ours = _read(folder / CACHE), conforming_sources()
    stored = {setting: kept[setting.key] for setting in settings if setting.key in kept}
    unchanged = (setting for setting in settings if ours.get(setting.name) == setting.syntax_sha256)
    return {**dict.fromkeys(unchanged, Verdict((), checks_version())), **stored}


def verdicts(
    settings: Iterable[Setting], folder: Path, on_trial: Callable[[int], None] = lambda number: None
) -> dict[Setting, Verdict]:
    """Return the verdict of every setting, tried in a process apart where it is not kept.

    Args:
        settings: The settings.
        folder: Where verdicts are kept, as far as it can be written; a file that is unusable is made anew.
        on_trial: Told how many are to be tried, if there are any.
    """
    asked = list(dict.fromkeys(settings))
    verdict_of = known_verdicts(asked, folder)
    missing = [setting for setting in asked if setting not in verdict_of]
    if missing:
        on_trial(len(missing))
        verdict_of |= dict(zip(missing, examine_apart([setting.to_json() for setting in missing]), strict=True))
        _write(folder / CACHE, {setting.key: verdict_of[setting] for setting in missing})
    return verdict_of


def _read(cache: Path) -> dict[str, Verdict]:
    try:
        record = json.loads(cache.read_text(encoding="utf-8"))
        return {key: Verdict.from_json(verdict) for key, verdict in record.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write(cache: Path, verdicts: Mapping[str, Verdict]) -> None:
    """Add verdicts to those kept; where the folder cannot be written they are found anew next time."""
    record = {key: verdict.to_json() for key, verdict in {**_read(cache), **verdicts}.items()}
    partial = cache.with_name(f"{cache.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps(record, indent=1), encoding="utf-8")
        partial.replace(cache)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
