"""Timing steps that `gpu.py` runs on a device: each public function yields lines of the table that it prints."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from gpu_checks import CERTIFIED
from gpu_models import Line, OnDevice, Setting, Unsaved
from ideals import at_full_depth, decoding_cost, ideal_over_full, share_of_a_block
from models import PROMPT_TOKENS
from ratios import Comparison, Timed
from test_realised_fraction import SHARES
from test_tracing import GOAL as TRACING_GOAL
from test_tracing import TracedPass

NEVER: dict[str, Any] = {"threshold": 1.0, "decay": "none"}
RANKED: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("calm-softmax", NEVER),
    "softmax, pruned": ("calm-softmax", {**NEVER, "head": "pruned-fixed"}),
    "softmax, every 4th": ("calm-softmax", {**NEVER, "every": 4}),
    "saturation": ("calm-saturation", NEVER),
    "entropy": ("entropy", {"threshold": 0.0, "decay": "none"}),
    f"softmax{CERTIFIED}": ("calm-softmax", NEVER),
}
BATCH_ROWS, BATCH_SOURCE_TOKENS, BATCH_NEW_TOKENS = 64, 8, 32
BASELINE = "x transformers' generate, no graphs"
LLAMA_BYTES = 24 * 2**30
"""Free memory that Llama-7B in bf16 needs while its weights are built."""


def _result(comparison: Comparison, unit: str, note: str, over: float = 1.0, **goal: Any) -> dict[str, Any]:
    result = {"measured": comparison.ratio / over, "unit": unit, "note": f"{note}; {comparison.spread(over)}"}
    return {**result, **goal, **comparison.about()}


def _first(setting: Setting, decoding: Timed) -> tuple[Any, float]:
    """Run an action for the first time; return its result and its seconds, which may include compilation."""
    prepared = decoding.prepare()
    started = time.perf_counter()
    answers = decoding.run(prepared)
    setting.wait()
    return answers, time.perf_counter() - started


def full_depth(setting: Setting) -> Iterator[Line]:
    """Time one request at full depth, prefill included, against transformers' `generate` with the same weights."""
    for dtype in (torch.float32, torch.bfloat16):
        pair = setting.t5(dtype)
        prompts, new_tokens = pair.prompts(), pair.shape.new_tokens
        inputs = pair.inputs(prompts)
        reference = Timed(lambda _, pair=pair, inputs=inputs: pair.transformers(inputs, pair.shape.new_tokens))
        (expected,) = reference.once()
        local = pair.timed_decoding(pair.full(), prompts)
        (answer,), first_s = _first(setting, local)
        same = sum(map(int.__eq__, answer.token_ids, expected))
        comparison = setting.in_turn(reference, Timed(lambda _, local=local: local.once()))
        tokens_per_s = new_tokens / statistics.median(comparison.measured_s)
        note = f"{tokens_per_s:.0f} tokens/s; the first time {first_s:.2f} s; {same} of {new_tokens} tokens the same"
        name = str(dtype).removeprefix("torch.")
        yield f"full depth, {name}", _result(comparison, BASELINE, note, first_s=first_s, **setting.goal(10.0))
        del pair.reference


def graphs(setting: Setting) -> Iterator[Line]:
    """Time decoding with CUDA graphs, which are captured again for every batch, against decoding without graphs."""
    pair = setting.t5(torch.bfloat16)
    for new_tokens in (3,) if setting.quick else (16, 64):
        yield _graphs(setting, pair, 1, new_tokens)
    yield _graphs(setting, pair, 8, 3 if setting.quick else 64)


def _graphs(setting: Setting, pair: OnDevice, rows: int, new_tokens: int) -> Line:
    prompts = pair.prompts(rows)
    without, captured = (pair.timed_decoding(pair.full(), prompts, new_tokens, captures=used) for used in (False, True))
    comparison = setting.in_turn(without, captured)
    tokens_per_s = rows * new_tokens / statistics.median(comparison.measured_s)
    note = f"{tokens_per_s:.0f} tokens/s"
    name = f"graphs, {pair.label}, {rows} rows, {new_tokens} tokens"
    return name, _result(comparison, "x without graphs", note, **setting.goal(1.2))


def _decoders(setting: Setting) -> Iterator[OnDevice]:
    """Yield models of the shapes of SmolLM2-135M and Llama-1B, in bf16."""
    for label in ("llama-tiny-random",) if setting.quick else ("smollm2-135m-random", "llama-1b-random"):
        yield setting.decoder(label)


def decoders(setting: Setting) -> Iterator[Line]:
    """Time decoder-only models: full depth against `generate`, decoding with CUDA graphs, and an exit at half depth."""
    for pair in _decoders(setting):
        yield _against(setting, pair, "transformers' generate, no graphs", pair.transformers)
        for rows in (1, 4) if setting.quick else (1, 8, 64):
            yield _graphs(setting, pair, rows, pair.shape.new_tokens)
        name, result = _realised(setting, pair, pair.n_blocks // 2)
        yield f"{pair.label}, {name}", result


def compiled(setting: Setting) -> Iterator[Line]:
    """Time decoder-only models at full depth against `generate` with a static cache, which transformers compiles."""
    for pair in _decoders(setting):
        yield _against(setting, pair, "compiled generate, static cache", pair.compiled_generate)


def _against(setting: Setting, pair: OnDevice, name: str, generate: Callable[..., list[list[int]]]) -> Line:
    prompts, new_tokens = pair.prompts(), pair.shape.new_tokens
    inputs, local = pair.inputs(prompts), pair.timed_decoding(pair.full(), prompts)
    reference = Timed(lambda _: generate(inputs, new_tokens))
    (expected,), first_s = _first(setting, reference)
    (answer,) = local.once()
    same = sum(map(int.__eq__, answer.token_ids, expected))
    comparison = setting.in_turn(reference, Timed(lambda _: local.once()))
    base, measured = (new_tokens / statistics.median(s) for s in (comparison.base_s, comparison.measured_s))
    note = f"{measured:.0f} against {base:.0f} tokens/s, first after {first_s:.1f} s; {same} of {new_tokens} the same"
    return f"full depth, {pair.label}", _result(comparison, f"x {name}", note, first_s=first_s)


def realised_fraction(setting: Setting) -> Iterator[Line]:
    """Measure, at batch 1, which share of its ideal speed-up by bytes an exit at a fixed block realises."""
    pair = setting.t5(torch.bfloat16)
    for share in SHARES.values():
        yield _realised(setting, pair, max(1, round(pair.n_blocks * share)))


def _realised(setting: Setting, pair: OnDevice, exit_layer: int) -> Line:
    prompts, early = pair.prompts(), pair.parts("static", exit_layer=exit_layer)
    full, method = (pair.timed_decoding(parts, prompts) for parts in (pair.full(), early))
    ideal = ideal_over_full(pair, early, method.run_traced(), PROMPT_TOKENS).by_bytes
    comparison = setting.in_turn(full, method)
    note = f"speed-up {comparison.ratio:.2f} of {ideal:.2f}"
    return f"realised at exit {exit_layer}", _result(comparison, "%", note, ideal, **setting.goal(0.9))


def gates(setting: Setting) -> Iterator[Line]:
    """Time gates that never open against full depth, at batch 1.

    Compare the ranking of methods by time with that by bytes read.
    """
    pair = setting.t5(torch.bfloat16)
    prompts = pair.prompts()
    full = pair.timed_decoding(pair.full(), prompts)
    exits = {f"exit {at}": ("static", {"exit_layer": at}) for at in (pair.n_blocks // 3, pair.n_blocks * 2 // 3)}
    ranked: list[tuple[float, Comparison]] = []  # ideal and measured
    for name, (method, params) in {**RANKED, **exits}.items():
        parts = pair.parts(method, **params)
        parts = parts.certified() if name.endswith(CERTIFIED) else parts
        timed = pair.timed_decoding(parts, prompts)
        answers = timed.run_traced()
        ideal = ideal_over_full(pair, parts, answers, PROMPT_TOKENS).by_bytes
        comparison = setting.in_turn(full, timed)
        ranked.append((ideal, comparison))
        if name in RANKED:
            share = share_of_a_block(pair, answers[0], PROMPT_TOKENS)
            blocks = (1 / comparison.ratio - 1) / len(parts.gate_blocks(pair.n_blocks)) / share
            note = f"{blocks:.2f} blocks a time asked; ideal {ideal:.1%} by bytes"
            yield f"gate {name}", _result(comparison, "%", f"of full depth; {note}")
    yield "methods ranked by time as by bytes", _ranking(ranked, **setting.goal(1.0))


def _ranking(ranked: list[tuple[float, Comparison]], **goal: float) -> dict[str, Any]:
    """Return the share of pairs that time and ideal speed-up rank alike, among pairs of methods that clearly differ."""
    agree = []
    for (ideal, comparison), (other_ideal, other) in itertools.combinations(ranked, 2):
        differ = min(comparison.ratios) > max(other.ratios) or min(other.ratios) > max(comparison.ratios)
        if differ and ideal != other_ideal:
            agree.append((ideal > other_ideal) == (comparison.ratio > other.ratio))
    pairs = len(ranked) * (len(ranked) - 1) // 2
    if not agree:
        return {"note": f"none of {pairs} pairs differs beyond doubt"}
    note = f"{sum(agree)} of {len(agree)} pairs that differ, of {pairs}"
    return {"measured": sum(agree) / len(agree), "unit": "%", "note": note, **goal}


def batches(setting: Setting) -> Iterator[Line]:
    """Time a padded batch at full depth, prefill included, against transformers' plain `generate`."""
    pair = setting.t5(torch.bfloat16)
    rows, new_tokens = (4, 3) if setting.quick else (BATCH_ROWS, BATCH_NEW_TOKENS)
    prompts = pair.prompts(rows, BATCH_SOURCE_TOKENS)
    inputs = pair.inputs(prompts)
    reference = Timed(lambda _: pair.transformers(inputs, new_tokens))
    local = pair.timed_decoding(pair.full(), prompts, new_tokens)
    _, first_s = _first(setting, local)
    comparison = setting.in_turn(reference, Timed(lambda _: local.once()))
    tokens_per_s = rows * new_tokens / statistics.median(comparison.measured_s)
    note = f"{tokens_per_s:.0f} tokens/s; the first time {first_s:.2f} s"
    yield f"batch of {rows}", _result(comparison, BASELINE, note, first_s=first_s, **setting.goal(1.0))
    del pair.reference


def tracing(setting: Setting) -> Iterator[Line]:
    """Measure the time of writing traces divided by that of decoding, in a quality pass of a bundled model."""
    traced = TracedPass(setting.folder, setting.device)
    traced.run()
    goal = {"at_most": TRACING_GOAL} if setting.on_gpu else {}
    yield "tracing over decoding", {"measured": traced.share, "unit": "%", "note": traced.note, **goal}


def llama(setting: Setting) -> Iterator[Line]:
    """Measure Llama-7B's shape in bf16 at batch 1: bytes read per second, and the realised fraction at half depth."""
    if setting.on_gpu and (free := torch.cuda.mem_get_info()[0]) < LLAMA_BYTES:
        yield "llama", {"note": f"left out: {free / 2**30:.0f} GiB are free, {LLAMA_BYTES / 2**30:.0f} needed"}
        return
    label = "llama-tiny-random" if setting.quick else "llama-7b-random"
    pair = Unsaved(label, setting.folder / label, setting, torch.bfloat16)
    name, result = _realised(setting, pair, pair.n_blocks // 2)
    answers = pair.timed_decoding(pair.full(), pair.prompts()).once()
    read_bytes = 2 * decoding_cost(pair, pair.full(), at_full_depth(pair, answers), PROMPT_TOKENS).read_numel
    took_s = statistics.median(result["base_s"])
    note = f"at full depth; {pair.shape.new_tokens / took_s:.0f} tokens/s"
    yield label, {"measured": read_bytes / took_s / 1e9, "unit": "GB/s", "note": note}
    yield f"{label}, {name}", result
