"""Adapter between lm-eval, which sends requests, and this project's decode loop, which generates and scores.

Each request's trace is stored under its document's key, since lm-eval's document numbers hold only within a subset of
the documents. Answer lengths count new decoder tokens; stop strings are searched in new tokens only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text

from exitbench.errors import UserError
from exitbench.harness.cells.prompts import Prompt, Prompts, render_turns
from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.stream import Stream
from exitbench.harness.work.encoding import Encoding
from exitbench.harness.work.scored_texts import ScoredText, TextRequest, score_texts
from exitbench.methods.base import Parts, Threshold


@dataclass(frozen=True)
class DocumentAnswer:
    """Generated answer to one document.

    Attributes:
        n_prompt: Number of prompt tokens.
        generation: The generated tokens with their trace.
        text: Text of the answer, cut at the first stop string.
        n_cut: Number of prompt tokens cut off; None if the settings do not allow truncation of prompts.
    """

    n_prompt: int
    generation: Generation
    text: str
    n_cut: int | None = None


@dataclass(frozen=True)
class RequestKey:
    """Cache key of an answer decoded in a shared pass (one decode for several cells that differ in the threshold).

    It contains document key, prompt and decoding limits. Model, method and settings are the same for all these cells.
    """

    key: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    stop: tuple[str, ...]


AnswerCache = dict[RequestKey, DocumentAnswer]
"""Answers by cache key."""


@dataclass(frozen=True)
class SharedCell:
    """Another cell answered by the same decode pass: its threshold, and the cache that receives its answers."""

    threshold: Threshold
    answers: AnswerCache


class EarlyExitLM(TemplateLM):  # type: ignore[misc]
    """lm-eval model (`TemplateLM`) that answers requests with a checkpoint and an early-exit method.

    Args:
        checkpoint: The model.
        prompts: Encoder of prompts with the cell's settings; contains the transformers tokenizer.
        parts: The method's parts.
        rows: Maximum number of documents decoded together.
        seed_of: Function that returns a document's seed, given its key.
        on_answers: Callback that receives the number of documents answered so far.
        encoding: Encoder for requests of lm-eval's own tasks, whose prompts are complete; None for this project's
            tasks, which only generate.
        key_of: Function that returns the document key of an lm-eval request.

    Attributes:
        cached_answers: This cell's answers that the pass of another cell has already decoded.
        shared_cells: Other cells answered by the same pass.
        shared_rows: Maximum number of batch rows decoded together if the pass is shared; ``rows`` applies if it is
            larger.
        on_abandon: Callback for a failure of the shared pass, called before this cell continues alone.
        answers: Generated answers by document key.
        scored: Scored texts by document key, in the order of the document's requests.
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
        encoding: Encoding | None = None,
        key_of: Callable[[Instance], str] = lambda request: str(request.doc["doc_key"]),
    ) -> None:
        super().__init__()
        self.backend = checkpoint.kind
        self.checkpoint, self.prompts, self.tokenizer, self.parts = checkpoint, prompts, prompts.tokenizer, parts
        self.rows, self.seed_of, self.on_answers = rows, seed_of, on_answers
        self.encoding, self.key_of = encoding, key_of
        self.answers: dict[str, DocumentAnswer] = {}
        self.scored: dict[str, list[ScoredText]] = {}
        self.cached_answers: AnswerCache = {}
        self.shared_cells: Sequence[SharedCell] = ()
        self.shared_rows = rows
        self.on_abandon: Callable[[], None] = lambda: None

    @property
    def eot_token_id(self) -> int:
        """Id of the end-of-text token."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """Id of the token that lm-eval uses in place of an empty context."""
        return self.eot_token_id if self.encoding is None else self.encoding.prefix_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Return the token ids of a text; by default with the special tokens that the checkpoint's tokenizer adds."""
        if self.encoding is not None:
            return self.encoding.ids(string, add_special_tokens)
        return list(self.tokenizer(string, add_special_tokens=add_special_tokens is not False)["input_ids"])

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the messages of a chat as one text, rendered by the checkpoint's chat template."""
        return render_turns(self.tokenizer, chat_history, add_generation_prompt=add_generation_prompt)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generate answers to lm-eval's requests; return their texts in the order of the requests.

        A repeated request is answered once: decoding is greedy, and random methods are seeded per document.

        Raises:
            UserError: A document has several different generation requests.
        """
        prepared = {self.key_of(request): request for request in requests}
        if len({(self.key_of(request), request.idx) for request in requests}) > len(prepared):
            raise UserError("a document requires several texts; allowed: tasks with one text a document.")
        # Same settings share a batch, similar lengths are adjacent; answers are looked up by key.
        groups: dict[tuple[int, tuple[str, ...]], list[tuple[str, Prompt]]] = {}
        for key, request in prepared.items():
            text, raw = request.args
            kwargs = normalize_gen_kwargs(dict(raw))
            settings = (kwargs["max_gen_toks"], tuple(kwargs["until"]))
            prompt = self.prompts(text) if self.encoding is None else self.encoding.prompt(text, settings[0])
            groups.setdefault(settings, []).append((key, prompt))
        for (max_new_tokens, stop), items in groups.items():
            self._answer_all(items, max_new_tokens, stop)
        return [self.answers[self.key_of(request)].text for request in requests]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Score continuations of contexts; return (log-probability, whether all tokens are greedy) per request.

        Raises:
            UserError: A continuation is empty or longer than the model's positions, or the method provides no
                log-probabilities.
        """
        return [(text.logprob, text.is_greedy) for text in self._score(requests)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Score whole texts; return the log-probability of each text in the order of the requests.

        Raises:
            UserError: The model is an encoder-decoder, a text is empty, or the method provides no log-probabilities.
        """
        return [text.logprob for text in self._score(requests)]

    def _score(self, requests: list[Instance]) -> list[ScoredText]:
        if self.encoding is None:
            raise UserError("tasks of ExitBench generate text; only tasks of lm-eval request log-likelihoods.")
        distinct = {(self.key_of(request), request.idx): request for request in requests}
        requested_texts = [
            TextRequest.encode(self.encoding, key, *distinct[key, index].args) for key, index in sorted(distinct)
        ]
        self.score(requested_texts, self.on_answers)
        order: dict[str, list[int]] = {}
        for key, index in sorted(distinct):
            order.setdefault(key, []).append(index)
        keys = [self.key_of(request) for request in requests]
        return [self.scored[key][order[key].index(request.idx)] for key, request in zip(keys, requests, strict=True)]

    def score(self, requests: Sequence[TextRequest], on_documents: Callable[[int], None]) -> None:
        """Score texts without lm-eval, and store the results in `scored`.

        Args:
            requests: Texts to score; the texts of one document are adjacent and in order.
            on_documents: Callback that receives the number of documents scored so far.
        """
        self.scored |= score_texts(
            self.checkpoint, requests, self.parts, self.prompts.generation, self.rows, self.seed_of, on_documents
        )

    def answer(self, prompts: Mapping[str, Prompt]) -> None:
        """Answer prompts, given by document key, without lm-eval, and store the answers in the attribute `answers`."""
        settings = self.prompts.generation
        self._answer_all(list(prompts.items()), settings.max_new_tokens, settings.stop)

    def _answer_all(self, items: list[tuple[str, Prompt]], max_new_tokens: int, stop: tuple[str, ...]) -> None:
        """Decode prompts for this cell and the cells that share its decode pass; after an error, for this cell alone.

        Answers that are already in the cache are not decoded again. `items` are (document key, prompt) pairs.
        """
        cache_keys = {key: RequestKey(key, tuple(prompt.ids), max_new_tokens, stop) for key, prompt in items}
        self.answers |= {
            key: self.cached_answers[cache_keys[key]] for key, _ in items if cache_keys[key] in self.cached_answers
        }
        unanswered = [(key, prompt) for key, prompt in items if cache_keys[key] not in self.cached_answers]
        if len(unanswered) < len(items):
            self.on_answers(len(self.answers))
        if self.shared_cells:
            try:
                self._decode(unanswered, cache_keys, self.shared_cells)
                return
            except Exception as error:
                print(f"Cells that share a pass run one by one: {type(error).__name__}: {error}", file=sys.stderr)
                self.shared_cells = ()
                self.on_abandon()
                unanswered = [(key, prompt) for key, prompt in unanswered if key not in self.answers]
        self._decode(unanswered, cache_keys, ())

    def _decode(
        self,
        items: Sequence[tuple[str, Prompt]],
        cache_keys: Mapping[str, RequestKey],
        shared_cells: Sequence[SharedCell],
    ) -> None:
        if not items:
            return
        max_new_tokens, stop = cache_keys[items[0][0]].max_new_tokens, cache_keys[items[0][0]].stop
        thresholds = [self.parts.threshold, *(other.threshold for other in shared_cells)]

        def on_done(place: int) -> None:
            key, prompt = items[place]
            own_answer, *other_answers = (
                self._answer(prompt, generation, stop) for generation in stream.answers_to(place)
            )
            self.answers[key] = own_answer
            for other, answer in zip(shared_cells, other_answers, strict=True):
                other.answers[cache_keys[key]] = answer
            self.on_answers(len(self.answers))

        stream = Stream(
            self.checkpoint,
            [Request(prompt.ids, self.seed_of(key)) for key, prompt in items],
            self.parts,
            thresholds,
            max_new_tokens,
            max(self.rows, min(self.rows * len(thresholds), self.shared_rows)),
            stops(self.tokenizer, stop, reads_special=self.encoding is not None or self.prompts.is_chat),
            self.prompts.generation,
            on_done,
        )
        stream.run()

    def _answer(self, prompt: Prompt, generation: Generation, stop: tuple[str, ...]) -> DocumentAnswer:
        text = self.tokenizer.decode(generation.token_ids, skip_special_tokens=True)
        return DocumentAnswer(
            len(prompt.ids), generation, postprocess_generated_text(text, list(stop), None), prompt.n_cut
        )

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("texts are scored by document: loglikelihood")


def stops(tokenizer: Any, stop: Sequence[str], *, reads_special: bool = False) -> Callable[[list[int]], bool] | None:
    """Return a function that tells whether generated tokens contain a stop string; None if there are no stop strings.

    Args:
        tokenizer: The checkpoint's tokenizer.
        stop: The stop strings.
        reads_special: Whether special tokens are part of the searched text, as in lm-eval. Chats and some lm-eval tasks
            stop at a special token (`<|im_end|>`).
    """
    strings = [string for string in stop if string]

    def is_stopped(token_ids: list[int]) -> bool:
        text = tokenizer.decode(token_ids, skip_special_tokens=not reads_special)
        return any(string in text for string in strings)

    return is_stopped if strings else None
