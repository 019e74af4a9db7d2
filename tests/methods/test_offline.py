"""Scores of given states, thresholds fitted to them, and the split of the fit data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from fake_model import Identity, random_states
from hypothesis import given
from hypothesis import strategies as st

from exitbench.errors import UserError
from exitbench.methods import offline
from exitbench.methods.base import FitData
from exitbench.methods.offline import epsilon_thresholds, score_states
from exitbench.methods.registry import get_method

INF = math.inf


# ------------------------------------------------------------------------------------------ scores


def test_ungated_blocks_have_nan_scores_and_token_minus_1() -> None:
    model: Any = Identity(6, 9)
    states = random_states(6, 5, 9)
    scores, tokens = score_states(get_method("max-prob")(min_exit=2, every=2).parts(6), model, states)
    assert scores.isnan().all(1).tolist() == [True, False, True, False, True, True], "the last block is never asked"
    best = torch.softmax(states[1:], -1).amax(-1)
    torch.testing.assert_close(scores[[1, 3]], best[[1, 3]])
    assert (tokens[[0, 2, 4]] == -1).all()
    assert tokens[[1, 3, 5]].tolist() == states[1:].argmax(-1)[[1, 3, 5]].tolist()


def test_scoring_in_chunks_equals_scoring_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = Identity(6, 9)
    states, seeds = random_states(6, 11, 9), list(range(11))
    for name in ("calm-softmax", "patience", "random", "oracle", "contrastive-jsd"):
        params = {"mean_exit": 3.0} if name == "random" else {}
        parts = get_method(name)(**params).parts(6)
        whole = score_states(parts, model, states, seeds_N=seeds)
        with monkeypatch.context() as patch:
            patch.setattr(offline, "CHUNK_BYTES", 3 * 4 * 9)
            pieces = score_states(parts, model, states, seeds_N=seeds)
        assert torch.equal(whole[1], pieces[1])
        torch.testing.assert_close(whole[0], pieces[0], equal_nan=True)


def test_zero_tokens_give_empty_scores() -> None:
    model: Any = Identity(6, 9)
    scores, tokens = score_states(get_method("max-prob")().parts(6), model, random_states(6, 0, 9))
    assert scores.shape == tokens.shape == (6, 0)


# ------------------------------------------------------------------------------------------ epsilon


def tail_threshold(scores: list[float], agrees: list[bool], epsilon: float) -> float:
    """Return the smallest score at or above which a share of at least epsilon of the tokens agrees; else infinity."""
    for candidate in sorted(scores):
        tail = [right for score, right in zip(scores, agrees, strict=True) if score >= candidate]
        if sum(tail) / len(tail) >= epsilon:
            return candidate
    return INF


def fitted(scores: list[float], agrees: list[bool], epsilon: float) -> float:
    """Return the fitted threshold of a single block."""
    (value,) = epsilon_thresholds(torch.tensor([scores]), torch.tensor([agrees]), epsilon)
    return value


tokens = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=25)


@given(tokens, st.integers(0, 20))
def test_fitted_threshold_selects_exactly_the_reference_tail(drawn: list[tuple[int, bool]], twentieths: int) -> None:
    """Scores are multiples of 1/6, so that many are tied."""
    scores = [float(np.float32(n / 6)) for n, _ in drawn]
    agrees, epsilon = [right for _, right in drawn], twentieths / 20
    threshold, value = tail_threshold(scores, agrees, epsilon), fitted(scores, agrees, epsilon)
    leaves = [score > value for score in torch.tensor(scores)]
    assert leaves == [score >= threshold for score in scores]
    assert (value == INF) == (threshold == INF)


@pytest.mark.parametrize(
    ("scores", "agrees", "epsilon", "smallest"),
    [
        ([0.1, 0.2, 0.3, 0.4], [0, 1, 1, 1], 1.0, 0.2),
        ([0.1, 0.2, 0.3, 0.4], [0, 1, 1, 1], 0.75, 0.1),
        ([0.1, 0.2, 0.3, 0.4], [1, 1, 1, 0], 0.8, INF),  # unreachable: the surest token is wrong
        ([0.1, 0.2, 0.3, 0.4], [1, 1, 1, 0], 0.75, 0.1),  # the share is not monotone
        ([0.1, 0.2, 0.3, 0.4], [0, 0, 0, 0], 0.0, 0.1),  # epsilon 0: the smallest score
        ([0.1, 0.2, 0.3, 0.4], [0, 0, 0, 0], 0.01, INF),
        ([0.3, 0.3, 0.3, 0.9], [0, 1, 1, 1], 0.9, 0.9),  # a tie leaves together: 3 of 4 agree
        ([0.3, 0.3, 0.3, 0.9], [0, 1, 1, 1], 0.75, 0.3),
        ([0.5], [1], 1.0, 0.5),
    ],
)
def test_fitted_thresholds_equal_values_computed_by_hand(
    scores: list[float], agrees: list[int], epsilon: float, smallest: float
) -> None:
    order = [2, 0, 3, 1][: len(scores)] if len(scores) == 4 else [0]
    value = fitted([scores[i] for i in order], [bool(agrees[i]) for i in order], epsilon)
    if smallest == INF:
        assert value == INF
        return
    at, below = torch.tensor(smallest), torch.tensor([score for score in scores if score < smallest])
    assert at > value, "the test is inclusive"
    assert not bool((below > value).any())
    assert value == float(np.nextafter(np.float32(smallest), np.float32(-1)))


def test_fitted_thresholds_support_zero_and_negative_scores() -> None:
    assert torch.tensor(0.0) > fitted([0.0, 1.0], [True, True], 1.0)
    assert torch.tensor(-0.5) > fitted([-0.5, -1.0], [True, False], 1.0) >= -1.0


def test_ungated_block_has_an_infinite_epsilon_threshold() -> None:
    scores = torch.tensor([[math.nan, math.nan], [0.5, 0.6], [math.nan, math.nan]])
    agrees = torch.ones(3, 2, dtype=torch.bool)
    assert epsilon_thresholds(scores, agrees, 0.0)[0] == INF
    assert epsilon_thresholds(scores, agrees, 0.0)[1] < 0.5


def test_fitted_thresholds_select_the_same_tokens_in_single_precision() -> None:
    """Scores are stored and compared in single precision, so that rounding lets no other tokens exit."""
    model: Any = Identity(4, 6)
    states = random_states(4, 40, 6).cumsum(0)  # so that blocks agree now and then
    final = states[-1].argmax(-1)
    data = FitData(model, states, final, final, torch.arange(40) // 4)
    method = get_method("max-prob")(rule="epsilon", epsilon=0.4)
    parts = method.parts(4, method.fit(data, lambda share: None).tensors)
    scores, emitted = score_states(parts, model, states)
    for block in (1, 2, 3):
        agrees = (emitted[block - 1] == final).tolist()
        smallest = tail_threshold(scores[block - 1].tolist(), agrees, 0.4)
        leaves = scores[block - 1] > parts.threshold.value(block, 1, 10)
        assert leaves.tolist() == [score >= smallest for score in scores[block - 1].tolist()]
        assert leaves.any()


# ------------------------------------------------------------------------------------------ splitting


@given(st.lists(st.integers(1, 6), min_size=2, max_size=20), st.sampled_from([0.1, 0.2, 0.5]), st.randoms())
def test_fit_data_split_keeps_documents_whole_and_loses_no_token(
    lengths: list[int], held_out: float, random: Any
) -> None:
    owner = [document for document, n in enumerate(lengths) for _ in range(n)]
    random.shuffle(owner)
    n = len(owner)
    document_N, tokens_N = torch.tensor(owner), torch.arange(n)
    states_LND = torch.arange(3 * n).view(3, n, 1).float()
    model: Any = Identity(2, 1)
    seen, unseen = FitData(model, states_LND, tokens_N, tokens_N + 1000, document_N).split(held_out)
    n_unseen = max(1, round(held_out * len(lengths)))
    for part, documents in ((seen, range(len(lengths) - n_unseen)), (unseen, range(len(lengths) - n_unseen, 99))):
        mine = [token for token, document in enumerate(owner) if document in documents]
        assert part.final_token_N.tolist() == mine
        assert part.gold_token_N.tolist() == [token + 1000 for token in mine]
        assert part.document_N.tolist() == [owner[token] - documents[0] for token in mine], "counted from 0 upwards"
        assert torch.equal(part.states_LND, states_LND[:, mine])


def test_single_document_cannot_be_split() -> None:
    model: Any = Identity(2, 1)
    one = FitData(model, torch.zeros(3, 4, 1), torch.zeros(4), torch.zeros(4), torch.zeros(4, dtype=torch.long))
    with pytest.raises(UserError, match="document"):
        one.split(0.2)
