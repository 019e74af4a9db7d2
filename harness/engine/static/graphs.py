"""CUDA graphs: many kernel launches captured once, replayed as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

WARM_UP = 3
"""Runs before a capture, as torch's notes on CUDA graphs ask: libraries set themselves up in them."""


class Graphs:
    """Captures work into graphs that share one pool of memory.

    Sharing is safe in any order of replays, because work hands nothing on but through memory from outside the pool.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """Run the work a few times, capture it, and return what replays it on the current stream."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UP):
                work()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        return graph.replay


@contextmanager
def refusing_to_wait(device: torch.device) -> Iterator[None]:
    """Within, what makes the host wait for a GPU raises RuntimeError (as far as torch notices)."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
