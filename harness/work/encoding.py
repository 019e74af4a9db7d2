"""Encode texts of lm-eval's requests to token ids, truncated in the same way as in lm-eval's transformers backend.

The rules of the backend are followed exactly, so that scores at full depth equal those of ``lm_eval --model hf``.
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
    """A text of a document has no tokens to score, or more than the model reads. Other documents may be scored."""


@dataclass(frozen=True)
class EncodedPair:
    """Token ids of a context and its continuation.

    Attributes:
        context_ids: Token ids of the context, at least one.
        continuation_ids: Token ids of the continuation, at least one.
        n_cut: Number of tokens cut off at the context's left, for which the model has no positions.
    """

    context_ids: tuple[int, ...]
    continuation_ids: tuple[int, ...]
    n_cut: int = 0


def reads_up_to(folder: Path, tokenizer: Any, max_positions: int | None) -> int:
    """Return the maximum number of tokens that a model reads under lm-eval: from configuration or tokenizer, else 2048.

    Args:
        folder: Folder of the checkpoint.
        tokenizer: The checkpoint's tokenizer.
        max_positions: Number of positions of the model; None if unlimited.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    longest = int(resolve_max_length(config, tokenizer))
    return longest if max_positions is None else min(longest, max_positions)


@dataclass(frozen=True)
class Encoding:
    """Encoder of lm-eval's requests to token ids.

    Attributes:
        tokenizer: The checkpoint's tokenizer.
        kind: Kind of the model. An encoder-decoder reads the context in the encoder, the continuation in the decoder.
        max_length: Maximum number of tokens of context and answer together; for an encoder-decoder, of each.
    """

    tokenizer: Any
    kind: ModelKind
    max_length: int

    @property
    def prefix_id(self) -> int:
        """Token that is put before a text without a context."""
        bos = self.tokenizer.bos_token_id
        return int(self.tokenizer.eos_token_id if bos is None else bos)

    def ids(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Return the token ids of a text; by default with special tokens, unless the text already begins with them."""
        if add_special_tokens is None and has_bos_prefix(text, self.tokenizer.decode(self.prefix_id)):
            add_special_tokens = False
        special = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return list(self.tokenizer.encode(text, **special))

    def prompt(self, text: str, max_new_tokens: int) -> Prompt:
        """Return the tokens of a prompt that the model continues, truncated on the left.

        Raises:
            UserError: The answer length leaves no room for the prompt.
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

    def pair(self, context: str, continuation: str, location: str) -> EncodedPair:
        """Return the tokens of a context and its continuation.

        White space at the context's end is moved to the continuation. For a decoder-only model, both are tokenized as
        one text, and the continuation is the part after the tokens of the context alone.

        Args:
            context: Context; may be empty.
            continuation: Text to score.
            location: Document and choice, for messages.

        Raises:
            Unscorable: The continuation has no tokens of its own, or more than the model's positions.
        """
        if context == "":
            ids = self.ids(continuation, add_special_tokens=False)
            before = [self.prefix_id]
            if ids and ids[0] == self.prefix_id:
                before, ids = ids[:1], ids[1:]
            return self._cut(before, ids, location, continuation)
        bare = context.rstrip()
        context, continuation = bare, context[len(bare) :] + continuation
        before = self.ids(context)
        if self.kind == "causal":
            ids = self.ids(context + continuation)[len(before) :]
        else:
            ids = self.ids(continuation, add_special_tokens=False)
        return self._cut(before, ids, location, continuation)

    def windows(self, text: str, location: str) -> list[EncodedPair]:
        """Return the tokens of a whole text, divided into windows so that each token is scored exactly once.

        Raises:
            Unscorable: The text has no tokens.
            UserError: The model is an encoder-decoder.
        """
        if self.kind != "causal":
            raise UserError(
                f"{location}: the log-likelihood of a whole text (loglikelihood_rolling) is for decoder-only models."
            )
        windows = get_rolling_token_windows(self.ids(text), self.prefix_id, self.max_length, 1)
        pairs = [make_disjoint_window(window) for window in windows]
        if not pairs:
            raise Unscorable(f"{location}: there is nothing to score: the text is empty.")
        return [EncodedPair(tuple(before), tuple(scored)) for before, scored in pairs]

    def _cut(self, before: list[int], ids: list[int], location: str, continuation: str) -> EncodedPair:
        if not ids:
            raise Unscorable(
                f"{location}: no token is left to score of {continuation[:40]!r}; the tokenizer may have merged it "
                "with its context. Allowed: continuations of one token or more."
            )
        if len(ids) > self.max_length:
            raise Unscorable(
                f"{location}: {len(ids)} tokens are to be scored, but the model reads {self.max_length}; allowed: "
                "as many."
            )
        # Decoder-only: the last scored token is not read itself, so one more token fits.
        room = self.max_length + 1 - len(ids) if self.kind == "causal" else self.max_length
        return EncodedPair(tuple(before[-room:]), tuple(ids), max(0, len(before) - room))
