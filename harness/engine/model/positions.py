"""Padding, attention masks, relative position biases and rotary angles.

Shape suffixes: B rows of the batch, A rows running, T new positions, S positions seen, H query heads, K head size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, overload

import torch
from torch import Tensor

from exitbench.harness.engine.model.weights import Architecture

Rotary = tuple[Tensor, Tensor]
"""Cosines and signed sines of positions, [A or 1, T, 1, K] each."""


@dataclass(frozen=True)
class CachePositions:
    """Cache positions at which rows run blocks, if these are not the positions of the step: T per row, with masks.

    Attributes:
        places_AT: Cache positions, in any order within a row.
        bias: Additive attention mask with position bias, for one query per position.
        rotary: Rotary angles of the positions; None without rotary embedding.
    """

    places_AT: Tensor
    bias: Tensor
    rotary: Rotary | None


def relative_bias(
    arch: Architecture, table: Tensor, queries_T: Tensor, keys_S: Tensor, *, bidirectional: bool = False
) -> Tensor:
    """Return the relative position bias [1, H, T, S] of queries to keys (Raffel et al. 2020, section 2.1).

    ``table`` [buckets, H] has the bias of every bucket of distances. If blocks have separate tables, concatenated along
    the heads, `of_block` selects a block's heads.
    """
    distance = keys_S[None, :] - queries_T[:, None]
    buckets = arch.relative_buckets
    offset = torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        offset = (distance > 0) * buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = buckets // 2
    far = torch.log(distance.float().clamp(min=1) / exact) / math.log(arch.relative_max_distance / exact)
    far = (exact + (far * (buckets - exact)).long()).clamp(max=buckets - 1)
    return table[offset + torch.where(distance < exact, distance, far)].permute(2, 0, 1)[None]


def of_block(block: int, n_heads: int, by_head: Tensor) -> Tensor:
    """Return the heads' position bias [..., n_heads, T, S] of one block (1..L).

    ``by_head`` [..., heads, T, S] has the heads of all blocks, concatenated; or it is one bias that all blocks share.
    """
    if by_head.shape[-3] <= n_heads:
        return by_head
    return by_head.narrow(-3, (block - 1) * n_heads, n_heads)


def rotary_angles(places_AT: Tensor, inverse_frequencies: Tensor, scale: float, dtype: torch.dtype) -> Rotary:
    """Return cosines and signed sines, as `rotate_` needs them, of positions [A or 1, T] counted without padding."""
    angles = (places_AT[..., None].float() * inverse_frequencies)[:, :, None]
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)


def rotate_(x: Tensor, rotary: Rotary) -> None:
    """Apply rotary position embedding (half-split form) to x [A, T, heads, K], in place."""
    cos, signed_sin = rotary
    turned = x.roll(x.shape[-1] // 2, -1).mul_(signed_sin)
    x.mul_(cos).add_(turned)


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an additive attention mask: 0 where ``allowed`` is True, the lowest number of ``dtype`` elsewhere."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, torch.finfo(dtype).min)


def padded(
    rows: Sequence[Sequence[int]], device: torch.device, side: Literal["left", "right"]
) -> tuple[Tensor, Tensor | None]:
    """Pad token sequences to the length of the longest; return token ids [B, S] and a mask [B, S].

    The mask is True at tokens and False at padding. It is None if all sequences have the same length.
    """
    longest = max(len(row) for row in rows)
    tokens = torch.zeros((len(rows), longest), dtype=torch.long)
    mask = torch.zeros((len(rows), longest), dtype=torch.bool)
    for index, row in enumerate(rows):
        place = slice(longest - len(row), longest) if side == "left" else slice(0, len(row))
        tokens[index, place] = torch.tensor(row, dtype=torch.long)
        mask[index, place] = True
    return tokens.to(device), None if bool(mask.all()) else mask.to(device)


@overload
def rows_of(x: Tensor, rows_A: Tensor | None) -> Tensor: ...
@overload
def rows_of(x: None, rows_A: Tensor | None) -> None: ...
def rows_of(x: Tensor | None, rows_A: Tensor | None) -> Tensor | None:
    """Select rows of a tensor along its first dimension; None in ``rows_A`` means all rows.

    A tensor that all rows share (first dimension 1) is returned unchanged, and None stays None.
    """
    return x if x is None or rows_A is None or x.shape[0] == 1 else x.index_select(0, rows_A)


def unpadded(padding_B: Tensor | None, rows_A: Tensor | None, places: Tensor) -> Tensor:
    """Convert cache positions [A or 1, T] of rows to positions counted without each row's left padding.

    ``padding_B`` is the number of padding positions of each batch row (None: no padding); ``rows_A`` are the rows of
    ``places`` (None: all).
    """
    if padding_B is None:
        return places
    return (places - rows_of(padding_B, rows_A)[:, None]).clamp(min=0)
