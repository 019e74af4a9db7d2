"""Encode texts of classification tasks for an encoder, and match the labels of task and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.harness.cells.cell import GenerationSettings

_PAIR: Final = 2


@dataclass(frozen=True)
class EncodedText:
    """Model input of a text, or of a pair of texts.

    Attributes:
        ids: Token ids, special tokens included.
        types: For each token, the index of the text to which it belongs; None if the tokenizer does not return it.
        seed: Seed of the method's random numbers for this text, independent of the batch.
        n_cut: Number of tokens beyond the length limit; they are cut off unless the suite excludes long texts.
    """

    ids: tuple[int, ...]
    types: tuple[int, ...] | None
    seed: int
    n_cut: int = 0


class TextEncoding:
    """Converter of a text, or a pair of texts, to token ids of limited length.

    Args:
        tokenizer: The checkpoint's tokenizer.
        generation: Settings of the cell: the longest input, and the side on which it is cut (right by default).
        max_positions: Number of positions of the model.
    """

    def __init__(self, tokenizer: Any, generation: GenerationSettings, max_positions: int) -> None:
        self._tokenizer = tokenizer
        self.longest = min(max_positions, generation.max_prompt_tokens or max_positions)
        self.drops = generation.truncate == "drop"
        self._side = "left" if generation.truncate == "left" else "right"

    def __call__(self, texts: Sequence[str], seed: int) -> EncodedText:
        """Return the model input of one text or of a pair; too long inputs are cut, unless ``truncate`` is ``drop``.

        Tokens are removed from the longer text of a pair first.

        Args:
            texts: One text, or the two texts of a pair.
            seed: Seed to store in the result.

        Raises:
            UserError: There are neither one nor two texts, or the special tokens alone are too long.
        """
        if not 1 <= len(texts) <= _PAIR:
            raise UserError(f"a classifier reads a text or a pair, not {len(texts)} texts.")
        encoded = self._tokenizer(*texts, truncation=False)
        n_cut = len(encoded["input_ids"]) - self.longest
        if n_cut > 0 and not self.drops:
            encoded = self._cut(texts)
        types = encoded.get("token_type_ids")
        return EncodedText(tuple(encoded["input_ids"]), None if types is None else tuple(types), seed, max(0, n_cut))

    def _cut(self, texts: Sequence[str]) -> Mapping[str, list[int]]:
        side = self._tokenizer.truncation_side
        self._tokenizer.truncation_side = self._side
        try:
            cut: Mapping[str, list[int]] = self._tokenizer(*texts, truncation="longest_first", max_length=self.longest)
        except Exception as error:  # the limit is below the number of special tokens
            raise UserError(f"inputs cannot be cut to {self.longest} tokens ({error}).") from error
        finally:
            self._tokenizer.truncation_side = side
        return cut


def label_indices(task: str, wanted_labels: Sequence[str] | None, labels: Sequence[str]) -> tuple[int, ...]:
    """Return, for each label of a model, the index of the matching label of the task.

    Labels are matched by name, ignoring case, if task and model have the same names; otherwise by position.

    Args:
        task: Name of the task.
        wanted_labels: Labels of the task; None for a regression.
        labels: Labels of the checkpoint; one for a regression.

    Raises:
        UserError: Task and checkpoint have different numbers of labels.
    """
    wanted = 1 if wanted_labels is None else len(wanted_labels)
    if len(labels) != wanted:
        what = (
            "a number (regression)" if wanted_labels is None else f"one of {wanted} labels ({', '.join(wanted_labels)})"
        )
        gives = "a number (regression)" if len(labels) == 1 else f"one of {len(labels)} labels ({', '.join(labels)})"
        raise UserError(
            f"{task!r} requires {what}, and the model gives {gives}; allowed: a model trained for the task."
        )
    if wanted_labels is None:
        return (0,)
    names = [name.casefold() for name in wanted_labels]
    model_names = [name.casefold() for name in labels]
    return (
        tuple(names.index(name) for name in model_names)
        if sorted(names) == sorted(model_names)
        else tuple(range(wanted))
    )
