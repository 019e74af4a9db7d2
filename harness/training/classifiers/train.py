"""Train a recipe into an ordinary classifier of Hugging Face, with its off-ramps beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from exitbench.harness.engine.checkpoints.exit_head_files import save_off_ramps
from exitbench.harness.engine.checkpoints.files import OFF_RAMPS_FILE
from exitbench.harness.training.classifiers.data import (
    LabelledExample,
    encode_texts,
    make_classifier_tokenizer,
    pad_texts,
    task_of,
)
from exitbench.harness.training.classifiers.models import new_classifier, read_classifier
from exitbench.harness.training.classifiers.objectives import make_classifier_objective, predictions
from exitbench.harness.training.data import Batch, Pair, TextData, curriculum
from exitbench.harness.training.recipe import Recipe
from exitbench.harness.training.train import Portions, minimise, prepare, write_card, write_log
from exitbench.harness.training.trainer import Clock, resume_point
from exitbench.results.spool.schema import CARD_FILE, TRAINING_LOG_FILE
from exitbench.results.statistics.columns import as_sums
from exitbench.tasks.classification import ClassificationTask

_ROWS = 64
"""Of a batch of validation."""


def train_classifier(
    recipe: Recipe, text: TextData, start: Path | None, folder: Path, work: Path, on_step: Callable[[int], None]
) -> None:
    """Train a recipe's classifier and write checkpoint, tokenizer, off-ramps, log and card to `folder`; see `train`.

    Raises:
        UserError: The task is none of classification, or the start is no classifier of its labels.
    """
    clock = Clock(resume_point(work))
    settings, task = recipe.optimisation, task_of(recipe)
    prepare(recipe)
    model, tokenizer = _begin(recipe, text, start, task)
    model.to("cuda" if torch.cuda.is_available() else "cpu")

    def encoded(pairs: Sequence[Pair]) -> list[LabelledExample]:
        return encode_texts(task, pairs, tokenizer, settings.max_tokens)

    portions: Portions = [
        (source.from_step, [*source.repeat * encoded([pair for pair, own in text.train if own is source])])
        for source in recipe.train
    ]
    validation = encoded(text.validation)
    objective, readers = make_classifier_objective(recipe, model)

    def batches(step: int) -> Iterator[Batch]:
        cut = islice(curriculum(portions, settings.batch_tokens, recipe.seed), step, None)
        return (pad_texts(cast(list[LabelledExample], examples), tokenizer.pad_token_id) for examples in cut)

    rows = minimise(recipe, model, objective, batches, work, on_step, clock)
    learned = nn.ModuleList([model, *([readers.learned] if readers.learned is not None else [])])
    if settings.saved_precision == "bf16":
        learned.bfloat16().float()
    held_out = [
        pad_texts(validation[start_row : start_row + _ROWS], tokenizer.pad_token_id)
        for start_row in range(0, len(validation), _ROWS)
    ]
    answers_LN, loss_L = predictions(readers, held_out)

    if settings.saved_precision == "bf16":
        learned.bfloat16()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if readers.off_ramps is not None:
        # Copies: a pooler that blocks share is written once a block.
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in readers.off_ramps.tensors.items()}
        save_off_ramps(folder / OFF_RAMPS_FILE, readers.off_ramps.kind, tensors)
    write_log(folder / TRAINING_LOG_FILE, rows)
    shown = [example for _, examples in portions for example in examples]
    counts = {
        "train_pairs": len(text.train),
        "train_examples_per_epoch": len(shown),
        "train_texts_truncated": sum(cast(LabelledExample, example).is_cut for example in shown),
        "validation_pairs": len(validation),
        "validation_texts_truncated": sum(example.is_cut for example in validation),
    }
    quality = {**_quality(task, text.validation, answers_LN), "loss_nats": loss_L.tolist()}
    write_card(folder / CARD_FILE, recipe, text, model, rows, clock, counts, quality)


def _begin(
    recipe: Recipe, text: TextData, start: Path | None, task: ClassificationTask
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    if start is not None:
        return read_classifier(start, task)
    assert recipe.tokenizer is not None and recipe.architecture is not None, "a recipe without a start has both"
    pairs = [pair for pair, _ in text.train]
    tokenizer = make_classifier_tokenizer(recipe.tokenizer, task, pairs, recipe.optimisation.max_tokens)
    return new_classifier(recipe.architecture, tokenizer, task), tokenizer


def _quality(task: ClassificationTask, pairs: Sequence[Pair], answers_LN: Tensor) -> dict[str, Any]:
    """The task's headline of every block, and the share of right labels, which ratings have none of."""
    documents = [pair.document for pair in pairs if pair.document is not None]
    scores = [
        [task.score_prediction(document, answer) for document, answer in zip(documents, answers, strict=True)]
        for answers in answers_LN.tolist()
    ]
    by_block = []
    for block in scores:
        summands = np.array([score.summands(task.headline) for score in block])
        rows, aggregate = as_sums(summands, task.aggregator(task.headline))
        by_block.append(float(aggregate(rows.sum(axis=0), np.asarray(float(len(rows))))))
    gold = torch.tensor([task.gold(document) for document in documents])
    accuracy = None if task.is_regression else (answers_LN == gold).double().mean(1).tolist()
    return {"metric": task.headline, "score": by_block, "token_accuracy": accuracy}
