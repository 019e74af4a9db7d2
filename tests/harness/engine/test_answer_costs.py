"""Declared work of answers equals the FLOPs counted while they are decoded."""

from __future__ import annotations

from typing import Any

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.model.token_record import full_depth_records
from exitbench.harness.work.generation import answer_costs, answer_costs_by_part
from exitbench.methods.base import Method
from exitbench.methods.calm_softmax import CalmSoftmax
from exitbench.methods.full import Full
from exitbench.methods.static import Static

L = 5
N_NEW = 16
FULL, STATIC, SOFTMAX = Full(), Static(exit_layer=2), CalmSoftmax(threshold=0.05, decay="none")
# Keys of each query head's own (T5, GPT-2), of two, and of all four.
CASES: list[tuple[str, str, Method]] = [
    *((family, "full", method) for family in ("gpt2", "llama", "qwen2-tied") for method in (FULL, STATIC, SOFTMAX)),
    *((family, "full", STATIC) for family in ("mistral", "qwen3", "phi3-partly-rotated", "smollm3", "olmo2")),
    ("llama", "gated", SOFTMAX),
    ("mt5", "gated", STATIC),
    ("t5", "gated", STATIC),
    ("t5-gated-untied", "gated", SOFTMAX),
]


def beginning(made: Generation, n: int) -> Generation:
    """Return the first n tokens of an answer with their trace."""
    return Generation(made.token_ids[:n], made.records[:n], made.stop_reason)


@pytest.mark.parametrize(("name", "first_token", "method"), CASES)
def test_declared_flops_equal_counted_flops_for_answers_of_1_to_16_tokens(
    twin: Any, prompts: Any, name: str, first_token: Any, method: Method
) -> None:
    checkpoint = twin(name).endless
    prompt, parts, counted = prompts[1], method.parts(L), list[int]()
    gates_first = first_token == "gated" and checkpoint.kind == "causal"
    batch = prefill(checkpoint.model, [Request(prompt)], N_NEW, gates_first_token=gates_first)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        (result,) = decode(checkpoint, batch, parts, lambda tokens: counted.append(counter.get_total_flops()) or False)
    assert len(counted) == N_NEW
    assert method.name == "full" or min(result.exit_layers) < L
    answers = [beginning(result, n) for n in range(1, N_NEW + 1)]
    costs = answer_costs(checkpoint, parts, answers, [len(prompt)] * N_NEW, first_token)
    assert [cost.matmul_flops for cost in costs] == pytest.approx(counted, rel=1e-9)
    by_part = answer_costs_by_part(checkpoint, parts, answers, [len(prompt)] * N_NEW, first_token)
    assert [sum(part.matmul_flops for part in parts.values()) for parts in by_part] == pytest.approx(counted, rel=1e-9)


def test_first_token_read_from_the_prefill_costs_one_lm_head_read(twin: Any, prompts: Any) -> None:
    checkpoint = twin("llama").checkpoint
    generation = Generation([7], full_depth_records([7], checkpoint.model))
    (cost,) = answer_costs(checkpoint, Full().parts(L), [generation], [len(prompts[0])], "full")
    assert cost.read_numel == checkpoint.model.vocab_size * checkpoint.model.d_model
    (gated,) = answer_costs(checkpoint, Full().parts(L), [generation], [len(prompts[0])], "gated")
    assert gated.read_numel > cost.read_numel
