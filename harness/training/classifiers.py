"""Training of encoder classifiers and their off-ramps: data, model, and training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from tokenizers import processors
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.exit_head_files import save_off_ramps
from exitbench.harness.engine.checkpoints.files import CONFIG, OFF_RAMPS_FILE
from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer
from exitbench.harness.engine.encoders.families import FAMILIES
from exitbench.harness.reading.regular_files import read_json
from exitbench.harness.training.classifier_objectives import make_classifier_objective, predictions
from exitbench.harness.training.data import (
    EOS,
    PAD,
    UNK,
    Batch,
    Example,
    TextData,
    TrainingPair,
    curriculum,
    padded,
    trained_tokenizer,
)
from exitbench.harness.training.recipe import ArchitectureRecipe, Recipe, TokenizerRecipe
from exitbench.harness.training.train import Portions, minimise, prepare, write_card, write_log
from exitbench.harness.training.trainer import TrainingClock, resume_point
from exitbench.results.spool.schema import CARD_FILE, TRAINING_LOG_FILE
from exitbench.results.statistics.intervals import as_sums
from exitbench.tasks import builtin
from exitbench.tasks.classification import ClassificationTask
from exitbench.tasks.document import Document
from exitbench.tasks.registry import get_task

CLS = "<cls>"


@dataclass(frozen=True)
class LabelledExample(Example):
    """One tokenized text, or pair of texts, with its label; `source` has the input ids, `target` only the label.

    Attributes:
        types: Token type ids: 1 for tokens of the second text of a pair, else 0.
        is_cut: Whether the input was truncated.
    """

    types: np.ndarray
    is_cut: bool


def task_of(recipe: Recipe) -> ClassificationTask:
    """Return the one classification task that a recipe's data sources name, for which the encoder is trained.

    Raises:
        UserError: The recipe names several tasks, or one that is not a classification task.
    """
    names = sorted({source.task for source in (*recipe.train, *recipe.validation, *recipe.held_out)})
    if len(names) > 1:
        raise UserError(f"Recipe {recipe.name!r}: tasks {', '.join(names)}. Allowed for an encoder: one task.")
    task = get_task(names[0])
    if not isinstance(task, ClassificationTask):
        raise UserError(
            f"Recipe {recipe.name!r}: an encoder answers with a label or a number, but task {task.name!r} requires "
            "something else. Allowed: tasks of classification, such as those of GLUE."
        )
    return task


def make_classifier_tokenizer(
    recipe: TokenizerRecipe, task: ClassificationTask, pairs: Sequence[TrainingPair], max_tokens: int
) -> PreTrainedTokenizerFast:
    """Return a new tokenizer for an encoder, which puts <cls> before the input and </s> after each text.

    Args:
        recipe: Kind of tokenizer: word-level for the built-in data, or a byte-level BPE with its vocabulary size.
        task: The task, which reads the input texts (one, or a pair) from the documents of `pairs`.
        pairs: Training pairs, on whose texts a BPE is trained; not used otherwise.
        max_tokens: Maximum length of an input in tokens, to which the tokenizer truncates on request.
    """
    texts = (text for pair in pairs for text in _texts(task, pair))
    tokenizer = builtin.build_tokenizer() if recipe.kind == "builtin" else trained_tokenizer(recipe.vocab_size, texts)
    tokenizer.add_special_tokens([CLS])
    special = [(token, tokenizer.token_to_id(token)) for token in (CLS, EOS)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {EOS}", pair=f"{CLS} $A {EOS} $B:1 {EOS}:1", special_tokens=special
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        sep_token=EOS,
        unk_token=UNK,
        cls_token=CLS,
        model_max_length=max_tokens,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def encode_texts(
    task: ClassificationTask, pairs: Sequence[TrainingPair], tokenizer: PreTrainedTokenizerFast, max_tokens: int
) -> list[LabelledExample]:
    """Tokenize the texts and labels of training pairs for an encoder.

    Args:
        task: The task, which reads the texts (one, or a pair) and the label from each pair's document.
        pairs: Training pairs with their documents.
        tokenizer: The encoder's tokenizer.
        max_tokens: Maximum length of an input in tokens; a longer one loses tokens at the end of its longer text.
    """
    if not pairs:
        return []
    columns = [list(column) for column in zip(*(_texts(task, pair) for pair in pairs), strict=True)]
    full_lengths = [len(ids) for ids in tokenizer(*columns, verbose=False)["input_ids"]]
    read = tokenizer(*columns, truncation=True, max_length=max_tokens, return_token_type_ids=True)
    label_type = np.float32 if task.is_regression else np.int64
    return [
        LabelledExample(
            np.array(ids), np.array([task.gold(_document(pair))], label_type), np.array(types), n > len(ids)
        )
        for pair, ids, types, n in zip(pairs, read["input_ids"], read["token_type_ids"], full_lengths, strict=True)
    ]


def pad_texts(examples: Sequence[LabelledExample], pad_id: int) -> Batch:
    """Stack B examples of unequal length into a batch, padded on the right to the longest one's T tokens.

    Returns:
        `input_ids` (padded with `pad_id`), `attention_mask` and `token_type_ids`, each [B, T]; and `labels`, [B].
    """
    sources = [example.source for example in examples]
    return {
        "input_ids": padded(sources, pad_id),
        "attention_mask": padded([np.ones_like(source) for source in sources], 0),
        "token_type_ids": padded([example.types for example in examples], 0),
        "labels": torch.from_numpy(np.concatenate([example.target for example in examples])),
    }


def _texts(task: ClassificationTask, pair: TrainingPair) -> tuple[str, ...]:
    return task.texts(_document(pair))


def _document(pair: TrainingPair) -> Document:
    assert pair.document is not None, "read for an encoder"
    return pair.document


def can_train_classifier(recipe: Recipe, start: Path) -> bool:
    """Return whether a recipe can train an encoder classifier from the checkpoint in folder `start`.

    The checkpoint must be an encoder, with or without a classifier, and every training task a classification task.

    Raises:
        UserError: The checkpoint has no configuration file.
    """
    tasks = [get_task(source.task) for source in recipe.train]
    asks_labels = all(isinstance(task, ClassificationTask) for task in tasks)
    return asks_labels and read_json(start / CONFIG).get("model_type") in FAMILIES


def new_classifier(
    architecture: ArchitectureRecipe, tokenizer: PreTrainedTokenizerFast, task: ClassificationTask
) -> transformers.PreTrainedModel:
    """Return a randomly initialized BERT classifier for the tokenizer's vocabulary and the task's labels.

    For a task with ratings instead of labels, the classifier has a single output (regression).
    """
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=architecture.d_model,
        num_hidden_layers=architecture.num_layers,
        num_attention_heads=architecture.num_heads,
        intermediate_size=architecture.d_ff,
        hidden_dropout_prob=architecture.dropout_rate,
        attention_probs_dropout_prob=architecture.dropout_rate,
        max_position_embeddings=architecture.max_positions,
        pad_token_id=tokenizer.pad_token_id,
        **_labels(task),
    )
    return transformers.BertForSequenceClassification._from_config(config, attn_implementation="eager")


def read_classifier(
    folder: Path, task: ClassificationTask
) -> tuple[transformers.PreTrainedModel, PreTrainedTokenizerFast]:
    """Load a classifier (as fp32) and its tokenizer from a checkpoint folder.

    An encoder without a classifier gets a new, randomly initialized one for the labels of `task`.

    Raises:
        UserError: The model family is not supported, or the classifier has another number of labels than the task.
    """
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if config.model_type not in FAMILIES:
        raise UserError(
            f"{folder}: model_type {config.model_type!r} is no encoder that can be trained to classify. "
            f"Allowed: {', '.join(sorted(FAMILIES))}."
        )
    n_labels = 1 if task.labels is None else len(task.labels)
    classifies = any(name.endswith("ForSequenceClassification") for name in config.architectures or ())
    if classifies and config.num_labels != n_labels:
        raise UserError(f"{folder}: has {config.num_labels} labels, but task {task.name!r} has {n_labels}.")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        local_files_only=True,
        use_safetensors=True,
        **({} if classifies else _labels(task)),
    )
    return model, load_tokenizer(folder)


def _labels(task: ClassificationTask) -> dict[str, object]:
    """Return the entries of a transformers configuration for a task's labels, or for regression if it has ratings."""
    if task.labels is None:
        return {"num_labels": 1, "problem_type": "regression"}
    return {
        "id2label": dict(enumerate(task.labels)),
        "label2id": {label: number for number, label in enumerate(task.labels)},
        "problem_type": "single_label_classification",
    }


_ROWS = 64
"""Rows per validation batch."""


def train_classifier(
    recipe: Recipe, text: TextData, start: Path | None, folder: Path, work: Path, on_step: Callable[[int], None]
) -> None:
    """Train a recipe's encoder classifier; write checkpoint, tokenizer, off-ramps, log and card to `folder`.

    Args:
        recipe: The recipe to train.
        text: Training and validation pairs of the recipe.
        start: Folder of the checkpoint to start from; None for a new model.
        folder: Existing, empty folder for the results.
        work: Folder of resume points; training continues from the latest one in it.
        on_step: Callback that receives the number of training steps done.

    Raises:
        UserError: The task is not a classification task, or the labels of the start checkpoint differ from the task's.
    """
    clock = TrainingClock(resume_point(work))
    settings, task = recipe.optimisation, task_of(recipe)
    prepare(recipe)
    model, tokenizer = _begin(recipe, text, start, task)
    model.to("cuda" if torch.cuda.is_available() else "cpu")

    def encoded(pairs: Sequence[TrainingPair]) -> list[LabelledExample]:
        return encode_texts(task, pairs, tokenizer, settings.max_tokens)

    portions: Portions = [
        (
            source.from_step,
            [*source.repeat * encoded([pair for pair, source_of_pair in text.train if source_of_pair is source])],
        )
        for source in recipe.train
    ]
    if not all(examples for _, examples in portions):
        raise UserError(f"Recipe {recipe.name!r}: a part of the training data repeats other parts, or held-out data.")
    validation = encoded(text.validation)
    objective, readers = make_classifier_objective(recipe, model)

    def batches(step: int) -> Iterator[Batch]:
        cut = islice(curriculum(portions, settings.batch_tokens, recipe.seed), step, None)
        return (pad_texts(cast(list[LabelledExample], examples), tokenizer.pad_token_id) for examples in cut)

    rows = minimise(recipe, model, objective, batches, work, on_step, clock)
    learned = nn.ModuleList([model, *([readers.learned] if readers.learned is not None else [])])
    if settings.saved_precision == "bf16":
        learned.bfloat16().float()
    validation_batches = [
        pad_texts(validation[start_row : start_row + _ROWS], tokenizer.pad_token_id)
        for start_row in range(0, len(validation), _ROWS)
    ]
    answers_LN, loss_L = predictions(readers, validation_batches)

    if settings.saved_precision == "bf16":
        learned.bfloat16()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if readers.off_ramps is not None:
        # Copies: a pooler shared by the blocks is written once per block.
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in readers.off_ramps.tensors.items()}
        save_off_ramps(folder / OFF_RAMPS_FILE, readers.off_ramps.kind, tensors)
    write_log(folder / TRAINING_LOG_FILE, rows)
    train_examples = [example for _, examples in portions for example in examples]
    counts = {
        "train_pairs": len(text.train),
        "train_examples_per_epoch": len(train_examples),
        "train_texts_truncated": sum(cast(LabelledExample, example).is_cut for example in train_examples),
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


def _quality(task: ClassificationTask, pairs: Sequence[TrainingPair], answers_LN: Tensor) -> dict[str, Any]:
    """Return the quality of each block's read-out on validation documents, for the model's card.

    Args:
        task: The task, which scores the predictions.
        pairs: Validation pairs with their documents.
        answers_LN: Predictions of each block (L) for each document (N), as label indices or ratings.

    Returns:
        `metric`: name of the task's main metric. `score`: its value per block. `token_accuracy`: share of correct
        labels per block; None for ratings.
    """
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
