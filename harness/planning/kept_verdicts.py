"""Cache of conformance verdicts of a suite's methods, stored next to the spool.

Methods are checked in a separate process. If it hangs or dies, that counts as a verdict too.
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
    """Input of a conformance check: a method with parameters, and a model's shape.

    Attributes:
        name: Name of the method.
        params: Parameters of the method, as canonical JSON.
        syntax_sha256: Digest of the method's source.
        distribution: Distribution that provides the method.
        n_blocks: Number of decoder blocks of the model.
        exit_blocks: Blocks with a trained exit head.
    """

    name: str
    params: str
    syntax_sha256: str
    distribution: str | None
    n_blocks: int
    exit_blocks: tuple[int, ...]

    @classmethod
    def of(cls, method: MethodRef, n_blocks: int, exit_blocks: tuple[int, ...]) -> Setting:
        """Return the setting of a cell's method."""
        params = canonical_json(dict(method.params))
        syntax = syntax_sha256(get_method(method.name))
        return cls(method.name, params, syntax, method.distribution, n_blocks, exit_blocks)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON record passed to the checking process."""
        shape = {"n_blocks": self.n_blocks, "exit_blocks": list(self.exit_blocks)}
        return {"name": self.name, "params": json.loads(self.params), **shape}

    @property
    def key(self) -> str:
        """Cache key of the verdict: setting, method source and version of the checks."""
        return content_id({**self.to_json(), "syntax_sha256": self.syntax_sha256, "checks": checks_version()})


def known_verdicts(settings: Collection[Setting], folder: Path) -> dict[Setting, Verdict]:
    """Return the verdicts cached in a folder, which need not exist, and those of unchanged bundled methods."""
    cached, bundled = _read(folder / CACHE), conforming_sources()
    stored = {setting: cached[setting.key] for setting in settings if setting.key in cached}
    unchanged = (setting for setting in settings if bundled.get(setting.name) == setting.syntax_sha256)
    return {**dict.fromkeys(unchanged, Verdict((), checks_version())), **stored}


def verdicts(
    settings: Iterable[Setting], folder: Path, on_trial: Callable[[int], None] = lambda number: None
) -> dict[Setting, Verdict]:
    """Return the verdict of every setting; those not in the cache are checked in a separate process.

    Args:
        settings: The settings.
        folder: Folder of the cache, if it can be written; an unusable cache file is replaced.
        on_trial: Called with the number of settings to check, if there are any.
    """
    unique_settings = list(dict.fromkeys(settings))
    verdict_of = known_verdicts(unique_settings, folder)
    missing = [setting for setting in unique_settings if setting not in verdict_of]
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
    """Add verdicts to the cache; if the folder cannot be written, they are computed again next time."""
    record = {key: verdict.to_json() for key, verdict in {**_read(cache), **verdicts}.items()}
    partial = cache.with_name(f"{cache.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps(record, indent=1), encoding="utf-8")
        partial.replace(cache)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
