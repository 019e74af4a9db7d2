"""States inside blocks equal those that hooks read in transformers, and measures of block pairs a NumPy reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from prompt_decoding import full_depth_tokens
from torch import Tensor

from exitbench.harness.engine.decoding import sublayers as inside_blocks
from exitbench.harness.engine.decoding.probe import teacher_forced
from exitbench.harness.engine.decoding.sublayers import layer_pairs, sublayer_read_outs, sublayer_states


def longest_answer(family: Any, prompts: list[list[int]]) -> tuple[list[int], list[int]]:
    """Return the prompt with the longest greedy answer, and this answer."""
    outputs = full_depth_tokens(family.checkpoint, prompts, 9)
    return max(zip(prompts, outputs, strict=True), key=lambda pair: len(pair[1]))


def hooked_blocks(family: Any) -> list[dict[str, Any]]:
    """Return for each block and part a module, and whether the part's state is the module's input or output."""
    blocks = family.reference_blocks
    if family.is_seq2seq:
        return [
            {
                "self-attention": (block.layer[0].SelfAttention, "out"),
                "after-self-attention": (block.layer[1], "in"),
                "cross-attention": (block.layer[1].EncDecAttention, "out"),
                "after-attention": (block.layer[2], "in"),
                "feed-forward": (block.layer[2].DenseReluDense, "out"),
                "block": (block, "out"),
            }
            for block in blocks
        ]
    gpt2 = hasattr(family.reference, "transformer")
    if hasattr(blocks[0], "post_feedforward_layernorm"):  # what is added has been normed
        return [
            {
                "self-attention": (block.post_attention_layernorm, "out"),
                "after-attention": (block.mlp, "in"),
                "feed-forward": (block.post_feedforward_layernorm, "out"),
                "block": (block, "out"),
            }
            for block in blocks
        ]
    return [
        {
            "self-attention": (block.attn if gpt2 else block.self_attn, "out"),
            "after-attention": (block.ln_2 if gpt2 else block.post_attention_layernorm, "in"),
            "feed-forward": (block.mlp, "out"),
            "block": (block, "out"),
        }
        for block in blocks
    ]


def reference_states(family: Any, prompt: list[int], output: list[int]) -> list[dict[str, Tensor]]:
    """Return for each block the states of its parts, [N, D], at the N positions that predict the answer's tokens."""
    results: list[dict[str, Tensor]] = []
    hooks = []
    for modules in hooked_blocks(family):
        results.append(own := dict.fromkeys(modules))
        for part, (module, side) in modules.items():

            def keep(_module: Any, args: Any, out: Any, own: Any = own, part: str = part, side: str = side) -> None:
                state = args[0] if side == "in" else out
                own[part] = (state[0] if isinstance(state, tuple) else state)[0, -len(output) :]

            hooks.append(module.register_forward_hook(keep))
    family.reference_logits(prompt, output)
    for hook in hooks:
        hook.remove()
    return results


def test_sublayer_states_equal_those_read_by_hooks_in_transformers(family: Any, prompts: list[list[int]]) -> None:
    prompt, output = longest_answer(family, prompts[:8])
    model, expected = family.checkpoint.model, reference_states(family, prompt, output)
    fed = teacher_forced(family.checkpoint, [prompt], [output])
    hidden, context = model.embed(fed.tokens_BT, fed.cache)
    for block in range(1, model.n_blocks + 1):
        parts = sublayer_states(model, block, hidden, context)
        assert list(parts) == list(expected[block - 1])
        for part, state in parts.items():
            torch.testing.assert_close(state[fed.predicts_BT], expected[block - 1][part], atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(parts["block"], model.block(block, hidden, context))
        hidden = parts["block"]


def test_sublayer_read_outs_use_the_models_final_norm_and_lm_head(family: Any, prompts: list[list[int]]) -> None:
    prompt, output = longest_answer(family, prompts[:8])
    expected = reference_states(family, prompt, output)
    read_outs = list(sublayer_read_outs(family.checkpoint, prompt, output))
    assert [(r.block, r.part) for r in read_outs] == [(b, p) for b, parts in enumerate(expected, 1) for p in parts]
    for read_out in read_outs:
        logits = family.reference_read_out(expected[read_out.block - 1][read_out.part])
        p_NV = torch.softmax(logits.double(), dim=-1).numpy()
        ids = np.argsort(-p_NV, axis=-1)[:, : inside_blocks.KEPT]
        np.testing.assert_allclose(read_out.top_p_NK, np.take_along_axis(p_NV, ids, -1), atol=1e-5)
        np.testing.assert_allclose(np.take_along_axis(p_NV, read_out.top_ids_NK, -1), read_out.top_p_NK, atol=1e-5)
        np.testing.assert_allclose(read_out.entropy_N, -(p_NV * np.log(p_NV)).sum(-1), atol=1e-4)


@pytest.mark.parametrize("budget", [1, 2**28])
def test_block_pair_measures_equal_means_over_the_tokens(
    family: Any, prompts: list[list[int]], budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside_blocks, "LOGITS_BUDGET_BYTES", budget)
    prompt, output = longest_answer(family, prompts[:8])
    states = [parts["block"] for parts in reference_states(family, prompt, output)]
    normed = [family.reference_normed(state).double().numpy() for state in states]
    p = [torch.softmax(family.reference_read_out(state).double(), dim=-1).numpy() for state in states]
    found_cosine, found_jsd = layer_pairs(family.checkpoint, prompt, output)
    for a in range(len(states)):
        for b in range(len(states)):
            cosines, divergences = [], []
            for u, v, pu, pv in zip(normed[a], normed[b], p[a], p[b], strict=True):
                cosines.append(u @ v / np.linalg.norm(u) / np.linalg.norm(v))
                m = (pu + pv) / 2
                divergences.append(((pu * np.log(pu / m)).sum() + (pv * np.log(pv / m)).sum()) / 2)
            np.testing.assert_allclose(found_cosine[a, b], np.mean(cosines), atol=1e-5)
            np.testing.assert_allclose(found_jsd[a, b], np.mean(divergences), atol=1e-5)
