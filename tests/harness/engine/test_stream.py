"""Continuous batches: prompts join a running batch, thresholds share a prefill, and answers are as if decoded alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch

from exitbench.harness.cells.cell import GenerationSettings
from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer
from exitbench.harness.engine.decoding import stream
from exitbench.harness.engine.decoding.decode import Decoding, decode, prefill, repeat_rows
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.stream import Stream
from exitbench.harness.training.store import SHIPPED
from exitbench.methods.base import Parts
from exitbench.methods.registry import get_method
from exitbench.tasks import builtin
from exitbench.tasks.registry import get_task

THRESHOLDS = (0.1, 0.5, 0.9)
NEW_TOKENS = 12
MODELS = {"builtin-weighted": "seq2seq", "builtin-exit-heads": "causal"}
RULES = GenerationSettings(NEW_TOKENS, repetition_penalty=1.3, no_repeat_ngram_size=2)


@cache
def loaded(name: str, engine: Any = "lean") -> Checkpoint:
    (config,) = SHIPPED.glob(f"{name}-????????/config.json")
    return load_checkpoint(config.parent, torch.float32, engine=engine)


@cache
def requests(name: str) -> tuple[Request, ...]:
    """Return requests with prompts of two tasks and of different length, each with a different seed."""
    (config,) = SHIPPED.glob(f"{name}-????????/config.json")
    tokenizer, kind = load_tokenizer(config.parent), MODELS[name]
    texts = [
        get_task(task).prompt_for(document, kind)
        for task in ("squad", "wmt-en-fr")
        for document in builtin.documents(task, "test", 4)
    ]
    return tuple(Request(list(tokenizer(text)["input_ids"]), seed) for seed, text in enumerate(texts))


def parts_of(name: str, method: str, **params: Any) -> Parts:
    model = loaded(name).model
    return get_method(method).from_params(params).bound_to(model.exit_blocks).parts(model.n_blocks)


def swept(name: str, method: str = "calm-softmax", **params: Any) -> list[Parts]:
    return [parts_of(name, method, threshold=threshold, **params) for threshold in THRESHOLDS]


@cache
def alone(name: str, parts: Parts, asked: GenerationSettings | None = None) -> list[Generation]:
    """Decode every prompt in a separate batch."""
    checkpoint = loaded(name)
    batches = [prefill(checkpoint.model, [request], NEW_TOKENS) for request in requests(name)]
    return [decode(checkpoint, batch, parts, settings=asked)[0] for batch in batches]


def streamed(
    name: str,
    settings: Sequence[Parts],
    rows: int,
    asked: GenerationSettings | None = None,
    checkpoint: Checkpoint | None = None,
) -> Stream:
    rules = [parts.threshold for parts in settings]
    stream = Stream(checkpoint or loaded(name), requests(name), settings[0], rules, NEW_TOKENS, rows, settings=asked)
    stream.run()
    return stream


def assert_as_alone(
    stream: Stream, name: str, settings: Sequence[Parts], asked: GenerationSettings | None = None
) -> None:
    """Assert that each prompt has the answer and trace that it has in a separate batch, for every setting."""
    for number, parts in enumerate(settings):
        answers = [stream.answers_to(prompt)[number] for prompt in range(len(requests(name)))]
        assert without_scores(answers) == without_scores(alone(name, parts, asked))


def without_scores(generations: Sequence[Generation]) -> list[Any]:
    """Return answers, stop reasons and traces without scores, whose last digits may differ."""
    return [
        (generation.token_ids, generation.stop_reason, [record._replace(score=None) for record in generation.records])
        for generation in generations
    ]


class Batches:
    """Recorder of the number of prompts per prefill and of the rows that ran at the same time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prompts: list[int] = []
        self.joined: list[int] = []
        run, join = stream.prefill, Decoding.join

        def counted(model: Any, asked: Sequence[Request], *rest: Any, **more: Any) -> Any:
            self.prompts.append(len(asked))
            return run(model, asked, *rest, **more)

        def joined(decoding: Decoding, other: Decoding) -> None:
            self.joined.append(len(decoding.rows))
            join(decoding, other)

        monkeypatch.setattr(stream, "prefill", counted)
        monkeypatch.setattr(Decoding, "join", joined)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("policy", ["state-copy", "sync-parallel", "state-copy-lazy", "recompute-backlog"])
def test_thresholds_sharing_a_pass_equal_each_threshold_alone(name: str, policy: str) -> None:
    settings = swept(name, kv_policy=policy)
    expected = [alone(name, parts) for parts in settings]
    for rows in (64, 7, 2):
        stream = streamed(name, settings, rows)
        for number, theirs in enumerate(expected):
            answers = [stream.answers_to(prompt)[number] for prompt in range(len(theirs))]
            assert without_scores(answers) == without_scores(theirs), rows
            for one, other in zip(answers, theirs, strict=True):
                assert one.scores == pytest.approx(other.scores, abs=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", ["self-speculation", "free", "del", "prompt-lookup"])
def test_rows_join_batches_with_rejected_drafts_without_changing_answers(
    name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After rejected drafts, rows of a batch are at different positions. New rows can join them even then."""
    params: dict[str, dict[str, Any]] = {
        "self-speculation": {"exit_layer": 2, "drafts": 3},
        "free": {"kv_policy": "sync-parallel-rollback"},
        "del": {},
        "prompt-lookup": {"ngram_tokens": 1},
    }
    parts, batches = parts_of(name, method, **params[method]), Batches(monkeypatch)
    stream = streamed(name, [parts], 3)
    assert batches.joined
    assert_as_alone(stream, name, [parts])


@pytest.mark.parametrize("name", MODELS)
def test_logit_rules_follow_each_row_when_rows_join_a_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, batches = swept(name), Batches(monkeypatch)
    stream = streamed(name, settings, 5, RULES)
    assert batches.joined
    assert_as_alone(stream, name, settings, RULES)


def test_a_prompt_is_prefilled_once_for_all_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(monkeypatch)
    streamed("builtin-weighted", swept("builtin-weighted"), 8)
    assert sum(batches.prompts) == len(requests("builtin-weighted"))


def test_rows_of_a_prompt_share_its_cross_attention_cache() -> None:
    checkpoint, asked = loaded("builtin-weighted"), requests("builtin-weighted")[:3]
    batch = prefill(checkpoint.model, asked, NEW_TOKENS)
    rules = [parts.threshold for parts in swept("builtin-weighted")]
    cache = repeat_rows(batch, [rules, rules[:1], rules]).cache
    assert (cache.n_rows, cache.cross_kv.shape[1]) == (7, 3)  # type: ignore[attr-defined]
    cache.keep(torch.tensor([0, 2, 4, 6]))
    assert (cache.n_rows, cache.cross_kv.shape[1]) == (4, 2)  # type: ignore[attr-defined]


def test_long_answer_does_not_block_waiting_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first row runs to its full length, rows with answers of two tokens start and end."""
    name, known = "builtin-weighted", loaded("builtin-weighted")
    endless, batches = Checkpoint(known.model, frozenset(), known.start_id), Batches(monkeypatch)
    first: list[list[int]] = []

    def stops(token_ids: list[int]) -> bool:
        first.extend([] if first else [token_ids])
        return len(token_ids) == 2 and token_ids is not first[0]

    rules = [parts_of(name, "full").threshold]
    stream = Stream(endless, requests(name), parts_of(name, "full"), rules, NEW_TOKENS, 2, stops)
    stream.run()
    lengths = sorted(len(stream.answers_to(prompt)[0].token_ids) for prompt in range(len(requests(name))))
    assert lengths == [*[2] * (len(lengths) - 1), NEW_TOKENS]
    assert batches.joined == [1] * 5, "the long one alone was left each time"


def test_out_of_memory_halves_the_rows_without_changing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    name, step, most = "builtin-weighted", Decoding.step, [0]

    def limited(decoding: Decoding) -> Any:
        if len(decoding.rows) > 3:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB.")
        most[0] = max(most[0], len(decoding.rows))
        return step(decoding)

    monkeypatch.setattr(Decoding, "step", limited)
    settings = swept(name)
    stream = streamed(name, settings, 12)
    assert (stream.rows, most[0]) == (3, 3)
    monkeypatch.undo()
    assert_as_alone(stream, name, settings)


def test_persistent_memory_errors_and_other_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(error: Exception) -> Any:
        def step(decoding: Decoding) -> Any:
            raise error

        return step

    for error in (MemoryError(), ValueError("shapes differ")):
        monkeypatch.setattr(Decoding, "step", failing(error))
        with pytest.raises(type(error)):
            streamed("builtin-weighted", swept("builtin-weighted"), 4)


@pytest.mark.parametrize("name", MODELS)
def test_hosted_engine_decodes_several_thresholds_without_joining_batches(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New rows cannot join a cache of the hosted engine, so each batch is decoded to its end."""
    settings, batches, hosted = swept(name), Batches(monkeypatch), loaded(name, "hosted")
    stream = streamed(name, settings, 6, checkpoint=hosted)
    assert batches.joined == []
    assert_as_alone(stream, name, settings)
