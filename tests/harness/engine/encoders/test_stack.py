"""Encoders run block by block: outputs equal transformers' own forward pass, whichever texts exit early."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from exitbench.errors import UserError
from exitbench.harness.engine.encoders.stack import find_encoder_stack

Classifier = Callable[..., Any]
Batch = tuple[Tensor, Tensor]
N_BLOCKS = 4
FAMILIES = (
    *("bert", "roberta", "albert", "albert-groups", "electra", "distilbert", "deberta-v2"),
    *("modernbert", "modernbert-mean"),
)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_remaining_rows_equal_the_plain_forward_pass(
    name: str, classifier: Classifier, padded_batch: Batch
) -> None:
    lm = classifier(name)
    ids_BT, mask_BT = padded_batch
    expected_BC = lm(input_ids=ids_BT, attention_mask=mask_BT).logits
    stack = find_encoder_stack(lm)
    hidden, context = stack.embed(ids_BT, mask_BT)
    rows = torch.arange(5)
    for block in range(1, N_BLOCKS + 1):
        hidden = stack.block(block, hidden, context)
        if block < N_BLOCKS:  # one row leaves after each block
            kept = torch.arange(1, len(rows))
            hidden, context, rows = hidden[kept], context.take(kept), rows[kept]
    torch.testing.assert_close(stack.classify(stack.pooled(hidden, context)), expected_BC[rows], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_states_after_each_block_equal_the_plain_forward_pass(
    name: str, classifier: Classifier, padded_batch: Batch
) -> None:
    lm = classifier(name)
    ids_BT, mask_BT = padded_batch
    expected = lm(input_ids=ids_BT, attention_mask=mask_BT, output_hidden_states=True).hidden_states
    stack = find_encoder_stack(lm)
    hidden, context = stack.embed(ids_BT, mask_BT)
    seen, per_block = mask_BT.bool(), getattr(lm.config, "inner_group_num", 1)
    for block in range(1, N_BLOCKS):  # what transformers calls the last state is behind the final norm of some
        hidden = stack.block(block, hidden, context)
        torch.testing.assert_close(hidden[seen], expected[per_block * block][seen], atol=1e-5, rtol=0)


def test_shared_block_is_counted_once_per_call(classifier: Classifier) -> None:
    stack = find_encoder_stack(classifier("albert"))
    assert (len(stack.modules), stack.n_blocks) == (1, N_BLOCKS)


def test_logits_with_token_type_ids_equal_the_plain_forward_pass(classifier: Classifier, padded_batch: Batch) -> None:
    lm = classifier("bert")
    ids_BT, mask_BT = padded_batch
    types_BT = torch.zeros_like(ids_BT)
    types_BT[:, 2:] = 1
    stack = find_encoder_stack(lm)
    hidden, context = stack.embed(ids_BT, mask_BT, types_BT)
    for block in range(1, N_BLOCKS + 1):
        hidden = stack.block(block, hidden, context)
    expected_BC = lm(input_ids=ids_BT, attention_mask=mask_BT, token_type_ids=types_BT).logits
    torch.testing.assert_close(stack.classify(stack.pooled(hidden, context)), expected_BC, atol=1e-5, rtol=0)
    assert not torch.allclose(expected_BC, lm(input_ids=ids_BT, attention_mask=mask_BT).logits, atol=1e-4)


def test_finding_the_stack_and_embedding_do_not_change_the_model(classifier: Classifier, padded_batch: Batch) -> None:
    lm = classifier("bert")
    ids_BT, mask_BT = padded_batch
    before = lm(input_ids=ids_BT, attention_mask=mask_BT).logits
    find_encoder_stack(lm).embed(ids_BT, mask_BT)
    assert torch.equal(lm(input_ids=ids_BT, attention_mask=mask_BT).logits, before)


def test_gradients_flow_through_executed_blocks_only(classifier: Classifier, padded_batch: Batch) -> None:
    lm = classifier("bert").requires_grad_(True)
    stack = find_encoder_stack(lm)
    with torch.enable_grad():
        hidden, context = stack.embed(*padded_batch)
        for block in (1, 2):
            hidden = stack.block(block, hidden, context)
        stack.classify(stack.pooled(hidden, context)).sum().backward()
    grads = {block: next(stack.modules[block - 1].parameters()).grad for block in (1, 2, 3)}
    assert grads[1] is not None and grads[2] is not None and grads[3] is None


@pytest.mark.parametrize(("option", "value"), [("conv_kernel_size", 3), ("z_steps", 2)])
def test_deberta_options_that_act_between_blocks_are_refused(option: str, value: int, classifier: Classifier) -> None:
    lm = classifier("deberta-v2")
    setattr(lm.config, option, value)
    with pytest.raises(UserError, match=f"{option} is {value}; allowed"):
        find_encoder_stack(lm)
