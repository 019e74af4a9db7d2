"""Prompts decoded as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.methods.base import Parts
from exitbench.methods.registry import baseline_method


def decode_prompts(
    checkpoint: Checkpoint, prompts: Sequence[list[int]], max_new_tokens: int, parts: Parts, **options: Any
) -> list[Generation]:
    """Return a method's answers to prompts whose seeds are their rows; options are those of `decode`."""
    requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts)]
    return decode(checkpoint, prefill(checkpoint.model, requests, max_new_tokens), parts, **options)


def full_depth_tokens(checkpoint: Checkpoint, prompts: Sequence[list[int]], max_new_tokens: int) -> list[list[int]]:
    """Return the tokens of the answers at full depth."""
    full = baseline_method()().parts(checkpoint.model.n_blocks)
    return [answer.token_ids for answer in decode_prompts(checkpoint, prompts, max_new_tokens, full)]
