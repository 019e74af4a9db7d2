"""The engine: one lean transformer for all families, addressed by depth.

Embed, run block l on some rows, fill keys and values of blocks l+1..L from a state, read out. Families differ only in
`Architecture` and in how their weights are named (`harness.checkpoint`).

Shape suffixes: B rows of the batch, A rows running at a block, T new positions, S source positions, D model width,
H query heads, G key/value heads, K head size, V vocabulary, L decoder blocks.

Two rewritings keep a step lean: every norm's weight and bias are folded into the projection behind it, so that all
blocks read the same normalised state; and the key/value projections of all blocks are one stacked matrix, so that
filling the cache of every skipped block is one product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from exitbench.errors import UserError
from exitbench.harness.exit_heads import ExitHeads
from exitbench.harness.pending import Waiting


@dataclass(frozen=True)
class Architecture:
    """Shapes and options of a transformer. ``encoder_blocks`` 0 means decoder-only."""

    vocab_size: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    n_blocks: int
    encoder_blocks: int
    norm: Literal["rms", "layer"]
    norm_eps: float
    positions: Literal["relative", "rotary", "learned"]
    activation: Literal["relu", "gelu_new", "gelu", "silu"]
    gated: bool
    attention_scale: float
    logit_scale: float = 1.0
    relative_buckets: int = 0
    relative_max_distance: int = 0
    max_positions: int | None = None

    @property
    def kv_width(self) -> int:
        """Width of one block's keys."""
        return self.n_kv_heads * self.head_dim


@dataclass(frozen=True)
class Linear:
    """A projection: weight [out, in] and bias [out] or None."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return x @ weight.T + bias over the last dimension."""
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class BlockWeights:
    """One block, norms folded in. ``qkv`` is query, key, value in this order; ``up`` of a gated MLP is gate, up."""

    qkv: Linear
    attention_out: Linear
    up: Linear
    down: Linear
    cross_q: Linear | None = None
    cross_kv: Linear | None = None
    cross_out: Linear | None = None


@dataclass(frozen=True)
class Weights:
    """Everything a checkpoint gives, in the engine's own layout."""

    token_embedding_VD: Tensor
    lm_head: Linear
    final_norm: Linear  # elementwise: weight [D] and bias [D] or None
    blocks: tuple[BlockWeights, ...]
    encoder_blocks: tuple[BlockWeights, ...] = ()
    position_embedding_PD: Tensor | None = None
    relative_bias: Tensor | None = None  # [buckets, H]
    encoder_relative_bias: Tensor | None = None
    inverse_frequencies: Tensor | None = None
    rotary_scale: float = 1.0


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


@dataclass(frozen=True)
class Places:
    """Cache positions [A, T] that rows run at, with their mask and position bias, and their rotary angles."""

    places_AT: Tensor
    bias: Tensor
    rotary: tuple[Tensor, Tensor] | None


class Cache:
    """Keys and values of one batch being decoded, preallocated for ``room`` decoder positions.

    All rows stand at the same cache position; prompts of decoder-only models are padded on the left.
    """

    def __init__(self, model: Transformer, n_rows: int, room: int) -> None:
        arch = model.arch
        self.model = model
        self.length = 0
        shape = (arch.n_blocks, 2, n_rows, arch.n_kv_heads, room, arch.head_dim)
        self.self_kv = torch.empty(shape, dtype=model.dtype, device=model.device)
        self.cross_kv: Tensor | None = None  # [L, 2, B, G, S, K]
        self.source_mask: Tensor | None = None  # [B, 1, 1, S], additive; None without padding
        self.padding_B: Tensor | None = None  # left padding of each row; None without
        self.waiting: list[list[Waiting]] = [[] for _ in range(n_rows)]  # tokens whose skipped blocks are put off
        self.places: tuple[list[list[int]], Places] | None = None  # where the step ran waiting tokens last
        self.step_embedding_BD: Tensor | None = None  # of the token being decoded
        self.reversed_relative: Tensor | None = None  # [1, H, 1, room]: bias of distances room-1..0
        self.step_bias: Tensor | None = None  # of the positions being run, [1 or B, 1 or H, T, length + T]
        self.step_rotary: tuple[Tensor, Tensor] | None = None
        if model.weights.relative_bias is not None:
            keys = torch.arange(room, device=model.device)
            self.reversed_relative = model.relative_bias(model.weights.relative_bias, keys[-1:], keys)

    @property
    def n_rows(self) -> int:
        """Rows of the batch."""
        return self.self_kv.shape[2]

    @property
    def room(self) -> int:
        """Decoder positions there is space for."""
        return self.self_kv.shape[4]

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows (finished ones leave the batch)."""
        self.self_kv = self.self_kv.index_select(2, rows)
        if self.cross_kv is not None:
            self.cross_kv = self.cross_kv.index_select(2, rows)
        if self.source_mask is not None:
            self.source_mask = self.source_mask.index_select(0, rows)
        if self.padding_B is not None:
            self.padding_B = self.padding_B.index_select(0, rows)
        if any(self.waiting):
            self.waiting = [self.waiting[row] for row in rows.tolist()]
        else:  # nothing to look up, so the rows need not be known on the host
            self.waiting = [[] for _ in range(len(rows))]

    def drop_newest(self, dropped_B: Sequence[int]) -> None:
        """Forget the newest positions of each row, so many; rows with more of them move right to end where others do.

        Nothing may wait in a row that loses any.
        """
        least = min(dropped_B)
        self.length -= least
        for row, dropped in enumerate(dropped_B):
            if shift := dropped - least:
                kept = self.self_kv[:, :, row, :, : self.length - shift].clone()
                self.self_kv[:, :, row, :, shift : self.length] = kept
        if max(dropped_B) > least:
            shifts_B = torch.tensor([dropped - least for dropped in dropped_B], device=self.self_kv.device)
            self.padding_B = shifts_B if self.padding_B is None else self.padding_B + shifts_B

    def make_room(self) -> None:
        """Drop what padding all rows share if no position is left: rows were cut, and longer ones have ended."""
        if self.length < self.room:
            return
        assert self.padding_B is not None, "a row without padding ends before the room does"
        shared = int(self.padding_B.min())
        self.self_kv[..., : self.length - shared, :] = self.self_kv[..., shared : self.length, :].clone()
        self.length -= shared
        self.padding_B = self.padding_B - shared
        for token in (token for tokens in self.waiting for token in tokens):
            token.place -= shared

    def fill_from_state(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Write keys and values of blocks block+1..L at the current position, all projected from one state.

        Args:
            block: Blocks that were executed, 0..L-1.
            hidden_AD: The state to copy, not normalised.
            rows_A: Rows of the batch; None means all.
        """
        arch = self.model.arch
        stack = self.model.skip_kv
        first = block * 2 * arch.kv_width
        bias = None if stack.bias is None else stack.bias[first:]
        kv = F.linear(self.model.normalise(hidden_AD), stack.weight[first:], bias)
        kv = kv.view(-1, arch.n_blocks - block, 2, arch.n_kv_heads, arch.head_dim).permute(1, 2, 0, 3, 4)
        if self.step_rotary is not None:
            cos, sin = _rows(self.step_rotary[0], rows_A), _rows(self.step_rotary[1], rows_A)
            kv[:, 0] = rotate(kv[:, 0].unsqueeze(-2), cos, sin).squeeze(-2)
        target = self.self_kv[block:, :, :, :, self.length]
        if rows_A is None:
            target.copy_(kv)
        else:
            target[:, :, rows_A] = kv

    def run_rest(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> Tensor:
        """Run blocks block+1..L at the current position; returns the state after block L, [A, D]."""
        for deeper in range(block + 1, self.model.n_blocks + 1):
            hidden_AD = self.model.block(deeper, hidden_AD[:, None], self, rows_A)[:, 0]
        return hidden_AD

    def defer(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Let rows that leave after ``block`` wait with their states for a later token to run deeper blocks."""
        assert self.step_embedding_BD is not None, "a step begins with an embedding"
        rows = range(self.n_rows) if rows_A is None else rows_A.tolist()
        for state_D, row in zip(hidden_AD, rows, strict=True):
            self.waiting[row].append(Waiting(self.length, block, state_D, self.step_embedding_BD[row]))

    def write_projected(self, block: int, states_ND: Tensor, rows_N: Tensor, places_N: Tensor) -> None:
        """Write keys and values of one block at earlier positions, projected from states [N, D]."""
        arch, projection = self.model.arch, self.model.weights.blocks[block - 1].qkv
        width = arch.n_heads * arch.head_dim
        bias = None if projection.bias is None else projection.bias[width:]
        kv = F.linear(self.model.normalise(states_ND), projection.weight[width:], bias)
        kv = kv.view(-1, 2, arch.n_kv_heads, arch.head_dim)
        if (rotary := self.model.rotary_at(self, rows_N, places_N[:, None])) is not None:
            kv[:, 0] = rotate(kv[:, 0].unsqueeze(-2), *rotary).squeeze(-2)
        self.self_kv[block - 1, :, rows_N, :, places_N] = kv


class Transformer:
    """A checkpoint in memory. Satisfies the `Model` protocol of the methods."""

    def __init__(self, arch: Architecture, weights: Weights, exit_heads: ExitHeads | None = None) -> None:
        self.arch = arch
        self.weights = weights
        self.exit_heads = exit_heads
        self.activation = ACTIVATIONS[arch.activation]
        self._skip_kv: Linear | None = None

    @property
    def n_blocks(self) -> int:
        """Decoder blocks, L."""
        return self.arch.n_blocks

    @property
    def d_model(self) -> int:
        """Width of the residual stream, D."""
        return self.arch.d_model

    @property
    def kv_width(self) -> int:
        """Width of one block's keys."""
        return self.arch.kv_width

    @property
    def vocab_size(self) -> int:
        """Rows of the LM head, V."""
        return self.weights.lm_head.weight.shape[0]

    @property
    def exit_blocks(self) -> tuple[int, ...]:
        """Blocks with a trained exit head, ascending."""
        return () if self.exit_heads is None else self.exit_heads.blocks

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""
        return self.weights.token_embedding_VD.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights.token_embedding_VD.device

    @property
    def skip_kv(self) -> Linear:
        """Key/value projections of all blocks, stacked: rows 2*G*K per block. Built when a token first skips."""
        if self._skip_kv is None:
            width = self.arch.n_heads * self.arch.head_dim
            projections = [block.qkv for block in self.weights.blocks]
            biases = [projection.bias[width:] for projection in projections if projection.bias is not None]
            weight = torch.cat([projection.weight[width:] for projection in projections])
            self._skip_kv = Linear(weight, torch.cat(biases) if biases else None)
        return self._skip_kv

    # ---------------------------------------------------------------- pieces

    def normalise(self, x: Tensor) -> Tensor:
        """Norm without weight and bias, over the last dimension."""
        if self.arch.norm == "layer":
            return F.layer_norm(x, (x.shape[-1],), None, None, self.arch.norm_eps)
        return F.rms_norm(x, (x.shape[-1],), None, self.arch.norm_eps)

    def final_normed(self, hidden: Tensor) -> Tensor:
        """The model's final norm with its weight and bias, of [..., D]."""
        norm = self.weights.final_norm
        normed = self.normalise(hidden) * norm.weight
        return normed if norm.bias is None else normed + norm.bias

    def logits(self, hidden: Tensor) -> Tensor:
        """Read out: final norm, scale and LM head, [..., D] to [..., V]."""
        normed = self.final_normed(hidden)
        if self.arch.logit_scale != 1.0:
            normed = normed * self.arch.logit_scale
        return self.weights.lm_head(normed)

    def exit_logits(self, block: int, hidden_AD: Tensor) -> Tensor:
        """Read out with the trained exit head of a block, [A, D] to [A, V]."""
        assert self.exit_heads is not None, "asked at exit blocks only"
        return self.exit_heads.logits(block, hidden_AD, self.logits)

    def exit_head_numel(self, block: int) -> int:
        """Weights that one read-out of an exit head multiplies; a lens ends in the model's own LM head."""
        assert self.exit_heads is not None, "asked at exit blocks only"
        own = self.exit_heads.numel(block)
        return own + self.weights.lm_head.weight.numel() if self.exit_heads.kind == "lens" else own

    def head_weights(self, ids_AK: Tensor) -> Tensor:
        """Rows of the LM head, [A, K, D]; with a bias as one more column."""
        head = self.weights.lm_head
        rows = head.weight[ids_AK]
        return rows if head.bias is None else torch.cat((rows, head.bias[ids_AK][..., None]), dim=-1)

    def logits_of(self, hidden_AD: Tensor, weights_AKD: Tensor) -> Tensor:
        """Read out some rows of the LM head, [A, D] to [A, K]."""
        normed = self.final_normed(hidden_AD)
        if self.arch.logit_scale != 1.0:
            normed = normed * self.arch.logit_scale
        if self.weights.lm_head.bias is not None:
            normed = torch.cat((normed, torch.ones_like(normed[:, :1])), dim=-1)
        if len(normed) == 1:
            return F.linear(normed, weights_AKD[0])
        return torch.bmm(weights_AKD, normed[:, :, None])[:, :, 0]

    def _mlp(self, x: Tensor, block: BlockWeights) -> Tensor:
        up = block.up(x)
        if self.arch.gated:
            gate, up = up.chunk(2, dim=-1)
            return block.down(self.activation(gate) * up)
        return block.down(self.activation(up))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """Attention of q [A, H, T, K] over k, v [A, G, S, K] with an additive bias; returns [A, T, H*K]."""
        n_rows, n_heads, n_new, size = q.shape
        groups = k.shape[1]
        if groups < n_heads:
            # Query heads that share a key head become more query positions of one head: no copy of keys or values.
            q = q.reshape(n_rows, groups, -1, size)
            bias = bias.repeat(1, 1, n_heads // groups, 1) if bias is not None and n_new > 1 else bias
        mixed = F.scaled_dot_product_attention(q, k, v, bias, scale=self.arch.attention_scale)
        return mixed.reshape(n_rows, n_heads, n_new, size).transpose(1, 2).reshape(n_rows, n_new, n_heads * size)

    def _split(self, qkv: Tensor) -> tuple[Tensor, Tensor]:
        """[A, T, (H + 2G) K] to queries [A, H, T, K] and keys with values [A, 2G, T, K]."""
        heads = qkv.view(*qkv.shape[:2], -1, self.arch.head_dim).transpose(1, 2)
        return heads[:, : self.arch.n_heads], heads[:, self.arch.n_heads :]

    # --------------------------------------------------------------- encoder

    def encode(self, tokens_BS: Tensor, mask_BS: Tensor | None) -> Tensor:
        """Run the encoder.

        Args:
            tokens_BS: Source tokens, padded on the right.
            mask_BS: True where a token is real; None if nothing is padded.

        Returns:
            The output after its final norm (weightless; the weight is folded into the cross-attention), [B, S, D].
        """
        hidden = self.weights.token_embedding_VD[tokens_BS]
        bias = None if mask_BS is None else additive(mask_BS, self.dtype)[:, None, None, :]
        if self.weights.encoder_relative_bias is not None:
            places = torch.arange(tokens_BS.shape[1], device=self.device)
            relative = self.relative_bias(self.weights.encoder_relative_bias, places, places, bidirectional=True)
            bias = relative if bias is None else relative + bias
        for block in self.weights.encoder_blocks:
            q, kv = self._split(block.qkv(self.normalise(hidden)))
            k, v = kv.chunk(2, dim=1)
            hidden = hidden + block.attention_out(self._attend(q, k, v, bias))
            hidden = hidden + self._mlp(self.normalise(hidden), block)
        return self.normalise(hidden)

    def start(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[Cache, Tensor | None]:
        """Prefill: everything that happens once a prompt, at full depth.

        Args:
            prompts: Token ids of each row.
            room: New decoder positions to leave space for.

        Returns:
            The cache, and for decoder-only models the state after the last prompt token [B, D] (None otherwise).

        Raises:
            UserError: Prompt and answer are longer than the model's learned positions.
        """
        if not self.arch.encoder_blocks:
            return self._start_decoder_only(prompts, room)
        tokens_BS, mask_BS = padded(prompts, self.device, side="right")
        source_BSD = self.encode(tokens_BS, mask_BS)
        cache = Cache(self, len(prompts), room)
        if mask_BS is not None:
            cache.source_mask = additive(mask_BS, self.dtype)[:, None, None, :]
        kv = torch.stack([block.cross_kv(source_BSD) for block in self.weights.blocks if block.cross_kv is not None])
        kv = kv.view(*kv.shape[:3], 2, self.arch.n_kv_heads, self.arch.head_dim)
        cache.cross_kv = kv.permute(0, 3, 1, 4, 2, 5).contiguous()
        return cache, None

    def _start_decoder_only(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[Cache, Tensor]:
        self._check_room(max(len(prompt) for prompt in prompts), room)
        tokens_BT, mask_BT = padded(prompts, self.device, side="left")
        cache = Cache(self, len(prompts), tokens_BT.shape[1] + room)
        if mask_BT is not None:
            cache.padding_B = (~mask_BT).sum(1)
        hidden = self.embed(tokens_BT, cache)
        for block in range(1, self.n_blocks + 1):
            hidden = self.block(block, hidden, cache)
        cache.length = tokens_BT.shape[1]
        return cache, hidden[:, -1]

    def _check_room(self, n_prompt: int, n_new: int) -> None:
        needed = n_prompt + n_new - 1  # the last new token is never fed
        table = self.weights.position_embedding_PD
        if table is not None and needed > len(table):
            raise UserError(
                f"a prompt of {n_prompt} tokens and {n_new} new ones need {needed} positions; "
                f"the model has {len(table)}. Shorten the prompts or max_new_tokens."
            )

    # --------------------------------------------------------------- decoder

    def embed(self, tokens_BT: Tensor, cache: Cache) -> Tensor:
        """Begin a step of T new positions: embed [B, T] to [B, T, D] and prepare what all blocks share."""
        n_new = tokens_BT.shape[1]
        hidden = self.weights.token_embedding_VD[tokens_BT]
        cache.step_bias = self._step_bias(cache, n_new)
        places = torch.arange(cache.length, cache.length + n_new, device=self.device)[None]
        cache.step_rotary = self.rotary_at(cache, None, places)
        if self.weights.position_embedding_PD is not None:
            hidden = hidden + self.weights.position_embedding_PD[_unpadded(cache, None, places)]
        cache.step_embedding_BD = hidden[:, -1]
        return hidden

    def block(
        self,
        block: int,
        hidden_ATD: Tensor,
        cache: Cache,
        rows_A: Tensor | None = None,
        places: Places | None = None,
    ) -> Tensor:
        """Run decoder block ``block`` (1..L) for the step's positions; writes its keys and values.

        Args:
            block: Number of the block.
            hidden_ATD: Output of the block before.
            cache: The batch.
            rows_A: Rows of the batch that run; None means all.
            places: Positions of each row up to the current one; None means the step's own.

        Returns:
            The residual stream after the block, [A, T, D].
        """
        hidden = hidden_ATD + self.self_attention(block, hidden_ATD, cache, rows_A, places)
        if cache.cross_kv is not None:
            hidden = hidden + self.cross_attention(block, hidden, cache, rows_A)
        return hidden + self.feed_forward(block, hidden)

    def self_attention(
        self,
        block: int,
        hidden_ATD: Tensor,
        cache: Cache,
        rows_A: Tensor | None = None,
        places: Places | None = None,
    ) -> Tensor:
        """What the self-attention of a block adds to the residual stream before it, [A, T, D]; see `block`."""
        weights = self.weights.blocks[block - 1]
        end = cache.length + (hidden_ATD.shape[1] if places is None else 1)
        if places is None:
            bias, rotary = _rows(cache.step_bias, rows_A), _row_pair(cache.step_rotary, rows_A)
        else:
            bias, rotary = places.bias, places.rotary
        q, kv = self._split(weights.qkv(self.normalise(hidden_ATD)))
        if rotary is not None:
            keys, values = kv.chunk(2, dim=1)
            q, kv = rotate(q, *rotary), torch.cat((rotate(keys, *rotary), values), dim=1)
        kv = kv.reshape(len(kv), 2, -1, *kv.shape[2:]).transpose(0, 1)  # [2, A, G, T, K]
        cached = cache.self_kv[block - 1]
        if places is not None:
            rows = torch.arange(cache.n_rows, device=self.device) if rows_A is None else rows_A
            cached[:, rows[:, None], :, places.places_AT] = kv.permute(1, 3, 0, 2, 4)
        elif rows_A is None:
            cached[:, :, :, cache.length : end] = kv
        else:
            cached[:, rows_A, :, cache.length : end] = kv
        k, v = (cached[side, :, :, :end] if rows_A is None else cached[side, rows_A, :, :end] for side in (0, 1))
        return weights.attention_out(self._attend(q, k, v, bias))

    def cross_attention(self, block: int, hidden_ATD: Tensor, cache: Cache, rows_A: Tensor | None = None) -> Tensor:
        """What the cross-attention of a block adds to the stream after its self-attention, [A, T, D]."""
        weights = self.weights.blocks[block - 1]
        assert weights.cross_q is not None and weights.cross_out is not None and cache.cross_kv is not None
        q = weights.cross_q(self.normalise(hidden_ATD))
        q = q.view(*q.shape[:2], -1, self.arch.head_dim).transpose(1, 2)
        k, v = _rows(cache.cross_kv[block - 1, 0], rows_A), _rows(cache.cross_kv[block - 1, 1], rows_A)
        return weights.cross_out(self._attend(q, k, v, _rows(cache.source_mask, rows_A)))

    def feed_forward(self, block: int, hidden_ATD: Tensor) -> Tensor:
        """What the feed-forward network of a block adds to the stream after its attention, [A, T, D]."""
        return self._mlp(self.normalise(hidden_ATD), self.weights.blocks[block - 1])

    # ------------------------------------------------------------- positions

    def _step_bias(self, cache: Cache, n_new: int) -> Tensor | None:
        """Causal mask, padding and relative positions of the step: [1 or B, 1 or H, T, length + T] or None."""
        end = cache.length + n_new
        bias = None
        keys = torch.arange(end, device=self.device)
        if cache.reversed_relative is not None and n_new == 1:
            bias = cache.reversed_relative[..., cache.room - end :]
        elif self.weights.relative_bias is not None:
            bias = self.relative_bias(self.weights.relative_bias, keys[cache.length :], keys)
        if n_new > 1:
            future = additive(keys[cache.length :, None] >= keys[None, :], self.dtype)[None, None]
            bias = future if bias is None else bias + future
        if cache.padding_B is not None:
            padding = additive(keys[None, :] >= cache.padding_B[:, None], self.dtype)[:, None, None, :]
            bias = padding if bias is None else bias + padding
        return bias

    def places(self, cache: Cache, rows_A: Tensor | None, places_AT: Tensor) -> Places:
        """Prepare to run blocks at cache positions given a row, in any order; None in ``rows_A`` means all rows."""
        bias, rotary = self._bias_at(cache, rows_A, places_AT), self.rotary_at(cache, rows_A, places_AT)
        return Places(places_AT, bias, rotary)

    def _bias_at(self, cache: Cache, rows_A: Tensor | None, places_AT: Tensor) -> Tensor:
        """The same for positions given a row: [A, 1 or H, T, length + 1]."""
        keys = torch.arange(cache.length + 1, device=self.device)
        allowed = keys <= places_AT[..., None]
        if cache.padding_B is not None:
            allowed = allowed & (keys >= _rows(cache.padding_B, rows_A)[:, None, None])
        bias = additive(allowed, self.dtype)[:, None]
        if self.weights.relative_bias is None:
            return bias
        relative = self.relative_bias(self.weights.relative_bias, places_AT.flatten(), keys)  # [1, H, A T, S]
        return bias + relative[0].view(-1, *places_AT.shape, len(keys)).transpose(0, 1)

    def rotary_at(self, cache: Cache, rows_A: Tensor | None, places_AT: Tensor) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines of positions, [A or 1, 1, T, K/2] each; None without rotary positions."""
        if self.weights.inverse_frequencies is None:
            return None
        places = _unpadded(cache, rows_A, places_AT)
        angles = (places[..., None].float() * self.weights.inverse_frequencies)[:, None]
        scale = self.weights.rotary_scale
        return (angles.cos() * scale).to(self.dtype), (angles.sin() * scale).to(self.dtype)

    def relative_bias(self, table: Tensor, queries_T: Tensor, keys_S: Tensor, *, bidirectional: bool = False) -> Tensor:
        """Bucketed relative position bias, [1, H, T, S]."""
        distance = keys_S[None, :] - queries_T[:, None]
        buckets = self.arch.relative_buckets
        offset = torch.zeros_like(distance)
        if bidirectional:
            buckets //= 2
            offset = (distance > 0) * buckets
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        exact = buckets // 2
        far = torch.log(distance.float().clamp(min=1) / exact) / math.log(self.arch.relative_max_distance / exact)
        far = (exact + (far * (buckets - exact)).long()).clamp(max=buckets - 1)
        return table[offset + torch.where(distance < exact, distance, far)].permute(2, 0, 1)[None]


@overload
def _rows(x: Tensor, rows_A: Tensor | None) -> Tensor: ...
@overload
def _rows(x: None, rows_A: Tensor | None) -> None: ...
def _rows(x: Tensor | None, rows_A: Tensor | None) -> Tensor | None:
    """The rows of a per-row tensor; one shared by all rows (leading dimension 1) stays as it is."""
    return x if x is None or rows_A is None or x.shape[0] == 1 else x[rows_A]


def _row_pair(pair: tuple[Tensor, Tensor] | None, rows_A: Tensor | None) -> tuple[Tensor, Tensor] | None:
    return None if pair is None else (_rows(pair[0], rows_A), _rows(pair[1], rows_A))


def _unpadded(cache: Cache, rows_A: Tensor | None, places: Tensor) -> Tensor:
    """Positions in the row's own text, [A or 1, T], from those in the cache."""
    if cache.padding_B is None:
        return places
    return (places - _rows(cache.padding_B, rows_A)[:, None]).clamp(min=0)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (half-split form) of x [..., T, K] by angles [.., T, K/2]."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where allowed, the most negative number elsewhere."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, torch.finfo(dtype).min)


def padded(
    rows: Sequence[Sequence[int]], device: torch.device, side: Literal["left", "right"]
) -> tuple[Tensor, Tensor | None]:
    """Stack token rows of different length; returns tokens [B, S] and the mask [B, S], None if all have one length."""
    longest = max(len(row) for row in rows)
    tokens = torch.zeros((len(rows), longest), dtype=torch.long)
    mask = torch.zeros((len(rows), longest), dtype=torch.bool)
    for index, row in enumerate(rows):
        place = slice(longest - len(row), longest) if side == "left" else slice(0, len(row))
        tokens[index, place] = torch.tensor(row, dtype=torch.long)
        mask[index, place] = True
    return tokens.to(device), None if bool(mask.all()) else mask.to(device)
