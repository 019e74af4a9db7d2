"""The probe against a slow reference: one token at a time, from transformers' own states, in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from prompt_decoding import full_depth_tokens

from exitbench.harness.engine.decoding import probe as probe_module
from exitbench.harness.engine.decoding.probe import probe
from exitbench.harness.engine.decoding.signals import STRETCH, _three_largest, jensen_shannon

N_NEW = 9


def raw_states(family: Any, prompt: list[int], output: list[int]) -> np.ndarray:
    """Return the states after embedding and blocks, [L+1, N, D], at the positions that predict the answer's tokens."""
    blocks = family.reference_blocks
    states: list[torch.Tensor] = []
    hooks = [blocks[0].register_forward_pre_hook(lambda module, args: states.append(args[0]))]
    for block in blocks:
        hooks.append(
            block.register_forward_hook(
                lambda module, args, out: states.append(out[0] if isinstance(out, tuple) else out)
            )
        )
    family.reference_logits(prompt, output)
    for hook in hooks:
        hook.remove()
    return torch.stack([state[0, -len(output) :] for state in states]).numpy().astype(np.float64)


def read_out(family: Any, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the final-normed state and the logits of one state, computed by transformers' norm and LM head."""
    hidden = torch.tensor(state, dtype=torch.float32)
    return family.reference_normed(hidden).double().numpy(), family.reference_read_out(hidden).double().numpy()


def softmax(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(logits - logits.max())
    return shares / shares.sum()


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    m = (p + q) / 2
    return float((p * np.log(p / m)).sum() / 2 + (q * np.log(q / m)).sum() / 2)


def expected(family: Any, states_LD: np.ndarray) -> dict[str, Any]:
    """Return all columns of the probe for one token, computed from their definitions."""
    normed, logits = zip(*(read_out(family, state) for state in states_LD), strict=True)
    p = [softmax(values) for values in logits]
    depth = len(states_LD) - 1
    top1 = [int(values.argmax()) for values in logits[1:]]
    final = top1[-1]
    agrees = [choice == final for choice in top1]
    ordered = [np.sort(shares)[::-1] for shares in p[1:]]
    p_final = [float(shares[final]) for shares in p[1:]]
    s = [cosine(normed[block], normed[depth]) for block in range(1, depth + 1)]
    return {
        "full_token_id": final,
        "monotone_from": 1 + max((k for k in range(1, depth) if p_final[k] < p_final[k - 1]), default=0),
        "nearly_monotone_from": 1
        + max((k for k in range(1, depth) if p_final[k - 1] - min(p_final[k:]) > 0.01), default=0),
        "nearly_grows_from": 1 + max((k for k in range(1, depth - 1) if s[k - 1] - min(s[k:-1]) > 0.01), default=0),
        "tolerance": 0.01,
        "first_similar": next((k for k in range(1, depth) if s[k - 1] >= 0.9), depth),
        "similar_blocks": sum(value >= 0.9 for value in s[:-1]),
        "grows_from": 1 + max((k for k in range(1, depth - 1) if s[k] <= s[k - 1]), default=0),
        "first_match": 1 + agrees.index(True),
        "stable_from": next(block for block in range(1, depth + 1) if all(agrees[block - 1 :])),
        "top1_id": top1,
        "p1": [shares[0] for shares in ordered],
        "p2": [shares[1] for shares in ordered],
        "p3": [shares[2] for shares in ordered],
        "top2_id": [int(np.argsort(-shares)[1]) for shares in p[1:]],
        "top3_id": [int(np.argsort(-shares)[2]) for shares in p[1:]],
        "p_final": [shares[final] for shares in p[1:]],
        "rank_final": [1 + int((values > values[final]).sum()) for values in logits[1:]],
        "entropy": [float(-(shares * np.log(shares)).sum()) for shares in p[1:]],
        "logsumexp": [float(np.log(np.exp(values - values.max()).sum()) + values.max()) for values in logits[1:]],
        "cosine_previous": [cosine(states_LD[block - 1], states_LD[block]) for block in range(1, depth + 1)],
        "cosine_previous_normed": [cosine(normed[block - 1], normed[block]) for block in range(1, depth + 1)],
        "cosine_last": [cosine(normed[block], normed[depth]) for block in range(1, depth + 1)],
        "jsd_previous": [divergence(p[block - 1], p[block]) for block in range(1, depth + 1)],
        "jsd_last": [divergence(p[block], p[depth]) for block in range(1, depth + 1)],
    }


def test_every_signal_of_every_token_equals_the_slow_reference(family: Any, prompts: list[list[int]]) -> None:
    some = prompts[:12]
    outputs = full_depth_tokens(family.checkpoint, some, N_NEW)
    assert len({len(output) for output in outputs}) > 1, "rows of different length are what padding can break"
    signals = probe(family.checkpoint, some, outputs)
    token = 0
    for prompt, output in zip(some, outputs, strict=True):
        states = raw_states(family, prompt, output)
        for position in range(len(output)):
            for name, value in expected(family, states[:, position]).items():
                np.testing.assert_allclose(
                    signals[name][token], value, atol=2e-4, rtol=2e-4, err_msg=f"{name} of token {token}"
                )
            token += 1
    assert all(len(values) == token for values in signals.values())
    assert signals["full_token_id"].tolist() == [token_id for output in outputs for token_id in output]


def test_chunk_size_does_not_change_signals(
    family: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = full_depth_tokens(family.checkpoint, prompts[:5], N_NEW)
    whole = probe(family.checkpoint, prompts[:5], outputs)
    monkeypatch.setattr(probe_module, "LOGITS_BUDGET_BYTES", 1)
    token_by_token = probe(family.checkpoint, prompts[:5], outputs)
    for name, values in whole.items():
        np.testing.assert_allclose(token_by_token[name], values, atol=1e-5, err_msg=name)


def test_tied_logits_rank_the_lowest_id_first_and_no_id_twice() -> None:
    logits_LNV = torch.zeros(2, 1, 3 * STRETCH + 1)
    logits_LNV[1, 0, [7, 9, 3]] = 5.0
    logits_LNV[1, 0, 2 * STRETCH + 5] = 5.0
    largest, ids = _three_largest(logits_LNV)
    assert (largest == torch.tensor([[[0.0] * 3], [[5.0] * 3]])).all()
    assert ids[:, 0, 0].tolist() == [0, 3]
    assert all(len(set(row.tolist())) == 3 for row in ids[:, 0])


def test_jensen_shannon_is_near_0_for_equal_and_at_most_ln_2_for_disjoint_distributions() -> None:
    p = torch.softmax(torch.randn(50, 400, generator=torch.Generator().manual_seed(0)) * 5, dim=-1)
    entropy = -(p * p.log()).sum(-1)
    equal = jensen_shannon(p, p, entropy, entropy)
    assert ((equal >= 0) & (equal < 1e-6)).all()
    one, other = torch.eye(2), torch.eye(2).flip(0)
    nothing = torch.zeros(2)
    torch.testing.assert_close(jensen_shannon(one, other, nothing, nothing), torch.full((2,), math.log(2.0)))
    assert (jensen_shannon(one, other, nothing - 0.1, nothing) <= math.log(2.0)).all()
