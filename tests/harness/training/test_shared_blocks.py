"""Blocks that share their weights at first: equal to one module before training, and independent afterwards."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_families import BLOCKS, t5
from torch import Tensor, nn

from exitbench.errors import UserError
from exitbench.harness.training import ensure_trained, load_recipe
from exitbench.harness.training.block_states import decoder_blocks
from exitbench.harness.training.trainer import SharedBlocks


def model() -> Any:
    torch.manual_seed(0)
    return t5()


def one_module(model: Any) -> Any:
    """Make blocks 2 to L one module, as the slow reference of blocks with shared weights; return the model."""
    blocks = decoder_blocks(model)
    for i in range(2, BLOCKS):
        blocks[i] = blocks[1]
    return model


def learn(model: Any, steps: int, shared: SharedBlocks | None) -> list[float]:
    """Train with AdamW on one fixed batch; return the loss of each step."""
    ids = torch.arange(2, 26).view(3, 8)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(steps):
        loss = model(input_ids=ids, labels=ids.flip(1), use_cache=False).loss
        loss.backward()
        if shared is not None:
            shared.gather_gradients()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if shared is not None:
            shared.spread_weights()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_shared_blocks_train_like_one_module() -> None:
    ours = model()
    shared = SharedBlocks(ours)
    shared.spread_weights()
    assert learn(ours, 8, shared) == pytest.approx(learn(one_module(model()), 8, None), rel=1e-4)


def test_unshared_blocks_train_differently_from_one_module() -> None:
    ours = model()
    SharedBlocks(ours).spread_weights()
    assert learn(ours, 8, None)[-1] != pytest.approx(learn(one_module(model()), 8, None)[-1], rel=1e-3)


def test_sharing_blocks_of_different_shapes_is_refused() -> None:
    ours = model()
    ours.decoder.block[2].layer[2].DenseReluDense.wi = nn.Linear(16, 8, bias=False)
    with pytest.raises(UserError, match="different shapes"):
        SharedBlocks(ours)


def blocks_of(folder: Path) -> list[dict[str, Tensor]]:
    """Weights of each decoder block of a checkpoint."""
    weights = load_file(folder / "model.safetensors")
    prefixes = [f"decoder.block.{i}." for i in range(3)]
    return [
        {n.removeprefix(p): w for n, w in weights.items() if n.startswith(p) and "relative" not in n} for p in prefixes
    ]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("shared_steps", "equal"), [(8, True), (7, False), (0, False)])
def test_training_shares_block_weights_for_shared_steps(
    write_recipe: Callable[..., Path], data_dir: Path, shared_steps: int, equal: bool
) -> None:
    recipe = load_recipe(write_recipe(("steps = 40", f"steps = 8\nshared_steps = {shared_steps}\nclip_norm = 2.0")))
    first, second, third = blocks_of(ensure_trained(recipe, data_dir / "models", data_dir))
    assert same(second, third) == equal
    assert not same(first, second)
