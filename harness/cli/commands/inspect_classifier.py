"""The screen of ``exitbench inspect`` on a classifier."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill
from typing import TYPE_CHECKING

from exitbench.harness.cli.commands.inspect_lines import WIDTH, item, labelled, reasons
from exitbench.harness.cli.commands.words import data_size
from exitbench.terminal import one_screen

if TYPE_CHECKING:
    from exitbench.harness.inspecting.encoders import ClassifierInspection, ClassifierShape


def classifier_lines(found: ClassifierInspection) -> Iterator[str]:
    """Yield what is known of it, line by line."""
    yield found.folder
    yield from labelled("classifier", found.model_class or "not loaded, see below")
    if found.shape is not None:
        yield from _shape(found.shape)
    if found.tokenizer is not None:
        yield from labelled("tokens", f"{found.tokenizer} of {found.n_tokens:,} tokens")
    if found.stored is not None:
        formats = ", ".join(f"{numel:,} {name}" for name, numel in found.stored.numel_by_format.items())
        yield from labelled("stored", f"{data_size(found.stored.size_bytes)}: {formats}")
    if found.methods:
        runs = [one.method + (" (after a fit)" if one.is_fitted else "") for one in found.methods if not one.why_not]
        yield ""
        yield fill(f"Methods that run on it: {', '.join(runs)}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        yield from reasons([(one.method, one.why_not) for one in found.methods])
    if found.lacks:
        yield ""
        yield "It cannot be run as it is:"
        yield from (item(one_screen(message)) for message in found.lacks)


def _shape(shape: ClassifierShape) -> Iterator[str]:
    yield from labelled("engine", "hosted, proved: block by block it computes what it does as a whole")
    yield from labelled("blocks", f"{shape.blocks}, width {shape.width:,}, positions {shape.positions:,}")
    one = len(shape.labels) == 1
    yield from labelled("answers", "a number (regression)" if one else f"one of {', '.join(shape.labels)}")
    ramps = shape.off_ramps
    read = f"all {shape.blocks} blocks by the model's own classifier, {shape.head_numel:,} weights"
    if ramps is not None:
        blocks = ", ".join(map(str, ramps.blocks))
        read = f"off-ramps ({ramps.kind}, {ramps.numel:,} parameters) after blocks {blocks}; others by its classifier"
    yield from labelled("read out", read)
    yield from labelled("parameters", f"{shape.parameters:,}, vocabulary {shape.vocabulary:,}")
    work = f"{shape.block_flops:,.0f} FLOPs at {shape.counted_tokens:,} tokens"
    yield from labelled("a block", work)
