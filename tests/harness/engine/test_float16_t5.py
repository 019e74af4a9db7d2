"""T5-like models in float16: both engines compute what transformers computes, with `wo` in fp32 and clamped sums."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from prompt_decoding import decode_prompts, full_depth_tokens
from torch import Tensor

from exitbench.harness.cells.cell import EngineName
from exitbench.harness.engine.checkpoints.exit_head_files import new_exit_heads, save_exit_heads
from exitbench.harness.engine.checkpoints.files import EXIT_HEADS_FILE
from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.engine.decoding.probe import states_of
from exitbench.harness.engine.model.exit_heads import KINDS
from exitbench.methods.registry import get_method

FAMILIES = ("t5", "t5-gated-untied", "mt5", "umt5")
VOCABULARY = 100
NEW = 8
LARGEST = torch.finfo(torch.float16).max
OVERFLOWING = {
    "encoder.block.1.layer.1.DenseReluDense.wo": 1e5,
    "decoder.block.3.layer.2.DenseReluDense.wo": 1e5,
    "encoder.block.0.layer.0.SelfAttention.o": 4e4,
    "decoder.block.0.layer.1.EncDecAttention.o": 6e4,
}
"""Factors for projections, by the beginning of their names. Sums of the scaled feed-forward networks overflow float16,
and so does attention in first blocks, whose sums are in float16.
"""


@pytest.fixture(scope="module", params=FAMILIES)
def overflowing(request: pytest.FixtureRequest, twin: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a family's float16 model in transformers, whose weights make states overflow, and its folder."""
    result, folder = twin(request.param), tmp_path_factory.mktemp("overflowing")
    reference = type(result.reference).from_pretrained(result.folder)
    for name, parameter in reference.named_parameters():
        parameter.data *= next((by for start, by in OVERFLOWING.items() if name.startswith(start)), 1.0)
    reference.save_pretrained(folder)
    return type(reference).from_pretrained(folder, dtype=torch.float16).eval().requires_grad_(False), folder


ROWS = 4
ENGINES: tuple[EngineName, ...] = ("lean", "hosted")


@pytest.mark.parametrize("engine", ENGINES)
def test_tokens_and_logits_equal_transformers(overflowing: Any, prompts: Any, engine: Any) -> None:
    reference, folder = overflowing
    checkpoint = load_checkpoint(folder, torch.float16, engine=engine)
    for prompt, answer in zip(prompts, full_depth_tokens(checkpoint, prompts[:ROWS], NEW), strict=False):
        ids = torch.tensor([prompt])
        expected = reference.generate(input_ids=ids, max_new_tokens=NEW, do_sample=False, use_cache=False)
        assert expected[0, 1:].tolist() == answer
        decoder_ids = torch.tensor([[checkpoint.start_id, *answer[:-1]]])
        logits = reference(input_ids=ids, decoder_input_ids=decoder_ids).logits[0]
        of_probe = checkpoint.model.logits(states_of(checkpoint, [prompt], [answer])[-1])
        torch.testing.assert_close(of_probe, logits, atol=0.05 * float(logits.std()), rtol=0.01)


def test_states_overflow_float16_before_and_after_the_first_wo(overflowing: Any, prompts: Any) -> None:
    """Otherwise, the other tests of this file would not test numbers that overflow."""
    reference, _ = overflowing
    seen: dict[str, Tensor] = {}
    hooks = []
    for name in ("encoder.block.0.layer.0", "decoder.block.0.layer.1", "encoder.block.1", "decoder.block.3"):
        module = reference.get_submodule(name)
        hooks.append(module.register_forward_hook(lambda _, __, output, name=name: seen.update({name: output[0]})))
    reference(input_ids=torch.tensor([prompts[0]]), decoder_input_ids=torch.zeros(1, 1, dtype=torch.long))
    for hook in hooks:
        hook.remove()
    assert [states.dtype for states in seen.values()] == [torch.float16, torch.float32] * 2
    assert all(float(states.abs().max()) > LARGEST for states in seen.values())


@pytest.fixture(scope="module", params=["t5", "umt5"])
def on_both_engines(request: pytest.FixtureRequest, twin: Any) -> tuple[Checkpoint, Checkpoint]:
    lean, hosted = (load_checkpoint(twin(request.param).folder, torch.float16, engine=engine) for engine in ENGINES)
    return lean, hosted


@pytest.mark.parametrize("kv_policy", ["state-copy", "recompute-backlog", "sync-parallel"])
def test_early_exits_decode_equally_on_both_engines(on_both_engines: Any, prompts: Any, kv_policy: str) -> None:
    """All code that stores or moves states must handle fp32 states."""
    n_blocks = on_both_engines[0].model.n_blocks
    parts = get_method("random")(mean_exit=3.0, kv_policy=kv_policy).parts(n_blocks)
    ours, theirs = (decode_prompts(checkpoint, prompts[:ROWS], NEW, parts) for checkpoint in on_both_engines)
    assert [(answer.token_ids, answer.exit_layers) for answer in ours] == [
        (answer.token_ids, answer.exit_layers) for answer in theirs
    ]
    assert len({layer for answer in ours for layer in answer.exit_layers}) == n_blocks


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_exit_heads_read_states_in_fp32(twin: Any, tmp_path: Path, engine: EngineName, kind: Any) -> None:
    """The states are too large for float16. Each head has a norm, so their size does not change its logits."""
    shutil.copytree(twin("t5").folder, tmp_path, dirs_exist_ok=True)
    width, ones = twin("t5").reference.config.d_model, torch.ones
    draw = torch.Generator().manual_seed(1)
    of_model = ones(width), None, torch.randn(VOCABULARY, width, generator=draw)
    init: Any = "scratch" if kind == "residual-mlp" else "copy"
    heads = new_exit_heads(kind, (2,), width, VOCABULARY, "rms", init, *of_model, width, generator=draw)
    save_exit_heads(tmp_path / EXIT_HEADS_FILE, kind, heads)
    states = torch.randn(3, width, generator=torch.Generator().manual_seed(0))
    expected = load_checkpoint(tmp_path, torch.float32).model.exit_logits(2, states)
    result = load_checkpoint(tmp_path, torch.float16, engine=engine).model.exit_logits(2, states * 1e5)
    torch.testing.assert_close(result.float(), expected, atol=0.02 * float(expected.std()), rtol=0.02)
