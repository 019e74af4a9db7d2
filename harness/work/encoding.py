"""Encode the texts of lm-eval's requests to token ids, truncated in the same way as in lm-eval's transformers backend.

The rules of that backend are followed exactly, so that scores at full depth equal those of ``lm_eval --model hf``.
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
    """Raised if a text of a document has no tokens to score, or more tokens than the model reads.

    The document is left out; other documents can still be scored.
    """


@dataclass(frozen=True)
class EncodedPair:
    """Token ids of a context and its continuation.

    Attributes:
        context_ids: Token ids of the context, at least one.
        continuation_ids: Token ids of the continuation, at least one.
        n_cut: Number of tokens removed from the left of the context because the model has too few positions.
    """

    context_ids: tuple[int, ...]
    continuation_ids: tuple[int, ...]
    n_cut: int = 0


def reads_up_to(folder: Path, tokenizer: Any, max_positions: int | None) -> int:
    """Return the maximum number of tokens that lm-eval feeds to a model.

    lm-eval takes it from the model's configuration or the tokenizer, or 2048 by default; the model's positions also
    limit it.

    Args:
        folder: Folder of the checkpoint.
        tokenizer: The checkpoint's tokenizer.
        max_positions: Number of token positions of the model; None if unlimited.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    longest = int(resolve_max_length(config, tokenizer))
    return longest if max_positions is None else min(longest, max_positions)


@dataclass(frozen=True)
class Encoding:
    """Encoder that turns the texts of lm-eval's requests into token ids.

    Attributes:
        tokenizer: The checkpoint's tokenizer.
        kind: ``causal`` or ``seq2seq``. An encoder-decoder reads the context in the encoder, the continuation in the
            decoder.
        max_length: Maximum number of tokens of context and answer together; for an encoder-decoder, of each separately.
    """

    tokenizer: Any
    kind: ModelKind
    max_length: int

    @property
    def prefix_id(self) -> int:
        """Id of the token that replaces an empty context: the tokenizer's BOS token, or EOS if it has no BOS token."""
        bos = self.tokenizer.bos_token_id
        return int(self.tokenizer.eos_token_id if bos is None else bos)

    def ids(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: The text.
            add_special_tokens: Whether to add special tokens; None adds the tokenizer's default ones, unless the text
                already begins with token `prefix_id`.
        """
        if add_special_tokens is None and has_bos_prefix(text, self.tokenizer.decode(self.prefix_id)):
            add_special_tokens = False
        special = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return list(self.tokenizer.encode(text, **special))

    def prompt(self, text: str, max_new_tokens: int) -> Prompt:
        """Return a prompt's token ids, truncated on the left so that the answer also fits, and the number cut off.

        Raises:
            UserError: Answers of `max_new_tokens` tokens leave no position for the prompt.
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
        """Return the token ids of a context and of the continuation to score after it.

        White space at the context's end is moved to the continuation. For a decoder-only model, both are tokenized as
        one text, and the continuation is the part after the tokens of the context alone.

        Args:
            context: Context; may be empty.
            continuation: Text to score.
            location: Name of the document, for error messages.

        Raises:
            Unscorable: The continuation has no token (after merges with the context), or more than the model has
                positions.
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
        """Return a text's token ids as windows of context and tokens to score, so that each token is scored once.

        Args:
            text: The whole text to score.
            location: Name of the document, for error messages.

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
