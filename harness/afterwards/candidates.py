"""Candidates of `exitbench tune`: settings that keep most of full depth's tokens in a replay and can save time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from exitbench.harness.afterwards.replaying import Probe, replay, stored_probe
from exitbench.harness.planning.suite import Point
from exitbench.methods.base import Method
from exitbench.methods.registry import drafting_method, fixed_depth_method, get_method
from exitbench.results.database.connection import Database

SHARES: Final = (4.0, 2.0, 1.0, 0.5, 0.25, 0.1)
"""Multiples of the allowed loss: share of a candidate's tokens that may differ from full depth's in its replay. A
differing token may cost no quality, or more than its share."""
LEVELS: Final = 201
GREATEST_NATS: Final = 8.0
"""Largest threshold searched if the parameter has no upper bound, on a geometric scale."""
_LEAST: Final = 1e-4
_COARSE: Final = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.97)
"""Places in a method's grid of thresholds that are tried where no replay can search it."""
CHEAP_GATE_BLOCKS: Final = 0.25
"""A gate that reads no more than this share of a block per evaluation is evaluated at every block."""
_DRAFTS: Final = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True)
class DecoderCosts:
    """Memory traffic of parts of a model for one decoded token, in units of the traffic of one decoder block.

    Attributes:
        lm_head_blocks: Traffic of one read of the LM head.
        gate_blocks: Traffic of one evaluation of a method's gate, by method name; gates of other methods cost nothing.
    """

    lm_head_blocks: float = 0.0
    gate_blocks: Mapping[str, float] = field(default_factory=dict)

    def speedup(self, n_blocks: int, token_blocks: float) -> float:
        """Return the predicted speed-up over full depth, which is full depth's traffic per token over the method's.

        Args:
            n_blocks: Number of decoder blocks.
            token_blocks: The method's mean traffic per token without the final read of the LM head, in blocks.
        """
        return (n_blocks + self.lm_head_blocks) / (token_blocks + self.lm_head_blocks)


@dataclass(frozen=True)
class Candidate:
    """A setting (method with parameters) that may be decoded, with the results of its replay.

    Attributes:
        point: The setting.
        mean_exit_layer: Mean exit layer in the replay.
        token_match: Share of tokens in the replay that equal full depth's.
        token_blocks: Mean cost of a token, in blocks: exit layer, plus gate evaluations that did not lead to an exit.
    """

    point: Point
    mean_exit_layer: float
    token_match: float
    token_blocks: float


@dataclass(frozen=True)
class Search:
    """Result of a search: candidates (settings to decode), and why some methods have none.

    Attributes:
        candidates: The candidates of all methods.
        omissions: One sentence for each method without a candidate, with the reason.
    """

    candidates: tuple[Candidate, ...]
    omissions: tuple[str, ...]


def find_candidates(
    database: Database,
    place: str,
    methods: Sequence[str],
    max_loss_percent: float,
    costs: DecoderCosts | None = None,
    shares: Sequence[float] = SHARES,
) -> Search:
    """Search all thresholds and all static exit layers for candidates, by replay: exits are recomputed from a probe.

    Args:
        database: Database that contains a probe of the model's answers to the task.
        place: MODEL/TASK of the probe, the record of what each block predicts for each token.
        methods: Names of the methods to search; each has a threshold.
        max_loss_percent: Maximum loss of quality, in percent of full depth's quality.
        costs: Costs of LM head and gates on this model. With them, expensive gates are evaluated at fewer blocks, and
            settings that draft tokens are tried too. Settings that cannot be faster than full depth are left out.
            None: every gate is evaluated at every block, and nothing is left out.
        shares: Each share times `max_loss_percent` is a limit on the percentage of tokens that differ from full depth's
            in the replay.

    Returns:
        For each method, and for static exit layers, the cheapest setting within each limit. With costs, also the best
        drafting setting if it can be faster, and the reason for each method without a candidate.

    Raises:
        UserError: A parameter does not fit the model.
    """
    decoder_costs = costs or DecoderCosts()
    candidates: list[Candidate] = []
    omissions: list[str] = []
    probe = stored_probe(database, place)
    groups = {fixed_depth_method()[0].name: _static_settings(probe)}
    for name in methods:
        kind = get_method(name)
        scored = stored_probe(database, place, kind())
        groups[name] = [
            setting
            for every in _periods(kind, decoder_costs.gate_blocks.get(name, 0.0), scored.n_blocks)
            for setting in _replayed_settings(scored, kind, every, decoder_costs.gate_blocks.get(name, 0.0))
        ]
    for name, settings in groups.items():
        if costs is not None:
            worthwhile = [setting for setting in settings if costs.speedup(probe.n_blocks, setting.token_blocks) > 1]
        else:
            worthwhile = settings
        cheapest = list(_cheapest(worthwhile, max_loss_percent, shares))
        candidates += cheapest
        if costs is not None and not cheapest:
            omissions.append(
                _why_left_out(name, decoder_costs.gate_blocks.get(name, 0.0), bool(worthwhile), max_loss_percent)
            )
    if costs is not None:
        draft = _best_draft(probe, costs)
        if costs.speedup(probe.n_blocks, draft.token_blocks) > 1:
            candidates.append(draft)
        else:
            omissions.append(_why_no_draft(draft, probe.n_blocks, costs))
    return Search(tuple(candidates), tuple(omissions))


def _why_left_out(name: str, gate_blocks: float, can_be_faster: bool, max_loss_percent: float) -> str:
    reads = f"; each evaluation of its gate reads as much as {gate_blocks:.1f} blocks" if gate_blocks >= 1 else ""
    if can_be_faster:
        most = SHARES[0] * max_loss_percent
        return f"{name}: settings that could be faster change more than {most:g} % of full depth's tokens{reads}."
    return f"{name}: no setting reads less than full depth{reads}."


def unsearched_candidates(methods: Sequence[str], n_blocks: int) -> tuple[Candidate, ...]:
    """Return candidates without a replay: every static exit layer, and a coarse grid of each method's threshold.

    For a method without a threshold, each integer parameter that counts blocks takes every value. Costs and token
    matches are unknown (nan).

    Args:
        methods: Names of the methods.
        n_blocks: Number of the model's blocks.
    """
    fixed, parameter = fixed_depth_method()
    settings: list[tuple[type[Method], dict[str, Any]]] = [(fixed, {parameter: depth}) for depth in range(1, n_blocks)]
    for name in methods:
        kind = get_method(name)
        if "threshold" in used_params(kind()):
            grid = threshold_grid(kind)
            settings += [(kind, {"threshold": grid[round(place * (len(grid) - 1))]}) for place in _COARSE]
        else:
            settings += [(kind, {name: blocks}) for name in _counts_of_blocks(kind) for blocks in range(1, n_blocks)]
    return tuple(
        Candidate(Point(tuple(params.items()), kind.from_params(params)), math.nan, math.nan, math.nan)
        for kind, params in settings
    )


def _counts_of_blocks(kind: type[Method]) -> list[str]:
    return [
        entry.name
        for entry in dataclasses.fields(kind)
        if entry.name in vars(kind)["__annotations__"] and type(entry.default) is int and entry.metadata["low"] == 1
    ]


def used_params(method: Method) -> set[str]:
    """Return the names of a method's parameters that have an effect, given the values of the other parameters."""
    return method.params().keys() - method.unused_params()


def threshold_grid(kind: type[Method]) -> list[float]:
    """Return a method's thresholds to search: evenly spaced between its bounds; geometric if unbounded above."""
    (bounds,) = (entry for entry in dataclasses.fields(kind) if entry.name == "threshold")
    low, high = bounds.metadata["low"], bounds.metadata["high"]
    if high is not None:
        return [float(level) for level in np.linspace(low or 0.0, high, LEVELS).round(4)]
    return [float(f"{level:.3g}") for level in np.geomspace(_LEAST, GREATEST_NATS, LEVELS)]


def _periods(kind: type[Method], gate_blocks: float, n_blocks: int) -> list[int]:
    """Return the periods n to try: with period n, a method's gate is evaluated at blocks n, 2n, ... only.

    The list is [1] if the gate is cheap, or if the method has no parameters to set the blocks.
    `gate_blocks` is the cost of one evaluation.
    """
    is_periodic = {"every", "min_exit"} <= {entry.name for entry in dataclasses.fields(kind)}
    if gate_blocks <= CHEAP_GATE_BLOCKS or not is_periodic:
        return [1]
    return [period for period in range(1, n_blocks) if n_blocks % period == 0] or [1]


def _replayed_settings(probe: Probe, kind: type[Method], every: int, gate_blocks: float) -> list[Candidate]:
    thresholds = threshold_grid(kind)
    period = {} if every == 1 else {"min_exit": every, "every": every}
    replayed = replay(probe, kind.name, thresholds, **period)
    depths, matches = (replayed[column].to_pylist() for column in ("mean_exit_layer", "token_match"))
    settings = []
    for threshold, depth, match in zip(thresholds, depths, matches, strict=True):
        if depth < probe.n_blocks:
            params = {**period, "threshold": threshold}
            point = Point(tuple(params.items()), kind.from_params(params))
            # The evaluation that opens the gate has read the logits of the emitted token: it costs nothing more.
            settings.append(Candidate(point, depth, match, depth + gate_blocks * (depth / every - 1)))
    return settings


def _static_settings(probe: Probe) -> list[Candidate]:
    kind, parameter = fixed_depth_method()
    matches = _matches_by_block(probe)
    depths = range(1, probe.n_blocks)
    points = [Point(((parameter, depth),), kind.from_params({parameter: depth})) for depth in depths]
    return [Candidate(point, at, float(matches[at - 1]), at) for point, at in zip(points, depths, strict=True)]


def _matches_by_block(probe: Probe) -> Any:
    """Return, for each block, the share of tokens whose most probable token there is full depth's token, [L]."""
    chosen_NL = np.array(probe.table["top1_id"].to_pylist())
    return (chosen_NL == np.array(probe.table["full_token_id"])[:, None]).mean(axis=0)


def _best_draft(probe: Probe, costs: DecoderCosts) -> Candidate:
    """Return the setting of the drafting method with the smallest predicted cost; its answers equal full depth's.

    A block's share of tokens equal to full depth's is taken as the probability that a draft is accepted, independently
    of other drafts.
    """
    kind, draft_layer, n_drafts = drafting_method()
    matches, head = _matches_by_block(probe), costs.lm_head_blocks
    best = (math.inf, 1, 1)
    for layer in range(1, probe.n_blocks):
        accepted = min(float(matches[layer - 1]), 0.999)
        for drafts in _DRAFTS:
            tokens = (1 - accepted ** (drafts + 1)) / (1 - accepted)
            # Drafts, then one pass that runs the rest of their blocks together with one more token.
            blocks = drafts * (layer + head) + probe.n_blocks + head
            best = min(best, (blocks / tokens, layer, drafts))
    blocks, layer, drafts = best
    params = {draft_layer: layer, n_drafts: drafts}
    point = Point(tuple(params.items()), kind.from_params(params))
    return Candidate(point, layer, 1.0, blocks - head)


def _why_no_draft(draft: Candidate, n_blocks: int, costs: DecoderCosts) -> str:
    predicted = costs.speedup(n_blocks, draft.token_blocks)
    return (
        f"{draft.point.method.name}: at best {predicted:.2f}x as fast as full depth by bytes, with drafts after block "
        f"{draft.mean_exit_layer:g}."
    )


def _cheapest(candidates: Iterable[Candidate], max_loss_percent: float, shares: Sequence[float]) -> Iterator[Candidate]:
    """Yield, for each share, the cheapest candidate with few enough differing tokens.

    A candidate is left out if an earlier one has the same cost and the same token match.

    Args:
        candidates: The candidates of one method.
        max_loss_percent: Maximum loss of quality, in percent.
        shares: Each share times `max_loss_percent` limits the percentage of tokens that differ from full depth's.
    """
    pool, outcomes = list(candidates), set[tuple[float, float]]()
    for share in shares:
        within_share = [candidate for candidate in pool if candidate.token_match >= 1 - share * max_loss_percent / 100]
        best = min(within_share, key=lambda candidate: (candidate.token_blocks, -candidate.token_match), default=None)
        if best is not None and (outcome := (best.token_blocks, best.token_match)) not in outcomes:
            outcomes.add(outcome)
            yield best
