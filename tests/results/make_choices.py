"""A small spool of choices: full depth and two thresholds over documents with three choices each.

Log-probabilities are random; correct and chosen choices follow from them by the harness's rules.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

DOCUMENTS: Final = 9
CHOICES: Final = 3
BLOCKS: Final = 4


def write_choices(example: Any, root: Path, *, with_replays: bool = False, random_weights: bool = False) -> None:
    """Write the cells of full depth and two thresholds to a spool.

    Args:
        example: The module `make_spool`.
        root: The spool.
        with_replays: Whether the thresholds are also replayed, and the first one is timed.
        random_weights: Whether the model was never trained.
    """
    rng = np.random.default_rng(3)
    model, task = example.MODELS[1], example.Task("lm-eval:toy", "toy", ("acc",))

    def cell_of(*arguments: Any) -> dict[str, Any]:
        return dict(example.cell_json(model, task, *arguments, random_weights=random_weights))

    full = cell_of(example.FULL, "quality")
    deep = _tokens(rng, dict.fromkeys(_token_positions(), BLOCKS), None)
    _write(example, root, full, deep, deep)
    for method in example.CALM[:2]:
        for kind in ("quality", "replay") if with_replays else ("quality",):
            layers = {place: int(rng.integers(1, BLOCKS + 1)) for place in _token_positions()}
            probe = (full["cell_id"],) if kind == "replay" else ()
            cell = cell_of(method, kind, full["cell_id"], probe)
            _write(example, root, cell, _tokens(rng, layers, deep), deep)
    if with_replays:
        _write_timing(example, root, cell_of(example.CALM[0], "timing", full["cell_id"]))


def _write_timing(example: Any, root: Path, cell: dict[str, Any]) -> None:
    ends = {"speedup": (1.3, 1.2, 1.4), "aa_speedup": (1.0, 0.95, 1.05)}
    plain = example.plain(DOCUMENTS)
    metrics = {
        name: replace(plain, value=value, low=low, high=high, method="bootstrap")
        for name, (value, low, high) in ends.items()
    }
    rows = example.metric_rows({**metrics, "timed_documents": plain}, "speed")
    example.write_attempt(root, cell, {"metrics": rows})


def _token_positions() -> list[tuple[int, int, int]]:
    """Return (document, choice, position) of every token; choice c has c tokens."""
    choices = range(1, CHOICES + 1)
    return [(doc, choice, at) for doc in range(DOCUMENTS) for choice in choices for at in range(1, choice + 1)]


Tokens = Mapping[tuple[int, int, int], dict[str, Any]]


def _tokens(rng: np.random.Generator, layers: Mapping[tuple[int, int, int], int], full: Tokens | None) -> Tokens:
    tokens_by_place = {}
    for place in _token_positions():
        logprob, layer = -float(np.float32(rng.exponential())), layers[place]
        tokens_by_place[place] = {
            "doc_key": f"k{place[0]:02}",
            "choice": place[1],
            "position": place[2],
            "token_id": 3 + sum(place),
            "exit_layer": layer,
            "blocks_run": layer,
            "head_rows": 150,
            "score": None if layer == BLOCKS else 0.5,
            "reason": "last" if layer == BLOCKS else "threshold",
            "logprob": logprob,
            "full_logprob": logprob if full is None else full[place]["logprob"],
            "is_greedy": logprob > -0.5,
            "full_is_greedy": (logprob if full is None else full[place]["logprob"]) > -0.5,
        }
    return tokens_by_place


def _write(example: Any, root: Path, cell: dict[str, Any], tokens: Tokens, full: Tokens) -> None:
    rows, samples = [], []
    for doc in range(DOCUMENTS):
        sums, full_sums = (
            [_sum(tokens_by_place, doc, choice) for choice in range(1, CHOICES + 1)]
            for tokens_by_place in (tokens, full)
        )
        chosen, full_chosen = int(np.argmax(sums)), int(np.argmax(full_sums))
        for choice in range(CHOICES):
            rows.append(
                {
                    "doc_key": f"k{doc:02}",
                    "choice": choice + 1,
                    "text": f" text {choice}",
                    "n_context": 5,
                    "n_cut": None,
                    "n_tokens": choice + 1,
                    "logprob": sums[choice],
                    "full_logprob": full_sums[choice],
                    "is_greedy": False,
                    "full_is_greedy": False,
                    "is_right": choice == doc % CHOICES,
                    "is_chosen": choice == chosen,
                    "full_is_chosen": choice == full_chosen,
                }
            )
        samples.append(
            {
                "doc_key": f"k{doc:02}",
                "output_text": f" text {chosen}",
                "output_ids": [3 + doc + chosen + 1 + at for at in range(1, chosen + 2)],
                "n_prompt": 5,
                "n_output": chosen + 1,
                "stop_reason": "scored",
                "scores": f'{{"acc": {100.0 * (chosen == doc % CHOICES)}}}',
                "statistics": "{}",
            }
        )
    accuracy = float(np.mean([100.0 * (row["is_chosen"] and row["is_right"]) for row in rows])) * CHOICES
    blocks = sum(token["exit_layer"] for token in tokens.values())
    same = sum(row["is_chosen"] and row["full_is_chosen"] for row in rows) / DOCUMENTS
    metrics = {
        "acc": example.plain(accuracy),
        "mean_exit_layer": example.plain(blocks / len(tokens), DOCUMENTS),
        "choice_match": example.plain(same, DOCUMENTS),
    }
    if cell["kind"] == "quality":
        metrics["ideal_speedup_bytes"] = example.plain(BLOCKS * len(tokens) / blocks)
    tables = {"samples": samples, "choices": rows, "tokens": tokens.values()}
    example.write_attempt(root, cell, {**tables, "metrics": example.metric_rows(metrics)})


def _sum(tokens: Tokens, doc: int, choice: int) -> float:
    return sum(tokens[doc, choice, at]["logprob"] for at in range(1, choice + 1))
