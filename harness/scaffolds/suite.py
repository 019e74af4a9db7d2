"""A suite for a checkpoint: every method that it can run and that needs nothing trained first, on tasks that fit it."""

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
from exitbench.harness.scaffolds.files import filled
from exitbench.harness.work.base import Work
from exitbench.methods.base import Method
from exitbench.methods.registry import get_method, method_names
from exitbench.results.files.formats import toml_table
from exitbench.terminal import visible

_WIDTH: Final = 110
_LIMIT: Final = 20
"""Documents of a task, where the user says nothing."""


@dataclass(frozen=True)
class Asked:
    """What the suite is about.

    Attributes:
        name: Of the suite.
        model: The line of ``[models.LABEL]`` that names the checkpoint.
        label: Of the model.
        folder: Where its files lie.
        tasks: Values of ``[tasks.LABEL]``, by label; none: those that come along for models of its kind.
        works: What they ask of the model, which not every method can answer.
        command: That plans the suite, for the comment at its top.
    """

    name: str
    model: str
    label: str
    folder: Path
    tasks: Mapping[str, Mapping[str, Any]]
    works: Set[type[Work[Any]]]
    command: str


def suite_text(asked: Asked) -> str:
    """Return the suite. Weights are not loaded: configuration and the headers of the files tell what can be run.

    Raises:
        UserError: The folder is no checkpoint that an engine runs.
    """
    checkpoint = load_checkpoint(asked.folder, device="meta")
    kind = "an encoder-decoder" if checkpoint.kind == "seq2seq" else "a decoder-only model"
    return filled(
        "suite.toml",
        name=asked.name,
        command=visible(asked.command),
        label=asked.label,
        model=asked.model,
        model_about=f"{asked.label}, {kind} of {checkpoint.model.n_blocks} decoder blocks",
        tasks=_tasks(asked.tasks) or filled(f"tasks_{checkpoint.kind}.toml"),
        sweeps="\n".join(_sweeps(checkpoint, asked.works)),
    )


def label_of(text: str) -> str:
    """Return a name that a model or a task can have in a suite, made of any text."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text, flags=re.ASCII).strip("-.")[:40] or "mine"


def _tasks(tasks: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [toml_table(f"[tasks.{label}]", {"limit": _LIMIT, **values}) for label, values in tasks.items()]
    return "\n".join(itertools.chain(*lines)).lstrip("\n") + "\n" if lines else ""


def _sweeps(checkpoint: Checkpoint, works: Set[type[Work[Any]]]) -> Iterator[str]:
    """The sweeps of the template, each as it is or, where the model cannot run it, as a comment that says why."""
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
    if left := [name for name in method_names() if name not in named]:
        about = "Others, some of which are fitted on a train split first (`exitbench list methods`)"
        yield _comment(f"{about}: {', '.join(left)}.")


def _why_not(checkpoint: Checkpoint, works: Set[type[Work[Any]]], sweep: Mapping[str, Any]) -> str | None:
    """Why some setting of a sweep cannot be run on a model; None where all can."""
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
