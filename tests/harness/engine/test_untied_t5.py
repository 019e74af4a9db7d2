"""T5 v1.1 and Flan checkpoints have a separate, unscaled LM head. transformers 5 itself would save it tied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Request
from exitbench.methods.registry import baseline_method


def test_separate_lm_head_in_the_file_is_used(twin: Callable[[str], Any], tmp_path: Path) -> None:
    source = twin("t5-gated-untied").folder
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    tensors = load_file(source / "model.safetensors")
    shared = tensors["shared.weight"]
    tensors["lm_head.weight"] = torch.randn(shared.shape, generator=torch.Generator().manual_seed(3)) * 0.3
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"tie_word_embeddings": true', '"tie_word_embeddings": false'))
    assert '"tie_word_embeddings": false' in (tmp_path / "config.json").read_text()

    reference = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert not torch.equal(reference.lm_head.weight, reference.shared.weight)
    checkpoint = load_checkpoint(tmp_path)
    prompts = [[5, 9, 30, 44], [12, 8]]
    parts = baseline_method()().parts(checkpoint.model.n_blocks)
    result = decode(checkpoint, prefill(checkpoint.model, [Request(prompt) for prompt in prompts], 10), parts)
    for prompt, generation in zip(prompts, result, strict=True):
        generated = reference.generate(torch.tensor([prompt]), max_new_tokens=10, do_sample=False, use_cache=False)
        assert generation.token_ids == generated[0, 1:].tolist()
