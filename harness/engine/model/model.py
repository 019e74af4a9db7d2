"""The lean engine's transformer: one implementation for all model families, run block by block.

It embeds, runs block l on some rows, fills keys and values of blocks l+1..L from a state, and reads out. Families
differ only in `Architecture` and in the names of their weights (`engine.checkpoints`).

Shape suffixes: B rows of the batch, A rows running at a block, T new positions, N positions of all rows (A T, row by
row), S source positions. Sizes of the model: D model width, F width inside feed-forward networks, H query heads, G
key/value heads, K head size, V vocabulary, L decoder blocks.

Two transformations keep a step lean. Every norm's weight and bias are folded into the projection behind it, so that
all blocks read the same normalised state. The key/value projections of all blocks are one stacked matrix, so that
one product fills the cache of every skipped block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from exitbench.errors import UserError
from exitbench.harness.cells.cell import EngineName
from exitbench.harness.engine.model.cache import KV, Cache, SharedSources, halves
from exitbench.harness.engine.model.cost import TokenPlace, block_cost
from exitbench.harness.engine.model.engine import Skipped
from exitbench.harness.engine.model.exit_heads import ExitHeads, Headed
from exitbench.harness.engine.model.graphs import DEVICES, BlockGraphs, Normed
from exitbench.harness.engine.model.int8_head import Int8Head, LogitIntervals
from exitbench.harness.engine.model.positions import (
    CachePositions,
    Rotary,
    additive,
    of_block,
    padded,
    relative_bias,
    rotary_angles,
    rotate_,
    rows_of,
    unpadded,
)
from exitbench.harness.engine.model.step_context import RowSubset, StepContext
from exitbench.harness.engine.model.weights import (
    ACTIVATIONS,
    Architecture,
    BlockWeights,
    HeadNorm,
    Linear,
    NormedLinear,
    Weights,
)
from exitbench.methods.base import Cost, Parts

GATHERED_NUMEL = 2**14
"""Below this many K/V elements per row, gathering the active rows is faster than one attention call per run of rows."""
PAIRED_KEYS = 96
"""From this many keys on, torch's bf16 attention on a CPU is slower for one query than for two equal ones."""


def clamped(x_ND: Tensor) -> Tensor:
    """Clamp float16 states [N, D] to finite numbers, as transformers does.

    The limit is the largest float16 number, or 1000 less in rows with infinite entries. transformers tests the whole
    tensor for such entries. Here each row is tested, so that results do not depend on the batch.
    """
    most = torch.finfo(x_ND.dtype).max
    limit_N1 = torch.where(x_ND.isinf().any(-1, keepdim=True), most - 1000, most)
    return x_ND.clamp(-limit_N1, limit_N1)


class Transformer(Headed):
    """Model of the lean engine, loaded from a checkpoint; satisfies the `Engine` protocol."""

    engine: EngineName = "lean"
    pads_left = True
    fills_exited_rows = True

    def __init__(self, arch: Architecture, weights: Weights, exit_heads: ExitHeads | None = None) -> None:
        self.arch = arch
        self.weights = weights
        self.exit_heads = exit_heads
        self.activation = ACTIVATIONS[arch.activation]
        self._norm_dtype = torch.promote_types(self.dtype, torch.float32)
        # Tensors, because a Python number is converted to one at every use.
        self._root_eps = torch.tensor(arch.norm_eps**0.5, dtype=self._norm_dtype, device=self.device)
        self._inverse_root_width = torch.tensor(arch.d_model**-0.5, dtype=self._norm_dtype, device=self.device)
        self._block_kv: list[Linear] = []
        self._skip_kv: list[Linear] = []
        self._skip_key_norms: list[HeadNorm | None] = []
        still = [not block.rotates for block in weights.blocks]
        self._still_L11 = torch.tensor(still, device=self.device)[:, None, None] if any(still) else None
        self.newest = Normed()

    @property
    def n_blocks(self) -> int:
        """Number of decoder blocks, L."""
        return self.arch.n_blocks

    @property
    def d_model(self) -> int:
        """Width of the residual stream, D."""
        return self.arch.d_model

    @property
    def kv_width(self) -> int:
        """Width of the keys (and of the values) of one block: KV heads times head size."""
        return self.arch.kv_width

    @property
    def lm_head(self) -> Linear:
        """The LM head alone. For models with a logit scale, the caller must scale its input first."""
        return self.weights.lm_head

    @property
    def encoder_blocks(self) -> int:
        """Number of encoder blocks; 0 for a decoder-only model."""
        return self.arch.encoder_blocks

    @property
    def max_positions(self) -> int | None:
        """Maximum number of tokens of prompt and answer together; None if unlimited."""
        return self.arch.max_positions

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""
        return self.weights.token_embedding_VD.dtype

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.weights.token_embedding_VD.device

    # ---------------------------------------------------------------- pieces

    def normalise(self, x: Tensor) -> Tensor:
        """Apply the model's kind of norm (RMS or layer) to the last dimension, without weight and bias."""
        if self.arch.norm == "layer":
            return F.layer_norm(x, (x.shape[-1],), None, None, self.arch.norm_eps)
        if self.device.type != "cpu":  # one kernel
            return F.rms_norm(x, (x.shape[-1],), None, self.arch.norm_eps)
        # x / sqrt(mean(x^2) + eps) in half as many operations as torch's own
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=self._norm_dtype)
        normed = x / torch.hypot(length.mul_(self._inverse_root_width), self._root_eps)
        return normed if self.dtype == self._norm_dtype else normed.to(self.dtype)

    def _normalised(self, hidden: Tensor) -> Tensor:
        """Return ``hidden`` normalised; if it is the output of the last block run, return the cached result."""
        newest = self.newest
        if newest.normed is not None and newest.hidden is hidden:
            return newest.normed
        return self.normalise(hidden)

    def block_input(self, hidden: Tensor) -> Tensor:
        """Return the input of a block's projections: the residual stream [..., D], normalised if norms precede them."""
        return self._normalised(hidden) if self.arch.norms_inputs else hidden

    def final_normed(self, hidden: Tensor) -> Tensor:
        """Apply the model's final norm, with weight and bias, to states [..., D]."""
        norm = self.weights.final_norm
        normed = self._normalised(hidden) * norm.weight
        return normed if norm.bias is None else normed + norm.bias

    def head_input(self, hidden: Tensor) -> Tensor:
        """Return the LM head's input for states [..., D]: final norm, then logit scale."""
        return self._scaled(self.final_normed(hidden))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V] of states [..., D]: final norm, logit scale and LM head."""
        return self.logits_of_normed(self.final_normed(hidden))

    def logits_of_normed(self, normed: Tensor) -> Tensor:
        """Return the logits [..., V] of final-normed states [..., D]: logit scale and LM head."""
        return (self.weights.read_out or self.weights.lm_head)(self._scaled(normed))

    def _scaled(self, normed: Tensor) -> Tensor:
        return normed if self.arch.logit_scale == 1.0 else normed * self.arch.logit_scale

    def head_rows(self, ids: Tensor) -> Tensor:
        """Return the rows of the LM head's weight for the given token ids, [len(ids), D]."""
        return self.weights.lm_head.rows(ids)

    @cached_property
    def int8_head(self) -> Int8Head:
        """An int8 copy of the LM head, created on first use."""
        return Int8Head(self.lm_head)

    def logit_bounds(self, hidden_AD: Tensor) -> LogitIntervals:
        """Return intervals that contain the logits of states [A, D], computed from the int8 copy of the LM head."""
        return self.int8_head.read(self.head_input(hidden_AD))

    def logits_of(self, hidden_AD: Tensor, weights_AKD: Tensor) -> Tensor:
        """Return logits [A, K] of states [A, D] for K token ids per row, whose LM-head rows are ``weights_AKD``.

        If the LM head has a bias, it is the last column of these rows, as `head_weights` returns them.
        """
        normed = self.head_input(hidden_AD)
        if self.weights.lm_head.bias is not None:
            normed = torch.cat((normed, torch.ones_like(normed[:, :1])), dim=-1)
        if len(normed) == 1:
            return self.weights.part_form(Linear(weights_AKD[0]))(normed)
        return torch.bmm(weights_AKD, normed[:, :, None])[:, :, 0]

    def block_kv(self, block: int) -> Linear:
        """Return the linear layer that projects a block's input to its keys and values; ``block`` is 1..L."""
        if not self._block_kv:
            self._block_kv = [
                self._stacked_kv.outputs(number * 2 * self.kv_width, (number + 1) * 2 * self.kv_width)
                for number in range(self.n_blocks)
            ]
        return self._block_kv[block - 1]

    def skip_kv(self, block: int) -> Linear:
        """Return the key/value projections of blocks block+1..L, stacked into one linear layer; built on first use.

        Each block has 2*G*K outputs, for G key/value heads of size K.
        """
        if not self._skip_kv:
            self._skip_kv = [self._stacked_kv.outputs(first * 2 * self.kv_width) for first in range(self.n_blocks)]
        return self._skip_kv[block]

    @cached_property
    def _stacked_kv(self) -> Linear:
        """The key/value projections of all blocks, stacked into one linear layer."""
        width = self.arch.n_heads * self.arch.head_dim
        first, *others = (block.qkv.outputs(width) for block in self.weights.blocks)
        return self.weights.part_form(first.stacked(others))

    def skip_key_norm(self, block: int) -> HeadNorm | None:
        """Return the key norms of blocks block+1..L, stacked into one norm with weights [L - block, G, K].

        G is the number of key/value heads, K their size. None if the model does not normalise keys.
        """
        if not self._skip_key_norms:
            norms = [weights.key_norm for weights in self.weights.blocks if weights.key_norm is not None]
            stack = torch.stack([norm.weight for norm in norms]) if norms else None
            self._skip_key_norms = [
                None if stack is None else replace(norms[0], weight=stack[first:]) for first in range(self.n_blocks)
            ]
        return self._skip_key_norms[block]

    def _embedded(self, tokens: Tensor) -> Tensor:
        """Return the token embeddings in the number format of the residual stream."""
        embedded = self.weights.token_embedding_VD[tokens]
        return embedded.float() if self.arch.wide_stream else embedded

    def _add_projection(
        self, projection: Linear | NormedLinear, stream_ND: Tensor, x: Tensor, *, in_float16: bool = False
    ) -> Tensor:
        """Return the residual stream plus ``projection(x)``.

        For some families in float16, transformers keeps the down projections ``wo`` in fp32. From the first ``wo`` on,
        the residual stream is then fp32. ``in_float16`` is True for sums before that: they are rounded to float16 and
        clamped.
        """
        if not self.arch.wide_stream:
            return projection.onto(stream_ND, x)
        sum_ND = stream_ND + projection(x.to(projection.weight.dtype))
        return clamped(sum_ND.to(self.dtype)).float() if in_float16 else sum_ND

    def _attend(self, q: Tensor, kv: KV, bias: Tensor | None, *, is_causal: bool = False) -> Tensor:
        """Return attention of queries ``q`` [A, T, H, K] over keys and values [A, G, S, K]: results [A*T, H*K].

        Each of the A rows has T queries in H heads, and S keys in G heads; heads have size K. ``bias`` is an
        additive mask; None means no mask, or a causal one if ``is_causal``.
        """
        (k, v), scale = kv, self.arch.attention_scale
        n_rows, n_new, n_heads, size = q.shape
        if (groups := k.shape[1]) < n_heads and not is_causal:
            # Query heads that share a key head become more query positions of one head: no copy of keys or values.
            q = q.transpose(1, 2).reshape(n_rows, groups, -1, size)
            if bias is not None and bias.shape[2] > 1:  # once for each of them; `repeat` takes longer
                bias = bias[:, :, None].expand(-1, -1, n_heads // groups, -1, -1).flatten(2, 3)
            mixed = F.scaled_dot_product_attention(q, k, v, bias, scale=scale).reshape(n_rows, n_heads, n_new, size)
        else:
            q = q.transpose(1, 2)
            is_slow = n_new == 1 and q.dtype == torch.bfloat16 and q.device.type == "cpu"
            if is_paired := is_slow and k.shape[2] >= PAIRED_KEYS:
                q = q.repeat(1, 1, 2, 1)
            mixed = F.scaled_dot_product_attention(
                q, k, v, bias, 0.0, is_causal, scale=scale, enable_gqa=groups < n_heads
            )
            mixed = mixed[:, :, :1] if is_paired else mixed
        return mixed.transpose(1, 2).reshape(n_rows * n_new, n_heads * size)

    def _attend_rows(self, q: Tensor, kv: Tensor, bias: Tensor | None, running: RowSubset) -> Tensor:
        """Return attention of the running rows' queries ``q`` [A, T, H, K] over their own keys and values: [A*T, H*K].

        ``kv`` [B, 2G, S, K] has keys and values of the whole batch; ``bias`` is the additive mask of the running rows.
        """
        if kv.device.type != "cpu" or kv[0].numel() <= GATHERED_NUMEL:
            return self._attend(q, halves(kv.index_select(0, running.rows_A)), bias)
        pieces = []
        for some, rows in running.contiguous_slices:
            own_bias = bias if bias is None or len(bias) == 1 else bias[some]
            pieces.append(self._attend(q[some], halves(kv[rows]), own_bias))
        return torch.cat(pieces)

    def _attend_shared(
        self, q: Tensor, block: int, cache: Cache, shared: SharedSources, rows_A: Tensor | None
    ) -> Tensor:
        """Return cross-attention [N, H*K] of queries [A, T, H, K] of the rows ``rows_A``, if rows share encoder inputs.

        Rows with the same encoder input (source) become several query positions of one row, so that the source's keys
        and values are stored and read once.
        """
        n_rows, n_new, n_heads, size = q.shape
        slots_A = rows_of(shared.slots_B, rows_A)
        queries = q.new_zeros(shared.n_sources * shared.max_rows, n_new, n_heads, size).index_copy_(0, slots_A, q)
        queries = queries.view(shared.n_sources, -1, n_heads, size)
        mixed = self._attend(queries, cache.source_keys_and_values(block), cache.source_mask)
        mixed = mixed.view(-1, n_new * n_heads * size).index_select(0, slots_A)
        return mixed.view(n_rows * n_new, n_heads * size)

    # --------------------------------------------------------------- encoder

    def encode(self, tokens_BS: Tensor, mask_BS: Tensor | None) -> Tensor:
        """Run all blocks of the encoder.

        Args:
            tokens_BS: Source tokens, padded on the right.
            mask_BS: True at tokens, False at padding; None without padding.

        Returns:
            The normalised output of the last block, [B S, D]. The weight of the final norm is folded into the
            cross-attention.
        """
        n_rows, n_source = tokens_BS.shape
        hidden_ND = self._embedded(tokens_BS.flatten())
        bias = None if mask_BS is None else additive(mask_BS, self.dtype)[:, None, None, :]
        places, masked = torch.arange(n_source, device=self.device), bias
        for number, block in enumerate(self.weights.encoder_blocks):
            if (table := self.weights.encoder_relative_bias) is not None:
                n_tables = table.shape[1] // self.arch.n_heads
                if number < n_tables:  # one bias at a time: all at once would be large
                    block_table = table.chunk(n_tables, dim=1)[number]
                    relative = relative_bias(self.arch, block_table, places, places, bidirectional=True)
                    masked = relative if bias is None else relative + bias
            heads = block.qkv(self.normalise(hidden_ND)).view(n_rows, n_source, -1, self.arch.head_dim)
            q, k, v = heads.chunk(3, dim=2)
            mixed_ND = self._attend(q, (k.transpose(1, 2), v.transpose(1, 2)), masked)
            hidden_ND = self._add_projection(block.attention_out, hidden_ND, mixed_ND, in_float16=number == 0)
            hidden_ND = self._add_projection(block.down, hidden_ND, self.feed_forward(block, hidden_ND))
        return self.normalise(hidden_ND)

    def start(
        self, prompts: Sequence[Sequence[int]], room: int, *, holds_last: bool = False, depth: int | None = None
    ) -> tuple[Cache, Tensor | None]:
        """Prefill a batch of prompts: run the encoder, or blocks 1..depth (None: all) of a decoder-only model.

        Return the cache, with ``room`` positions for new tokens, and the state of each prompt's last token, [B, D]. The
        state is None for an encoder-decoder, and if ``holds_last`` leaves the last token out. See `Engine.start`.
        """
        if not self.arch.encoder_blocks:
            return self._start_decoder_only(prompts, room, holds_last, depth or self.n_blocks)
        if holds_last:
            raise UserError(
                "an encoder-decoder reads its whole prompt in the encoder; its first new token, which follows the "
                "decoder's start token, goes through the gate anyhow."
            )
        tokens_BS, mask_BS = padded(prompts, self.device, side="right")
        source_ND = self.encode(tokens_BS, mask_BS)
        cache = Cache(self, len(prompts), room)
        if mask_BS is not None:
            cache.source_mask = additive(mask_BS, self.dtype)[:, None, None, :]
        n_rows, n_source = tokens_BS.shape
        cross_kv = cache.make_cross_kv(n_source)
        for target, block in zip(cross_kv, self.weights.blocks, strict=True):
            assert block.cross_kv is not None, "there is an encoder"
            target.copy_(block.cross_kv(source_ND).view(n_rows, n_source, *target.shape[1::2]).transpose(1, 2))
        return cache, None

    def new_cache(self, n_rows: int, room: int, padding_B: Tensor | None = None) -> Cache:
        """Return an empty KV cache for ``n_rows`` batch rows and ``room`` positions of prompt and answer together.

        ``padding_B`` is the number of left-padding positions of each row; None means no padding.
        """
        cache = Cache(self, n_rows, room)
        cache.padding_B = padding_B
        return cache

    def _start_decoder_only(
        self, prompts: Sequence[Sequence[int]], room: int, holds_last: bool, depth: int
    ) -> tuple[Cache, Tensor | None]:
        self._check_room(max(len(prompt) for prompt in prompts), room)
        tokens_BT, mask_BT = padded(prompts, self.device, side="left")
        padding_B = None if mask_BT is None else (~mask_BT).sum(1)
        cache = self.new_cache(len(prompts), tokens_BT.shape[1] + room, padding_B)
        if holds_last:
            tokens_BT = tokens_BT[:, :-1]
        if not tokens_BT.shape[1]:
            return cache, None
        hidden, context = self.embed(tokens_BT, cache)
        for block in range(1, depth + 1):
            hidden = self.block(block, hidden, context)
        cache.length = tokens_BT.shape[1]
        return cache, None if holds_last else hidden[:, -1]

    def _check_room(self, n_prompt: int, n_new: int) -> None:
        needed = n_prompt + n_new - 1  # the last new token is never fed
        table = self.weights.position_embedding_PD
        if table is not None and needed > len(table):
            raise UserError(
                f"a prompt of {n_prompt} tokens and {n_new} new ones need {needed} positions; "
                f"the model has {len(table)}. Shorten the prompts or max_new_tokens."
            )

    # --------------------------------------------------------------- decoder

    def embed(self, tokens_BT: Tensor, cache: Cache) -> tuple[Tensor, StepContext]:
        """Begin a step of T new tokens per row, at the cache's next positions.

        Returns the embeddings [B, T, D], and the step's context: masks and other data that all its blocks share.
        """
        end = cache.length + tokens_BT.shape[1]
        hidden = self._embedded(tokens_BT)
        if self.weights.position_embedding_PD is not None:
            places = torch.arange(cache.length, end, device=self.device)[None]
            hidden = hidden + self.weights.position_embedding_PD[unpadded(cache.padding_B, None, places)]
        context = self._context(cache, cache.length, end)
        context.embedding_BD = hidden[:, -1]
        if cache.captures and tokens_BT.shape[1] == 1 and cache.shared is None and self.device.type in DEVICES:
            if cache.graphs is None:
                cache.graphs = BlockGraphs(context)
            context.graphs = cache.graphs
            context.graphs.begin(context)
        return hidden, context

    def recent_context(self, cache: Cache, n_positions: int) -> StepContext:
        """Return the step context to run blocks at the last ``n_positions`` cache positions of every row.

        The positions end with that of the current step.
        """
        return self._context(cache, cache.length + 1 - n_positions, cache.length + 1)

    def _context(self, cache: Cache, start: int, end: int) -> StepContext:
        """Return the step context (attention mask, rotary angles) to run blocks at cache positions start..end-1."""
        bias, is_causal = self._step_mask(cache, start, end)
        rotary = None
        if self.weights.inverse_frequencies is not None:
            rotary = self.rotary_at(cache, None, torch.arange(start, end, device=self.device)[None])
        return StepContext(cache, start, None, bias, is_causal, rotary)

    def embed_branches(
        self, tokens_BT: Tensor, branch_BT: Tensor, offset_BT: Tensor, cache: Cache
    ) -> tuple[Tensor, StepContext]:
        """Begin a step in which a row holds several continuations (branches) of its cached context, one after another.

        No branch attends to another one. Returns embeddings [B, T, D], and the step's context: masks and other data
        that all its blocks share.

        Args:
            tokens_BT: Tokens of each row's branches, concatenated.
            branch_BT: Index of each token's branch in its row.
            offset_BT: Position of each token in its branch, from 0.
            cache: Keys and values of the contexts, with room for all branch tokens.
        """
        before, slots = (torch.arange(n, device=self.device) for n in (cache.length, tokens_BT.shape[1]))
        places_BT = cache.length + offset_BT
        same_BTT = (branch_BT[:, :, None] == branch_BT[:, None]) & (slots[:, None] >= slots)
        before_BTS = same_BTT.new_ones(*tokens_BT.shape, cache.length)
        if cache.padding_B is not None:
            before_BTS = before_BTS & (before >= cache.padding_B[:, None, None])
        bias = additive(torch.cat((before_BTS, same_BTT), dim=-1), self.dtype)[:, None]
        if (table := self.weights.relative_bias) is not None:
            rows = [relative_bias(self.arch, table, places, torch.cat((before, places))) for places in places_BT]
            bias = bias + torch.cat(rows)
        hidden = self._embedded(tokens_BT)
        if self.weights.position_embedding_PD is not None:
            hidden = hidden + self.weights.position_embedding_PD[unpadded(cache.padding_B, None, places_BT)]
        rotary = self.rotary_at(cache, None, places_BT)
        return hidden, StepContext(cache, cache.length, hidden[:, -1], bias, rotary=rotary)

    def block(
        self,
        block: int,
        hidden: Tensor,
        context: StepContext,
        rows_A: Tensor | None = None,
        places: CachePositions | None = None,
        exited_BD: Tensor | None = None,
    ) -> Tensor:
        """Run decoder block ``block`` (1..L), and write its keys and values; arguments as in `Engine.block`.

        Return the residual stream after the block, shaped like ``hidden``. The block's CUDA graph is used if the step
        has graphs, all rows run, and ``places`` and ``exited_BD`` are None.
        """
        if context.graphs is not None and rows_A is None and places is None and exited_BD is None:
            return context.graphs.run(self, block, hidden, context)
        return self.run_block(block, hidden, context, rows_A, places, exited_BD)

    def run_block(
        self,
        block: int,
        hidden: Tensor,
        context: StepContext,
        rows_A: Tensor | None = None,
        places: CachePositions | None = None,
        exited_BD: Tensor | None = None,
    ) -> Tensor:
        """Run a decoder block without its CUDA graph, kernel by kernel; arguments and result as in `block`."""
        weights = self.weights.blocks[block - 1]
        hidden_ND = hidden if hidden.dim() == 2 else hidden.reshape(-1, self.d_model)
        attended_ND = self.self_attention(block, hidden_ND, context, rows_A, places, exited_BD)
        hidden_ND = self._add_projection(weights.attention_out, hidden_ND, attended_ND, in_float16=block == 1)
        if weights.cross_out is not None:
            from_source_ND = self.cross_attention(block, hidden_ND, context, rows_A)
            hidden_ND = self._add_projection(weights.cross_out, hidden_ND, from_source_ND, in_float16=block == 1)
        hidden_ND = self._add_projection(weights.down, hidden_ND, self.feed_forward(weights, hidden_ND))
        if hidden.dim() == 3:
            return hidden_ND.view(hidden.shape)
        if self.arch.norms_inputs and places is None and exited_BD is None:
            self.newest = Normed(hidden_ND, self.normalise(hidden_ND))
        return hidden_ND

    def self_attention(
        self,
        block: int,
        hidden_ND: Tensor,
        context: StepContext,
        rows_A: Tensor | None = None,
        places: CachePositions | None = None,
        exited_BD: Tensor | None = None,
    ) -> Tensor:
        """Return the outputs of a block's self-attention heads, before the output projection: [N, H*K].

        Also writes the block's keys and values. ``hidden_ND`` is the residual stream before the block, one row of it
        per position (N). Other arguments as in `block`.
        """
        cache = context.cache
        written_A = rows_A  # rows that get keys and values
        if exited_BD is not None and rows_A is not None:
            hidden_ND, written_A = exited_BD.index_copy_(0, rows_A, hidden_ND), None
        n_rows = cache.n_rows if written_A is None else written_A.shape[0]
        weights, n_heads, n_kv_heads = self.weights.blocks[block - 1], self.arch.n_heads, self.arch.n_kv_heads
        heads = weights.qkv(self.block_input(hidden_ND))
        heads = heads.view(n_rows, -1, n_heads + 2 * n_kv_heads, self.arch.head_dim)
        if weights.query_norm is not None and weights.key_norm is not None:
            weights.query_norm.apply_(heads[:, :, :n_heads])
            weights.key_norm.apply_(heads[:, :, n_heads:-n_kv_heads])
        rotary = context.rotary if places is None else places.rotary
        if rotary is not None and weights.rotates:
            if places is None:
                rotary = rows_of(rotary[0], written_A), rows_of(rotary[1], written_A)
            rotate_(heads[:, :, :-n_kv_heads], rotary)
        q, new_kv = heads[:, :, :n_heads], heads[:, :, n_heads:]
        if places is not None:
            rows = torch.arange(cache.n_rows, device=self.device) if rows_A is None else rows_A
            cache.self_kv[block - 1][rows[:, None], :, places.places_AT] = new_kv
            k, v = cache.keys_and_values(block, places.bias.shape[-1])
            own_bias = of_block(block, n_heads, places.bias)
            return self._attend(q, (k, v) if rows_A is None else (k[rows_A], v[rows_A]), own_bias)
        if context.place is not None:
            cache.self_kv[block - 1].index_copy_(2, context.place, new_kv.transpose(1, 2))
            assert context.bias is not None, "what is read includes positions to come"
            own_bias = of_block(block, n_heads, context.bias)
            return self._attend(q, cache.keys_and_values(block, cache.room), own_bias)
        start, end = context.start, context.start + heads.shape[1]
        running = None if rows_A is None else context.subset(rows_A)
        bias = context.bias if running is None else running.bias
        bias = None if bias is None else of_block(block, n_heads, bias)
        bias = cache.masked(bias, block, end, rows_A)
        of_batch = cache.self_kv[block - 1].narrow(2, 0, end)
        if written_A is not None:
            of_batch[written_A, :, start:] = new_kv.transpose(1, 2)
        else:
            of_batch[:, :, start:] = new_kv.transpose(1, 2)
        if running is None:
            return self._attend(q, cache.keys_and_values(block, end), bias, is_causal=context.is_causal)
        if written_A is None:
            q = q.index_select(0, running.rows_A)
        return self._attend_rows(q, of_batch, bias, running)

    def cross_attention(
        self, block: int, hidden_ND: Tensor, context: StepContext, rows_A: Tensor | None = None
    ) -> Tensor:
        """Return the outputs of a block's cross-attention heads, before the output projection: [N, H*K].

        ``hidden_ND`` is the residual stream after self-attention, of the rows ``rows_A`` (None: all).
        """
        weights, cache = self.weights.blocks[block - 1], context.cache
        assert weights.cross_q is not None and cache.cross_kv is not None, "there is an encoder"
        n_rows = cache.n_rows if rows_A is None else rows_A.shape[0]
        q = weights.cross_q(self.block_input(hidden_ND)).view(n_rows, -1, self.arch.n_heads, self.arch.head_dim)
        if cache.shared is not None:
            return self._attend_shared(q, block, cache, cache.shared, rows_A)
        if rows_A is None:
            return self._attend(q, cache.source_keys_and_values(block), cache.source_mask)
        running = context.subset(rows_A)
        return self._attend_rows(q, cache.cross_kv[block - 1], running.source_mask, running)

    def feed_forward(self, weights: BlockWeights, hidden_ND: Tensor) -> Tensor:
        """Return the hidden activations [N, F] of a block's feed-forward network, before its down projection.

        ``hidden_ND`` is the residual stream; N is the number of positions, F the width of the network.
        """
        up = weights.up(self.block_input(hidden_ND))
        if self.arch.gated:
            gate, up = up.chunk(2, dim=-1)
            return self.activation(gate) * up
        return self.activation(up)

    # -------------------------------------------------------- skipped blocks

    def fill(self, skipped: Sequence[Skipped], context: StepContext) -> None:
        """Write keys and values of skipped blocks at the step's position, projected from the rows' exit states.

        ``skipped`` has one tuple per exit layer, in ascending order: the exit layer, then exit states [A, D] and
        indices of the rows that exited there (None: all rows).
        """
        if len(skipped) == 1:
            self._fill_at_once(*skipped[0], context)
        else:
            self._fill_block_by_block(skipped, context)

    def _fill_at_once(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None, context: StepContext) -> None:
        """Write keys and values of all skipped blocks by one matrix product, for rows that exited at the same block."""
        arch, cache = self.arch, context.cache
        kv = self.skip_kv(block)(self.block_input(hidden_AD))
        kv = kv.view(len(kv), arch.n_blocks - block, 2 * arch.n_kv_heads, arch.head_dim)
        if (norm := self.skip_key_norm(block)) is not None:
            norm.apply_(kv[:, :, : arch.n_kv_heads])
        if context.rotary is not None:
            cos, sin = (rows_of(angles, rows_A) for angles in context.rotary)
            if self._still_L11 is not None:
                cos, sin = cos.masked_fill(self._still_L11[block:], 1), sin.masked_fill(self._still_L11[block:], 0)
            rotate_(kv[:, :, : arch.n_kv_heads], (cos, sin))
        target = cache.self_kv[block:, :, :, cache.length]
        if rows_A is None:
            target.copy_(kv.transpose(0, 1))
        else:
            target[:, rows_A] = kv.transpose(0, 1)

    def _fill_block_by_block(self, skipped: Sequence[Skipped], context: StepContext) -> None:
        """Write keys and values of skipped blocks by one product per block, for all rows that skipped this block."""
        cache, rotary = context.cache, context.rotary
        input_ND = self.block_input(torch.cat([hidden_AD for _, hidden_AD, _ in skipped]))
        every_row = torch.arange(cache.n_rows, device=input_ND.device)
        rows_N = torch.cat([every_row if rows_A is None else rows_A for *_, rows_A in skipped])
        cos_sin = None if rotary is None else (rows_of(rotary[0], rows_N), rows_of(rotary[1], rows_N))
        leaving = [(exit_layer, hidden_AD.shape[0]) for exit_layer, hidden_AD, _ in skipped]
        for block in range(skipped[0][0] + 1, self.n_blocks + 1):
            n = sum(n_rows for exit_layer, n_rows in leaving if exit_layer < block)
            first = None if cos_sin is None else (cos_sin[0][:n], cos_sin[1][:n])
            self._write_projected(block, input_ND[:n], rows_N[:n], cache.length, first, cache)

    def project(self, block: int, states_ND: Tensor, rows_N: Tensor, places_N: Tensor, cache: Cache) -> None:
        """Project states to keys and values of one block, and write them to the cache without running the block.

        State n of ``states_ND`` is written at cache position ``places_N[n]`` of batch row ``rows_N[n]``.
        """
        rotary = self.rotary_at(cache, rows_N, places_N[:, None])
        self._write_projected(block, self.block_input(states_ND), rows_N, places_N, rotary, cache)

    def _write_projected(
        self, block: int, input_ND: Tensor, rows_N: Tensor, places: Tensor | int, rotary: Rotary | None, cache: Cache
    ) -> None:
        arch, weights = self.arch, self.weights.blocks[block - 1]
        kv = self.block_kv(block)(input_ND).view(-1, 1, 2 * arch.n_kv_heads, arch.head_dim)
        if weights.key_norm is not None:
            weights.key_norm.apply_(kv[:, :, : arch.n_kv_heads])
        if rotary is not None and weights.rotates:
            rotate_(kv[:, :, : arch.n_kv_heads], rotary)
        cache.self_kv[block - 1, rows_N, :, places] = kv[:, 0]

    def block_cost(self, place: TokenPlace) -> Cost:
        """Return the cost of one decoder block for one token; ``place`` has the lengths that its attention reads."""
        return block_cost(self.arch, place)

    def why_not(self, parts: Parts, n_rows: int) -> str | None:
        """Return None, which means that the method can run: the lean engine runs every method."""
        return None

    # ------------------------------------------------------------- positions

    def _step_mask(self, cache: Cache, start: int, end: int) -> tuple[Tensor | None, bool]:
        """Return the attention mask of positions start..end-1, and whether plain causal attention replaces it.

        The mask is additive, with padding and relative position bias, [1 or B, 1 or H, T, end]. It is None for plain
        causal attention, and if a single position attends to all keys.
        """
        if self.weights.relative_bias is None and cache.padding_B is None and (start == 0 or end - start == 1):
            return None, end - start > 1
        bias = cache.causal_bias(start, end)
        if cache.padding_B is not None:
            keys = torch.arange(end, device=self.device)
            bias = bias + additive(keys[None, :] >= cache.padding_B[:, None], self.dtype)[:, None, None, :]
        return bias, False

    def places(self, cache: Cache, rows_A: Tensor | None, places_AT: Tensor) -> CachePositions:
        """Return the argument ``places`` of `block`, to run blocks at other cache positions than those of the step.

        The result includes attention masks and rotary angles, which several blocks then share. ``places_AT`` are T
        positions for each of the batch rows ``rows_A`` (None: all), in any order.
        """
        bias, rotary = self._bias_at(cache, rows_A, places_AT), self.rotary_at(cache, rows_A, places_AT)
        return CachePositions(places_AT, bias, rotary)

    def _bias_at(self, cache: Cache, rows_A: Tensor | None, places_AT: Tensor) -> Tensor:
        """Return the additive attention mask, with position bias, for queries of rows at cache positions ``places_AT``.

        Its shape is [A, 1 or H, T, length + 1] for H heads: keys are all cached positions and that of the step.
        """
        keys = torch.arange(cache.length + 1, device=self.device)
        allowed = keys <= places_AT[..., None]
        if cache.padding_B is not None:
            allowed = allowed & (keys >= rows_of(cache.padding_B, rows_A)[:, None, None])
        bias = additive(allowed, self.dtype)[:, None]
        if self.weights.relative_bias is None:
            return bias
        relative = relative_bias(self.arch, self.weights.relative_bias, places_AT.flatten(), keys)  # [1, H, A T, S]
        return bias + relative[0].view(-1, *places_AT.shape, len(keys)).transpose(0, 1)

    def rotary_at(self, cache: Cache, rows_A: Tensor | None, places_AT: Tensor) -> Rotary | None:
        """Return the rotary angles of cache positions [A or 1, T] of the batch rows ``rows_A`` (None: all).

        None if the model has no rotary embedding.
        """
        frequencies = self.weights.inverse_frequencies
        if frequencies is None:
            return None
        places = unpadded(cache.padding_B, rows_A, places_AT)
        return rotary_angles(places, frequencies, self.weights.rotary_scale, self.dtype)
