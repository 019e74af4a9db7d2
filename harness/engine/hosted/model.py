"""Model of the hosted engine: a transformers decoder that is run block by block, so that tokens can exit early.

Shape suffixes: B batch rows, A rows that run a block, T new positions, N positions of several rows, S source positions;
D model width, V vocabulary, K token ids of a row.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from exitbench.errors import UserError
from exitbench.harness.cells.cell import EngineName
from exitbench.harness.engine.hosted.cache import HostedCache, StopAfterStore, WritePositions
from exitbench.harness.engine.hosted.calls import Calls, RecordedCalls, state_of
from exitbench.harness.engine.hosted.read_out import ReadOut
from exitbench.harness.engine.hosted.stack import Stack, first_int, longest_text
from exitbench.harness.engine.model.cost import TokenPlace
from exitbench.harness.engine.model.engine import Skipped
from exitbench.harness.engine.model.exit_heads import ExitHeads, Headed
from exitbench.harness.engine.model.positions import padded
from exitbench.methods.base import Cost, Parts

_COUNTS_PADDING = "rows of a batch are padded on the left, and this model counts positions with their padding"


@dataclass(eq=False)
class HostedStep:
    """Recorded forward pass over consecutive positions, whose blocks can be run one by one.

    Attributes:
        cache: Cache of the batch.
        start: First position of the step in the cache.
        recorded: Arguments with which transformers called each block.
        is_first: True if the step feeds new tokens; False if its positions were fed before.
    """

    cache: HostedCache
    start: int
    recorded: RecordedCalls
    is_first: bool = True

    @property
    def width(self) -> int:
        """Number of positions of the step, T."""
        assert self.recorded.first_BTD is not None, "recorded"
        return self.recorded.first_BTD.shape[1]

    @property
    def embedding_BD(self) -> Tensor:
        """Embedding of the newest position of every row."""
        assert self.recorded.embedding_BTD is not None, "recorded"
        return self.recorded.embedding_BTD[:, -1]


@dataclass(frozen=True, eq=False)
class HostedPlaces:
    """Cache positions at which rows run blocks, within a window: a range of consecutive cache positions.

    Attributes:
        step: Recorded step over the whole window.
        slots_AT: Index of each position within the window.
        writing: Positions where keys and values are written.
    """

    step: HostedStep
    slots_AT: Tensor
    writing: WritePositions


@dataclass(frozen=True)
class BlockWork:
    """Matrix-product work of one block for one token, averaged over the blocks.

    Attributes:
        weights: Number of weights that are multiplied.
        flops_per_key: FLOPs of self-attention per attended position.
        flops_per_source: FLOPs of cross-attention per source position; 0 for decoder-only models.
    """

    weights: float
    flops_per_key: float
    flops_per_source: float


class HostedTransformer(Headed):
    """A model of transformers that the hosted engine runs; satisfies the `Engine` protocol.

    Attributes:
        stack: The parts of the model: decoder blocks, LM head, encoder.
        read_out: Function from states to logits.
        pads_left: Whether left padding leaves the results of a row unchanged; set by `hosted.proof.prove`.
        kv_width: Width of one block's keys, averaged over blocks; 0 until `hosted.proof.prove` sets it.
        work: Weights and FLOPs of one block for one token; set by `hosted.proof.prove`.
    """

    engine: EngineName = "hosted"
    fills_exited_rows = False

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.exit_heads: ExitHeads | None = None
        self.calls = Calls(stack.blocks)
        self.d_model = int(_width(stack))
        self.read_out = ReadOut(stack, self.calls)
        self.pads_left = True
        self.kv_width, self.work = 0, BlockWork(0.0, 0.0, 0.0)
        self._is_spread = len({weight.device for weight in stack.lm.parameters()}) > 1
        self._accepted = frozenset(inspect.signature(stack.decoder.forward).parameters)

    @property
    def n_blocks(self) -> int:
        """Number of decoder blocks, L."""
        return len(self.stack.blocks)

    @property
    def encoder_blocks(self) -> int:
        """Number of encoder blocks; 0 for a decoder-only model."""
        return self.stack.encoder_blocks

    @property
    def lm_head(self) -> Any:
        """The LM head, a transformers module."""
        return self.stack.head

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""
        dtype: torch.dtype = self.stack.head.weight.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        """Device of the weights; for a model on several devices, that of everything but the blocks."""
        device: torch.device = self.stack.head.weight.device
        return device

    @property
    def max_positions(self) -> int | None:
        """Maximum number of tokens of prompt and answer together; None if unlimited, or for an encoder-decoder."""
        return self.stack.max_positions

    # -------------------------------------------------------------- read-outs

    def final_normed(self, hidden: Tensor) -> Tensor:
        """Return the states [..., D] after the modules that follow the decoder's last block, such as the final norm."""
        return self.read_out.head_input(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V] of states [..., D] as the model itself computes them."""
        return self.read_out(hidden)

    def logits_of_normed(self, normed: Tensor) -> Tensor:
        """Return the logits [..., V] of states [..., D] that have passed the final norm already."""
        return self.read_out.logits_of_head_input(normed)

    def logits_of(self, hidden_AD: Tensor, weights_AKD: Tensor) -> Tensor:
        """Return the logits [A, K] of states [A, D] for K rows of the LM head per state, given as ``weights_AKD``.

        If these rows have one more column than D, it is their bias.
        """
        head_input = self.final_normed(hidden_AD)
        if weights_AKD.shape[-1] > head_input.shape[-1]:
            head_input = torch.cat((head_input, torch.ones_like(head_input[:, :1])), dim=-1)
        return torch.bmm(weights_AKD, head_input[:, :, None])[:, :, 0]

    def why_not(self, parts: Parts, n_rows: int) -> str | None:
        """Return why a method cannot be run on this model in batches of ``n_rows`` rows; None if it can."""
        if parts.head.reads_part and self.read_out.way != "direct":
            return (
                "the method reads single rows of the LM head, and this model's logits are not those of its head alone "
                "(a scale, a soft cap or a bias comes after it)"
            )
        if parts.kv_policy.evicts:
            return "KV policy 'evict' masks positions block by block, and this model makes one mask for all blocks"
        if n_rows > 1 and not self.pads_left and (self.stack.encoder is None or parts.kv_policy.verifies):
            return f"{_COUNTS_PADDING}; batch_size = 1 and batch_rows = 1 run it"
        return None

    # ------------------------------------------------------------------ prompts

    def new_cache(self, n_rows: int, room: int, padding_B: Tensor | None = None) -> HostedCache:
        """Return an empty cache for ``n_rows`` batch rows and ``room`` positions of prompt and answer together.

        ``padding_B`` is the number of left-padding positions of each row; None means no padding.
        """
        has_source = self.stack.encoder is not None
        cache = HostedCache(self.n_blocks, n_rows, room, self.device, has_source=has_source)
        cache.padding_B = padding_B
        return cache

    def start(
        self, prompts: Sequence[Sequence[int]], room: int, *, holds_last: bool = False, depth: int | None = None
    ) -> tuple[HostedCache, Tensor | None]:
        """Prefill a batch of prompts; arguments and result as in `Engine.start`.

        Raises:
            UserError: As there, or prompts of different length cannot be padded.
        """
        if self.stack.encoder is None:
            return self._start_decoder_only(prompts, room, holds_last, depth or self.n_blocks)
        if holds_last:
            raise UserError(
                "an encoder-decoder reads its whole prompt in the encoder; its first new token, which follows the "
                "decoder's start token, goes through the gate anyhow."
            )
        tokens_BS, mask_BS = padded(prompts, self.device, side="right")
        self._check_room(max(tokens_BS.shape[1], room))
        cache = self.new_cache(len(prompts), room)
        cache.source_mask_BS = torch.ones_like(tokens_BS) if mask_BS is None else mask_BS.long()
        encoded = self.stack.encoder(input_ids=tokens_BS, attention_mask=cache.source_mask_BS, return_dict=True)
        cache.source_BSD = encoded.last_hidden_state
        # One token at full depth, to compute keys and values of the source at every block; its output is not used.
        self._first_blocks(self.n_blocks, torch.zeros_like(tokens_BS[:, :1]), cache)
        return cache, None

    def _start_decoder_only(
        self, prompts: Sequence[Sequence[int]], room: int, holds_last: bool, depth: int
    ) -> tuple[HostedCache, Tensor | None]:
        tokens_BT, mask_BT = padded(prompts, self.device, side="left")
        self._check_room(tokens_BT.shape[1] + room - 1)  # the last new token is never fed
        if mask_BT is not None and not self.pads_left:
            raise UserError(f"prompts of different length cannot be decoded together: {_COUNTS_PADDING}.")
        padding_B = None if mask_BT is None else (~mask_BT).sum(1)
        cache = self.new_cache(len(prompts), tokens_BT.shape[1] + room, padding_B)
        if holds_last:
            tokens_BT = tokens_BT[:, :-1]
        if not tokens_BT.shape[1]:
            return cache, None
        hidden_BTD = self._first_blocks(depth, tokens_BT, cache)
        cache.length = tokens_BT.shape[1]
        return cache, None if holds_last else hidden_BTD[:, -1]

    def _first_blocks(self, depth: int, tokens_BT: Tensor, cache: HostedCache) -> Tensor:
        hidden_BTD, step = self.embed(tokens_BT, cache)
        for block in range(1, depth + 1):
            hidden_BTD = self.block(block, hidden_BTD, step)
        return hidden_BTD

    def _check_room(self, needed: int) -> None:
        longest = longest_text(self.stack.config)
        if longest is not None and needed > longest:
            raise UserError(
                f"prompt and answer need {needed} positions; the model has {longest}. Shorten the prompts or "
                "max_new_tokens."
            )

    # -------------------------------------------------------------------- steps

    def embed(self, tokens_BT: Tensor, cache: HostedCache) -> tuple[Tensor, HostedStep]:
        """Begin a step of T new tokens per row, by the model's own forward pass, in which only block 1 runs.

        Returns:
            The embeddings [B, T, D], and the step with the recorded arguments of all blocks.
        """
        start, end = cache.length, cache.length + tokens_BT.shape[1]
        cache.windows.clear()
        cache.fed_BS[:, start:end] = tokens_BT
        step = self._record(cache, start, end)
        assert step.recorded.embedding_BTD is not None, "recorded"
        return step.recorded.embedding_BTD, step

    def _record(self, cache: HostedCache, start: int, end: int) -> HostedStep:
        cache.set_position(start)
        recorded = RecordedCalls(cache.n_rows)
        arguments: dict[str, Any] = {"input_ids": cache.fed_BS[:, start:end], "past_key_values": cache.past}
        if cache.source_BSD is not None:
            arguments |= {"encoder_hidden_states": cache.source_BSD, "encoder_attention_mask": cache.source_mask_BS}
        if cache.source_BSD is None or cache.padding_B is not None:
            arguments["attention_mask"] = cache.mask(end)
        if "position_ids" in self._accepted:
            arguments["position_ids"] = cache.positions(start, end)
        with self.calls.taken_over(recorded.handle):
            self.stack.decoder(**arguments, use_cache=True, return_dict=True)
        return HostedStep(cache, start, recorded)

    def places(self, cache: HostedCache, rows_A: Tensor | None, places_AT: Tensor) -> HostedPlaces:
        """Return the argument ``places`` of `block`, to run blocks at other cache positions than those of the step.

        A forward pass is recorded over a range of positions that contains all of them. ``places_AT`` are T positions
        for each of the batch rows ``rows_A`` (None: all).
        """
        window = self._window(cache, int(places_AT.min()), int(places_AT.max()) + 1)
        rows_N = torch.arange(cache.n_rows, device=self.device) if rows_A is None else rows_A
        rows_AT = rows_N[:, None].expand_as(places_AT)
        running_AT = torch.arange(len(rows_N), device=self.device)[:, None].expand_as(places_AT)
        writing = WritePositions(rows_AT.flatten(), running_AT.flatten(), places_AT.flatten())
        return HostedPlaces(window, places_AT - window.start, writing)

    def recent_context(self, cache: HostedCache, n_positions: int) -> HostedStep:
        """Return a step for blocks that run at the newest ``n_positions`` cache positions of every row.

        The last of these positions is that of the current step.
        """
        return self._window(cache, cache.length + 1 - n_positions, cache.length + 1)

    def _window(self, cache: HostedCache, start: int, end: int) -> HostedStep:
        """Return a step for cache positions start to end - 1, whose tokens were fed before.

        It is recorded when it is first requested after `embed`, and then cached.
        """
        if (start, end) not in cache.windows:
            none = torch.empty(0, dtype=torch.long, device=self.device)
            # Block 1 has written here before.
            cache.call_state.rows_A, cache.call_state.places = None, WritePositions(none, none, none)
            try:
                cache.windows[start, end] = replace(self._record(cache, start, end), is_first=False)
            finally:
                cache.call_state.places = None
        window: HostedStep = cache.windows[start, end]
        return window

    def block(
        self,
        block: int,
        hidden: Tensor,
        context: HostedStep,
        rows_A: Tensor | None = None,
        places: HostedPlaces | None = None,
        exited_BD: Tensor | None = None,
    ) -> Tensor:
        """Run decoder block ``block`` (1..L), and write its keys and values; arguments and result as in `Engine.block`.

        ``exited_BD`` must be None: this engine does not fill keys and values of rows that do not run.
        """
        assert exited_BD is None, "the modules of transformers know no keys and values without queries"
        if places is not None:
            return self._at_places(block, hidden, rows_A, places)
        if block == 1 and context.is_first:  # it ran as the step began
            first_BTD = context.recorded.first_BTD
            assert first_BTD is not None, "recorded"
            return (first_BTD if rows_A is None else first_BTD.index_select(0, rows_A)).reshape(hidden.shape)
        hidden_ATD = hidden if hidden.dim() == 3 else hidden[:, None]
        return self._to_first_device(self._run(block, hidden_ATD, context, rows_A).reshape(hidden.shape))

    def _run(
        self,
        block: int,
        hidden_ATD: Tensor,
        step: HostedStep,
        rows_A: Tensor | None,
        writing: WritePositions | None = None,
    ) -> Tensor:
        args, kwargs = step.recorded.arguments_of(block, rows_A, self.calls.batch_axes)
        call_state = step.cache.call_state
        call_state.rows_A, call_state.places = rows_A, writing
        step.cache.layers[block - 1].length = step.start
        try:
            return state_of(self.calls.blocks[block - 1].run(hidden_ATD, *args, **kwargs))
        finally:
            call_state.rows_A = call_state.places = None

    def _to_first_device(self, states: Tensor) -> Tensor:
        """Return states on the model's first device, where gates and LM head run."""
        return states.to(self.device) if self._is_spread else states

    def _at_places(self, block: int, hidden_ATD: Tensor, rows_A: Tensor | None, places: HostedPlaces) -> Tensor:
        index_ATD = places.slots_AT[..., None].expand_as(hidden_ATD)
        window_ATD = self._windowed(hidden_ATD, index_ATD, places.step)
        ran_ATD = self._to_first_device(self._run(block, window_ATD, places.step, rows_A, places.writing))
        return ran_ATD.gather(1, index_ATD)

    def _windowed(self, hidden_ATD: Tensor, index_ATD: Tensor, step: HostedStep) -> Tensor:
        """Return states for every position of a window (a range of cache positions), [A, window length, D].

        Each row's states are at the indices ``index_ATD`` within the window. Its other positions hold a copy of the
        row's newest state; what a block computes from them is ignored.
        """
        return hidden_ATD[:, -1:].repeat(1, step.width, 1).scatter(1, index_ATD, hidden_ATD)

    # ----------------------------------------------------------- skipped blocks

    def fill(self, skipped: Sequence[Skipped], context: HostedStep) -> None:
        """Write keys and values of skipped blocks at the step's position, projected from exit states.

        ``skipped`` has, for each exit layer in ascending order: its block, and exit states [A, D] and indices of the
        rows that exited there (None: all rows).
        """
        if len(skipped) == 1 and skipped[0][2] is None:  # all rows at once: no gathering, no scattering
            exit_layer, hidden_BD, _ = skipped[0]
            for block in range(exit_layer + 1, self.n_blocks + 1):
                self._store(block, hidden_BD[:, None], context, None)
            return
        every_row = torch.arange(context.cache.n_rows, device=self.device)
        rows_N = torch.cat([every_row if rows_A is None else rows_A for *_, rows_A in skipped])
        states_N1D = torch.cat([hidden_AD for _, hidden_AD, _ in skipped])[:, None]
        n, running_N = 0, rows_N
        for block in range(skipped[0][0] + 1, self.n_blocks + 1):
            n_left = sum(len(hidden_AD) for exit_layer, hidden_AD, _ in skipped if exit_layer < block)
            if n_left != n:
                n, running_N = n_left, rows_N[:n_left]
            self._store(block, states_N1D[:n], context, running_N)

    def project(self, block: int, states_ND: Tensor, rows_N: Tensor, places_N: Tensor, cache: HostedCache) -> None:
        """Project states to keys and values of one block, and write them to the cache; the block runs no further.

        State n of ``states_ND`` is written at cache position ``places_N[n]`` of batch row ``rows_N[n]``.
        """
        rows_A, running_N = torch.unique(rows_N, return_inverse=True)
        window = self._window(cache, int(places_N.min()), int(places_N.max()) + 1)
        window_ATD = states_ND.new_zeros(len(rows_A), window.width, self.d_model)
        window_ATD[running_N, places_N - window.start] = states_ND
        self._store(block, window_ATD, window, rows_A, WritePositions(rows_N, running_N, places_N))

    def _store(
        self,
        block: int,
        states_ATD: Tensor,
        step: HostedStep,
        rows_A: Tensor | None,
        writing: WritePositions | None = None,
    ) -> None:
        """Run a block on input states only until it has stored the keys and values that it computes from them.

        ``rows_A`` are the batch rows of the states (None: all). ``writing`` limits the positions that are written.
        """
        step.cache.call_state.only_stores = self.calls.only_stores = True
        try:
            self._run(block, states_ATD, step, rows_A, writing)
        except StopAfterStore:
            return
        finally:
            step.cache.call_state.only_stores = self.calls.only_stores = False
        raise RuntimeError(f"block {block} keeps no keys and values")

    # --------------------------------------------------------------------- cost

    def block_cost(self, place: TokenPlace) -> Cost:
        """Return the cost of one decoder block for one token at ``place``, averaged over blocks.

        It follows from FLOPs that were counted when the model was loaded (`hosted.proof.prove`).
        """
        work = self.work
        of_keys = work.flops_per_key * place.context + work.flops_per_source * place.source
        read = work.weights + 2 * self.kv_width * (place.context + (place.source if work.flops_per_source else 0))
        return Cost(matmul_flops=2 * work.weights + of_keys, read_numel=read)


def _width(stack: Stack) -> int:
    """Return the width of the decoder's residual stream, D; embeddings may be narrower."""
    config = stack.decoder_config if stack.encoder is not None else stack.config
    return first_int(config, ("hidden_size", "d_model", "n_embd")) or int(stack.head.weight.shape[1])
