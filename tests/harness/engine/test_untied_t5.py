"""T5 v1.1 and Flan checkpoints have a separate, unscaled LM head. transformers 5 itself would save it tied."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from checkpoint_edits import edit_config, edit_tensors
from prompt_decoding import full_depth_tokens
from torch import Tensor

from exitbench.harness.engine.checkpoints.loading import load_checkpoint


def test_separate_lm_head_in_the_file_is_used(twin: Callable[[str], Any], tmp_path: Path) -> None:
    def untie(tensors: dict[str, Tensor]) -> None:
        shape, draw = tensors["shared.weight"].shape, torch.Generator().manual_seed(3)
        tensors["lm_head.weight"] = torch.randn(shape, generator=draw) * 0.3

    shutil.copytree(twin("t5-gated-untied").folder, tmp_path, dirs_exist_ok=True)
    edit_tensors(tmp_path, untie)
    edit_config(tmp_path, tie_word_embeddings=False)
    reference = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert not torch.equal(reference.lm_head.weight, reference.shared.weight)
    checkpoint = load_checkpoint(tmp_path)
    prompts = [[5, 9, 30, 44], [12, 8]]
    for prompt, token_ids in zip(prompts, full_depth_tokens(checkpoint, prompts, 10), strict=True):
        generated = reference.generate(torch.tensor([prompt]), max_new_tokens=10, do_sample=False, use_cache=False)
        assert token_ids == generated[0, 1:].tolist()
