"""What a number format changes: log-probabilities and choices of full depth, next to those of its weights in float32.

Full depth's quality cell measures it where its number format is another one: it loads the checkpoint a second time, in
float32, and reads a few of its documents with both. Documents are read one by one, so that beside the weights little
memory is needed; where there is not enough, the quality is measured without.

Metrics, all of role ``format``:
    format_logprob_gap: Mean absolute difference of log-probabilities, nats: of choices, labels, or tokens.
    format_choice_gap: The same of the differences between two choices (or labels), over all pairs of a document.
    format_choice_match: Share of documents with the same choice or label.
    format_token_match: Share of tokens that are the most probable ones in both formats or in neither; of generated
        answers these are full depth's tokens, each behind those before it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import torch

from exitbench.errors import UserError, is_out_of_memory
from exitbench.harness.engine.checkpoints.sizes import gib, weights_bytes
from exitbench.harness.engine.decoding.likelihood import Scored
from exitbench.harness.engine.model.available import available_bytes
from exitbench.harness.work.loaded import load_model
from exitbench.harness.work.metrics import Metric, with_role
from exitbench.results.statistics.intervals import Interval, bounded_ratio_interval, ratio_interval
from exitbench.tasks.base import take_by_hash
from exitbench.tasks.document import Document

if TYPE_CHECKING:
    from exitbench.harness.work.base import Work

REFERENCE: Final = "float32"
"""The number format that others are compared with."""
DOCUMENTS: Final = 50
"""Documents that are read in both formats, at most: those whose keys sort first."""
_ROOM: Final = 1.25
"""Times the weights' bytes that must be free: activations and a document's keys and values need some too."""


def sampled(documents: Sequence[Document]) -> list[Document]:
    """Return the documents that are read in both formats."""
    return take_by_hash(documents, DOCUMENTS)


def format_metrics(work: Work[Any], answers: Mapping[str, Any]) -> dict[str, Metric]:
    """Load the reference and compare; empty for float32, for early exits, and where there is no memory for it."""
    cell, path = work.cell, work.model.path
    if cell.dtype == REFERENCE or cell.full_depth_cell_id is not None:
        return {}
    try:
        devices = [cell.device] if cell.device_map is None else list(dict(cell.device_map))
        _require_room(round(_ROOM * weights_bytes(path, torch.float32)), devices)
        reference = load_model(path, torch.float32, cell.device, cell.engine, cell.device_map)
        return with_role("format", work.compare_formats(reference, answers))
    except Exception as error:
        if not (isinstance(error, UserError) or is_out_of_memory(error)):
            raise
        print(f"{work.item.label}: {cell.dtype} was not compared with {REFERENCE}: {error}", file=sys.stderr)
        return {}


def _require_room(needed_bytes: int, devices: Sequence[str]) -> None:
    """Check that the weights fit into memory a second time, in float32.

    Raises:
        UserError: They do not; has the numbers.
    """
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # what torch keeps of the pass before counts as used
    available = available_bytes(*devices)
    if available is not None and needed_bytes > available:
        raise UserError(f"that needs {gib(needed_bytes)}, and {gib(available)} are available on {', '.join(devices)}.")


def token_gaps(pairs: Iterable[tuple[Sequence[Scored], Sequence[Scored]]], seed: int) -> dict[str, Interval]:
    """Compare tokens, given what was scored of each document in both formats."""
    gaps: list[float] = []
    same: list[int] = []
    counts: list[int] = []
    for own, other in pairs:
        tokens = [
            (abs(a - b), is_greedy == is_other_greedy)
            for one, two in zip(own, other, strict=True)
            for a, b, is_greedy, is_other_greedy in zip(one.logprobs, two.logprobs, one.greedy, two.greedy, strict=True)
        ]
        gaps.append(sum(gap for gap, _ in tokens))
        same.append(sum(is_same for _, is_same in tokens))
        counts.append(len(tokens))
    if not sum(counts):
        return {}
    return {
        "format_logprob_gap": ratio_interval(gaps, counts, seed=seed),
        "format_token_match": bounded_ratio_interval(same, counts),
    }


@dataclass(frozen=True)
class Choices:
    """Log-probabilities of a document's choices in both formats, and whether both choose the same."""

    own: Sequence[float]
    other: Sequence[float]
    is_same: bool


def choice_gaps(documents: Sequence[Choices], seed: int) -> dict[str, Interval]:
    """Compare choices, one entry per document."""
    moved = [[a - b for a, b in zip(one.own, one.other, strict=True)] for one in documents]
    apart = [[abs(a - b) for a, b in combinations(each, 2)] for each in moved]
    intervals = {
        "format_logprob_gap": ratio_interval([sum(map(abs, each)) for each in moved], list(map(len, moved)), seed=seed),
        "format_choice_match": bounded_ratio_interval([one.is_same for one in documents], [1] * len(documents)),
    }
    if any(apart):
        intervals["format_choice_gap"] = ratio_interval(list(map(sum, apart)), list(map(len, apart)), seed=seed)
    return intervals
