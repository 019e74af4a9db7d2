"""The encoder that a training starts from: drawn anew, or a checkpoint's."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.files import CONFIG
from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer
from exitbench.harness.engine.encoders.families import FAMILIES
from exitbench.harness.reading.regular_files import read_json
from exitbench.harness.training.recipe import ArchitectureRecipe, Recipe
from exitbench.tasks.classification import ClassificationTask
from exitbench.tasks.registry import get_task


def may_learn_labels(recipe: Recipe, start: Path) -> bool:
    """Whether a checkpoint is an encoder, with or without a classifier, and the recipe's tasks ask for labels.

    Raises:
        UserError: The checkpoint has no configuration.
    """
    tasks = [get_task(source.task) for source in recipe.train]
    asks_labels = all(isinstance(task, ClassificationTask) for task in tasks)
    return asks_labels and read_json(start / CONFIG).get("model_type") in FAMILIES


def new_classifier(
    architecture: ArchitectureRecipe, tokenizer: PreTrainedTokenizerFast, task: ClassificationTask
) -> transformers.PreTrainedModel:
    """A freshly drawn encoder of the tokenizer's vocabulary and the task's labels."""
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
    """Model and tokenizer of a checkpoint folder, as fp32; an encoder without a classifier is given a new one.

    Raises:
        UserError: Its family is not supported, or it classifies into other labels than the task has.
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
    """What a configuration says of a task's labels."""
    if task.labels is None:
        return {"num_labels": 1, "problem_type": "regression"}
    return {
        "id2label": dict(enumerate(task.labels)),
        "label2id": {label: number for number, label in enumerate(task.labels)},
        "problem_type": "single_label_classification",
    }
