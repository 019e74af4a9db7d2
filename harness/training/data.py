"""Training pairs: read through the tasks, deduplicated, tokenised once, cut into batches of equal length."""

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
# Batches are formed within pools of this many examples, so that batches of similar length still mix documents.
POOL_EXAMPLES = 8192


@dataclass(frozen=True)
class Pair:
    """What the model reads and what it must write.

    Attributes:
        document: Of a classifier: what says which texts it reads, and the label.
    """

    prompt: str
    target: str
    document: Document | None = None


@dataclass(frozen=True)
class TextData:
    """Text of a recipe's data: training pairs with their source's settings, validation pairs, and their digest."""

    train: tuple[tuple[Pair, DataSource], ...]
    validation: tuple[Pair, ...]
    sha256: str


@dataclass(frozen=True)
class Example:
    """One tokenised pair: the prompt as it is read when evaluated, the target with the end token."""

    source: np.ndarray
    target: np.ndarray


Batch = dict[str, Tensor]
"""What transformers' models take: input_ids [B, S], attention_mask [B, S], labels (`IGNORED` where nothing is learned).

The labels of a seq2seq model are the targets [B, T]. A causal model reads source and target as one text, and its labels
[B, S] are those of the target.
"""


def read_pairs(source: DataSource, data_dir: Path | None, kind: ModelKind) -> list[Pair]:
    """Documents of one source as pairs, with the task's own prompts for models of this kind.

    Raises:
        UserError: Unknown task, missing or malformed file.
    """
    task = get_task(source.task)
    if source.source == "builtin":
        documents = builtin.documents(source.task, source.split, source.documents, source.seed, source.level)
    else:
        where = Source("local", data_dir, source.files)
        documents = task.load(where, source.split, source.documents or None)
    if kind == "encoder":
        prompts = task.prompts(documents, kind)
        return [Pair(prompt, task.target(one), one) for prompt, one in zip(prompts, documents, strict=True)]
    return [Pair(task.prompt_for(document, kind), task.target(document)) for document in documents]


def read_text(recipe: Recipe, data_dir: Path | None, kind: ModelKind) -> TextData:
    """Read everything a recipe trains and validates a model of this kind on.

    A prompt is kept once, and never when validation or held-out data has it too.

    Raises:
        UserError: See `read_pairs`; or nothing is left to train on.
    """
    validation = [pair for source in recipe.validation for pair in read_pairs(source, data_dir, kind)]
    held_out = [pair for source in recipe.held_out for pair in read_pairs(source, data_dir, kind)]
    seen = {pair.prompt for pair in [*validation, *held_out]}
    train: list[tuple[Pair, DataSource]] = []
    for source in recipe.train:
        for pair in read_pairs(source, data_dir, kind):
            if pair.prompt not in seen:
                seen.add(pair.prompt)
                train.append((pair, source))
    if not train or not validation:
        raise UserError(f"Recipe {recipe.name!r}: no pairs are left to train or validate on.")
    return TextData(tuple(train), tuple(validation), _digest([pair for pair, _ in train], validation))


def _digest(*parts: Sequence[Pair]) -> str:
    """SHA-256 of the canonical JSON of every pair."""
    text = json.dumps([[(p.prompt, p.target) for p in part] for part in parts], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def make_tokenizer(recipe: TokenizerRecipe, pairs: Iterable[Pair]) -> PreTrainedTokenizerFast:
    """The tokenizer of a recipe: <pad> is 0, </s> is 1 and ends every encoding, <unk> is 2."""
    texts = (text for pair in pairs for text in (pair.prompt, pair.target))
    made = builtin.build_tokenizer() if recipe.kind == "builtin" else trained_tokenizer(recipe.vocab_size, texts)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=PAD, eos_token=EOS, unk_token=UNK, clean_up_tokenization_spaces=False
    )


def trained_tokenizer(vocab_size: int, texts: Iterable[str]) -> Tokenizer:
    """A byte-level BPE of texts."""
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


def encode(pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerFast, max_tokens: int) -> list[Example]:
    """Tokenise pairs, leaving out those with more than `max_tokens` on a side.

    Raises:
        UserError: The tokenizer has no end token.
    """
    backend, end = tokenizer.backend_tokenizer, tokenizer.eos_token_id
    if end is None:
        raise UserError("the checkpoint's tokenizer has no end token (eos_token), so no answer could end.")
    sources = [source.ids for source in backend.encode_batch_fast([pair.prompt for pair in pairs])]
    # Tokenizers differ in what they add around a text; an answer begins with its own text and ends with the end token.
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
    """Batches without end, from ever more portions.

    Args:
        portions: (first step at which it is shown, examples); one of them starts at 0.
        batch_tokens: See `cut_batches`.
        seed: Of the order.
    """
    starts = sorted({start for start, _ in portions})
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        shown = [example for first, examples in portions if first <= start for example in examples]
        yield from islice(epochs(shown, batch_tokens, seed + start), None if end is None else end - start)


def epochs(examples: Sequence[Example], batch_tokens: int, seed: int) -> Iterator[list[Example]]:
    """Batches without end; every epoch shows every example once, in a new order."""
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
    """Cut examples, sorted by length, into batches of at most `batch_tokens` tokens, padding included.

    A single example that is longer is a batch of its own.
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
    """Stack examples of unequal length."""
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
    """Rows of ids as one matrix, [B, longest], filled on the right."""
    out = np.full((len(rows), max(map(len, rows))), filler, dtype=np.int64)
    for row, ids in zip(out, rows, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(out)
