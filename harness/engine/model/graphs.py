"""CUDA graphs of the blocks of a batch: a block is launched as a whole instead of kernel by kernel.

On a GPU, launching the kernels of a block for one token per row takes longer than running them. A graph replays them on
the memory that they were captured on. So what differs between steps is copied into buffers first: position, mask and
rotary angles. The keys of all positions are read, and those not written yet are masked. Graphs belong to one batch and
serve steps in which all rows run the block; other calls launch the kernels one by one.

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
    """Output of a block, and the same output normed. Gate, LM head, skipped blocks and the next block read these.

    A block's output is never modified in place.
    """

    hidden: Tensor | None = None
    normed: Tensor | None = None


def capture(run: Callable[[], Tensor], pool: Any) -> tuple[Tensor, Callable[[], None]]:
    """Capture a function's kernels without running them.

    Returns:
        The tensor of the function's result, and a function that replays the kernels, which fill it.
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
    """Return a memory pool for graphs that are replayed one after another."""
    return torch.cuda.graph_pool_handle()


@dataclass(frozen=True)
class _CapturedBlock:
    """A captured block: buffers of its input and of the input's norm (None: computed inside), and its result."""

    replay: Callable[[], None]
    hidden_BD: Tensor
    normed_BD: Tensor | None
    result: Normed


class BlockGraphs:
    """Graphs of a batch's blocks, each captured when the block runs for the second time."""

    def __init__(self, step: StepContext) -> None:
        self._place = torch.tensor([step.start], device=step.cache.device)
        self._mask = step.cache.seen_from_all(step.start)
        self._rotary = None if step.rotary is None else (step.rotary[0].clone(), step.rotary[1].clone())
        self._blocks: dict[int, _CapturedBlock | None] = {}
        self._pool = new_pool()
        # Weights of positions to come are 0, but 0 times what memory happens to hold may be NaN.
        step.cache.self_kv[:, :, :, step.start :] = 0

    def begin(self, step: StepContext) -> None:
        """Copy a step's position, mask and angles into the buffers."""
        self._place.fill_(step.start)
        self._mask.copy_(step.cache.seen_from_all(step.start))
        if self._rotary is not None and step.rotary is not None:
            for buffer, angles in zip(self._rotary, step.rotary, strict=True):
                buffer.copy_(angles)

    def run(self, model: Transformer, block: int, hidden_BD: Tensor, step: StepContext) -> Tensor:
        """Run a block for all rows of the batch; return its output, which the block's next run overwrites."""
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
