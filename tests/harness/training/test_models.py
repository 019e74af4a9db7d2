"""What the attention heads of a new model attend to before any training."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from exitbench.harness.training.data import make_tokenizer
from exitbench.harness.training.models import new_model
from exitbench.harness.training.recipe import ArchitectureRecipe, TokenizerRecipe
from exitbench.tasks.builtin.words import NAMES

WIDTH, HEADS, BLOCKS = 128, 4, 3
TEXT = "Anna visits Rome . Karl follows Vera . Olga visits Oslo . Vera follows"


def made(family: Any, neighbour_heads: int) -> Any:
    torch.manual_seed(0)
    architecture = ArchitectureRecipe(
        family=family, d_model=WIDTH, d_kv=WIDTH // HEADS, d_ff=64, num_heads=HEADS, num_decoder_layers=BLOCKS,
        num_layers=2 if family == "t5" else 0, dropout_rate=0.0, neighbour_heads=neighbour_heads,
    )  # fmt: skip
    return new_model(architecture, make_tokenizer(TokenizerRecipe(kind="builtin"), [])).eval()


def attended(model: Any, text: str = TEXT) -> tuple[Tensor, ...]:
    """Return the attention weights of each block over the text, [1, H, T, T]; the end-of-text token is left out."""
    ids = make_tokenizer(TokenizerRecipe(kind="builtin"), [])(text, return_tensors="pt").input_ids[:, :-1]
    stack = model.get_encoder() if model.config.is_encoder_decoder else model.get_decoder()
    with torch.no_grad():
        return stack(input_ids=ids, output_attentions=True).attentions  # type: ignore[no-any-return]


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_neighbour_heads_attend_one_two_and_three_tokens_back(family: str) -> None:
    attention_HTT = attended(made(family, 3))[0][0]
    for head in range(3):
        assert attention_HTT[head].diagonal(-(head + 1)).min() > 0.5
    assert attention_HTT[3].diagonal(-1).mean() < 0.5, "of few tokens, random attention gives one much"


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_no_head_attends_to_a_neighbour_without_neighbour_heads(family: str) -> None:
    attention_HTT = attended(made(family, 0))[0][0]
    assert all(attention_HTT[head].diagonal(-1)[4:].max() < 0.6 for head in range(4))


@pytest.mark.parametrize(("neighbour_heads", "least", "most"), [(3, 0.25, 1.0), (0, 0.0, 0.15)])
def test_second_block_of_a_causal_model_attends_after_earlier_equal_tokens(
    neighbour_heads: int, least: float, most: float
) -> None:
    """At a name's second occurrence, head h (from 0) attends to the token h + 1 places after the first occurrence."""
    model, draw = made("llama", neighbour_heads), random.Random(0)
    results = []
    for _ in range(30):
        names = draw.sample(NAMES, 12)
        said = draw.randrange(8)
        attention_HTT = attended(model, " ".join([*names, names[said]]))[1][0]
        results.append([float(attention_HTT[head, -1, said + head + 1]) for head in range(3)])
    assert least < torch.tensor(results).mean() < most


def test_new_t5_generates_alike_with_and_without_cache_in_transformers() -> None:
    model = made("t5", 0)
    ids = torch.arange(3, 13)[None]
    cached = model.generate(ids, max_new_tokens=8, use_cache=True)
    assert torch.equal(cached, model.generate(ids, max_new_tokens=8, use_cache=False))
