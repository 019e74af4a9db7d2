"""Decodes with blocks on two fake devices: CPU tensors marked with a device, which an operation must not mix.

Here torch has a device type ``twin`` whose tensors contain a CPU tensor. Every operation compares the marks of its
inputs. As on GPUs, it is an error to mix two devices, or a device and the CPU. Moving a tensor changes its mark.
`compare` fails if devices are mixed, if a tensor is on the wrong device, or if results differ from those on one device.
Import this module only in a process of its own, because torch keeps a registered accelerator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from prompt_decoding import decode_prompts
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.engine.decoding.branches import Context
from exitbench.harness.engine.decoding.likelihood import score
from exitbench.harness.engine.decoding.probe import states_of
from exitbench.methods.base import Parts, blocks_from
from exitbench.methods.gates import Scheduled
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import KV_POLICIES
from exitbench.methods.registry import baseline_method, get_method
from exitbench.methods.thresholds import Constant

HOME, AWAY = "twin:0", "twin:1"

_setup_privateuseone_for_python_backend("twin")
torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=...) makes it on the CPU, then moves it


class Marked(torch.Tensor):
    """CPU tensor that claims to be on a fake device."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor, device: torch.device) -> Marked:
        result = torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype, device=device
        )
        result.raw = raw
        return result

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def tolist(self) -> Any:
        """Return the values, as tensors of real devices do."""
        return self.raw.tolist()

    def data_ptr(self) -> int:
        """Return the pointer by which accelerate recognises tied weights."""
        return self.raw.data_ptr()


class Devices(TorchDispatchMode):
    """Mode in which operations on tensors of the fake devices are checked and run."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the CPU and mark its result with the inputs' device.

    Raises:
        RuntimeError: The inputs are on different devices.
    """
    if func.overloadpacket is torch.ops.aten.to:
        with Devices():
            return func.decompose(*args, **kwargs)
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    name, moves = func.overloadpacket.__name__, ("_to_copy", "copy_")
    # As on GPUs, a number of the CPU goes anywhere.
    on = {tensor.device for tensor in tensors if isinstance(tensor, Marked) or tensor.dim()}
    if len(on) > 1 and name not in moves:
        raise RuntimeError(f"{func}: tensors of {sorted(map(str, on))} mix")
    device = tensors[0].device if name in moves else next(iter(on), torch.device("cpu"))
    if kwargs.get("device") is not None:
        device = torch.device(kwargs["device"])
        kwargs = {**kwargs, "device": torch.device("cpu")}
    args, kwargs = _raw(args), {key: _raw(value) for key, value in kwargs.items()}
    known = {id(tensor.raw): tensor for tensor in tensors if isinstance(tensor, Marked)}
    result = func(*args, **kwargs)
    if device.type != "twin":
        return result

    def marked(raw: torch.Tensor) -> torch.Tensor:
        return known[id(raw)] if id(raw) in known else Marked(raw, device)

    return marked(result) if isinstance(result, torch.Tensor) else tree_map_only(torch.Tensor, marked, result)


def _raw(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_raw, value))
    return value.raw if isinstance(value, Marked) else value


def methods(n_rows: int, n_blocks: int) -> dict[str, Parts]:
    """Return full depth, a gate, and fixed exits at different blocks under every KV policy, by name."""
    every = blocks_from(1, n_blocks)
    results = {"full": baseline_method()().parts(n_blocks)}
    results["saturation"] = get_method("calm-saturation").from_params({"threshold": 0.9}).parts(n_blocks)
    for name, policy in KV_POLICIES.items():
        exits = {row: [1 + (row + step) % n_blocks for step in range(4)] for row in range(n_rows)}
        results[name] = Parts(Scheduled(exits), Constant(0.5), LMHead(), policy, every)
    return results


def answers(checkpoint: Any) -> dict[str, Any]:
    """Return the tokens and exit layers of every method, the scores of two choices, and the states of a probe."""
    draw = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 90, (7 - row,), generator=draw).tolist() for row in range(3)]
    results: dict[str, Any] = {}
    for name, parts in methods(len(prompts), checkpoint.model.n_blocks).items():
        if checkpoint.model.why_not(parts, len(prompts)):
            continue
        decoded = decode_prompts(checkpoint, prompts, 4, parts)
        results[name] = [(result.token_ids, result.exit_layers) for result in decoded]
    contexts = [Context(prompts[0], [[5, 6, 7], [8, 9]])]
    scored = score(checkpoint, contexts, methods(1, checkpoint.model.n_blocks)["saturation"])
    results["scored"] = [round(sum(one.logprobs), 3) for of_context in scored for one in of_context]
    results["probed"] = states_of(checkpoint, [prompts[0]], [[5, 6, 7]]).cpu()
    return results


def compare(folder: Path) -> set[str]:
    """Compare a checkpoint on two devices with itself on one, and return the names of the compared answers."""
    alone = answers(load_checkpoint(folder, engine="hosted"))
    with Devices():
        n_blocks = len(alone["probed"]) - 1
        checkpoint = load_checkpoint(folder, device_map=((HOME, 2), (AWAY, n_blocks - 2)))
        where = [{str(weight.device) for weight in block.parameters()} for block in checkpoint.model.stack.blocks]
        assert where == [{HOME}] * 2 + [{AWAY}] * (n_blocks - 2), where
        assert str(checkpoint.model.device) == HOME
        spread = answers(checkpoint)
    torch.testing.assert_close(spread.pop("probed"), alone.pop("probed"))
    assert spread == alone, [(name, spread[name], alone[name]) for name in alone if spread[name] != alone[name]]
    return set(spread)
