"""Texts become tokens by lm-eval's rules: pairs, windows and truncation equal those of its own backend."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from lm_eval.api.model import TemplateLM
from lm_eval.models.huggingface import HFLM
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

from exitbench.errors import UserError
from exitbench.harness.work.encoding import Encoding
from exitbench.harness.work.scored_texts import TextRequest, contexts_of

TEXT = "the dog sees the cat  and the cat sees the dog . a dog reads"
CONTEXTS = ["the dog", "the dog ", "the dog  \n", "", "<s>the dog", "the c"]
CONTINUATIONS = [" sees the cat", "sees", "at sees", "<s> sees"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator([TEXT] * 3, vocab_size=300, special_tokens=["<s>", "</s>"], show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, bos_token="<s>", eos_token="</s>")


class Theirs(HFLM):  # type: ignore[misc]
    """lm-eval's backend without a model: it processes texts, and records the tokens that it would score."""

    def __init__(self, tokenizer: Any, kind: str, max_length: int) -> None:
        self.tokenizer, self.backend, self._max_length = tokenizer, kind, max_length
        self.custom_prefix_token_id = self.add_bos_token = None
        self.enable_thinking, self.batch_size_per_gpu, self._rank, self._world_size = False, 1, 0, 1
        self.asked: list[Any] = []
        self.cache_hook = SimpleNamespace(add_partial=lambda *args: None)

    def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
        self.asked += [tuple(map(tuple, request[1:])) for request in requests]
        return [(0.0, False)] * len(requests)


@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("continuation", CONTINUATIONS)
def test_encoded_pairs_equal_lm_eval(tokenizer: Any, kind: Any, context: str, continuation: str) -> None:
    theirs, ours = Theirs(tokenizer, kind, 50), Encoding(tokenizer, kind, 50)
    TemplateLM.loglikelihood(theirs, [SimpleNamespace(args=(context, continuation))], disable_tqdm=True)
    if theirs.asked[0][1] == ():  # merged with the context: lm-eval fails on an assertion later
        with pytest.raises(UserError, match="may have merged it with its context"):
            ours.pair(context, continuation, "here")
        return
    pair = ours.pair(context, continuation, "here")
    assert [(pair.context_ids, pair.continuation_ids)] == theirs.asked
    assert pair.n_cut == 0


@pytest.mark.parametrize("max_length", [3, 4, 7, 50])
def test_rolling_windows_equal_lm_eval(tokenizer: Any, max_length: int) -> None:
    theirs, ours = Theirs(tokenizer, "causal", max_length), Encoding(tokenizer, "causal", max_length)
    theirs.loglikelihood_rolling([SimpleNamespace(args=(TEXT,))], disable_tqdm=True)
    windows = ours.windows(TEXT, "here")
    assert [(window.context_ids, window.continuation_ids) for window in windows] == theirs.asked
    assert [token for window in windows for token in window.continuation_ids] == ours.ids(TEXT)


@pytest.mark.parametrize(("kind", "room"), [("causal", 6 + 1), ("seq2seq", 6)])
def test_long_contexts_and_prompts_are_truncated_on_the_left_and_counted(tokenizer: Any, kind: Any, room: int) -> None:
    whole = Encoding(tokenizer, kind, 500).pair(TEXT, " sees the", "here")
    cut = Encoding(tokenizer, kind, 6).pair(TEXT, " sees the", "here")
    kept = room - len(whole.continuation_ids) if kind == "causal" else room
    assert cut.context_ids == whole.context_ids[-kept:] and cut.continuation_ids == whole.continuation_ids
    assert cut.n_cut == len(whole.context_ids) - kept > 0
    prompt = Encoding(tokenizer, kind, 9).prompt(TEXT, 4)
    left = 9 - 4 if kind == "causal" else 9
    assert prompt.ids == list(tokenizer(TEXT)["input_ids"])[-left:] and prompt.n_cut == len(whole.context_ids) - left


@pytest.mark.parametrize(
    ("context", "continuation", "words"),
    [
        ("the dog", "", "document k1: no token is left"),
        ("the dog", TEXT, "are to be scored, but the model reads 6"),
        ("", "<s>", "no token is left"),
    ],
)
def test_error_about_an_unscorable_text_names_its_document(
    tokenizer: Any, context: str, continuation: str, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        TextRequest.encode(Encoding(tokenizer, "causal", 6), "k1", context, continuation)


def test_rolling_windows_are_refused_for_empty_texts_and_encoder_decoders(tokenizer: Any) -> None:
    with pytest.raises(UserError, match="document k1: there is nothing to score"):
        TextRequest.encode(Encoding(tokenizer, "causal", 6), "k1", "")
    with pytest.raises(UserError, match=r"loglikelihood_rolling.* is for decoder-only models"):
        TextRequest.encode(Encoding(tokenizer, "seq2seq", 6), "k1", TEXT)


def test_texts_of_a_document_share_equal_contexts(tokenizer: Any) -> None:
    encoding = Encoding(tokenizer, "causal", 50)
    asked = [
        TextRequest.encode(encoding, key, context, continuation)
        for key, context, continuation in (
            ("b", "the dog", " sees"),
            ("b", "the cat", " sees"),
            ("b", "the dog", " reads"),
            ("a", "the dog", " sees"),
        )
    ]
    shared = contexts_of(asked, lambda key: ord(key))
    assert [(one.doc_key, one.text_numbers, one.context.seed) for one in shared] == [
        ("b", (1, 3), 98),
        ("b", (2,), 98),
        ("a", (1,), 97),
    ]
    assert list(shared[0].context.continuations) == [(*encoding.ids(" sees"),), (*encoding.ids(" reads"),)]
