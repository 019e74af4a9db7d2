"""Gates that remember earlier tokens of an answer: the memory stays with its row."""

from __future__ import annotations

from itertools import accumulate
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from exitbench.harness.engine.decoding.generation import Generation
from exitbench.harness.engine.decoding.likelihood import why_not
from exitbench.methods.base import BlockView, Gate, Parts, blocks_from
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import StateCopy
from exitbench.methods.thresholds import Constant
from tests.harness.engine.test_stream import MODELS, Batches, alone, assert_as_alone, loaded, streamed


class ExitBySum(Gate):
    """Gate that lets a token exit after 1 + s % L blocks; s is the sum of the tokens that its row decoded before."""

    remembers: ClassVar[bool] = True

    def start_answers(self, n_rows: int, device: torch.device) -> dict[str, Tensor]:
        return {"sum_A": torch.zeros(n_rows, dtype=torch.long, device=device)}

    def score(self, view: BlockView) -> Tensor:
        return (view.block > view.answer_memory["sum_A"] % view.model.n_blocks).float()

    def remember(self, view: BlockView, token_A: Tensor) -> None:
        view.answer_memory["sum_A"] = view.answer_memory["sum_A"] + token_A


def summing(name: str) -> Parts:
    n_blocks = loaded(name).model.n_blocks
    return Parts(ExitBySum(), Constant(0.5), LMHead(), StateCopy(), blocks_from(1, n_blocks))


def by_definition(name: str, answer: Generation) -> list[int]:
    """Return the exit layers that follow from an answer's tokens.

    A decoder-only model reads its first token from the prompt's pass, at full depth.
    """
    n_blocks = loaded(name).model.n_blocks
    first = [] if MODELS[name] == "seq2seq" else [n_blocks]
    sums = accumulate(answer.token_ids[len(first) : -1], initial=0)
    return first + [1 + total % n_blocks for total in sums][: len(answer.token_ids) - len(first)]


@pytest.mark.parametrize("name", MODELS)
def test_exit_layers_follow_the_gates_memory_of_earlier_tokens(name: str) -> None:
    answers = alone(name, summing(name))
    assert len({layer for answer in answers for layer in answer.exit_layers}) >= 4
    for answer in answers:
        assert answer.exit_layers == by_definition(name, answer)


@pytest.mark.parametrize("rows", [64, 3, 2])
@pytest.mark.parametrize("name", MODELS)
def test_batch_equals_its_rows_decoded_alone(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(monkeypatch)
    stream = streamed(name, [summing(name)], rows)
    assert batches.joined or rows == 64
    assert_as_alone(stream, name, [summing(name)])


def test_gates_with_memory_do_not_support_given_tokens() -> None:
    assert "decides by earlier tokens of its own answer" in str(why_not(summing("builtin-weighted")))
