"""Training pairs: read through the tasks, deduplicated, tokenized once, and cut into batches of similar length."""

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from exitbench.errors import UserError
from exitbench.harness.training.losses import IGNORED
from exitbench.harness.training.recipe import DataSource, Recipe, TokenizerRecipe
from exitbench.tasks import builtin
from exitbench.tasks.base import ModelKind, Source
from exitbench.tasks.document import Document
from exitbench.tasks.registry import get_task

PAD, EOS, UNK = "<pad>", "</s>", "<unk>"
# Batches are formed within pools of this many examples, so that batches of similar lengths still mix documents.
POOL_EXAMPLES = 8192


@dataclass(frozen=True)
class TrainingPair:
    """Training pair of a prompt and the output that the model learns to generate.

    Attributes:
        prompt: Input text of the model.
        target: Reference answer as text.
        document: The document with the texts and the label, for classifiers only; otherwise None.
    """

    prompt: str
    target: str
    document: Document | None = None


@dataclass(frozen=True)
class TextData:
    """Training and validation data of a recipe as text, before tokenization.

    Attributes:
        train: Training pairs, each with the data source of the recipe that it comes from.
        validation: Validation pairs.
        sha256: Digest of prompts and targets of all these pairs, by which changed data is noticed.
    """

    train: tuple[tuple[TrainingPair, DataSource], ...]
    validation: tuple[TrainingPair, ...]
    sha256: str


@dataclass(frozen=True)
class Example:
    """One tokenized training pair.

    Attributes:
        source: Token ids of the prompt, tokenized as in evaluation.
        target: Token ids of the reference answer, with the end-of-sequence token.
    """

    source: np.ndarray
    target: np.ndarray


Batch = dict[str, Tensor]
"""Inputs of transformers models: input_ids [B, S], attention_mask [B, S], labels (`IGNORED` at positions without loss).

The labels of a seq2seq model are the targets [B, T]. A causal model reads source and target as one text, and its labels
[B, S] are those of the target.
"""


def read_pairs(source: DataSource, data_dir: Path | None, kind: ModelKind) -> list[TrainingPair]:
    """Return the documents of a data source as training pairs, with the task's prompts for a kind of model.

    Args:
        source: Data source of a recipe: task, split, files and number of documents.
        data_dir: Root folder of local data files; not used for built-in data.
        kind: Kind of model, on which the prompts depend (`encoder` also keeps the documents in the pairs).

    Raises:
        UserError: The task is unknown, or a file is missing or malformed.
    """
    task = get_task(source.task)
    if source.source == "builtin":
        documents = builtin.documents(source.task, source.split, source.documents, source.seed, source.level)
    else:
        local = Source("local", data_dir, source.files, part=source.part)
        documents = task.load(local, source.split, source.documents or None)
    if kind == "encoder":
        prompts = task.prompts(documents, kind)
        return [TrainingPair(prompt, task.target(each), each) for prompt, each in zip(prompts, documents, strict=True)]
    return [TrainingPair(task.prompt_for(document, kind), task.target(document)) for document in documents]


def read_text(recipe: Recipe, data_dir: Path | None, kind: ModelKind) -> TextData:
    """Read a recipe's training and validation data, with prompts for a kind of model.

    Training pairs are dropped if their prompt is a duplicate, or occurs in validation or held-out data.

    Args:
        recipe: The recipe, which names the data.
        data_dir: Root folder of local data files; not used for built-in data.
        kind: Kind of model (encoder-decoder, decoder-only or encoder), on which the prompts depend.

    Raises:
        UserError: A task is unknown, a file is missing or malformed, or no training or validation pairs are left.
    """
    validation = [pair for source in recipe.validation for pair in read_pairs(source, data_dir, kind)]
    held_out_pairs = [pair for source in recipe.held_out for pair in read_pairs(source, data_dir, kind)]
    known_prompts = {pair.prompt for pair in [*validation, *held_out_pairs]}
    train: list[tuple[TrainingPair, DataSource]] = []
    for source in recipe.train:
        for pair in read_pairs(source, data_dir, kind):
            if pair.prompt not in known_prompts:
                known_prompts.add(pair.prompt)
                train.append((pair, source))
    if not train or not validation:
        raise UserError(f"Recipe {recipe.name!r}: no pairs are left to train or validate on.")
    return TextData(tuple(train), tuple(validation), _digest([pair for pair, _ in train], validation))


def _digest(*parts: Sequence[TrainingPair]) -> str:
    """Return the SHA-256 of the prompts and targets of several lists of training pairs, as canonical JSON."""
    text = json.dumps([[(p.prompt, p.target) for p in part] for part in parts], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def make_tokenizer(recipe: TokenizerRecipe, pairs: Iterable[TrainingPair]) -> PreTrainedTokenizerFast:
    """Return a recipe's new tokenizer: word-level for the built-in data, or a byte-level BPE trained on `pairs`.

    Token <pad> has id 0, </s> id 1, <unk> id 2; </s> is appended to every text.
    """
    texts = (text for pair in pairs for text in (pair.prompt, pair.target))
    tokenizer = builtin.build_tokenizer() if recipe.kind == "builtin" else trained_tokenizer(recipe.vocab_size, texts)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, unk_token=UNK, clean_up_tokenization_spaces=False
    )


def trained_tokenizer(vocab_size: int, texts: Iterable[str]) -> Tokenizer:
    """Return a byte-level BPE tokenizer trained on texts, which appends </s> to every text.

    Its `vocab_size` tokens include <pad>, </s> and <unk>, with ids 0, 1 and 2.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, EOS, UNK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    end = tokenizer.token_to_id(EOS)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, end)])
    return tokenizer


def encode(pairs: Sequence[TrainingPair], tokenizer: PreTrainedTokenizerFast, max_tokens: int) -> list[Example]:
    """Tokenize training pairs, leaving out those with more than `max_tokens` tokens in prompt or target.

    Raises:
        UserError: The tokenizer has no end-of-sequence token.
    """
    backend, end = tokenizer.backend_tokenizer, tokenizer.eos_token_id
    if end is None:
        raise UserError("the checkpoint's tokenizer has no end token (eos_token), so no answer could end.")
    sources = [source.ids for source in backend.encode_batch_fast([pair.prompt for pair in pairs])]
    # Tokenizers differ in the special tokens they add; an answer has none before its text and the end token after it.
    texts = backend.encode_batch_fast([pair.target for pair in pairs], add_special_tokens=False)
    targets = [[*text.ids, end] for text in texts]
    return [
        Example(np.array(source), np.array(target))
        for source, target in zip(sources, targets, strict=True)
        if max(len(source), len(target)) <= max_tokens
    ]


def curriculum(
    portions: Sequence[tuple[int, Sequence[Example]]], batch_tokens: int, seed: int
) -> Iterator[list[Example]]:
    """Yield batches endlessly, one per training step; each portion of the data is used from its first step on.

    Batches have examples of similar length (see `cut_batches`).

    Args:
        portions: Pairs of (first training step that uses the portion, examples); at least one of them starts at step 0.
        batch_tokens: Maximum number of source and target tokens per batch, padding included.
        seed: Seed of the order of batches.
    """
    starts = sorted({start for start, _ in portions})
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        active = [example for first, examples in portions if first <= start for example in examples]
        yield from islice(epochs(active, batch_tokens, seed + start), None if end is None else end - start)


def epochs(examples: Sequence[Example], batch_tokens: int, seed: int) -> Iterator[list[Example]]:
    """Yield batches endlessly; every epoch has each example once, in a new random order.

    Args:
        examples: The examples.
        batch_tokens: Maximum number of source and target tokens per batch, padding included.
        seed: Seed of the order.
    """
    rng = random.Random(seed)
    while True:
        order = rng.sample(range(len(examples)), len(examples))
        cut = [
            batch
            for start in range(0, len(order), POOL_EXAMPLES)
            for batch in cut_batches([examples[i] for i in order[start : start + POOL_EXAMPLES]], batch_tokens)
        ]
        rng.shuffle(cut)
        yield from cut


def cut_batches(examples: Sequence[Example], batch_tokens: int) -> list[list[Example]]:
    """Sort examples by length, and cut them into batches of at most `batch_tokens` source and target tokens.

    Padding is included in the number. An example that alone has more tokens forms a batch of its own.
    """
    batches: list[list[Example]] = []
    longest = (0, 0)
    for example in sorted(examples, key=lambda e: (len(e.target), len(e.source))):
        grown = (max(longest[0], len(example.source)), max(longest[1], len(example.target)))
        if batches and (len(batches[-1]) + 1) * sum(grown) <= batch_tokens:
            batches[-1].append(example)
            longest = grown
        else:
            batches.append([example])
            longest = (len(example.source), len(example.target))
    return batches


def pad(examples: Sequence[Example], *, causal: bool) -> Batch:
    """Stack examples of unequal length into a batch of input ids, attention mask and labels, padded on the right.

    Args:
        examples: The examples.
        causal: Whether the model is decoder-only, so that prompt and target are one text and only the target has a
            loss.
    """
    sources = [example.source for example in examples]
    labels = [example.target for example in examples]
    if causal:
        labels = [
            np.concatenate((np.full_like(source, IGNORED), target))
            for source, target in zip(sources, labels, strict=True)
        ]
        sources = [np.concatenate((example.source, example.target)) for example in examples]
    return {
        "input_ids": padded(sources, 0),
        "attention_mask": padded([np.ones_like(source) for source in sources], 0),
        "labels": padded(labels, IGNORED),
    }


def padded(rows: Sequence[np.ndarray], filler: int) -> Tensor:
    """Return arrays of ids as one matrix, [number of arrays, longest], padded on the right with `filler`."""
    matrix = np.full((len(rows), max(map(len, rows))), filler, dtype=np.int64)
    for row, ids in zip(matrix, rows, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(matrix)
