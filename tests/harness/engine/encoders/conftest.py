"""Fixtures of small random classifiers of every encoder family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

VOCABULARY, N_BLOCKS, WIDTH = 60, 4, 16
PAD = 0
_SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=WIDTH,
    num_hidden_layers=N_BLOCKS,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=40,
    pad_token_id=PAD,
)
_MODERN = dict(_SIZES, local_attention=6, cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2)
_DEBERTA = dict(
    _SIZES,
    relative_attention=True,
    position_buckets=8,
    pos_att_type=["p2c", "c2p"],
    norm_rel_ebd="layer_norm",
    share_att_key=True,
    position_biased_input=False,
    type_vocab_size=0,
)
_DISTILBERT = dict(
    vocab_size=VOCABULARY,
    dim=WIDTH,
    n_layers=N_BLOCKS,
    n_heads=2,
    hidden_dim=32,
    max_position_embeddings=40,
    pad_token_id=PAD,
)
CONFIGS: dict[str, Callable[..., Any]] = {
    "bert": lambda **options: transformers.BertConfig(**_SIZES, **options),
    "roberta": lambda **options: transformers.RobertaConfig(**_SIZES, **options),
    "albert": lambda **options: transformers.AlbertConfig(**_SIZES, embedding_size=8, **options),
    "albert-groups": lambda **options: transformers.AlbertConfig(
        **_SIZES, embedding_size=8, num_hidden_groups=2, inner_group_num=2, **options
    ),
    "electra": lambda **options: transformers.ElectraConfig(**_SIZES, embedding_size=8, **options),
    "distilbert": lambda **options: transformers.DistilBertConfig(**_DISTILBERT, **options),
    "deberta-v2": lambda **options: transformers.DebertaV2Config(**_DEBERTA, **options),
    "modernbert": lambda **options: transformers.ModernBertConfig(**_MODERN, **options),
    "modernbert-mean": lambda **options: transformers.ModernBertConfig(**_MODERN, classifier_pooling="mean", **options),
}


@pytest.fixture(scope="session")
def classifier() -> Callable[..., Any]:
    """Return a function that builds a random classifier of a family; its options go to the configuration."""

    def make(name: str, num_labels: int = 3, **options: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            config = CONFIGS[name](num_labels=num_labels, **options)
            lm = transformers.AutoModelForSequenceClassification.from_config(config).eval().requires_grad_(False)
            for parameter in lm.parameters():
                parameter += 0.2 * torch.randn_like(parameter)
        return lm

    return make


@pytest.fixture(scope="session")
def padded_batch() -> tuple[Tensor, Tensor]:
    """Return token ids and mask of five texts, three of them shorter."""
    generator = torch.Generator().manual_seed(2)
    ids_BT = torch.randint(5, VOCABULARY, (5, 12), generator=generator)
    mask_BT = torch.ones_like(ids_BT)
    for row, length in ((1, 7), (3, 3), (4, 11)):
        mask_BT[row, length:] = 0
    return ids_BT * mask_BT, mask_BT
