"""Compare certified gates with the exact LM head on the bundled models: count differing tokens and exit layers.

    python tests/parity/certified.py [--tokens 100000] [--dtype float32] [--rows 1 4]

Every method with a certified gate decodes documents of the generated tasks twice: with the exact LM head, and
with the certified gate.
Thresholds range from never to always exiting, with every KV policy that the method supports.

The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from transformers import AutoTokenizer

from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.training import find_trained, load_recipe
from exitbench.harness.training.store import SHIPPED
from exitbench.methods.base import Parts
from exitbench.methods.registry import certifiable, get_method
from exitbench.tasks import builtin
from exitbench.tasks.builtin import TEXT_TASKS
from exitbench.tasks.registry import get_task

NEW_TOKENS = 32
LEVELS = {"entropy": (0.0, 0.05, 0.3, 0.8, 1.5, 3.0)}
SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 1.0)


@dataclass
class DifferenceCounts:
    """Counts of tokens, of differences from the exact LM head, and of read-outs.

    Attributes:
        tokens: Number of tokens compared.
        other_tokens: Number of differing tokens.
        other_exits: Number of differing exit layers.
        reads_from_bounds: Number of int8 read-outs, from which the certified gate computes bounds of the logits.
        fallbacks: Number of fallbacks to the exact head.
    """

    tokens: int = 0
    other_tokens: int = 0
    other_exits: int = 0
    reads_from_bounds: float = 0.0
    fallbacks: int = 0

    def add(self, exact: list[Generation], certified: list[Generation], vocab_size: int) -> None:
        for reference, bounded in zip(exact, certified, strict=True):
            self.tokens += len(reference.token_ids)
            self.other_tokens += _differing(reference.token_ids, bounded.token_ids)
            self.other_exits += _differing(reference.exit_layers, bounded.exit_layers)
            self.reads_from_bounds += sum(record.head_rows_int8 for record in bounded.records) / vocab_size
            self.fallbacks += sum(record.head_fallbacks for record in bounded.records)


def _differing(first: list[int], second: list[int]) -> int:
    return sum(a != b for a, b in zip(first, second, strict=False)) + abs(len(first) - len(second))


def settings(n_blocks: int) -> Iterator[Parts]:
    """Yield every method that can be certified, with every threshold, exit layer and KV policy."""
    for name in certifiable():
        method = get_method(name)
        names = {item.name: item for item in fields(method)}
        grid: dict[str, Sequence[Any]] = {
            "threshold": LEVELS.get(name, SHARES),
            "exit_layer": range(1, n_blocks),
            "kv_policy": names["kv_policy"].metadata["choices"] if "kv_policy" in names else (),
        }
        grid = {param: values for param, values in grid.items() if param in names}
        for values in itertools.product(*grid.values()):
            yield method.from_params(dict(zip(grid, values, strict=True))).parts(n_blocks)


def prompts(folder: Any, checkpoint: Checkpoint, documents: int) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pairs = [
        (get_task(name), document) for name in TEXT_TASKS for document in builtin.documents(name, "test", documents)
    ]
    return [tokenizer(task.prompt_for(document, checkpoint.kind)).input_ids for task, document in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000, help="least number of tokens, all models together")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4], help="rows decoded together, in turn")
    options = parser.parse_args()
    recipes = [entry.recipe for entry in load_suite("builtin").models if entry.recipe and entry.runs_task("squad")]
    total = DifferenceCounts()
    for number, recipe in enumerate(recipes, 1):
        folder = find_trained(load_recipe(recipe), SHIPPED)
        assert folder is not None, "it is bundled"
        checkpoint, counted = load_checkpoint(folder, getattr(torch, options.dtype)), DifferenceCounts()
        model, rows = checkpoint.model, itertools.cycle(options.rows)
        texts = itertools.cycle(prompts(folder, checkpoint, 64))
        for parts in itertools.cycle(list(settings(model.n_blocks))):
            batch = [Request(next(texts)) for _ in range(next(rows))]
            exact = decode(checkpoint, prefill(model, batch, NEW_TOKENS), parts)
            certified = decode(checkpoint, prefill(model, batch, NEW_TOKENS), parts.certified())
            counted.add(exact, certified, model.vocab_size)
            if total.tokens + counted.tokens >= options.tokens * number / len(recipes):
                break
        print(f"{recipe:24} {counted}", flush=True)
        for item in fields(DifferenceCounts):
            setattr(total, item.name, getattr(total, item.name) + getattr(counted, item.name))
    print(
        f"{'all':24} {total}, {total.fallbacks / total.reads_from_bounds:.1%} of read-outs fell back ({options.dtype})"
    )
    sys.exit(bool(total.other_tokens or total.other_exits))


if __name__ == "__main__":
    main()
