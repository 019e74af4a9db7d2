"""lm-eval drives, our decode loop generates: the adapter between the two.

Everything a request needs to be traced is kept with it (lm-eval's own numbers for documents are ordinals of a subset).
Budgets count new decoder tokens; stop strings are looked for in new tokens only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text

from exitbench.errors import UserError
from exitbench.harness.cells.prompts import Prompt, Prompts
from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.running.batches import in_batches
from exitbench.methods.base import Parts

# It warns about every task whose records we hand over ourselves.
logging.getLogger("lm_eval").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Answer:
    """What one document got: its prompt's length in tokens, the traced generation, the text, and what was cut off.

    ``n_cut`` is of the prompt, in tokens; None where nothing may be cut.
    """

    n_prompt: int
    generation: Generation
    text: str
    n_cut: int | None = None


class EarlyExitLM(TemplateLM):  # type: ignore[misc]
    """A checkpoint with a method, as lm-eval sees it.

    Args:
        checkpoint: The model.
        prompts: Makes token ids of prompts, with its transformers tokenizer, as the cell asks.
        parts: The method.
        rows: Documents decoded together, at most.
        seed_of: Seed of a document, by its key.
        on_answers: Told how many documents have been answered.
    """

    tokenizer_name = "exitbench"

    def __init__(
        self,
        checkpoint: Checkpoint,
        prompts: Prompts,
        parts: Parts,
        rows: int,
        seed_of: Callable[[str], int],
        on_answers: Callable[[int], None],
    ) -> None:
        super().__init__()
        self.backend = checkpoint.kind
        self.checkpoint, self.prompts, self.tokenizer, self.parts = checkpoint, prompts, prompts.tokenizer, parts
        self.rows, self.seed_of, self.on_answers = rows, seed_of, on_answers
        self.answers: dict[str, Answer] = {}

    @property
    def eot_token_id(self) -> int:
        """End-of-text token."""
        return int(self.tokenizer.eos_token_id)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids of a text, with the special tokens that the checkpoint's tokenizer adds."""
        return list(self.tokenizer(string, add_special_tokens=add_special_tokens is not False)["input_ids"])

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer generation requests; returns texts in the order of the requests."""
        # Alike settings in one batch, rows of alike length together; answers are found again by key.
        prepared = [(request.doc["doc_key"], *request.args) for request in requests]
        groups: dict[tuple[int, tuple[str, ...]], list[tuple[str, Prompt]]] = {}
        for key, prompt, raw in prepared:
            kwargs = normalize_gen_kwargs(dict(raw), default_max_gen_toks=128)
            settings = (kwargs["max_gen_toks"], tuple(kwargs["until"]))
            groups.setdefault(settings, []).append((key, self.prompts(prompt)))
        for (max_new_tokens, stop), items in groups.items():
            self._answer_all(items, max_new_tokens, stop)
        return [self.answers[key].text for key, _, _ in prepared]

    def answer(self, prompts: Mapping[str, str]) -> None:
        """Answer prompts by document key, without lm-eval; the answers are in `answers`."""
        items, asked = [(key, self.prompts(prompt)) for key, prompt in prompts.items()], self.prompts.generation
        self._answer_all(items, asked.max_new_tokens, asked.stop)

    def _answer_all(self, items: list[tuple[str, Prompt]], max_new_tokens: int, stop: tuple[str, ...]) -> None:
        items.sort(key=lambda item: (len(item[1].ids), item[0]))

        def answer(batch: Sequence[tuple[str, Prompt]]) -> None:
            self._answer(batch, max_new_tokens, stop)

        in_batches(items, self.rows, answer, lambda done: self.on_answers(len(self.answers)))

    def _answer(self, items: Sequence[tuple[str, Prompt]], max_new_tokens: int, stop: tuple[str, ...]) -> None:
        requests = [Request(prompt.ids, self.seed_of(key)) for key, prompt in items]
        asked = self.prompts.generation
        gates_first = asked.gates_first_token
        batch = prefill(self.checkpoint.model, requests, max_new_tokens, gates_first_token=gates_first)
        is_stopped = None
        if stop:

            def is_stopped(token_ids: list[int]) -> bool:
                text = self.tokenizer.decode(token_ids, skip_special_tokens=True)
                return any(string in text for string in stop)

        generations = decode(self.checkpoint, batch, self.parts, is_stopped, asked)
        for (key, prompt), generation in zip(items, generations, strict=True):
            text = self.tokenizer.decode(generation.token_ids, skip_special_tokens=True)
            cut_text = postprocess_generated_text(text, list(stop), None)
            self.answers[key] = Answer(len(prompt.ids), generation, cut_text, prompt.n_cut)

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, **kwargs: Any) -> list[Any]:
        raise UserError("likelihood tasks are not supported yet; allowed: tasks that generate text.")

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """Refuse: rolling likelihood is undefined for encoder-decoder models and exits."""
        raise UserError("rolling likelihood is not supported; allowed: tasks that generate text.")
