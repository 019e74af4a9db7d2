"""Blocks of a model on several devices: placement, and that no tensors of different devices are combined."""

from __future__ import annotations

import importlib
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.engine.hosted.stack import assign_blocks, modules_on

GIB = 2**30


def test_two_devices_decode_as_one_without_mixing_their_tensors(twin: Any) -> None:
    """The module two_devices.py fakes two devices, and tries each way in which gates and KV policies skip blocks."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as fork:
        for name in ("llama", "t5"):
            ways = fork.submit(ways_on_two_devices, twin(name).folder).result()
            assert {"full", "saturation", "state-copy", "recompute-backlog", "scored"} <= ways


def ways_on_two_devices(folder: Path) -> set[str]:
    ways: set[str] = importlib.import_module("two_devices").compare(folder)
    return ways


def test_all_modules_but_the_later_blocks_are_on_the_first_device(twin: Any) -> None:
    stack = twin("t5").hosted.model.stack
    places = modules_on(stack.lm, stack.blocks, (("cuda:0", 2), ("cuda:1", 3)))
    assert {name for name, device in places.items() if device == "cuda:1"} == {f"decoder.block.{n}" for n in (2, 3, 4)}
    assert {places[name] for name in ("encoder", "decoder.block.0", "decoder.final_layer_norm", "lm_head")} == {
        "cuda:0"
    }
    covered = [name for name, _ in stack.lm.named_parameters() if any(name.startswith(place) for place in places)]
    assert covered == [name for name, _ in stack.lm.named_parameters()]


@pytest.mark.parametrize(
    ("rest", "room", "expected"),
    [
        (0, {"cuda:0": GIB, "cuda:1": GIB}, (("cuda:0", 16), ("cuda:1", 16))),
        (GIB // 2, {"cuda:0": GIB, "cuda:1": GIB}, (("cuda:0", 11), ("cuda:1", 21))),
        (0, {"cuda:0": GIB}, (("cuda:0", 32),)),
        (GIB, {"cuda:0": GIB, "cuda:1": GIB}, (("cuda:0", 1), ("cuda:1", 31))),
        (0, {"cuda:0": 3 * GIB, "cuda:1": GIB, "cuda:2": 4 * GIB}, (("cuda:0", 12), ("cuda:1", 4), ("cuda:2", 16))),
    ],
)
def test_blocks_are_assigned_in_proportion_to_free_memory(rest: int, room: dict[str, int], expected: Any) -> None:
    assert assign_blocks(32, rest, room) == expected


def test_first_device_gets_at_least_one_block() -> None:
    assert assign_blocks(2, 2 * GIB, {"cuda:0": GIB, "cuda:1": GIB}) == (("cuda:0", 1), ("cuda:1", 1))


def test_device_map_of_another_depth_is_refused(twin: Any) -> None:
    with pytest.raises(UserError, match="device_map has 4 blocks; allowed: 5, those of the model"):
        load_checkpoint(twin("llama").folder, device_map=(("cpu", 4),))
