"""Prompt lookup: tokens are drafted by looking up n-grams in prompt and answer, and verified at full depth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exitbench.errors import UserError
from exitbench.methods.base import NOTHING_FITTED, BlockView, Gate, Method, Parts, param
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import Speculation
from exitbench.methods.registry import register
from exitbench.methods.thresholds import Constant

_FOUND = "looked_up_A"


class RepeatedText(Gate):
    """Gate that scores 1 if the text so far ends in an n-gram that occurred before, else 0.

    The draft is the token that followed the n-gram's first occurrence.

    Args:
        longest: Length in tokens of the longest n-gram to look up; shorter ones are tried if it did not occur before.
    """

    remembers: ClassVar[bool] = True
    reads_logits: ClassVar[bool] = False

    def __init__(self, longest: int) -> None:
        self._longest = longest

    def score(self, view: BlockView) -> Tensor:
        """Return 1 for active rows whose last n-gram occurred before, else 0, [A]; store the drafts for `draft`."""
        texts = view.active.texts_A or (((), ()),) * len(view.positions_A)
        found = [next_token([*prompt_ids, *answer_ids], self._longest) for prompt_ids, answer_ids in texts]
        # Token 0 is a draft only if a threshold lets every row leave; it is then verified as any other.
        view.memory[_FOUND] = torch.tensor([token_id or 0 for token_id in found], device=view.hidden_AD.device)
        return torch.tensor([float(token_id is not None) for token_id in found], device=view.hidden_AD.device)

    def draft(self, view: BlockView) -> Tensor:
        """Return the draft that `score` found for each row of the batch, [A]."""
        return view.memory[_FOUND]


def next_token(text: Sequence[int], longest: int) -> int | None:
    """Return the token after the first earlier occurrence of the text's last n-gram, or None if there is none.

    n-grams of length ``longest`` are tried first, then shorter ones, as in transformers' prompt lookup.

    Examples:
        >>> next_token([5, 6, 7, 8, 5, 6], longest=2)
        7
        >>> next_token([5, 6, 7], longest=2) is None
        True
    """
    for n in range(min(longest, len(text) - 1), 0, -1):
        ngram, start = list(text[-n:]), 0
        while True:
            try:
                start = text.index(ngram[0], start, len(text) - n)
            except ValueError:
                break
            if list(text[start : start + n]) == ngram:
                return text[start + n]
            start += 1
    return None


@register
@dataclass(frozen=True)
class PromptLookup(Method):
    """Draft the tokens that followed the text's last n-gram earlier in the text; verify them in one full-depth pass.

    A draft still runs block 1, since no token can have a smaller exit layer. Only drafts that are full depth's choice
    are kept, so the answer equals that of greedy full depth up to rounding.
    """

    name: ClassVar[str] = "prompt-lookup"
    source: ClassVar[str] = "prompt lookup decoding (Saxena 2023)"

    drafts: int = param(3, "tokens drafted before they are verified", low=1)
    ngram_tokens: int = param(2, "longest n-gram that is looked up", low=1)

    def check(self, n_blocks: int) -> None:
        """Raise UserError if the model has only one block, since drafts exit after block 1."""
        if n_blocks < 2:
            raise UserError(f"{self.name}: drafts exit after block 1, and the model has no other block.")

    def parts(self, n_blocks: int, fitted: Mapping[str, Tensor] = NOTHING_FITTED) -> Parts:
        """Return gate, threshold, head and KV policy; the gate is evaluated at block 1 only."""
        return Parts(RepeatedText(self.ngram_tokens), Constant(0.5), LMHead(), Speculation(self.drafts), frozenset({1}))
