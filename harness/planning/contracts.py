"""Check, before cells run, that a plan's methods keep their contracts (conformance)."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from exitbench.harness.cells.cell import MethodRef
from exitbench.harness.conformance import ConformanceResult, checks_version
from exitbench.harness.conformance.process import examine_apart
from exitbench.harness.conformance.shipped import conforming_sources
from exitbench.harness.engine.checkpoints.exit_head_files import read_exit_blocks
from exitbench.harness.planning.plan import ModelGroup, Plan
from exitbench.harness.planning.retry import Retry
from exitbench.methods.registry import get_method, syntax_sha256
from exitbench.results.files.atomic import write_whole_file
from exitbench.results.files.formats import canonical_json, content_id

_OURS: Final = "exitbench"


def with_verdicts(plan: Plan, retry: Retry, folder: Path, on_check: Callable[[int], None]) -> Plan:
    """Return the plan with a conformance verdict (does the method keep its contract?) in every cell to run.

    Args:
        plan: The plan.
        retry: Value of ``--retry``, which selects the cells to run by their states (`retry.RETRIED`).
        folder: Folder of the verdict cache.
        on_check: Called with the number of settings (method, parameters, model shape) to check; not called if all
            verdicts are known.
    """
    settings = _settings(plan, retry)
    verdict_of = verdicts(settings.values(), folder, on_check)
    groups = []
    for group in plan.groups:
        cells = []
        for planned in group.cells:
            setting = settings.get(planned.item.cell.cell_id)
            record = verdict_of[setting].to_json() if setting else None
            cells.append(replace(planned, item=replace(planned.item, conformance=record)))
        groups.append(replace(group, cells=tuple(cells)))
    return replace(plan, groups=tuple(groups))


def conformance_lines(plan: Plan, retry: Retry, folder: Path) -> Iterator[str]:
    """Yield lines for users about the conformance of methods to run: failures, and third-party methods that conform.

    Third-party methods are checked now, unless their verdict is cached in `folder`. A bundled method gets a line only
    if a cached verdict says that it fails.
    """
    settings = _settings(plan, retry)
    bundled = {setting for setting in settings.values() if setting.distribution == _OURS}
    third_party = dict.fromkeys(setting for setting in settings.values() if setting not in bundled)
    verdict_of = known_verdicts(bundled, folder) | verdicts(third_party, folder)
    by_cell = {cell_id: verdict_of[setting] for cell_id, setting in settings.items() if setting in verdict_of}
    yield from _failing_lines(plan, by_cell)
    conforming_counts = Counter(setting.name for setting in third_party if verdict_of[setting].conforms)
    yield from (
        f"{name} conforms{f' in {times} settings' if times > 1 else ''}" for name, times in conforming_counts.items()
    )


def failing(plan: Plan) -> Iterator[str]:
    """Yield one line per distinct failure among the plan's conformance verdicts; it names the first cell affected."""
    items = [planned.item for group in plan.groups for planned in group.cells]
    yield from _failing_lines(
        plan, {item.cell.cell_id: ConformanceResult.from_json(item.conformance) for item in items if item.conformance}
    )


def _failing_lines(plan: Plan, by_cell: Mapping[str, ConformanceResult]) -> Iterator[str]:
    first: dict[tuple[str, ConformanceResult], str] = {}
    for item in (planned.item for group in plan.groups for planned in group.cells):
        verdict = by_cell.get(item.cell.cell_id)
        if verdict is not None and not verdict.conforms:
            first.setdefault((item.cell.method.name, verdict), item.label)
    yield from (f"{label} {verdict}" for (_, verdict), label in first.items())


def _settings(plan: Plan, retry: Retry) -> dict[str, Setting]:
    """Return, by cell id, the input of the conformance check for every cell to run."""
    return {cell_id: setting for group in plan.groups for cell_id, setting in _group_settings(group, retry)}


def _group_settings(group: ModelGroup, retry: Retry) -> Iterator[tuple[str, Setting]]:
    cells = [item.cell for item in group.to_run(retry)]
    if cells and group.folder is not None:
        exit_blocks = read_exit_blocks(group.folder)
        for cell in cells:
            yield cell.cell_id, Setting.from_method_ref(cell.method, cell.model.blocks, exit_blocks)


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
    def from_method_ref(cls, method: MethodRef, n_blocks: int, exit_blocks: tuple[int, ...]) -> Setting:
        """Return the setting of a cell's method on a model with `n_blocks` blocks and exit heads at `exit_blocks`."""
        params = canonical_json(dict(method.params))
        syntax = syntax_sha256(get_method(method.name))
        return cls(method.name, params, syntax, method.distribution, n_blocks, exit_blocks)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON record passed to the checking process."""
        shape = {"n_blocks": self.n_blocks, "exit_blocks": list(self.exit_blocks)}
        return {"name": self.name, "params": json.loads(self.params), **shape}

    @property
    def key(self) -> str:
        """Cache key of the verdict: digest of the setting, the method's source and the version of the checks."""
        return content_id({**self.to_json(), "syntax_sha256": self.syntax_sha256, "checks": checks_version()})


def known_verdicts(settings: Collection[Setting], folder: Path) -> dict[Setting, ConformanceResult]:
    """Return the verdicts that need no check: those cached in `folder`, and "conforms" for unchanged bundled methods.

    Args:
        settings: The settings.
        folder: Folder of the cache; may not exist.
    """
    cached, bundled = _read(folder / CACHE), conforming_sources()
    stored = {setting: cached[setting.key] for setting in settings if setting.key in cached}
    unchanged = (setting for setting in settings if bundled.get(setting.name) == setting.syntax_sha256)
    return {**dict.fromkeys(unchanged, ConformanceResult((), checks_version())), **stored}


def verdicts(
    settings: Iterable[Setting], folder: Path, on_check: Callable[[int], None] = lambda number: None
) -> dict[Setting, ConformanceResult]:
    """Return the verdict of every setting; settings without a known verdict are checked in a separate process.

    Args:
        settings: The settings.
        folder: Folder of the cache; nothing is cached if it is not writable, and an unreadable cache file is replaced.
        on_check: Called with the number of settings to check; not called if all verdicts are known.
    """
    unique_settings = list(dict.fromkeys(settings))
    verdict_of = known_verdicts(unique_settings, folder)
    missing = [setting for setting in unique_settings if setting not in verdict_of]
    if missing:
        on_check(len(missing))
        verdict_of |= dict(zip(missing, examine_apart([setting.to_json() for setting in missing]), strict=True))
        _write(folder / CACHE, {setting.key: verdict_of[setting] for setting in missing})
    return verdict_of


def _read(cache: Path) -> dict[str, ConformanceResult]:
    try:
        record = json.loads(cache.read_text(encoding="utf-8"))
        return {key: ConformanceResult.from_json(verdict) for key, verdict in record.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write(cache: Path, verdicts: Mapping[str, ConformanceResult]) -> None:
    """Add verdicts, by cache key, to the cache file; do nothing if the folder cannot be written."""
    record = {key: verdict.to_json() for key, verdict in {**_read(cache), **verdicts}.items()}
    with contextlib.suppress(OSError):
        write_whole_file(cache, json.dumps(record, indent=1))
