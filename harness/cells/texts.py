"""Texts of classification tasks as an encoder reads them, cut where too long; and the labels of task and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.harness.cells.cell import GenerationSettings

_PAIR: Final = 2


@dataclass(frozen=True)
class EncodedText:
    """A text, or a pair, as the model reads it.

    Attributes:
        ids: Token ids, special tokens included.
        types: Which text each token belongs to; None where the tokenizer does not tell.
        seed: Of the row, the same in every batch.
        n_cut: Tokens cut off because the model has no more positions, or fewer were asked for.
    """

    ids: tuple[int, ...]
    types: tuple[int, ...] | None
    seed: int
    n_cut: int = 0


class TextEncoding:
    """Makes token ids of texts and pairs.

    Args:
        tokenizer: The checkpoint's.
        generation: What the cell asks: the longest input, and where it is cut (on the right, where nothing is said).
        max_positions: Tokens that the model has positions for.
    """

    def __init__(self, tokenizer: Any, generation: GenerationSettings, max_positions: int) -> None:
        self._tokenizer = tokenizer
        self.longest = min(max_positions, generation.max_prompt_tokens or max_positions)
        self.drops = generation.truncate == "drop"
        self._side = "left" if generation.truncate == "left" else "right"

    def __call__(self, texts: Sequence[str], seed: int) -> EncodedText:
        """Return the tokens of a text or a pair; of a pair the longer one is cut first.

        Raises:
            UserError: There is not one text, or two; or special tokens alone are too long.
        """
        if not 1 <= len(texts) <= _PAIR:
            raise UserError(f"a classifier reads a text or a pair, not {len(texts)} texts.")
        made = self._tokenizer(*texts, truncation=False)
        n_cut = len(made["input_ids"]) - self.longest
        if n_cut > 0 and not self.drops:
            made = self._cut(texts)
        types = made.get("token_type_ids")
        return EncodedText(tuple(made["input_ids"]), None if types is None else tuple(types), seed, max(0, n_cut))

    def _cut(self, texts: Sequence[str]) -> Mapping[str, list[int]]:
        side = self._tokenizer.truncation_side
        self._tokenizer.truncation_side = self._side
        try:
            cut: Mapping[str, list[int]] = self._tokenizer(*texts, truncation="longest_first", max_length=self.longest)
        except Exception as error:  # fewer tokens than special ones
            raise UserError(f"inputs cannot be cut to {self.longest} tokens ({error}).") from error
        finally:
            self._tokenizer.truncation_side = side
        return cut


def label_places(task: str, asked: Sequence[str] | None, has: Sequence[str]) -> tuple[int, ...]:
    """Return the place in a task's labels of each of a model's: by name where names are the same, else in order.

    Args:
        task: Its name.
        asked: Its labels; None of a regression.
        has: What the checkpoint calls its own; one of a regressor.

    Raises:
        UserError: They are not as many.
    """
    wanted = 1 if asked is None else len(asked)
    if len(has) != wanted:
        what = "a number (regression)" if asked is None else f"one of {wanted} labels ({', '.join(asked)})"
        gives = "a number (regression)" if len(has) == 1 else f"one of {len(has)} labels ({', '.join(has)})"
        raise UserError(
            f"{task!r} asks for {what}, and the model gives {gives}; allowed: a model trained for the task."
        )
    if asked is None:
        return (0,)
    names = [name.casefold() for name in asked]
    own = [name.casefold() for name in has]
    return tuple(names.index(name) for name in own) if sorted(names) == sorted(own) else tuple(range(wanted))
