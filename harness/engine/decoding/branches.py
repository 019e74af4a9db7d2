"""Contexts and their continuations to score: batches of contexts, and rows shared by similar continuations.

The model is fed everything before the last token of a continuation. Continuations that differ only in that token share
one row: the letters of a multiple-choice question are read from one state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exitbench.harness.engine.model.engine import Engine


@dataclass(frozen=True)
class Context:
    """One context and its continuations to score.

    Attributes:
        context_ids: Encoder input, or the text before the continuations for a decoder-only model; not empty.
        continuations: Token ids, none of them empty.
        seed: Seed of random methods, the same for all continuations.
    """

    context_ids: Sequence[int]
    continuations: Sequence[Sequence[int]]
    seed: int = 0

    @property
    def longest(self) -> int:
        """Number of tokens of the longest continuation."""
        return max(map(len, self.continuations))


@dataclass(frozen=True)
class Branch:
    """Continuations of one context that differ at most in their last token, so that one row serves all of them.

    Attributes:
        context: Index of the context in the batch.
        fed: Token ids that all of them begin with: all but the last token. The model is fed these.
        choices: Indices of the continuations in the context.
    """

    context: int
    fed: tuple[int, ...]
    choices: tuple[int, ...]


def branches_of(contexts: Sequence[Context]) -> list[Branch]:
    """Return the branches of a batch of contexts: groups of continuations that share all tokens but the last.

    The branches of one context are adjacent.
    """
    branches = []
    for place, context in enumerate(contexts):
        by_fed: dict[tuple[int, ...], list[int]] = {}
        for choice, token_ids in enumerate(context.continuations):
            by_fed.setdefault(tuple(token_ids[:-1]), []).append(choice)
        branches += [Branch(place, fed, tuple(choices)) for fed, choices in by_fed.items()]
    return branches


def packs(branches: Sequence[Branch], most: int) -> list[list[Branch]]:
    """Pack adjacent branches of one context into rows of at most ``most`` tokens; a longer branch gets its own row.

    A branch is a group of continuations that share all tokens but the last.

    Returns:
        The branches in each row.
    """
    packed: list[list[Branch]] = []
    for branch in branches:
        last = packed[-1] if packed else []
        fits = sum(len(other.fed) for other in last) + len(branch.fed) <= most
        if last and last[0].context == branch.context and fits:
            last.append(branch)
        else:
            packed.append([branch])
    return packed


def batches(model: Engine, contexts: Sequence[Context], rows: int) -> Iterator[list[int]]:
    """Yield, for each batch, the indices of its contexts, longest first; contexts without continuations are left out.

    Rows are padded to the batch's longest context plus its longest continuation, and this sum must fit the model's
    maximum number of positions.

    Args:
        model: The model.
        contexts: Contexts to score.
        rows: Maximum number of rows of a batch, one per branch (continuations that share all tokens but the last);
            a context that needs more gets a batch of its own.
    """
    mixes_lengths, most = model.pads_left or model.encoder_blocks > 0, model.max_positions
    order = sorted(range(len(contexts)), key=lambda place: -len(contexts[place].context_ids))
    batch: list[int] = []
    used = longest = 0
    for place in order:
        context = contexts[place]
        if not context.continuations:
            continue
        needed = len({tuple(token_ids[:-1]) for token_ids in context.continuations})
        first = contexts[batch[0] if batch else place]
        reaches = len(first.context_ids) + max(longest, context.longest) - 1
        goes_along = (
            used + needed <= rows
            and (mixes_lengths or len(context.context_ids) == len(first.context_ids))
            and (most is None or reaches <= most)
        )
        if batch and not goes_along:
            yield batch
            batch, used, longest = [], 0, 0
        batch.append(place)
        used, longest = used + needed, max(longest, context.longest)
    if batch:
        yield batch
