"""KV policies: what happens to the keys and values of skipped blocks (methods.md 2)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from exitbench.methods.base import Cost, DecoderCache, KVPolicy, Model


class StateCopy(KVPolicy):
    """Every skipped block projects the exit state to its keys and values, as the token exits (CALM, eager)."""

    name: ClassVar[str] = "state-copy"

    def on_exit(self, cache: DecoderCache, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Fill blocks block+1..L from the exit state."""
        cache.fill_from_state(block, hidden_AD, rows_A)

    def cost(self, model: Model, exit_layer: int) -> Cost:
        """Two projections a skipped block."""
        numel = (model.n_blocks - exit_layer) * 2 * model.kv_width * model.d_model
        return Cost(matmul_flops=2 * numel, read_numel=numel)
