"""Texts of lm-eval's requests to token ids, cut where they are too long: as lm-eval's backend for transformers does.

Its rules are followed to the token, so that scores at full depth are those of ``lm_eval --model hf``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval.models.utils import has_bos_prefix, resolve_max_length
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from exitbench.errors import UserError
from exitbench.harness.cells.prompts import Prompt
from exitbench.tasks.base import ModelKind


class Unscorable(UserError):
    """A text of one document has nothing to score, or more than the model reads; others of its task may be scored."""


@dataclass(frozen=True)
class Pair:
    """A context and what is scored behind it, in tokens.

    Attributes:
        context_ids: At least one.
        continuation_ids: At least one.
        n_cut: Tokens cut off the context's left, for which the model has no positions.
    """

    context_ids: tuple[int, ...]
    continuation_ids: tuple[int, ...]
    n_cut: int = 0


def reads_up_to(folder: Path, tokenizer: Any, max_positions: int | None) -> int:
    """Return how many tokens lm-eval has a model read: what its configuration or its tokenizer says, else 2048.

    Args:
        folder: The checkpoint.
        tokenizer: Its own.
        max_positions: Tokens that the model has positions for; None: any number.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    found = int(resolve_max_length(config, tokenizer))
    return found if max_positions is None else min(found, max_positions)


@dataclass(frozen=True)
class Encoding:
    """Makes token ids of a request.

    Attributes:
        tokenizer: The checkpoint's.
        kind: Of the model: of an encoder-decoder the context is the encoder's text, the continuation the decoder's.
        max_length: Tokens of context and answer together that are read; of an encoder-decoder, of each.
    """

    tokenizer: Any
    kind: ModelKind
    max_length: int

    @property
    def prefix_id(self) -> int:
        """What stands before a text without a context."""
        bos = self.tokenizer.bos_token_id
        return int(self.tokenizer.eos_token_id if bos is None else bos)

    def ids(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Token ids of a text; special tokens as the tokenizer adds them, unless asked or there already."""
        if add_special_tokens is None and has_bos_prefix(text, self.tokenizer.decode(self.prefix_id)):
            add_special_tokens = False
        special = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return list(self.tokenizer.encode(text, **special))

    def prompt(self, text: str, max_new_tokens: int) -> Prompt:
        """Tokens of a text to go on from.

        Raises:
            UserError: The longest answer leaves no room for it.
        """
        special = {}
        if self.kind == "causal" and has_bos_prefix(text, getattr(self.tokenizer, "bos_token", None)):
            special = {"add_special_tokens": False}
        ids = list(self.tokenizer(text, **special)["input_ids"])
        room = self.max_length - (max_new_tokens if self.kind == "causal" else 0)
        if room < 1:
            raise UserError(
                f"answers of up to {max_new_tokens} tokens leave no room in the {self.max_length} positions of the "
                "model; allowed: a smaller max_gen_toks in gen_kwargs."
            )
        return Prompt(ids[-room:], max(0, len(ids) - room))

    def pair(self, context: str, continuation: str, where: str) -> Pair:
        """Tokens of a context and of what is scored behind it.

        White space at the context's end is moved to the continuation. Of a decoder-only model both are read as one
        text, and the continuation is what goes beyond the context's own tokens.

        Args:
            context: May be empty.
            continuation: Scored.
            where: Document and choice, for messages.

        Raises:
            Unscorable: No token is left of the continuation, or it has more than the model has positions.
        """
        if context == "":
            ids = self.ids(continuation, add_special_tokens=False)
            before = [self.prefix_id]
            if ids and ids[0] == self.prefix_id:
                before, ids = ids[:1], ids[1:]
            return self._cut(before, ids, where, continuation)
        bare = context.rstrip()
        context, continuation = bare, context[len(bare) :] + continuation
        before = self.ids(context)
        if self.kind == "causal":
            ids = self.ids(context + continuation)[len(before) :]
        else:
            ids = self.ids(continuation, add_special_tokens=False)
        return self._cut(before, ids, where, continuation)

    def windows(self, text: str, where: str) -> list[Pair]:
        """Tokens of a whole text, in windows that together score each of its tokens once.

        Raises:
            Unscorable: The text has no tokens.
            UserError: The model is an encoder-decoder.
        """
        if self.kind != "causal":
            raise UserError(
                f"{where}: the log-likelihood of a whole text (loglikelihood_rolling) is for decoder-only models."
            )
        windows = get_rolling_token_windows(self.ids(text), self.prefix_id, self.max_length, 1)
        pairs = [make_disjoint_window(window) for window in windows]
        if not pairs:
            raise Unscorable(f"{where}: there is nothing to score: the text is empty.")
        return [Pair(tuple(before), tuple(scored)) for before, scored in pairs]

    def _cut(self, before: list[int], ids: list[int], where: str, continuation: str) -> Pair:
        if not ids:
            raise Unscorable(
                f"{where}: no token is left to score of {continuation[:40]!r}; the tokenizer may have merged it with "
                "its context. Allowed: continuations of one token or more."
            )
        if len(ids) > self.max_length:
            raise Unscorable(
                f"{where}: {len(ids)} tokens are to be scored, but the model reads {self.max_length}; allowed: as many."
            )
        # Decoder-only: the last scored token is not read itself, so that one more fits.
        room = self.max_length + 1 - len(ids) if self.kind == "causal" else self.max_length
        return Pair(tuple(before[-room:]), tuple(ids), max(0, len(before) - room))
