"""Slow references of all exit rules, from their definitions: in float64, one token at a time.

They share no code with the implementation, except random draws that must be equal. A rule reads the states of a token
after every block of the full model and returns the block after which the token exits.

Two correct programs with different precision may differ where two numbers nearly meet. A rule therefore also returns
the smallest such difference, so that a comparison can be skipped there.

Shape letters: L blocks, D model width, V vocabulary; index 0 of a view is the embedding, l the output of block l.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitbench.methods.sampling import uniform

Array = NDArray[np.float64]
Params = dict[str, Any]
Fitted = dict[str, Array]


@dataclass
class SlowView:
    """States and read-outs of one token at every block of the decoder.

    Attributes:
        states: Residual stream [L+1, D].
        normed: States after the final norm [L+1, D].
        logits: Read-outs of the normed states [L+1, V].
        heads: Read-outs by the blocks' exit heads, [V]; None for blocks without a head, [L+1].
        position: 1 for the first generated token.
        max_new_tokens: Maximum length of an answer.
        seed: Seed of the document.
    """

    states: Array
    normed: Array
    logits: Array
    heads: list[Array | None]
    position: int
    max_new_tokens: int
    seed: int

    @property
    def n_blocks(self) -> int:
        return len(self.states) - 1


@dataclass(frozen=True)
class SlowChoice:
    """A token's id, its exit layer, and its score there (None after the last block).

    ``gap`` is the smallest difference between two numbers that were compared for this choice.
    """

    exit_layer: int
    score: float | None
    token: int
    gap: float = math.inf


Rule = Callable[[SlowView, Params, Fitted], SlowChoice]


class RuleState:
    """State of an exit rule while it goes through the blocks of one token.

    ``gap`` is the smallest difference between two numbers that the rule has compared.
    """

    def __init__(self, view: SlowView, params: Params, fitted: Fitted) -> None:
        self.view, self.params, self.fitted = view, params, fitted
        self.gated_blocks = list(range(params.get("min_exit", 1), view.n_blocks, params.get("every", 1)))
        self.scores: list[float] = []  # at the gated blocks so far
        self.gap = math.inf

    @property
    def last_score(self) -> float:
        return self.scores[-1] if self.scores else 0.0

    def above(self, a: float, b: float) -> bool:
        """Return whether a > b, and update the gap."""
        self.gap = min(self.gap, abs(a - b))
        return a > b

    def argmax(self, values: Iterable[float]) -> int:
        """Return the index of the greatest value (the lowest if tied), and update the gap."""
        vector = np.array(list(values))
        best = int(vector.argmax())
        others = np.delete(vector, best)
        if len(others):
            scale = max(1.0, abs(float(vector[best])))  # single precision is relative
            self.gap = min(self.gap, float(vector[best] - others.max()) / scale)
        return best

    def floor(self, value: float) -> int:
        """Return floor(value) of a number computed from the last score.

        Update the gap, unless that score is a whole number, such as a streak, which is exact.
        """
        if self.last_score != round(self.last_score):
            self.gap = min(self.gap, abs(value - round(value)))
        return math.floor(value)


# ------------------------------------------------------------------------------------------------- thresholds


def base_level(state: RuleState, block: int, of_parameter: Callable[[float], float]) -> float:
    """Return the threshold at a block before it decays with the position."""
    if state.params["rule"] == "epsilon":
        return epsilon_level(state, block)
    if state.params["rule"] == "per-block":
        return of_parameter(state.params["levels"][block - 1])
    assert state.params["rule"] == "constant"
    return of_parameter(state.params["threshold"])


def epsilon_level(state: RuleState, block: int) -> float:
    """Return the largest number below the smallest score at or above which enough of the fitted tokens agree."""
    scores, agrees = (state.fitted[f"epsilon_{name}"][block - 1].tolist() for name in ("scores", "agrees"))
    for score in sorted(scores):
        above = [agrees[token] for token in range(len(scores)) if scores[token] >= score]
        if sum(above) >= state.params["epsilon"] * len(above):
            return float(np.nextafter(np.float32(score), np.float32(-np.inf)))
    return math.inf


def decayed(state: RuleState, level: float) -> float:
    """Return the threshold ``level``, decayed to the token's position in the answer."""
    decay = state.params["decay"]
    if state.params["rule"] == "epsilon" or decay == "none":
        return level
    fall = math.exp(-state.params["temperature"] * state.view.position / state.view.max_new_tokens)
    if decay == "code":
        return 0.9 * level + 0.1 * level * fall
    assert decay == "paper"
    return min(1.0, max(0.0, 0.9 * level + 0.1 * fall))


def largest_entropy(nats: float) -> float:
    """Convert an upper bound on the entropy to a lower bound on exp(-entropy)."""
    return math.exp(-nats)


def itself(level: float) -> float:
    return level


# ------------------------------------------------------------------------------------------------------ heads


def softmax(z: Array) -> Array:
    """Return the softmax over all logits except -inf."""
    shares = np.exp(z - z.max())
    return np.asarray(shares / shares.sum())


def kept_at_first(state: RuleState, block: int) -> int:
    """Return k(i), the number of ids that the schedule of a pruned head keeps at block i; at most V."""
    p, n_vocabulary = state.params, state.view.logits.shape[1]
    size = p["k_first"]
    if p["k_schedule"] == "inverse":
        slope = (p["k_first"] - p["k_min"]) / p["k_min"]
        size = max(p["k_min"], math.floor(p["k_first"] / (1 + slope * block / state.view.n_blocks)))
    return int(min(size, n_vocabulary))


def kept_ids(state: RuleState, block: int) -> NDArray[np.int64]:
    """Return the ids whose logits are read after ``block``.

    All ids are read by the full head, at the first gated block, and after the last block.
    """
    logits = state.view.logits
    everything = np.arange(logits.shape[1])
    kind = state.params.get("head", "full")
    if kind == "full" or block == state.view.n_blocks or block == state.gated_blocks[0]:
        return everything
    first = logits[state.gated_blocks[0]]
    ranked = np.argsort(-first, kind="stable")
    size = kept_at_first(state, state.gated_blocks[0])
    at_first, confidence = ranked[:size], max(0.0, state.last_score)
    _note_cut(state, first[ranked], size)
    if kind == "pruned-fixed":
        return at_first
    if kind == "pruned-decaying":
        now = min(size, kept_at_first(state, block))
        _note_cut(state, first[ranked], now)
        return at_first[:now]
    if kind == "pruned-decaying-idsorted":
        return np.sort(at_first)[: kept_at_first(state, block)]
    if kind == "pruned-adaptive":
        wanted = state.floor(size * (1 - 0.9 * confidence))
        now = min(size, max(state.params["k_min"], wanted))
        _note_cut(state, first[ranked], now)
        return at_first[:now]
    assert kind == "pruned-adaptive-code"
    return np.sort(at_first)[: max(0, state.floor(logits.shape[1] * (1 - 0.9 * confidence)))]


def _note_cut(state: RuleState, ranked_logits: Array, size: int) -> None:
    """Update `state.gap` with the difference between the logits of the last kept and the first dropped id."""
    if size < len(ranked_logits):
        state.above(float(ranked_logits[size - 1]), float(ranked_logits[size]))


def read(state: RuleState, block: int, ids: NDArray[np.int64]) -> Array:
    """Return the logits of ``ids`` after ``block``, -inf for other ids, [V]."""
    z = np.full(state.view.logits.shape[1], -np.inf)
    z[ids] = state.view.logits[block, ids]
    return z


def head_logits(state: RuleState, block: int) -> Array:
    """Return the logits of the method's head after a gated block."""
    return read(state, block, kept_ids(state, block))


def top_two(p: Array) -> tuple[float, float]:
    """Return the two largest numbers; the second is 0 if there is only one."""
    ordered = np.sort(p)[::-1]
    return float(ordered[0]), float(ordered[1]) if len(ordered) > 1 else 0.0


# ---------------------------------------------------------------------------------------------- gated methods

Score = Callable[[RuleState, int], float]
Emission = Callable[[RuleState, int], Array]
Level = Callable[[RuleState, int], float]


def decayed_level(state: RuleState, block: int) -> float:
    return decayed(state, base_level(state, block, itself))


def decayed_entropy_level(state: RuleState, block: int) -> float:
    return decayed(state, base_level(state, block, largest_entropy))


def gated(score: Score, level: Level = decayed_level, emission: Emission = head_logits) -> Rule:
    """Return the rule that exits at the first gated block whose score is strictly above its threshold."""

    def rule(view: SlowView, params: Params, fitted: Fitted) -> SlowChoice:
        state = RuleState(view, params, fitted)
        for block in state.gated_blocks:
            value = score(state, block)
            if state.above(value, level(state, block)):
                token = state.argmax(emission(state, block))
                return SlowChoice(block, value, token, state.gap)
            state.scores.append(value)
        return SlowChoice(view.n_blocks, None, state.argmax(view.logits[-1]), state.gap)

    return rule


# -------------------------------------------------------------- from the distribution over the vocabulary


def margin(state: RuleState, block: int) -> float:
    """Return the difference of the two largest probabilities."""
    first, second = top_two(softmax(head_logits(state, block)))
    return first - second


def largest_probability(state: RuleState, block: int) -> float:
    return top_two(softmax(head_logits(state, block)))[0]


def exp_negative_entropy(state: RuleState, block: int) -> float:
    """Return exp(-H), where H is the entropy in nats."""
    p = softmax(head_logits(state, block))
    p = p[p > 0]
    return math.exp(float((p * np.log(p)).sum()))


def patience(view: SlowView, params: Params, fitted: Fitted) -> SlowChoice:
    """Exit when enough consecutive gated blocks predict the same token; the score is the number of these blocks."""
    state = RuleState(view, params, fitted)
    needed = params["patience"] + (1 if params["counting"] == "formula" else 0)
    streak, previous = 0, -1
    for block in state.gated_blocks:
        token = state.argmax(head_logits(state, block))
        streak = streak + 1 if token == previous else 1
        previous = token
        if streak >= needed:
            return SlowChoice(block, float(streak), token, state.gap)
        state.scores.append(float(streak))
    return SlowChoice(view.n_blocks, None, state.argmax(view.logits[-1]), state.gap)


def off_ramp(state: RuleState, block: int) -> Array:
    """Return the logits of the block's own head, or of the model's head if the block has none."""
    head = state.view.heads[block]
    return state.view.logits[block] if head is None else head


def off_ramp_exp_negative_entropy(state: RuleState, block: int) -> float:
    """Return exp(-H), where H is the entropy in nats.

    As in the published code, it may be NaN if a probability is 0 in single precision (``underflow``).
    """
    p = softmax(off_ramp(state, block))
    if state.params["underflow"] == "nan" and (p.astype(np.float32) == 0).any():
        return math.nan
    p = p[p > 0]
    return math.exp(float((p * np.log(p)).sum()))


def entropy_level(state: RuleState, block: int) -> float:
    return base_level(state, block, largest_entropy)


def normalized_certainty(state: RuleState, block: int) -> float:
    """Return 1 - H / log C, where H is the entropy and C the number of classes."""
    p = softmax(off_ramp(state, block))
    entropy = -sum(share * math.log(share) for share in p if share > 0)
    return 1 - entropy / math.log(len(p))


def speed_level(state: RuleState, block: int) -> float:
    return base_level(state, block, lambda speed: 1 - speed)


def learned_correctness(state: RuleState, block: int) -> float:
    """Return sigmoid(w x + b) of the normed state x with fitted w and b."""
    return float(sigmoid(state.fitted["weight"] @ state.view.normed[block] + state.fitted["bias"]))


def plain_level(state: RuleState, block: int) -> float:
    return base_level(state, block, itself)


def confirmed(view: SlowView, params: Params, fitted: Fitted) -> SlowChoice:
    """Exit when enough consecutive gated blocks predict the same token as the gated block before.

    The score is the number of consecutive equal predictions.
    """
    state, confirmations, previous = RuleState(view, params, fitted), 0, None
    for block in state.gated_blocks:
        said = state.argmax(off_ramp(state, block))
        confirmations = confirmations + 1 if said == previous else 0
        previous = said
        if confirmations == params["patience"]:
            return SlowChoice(block, float(confirmations + 1), said, state.gap)
        state.scores.append(float(confirmations + 1))
    return SlowChoice(view.n_blocks, None, state.argmax(view.logits[-1]), state.gap)


def _rises(state: RuleState, signal: Array, block: int) -> bool:
    """Return whether the signal rose over the last three blocks; False before block 3."""
    if block < 3:
        return False
    first, second = state.above(signal[1], signal[0]), state.above(signal[2], signal[1])
    return first and second


def top3(state: RuleState, block: int) -> float:
    """Return the largest probability (or logit) if it rose twice in a row, else 0.

    The variant of the published code returns 1 if it also exceeds the threshold, else 0.
    """
    last_three = [state.view.logits[at] for at in range(max(block - 2, 0), block + 1)]
    probable = state.params["signal"] == "probabilities"
    signal = np.array([(softmax(z) if probable else z).max() for z in last_three])
    if not _rises(state, signal, block):
        return 0.0
    if state.params["variant"] == "text":
        return float(signal[-1])
    assert state.params["variant"] == "code"
    return float(state.above(signal[-1], base_level(state, block, itself)))


# --------------------------------------------------------------------------------------- from hidden states


def saturation(state: RuleState, block: int) -> float:
    """Cosine of a block's input and output."""
    if state.params["first"] == "zero" and block == state.gated_blocks[0]:
        return 0.0
    states = state.view.normed if state.params["states"] == "normed" else state.view.states
    before, after = states[block - 1], states[block]
    return float(before @ after / math.sqrt(float(before @ before) * float(after @ after)))


def linear(fitted: Fitted, name: str, x: Array) -> Array:
    y = fitted[f"{name}.weight"] @ x
    return y + fitted[f"{name}.bias"] if f"{name}.bias" in fitted else y


def classifier(state: RuleState, block: int) -> float:
    x = linear(state.fitted, "0", state.view.normed[block])
    if state.params["network"] == "mlp":
        x = linear(state.fitted, "2", np.maximum(x, 0))
    return float(softmax(x)[1])


def logit_features(state: RuleState, block: int) -> float:
    """Return a classifier's probability of exiting, from the largest probability, its margin and the relative depth."""
    second, first = np.sort(softmax(state.view.logits[block]))[-2:]
    x = np.array([first, first - second, block / (len(state.view.states) - 1)])
    return float(softmax(state.fitted["weight"] @ x + state.fitted["bias"])[1])


def last_three_mlp(state: RuleState, block: int) -> float:
    if block < 2:
        return 0.0
    x = np.concatenate([state.view.normed[at] for at in (block - 2, block - 1, block)])
    return float(softmax(linear(state.fitted, "2", np.maximum(linear(state.fitted, "0", x), 0)))[1])


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def lstm_layer(fitted: Fitted, layer: int, inputs: list[Array]) -> list[Array]:
    """Return the hidden states of one LSTM layer, one per step; gates are in the order input, forget, cell, output."""
    w_in, w_hidden = fitted[f"lstm.weight_ih_l{layer}"], fitted[f"lstm.weight_hh_l{layer}"]
    bias = fitted[f"lstm.bias_ih_l{layer}"] + fitted[f"lstm.bias_hh_l{layer}"]
    hidden = cell = np.zeros(w_hidden.shape[1])
    outputs = []
    for x in inputs:
        i, f, g, o = np.split(w_in @ x + w_hidden @ hidden + bias, 4)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(cell)
        outputs.append(hidden)
    return outputs


def recurrent(state: RuleState, block: int) -> float:
    """Return the score of an LSTM that runs one step per block from block 1, gated or not.

    As in the published code, the variant `code` reads block L-1 without the blocks before it.
    """
    alone = state.params["variant"] == "code" and block == state.view.n_blocks - 1
    steps = [state.view.normed[at] for at in range(block if alone else 1, block + 1)]
    for layer in range(state.params["layers"]):
        steps = lstm_layer(state.fitted, layer, steps)
    return float(softmax(linear(state.fitted, "out", steps[-1]))[1])


# -------------------------------------------------------------------------------------------- contrastive


def _divergence(p: Array, q: Array) -> float:
    """Return the Jensen-Shannon divergence of vectors that need not sum to 1; entries that are 0 in both are
    skipped.
    """
    m = (p + q) / 2

    def kl(a: Array) -> float:
        some = a > 0
        return float((a[some] * np.log(a[some] / m[some])).sum())

    return 0.5 * kl(p) + 0.5 * kl(q)


def _plausible(state: RuleState, p: Array, block: int) -> NDArray[np.bool_]:
    """Return the mask [V] of plausible tokens (V_head): probability at least alpha times the largest one."""
    alpha = state.params["alpha"]
    if state.params["alpha_schedule"] == "hyperbolic":
        alpha = alpha / (1 + state.params["alpha_decay"] * block) * (1 - state.last_score)
    inside = np.asarray(
        (p >= alpha * p.max()) & (p > 0)
    )  # what the head does not read has p = 0 and is never plausible
    state.gap = min(state.gap, float(np.abs(p[p > 0] - alpha * p.max()).min()) / float(p.max()))
    return inside


def _amateur(state: RuleState, block: int, ids: NDArray[np.int64], p: Array, inside: NDArray[np.bool_]) -> int | None:
    """Return the amateur, the earlier block to compare with, or None if there is none."""
    kind, n_blocks = state.params["amateur"], state.view.n_blocks
    if kind == "half":
        return block // 2 or None
    candidates = {
        "jsd": range(2, block),
        "dola-low": range(0, n_blocks // 2, 2),
        "dola-high": range(n_blocks // 2, n_blocks, 2),
    }[kind]
    usable = [at for at in candidates if at < block]
    if not usable:
        return None
    earlier = [softmax(read(state, at, ids)) for at in usable]
    if kind == "jsd":
        values = [_divergence(p * inside, q * inside) / (block - at) for at, q in zip(usable, earlier, strict=True)]
    else:
        values = [_divergence(p, q) for q in earlier]
    return usable[state.argmax(values)]


@dataclass(frozen=True)
class Contrast:
    """Comparison of a block with its amateur.

    Attributes:
        p: The block's own distribution.
        inside: Mask of the plausible tokens (V_head).
        shares: Softmax of the log-probability differences over plausible tokens; None without an amateur.
    """

    p: Array
    inside: NDArray[np.bool_]
    shares: Array | None


def contrast(state: RuleState, block: int) -> Contrast:
    ids = kept_ids(state, block)
    p = softmax(read(state, block, ids))
    inside = _plausible(state, p, block)
    amateur = _amateur(state, block, ids, p, inside)
    if amateur is None:
        return Contrast(p, inside, None)
    q = softmax(read(state, amateur, ids))
    difference = np.full(len(p), -np.inf)
    difference[inside] = np.log(p[inside]) - np.log(q[inside])
    return Contrast(p, inside, softmax(difference))


def contrastive_vector(state: RuleState, found: Contrast, kind: str) -> Array:
    """Return the score of each token, [V], by the chosen formula."""
    if kind == "plain" or found.shares is None:
        return found.p
    mass = float(found.p[found.inside].sum()) if state.params["mass"] == "head" else 1.0
    outside = found.p if kind == "dcd" else np.zeros(len(found.p))
    return np.where(found.inside, found.shares * mass, outside)


def contrastive_margin(state: RuleState, block: int) -> float:
    first, second = top_two(contrastive_vector(state, contrast(state, block), state.params["gate_score"]))
    return first - second


def contrastive_emission(state: RuleState, block: int) -> Array:
    if state.params["emit_score"] == "plain":
        return head_logits(state, block)
    return contrastive_vector(state, contrast(state, block), state.params["emit_score"])


# ---------------------------------------------------------------------------------- baselines and oracles


def static(view: SlowView, params: Params, fitted: Fitted) -> SlowChoice:
    state, layer = RuleState(view, {}, fitted), params["exit_layer"]
    return SlowChoice(layer, None if layer == view.n_blocks else 1.0, state.argmax(view.logits[layer]), state.gap)


def drawn(state: RuleState, z: Array, temperature: float) -> int:
    """Return the token at which the cumulative softmax(z / temperature) first exceeds the row's random number."""
    if temperature == 0:
        return state.argmax(z)
    wanted, total = uniform(0, state.view.seed, state.view.position), 0.0
    for token, share in enumerate(softmax(z / temperature)):
        total += float(share)
        if state.above(total, wanted):
            return token
    raise AssertionError("the shares add up to 1")


def full(view: SlowView, params: Params, fitted: Fitted) -> SlowChoice:
    state = RuleState(view, {}, fitted)
    token = drawn(state, view.logits[-1], params.get("temperature", 0.0))
    return SlowChoice(view.n_blocks, None, token, state.gap)


def confidence(kind: str, z: Array) -> float:
    """Return the confidence of one exit head's logits, by the name of its formula (HEADS)."""
    if kind == "max-logit":
        return float(z.max())
    if kind == "entropy":
        p = softmax(z)
        return math.exp(float((p * np.log(p)).sum()))
    assert kind in ("breaking-ties", "max-prob", "breaking-ties-logits")
    first, second = top_two(z if kind == "breaking-ties-logits" else softmax(z))
    return first if kind == "max-prob" else first - second


def trained_heads(view: SlowView, params: Params, fitted: Fitted) -> SlowChoice:
    """Exit at the first exit head whose confidence is above its threshold, with that head's token."""
    state = RuleState(view, params, fitted)
    for block, z in enumerate(view.heads):
        if z is None or (params["exit_blocks"] and block not in params["exit_blocks"]):
            continue
        value = confidence(params["confidence"], z)
        if state.above(value, base_level(state, block, itself)):
            return SlowChoice(block, value, drawn(state, z, params["temperature"]), state.gap)
    return SlowChoice(view.n_blocks, None, drawn(state, view.logits[-1], params["temperature"]), state.gap)


def two_exits(view: SlowView, params: Params, fitted: Fitted) -> SlowChoice:
    """Exit after the shallow block S or after all blocks, as in FREE."""
    state, shallow = RuleState(view, params, fitted), params["exit_layer"]
    if shallow < view.n_blocks:
        first, second = top_two(softmax(view.logits[shallow]))
        level = params["threshold"] if params["rule"] == "constant" else float(fitted["threshold"])
        if state.above(first - second, level):
            return SlowChoice(shallow, first - second, state.argmax(view.logits[shallow]), state.gap)
    return SlowChoice(view.n_blocks, None, state.argmax(view.logits[-1]), state.gap)


def oracle(view: SlowView, params: Params, fitted: Fitted) -> SlowChoice:
    """Exit at the first block whose token is the last block's, or at the first from which all blocks agree on it."""
    state = RuleState(view, {}, fitted)
    choices = np.array([state.argmax(z) for z in view.logits[1:]])
    agrees = choices == choices[-1]
    blocks = range(1, view.n_blocks + 1)
    if params["match"] == "stable":
        layer = next(block for block in blocks if agrees[block - 1 :].all())
    else:
        layer = next(block for block in blocks if agrees[block - 1])
    return SlowChoice(layer, None if layer == view.n_blocks else 1.0, int(choices[layer - 1]), state.gap)


def random(view: SlowView, params: Params, fitted: Fitted) -> SlowChoice:
    draw = uniform(params["seed"], view.seed, view.position)
    up_to = np.cumsum(geometric(params["mean_exit"], view.n_blocks))[:-1]
    return static(view, {"exit_layer": 1 + int(np.searchsorted(up_to, draw, side="right"))}, fitted)


@functools.cache
def geometric(mean: float, n_blocks: int) -> Array:
    """Return probabilities p_l proportional to r^l with the given mean; r is found on a fine grid."""
    blocks = np.arange(1, n_blocks + 1)

    def distribution(log_r: float) -> Array:
        weights = np.exp(log_r * blocks - max(log_r, log_r * n_blocks))
        return np.asarray(weights / weights.sum())

    grid = np.linspace(-40, 40, 4001)
    means = np.array([distribution(log_r) @ blocks for log_r in grid])
    return distribution(float(np.interp(mean, means, grid)))


CONTRASTIVE = gated(contrastive_margin, emission=contrastive_emission)
RULES: dict[str, Rule] = {
    "full": full,
    "static": static,
    "heads": trained_heads,
    "free": two_exits,
    "random": random,
    "oracle": oracle,
    "calm-softmax": gated(margin),
    "max-prob": gated(largest_probability),
    "entropy": gated(exp_negative_entropy, level=decayed_entropy_level),
    "patience": patience,
    "deebert": gated(off_ramp_exp_negative_entropy, level=entropy_level, emission=off_ramp),
    "fastbert": gated(normalized_certainty, level=speed_level, emission=off_ramp),
    "pabee": confirmed,
    "berxit": gated(learned_correctness, level=plain_level, emission=off_ramp),
    "calm-saturation": gated(saturation),
    "calm-classifier": gated(classifier),
    "mee-lstm": gated(recurrent),
    "mee-mlp3": gated(last_three_mlp),
    "adainfer": gated(logit_features),
    "mee-top3": gated(top3),
    "contrastive": CONTRASTIVE,
    "contrastive-reweighted": CONTRASTIVE,
    "contrastive-jsd": CONTRASTIVE,
}
