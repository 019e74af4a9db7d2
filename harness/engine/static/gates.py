"""Confidence scores on static buffers, for gates that need nothing from the host.

Such a gate reads the states and logits of a block and nothing else of its view: it neither remembers anything nor asks
for positions or seeds. Whether one does is found by asking it once, on a view that refuses. All others are asked as
ever.

Shape suffixes: B rows of the batch, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from exitbench.harness.engine.static.graphs import refusing_to_wait
from exitbench.methods.base import ActiveRows, BlockView, Model, Parts, Reading


class _HostOnly:
    """Stands for what only the host knows: any use raises TypeError."""

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("only the host knows this")

    __iter__ = __len__ = __getitem__ = __bool__ = __int__ = __float__ = __index__ = __hash__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __sub__ = __mul__ = __truediv__ = _refuse
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = _refuse


_HOST_ONLY: Any = _HostOnly()

Prepared = Callable[[Callable[[], None]], Callable[[], None]]


@dataclass(frozen=True)
class Asked:
    """A gate's score at one block.

    Attributes:
        run: Computes it from the block's buffers.
        score_B: Where it is then, until the next token.
        logits_BV: Where the logits are then that it was computed from, until the next block; None if it reads none.
        head_rows: Rows of the LM head multiplied for each row.
    """

    run: Callable[[], None]
    score_B: Tensor
    logits_BV: Tensor | None
    head_rows: int

    def show(self, view: BlockView) -> Tensor:
        """Return the score, and let a view have the logits as if it had asked for them itself."""
        if self.logits_BV is not None:
            view._read = Reading(self.logits_BV)
        view.head_rows = self.head_rows
        return self.score_B


def static_gate(parts: Parts, model: Model, states: Sequence[Tensor], prepared: Prepared) -> dict[int, Asked]:
    """The gate's scores at all blocks at which it is asked; none if it needs the host.

    Args:
        parts: The method.
        model: The model.
        states: Buffers of the states after blocks 0..L, [B, D] each.
        prepared: Makes of work on static buffers what is called to do it.
    """
    if parts.gate.looks_ahead or not parts.head.reads_vocabulary:
        return {}
    asked: dict[int, Asked] = {}
    logits_BV: Tensor | None = None
    before_B: Tensor | None = None
    for block in parts.asked(model.n_blocks):
        view = _blind_view(parts, model, states, block, before_B)
        tried_B = _tried(parts, view)
        if tried_B is None or not isinstance(view.head_rows, int):
            return {}
        if view.is_read and logits_BV is None:
            logits_BV = torch.empty_like(view.logits_AK)
        score_B, own_logits_BV = torch.empty_like(tried_B), logits_BV if view.is_read else None
        work = partial(_ask, parts, model, states, block, before_B, score_B, own_logits_BV)
        asked[block] = Asked(prepared(work), score_B, own_logits_BV, view.head_rows)
        before_B = score_B
    return asked


def _blind_view(parts: Parts, model: Model, states: Sequence[Tensor], block: int, before_B: Tensor | None) -> BlockView:
    """What is on the device of a view, at the same places for every token."""
    return BlockView(
        block=block,
        active=ActiveRows(_HOST_ONLY, _HOST_ONLY, _HOST_ONLY),
        max_new_tokens=_HOST_ONLY,
        hidden_AD=states[block],
        memory={},
        model=model,
        head=parts.head,
        earlier=states[:block],
        previous_score_A=before_B,
    )


def _tried(parts: Parts, view: BlockView) -> Tensor | None:
    """The score, or None if the gate needs the host or remembers something."""
    try:
        with refusing_to_wait(view.hidden_AD.device):
            score_B = parts.gate.score(view)
    except (TypeError, RuntimeError):  # asked the ordinary way, it works or says what is wrong
        return None
    return None if view.memory else score_B


def _ask(
    parts: Parts,
    model: Model,
    states: Sequence[Tensor],
    block: int,
    before_B: Tensor | None,
    score_B: Tensor,
    logits_BV: Tensor | None,
) -> None:
    view = _blind_view(parts, model, states, block, before_B)
    score_B.copy_(parts.gate.score(view))
    if logits_BV is not None:
        logits_BV.copy_(view.logits_AK)
