"""CUDA graphs of decoder blocks: all kernels of a block are launched at once instead of one by one.

On a GPU, launching the kernels of a block for one token per row takes longer than running them. A graph replays them on
the memory that they were captured on. So what differs between steps is copied into buffers first: position, mask and
rotary angles. The keys of all positions are read, and those not written yet are masked. Graphs belong to one batch.
They are used in steps in which all rows run the block; in other steps, the kernels are launched one by one.

Shape suffixes: B rows of the batch, D model width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from exitbench.harness.engine.model.step_context import StepContext

if TYPE_CHECKING:
    from exitbench.harness.engine.model.model import Transformer

DEVICES = frozenset({"cuda"})
"""Types of devices whose blocks are captured."""


class Normed(NamedTuple):
    """Cached output of a block (``hidden``), and its normalised copy (``normed``), for gate, LM head and next block.

    A block's output is never modified in place. A field is None if it is not cached.
    """

    hidden: Tensor | None = None
    normed: Tensor | None = None


def capture(run: Callable[[], Tensor], pool: Any) -> tuple[Tensor, Callable[[], None]]:
    """Capture the CUDA kernels that a function launches, without running them.

    Args:
        run: Function that launches the kernels and returns their result.
        pool: Memory pool, as returned by `new_pool`.

    Returns:
        The function's result tensor, not computed yet; and a function that replays the kernels, which fill this tensor.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # not `torch.cuda.graph`, which empties torch's cache of free memory each time
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            result = run()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return result, graph.replay


def new_pool() -> Any:
    """Return a memory pool that several CUDA graphs can share, if they are replayed one after another."""
    return torch.cuda.graph_pool_handle()


@dataclass(frozen=True)
class _CapturedBlock:
    """CUDA graph of one block, with the fixed buffers that it reads and writes.

    Attributes:
        replay: Function that launches the kernels.
        hidden_BD: Buffer of the block's input.
        normed_BD: Buffer of the normalised input; None if the graph normalises the input itself.
        result: Buffers of the block's output, as computed and normalised.
    """

    replay: Callable[[], None]
    hidden_BD: Tensor
    normed_BD: Tensor | None
    result: Normed


class BlockGraphs:
    """CUDA graphs of the blocks for one batch; a block is captured when it runs for the second time."""

    def __init__(self, step: StepContext) -> None:
        self._place = torch.tensor([step.start], device=step.cache.device)
        self._mask = step.cache.bias_at(step.start)
        self._rotary = None if step.rotary is None else (step.rotary[0].clone(), step.rotary[1].clone())
        self._blocks: dict[int, _CapturedBlock | None] = {}
        self._pool = new_pool()
        # Weights of positions to come are 0, but 0 times what memory happens to hold may be NaN.
        step.cache.self_kv[:, :, :, step.start :] = 0

    def begin(self, step: StepContext) -> None:
        """Begin a step: copy its position, attention mask and rotary angles into the buffers that the graphs read."""
        self._place.fill_(step.start)
        self._mask.copy_(step.cache.bias_at(step.start))
        if self._rotary is not None and step.rotary is not None:
            for buffer, angles in zip(self._rotary, step.rotary, strict=True):
                buffer.copy_(angles)

    def run(self, model: Transformer, block: int, hidden_BD: Tensor, step: StepContext) -> Tensor:
        """Run a block for all rows of the batch; from its second run on, as a CUDA graph.

        Returns the block's output [B, D], which the block's next run overwrites.
        """
        if block not in self._blocks:  # the first run is not captured: libraries allocate what they need
            self._blocks[block] = None
            return model.run_block(block, hidden_BD, step)
        captured = self._blocks[block]
        if captured is None:
            captured = self._blocks[block] = self._captured(model, block, hidden_BD, step)
        if hidden_BD is not captured.hidden_BD:
            captured.hidden_BD.copy_(hidden_BD)
            if captured.normed_BD is not None:
                captured.normed_BD.copy_(model.normalise(hidden_BD))
        captured.replay()
        model.newest = captured.result
        assert captured.result.hidden is not None, "a block has an output"
        return captured.result.hidden

    def _captured(self, model: Transformer, block: int, hidden_BD: Tensor, step: StepContext) -> _CapturedBlock:
        before, normed_BD = self._blocks.get(block - 1), None
        if before is not None and hidden_BD is before.result.hidden:
            normed_BD = before.result.normed
            model.newest = before.result
        else:
            hidden_BD, model.newest = hidden_BD.clone(), Normed()
        buffers = StepContext(step.cache, step.start, None, self._mask, False, self._rotary, place=self._place)
        output_BD, replay = capture(lambda: model.run_block(block, hidden_BD, buffers), self._pool)
        normed = model.newest.normed if model.newest.hidden is output_BD else None
        return _CapturedBlock(replay, hidden_BD, normed_BD, Normed(output_BD, normed))
