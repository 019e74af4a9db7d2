"""Whether a method keeps the contracts, tried on a small decoder with random weights.

A short form of the conformance suite in `tests/methods`, quick enough to run whenever methods are listed, and for those
of other distributions too.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from exitbench.harness.checkpoint import Checkpoint
from exitbench.harness.decode import Generation, Request, decode, prefill
from exitbench.harness.exit_heads import ExitHeads, new_exit_heads
from exitbench.harness.model import Transformer
from exitbench.harness.probe import states_of
from exitbench.harness.weights import Architecture, BlockWeights, Linear, Weights
from exitbench.methods.base import FitData, Method, Parts, argmax_token
from exitbench.methods.registry import baseline_method
from exitbench.methods.thresholds import Constant

N_BLOCKS, WIDTH, HEADS, VOCABULARY, MAX_NEW_TOKENS = 6, 16, 2, 40, 6
PROMPTS = [[2 + (7 * row + 3 * place) % 37 for place in range(1 + row % 5)] for row in range(8)]


def verdict(method: Method) -> str:
    """Return ``conforms``, or what is wrong.

    A threshold that never opens is full depth token for token; one that always opens exits at the first block asked,
    but for what verification puts in place of what it rejects; a batch equals its rows one by one; the same seed gives
    the same trace.
    """
    checkpoint = random_checkpoint()
    try:
        parts = _bound(method, checkpoint)
        never = dataclasses.replace(parts, threshold=Constant(math.inf))
        always = dataclasses.replace(parts, threshold=Constant(-math.inf))
        full = _run(checkpoint, baseline_method()().parts(N_BLOCKS), PROMPTS)
        if [g.token_ids for g in _run(checkpoint, never, PROMPTS)] != [g.token_ids for g in full]:
            return "fails: a threshold that never opens changes the answer"
        first = min([*parts.asked(N_BLOCKS), N_BLOCKS])
        made = _run(checkpoint, always, PROMPTS)
        exits = [pair for g in made for pair in zip(g.exit_layers, g.rejected, strict=True)]
        if {layer for layer, rejected in exits if not rejected} - {first}:
            return f"fails: a threshold that always opens does not exit at block {first}"
        together = _run(checkpoint, parts, PROMPTS)
        alone = [_run(checkpoint, parts, [prompt], seed)[0] for seed, prompt in enumerate(PROMPTS)]
        if _traces(together) != _traces(alone):
            return "fails: a batch is not its rows one by one"
        if together != _run(checkpoint, parts, PROMPTS):
            return "fails: the same seed gives another trace"
    except Exception as error:
        return f"fails: {type(error).__name__}: {error}"
    return "conforms"


def random_checkpoint() -> Checkpoint:
    """A small encoder-decoder with exit heads; random weights, so that its answers mean nothing."""
    generator = torch.Generator().manual_seed(3)

    def linear(out: int, width: int) -> Linear:
        return Linear(torch.randn(out, width, generator=generator) * width**-0.5)

    def block() -> BlockWeights:
        qkv, out = linear(3 * WIDTH, WIDTH), linear(WIDTH, WIDTH)
        up, down = linear(2 * WIDTH, WIDTH), linear(WIDTH, 2 * WIDTH)
        cross = (linear(WIDTH, WIDTH), linear(2 * WIDTH, WIDTH), linear(WIDTH, WIDTH))
        return BlockWeights(qkv, out, up, down, *cross)

    arch = Architecture(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        n_heads=HEADS,
        n_kv_heads=HEADS,
        head_dim=WIDTH // HEADS,
        d_ff=2 * WIDTH,
        n_blocks=N_BLOCKS,
        encoder_blocks=1,
        norm="rms",
        norm_eps=1e-6,
        positions="relative",
        activation="relu",
        gated=False,
        attention_scale=1.0,
        relative_buckets=8,
        relative_max_distance=16,
    )
    weights = Weights(
        token_embedding_VD=torch.randn(VOCABULARY, WIDTH, generator=generator),
        lm_head=Linear(torch.randn(VOCABULARY, WIDTH, generator=generator) * 0.6),
        final_norm=Linear(torch.ones(WIDTH)),
        blocks=tuple(block() for _ in range(N_BLOCKS)),
        encoder_blocks=(block(),),
        relative_bias=torch.randn(8, HEADS, generator=generator),
        encoder_relative_bias=torch.randn(8, HEADS, generator=generator),
    )
    blocks = tuple(range(2, N_BLOCKS, 2))
    tensors = new_exit_heads(
        "linear",
        blocks,
        WIDTH,
        VOCABULARY,
        norm="rms",
        init="scratch",
        final_norm_weight=weights.final_norm.weight,
        final_norm_bias=None,
        lm_head_weight=weights.lm_head.weight,
        hidden_width=WIDTH,
        generator=generator,
    )
    model = Transformer(arch, weights, ExitHeads("linear", blocks, tensors))
    return Checkpoint(model, eos_ids=frozenset({1}), start_id=0)


def _bound(method: Method, checkpoint: Checkpoint) -> Parts:
    fitted: dict[str, Tensor] = {}
    model = checkpoint.model
    method = method.bound_to(model.exit_blocks)
    if method.fit_params():
        answers = [[2 + (5 * row + place) % 37 for place in range(MAX_NEW_TOKENS)] for row in range(len(PROMPTS))]
        with torch.no_grad():
            states_LND = states_of(checkpoint, PROMPTS, answers)
            final_N = argmax_token(model.logits(states_LND[-1]))
        gold_N = torch.tensor(answers).flatten()
        document_N = torch.arange(len(PROMPTS)).repeat_interleave(MAX_NEW_TOKENS)
        fitted = method.fit(FitData(model, states_LND, final_N, gold_N, document_N), lambda share: None).tensors
    return method.parts(N_BLOCKS, fitted)


def _run(checkpoint: Checkpoint, parts: Parts, prompts: list[list[int]], first_seed: int = 0) -> list[Generation]:
    requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts, first_seed)]
    return decode(checkpoint, prefill(checkpoint.model, requests, MAX_NEW_TOKENS), parts)


def _traces(generations: list[Generation]) -> list[tuple[list[int], list[int], list[int]]]:
    return [(g.token_ids, g.exit_layers, g.head_rows) for g in generations]
