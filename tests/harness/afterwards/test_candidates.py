"""Candidates of a tuning: gates are evaluated only where that pays, and settings that cannot be faster are left out."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from exitbench.harness.afterwards import candidates
from exitbench.harness.afterwards.candidates import DecoderCosts, Search, find_candidates, threshold_grid
from exitbench.harness.afterwards.replaying import Probe, stored_probe
from exitbench.methods.registry import drafting_method, get_method
from exitbench.results.database.connection import open_database

PLACE = "world-t5/squad"


@pytest.fixture(scope="module")
def probe(example_database: Path) -> Probe:
    with open_database(example_database) as database:
        return stored_probe(database, PLACE)


def search(path: Path, costs: DecoderCosts | None, max_loss_percent: float = 30.0) -> Search:
    with open_database(path) as database:
        return find_candidates(database, PLACE, ("max-prob",), max_loss_percent, costs)


def test_threshold_grid_is_ascending_and_spans_the_bounds() -> None:
    bounded, open_ended = threshold_grid(get_method("calm-softmax")), threshold_grid(get_method("entropy"))
    assert (bounded[0], bounded[-1], bounded == sorted(set(bounded))) == (0.0, 1.0, True)
    assert open_ended[0] > 0 and open_ended == sorted(set(open_ended))


def test_without_a_replay_every_depth_and_count_and_thresholds_across_the_grid_are_tried() -> None:
    tried: dict[str, list[Any]] = {}
    for candidate in candidates.unsearched_candidates(("max-prob", "pabee"), 5):
        ((_, value),) = candidate.point.params
        tried.setdefault(candidate.point.method.name, []).append(value)
    thresholds = tried.pop("max-prob")
    assert tried == {"static": [1, 2, 3, 4], "pabee": [1, 2, 3, 4]}
    assert thresholds == sorted(set(thresholds)) and min(thresholds) < 0.2 and max(thresholds) > 0.9


def test_without_gate_costs_candidates_evaluate_every_block_and_none_is_omitted(example_database: Path) -> None:
    found = search(example_database, None)
    assert {one.point.method.name for one in found.candidates} <= {"static", "max-prob"}
    assert not found.omissions
    for candidate in found.candidates:
        assert candidate.token_blocks == candidate.mean_exit_layer
        assert "every" not in dict(candidate.point.params)


def test_token_cost_includes_every_gate_evaluation_that_did_not_exit(probe: Probe, example_database: Path) -> None:
    gate = 0.5
    found = search(example_database, DecoderCosts(0.0, {"max-prob": gate}), max_loss_percent=99.0)
    gated = [one for one in found.candidates if one.point.method.name == "max-prob"]
    assert gated
    for candidate in gated:
        params = dict(candidate.point.params)
        every = params.get("every", 1)
        blocks = range(every, probe.n_blocks, every)
        exits = [
            exit_layer(scores, params["threshold"], blocks, probe.n_blocks) for scores in probe_column(probe, "p1")
        ]
        failed = [sum(block < at for block in blocks) for at in exits]
        expected = sum(at + gate * count for at, count in zip(exits, failed, strict=True)) / len(exits)
        assert candidate.token_blocks == pytest.approx(expected)


def probe_column(probe: Probe, name: str) -> list[Any]:
    column: list[Any] = probe.table[name].to_pylist()
    return column


def exit_layer(scores: list[float], threshold: float, blocks: range, n_blocks: int) -> int:
    return next((block for block in blocks if scores[block - 1] > threshold), n_blocks)


def test_gate_that_costs_more_than_all_blocks_is_omitted_with_the_reason(example_database: Path) -> None:
    found = search(example_database, DecoderCosts(0.0, {"max-prob": 100.0}), max_loss_percent=5.0)
    assert not [one for one in found.candidates if one.point.method.name == "max-prob"]
    (reason,) = (line for line in found.omissions if line.startswith("max-prob: "))
    assert "each evaluation of its gate reads as much as 100.0 blocks" in reason


def test_settings_that_change_too_many_tokens_are_omitted_with_that_reason(example_database: Path) -> None:
    found = search(example_database, DecoderCosts(), max_loss_percent=1e-6)
    reasons = [line for line in found.omissions if not line.startswith("self-speculation")]
    assert all("change more than" in line for line in reasons)


@pytest.mark.parametrize("accepted", [0.0, 0.5, 0.9])
def test_predicted_drafting_cost_equals_the_exact_expectation(
    accepted: float, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pass accepts drafts up to the first wrong one, and adds one token of its own."""
    n_blocks, head = probe.n_blocks, 2.0
    monkeypatch.setattr(candidates, "_matches_by_block", lambda _: [accepted] * n_blocks)
    draft = candidates._best_draft(probe, DecoderCosts(head))
    _, layer_name, drafts_name = drafting_method()
    params = dict(draft.point.params)
    layer, drafts = params[layer_name], params[drafts_name]
    # Every outcome of the drafts of one pass, with its probability: expected tokens per pass, exactly.
    tokens = 0.0
    for outcome in itertools.product((True, False), repeat=drafts):
        probability = 1.0
        for is_right in outcome:
            probability *= accepted if is_right else 1 - accepted
        tokens += probability * (1 + next((at for at, is_right in enumerate(outcome) if not is_right), drafts))
    blocks = drafts * (layer + head) + n_blocks + head
    assert draft.token_blocks + head == pytest.approx(blocks / tokens, rel=1e-2)
    assert layer == 1 and (drafts == 1) == (accepted < 0.9)


def test_speedup_counts_bytes_with_one_lm_head_read_per_token() -> None:
    assert DecoderCosts(8.0).speedup(30, 11.0) == pytest.approx(2.0)
