"""The states that training reads out, and their logits, equal those of transformers' own blocks, norm and head."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_families import BLOCKS, FAMILIES, ROPE, VOCABULARY, WIDTH, causal, t5
from torch import Tensor, nn

from exitbench.errors import UserError
from exitbench.harness.training.block_states import (
    apply_ending,
    check_read_out,
    decoder_blocks,
    decoder_states,
    final_norm,
)
from exitbench.harness.training.losses import IGNORED, block_weights, head_loss

Inputs = dict[str, Tensor]


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(1)
    result = FAMILIES[request.param]().eval()
    # Norms are drawn as ones, and biases as zeros, which would hide a norm that is left out or applied twice.
    for parameter in result.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return result


def batch_for(model: Any) -> Inputs:
    """Return a batch of texts with 5, 3 and 4 tokens.

    For decoder-only models, padding comes first and the last two tokens have labels.
    """
    rng, longest = torch.Generator().manual_seed(2), 5
    mask = (torch.arange(longest) < torch.tensor([5, 3, 4])[:, None]).long()
    if not model.config.is_encoder_decoder:
        mask = mask.flip(1)  # behind a text, padding would be out of sight in any case
    ids = torch.randint(3, VOCABULARY, (3, longest), generator=rng) * mask
    if model.config.is_encoder_decoder:
        target = torch.randint(3, VOCABULARY, (3, 4), generator=rng)
        target[1, 2:] = IGNORED
        return {"input_ids": ids, "attention_mask": mask, "labels": target}
    labels = ids.clone()
    labels[:, :3] = IGNORED
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def label_positions(model: Any, batch: Inputs) -> list[tuple[int, int, int]]:
    """Return (row, position whose state predicts it, label) for every label, by a plain loop."""
    shift = 0 if model.config.is_encoder_decoder else 1
    return [
        (row, t - shift, label)
        for row, labels in enumerate(batch["labels"].tolist())
        for t, label in enumerate(labels)
        if label != IGNORED and t >= shift
    ]


def outputs_of(modules: nn.ModuleList, run: Callable[[], Any]) -> list[Tensor]:
    """Return the output of each block."""
    seen: list[Tensor] = []
    hooks = [
        m.register_forward_hook(lambda _m, _i, o: seen.append(o[0] if isinstance(o, tuple) else o)) for m in modules
    ]
    run()
    for hook in hooks:
        hook.remove()
    return seen


def test_logits_and_loss_of_the_last_block_equal_transformers(model: Any) -> None:
    batch = batch_for(model)
    states, own = decoder_states(model, batch), model(**batch)
    where = label_positions(model, batch)
    wanted = torch.stack([own.logits[row, t] for row, t, _ in where])
    torch.testing.assert_close(states.logits_NV(BLOCKS), wanted)
    assert states.gold.tolist() == [label for *_, label in where]
    read = states.head_input(BLOCKS), states.head, states.gold
    torch.testing.assert_close(head_loss(*read, bias=states.head_bias), own.loss)
    check_read_out(model)


def test_states_of_every_block_equal_its_modules_output(model: Any) -> None:
    batch = batch_for(model)
    states = decoder_states(model, batch)
    seen = outputs_of(decoder_blocks(model), lambda: model(**batch))
    rows, positions, _ = zip(*label_positions(model, batch), strict=True)
    wanted = [h[rows, positions] for h in seen]
    assert len(states.raw) == BLOCKS - 1 and len(states.normed) == BLOCKS
    torch.testing.assert_close(states.raw, wanted[:-1])
    torch.testing.assert_close(states.normed, [apply_ending(states.ending, h) for h in wanted])
    torch.testing.assert_close(states.logits(wanted[1]), states.logits_NV(2))


def test_inner_block_logits_equal_those_of_a_model_cut_after_that_block(model: Any) -> None:
    batch = batch_for(model)
    states = decoder_states(model, batch)
    del decoder_blocks(model)[2:]
    for config in (model.config, model.get_decoder().config):
        config.num_hidden_layers = 2
    torch.testing.assert_close(decoder_states(model, batch).logits_NV(2), states.logits_NV(2))


def test_every_block_with_a_loss_gets_a_gradient(model: Any) -> None:
    states = decoder_states(model, batch_for(model))
    weights = block_weights(BLOCKS, "last-70")
    losses = [
        w * head_loss(states.head_input(block), states.head, states.gold) for block, w in enumerate(weights, 1) if w > 0
    ]
    torch.stack(losses).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in decoder_blocks(model).parameters() if p.dim() > 1)


def test_missing_attention_mask_equals_a_mask_of_ones(model: Any) -> None:
    batch = batch_for(model)
    ones = {**batch, "attention_mask": torch.ones_like(batch["input_ids"])}
    del batch["attention_mask"]
    torch.testing.assert_close(decoder_states(model, batch).normed, decoder_states(model, ones).normed)


@pytest.mark.parametrize("tied", [True, False])
def test_t5_scales_states_only_with_tied_embeddings(tied: bool) -> None:
    model = t5(tied)
    assert decoder_states(model, batch_for(model)).scale == (WIDTH**-0.5 if tied else 1.0)


def test_dropout_applies_to_the_states_of_every_block() -> None:
    model = t5(dropout=0.5).train()
    zeros = [(h == 0).float().mean().item() for h in decoder_states(model, batch_for(model)).normed]
    assert min(zeros) > 0.3


ENDINGS = {
    "t5": ["T5LayerNorm", "Dropout"],
    "llama": ["LlamaRMSNorm"],
    "gpt2": ["LayerNorm"],
    "marian": [],
    "pegasus": ["LayerNorm"],
    "gpt_neox": ["LayerNorm"],
    "phi": ["LayerNorm"],
}


@pytest.mark.parametrize("family", ENDINGS)
def test_modules_after_the_last_block_are_found(family: str) -> None:
    model = FAMILIES[family]().train()
    ending = decoder_states(model, batch_for(model)).ending
    assert [type(module).__name__ for module in ending] == ENDINGS[family]
    if ending:
        assert final_norm(model) is ending[0] and model.training
    else:
        with pytest.raises(UserError, match="has no final norm; its blocks end in norms of their own"):
            final_norm(model)


def test_finding_the_final_norm_draws_no_random_numbers() -> None:
    model = t5(dropout=0.5).train()
    before = torch.get_rng_state()
    final_norm(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_model_with_logit_softcapping_is_refused() -> None:
    model = causal("Gemma2", **ROPE, head_dim=4, final_logit_softcapping=0.05)
    with pytest.raises(UserError, match="model_type 'gemma2': its logits are not those of its decoder's ending"):
        check_read_out(model)


def test_decoder_with_several_block_lists_is_refused() -> None:
    model = FAMILIES["llama"]()
    model.model.more = nn.ModuleList()
    with pytest.raises(UserError, match="2 lists of blocks"):
        decoder_blocks(model)
