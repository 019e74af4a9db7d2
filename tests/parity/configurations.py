"""Configurations to compare: a setting of published code, and the equivalent local method and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

SIZES = {"k_first": 339, "k_min": 3}  # PRUNE's 35000 and 250, from T5's vocabulary to the 311 tokens of these models
TEMPERATURE = 4.0


@dataclass(frozen=True)
class Published:
    """Repository of published code, and the commit compared with."""

    title: str
    address: str
    commit: str
    folder: str


PUBLISHED: dict[str, Published] = {
    "free": Published("FREE", "github.com/raymin0223/fast_robust_early_exit", "3e503c5", "."),
    "mee": Published("MEE", "github.com/Thiggel/Monotonic-Early-Exit", "d2f00f5", "src"),
    "pruning": Published("PRUNE", "github.com/MatteoNulli/Vocabulary_pruning", "972ef21", "src"),
}
"""Repositories by the command-line option of their checkout."""


@dataclass(frozen=True)
class Configuration:
    """Setting to compare: one row of the table.

    Attributes:
        name: Unique name.
        code: Key in `PUBLISHED`.
        model: Recipe of a bundled model.
        method: Local method.
        params: Its parameters.
        settings: Command-line arguments of the published code that differ from its defaults.
        every: Stride: one in `every` documents is decoded.
        patches: In-memory changes of the published code, see published.py.
        network: The gate's network, "" without one.
        runtime: With exits, or at full depth with the gate evaluated at every block.
        differs: Reason for an intended difference; "" if both must be equal.
    """

    name: str
    code: str
    model: str
    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    every: int = 8
    patches: tuple[str, ...] = ()
    network: str = ""
    runtime: str = "deployed"
    differs: str = ""
    extras: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own_threshold(self) -> bool:
        """True if the published code chooses a separate threshold for each answer."""
        return bool(self.settings.get("use_adapt_threshold"))


def configurations() -> list[Configuration]:
    """Return all configurations, in the order of the table in docs/parity.md."""
    return [*_full(), *_calm(), *_free(), *_mee(), *_at_full_depth(), *_pruned()]


def _full() -> Iterator[Configuration]:
    for model in ("weighted", "vanilla", "free"):
        yield Configuration(f"full/{model}", "free", f"builtin-{model}", "full", every=1)


def _gated(name: str, code: str, model: str, method: str, measure: str, threshold: float, **rest: Any) -> Configuration:
    """Return a configuration whose gate is evaluated at every block from ``first`` on, with or without decay."""
    first, decays = rest.pop("first", 1), rest.pop("decays", False)
    params = {"threshold": threshold, "min_exit": first, "decay": "code" if decays else "none"} | rest.pop("params", {})
    settings = {"use_early_exit": True, "exit_conf_type": measure, "exit_conf_threshold": threshold}
    settings |= {"exit_min_layer": first} | ({"exit_position_temp": TEMPERATURE} if decays else {})
    title = f"{name}/{model}/{threshold:g}" + (f"/from {first}" if first > 1 else "") + ("/decay" if decays else "")
    return Configuration(title, code, f"builtin-{model}", method, params, settings | rest.pop("settings", {}), **rest)


def _calm() -> Iterator[Configuration]:
    for threshold in (0.2, 0.35, 0.5, 0.65, 0.8, 0.95):
        for first in (1, 3):
            every = 1 if (threshold, first) in ((0.2, 1), (0.5, 1), (0.95, 1), (0.8, 3)) else 4
            softmax = ("free", "weighted", "calm-softmax", "softmax")
            yield _gated("softmax", *softmax, threshold, first=first, every=every)
    for threshold in (0.3, 0.6, 0.9):
        yield _gated("softmax", "free", "vanilla", "calm-softmax", "softmax", threshold, every=4)
    for model, threshold in (("weighted", 0.2), ("weighted", 0.9), ("vanilla", 0.9)):
        yield _gated("softmax", "free", model, "calm-softmax", "softmax", threshold, decays=True)
    for threshold in (0.3, 0.5, 0.7):
        rest: dict[str, Any] = {"network": "mlp", "params": {"network": "mlp"}}
        yield _gated("classifier", "free", "weighted", "calm-classifier", "meta", threshold, **rest)


def _free() -> Iterator[Configuration]:
    for model, shallow, threshold, every in (
        ("free", 2, 0.3, 4),
        ("free", 2, 0.5, 1),
        ("free", 2, 0.7, 4),
        ("free", 2, 0.9, 1),
        ("vanilla", 4, 0.3, 4),
        ("vanilla", 4, 0.7, 4),
    ):
        yield _shallow("parallel", model, shallow, threshold, "sync-parallel", every=every)
    for model, shallow, threshold in (("free", 2, 0.5), ("free", 2, 0.9), ("vanilla", 4, 0.3)):
        settings = {"copy_skipped_hidden_states": True}
        yield _shallow("copied", model, shallow, threshold, "state-copy-lazy", settings)
    for model, shallow, bound, threshold in (
        ("free", 2, 0.1, 0.9),
        ("free", 2, 0.3, 0.5),
        ("free", 2, 1.0, 0.5),
        ("free", 2, 2.0, 0.3),
        ("vanilla", 4, 0.5, 0.3),
        ("vanilla", 4, 1.0, 0.1),
        ("vanilla", 4, 2.0, 0.1),
    ):
        settings = {"rollback_conf_threshold": bound}
        yield _shallow(f"rollback {bound:g}", model, shallow, threshold, "sync-parallel-rollback-code", settings)
        yield _shallow(
            f"rollback {bound:g} verified to the end",
            model,
            shallow,
            threshold,
            "sync-parallel-rollback",
            settings,
            differs="ours verifies what waits when an answer ends",
        )
    for model, shallow, threshold in (("free", 2, 0.9), ("vanilla", 4, 0.7)):
        yield _shallow("adaptive", model, shallow, threshold, "sync-parallel", {"use_adapt_threshold": True})


def _shallow(
    name: str,
    model: str,
    shallow: int,
    threshold: float,
    kv_policy: str,
    settings: Mapping[str, Any] | None = None,
    every: int = 4,
    differs: str = "",
) -> Configuration:
    params = {"exit_layer": shallow, "threshold": threshold, "kv_policy": kv_policy}
    arguments = {"use_shallow_deep": True, "shallow_exit_layer": shallow, "shallow2deep_conf_type": "softmax"}
    arguments |= {"shallow2deep_conf_threshold": threshold, **(settings or {})}
    if "rollback_conf_threshold" in arguments:
        params["rollback"] = arguments["rollback_conf_threshold"]
    title = f"{name}/{model} S={shallow}/{threshold:g}"
    return Configuration(title, "free", f"builtin-{model}", "free", params, arguments, every, differs=differs)


def _mee() -> Iterator[Configuration]:
    """Yield MEE's measures in its single-request runtime, with a patch that passes them the earlier blocks."""
    common: dict[str, Any] = {"patches": ("remember blocks",), "settings": {"exit_min_layer": None}}

    def gated(name: str, model: str, method: str, measure: str, threshold: float, **rest: Any) -> Configuration:
        extras = {"probabilities": True, "resets": True, **rest.pop("extras", {})}
        return _gated(name, "mee", model, method, measure, threshold, extras=extras, **common, **rest)

    state: tuple[Any, ...] = ("calm-saturation", "hidden_state_saturation")
    for threshold in (0.7, 0.8, 0.9, 0.95, 0.98):
        yield gated("saturation", "weighted", *state, threshold, every=1 if threshold == 0.9 else 4)
    for threshold in (0.8, 0.9):
        yield gated("saturation", "vanilla", *state, threshold, every=4)
    for threshold in (0.5, 0.9):
        recurrent: tuple[Any, ...] = ("weighted", "mee-lstm", "recurrent_classifier", threshold)
        lstm = {"layers": 1, "hidden": 250}
        asks: dict[str, Any] = {"network": "lstm", "params": {**lstm, "variant": "code"}}
        yield gated("LSTM", *recurrent, **asks)
        asks = {"network": "lstm", "params": lstm}
        yield gated("LSTM without reset", *recurrent, **asks, extras={"resets": False})
        yield gated("LSTM of the text", *recurrent, **asks, differs="MEE wipes the LSTM's state before block L-1")
        yield gated("MLP of 3", "weighted", "mee-mlp3", "last_three_hiddens_classifier", threshold, network="mlp3")
    top: tuple[Any, ...] = ("weighted", "mee-top3", "last_three_top_prob_heuristic")
    code = {"variant": "code"}
    yield gated("top 3", *top, 0.5, params=code)
    yield gated("top 3", *top, 0.9, params=code)
    yield gated("top 3", *top, 0.9, params=code, decays=True)
    logits = {**code, "signal": "logits"}
    yield gated("top 3 of logits", *top, 0.9, params=logits, extras={"probabilities": False})


def _at_full_depth() -> Iterator[Configuration]:
    """Yield every measure in MEE's other runtime: at full depth, with the score recorded at every block."""
    for name, method, measure, params, network in (
        ("softmax", "calm-softmax", "softmax", {}, ""),
        ("saturation", "calm-saturation", "hidden_state_saturation", {}, ""),
        ("classifier", "calm-classifier", "meta", {"network": "mlp"}, "mlp without biases"),
        ("LSTM", "mee-lstm", "recurrent_classifier", {"layers": 1, "hidden": 250, "variant": "code"}, "lstm"),
        ("MLP of 3", "mee-mlp3", "last_three_hiddens_classifier", {}, "mlp3"),
        ("top 3 of logits", "mee-top3", "last_three_top_prob_heuristic", {"variant": "code", "signal": "logits"}, ""),
    ):
        # The heuristic's score is 1 or 0 by this threshold; rounding can give cosines slightly above 1.
        threshold = 1.0 if method == "mee-top3" else 2.0
        settings = {"exit_conf_type": measure, "exit_conf_threshold": threshold, "output_hidden_states_decoder": True}
        params = {"min_exit": 1, "decay": "none", "threshold": 1.0, **params}
        title = f"every block/{name}/weighted"
        yield Configuration(
            title, "mee", "builtin-weighted", method, params, settings, network=network, runtime="full depth"
        )


def _pruned() -> Iterator[Configuration]:
    heads = {"fixed": "pruned-fixed", "decaying": "pruned-decaying-idsorted", "adaptive": "pruned-adaptive-code"}

    def gated(name: str, model: str, method: str, measure: str, threshold: float, **rest: Any) -> Configuration:
        pruning, least = rest.pop("pruning", None), rest.pop("least", SIZES["k_min"])
        patches = ("no repetition penalty", *rest.pop("patches", ()))
        params, settings, extras = dict(rest.pop("params", {})), {}, {}
        if pruning is not None:
            params |= {"head": heads[pruning], "k_first": SIZES["k_first"], "k_min": least}
            settings["type_vocab_reduct"] = pruning
            patches, extras = (*patches, "pruning sizes"), {"pruning_sizes": [SIZES["k_first"], least]}
            name = f"{name}, {pruning} to {least}"
        rest |= {"patches": patches, "extras": extras, "params": params, "settings": settings}
        return _gated(name, "pruning", model, method, measure, threshold, **rest)

    softmax: tuple[Any, ...] = ("calm-softmax", "softmax")
    for pruning in heads:
        for least in (3, 40):
            yield gated("softmax", "weighted", *softmax, 0.6, first=2, pruning=pruning, least=least)
            yield gated("softmax", "weighted", *softmax, 0.9, pruning=pruning, least=least)
            if (pruning, least) != ("adaptive", 40):
                yield gated("softmax", "vanilla", *softmax, 0.9, pruning=pruning, least=least)
    plain = {"emit_score": "plain"}
    weighed: tuple[Any, ...] = ("contrastive-reweighted", "reweight_contrastive_decoding")
    divergent: tuple[Any, ...] = ("contrastive-jsd", "JSD_contrastive_confidence")
    for threshold in (0.5, 0.9):
        yield gated(
            "contrast",
            "weighted",
            "contrastive",
            "reweight_contrastive_decoding",
            threshold,
            first=2,
            params=plain,
            patches=("plain contrast",),
        )
        yield gated("reweighted contrast", "weighted", *weighed, threshold, first=2, params=plain)
        yield gated("JSD contrast", "weighted", *divergent, threshold, first=3, params=plain)
    yield gated("reweighted contrast", "vanilla", *weighed, 0.9, first=2, params=plain)
    yield gated("JSD contrast", "vanilla", *divergent, 0.9, first=3, params=plain)
    reason = "PRUNE's amateurs read the whole vocabulary up to the first block asked"
    yield gated("JSD contrast", "weighted", *divergent, 0.9, first=3, params=plain, pruning="fixed", differs=reason)
    yield gated("reweighted contrast", "weighted", *weighed, 0.9, first=2, params=plain, pruning="adaptive")
