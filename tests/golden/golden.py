"""Golden traces: what engine, methods and metrics did when their versions were last raised (see README.md)."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from settings import Params, base, settings
from traces import digest, scores, traced_model

from exitbench.errors import UserError
from exitbench.harness.engine import ENGINE_VERSION
from exitbench.methods.base import Method
from exitbench.methods.registry import distribution, get_method, method_names
from exitbench.tasks.builtin import TEXT_TASKS
from exitbench.tasks.registry import get_task

FILE = Path(__file__).with_name("golden.toml")
REWRITE_COMMAND = "python tests/golden/write.py"
TRACED_MODELS = ("builtin-weighted", "builtin-exit-heads", "builtin-layer-skip")
"""An encoder-decoder, one with exit heads, and a decoder-only model."""
_PRECISION = 1e-4


@dataclass(frozen=True)
class Setting:
    """Method with parameters on a model; `first_token` is the option of that name in suites."""

    method: str
    model: str
    params: str
    first_token: str


@dataclass(frozen=True)
class Trace:
    """Digest of a method's traces for some of a model's prompts; `documents` are their indices, from 0."""

    documents: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class Golden:
    """Versions, and the traces that belong to them.

    Attributes:
        engine_version: Version of the engine.
        inputs: Digest of weights and prompts, by model.
        versions: Version of each method.
        traces: Trace of each setting.
        probes: By model: digest of integer columns, means of the other columns.
        metrics: By task: version, digest of scores.
    """

    engine_version: int
    inputs: Mapping[str, str]
    versions: Mapping[str, int]
    traces: Mapping[Setting, Trace]
    probes: Mapping[str, tuple[str, Mapping[str, float]]]
    metrics: Mapping[str, tuple[str, str]]


def our_methods() -> list[type[Method]]:
    """Return the included methods."""
    return [cls for cls in map(get_method, method_names()) if distribution(cls)[0] == "exitbench"]


def settings_of(cls: type[Method]) -> Iterator[Setting]:
    """Yield every setting of a method on the first model that supports it, and its defaults on the other models."""
    is_first = True
    for name in TRACED_MODELS:
        model = traced_model(name).checkpoint.model
        try:
            cls.from_params({}).bound_to(model.exit_blocks).check(model.n_blocks)
        except UserError:
            continue
        tried: list[Params] = settings(cls, model.n_blocks, model.exit_blocks) if is_first else [base(cls)]
        is_first = False
        kinds = ("full", "gated") if traced_model(name).checkpoint.kind == "causal" else ("full",)
        for params in tried:
            yield from (Setting(cls.name, name, json.dumps(params), kind) for kind in kinds)


def trace(setting: Setting, documents: tuple[int, ...] | None = None) -> Trace:
    """Decode with a setting and return its trace.

    Without `documents`, the trace covers those whose results are the same in single precision.
    """
    of = get_method(setting.method), json.loads(setting.params), setting.first_token
    found = traced_model(setting.model).traces(*of)
    if documents is None:
        single = traced_model(setting.model, torch.float32).traces(*of)
        documents = tuple(row for row, (one, other) in enumerate(zip(found, single, strict=True)) if one == other)
    return Trace(documents, digest([found[row] for row in documents]))


def compute_golden(stored: Golden | None, on_progress: Callable[[str], None] = lambda text: None) -> Golden:
    """Compute all traces as of now. If models and prompts are unchanged, the stored traces' documents are used."""
    inputs = {name: traced_model(name).inputs for name in TRACED_MODELS}
    kept = stored.traces if stored is not None and dict(stored.inputs) == inputs else {}
    found = {}
    for setting in (setting for cls in our_methods() for setting in settings_of(cls)):
        on_progress(f"{setting.method} {setting.params}")
        found[setting] = trace(setting, kept[setting].documents if setting in kept else None)
    probes = {name: (digest(whole), means) for name in TRACED_MODELS for whole, means in [traced_model(name).probe()]}
    metrics = {name: (get_task(name).metric_version, scores(name)) for name in TEXT_TASKS}
    versions = {cls.name: cls.version for cls in our_methods()}
    return Golden(ENGINE_VERSION, inputs, versions, found, probes, metrics)


def faults(stored: Golden, found: Golden) -> Iterator[str]:
    """Yield a message for each change of traces without a new version, and for each new version without a change."""
    for name, (version, sha256) in found.metrics.items():
        before, sha256_before = stored.metrics.get(name, (None, sha256))
        if sha256 != sha256_before and version == before:
            yield f"the metrics of {name} say something else: change its metric_version"
    if dict(stored.inputs) != dict(found.inputs):
        return  # other models or prompts: nothing can be told
    shared = stored.traces.keys() & found.traces.keys()
    changed = {one.method for one in shared if stored.traces[one] != found.traces[one]}
    probes = [name for name in found.probes if not is_close(stored.probes[name], found.probes[name])]
    if stored.engine_version != found.engine_version:
        if not changed and not probes:
            yield "ENGINE_VERSION is another, but every trace is what it was"
        return
    for name in sorted(found.versions.keys() & stored.versions.keys()):
        is_raised = stored.versions[name] != found.versions[name]
        if name in changed and not is_raised:
            yield f"{name} does otherwise than before: raise its version"
        if is_raised and name not in changed:
            yield f"the version of {name} is another, but its traces are what they were"
    if len({get_method(name).__module__ for name in changed}) > 1:
        yield f"{', '.join(sorted(changed))} do otherwise than before, so what they share does: raise ENGINE_VERSION"
    if probes:
        yield f"probes of {', '.join(probes)} say something else: raise ENGINE_VERSION"


def is_close(one: tuple[str, Mapping[str, float]], other: tuple[str, Mapping[str, float]]) -> bool:
    """Return whether two probes are equal except for the last digits."""
    (whole, means), (other_whole, other_means) = one, other
    return (
        whole == other_whole
        and means.keys() == other_means.keys()
        and all(math.isclose(means[name], other_means[name], rel_tol=_PRECISION, abs_tol=_PRECISION) for name in means)
    )


def read() -> Golden:
    """Return the content of golden.toml."""
    record = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return Golden(
        record["engine_version"],
        record["inputs"],
        record["versions"],
        {
            Setting(method, model, params, first_token): Trace(tuple(documents), sha256)
            for method, model, params, first_token, documents, sha256 in record["traces"]
        },
        {name: (probe["whole"], probe["means"]) for name, probe in record["probes"].items()},
        {name: (metric["version"], metric["sha256"]) for name, metric in record["metrics"].items()},
    )


def text(golden: Golden) -> str:
    """Return golden traces as the text of golden.toml."""
    lines = [
        f"# What engine, methods and metrics do at these versions; made by `{REWRITE_COMMAND}`.",
        f"engine_version = {golden.engine_version}",
        "# method, model, parameters, first token, documents on which it holds in single precision too, SHA-256",
        "traces = [",
    ]
    for one, found in golden.traces.items():
        words = ", ".join(f"'{word}'" for word in (one.method, one.model, one.params, one.first_token))
        lines.append(f'    [{words}, {list(found.documents)}, "{found.sha256}"],')
    lines += ["]", "", "[inputs]", *(f'{name} = "{value}"' for name, value in golden.inputs.items())]
    lines += ["", "[versions]", *(f"{name} = {version}" for name, version in golden.versions.items())]
    for name, (whole, means) in golden.probes.items():
        lines += ["", f"[probes.{name}]", f'whole = "{whole}"', "[probes." + name + ".means]"]
        lines += [f"{column} = {mean:.6g}" for column, mean in means.items()]
    for name, (version, sha256) in golden.metrics.items():
        lines += ["", f"[metrics.{name}]", f"version = '{version}'", f'sha256 = "{sha256}"']
    return "\n".join(lines) + "\n"
