"""Set-up for `gpu.py`: models on a device, and interleaved timing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from models import LARGE, SHAPES, SMOLLM2, Pair, Shape
from ratios import Comparison, Timed, rounds_within

from exitbench.harness.engine.checkpoints.families import FAMILIES
from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.engine.checkpoints.tensor_files import Tensors
from exitbench.harness.engine.model import model
from exitbench.harness.engine.model.graphs import DEVICES
from exitbench.harness.engine.model.model import Transformer
from exitbench.methods.base import Parts

TINY = dict(vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_heads=4, num_layers=2, num_decoder_layers=6)
LLAMA_7B = dict(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=11008,
    num_attention_heads=32,
    num_key_value_heads=32,
    num_hidden_layers=32,
)
LLAMA_1B = dict(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_attention_heads=32,
    num_key_value_heads=8,
    num_hidden_layers=16,
)
TINY_LLAMA = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_hidden_layers=6,
)
SHAPES |= {
    "t5-large-random": Shape("t5", 32, {**LARGE, "num_layers": 24}),
    "t5-tiny-random": Shape("t5", 4, TINY),
    "smollm2-135m-random": Shape("llama", 64, SMOLLM2),
    "llama-1b-random": Shape("llama", 64, LLAMA_1B),
    "llama-7b-random": Shape("llama", 64, LLAMA_7B),
    "llama-tiny-random": Shape("llama", 4, TINY_LLAMA),
}


@dataclass
class Setting:
    """Device, time limit, and result of the check against the CPU.

    Attributes:
        device: ``cuda`` or ``cpu``.
        quick: Tiny shapes and few repetitions, to test the script itself.
        folder: Folder for models.
        ends_at: Deadline, on the clock of `time.monotonic`.
        is_wrong: Answers differ from the CPU's: then nothing is timed.
    """

    device: str
    quick: bool
    folder: Path
    ends_at: float
    is_wrong: bool = False
    _t5: dict[torch.dtype, OnDevice] = field(default_factory=dict)
    _decoders: dict[str, OnDevice] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    def left_s(self) -> float:
        return self.ends_at - time.monotonic()

    def goal(self, value: float) -> dict[str, float]:
        """Return a goal of at least `value` on a GPU, and none on a CPU."""
        return {"at_least": value} if self.on_gpu else {}

    def t5(self, dtype: torch.dtype) -> OnDevice:
        """Return a model of T5-large's shape, with the same random weights in every number format."""
        label = "t5-tiny-random" if self.quick else "t5-large-random"
        folder = self.folder / label
        if not self._t5:
            with torch.device(self.device):
                Pair(label, folder)
        if dtype not in self._t5:
            self._t5[dtype] = OnDevice(label, folder, self, dtype)
        return self._t5[dtype]

    def decoder(self, label: str) -> OnDevice:
        """Return a decoder-only model in bf16, with random weights generated and saved in bf16."""
        if label not in self._decoders:
            default = torch.get_default_dtype()
            torch.set_default_dtype(torch.bfloat16)
            try:
                with torch.device(self.device):
                    Pair(label, self.folder / label)
            finally:
                torch.set_default_dtype(default)
            self._decoders[label] = OnDevice(label, self.folder / label, self, torch.bfloat16)
        return self._decoders[label]

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def in_turn(self, base: Timed, measured: Timed) -> Comparison:
        """Time two actions in turn, beginning and ending with the base."""
        budget_s = 0.05 if self.quick else 3.0
        for action in (base, measured):
            action.once()  # warm-up
        base_s, measured_s = [], []
        for _ in range(rounds_within(budget_s, base, measured)):
            base_s.append(base.seconds())
            measured_s.append(measured.seconds())
        return Comparison([*base_s, base.seconds()], measured_s)


class OnDevice(Pair):
    """Model of a `Pair`, loaded in a number format onto a device."""

    def __init__(self, label: str, folder: Path, setting: Setting, dtype: torch.dtype) -> None:
        self.label, self.shape, self.folder, self.setting, self.dtype = label, SHAPES[label], folder, setting, dtype

    @cached_property
    def reference(self) -> Any:
        model = self._model_class.from_pretrained(self.folder, dtype=self.dtype)
        return model.to(self.setting.device).eval()

    @cached_property
    def checkpoint(self) -> Checkpoint:
        loaded = load_checkpoint(self.folder, self.dtype, self.setting.device)
        return Checkpoint(loaded.model, frozenset(), loaded.start_id)

    def inputs(self, prompts: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        return {name: value.to(self.setting.device) for name, value in super().inputs(prompts).items()}

    def compiled_generate(self, inputs: Mapping[str, torch.Tensor], new_tokens: int) -> list[list[int]]:
        """Return the new tokens of `generate` with a static cache.

        With this cache, transformers compiles the model and uses CUDA graphs.
        """
        output = self.reference.generate(
            **inputs, cache_implementation="static", max_new_tokens=new_tokens, do_sample=False
        )
        answers: list[list[int]] = output[:, -new_tokens:].tolist()
        return answers

    def timed_decoding(
        self, parts: Parts, prompts: Sequence[Sequence[int]], new_tokens: int | None = None, *, captures: bool = True
    ) -> Timed:
        """Return decoding as an action to time, starting from a prefill that has finished on the device.

        `captures` chooses whether blocks are captured as CUDA graphs.
        """
        decoding = self.decoding(parts, prompts, new_tokens)
        devices = DEVICES if captures else frozenset[str]()

        def run(batch: Any) -> Any:
            with patch.object(model, "DEVICES", devices):
                answers = decoding.run(batch)
            self.setting.wait()
            return answers

        def prepare() -> Any:
            batch = decoding.prepare()
            self.setting.wait()
            return batch

        return Timed(run, prepare, decoding.traced)


class Unsaved(OnDevice):
    """Model with random weights generated on the device and never saved."""

    @cached_property
    def checkpoint(self) -> Checkpoint:
        tensors = RandomTensors(self.folder, self.dtype, self.setting.device)
        return Checkpoint(Transformer(*FAMILIES[self.shape.family].read(self._config(), tensors)), frozenset(), None)


class RandomTensors(Tensors):
    """Random tensors in place of a checkpoint's."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: str) -> None:
        self.folder, self.dtype, self.device = folder, dtype, device
        self.files: dict[str, Path] = {}

    def __call__(self, name: str, *shape: int) -> torch.Tensor:
        if len(shape) == 1:  # weight of a norm
            return torch.ones(shape, dtype=self.dtype, device=self.device)
        return torch.randn(shape, dtype=self.dtype, device=self.device).mul_(0.02)


ExtraInfo = Mapping[str, Any]
Line = tuple[str, ExtraInfo]
"""Name of a result and its extra info as in goals.py; ``check`` is true if missing the goal is an error."""
