"""A small spool of classified texts: an encoder of 4 blocks at full depth and at two thresholds.

From block 1 + n % 4 on, the prediction for document n equals full depth's, which is right except for the last document.
The probability at block b is (b + 4) / 8, so that texts exit after block 1 at threshold 0.6, and after block 2 at 0.7.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

BLOCKS: Final = 4
TEXTS: Final = tuple(f"text number {word}" for word in ("zero", "one", "two", "three", "four", "five", "six", "seven"))
LABELS: Final = ("negative", "neutral", "positive")
EXITS: Final = {None: BLOCKS, 0.6: 1, 0.7: 2}
"""Block after which every text leaves, by threshold; None is full depth."""


def classified_database(
    example: Any, folder: Path, texts: Sequence[str] = TEXTS, labels: Sequence[str] | None = LABELS
) -> Path:
    """Write the spool and return its database.

    Args:
        example: The module `make_spool`.
        folder: Folder of spool and database.
        texts: Texts to classify.
        labels: Names of the task's labels; None for a regression, whose read-outs are numbers.
    """
    model = example.Model("toy-bert", "encoder", BLOCKS, 0)
    task = example.Task("toy", "toy", ("acc",))
    full = example.cell_json(model, task, example.FULL, "quality", documents=len(texts))
    _write(example, folder / "spool", full, None, texts, labels)
    for threshold in (0.6, 0.7):
        method = example.Method("max-prob", {"threshold": threshold})
        cell = example.cell_json(model, task, method, "quality", full["cell_id"], documents=len(texts))
        _write(example, folder / "spool", cell, threshold, texts, labels)
    return example.ingested(folder)


def key(n: int) -> str:
    return f"{n:016x}"


def gold(n: int, texts: Sequence[str], labels: Sequence[str] | None) -> int:
    """Return document n's true label as an index, or its true number; full depth's prediction is wrong for the last
    document.
    """
    return (n + (n == len(texts) - 1)) % (len(labels) if labels else 5)


def reported_value(n: int, block: int, labels: Sequence[str] | None) -> float:
    """Return a block's prediction for document n: a label's index, or a number in a regression."""
    settled = block >= 1 + n % BLOCKS
    return (n if settled else n + 2) % len(labels) if labels else n % 5 + (BLOCKS - block) / 10


def _write(
    example: Any,
    root: Path,
    cell: Mapping[str, Any],
    threshold: float | None,
    texts: Sequence[str],
    labels: Sequence[str] | None,
) -> None:
    exit_layer = EXITS[threshold]
    samples, tokens, trace = [], [], []
    for n, text in enumerate(texts):
        right, answer = gold(n, texts, labels), reported_value(n, exit_layer, labels)
        samples.append(
            {"doc_key": key(n), "output_text": labels[int(answer)] if labels else repr(float(answer))}
            | {"output_ids": [int(answer) if labels else 0], "n_prompt": 5, "n_output": 1, "stop_reason": "label"}
            | {"scores": f'{{"acc": {100.0 * (answer == right)}}}', "statistics": "{}", "n_cut": 0}
            | ({} if threshold else {"input_text": text, "gold_text": labels[right] if labels else repr(float(right))})
        )
        at_exit = (exit_layer + 4) / 8 if threshold else None
        tokens.append(
            {"doc_key": key(n), "position": 1, "token_id": int(answer) if labels else 0, "exit_layer": exit_layer}
            | {"blocks_run": exit_layer, "score": at_exit, "reason": "threshold" if threshold else "last"}
        )
        for block in range(1, exit_layer + 1) if threshold else (BLOCKS,):
            here, confidence = reported_value(n, block, labels), (block + 4) / 8
            trace.append(
                {"doc_key": key(n), "block": block, "label_id": int(here) if labels else None, "prediction": here}
                | {"probability": confidence if labels else None, "gold": float(right), "exited": block == exit_layer}
                | {"score": confidence if threshold else None}
            )
    metrics = example.metric_rows({"acc": example.plain(50.0), "mean_exit_layer": example.plain(float(exit_layer))})
    tables = {"samples": samples, "tokens": tokens, "sequence_trace": trace, "metrics": metrics}
    example.write_attempt(root, cell, tables)
