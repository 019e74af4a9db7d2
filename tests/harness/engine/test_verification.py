"""Decodes with drafts that are verified at full depth: answers, traces and caches equal those of a slow simulation.

`simulate` implements FREE's RollBack and speculative methods by definition, one token at a time. At every step,
transformers runs the whole text again through every block, without a cache.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from prompt_decoding import decode_prompts
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from exitbench.errors import UserError
from exitbench.harness.engine.decoding.block_runner import BlockRunner
from exitbench.harness.engine.decoding.decode import decode
from exitbench.harness.engine.decoding.generation import Generation
from exitbench.harness.engine.model.cache import Cache
from exitbench.harness.engine.model.model import Transformer
from exitbench.harness.work.generation import answer_costs
from exitbench.methods.base import Method, Parts
from exitbench.methods.dynamic_exit_layer import DynamicExitLayer
from exitbench.methods.free import Free
from exitbench.methods.full import Full
from exitbench.methods.prompt_lookup import PromptLookup
from exitbench.methods.registry import get_method, method_names
from exitbench.methods.self_speculation import SelfSpeculation

L = 5
N_NEW = 12
N_ROWS = 14
TOLERANCE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}
TOO_CLOSE = 1e-4  # of two numbers that a choice hangs on: single precision may decide it either way
ROLLBACK = "sync-parallel-rollback"
Stops = Callable[[list[int]], bool]

SPECULATIONS: list[Method] = [
    SelfSpeculation(exit_layer=e, drafts=k) for e, k in itertools.product((1, 2, 4), (1, 2, 3, 6, 20))
]
"""The last has 20 drafts, more than an answer's tokens, so that it is verified only at its end."""
ROLLBACKS: list[Method] = [
    Free(exit_layer=s, threshold=threshold, kv_policy=ROLLBACK, rollback=bound)
    for s, threshold, bound in [(1, 0.0, 3.0), (2, 0.1, 2.0), (3, 0.2, 1.0), (4, 0.05, 0.5), (2, 0.0, 6.0)]
]
KEEP_TAIL: list[Method] = [
    Free(exit_layer=s, threshold=threshold, kv_policy=f"{ROLLBACK}-code", rollback=bound)
    for s, threshold, bound in [(1, 0.03, 3.0), (2, 0.1, 2.0), (3, 0.2, 1.0)]
]
"""Methods that keep drafts unverified if they are still waiting when the answer ends."""

DRAFTED = "self-speculation"
FEW_IDS = 40
CONFIDENT: list[Method] = [
    get_method("calm-softmax")(threshold=0.04, decay="none", kv_policy=DRAFTED),
    get_method("calm-softmax")(threshold=0.02, decay="none", every=2, kv_policy=DRAFTED),
    SelfSpeculation(exit_layer=2, drafts=4, stop_below=0.12),
    SelfSpeculation(exit_layer=1, drafts=4, stop_below=0.12, draft_ids=FEW_IDS),
]
"""Methods whose drafts are tokens that a gate is sure of; the first two draft at different blocks."""
LOWEST_IDS = SelfSpeculation(exit_layer=2, drafts=3, draft_ids=FEW_IDS)

DYNAMIC: list[Method] = [
    DynamicExitLayer(),
    DynamicExitLayer(min_exit=2, every=2, max_drafts=3, memory_decay=0.5, head_blocks=1.5),
    DynamicExitLayer(memory_decay=0.0, max_drafts=20),
]
LOOKED_UP: list[Method] = [
    PromptLookup(),
    PromptLookup(drafts=20, ngram_tokens=1),
    PromptLookup(drafts=2, ngram_tokens=4),
]
OTHER_GATES: list[Method] = [
    get_method("patience")(patience=1, counting="sentence", kv_policy=DRAFTED),
    get_method("entropy")(threshold=3.0, decay="none", kv_policy=DRAFTED),
    get_method("calm-saturation")(threshold=0.5, decay="none", kv_policy=DRAFTED),
    get_method("contrastive")(threshold=0.1, decay="none", kv_policy=DRAFTED),
]


def named(method: Method) -> str:
    return "-".join([method.name, *map(str, method.params().values())])


def parts(method: Method) -> Parts:
    return method.parts(L)


def run(family: Any, prompts: Sequence[list[int]], method: Method, stops: Stops | None = None) -> list[Generation]:
    return decode(family.checkpoint, family.start(prompts, N_NEW), parts(method), stops)


def stops_somewhere(tokens: list[int]) -> bool:
    """Stop rule that may be met by a draft, or by the token that replaces it."""
    return len(tokens) > 2 and (tokens[-1] + tokens[-2]) % 5 == 0


def wasted(made: Generation) -> int:
    """Return the number of positions run for rejected drafts, over the whole answer."""
    return sum(record.wasted for record in made.records)


def trace(made: Generation) -> tuple[Any, ...]:
    """Return tokens, stop reason and records without scores, whose last digits differ between batches."""
    return made.token_ids, made.stop_reason, [record._replace(score=None) for record in made.records]


# ------------------------------------------------------------------------------------------ a slow account of it


@dataclass
class SimulatedAnswer:
    """Simulated answer and trace. ``gap`` is the smallest difference between two numbers that were compared for it."""

    tokens: list[int] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)
    accepted: int = 0
    unverified: int = 0
    gap: float = math.inf

    def above(self, a: float, b: float) -> bool:
        self.gap = min(self.gap, abs(a - b))
        return a > b

    def argmax(self, logits_V: Tensor) -> int:
        first, second = logits_V.topk(2).values.tolist()
        self.gap = min(self.gap, first - second)
        return int(logits_V.argmax())

    def put(self, token: int, layer: int, rejected: int = 0) -> None:
        self.tokens.append(token)
        self.layers.append(layer)
        self.rejected.append(rejected)


class DelStatistics:
    """DEL by definition: how often each block predicted full depth's token, and the chosen block and draft length."""

    def __init__(self, method: DynamicExitLayer) -> None:
        self.method = method
        self.agreed: dict[int, list[bool]] = {block: [] for block in range(method.min_exit, L, method.every)}
        self.exit_layer, self.drafts = 0, 0

    def compare(self, predicted: dict[int, int], token: int) -> None:
        for block, agreed in self.agreed.items():
            agreed.append(predicted[block] == token)
        # Without a draft, a token costs full depth. Of equal promises, the first block's shortest draft is taken.
        self.exit_layer, self.drafts, most = 0, 0, 1 / (L + self.method.head_blocks)
        for block, agreed in self.agreed.items():
            weights = [self.method.memory_decay**age for age in reversed(range(len(agreed)))]
            matches = sum(weight for weight, right in zip(weights, agreed, strict=True) if right)
            alpha = (matches + 0.5) / (sum(weights) + 1)
            for n in range(1, self.method.max_drafts + 1):
                tokens = (1 - alpha ** (n + 1)) / (1 - alpha)
                promise = tokens / (n * (block + self.method.head_blocks) + L + self.method.head_blocks)
                if promise > most + 1e-12:
                    self.exit_layer, self.drafts, most = block, n, promise


def lookup_token(text: list[int], longest: int) -> int | None:
    """Prompt lookup by definition: return the token after the first copy of the longest n-gram that ends the text."""
    for n in reversed(range(1, longest + 1)):
        same = [at for at in range(n, len(text)) if text[at - n : at] == text[-n:]]
        if same:
            return text[same[0]]
    return None


Known = dict[tuple[int, ...], tuple[tuple[Tensor, ...], Tensor]]
"""States and logits of transformers by text. Methods share most texts, so each text is computed once."""


@functools.cache
def encoder_output(encoder: Any, prompt: tuple[int, ...]) -> Any:
    """Return the output of transformers' encoder, which does not depend on the answer so far."""
    return encoder(input_ids=torch.tensor([prompt]))


def states_and_logits(family: Any, prompt: list[int], tokens: list[int]) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return transformers' states after every block, and its logits [T, V] at the positions that predict a token."""
    if family.is_seq2seq:
        text = torch.tensor([[family.checkpoint.start_id, *tokens]])
        encoded = encoder_output(family.reference.get_encoder(), tuple(prompt))
        out = family.reference(
            encoder_outputs=encoded, decoder_input_ids=text, use_cache=False, output_hidden_states=True
        )
        return out.decoder_hidden_states, out.logits[0]
    text = torch.tensor([[*prompt, *tokens]])
    out = family.reference(input_ids=text, use_cache=False, output_hidden_states=True)
    return out.hidden_states, out.logits[0, len(prompt) - 1 :]


def simulate(family: Any, prompt: list[int], method: Any, stops: Stops, known: Known) -> SimulatedAnswer:
    """Decode one prompt by definition: tokens that exit early are drafts, which the next token at full depth verifies.

    In most methods, drafts that are left when the answer ends are verified, too.
    """
    slow, waiting = SimulatedAnswer(), list[int]()
    is_free = isinstance(method, Free)
    limit = math.inf if is_free else getattr(method, "drafts", 6)
    acceptance = DelStatistics(method) if isinstance(method, DynamicExitLayer) else None

    def is_confident(early_V: Tensor) -> bool:
        first, second = torch.softmax(early_V, -1).topk(2).values.tolist()
        if isinstance(method, SelfSpeculation):
            return method.stop_below == 0 or slow.above(first, method.stop_below)
        return slow.above(first - second, method.threshold)

    def draft(states: Sequence[Tensor], n_tokens: int, at: int) -> tuple[int, int] | None:
        """Return token and block of a draft, or None if the token runs all blocks."""
        if acceptance is not None:
            if len(waiting) >= acceptance.drafts:
                return None
            block = acceptance.exit_layer
            return slow.argmax(family.checkpoint.model.logits(states[block][0, -n_tokens:])[at]), block
        if len(waiting) >= limit:
            return None
        if isinstance(method, PromptLookup):
            followed = lookup_token([*prompt, *slow.tokens], method.ngram_tokens)
            return None if followed is None else (followed, 1)
        for block in parts(method).gate_blocks(L):
            early_V = family.checkpoint.model.logits(states[block][0, -n_tokens:])[at]
            if isinstance(method, SelfSpeculation) and method.draft_ids:
                early_V = early_V[: method.draft_ids]
            if is_confident(early_V):
                return slow.argmax(early_V), block
        return None

    def rejects(full_V: Tensor, token: int) -> bool:
        if not is_free:
            return slow.argmax(full_V) != token
        return slow.above(-float(torch.log_softmax(full_V, -1)[token]), method.rollback)

    def ends() -> bool:
        return slow.tokens[-1] in family.checkpoint.eos_ids or stops(slow.tokens) or len(slow.tokens) == N_NEW

    while not slow.tokens or not ends():
        at = len(slow.tokens)
        if (text := tuple(slow.tokens)) not in known:
            known[text] = states_and_logits(family, prompt, slow.tokens)
        states, full = known[text]
        in_prompt = at == 0 and not family.is_seq2seq
        if not in_prompt and (drafted := draft(states, len(full), at)) is not None:
            slow.put(*drafted)
            waiting.append(at)
            if not ends() or not method.parts(L).kv_policy.verifies_tail:
                continue
        else:
            slow.put(slow.argmax(full[at]), L)
            if acceptance is not None and not in_prompt:
                early = {block: states[block][0, -len(full) :][at] for block in acceptance.agreed}
                logits = {block: family.checkpoint.model.logits(state_D[None])[0] for block, state_D in early.items()}
                acceptance.compare({block: slow.argmax(at_V) for block, at_V in logits.items()}, slow.tokens[-1])
        for number, place in enumerate(waiting):
            if rejects(full[place], slow.tokens[place]):
                del slow.tokens[place:], slow.layers[place:], slow.rejected[place:]
                slow.put(slow.argmax(full[place]), L, rejected=len(waiting) - number)
                break
        waiting.clear()
    slow.unverified = len(waiting)
    slow.accepted = sum(layer < L for layer in slow.layers) - slow.unverified
    return slow


@pytest.mark.sampled(2)
def test_answers_and_traces_equal_the_slow_simulation(position_family: Any, prompts: Any) -> None:
    compared = accepted = rejected = unverified = 0
    drafted: set[tuple[Method, int]] = set()
    rows, methods = (
        prompts[:N_ROWS],
        [*SPECULATIONS[1::5], SPECULATIONS[4], LOWEST_IDS, *CONFIDENT, *DYNAMIC, *LOOKED_UP, *ROLLBACKS, *KEEP_TAIL],
    )
    texts: list[Known] = [{} for _ in rows]
    for method in methods:
        for prompt, known, ours in zip(rows, texts, run(position_family, rows, method, stops_somewhere), strict=True):
            theirs = simulate(position_family, prompt, method, stops_somewhere, known)
            if theirs.gap < TOO_CLOSE:
                continue
            assert ours.token_ids == theirs.tokens, method
            assert ours.exit_layers == theirs.layers, method
            assert ours.rejected == theirs.rejected, method
            kept_as_they_are = theirs.layers[len(theirs.layers) - theirs.unverified :]
            assert ours.blocks_run == [L] * (len(theirs.tokens) - theirs.unverified) + kept_as_they_are
            unverified += theirs.unverified
            drafted |= {(method, layer) for record in ours.records for layer in record.rejected_layers}
            drafted |= {(method, layer) for layer in ours.exit_layers if layer < L}
            compared, accepted = compared + 1, accepted + theirs.accepted
            rejected += sum(theirs.rejected)
    assert compared > 0.8 * len(rows) * len(methods)
    assert accepted > 30
    assert rejected > 30
    assert unverified > 1
    if position_family.reference.config.model_type != "gpt2":  # margins are wide at block 1 already
        layers = {method: {layer for drafting, layer in drafted if drafting == method} for method in methods}
        assert all(len(layers[method]) > 1 for method in CONFIDENT[:2])
        assert any(len(layers[method]) > 1 for method in DYNAMIC)
        assert all(layers[method] == {1} for method in LOOKED_UP)


# ------------------------------------------------------------------------------------------ identities


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stops", [None, stops_somewhere], ids=["to-the-end", "stopped"])
def test_speculative_methods_equal_full_depth_for_every_draft_setting(
    position_family: Any, prompts: Any, stops: Stops | None
) -> None:
    """In a batch, the rows' drafts are rejected at different places, and drafts may end an answer in every way.

    These ways are an end-of-sequence token, the stop rule, and the maximum length.
    """
    rows = prompts[:N_ROWS]
    full = run(position_family, rows, Full(), stops)
    assert {g.stop_reason for g in full} >= {"eos", "stop_string" if stops else "length"}
    for method in [
        *SPECULATIONS[stops is None :: 2],
        LOWEST_IDS,
        SelfSpeculation(exit_layer=L),
        *CONFIDENT,
        *DYNAMIC,
        *LOOKED_UP,
        *OTHER_GATES,
    ]:
        result = run(position_family, rows, method, stops)
        assert [(g.token_ids, g.stop_reason) for g in result] == [(g.token_ids, g.stop_reason) for g in full], method


@pytest.mark.sampled(2)
def test_rollback_bound_0_gives_full_depth_tokens(position_family: Any, prompts: Any) -> None:
    rows, rejected = prompts[:N_ROWS], 0
    for stops in (None, stops_somewhere):
        full = [g.token_ids for g in run(position_family, rows, Full(), stops)]
        for exit_layer, threshold in [(1, 0.0), (1, 0.05), (3, 0.1)]:
            method = Free(exit_layer=exit_layer, threshold=threshold, kv_policy=ROLLBACK, rollback=0.0)
            result = run(position_family, rows, method, stops)
            assert [g.token_ids for g in result] == full
            rejected += sum(sum(g.rejected) for g in result)
    assert rejected > 50


def test_huge_rollback_bound_equals_parallel_decoding_without_verification(position_family: Any, prompts: Any) -> None:
    rows, vocabulary, ending = prompts[:N_ROWS], position_family.checkpoint.model.vocab_size, 0
    for threshold in (0.0, 0.1, 0.3):
        plain = run(position_family, rows, Free(exit_layer=2, threshold=threshold), stops_somewhere)
        method = Free(exit_layer=2, threshold=threshold, kv_policy=ROLLBACK, rollback=1e9)
        for ours, theirs in zip(run(position_family, rows, method, stops_somewhere), plain, strict=True):
            assert ours.token_ids == theirs.token_ids
            assert ours.exit_layers == theirs.exit_layers
            assert ours.stop_reason == theirs.stop_reason
            assert ours.scores == pytest.approx(theirs.scores)
            assert not any(record.rejected or record.wasted for record in ours.records + theirs.records)
            assert ours.blocks_run == [L] * len(ours.token_ids)
            assert theirs.blocks_run == theirs.exit_layers
            again = [vocabulary * (layer < L) for layer in theirs.exit_layers]
            assert ours.head_rows == [a + b for a, b in zip(theirs.head_rows, again, strict=True)]
            ending += theirs.exit_layers[-1] < L
    assert ending, "some answers must end on drafts"


def test_unreachable_threshold_equals_full_depth(position_family: Any, prompts: Any) -> None:
    rows = prompts[:N_ROWS]
    full = run(position_family, rows, Full())
    for policy in ("sync-parallel", "state-copy-lazy", ROLLBACK):
        result = run(position_family, rows, Free(exit_layer=2, threshold=1.0, kv_policy=policy))
        assert [(g.token_ids, g.exit_layers, g.rejected) for g in result] == [
            (g.token_ids, g.exit_layers, g.rejected) for g in full
        ]


@pytest.mark.sampled(2)
def test_batch_with_different_rollbacks_equals_its_rows_decoded_alone(position_family: Any, prompts: Any) -> None:
    rows, checkpoint, cut_at = prompts[:N_ROWS], position_family.endless, set()
    for method in [SPECULATIONS[2], SPECULATIONS[8], LOWEST_IDS, *CONFIDENT, *DYNAMIC, *ROLLBACKS]:
        together = decode(checkpoint, position_family.start(rows, N_NEW), parts(method), stops_somewhere)
        cut_at |= {tuple(at for at, n in enumerate(g.rejected) if n) for g in together}
        for prompt, expected in zip(rows[::3], together[::3], strict=True):
            (alone,) = decode(checkpoint, position_family.start([prompt], N_NEW), parts(method), stops_somewhere)
            assert trace(alone) == trace(expected), method
            assert alone.scores == pytest.approx(expected.scores, abs=1e-4)
    assert len(cut_at) >= 5


# ------------------------------------------------------------------------------------------ the cache


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", [SPECULATIONS[3], LOWEST_IDS, *CONFIDENT, *ROLLBACKS[:3]], ids=named)
def test_cache_equals_that_of_a_full_run_over_the_answer(position_family: Any, prompts: Any, method: Method) -> None:
    """At the end, every block has the keys and values of all tokens of the answer, and of no rejected token."""
    model = position_family.checkpoint.model
    for prompt in prompts[:6]:
        batch = position_family.start([prompt], N_NEW)
        (result,) = decode(position_family.endless, batch, parts(method))
        full, _ = model.start([prompt], N_NEW)
        fed = result.token_ids[:-1]
        fed = [position_family.checkpoint.start_id, *fed] if position_family.is_seq2seq else fed
        hidden, context = model.embed(torch.tensor([fed]), full)
        for block in range(1, L + 1):
            hidden = model.block(block, hidden, context)
        full.length += len(fed)
        assert batch.cache.length == full.length
        ours, theirs = (cache.self_kv[..., : full.length, :] for cache in (batch.cache, full))
        torch.testing.assert_close(ours, theirs, **TOLERANCE)


def test_dropping_common_padding_makes_cache_room_without_changing_answers(
    position_family: Any, prompts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the cache is full, padding that all remaining rows have is dropped. A single row never needs this."""
    made_room: list[int] = []
    make_room = Cache.make_room

    def spy(cache: Cache) -> None:
        before = cache.length
        make_room(cache)
        made_room.append(before - cache.length)

    monkeypatch.setattr(Cache, "make_room", spy)
    checkpoint, method = position_family.endless, SelfSpeculation(exit_layer=1, drafts=2)
    rows = [prompt for prompt in prompts[:60] if len(prompt) == len(prompts[0])] + prompts[:N_ROWS]
    together = decode(checkpoint, position_family.start(rows, N_NEW), parts(method))
    assert any(made_room)
    assert all(len(g.token_ids) == N_NEW for g in together)
    made_room.clear()
    for prompt, expected in zip(rows, together, strict=True):
        assert trace(decode(checkpoint, position_family.start([prompt], N_NEW), parts(method))[0]) == trace(expected)
    assert not any(made_room)


# ------------------------------------------------------------------------------------------ cost


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "method", [SPECULATIONS[1], SPECULATIONS[8], *CONFIDENT, *DYNAMIC, *ROLLBACKS, KEEP_TAIL[1]], ids=named
)
def test_declared_flops_match_counted_flops(position_family: Any, prompts: Any, method: Method) -> None:
    """Tested on whole answers, in which drafts are accepted, are rejected, or end the answer."""
    for prompt in prompts[:1]:
        batch = position_family.start([prompt], N_NEW)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            (result,) = decode(position_family.endless, batch, parts(method), stops_somewhere)
        first_token: Any = "gated" if position_family.is_seq2seq else "full"
        (declared,) = answer_costs(position_family.checkpoint, parts(method), [result], [len(prompt)], first_token)
        # Positions in vain count as if they stood where the token does that replaced them, with fewer keys to see.
        seen = counter.get_total_flops()
        assert 0.94 * seen <= declared.matmul_flops <= 1.001 * seen
        assert wasted(result) or declared.matmul_flops == pytest.approx(seen, rel=1e-6)


class Blocks:
    """Counter of the positions run and the calls made at each block."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.positions, self.calls = [0] * (L + 1), [0] * (L + 1)
        block = Transformer.block

        def spy(model: Transformer, number: int, hidden: Tensor, *rest: Any) -> Tensor:
            self.calls[number] += 1
            self.positions[number] += hidden.shape[:-1].numel()
            return block(model, number, hidden, *rest)

        monkeypatch.setattr(Transformer, "block", spy)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", [SPECULATIONS[1], SPECULATIONS[8], *CONFIDENT, *ROLLBACKS, KEEP_TAIL[1]], ids=named)
def test_block_calls_and_positions_follow_from_the_trace(
    position_family: Any, prompts: Any, method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every position runs every block, even those of rejected drafts. Only drafts that are never verified skip blocks.

    Each call of a block reads its weights. A draft calls the blocks up to its exit. A verifying pass calls the others
    for all its drafts together.
    """
    for prompt in prompts[:3]:
        batch = position_family.start([prompt], N_NEW)
        with monkeypatch.context() as patch:
            blocks = Blocks(patch)
            (result,) = decode(position_family.endless, batch, parts(method), stops_somewhere)
        fed = len(result.token_ids) - (0 if position_family.is_seq2seq else 1)
        everything = fed + wasted(result)
        layers = result.exit_layers[-fed:] if fed else []
        tail = len(layers) - max((at + 1 for at, layer in enumerate(layers) if layer == L), default=0)
        verifies_tail = parts(method).kv_policy.verifies_tail
        shallow = parts(method).gate_blocks(L)[0]
        verified = everything - (0 if verifies_tail else tail)
        assert blocks.positions[1:] == [everything] * shallow + [verified] * (L - shallow)
        # A block is called for each token that exits at it or deeper, and for drafts that end an answer.
        exits = layers + [layer for record in result.records for layer in record.rejected_layers[: record.wasted]]
        ended = verifies_tail and tail > 0
        calls = [sum(layer >= block for layer in exits) + (ended and layers[-1] < block) for block in range(1, L + 1)]
        assert blocks.calls[1:] == calls


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", [SPECULATIONS[1], LOWEST_IDS, *ROLLBACKS], ids=named)
def test_drafts_share_the_lm_head_product_of_the_verifying_token(
    position_family: Any, prompts: Any, method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One product with the LM head per token, which also reads out the drafts that the token verifies.

    A gate that reads logits and does not exit adds one, and so does the verification at the end of an answer. A draft
    from the lowest ids is read by another product.
    """
    counted: Counter[str] = Counter()

    def counting(owner: Any, name: str, patch: pytest.MonkeyPatch) -> None:
        original = getattr(owner, name)
        patch.setattr(owner, name, lambda *args: (counted.update([name]), original(*args))[1])

    batch = position_family.start(prompts[:1], N_NEW)
    with monkeypatch.context() as patch:
        counting(Transformer, "logits", patch)
        counting(BlockRunner, "complete", patch)
        counting(BlockRunner, "defer", patch)
        (result,) = decode(position_family.endless, batch, parts(method), stops_somewhere)
    steps = len(result.token_ids) + wasted(result)
    deep = steps - counted["defer"]
    tokens = deep if method == LOWEST_IDS else steps
    assert counted["logits"] <= tokens + (deep if isinstance(method, Free) else 0) + counted["complete"]


# ------------------------------------------------------------------------------------------ the rest


def test_non_finite_verified_logits_raise_an_error(position_family: Any, prompts: Any, monkeypatch: Any) -> None:
    from exitbench.harness.engine.decoding import speculation as verification

    def verify(runner: Any, *rest: Any) -> Any:
        for token in (token for tokens in runner.cache.waiting for token in tokens):
            token.logits_V = torch.full((3,), float("inf"))
        return original(runner, *rest)

    original = verification.verify_drafts
    monkeypatch.setattr("exitbench.harness.engine.decoding.decode.verify_drafts", verify)
    with pytest.raises(ArithmeticError, match=f"^the logits at block {L} are not finite"):
        run(position_family, prompts[3:5], SelfSpeculation(exit_layer=1, drafts=1))


def test_bfloat16_decodes_with_verification(position_family: Any, prompts: Any) -> None:
    from exitbench.harness.engine.checkpoints.loading import load_checkpoint

    half = load_checkpoint(position_family.folder, dtype=torch.bfloat16)
    endless = dataclasses.replace(half, eos_ids=frozenset())
    result = decode_prompts(endless, prompts[:N_ROWS], N_NEW, parts(SPECULATIONS[2]))
    assert {len(g.token_ids) for g in result} == {N_NEW}


def test_every_verifying_method_is_tested_here() -> None:
    verifying = {name for name in method_names() if get_method(name)().parts(L).kv_policy.verifies}
    assert verifying <= {method.name for method in [*SPECULATIONS, *ROLLBACKS, *DYNAMIC, *LOOKED_UP]}


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (get_method("calm-softmax")(head="pruned-fixed", kv_policy=DRAFTED), "needs all logits"),
        (get_method("heads")(temperature=0.5, kv_policy=DRAFTED), "is greedy; use temperature = 0"),
    ],
    ids=["part-of-the-vocabulary", "sampling"],
)
def test_pruned_heads_and_sampling_are_refused_with_verification(method: Method, message: str) -> None:
    with pytest.raises(UserError, match=message):
        method.check(L)
