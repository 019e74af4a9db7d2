"""Training data: no example is repeated, batches have little padding, and a curriculum drops no example."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from exitbench.errors import UserError
from exitbench.harness.training import Recipe, load_recipe
from exitbench.harness.training.data import (
    Example,
    TrainingPair,
    curriculum,
    cut_batches,
    encode,
    epochs,
    pad,
    read_pairs,
    read_text,
)
from exitbench.harness.training.losses import IGNORED
from exitbench.harness.training.recipe import DataSource
from exitbench.tasks.base import ModelKind


def examples(count: int, seed: int = 0) -> list[Example]:
    """Return random examples whose target equals their source."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 9, (count,), generator=rng).tolist()
    ids = [torch.randint(3, 50, (n,), generator=rng).numpy() for n in lengths]
    return [Example(row, row) for row in ids]


def test_training_prompts_are_unique_and_disjoint_from_validation(
    write_recipe: Callable[..., Path], data_dir: Path
) -> None:
    text = read_text(load_recipe(write_recipe()), data_dir, "seq2seq")
    prompts = [pair.prompt for pair, _ in text.train]
    held_out = {pair.prompt for pair in text.validation}
    assert len(prompts) == len(set(prompts)) == 18 - len(held_out)
    assert not held_out & set(prompts)
    assert {source.repeat for _, source in text.train} == {2}


def test_batches_have_every_example_once_within_the_token_limit() -> None:
    everything = examples(300)
    batches = cut_batches(everything, 120)
    assert sorted(id(e) for batch in batches for e in batch) == sorted(id(e) for e in everything)
    padded = [pad(batch, causal=False) for batch in batches]
    assert max(b["input_ids"].numel() + b["labels"].numel() for b in padded) <= 120
    assert len(batches) < 40  # about 3300 tokens: batches are filled


def test_encoded_answer_has_no_start_token_and_ends_with_the_end_token() -> None:
    words = Tokenizer(models.WordLevel({"<s>": 0, "<end>": 1, "a": 2, "un": 3}))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="<end>")
    (example,) = encode([TrainingPair("a", "un")], wrapped, 9)
    assert (example.source.tolist(), example.target.tolist()) == ([0, 2], [3, 1])
    assert encode([TrainingPair("a", "un")], wrapped, 1) == []
    with pytest.raises(UserError, match="no end token"):
        encode([TrainingPair("a", "un")], PreTrainedTokenizerFast(tokenizer_object=words), 9)


def test_curriculum_adds_portions_from_their_step_on_and_keeps_earlier_ones() -> None:
    early = [Example(np.array([5, 1]), np.array([6, 1])) for _ in range(12)]
    late = [Example(np.array([7, 1]), np.array([8, 1])) for _ in range(12)]
    stream = curriculum([(0, early), (5, late)], batch_tokens=16, seed=0)
    shown = [{int(example.source[0]) for example in next(stream)} for _ in range(17)]
    assert shown[:5] == [{5}] * 5
    assert set().union(*shown[5:]) == {5, 7}


def test_every_epoch_has_each_example_once_in_a_new_deterministic_order() -> None:
    everything = examples(100)
    count = len(cut_batches(everything, 120))
    stream = epochs(everything, 120, seed=0)
    first, second = ([[id(e) for e in next(stream)] for _ in range(count)] for _ in range(2))
    again = epochs(everything, 120, seed=0)
    assert first == [[id(e) for e in next(again)] for _ in range(count)]
    assert sorted(chain(*first)) == sorted(chain(*second)) == sorted(map(id, everything))
    assert first != second


def test_causal_batch_joins_prompt_and_answer_and_labels_only_the_answer() -> None:
    short, long = Example(np.array([5, 1]), np.array([6, 1])), Example(np.array([7, 8, 1]), np.array([9, 1]))
    batch = pad([short, long], causal=True)
    assert batch["input_ids"].tolist() == [[5, 1, 6, 1, 0], [7, 8, 1, 9, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    off = IGNORED
    assert batch["labels"].tolist() == [[off, off, 6, 1, off], [off, off, off, 9, 1]]


def test_training_prompts_depend_on_the_model_kind() -> None:
    source = DataSource("squad", "builtin", documents=2)
    kinds: tuple[ModelKind, ...] = ("seq2seq", "causal")
    (seq2seq, _), (causal, _) = (read_pairs(source, None, kind) for kind in kinds)
    assert seq2seq.prompt.startswith("question:")
    assert causal.prompt.startswith("context:")
    assert causal.target == seq2seq.target


@pytest.mark.parametrize(
    ("recipe", "kind"),
    [("builtin-weighted", "seq2seq"), ("builtin-causal", "causal"), ("builtin-exit-heads", "causal")],
)
def test_recipe_kind_is_inherited_from_its_start_recipe(recipe: str, kind: str) -> None:
    assert load_recipe(recipe).kind == kind


def test_builtin_training_data_needs_no_data_folder(write_recipe: Callable[..., Path]) -> None:
    source = 'source = "builtin"\ndocuments = 20'
    path = write_recipe(
        ('source = "local"\nfiles = { en = "train.en.gz", fr = "train.fr.gz" }', source),
        ('source = "local"\nfiles = { en = "val.en", fr = "val.fr" }', source + '\nsplit = "validation"'),
        ('kind = "bpe"\nvocab_size = 320', 'kind = "builtin"'),
    )
    recipe: Recipe = load_recipe(path)
    text = read_text(recipe, None, "seq2seq")
    assert len(text.validation) == 20
    assert len(text.train) == len({pair.prompt for pair, _ in text.train}) <= 20
