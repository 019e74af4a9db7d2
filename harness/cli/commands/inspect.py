"""``exitbench inspect``: print a model's architecture, engines, cost of methods, and reasons why it cannot run."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Final

from exitbench.errors import UserError, suggestion
from exitbench.harness.cli.commands.common import data_size
from exitbench.harness.service.folders import Runs
from exitbench.terminal import number_of, one_screen, print_escaped

if TYPE_CHECKING:
    from exitbench.harness.inspecting.encoders import ClassifierInspection, ClassifierShape
    from exitbench.harness.inspecting.gate_costs import GateCost, SkipCost
    from exitbench.harness.inspecting.inspection import ArchitectureSummary, Inspection, TokenCost

_FLOAT32, _BFLOAT16 = 4, 2
"""Bytes per number, in float32 and bfloat16."""
_NO_BREAK: Final = "\N{NO-BREAK SPACE}"


def inspect(arguments: Namespace) -> int:
    """Print a model's architecture, engines and cost of methods; return 1 if the model cannot be run.

    Raises:
        UserError: The model does not exist, or its configuration cannot be read.
    """
    folder = model_folder(arguments.model, Runs(arguments.runs).models, query_hub=arguments.hub)
    from transformers.utils import logging

    from exitbench.harness.engine.checkpoints.encoder_loading import is_encoder
    from exitbench.harness.engine.checkpoints.files import CONFIG
    from exitbench.harness.inspecting.encoders import inspect_classifier
    from exitbench.harness.inspecting.inspection import inspect_folder

    logging.disable_progress_bar()
    if (folder / CONFIG).is_file() and is_encoder(folder):
        classifier = inspect_classifier(folder)
        _print(classifier, classifier_lines(classifier), arguments.format)
        return 1 if classifier.lacks else 0
    inspection = inspect_folder(folder, arguments.engine, arguments.context)
    _print(inspection, _lines(inspection), arguments.format)
    return 1 if inspection.lacks else 0


def _print(inspection: Inspection | ClassifierInspection, lines: Iterator[str], form: str) -> None:
    if form == "json":
        print(json.dumps(asdict(inspection), indent=1))
    else:
        print_escaped("\n".join(lines), sys.stdout)


def model_folder(written: str, models_dir: Path, *, query_hub: bool = False) -> Path:
    """Return the checkpoint folder of a model named by a folder, a hub name, or the name or file of a recipe.

    Args:
        written: The model as the user wrote it.
        models_dir: Folder of models trained from recipes, searched in addition to the bundled models.
        query_hub: Whether missing files may be fetched from the hub.

    Raises:
        UserError: The model does not exist, is not local, or is not trained yet.
    """
    from exitbench.harness.engine.checkpoints.files import gguf_note
    from exitbench.harness.engine.checkpoints.hub import locate, read_name
    from exitbench.harness.training import find_trained, load_recipe, recipe_names
    from exitbench.harness.training.store import SHIPPED

    path = Path(written)
    if path.is_dir() or read_name(written) is not None:
        return locate(written, query_hub=query_hub, say=print_escaped).folder
    is_recipe = written.partition("@")[0] in recipe_names()
    if not is_recipe and path.suffix != ".toml":
        hint = gguf_note(path) or suggestion(written, recipe_names())
        raise UserError(f"there is no folder {written!r} and no recipe of that name.{hint}")
    folder = find_trained(load_recipe(written if is_recipe else path), models_dir, SHIPPED)
    if folder is None:
        raise UserError(f"{written} is a recipe that is not trained yet. Train it: exitbench train {written}.")
    return folder


# --------------------------------------------------------------------------------------------------------- the report


def _lines(inspection: Inspection) -> Iterator[str]:
    yield inspection.folder
    yield from labelled(
        "family", f"{inspection.family or 'not known'} ({inspection.model_class or 'no class of transformers'})"
    )
    yield from labelled("engine", _engines(inspection))
    if inspection.shape is not None:
        yield from _shape(inspection.shape)
    yield from labelled("tokens", _tokens(inspection))
    if inspection.stored is not None:
        stored = inspection.stored
        formats = ", ".join(f"{numel:,} {name}" for name, numel in stored.numel_by_format.items())
        many = f"{number_of(stored.n_tensors, 'tensor')} in {number_of(len(stored.files), 'file')}"
        yield from labelled("stored", f"{data_size(stored.size_bytes)}, {many}: {formats}")
    if inspection.exit_heads is not None:
        heads = inspection.exit_heads
        blocks = ", ".join(map(str, heads.blocks))
        yield from labelled("exit heads", f"{heads.kind}, after blocks {blocks}, {heads.numel:,} parameters")
    if inspection.shape is not None and inspection.work is not None:
        yield from _weights(inspection, inspection.shape, inspection.work)
        if not inspection.engines or inspection.engines[0].why_not is None:
            yield from _methods(inspection.work, runs=bool(inspection.engines))
            yield from _policies(inspection.work)
    yield from _lacks(inspection)


def _engines(inspection: Inspection) -> str:
    if not inspection.engines:
        return "not tried, see below"
    phrases = []
    for tried, is_chosen in zip(inspection.engines, (True, False), strict=True):
        if tried.why_not is not None:
            phrases.append(f"{tried.engine}: no, see below" if is_chosen else f"{tried.engine}: no ({tried.why_not})")
        elif not is_chosen:
            proof = "" if tried.is_proved else f", not proved (--engine {tried.engine} does)"
            phrases.append(f"{tried.engine} reads it too{proof}")
        elif tried.engine == "lean":
            phrases.append("lean")
        else:
            phrases.append("hosted, proved" if tried.is_proved else "hosted, not proved: too large to be loaded here")
    return "; ".join(phrases)


def _shape(shape: ArchitectureSummary) -> Iterator[str]:
    encoder = f"{shape.encoder_blocks} in the encoder, " if shape.encoder_blocks else ""
    positions = "without end" if shape.positions is None else f"{shape.positions:,}"
    heads = f"{number_of(shape.heads, 'head')} of {shape.head_size}" if shape.heads else "no heads"
    keys = "" if shape.kv_heads == shape.heads else f" ({shape.kv_heads} of keys and values)"
    yield from labelled(
        "blocks",
        f"{encoder}{shape.decoder_blocks} in the decoder, width {shape.width:,}, {heads}{keys}, positions {positions}",
    )
    parts = shape.parameters
    named = {"encoder": parts.encoder, "decoder blocks": parts.blocks, "LM head": parts.head, "other": parts.other}
    breakdown = ", ".join(f"{name} {numel:,}" for name, numel in named.items() if numel)
    tied = " (the LM head too)" if parts.is_tied else ""
    yield from labelled("parameters", f"{parts.total:,}: embedding {parts.embedding:,}{tied}, {breakdown}")


def _tokens(inspection: Inspection) -> str:
    tokens, vocabulary = (
        inspection.tokens,
        "" if inspection.shape is None else f"vocabulary {inspection.shape.vocabulary:,}, ",
    )
    start = "" if tokens.start_id is None else f"answers start with {tokens.start_id}, "
    ends = "ends not known"
    if tokens.end_ids is not None:
        ids = ", ".join(map(str, tokens.end_ids))
        ends = f"end with {ids}" if ids else "no end: every answer runs to its budget"
    if tokens.tokenizer is None:
        return f"{vocabulary}{start}{ends}; no tokenizer, see below"
    chat = "a chat template" if tokens.has_chat_template else "no chat template"
    return f"{vocabulary}{start}{ends}; {tokens.tokenizer} of {tokens.n_tokens:,} tokens, {chat}"


def _weights(inspection: Inspection, shape: ArchitectureSummary, work: TokenCost) -> Iterator[str]:
    numel = shape.parameters.total + (inspection.exit_heads.numel if inspection.exit_heads else 0)
    blocks = shape.decoder_blocks * work.block_weights
    yield from labelled("to load", _sizes(numel))
    yield from labelled(
        "one token",
        f"reads {_sizes(blocks + work.head_weights)} of weights at full depth: as float32, "
        f"{data_size(work.block_weights * _FLOAT32)} a block, {data_size(work.head_weights * _FLOAT32)} the LM head",
    )
    if not (cached := work.kv_per_token):
        return
    scope = " of the answer, and as much of the source" if work.source else ""
    yield from labelled("KV cache", f"a token{scope}: {_sizes(cached)}; 1,000 tokens: {_sizes(1000 * cached)}")


def _sizes(numel: float) -> str:
    return f"{data_size(numel * _FLOAT32)} (bfloat16: {data_size(numel * _BFLOAT16)})"


# -------------------------------------------------------------------------------------------------------- the tables


def _methods(work: TokenCost, runs: bool) -> Iterator[str]:
    source = f" and {work.source:,} of source" if work.source else ""
    yield ""
    yield f"Mean work per gate evaluation, relative to one block, at {work.context:,} tokens of context{source}:"
    if not work.is_counted:
        yield "(by config.json alone, as if all weights of a block were read)"
    yield f"{'method':24}{'reads':34}{'bytes':>9}{'FLOPs':>9}  on this model"
    for gate in work.methods:
        reads = gate.reads if gate.why_not is None else "–"
        yield (
            f"{gate.method:24}{reads:34}{_percent(gate.bytes_share):>9}{_percent(gate.flops_share):>9}  "
            f"{_possible(gate) if runs or gate.why_not else '–'}"
        ).rstrip()
    yield from reasons([(gate.method, gate.why_not) for gate in work.methods])
    if runs:
        alone = [(gate.method, gate.why_alone) for gate in work.methods if gate.why_not is None]
        yield from reasons(alone, "; row by row: ")


def _possible(gate: GateCost) -> str:
    if gate.why_not is not None:
        return "no, see below"
    phrases = ["after a fit" if gate.is_fitted else "yes"]
    phrases += [] if gate.n_evaluations else ["never evaluated"]
    phrases += [] if gate.why_alone is None else ["row by row"]
    return ", ".join(phrases)


def _policies(work: TokenCost) -> Iterator[str]:
    yield ""
    costs = ", ".join(map(_policy, work.kv_policies))
    about = "KV policies: bytes/FLOPs per skipped block, up to the next token at full depth, relative to one block: "
    yield fill(f"{about}{costs}", WIDTH, subsequent_indent="  ", break_on_hyphens=False).replace(_NO_BREAK, " ")
    yield from reasons([(policy.policy, policy.why_not) for policy in work.kv_policies])
    alone = [(policy.policy, policy.why_alone) for policy in work.kv_policies if policy.why_not is None]
    if not all(reason for _, reason in alone):  # if all have a reason, the methods' list contains it
        yield from reasons(alone, "; row by row: ")
    told = {policy.why_not for policy in work.kv_policies}
    for reason, choices in work.refused_choices.items():
        if reason in told:
            continue
        values: dict[str, list[str]] = {}
        for name, _, value in (choice.partition(" = ") for choice in choices):
            values.setdefault(name, []).append(value)
        values_text = "; ".join(f"{name} = {', '.join(of_it)}" for name, of_it in values.items())
        yield item(f"not {values_text}: {reason}")


def _policy(policy: SkipCost) -> str:
    verifies = f"{_NO_BREAK}and{_NO_BREAK}verification" if policy.verifies else ""
    return f"{policy.policy}{_NO_BREAK}{_percent(policy.bytes_share)}/{_percent(policy.flops_share)}{verifies}"


def _percent(share: float | None) -> str:
    if share is None:
        return "–"
    return f"{100 * share:.3g}%" if share < 1 else f"{100 * share:,.0f}%"


def _lacks(inspection: Inspection) -> Iterator[str]:
    if inspection.lacks:
        yield ""
        yield "It cannot be run:"
    yield from (item(one_screen(message)) for message in inspection.lacks)
    if inspection.convert is not None:
        yield item("To convert the pickle yourself, in an environment that you trust (opening one can run its code):")
        yield f"    {inspection.convert}"
    yield from (item(remark) for remark in inspection.remarks)


def classifier_lines(inspection: ClassifierInspection) -> Iterator[str]:
    """Yield the lines that `exitbench inspect` prints about an encoder-only classifier."""
    yield inspection.folder
    yield from labelled("classifier", inspection.model_class or "not loaded, see below")
    if inspection.shape is not None:
        yield from _classifier_shape(inspection.shape)
    if inspection.tokenizer is not None:
        yield from labelled("tokens", f"{inspection.tokenizer} of {inspection.n_tokens:,} tokens")
    if inspection.stored is not None:
        formats = ", ".join(f"{numel:,} {name}" for name, numel in inspection.stored.numel_by_format.items())
        yield from labelled("stored", f"{data_size(inspection.stored.size_bytes)}: {formats}")
    if inspection.methods:
        runs = [
            runnable.method + (" (after a fit)" if runnable.is_fitted else "")
            for runnable in inspection.methods
            if not runnable.why_not
        ]
        yield ""
        yield fill(f"Methods that run on it: {', '.join(runs)}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        yield from reasons([(runnable.method, runnable.why_not) for runnable in inspection.methods])
    if inspection.lacks:
        yield ""
        yield "It cannot be run:"
        yield from (item(one_screen(message)) for message in inspection.lacks)


def _classifier_shape(shape: ClassifierShape) -> Iterator[str]:
    yield from labelled("engine", "hosted, proved: block by block it computes what it does as a whole")
    yield from labelled("blocks", f"{shape.blocks}, width {shape.width:,}, positions {shape.positions:,}")
    is_regression = len(shape.labels) == 1
    yield from labelled("answers", "a number (regression)" if is_regression else f"one of {', '.join(shape.labels)}")
    ramps = shape.off_ramps
    read = f"all {shape.blocks} blocks by the model's own classifier, {shape.head_numel:,} weights"
    if ramps is not None:
        blocks = ", ".join(map(str, ramps.blocks))
        read = f"off-ramps ({ramps.kind}, {ramps.numel:,} parameters) after blocks {blocks}; others by its classifier"
    yield from labelled("read out", read)
    yield from labelled("parameters", f"{shape.parameters:,}, vocabulary {shape.vocabulary:,}")
    work = f"{shape.block_flops:,.0f} FLOPs at {shape.counted_tokens:,} tokens"
    yield from labelled("a block", work)


WIDTH: Final = 100
_LABEL: Final = 12


def labelled(label: str, text: str) -> Iterator[str]:
    """Yield a text with a label in front, wrapped with a hanging indent."""
    yield fill(text, WIDTH, initial_indent=label.ljust(_LABEL), subsequent_indent=" " * _LABEL, break_on_hyphens=False)


def reasons(reason_by_name: Sequence[tuple[str, str | None]], between: str = ": ") -> Iterator[str]:
    """Yield a list item for each distinct reason, with the names of the methods or policies that it applies to.

    Args:
        reason_by_name: Name of each method or policy, and the reason why it does not run as usual (None if it does).
        between: Text between the names and the reason.
    """
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in reason_by_name:
        if reason is not None:
            names_by_reason.setdefault(reason, []).append(name)
    for reason, names in names_by_reason.items():
        every = "every method" if len(names) == len(reason_by_name) and len(names) > 1 else ", ".join(names)
        yield item(f"{every}{between}{reason}")


def item(text: str) -> str:
    """Return a text as a list item, wrapped with a hanging indent."""
    return fill(f"- {text}", WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
