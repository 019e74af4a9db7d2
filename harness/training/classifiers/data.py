"""What a classifier learns on: texts and pairs of texts with a label or a number each, cut to the longest it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from exitbench.errors import UserError
from exitbench.harness.training.data import EOS, PAD, UNK, Batch, Example, Pair, padded, trained_tokenizer
from exitbench.harness.training.recipe import Recipe, TokenizerRecipe
from exitbench.tasks import builtin
from exitbench.tasks.classification import ClassificationTask
from exitbench.tasks.document import Document
from exitbench.tasks.registry import get_task

CLS = "<cls>"


@dataclass(frozen=True)
class LabelledExample(Example):
    """One text or pair of texts, tokenised: `source` is what is read, `target` the label alone.

    Attributes:
        types: 1 for the tokens of the second text.
        is_cut: Whether it was longer than what is read.
    """

    types: np.ndarray
    is_cut: bool


def task_of(recipe: Recipe) -> ClassificationTask:
    """Return the task that a classifier is trained for.

    Raises:
        UserError: The recipe names several, or one that asks for something else.
    """
    names = sorted({source.task for source in (*recipe.train, *recipe.validation, *recipe.held_out)})
    if len(names) > 1:
        raise UserError(f"Recipe {recipe.name!r}: tasks {', '.join(names)}. Allowed for an encoder: one task.")
    task = get_task(names[0])
    if not isinstance(task, ClassificationTask):
        raise UserError(
            f"Recipe {recipe.name!r}: an encoder answers with a label or a number, but task {task.name!r} asks for "
            "something else. Allowed: tasks of classification, such as those of GLUE."
        )
    return task


def make_classifier_tokenizer(
    recipe: TokenizerRecipe, task: ClassificationTask, pairs: Sequence[Pair], max_tokens: int
) -> PreTrainedTokenizerFast:
    """The tokenizer of a recipe, with <cls> before a text, and </s> behind each text of a pair."""
    texts = (text for pair in pairs for text in _texts(task, pair))
    made = builtin.build_tokenizer() if recipe.kind == "builtin" else trained_tokenizer(recipe.vocab_size, texts)
    made.add_special_tokens([CLS])
    special = [(token, made.token_to_id(token)) for token in (CLS, EOS)]
    made.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {EOS}", pair=f"{CLS} $A {EOS} $B:1 {EOS}:1", special_tokens=special
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token=PAD,
        sep_token=EOS,
        unk_token=UNK,
        cls_token=CLS,
        model_max_length=max_tokens,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def encode_texts(
    task: ClassificationTask, pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerFast, max_tokens: int
) -> list[LabelledExample]:
    """Tokenise texts; of those that are too long the longer text is cut, at its end."""
    if not pairs:
        return []
    columns = [list(column) for column in zip(*(_texts(task, pair) for pair in pairs), strict=True)]
    whole = [len(ids) for ids in tokenizer(*columns, verbose=False)["input_ids"]]
    read = tokenizer(*columns, truncation=True, max_length=max_tokens, return_token_type_ids=True)
    label_type = np.float32 if task.is_regression else np.int64
    return [
        LabelledExample(
            np.array(ids), np.array([task.gold(_document(pair))], label_type), np.array(types), n > len(ids)
        )
        for pair, ids, types, n in zip(pairs, read["input_ids"], read["token_type_ids"], whole, strict=True)
    ]


def pad_texts(examples: Sequence[LabelledExample], pad_id: int) -> Batch:
    """Stack examples of unequal length: ids, mask and types [B, T], labels [B]."""
    sources = [example.source for example in examples]
    return {
        "input_ids": padded(sources, pad_id),
        "attention_mask": padded([np.ones_like(source) for source in sources], 0),
        "token_type_ids": padded([example.types for example in examples], 0),
        "labels": torch.from_numpy(np.concatenate([example.target for example in examples])),
    }


def _texts(task: ClassificationTask, pair: Pair) -> tuple[str, ...]:
    return task.texts(_document(pair))


def _document(pair: Pair) -> Document:
    assert pair.document is not None, "read for an encoder"
    return pair.document
