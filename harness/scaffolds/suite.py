"""Generator of a suite for a checkpoint: every runnable method that needs no fitting, on suitable tasks."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.planning.entries.task import TaskEntry, read_task
from exitbench.harness.planning.prompt_styles import style_for
from exitbench.harness.reading.toml import TomlTable
from exitbench.harness.scaffolds import filled
from exitbench.harness.work.base import Work
from exitbench.methods.base import Method
from exitbench.methods.registry import get_method, method_names
from exitbench.results.files.formats import toml_table
from exitbench.tasks.base import ModelKind
from exitbench.terminal import visible

_WIDTH: Final = 110
_LIMIT: Final = 20
"""Default number of documents per task."""


@dataclass(frozen=True)
class SuiteDescription:
    """Description of the suite to generate.

    Attributes:
        name: Name of the suite.
        model: The line of ``[models.LABEL]`` that names the checkpoint.
        label: Label of the model.
        folder: Folder of the checkpoint.
        tasks: Values of ``[tasks.LABEL]`` by label; empty for bundled tasks for this kind of model.
        entries: The parsed tasks, by label. The suite leaves out methods that do not support all their kinds of work.
        command: Command that plans the suite, for its header comment.
    """

    name: str
    model: str
    label: str
    folder: Path
    tasks: Mapping[str, Mapping[str, Any]]
    entries: Mapping[str, TaskEntry]
    command: str


def suite_text(description: SuiteDescription) -> str:
    """Return the suite's TOML text. Reads the configuration and the headers of the weight files, but no weights.

    Raises:
        UserError: The folder is not a checkpoint that an engine can run.
    """
    checkpoint = load_checkpoint(description.folder, device="meta")
    kind = "an encoder-decoder" if checkpoint.kind == "seq2seq" else "a decoder-only model"
    return filled(
        "suite.toml",
        name=description.name,
        command=visible(description.command),
        label=description.label,
        model=description.model,
        model_about=f"{description.label}, {kind} of {checkpoint.model.n_blocks} decoder blocks",
        tasks=_tasks(description, checkpoint.kind),
        sweeps="\n".join(_sweeps(checkpoint, {entry.work for entry in description.entries.values()})),
    )


def label_of(text: str) -> str:
    """Return a valid model or task label derived from any text."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text, flags=re.ASCII).strip("-.")[:40] or "mine"


def _tasks(description: SuiteDescription, kind: ModelKind) -> str:
    """Return the suite's task tables as TOML, each with the model's default prompt style."""
    if not description.tasks:
        bundled = read_task("squad", TomlTable(description.folder, "", ("tasks", "squad"), {}))
        return filled(f"tasks_{kind}.toml", style=style_for(bundled, description.folder, kind))
    lines = []
    for label, values in description.tasks.items():
        entry, style = description.entries[label], {}
        if entry.data.task_object.style_texts is not None:
            style = {"prompt_style": style_for(entry, description.folder, kind)}
        lines += toml_table(f"[tasks.{label}]", {"limit": _LIMIT, **style, **values})
    return "\n".join(lines).lstrip("\n") + "\n"


def _sweeps(checkpoint: Checkpoint, works: Set[type[Work[Any]]]) -> Iterator[str]:
    """Yield the standard sweeps as TOML; a sweep that the model cannot run becomes a comment with the reason.

    A sweep is a method with lists of parameter values. ``works`` are the kinds of work of the suite's tasks.
    """
    n_blocks = checkpoint.model.n_blocks
    quarters = [max(1, round(n_blocks * part / 4)) for part in (1, 2, 3)]
    depths = sorted({depth for depth in quarters if depth < n_blocks} or {1})
    text = filled("sweeps.toml", depths=str(depths), half=str(quarters[1]), first=str(depths[0]))
    named = set()
    for paragraph in text.strip().split("\n\n"):
        (sweep,) = tomllib.loads(paragraph)["sweep"]
        named.add(sweep["method"])
        if (reason := _why_not(checkpoint, works, sweep)) is None:
            yield f"{paragraph}\n"
        else:
            yield _comment(f"Not on this model: {sweep['method']}, {reason}")
    if unused_names := [name for name in method_names() if name not in named]:
        about = "Others, some of which are fitted on a train split first (`exitbench list methods`)"
        yield _comment(f"{about}: {', '.join(unused_names)}.")


def _why_not(checkpoint: Checkpoint, works: Set[type[Work[Any]]], sweep: Mapping[str, Any]) -> str | None:
    """Return the reason why any setting of a sweep cannot run on a model, or None if all settings can."""
    try:
        for method in _methods(sweep):
            method.check(checkpoint.model.n_blocks)
            parts = method.bound_to(checkpoint.model.exit_blocks).parts(checkpoint.model.n_blocks)
            if (reason := checkpoint.model.why_not(parts, 1)) is not None:
                return reason
            for work in works:
                if (reason := work.why_not(parts, "it")) is not None:
                    return f"{reason}."
    except UserError as refusal:
        return str(refusal)
    return None


def _methods(sweep: Mapping[str, Any]) -> Iterator[Method]:
    axes = {**sweep.get("grid", {}), **sweep.get("query", {})}
    for values in itertools.product(*axes.values()):
        yield get_method(sweep["method"]).from_params(dict(zip(axes, values, strict=True)))


def _comment(text: str) -> str:
    return fill(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False) + "\n"
