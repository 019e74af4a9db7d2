"""Check, when a model is loaded, that the hosted engine computes the same as the model's plain forward pass.

A prompt is read once by transformers alone, and once token by token by the hosted engine. States after every block,
keys and values, and logits must agree; otherwise the model is refused with the name of what differs. The check also
determines the batch dimension of each block argument, the fastest read-out, and the work of a block.

Shape suffixes: B rows of the batch, T positions, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from exitbench.errors import UserError, one_line
from exitbench.harness.engine.hosted.cache import HostedCache
from exitbench.harness.engine.hosted.calls import RecordedCalls, SparedLinear, WrappedBlock, learn_axes, state_of
from exitbench.harness.engine.hosted.model import BlockWork, HostedTransformer
from exitbench.harness.engine.hosted.read_out import WAYS
from exitbench.harness.engine.model.positions import padded

PROMPT, NEW = 5, 3
"""Lengths of the check's prompt, and of the tokens fed after it."""


class Differs(Exception):
    """Raised if the hosted engine computes something different from the model's plain forward pass."""


@contextmanager
def as_user_errors(family: str) -> Iterator[None]:
    """Convert any exception in a `with` block, which splits a model into its blocks and checks it, to a `UserError`.

    Args:
        family: The checkpoint's ``model_type``, for the message.

    Raises:
        UserError: The model cannot be run block by block, or its results differ; the message gives the reason.
    """
    refused = f"model_type {family!r} cannot be run block by block"
    try:
        yield
    except Differs as difference:
        raise UserError(f"{refused}: {difference}.") from difference
    except UserError:
        raise
    except Exception as error:  # whatever the family's code raises when it is called in another way
        name = type(error).__name__
        raise UserError(f"{refused}: {name} while its blocks were tried ({one_line(error)}).") from error


@torch.inference_mode()
def prove(model: HostedTransformer) -> None:
    """Check a model against its plain forward pass, and set the attributes that the check determines.

    These are the batch dimension of each block argument, the fastest correct way from states to logits, and whether
    batches may be padded on the left. Others are the width of keys, and the weights and FLOPs that one block needs
    for one token.

    Raises:
        Differs: A result differs from the plain forward pass; the message names block and tensor.
    """
    rows = _prompts(model)
    _learn(model, rows)
    _check_states(model, rows[:1])
    _check_read_outs(model, rows[:1])
    _skip_unneeded_projections(model, rows[:1])
    _check_skipped(model, rows)
    model.pads_left = _is_proved(lambda: _check_padding(model, rows))
    model.work, model.kv_width = _work(model, rows[0])


def _prompts(model: HostedTransformer) -> list[list[int]]:
    """Return three sequences of random token ids, on which the model is checked."""
    draw = torch.Generator().manual_seed(0)
    least, most = min(3, model.vocab_size - 1), model.vocab_size
    return [torch.randint(least, most, (PROMPT + NEW,), generator=draw).tolist() for _ in range(3)]


def _is_proved(check: Callable[[], None]) -> bool:
    try:
        check()
    except Differs:
        return False
    return True


def same(what: str, hosted: Tensor, reference: Tensor, dtype: torch.dtype | None = None) -> None:
    """Check that two tensors are equal within a tolerance.

    It is the square root of a number format's epsilon, times the largest absolute value of ``reference``.

    Args:
        what: Name of the tensor, for messages.
        hosted: Result of the hosted engine.
        reference: Result of the plain forward pass.
        dtype: Number format that sets the tolerance; None for that of ``hosted``. States may have a finer format than
            the weights: then this is the weights' format.

    Raises:
        Differs: The shapes differ, or a difference exceeds the tolerance.
    """
    if hosted.shape != reference.shape:
        raise Differs(f"{what} has shape {list(hosted.shape)}, not {list(reference.shape)}")
    digits = torch.finfo(dtype or hosted.dtype).eps ** 0.5
    difference = float((hosted.float() - reference.to(hosted.device).float()).abs().max())
    largest = float(reference.abs().max())
    if not difference <= digits * max(largest, 1e-6):
        raise Differs(
            f"{what} differs by {difference:.3g} from the plain forward pass, where the largest is {largest:.3g}"
        )


# ------------------------------------------------------------------------------------------------- comparisons


def _plain(model: HostedTransformer, row: Sequence[int]) -> tuple[list[Tensor], Tensor]:
    """Return states after each block, [1, T, D] each, and logits [1, T, V] of the model's plain forward pass."""
    states: list[Tensor] = []

    def watch(block: WrappedBlock, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = block.run(*args, **kwargs)
        if block.number != len(states) + 1:
            raise Differs(f"block {block.number} runs after block {len(states)}")
        states.append(state_of(output))
        return output

    tokens = torch.tensor([row], device=model.device)
    arguments: dict[str, Any] = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if model.stack.encoder is not None:
        arguments |= {"decoder_input_ids": tokens}
    with model.calls.taken_over(watch):
        logits = model.stack.lm(**arguments, use_cache=False, return_dict=True).logits
    if len(states) != model.n_blocks:
        raise Differs(f"{len(states)} of {model.n_blocks} blocks run")
    for number, state in enumerate(states, start=1):
        if not isinstance(state, Tensor) or state.shape != (1, len(row), model.d_model):
            shape = list(state.shape) if isinstance(state, Tensor) else type(state).__name__
            raise Differs(f"the state after block {number} is {shape}, not [1, {len(row)}, {model.d_model}]")
    return [state.to(model.device) for state in states], logits


def _start(model: HostedTransformer, rows: Sequence[Sequence[int]], fed: int) -> HostedCache:
    """Return a cache to which the first ``fed`` tokens of each row have been fed.

    For an encoder-decoder, the whole rows are the encoder's input too.
    """
    room = PROMPT + NEW + 1
    if model.stack.encoder is None:
        cache = model.new_cache(len(rows), room)
    else:
        cache, _ = model.start(rows, room)
    if fed:
        _run(model, cache, [row[:fed] for row in rows])
    return cache


def _run(model: HostedTransformer, cache: HostedCache, rows: Sequence[Sequence[int]]) -> list[Tensor]:
    """Feed the tokens of all rows at full depth; return the states after each block, [B, T, D] each."""
    tokens = torch.tensor([list(row) for row in rows], device=model.device)
    hidden, step = model.embed(tokens, cache)
    states = []
    for block in range(1, model.n_blocks + 1):
        hidden = model.block(block, hidden, step)
        states.append(hidden)
    cache.length += tokens.shape[1]
    return states


def _learn(model: HostedTransformer, rows: Sequence[Sequence[int]]) -> None:
    """Find and set the batch dimension of each argument of the blocks.

    A decode step is run with two padded sequences and with three: the dimension whose size changes is the batch
    dimension. This is done for a step of several tokens, and again for a step of one token.

    Args:
        model: The model.
        rows: Three sequences of token ids.
    """
    recorded: dict[int, list[RecordedCalls]] = {}
    for n_rows in (2, 3):
        cache = _start(model, rows[:n_rows], 0)
        if model.stack.encoder is None:
            cache.padding_B = torch.tensor([2, 0, 1][:n_rows], device=model.device)
        else:  # sources of different length
            cache, _ = model.start([row[: len(row) - i] for i, row in enumerate(rows[:n_rows])], PROMPT + NEW)
        steps = []
        for tokens in ([row[:PROMPT] for row in rows[:n_rows]], [row[PROMPT : PROMPT + 1] for row in rows[:n_rows]]):
            _, step = model.embed(torch.tensor(tokens, device=model.device), cache)
            steps.append(step.recorded)
            cache.length += len(tokens[0])
        recorded[n_rows] = steps
    for two_rows, three_rows in zip(recorded[2], recorded[3], strict=True):
        for key, axis in learn_axes(two_rows, three_rows).items():
            model.calls.batch_axes[key] = axis or model.calls.batch_axes.get(key)


def _check_states(model: HostedTransformer, rows: Sequence[Sequence[int]]) -> None:
    """Check the states after each block against the plain forward pass.

    The hosted engine is fed a prompt at once, and the tokens after it one by one.
    """
    states, _ = _plain(model, rows[0])
    cache = _start(model, rows, 0)
    pieces = [_run(model, cache, [row[:PROMPT] for row in rows])]
    for place in range(PROMPT, PROMPT + NEW):
        pieces.append(_run(model, cache, [row[place : place + 1] for row in rows]))
    for number, (plain_state, *pieces_BTD) in enumerate(zip(states, *pieces, strict=True), start=1):
        what = f"the state after block {number} ({model.stack.name}.{number - 1})"
        same(what, torch.cat(pieces_BTD, dim=1), plain_state, model.dtype)


def _check_read_outs(model: HostedTransformer, rows: Sequence[Sequence[int]]) -> None:
    """Choose how the model computes logits from a block's states: the fastest of three ways that is correct.

    The slowest way is the reference: the states pass through the model's own forward pass, with its blocks bypassed.
    Another way is correct if, from the states after every block, it gives the same logits as the reference.

    Args:
        model: The model.
        rows: One sequence of token ids.

    Raises:
        Differs: The reference itself differs from the plain forward pass.
    """
    states, logits = _plain(model, rows[0])
    read_out = model.read_out
    same("the reference read-out", read_out(states[-1], "reference"), logits)
    tokens = torch.tensor(rows, device=model.device)
    read_out.find_ending(lambda: model.embed(tokens[:, :1], _start(model, rows, 0)))
    tried = torch.cat([state[0] for state in states])
    reference = read_out(tried, "reference")
    if reference.shape[-1] != model.vocab_size:
        raise Differs(f"logits are over {reference.shape[-1]} tokens, the LM head has {model.vocab_size} rows")
    for way in WAYS:
        try:
            same(f"the read-out {way!r}", read_out(tried, way), reference)
        except Exception:  # a slower way is used
            continue
        read_out.way = way
        return


def _skip_unneeded_projections(model: HostedTransformer, rows: Sequence[Sequence[int]]) -> None:
    """Let blocks 2 to L, when they only store keys and values, leave out the projections that do not affect these."""
    linears = [{name: m for name, m in block.named_modules() if type(m) is nn.Linear} for block in model.stack.blocks]
    used: set[str] = set()

    def note(name: str) -> None:
        if model.calls.only_stores:
            used.add(name)

    handles = [
        module.register_forward_pre_hook(lambda *_, name=name: note(name))
        for each in linears[1:]
        for name, module in each.items()
    ]
    expected = _filled_keys_and_values(model, rows)
    for handle in handles:
        handle.remove()
    for name in sorted(used):
        spared = [SparedLinear(each[name], model.calls) for each in linears[1:] if name in each]
        if not _all_equal(_filled_keys_and_values(model, rows), expected):
            for projection in spared:
                projection.undo()


def _filled_keys_and_values(model: HostedTransformer, rows: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return the key tensor and the value tensor of each block from 2 to L, filled by tokens that exit at block 1."""
    cache = _start(model, rows, PROMPT)
    hidden, step = model.embed(torch.tensor([row[PROMPT : PROMPT + 1] for row in rows], device=model.device), cache)
    model.fill([(1, model.block(1, hidden[:, 0], step), None)], step)
    return [buffer for layer in cache.layers[1:] for buffer in layer.kv]


def _all_equal(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def _check_skipped(model: HostedTransformer, rows: Sequence[Sequence[int]]) -> None:
    """Check that keys and values filled from a state equal those of blocks that run on this state.

    Also check that blocks give the same states whether they run on all rows of the batch or on some.
    """
    tokens = [row[PROMPT : PROMPT + 1] for row in rows]
    ran, filled = _start(model, rows, PROMPT), _start(model, rows, PROMPT)
    hidden, step = model.embed(torch.tensor(tokens, device=model.device), ran)
    state_BD = model.block(1, hidden[:, 0], step)
    some = torch.tensor([0, 2], device=model.device)
    for block in range(2, model.n_blocks + 1):
        of_all = model.block(block, state_BD, step)
        of_some = model.block(block, state_BD.index_select(0, some), step, some)
        same(f"the state after block {block} of some rows", of_some, of_all.index_select(0, some), model.dtype)
    _, step = model.embed(torch.tensor(tokens, device=model.device), filled)
    other_rows = torch.tensor([1], device=model.device)
    model.fill([(1, state_BD.index_select(0, rows_A), rows_A) for rows_A in (some, other_rows)], step)
    for number, (ran_layer, filled_layer) in enumerate(zip(ran.layers, filled.layers, strict=True), start=1):
        if not ran_layer.kv:
            raise Differs(
                f"block {number} keeps no keys and values in the cache, from which later tokens could read it"
            )
        for name, filled_part, ran_part in zip(("keys", "values"), filled_layer.kv, ran_layer.kv, strict=True):
            same(f"{name} of block {number} filled from a state", filled_part, ran_part)


def _check_padding(model: HostedTransformer, rows: Sequence[Sequence[int]]) -> None:
    """Check that a row gives the same states alone and when padded on the left, next to a longer row."""
    alone = _start(model, rows[:1], 0)
    short = [rows[0][2:PROMPT]]
    expected = [_run(model, alone, short)[-1][:, -1:], _run(model, alone, [rows[0][PROMPT : PROMPT + 1]])[-1]]
    padded_cache = _start(model, [rows[0], rows[1]], 0)
    padded_cache.padding_B = torch.tensor([2, 0], device=model.device)
    tokens, _ = padded([*short, rows[1][:PROMPT]], model.device, side="left")
    results = [_run(model, padded_cache, tokens.tolist())[-1][:1, -1:]]
    results.append(_run(model, padded_cache, [row[PROMPT : PROMPT + 1] for row in rows[:2]])[-1][:1])
    same("a row padded on the left", torch.cat(results), torch.cat(expected), model.dtype)


# --------------------------------------------------------------------------------------------------------- the cost


def _work(model: HostedTransformer, row: Sequence[int]) -> tuple[BlockWork, int]:
    """Return the weights and FLOPs of a block for one token, and the width of a block's keys, averaged over blocks.

    FLOPs are counted at two numbers of keys and two of source positions. Their differences give the FLOPs per key and
    per source position. The remaining FLOPs are two per weight.
    """

    def flops(n_source: int, fed: int) -> float:
        if model.stack.encoder is None:
            cache = model.new_cache(1, PROMPT + NEW)
        else:
            cache, _ = model.start([row[:n_source]], PROMPT + NEW)
        _run(model, cache, [row[:fed]])
        hidden, step = model.embed(torch.tensor([row[fed : fed + 1]], device=model.device), cache)
        # MATH: the FLOP counter does not know the CPU's own attention kernel.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            for block in range(2, model.n_blocks + 1):
                hidden = model.block(block, hidden, step)
        caches.append(cache)
        return float(counter.get_total_flops()) / max(1, model.n_blocks - 1)

    caches: list[HostedCache] = []
    base, more_keys = flops(PROMPT - 2, 1), flops(PROMPT - 2, 1 + NEW)
    per_key = (more_keys - base) / NEW
    per_source = 0.0 if model.stack.encoder is None else (flops(PROMPT, 1) - base) / 2
    weights = (base - 2 * per_key - (PROMPT - 2) * per_source) / 2
    widths = [layer.kv[0].shape[1] * layer.kv[0].shape[3] for layer in caches[0].layers]
    return BlockWork(weights, per_key, per_source), round(sum(widths) / len(widths))
