"""Batches of documents and several thresholds in one pass change neither answers nor traces. Memory limits the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from exitbench.harness.cells.job import WorkerSpec
from exitbench.harness.engine.model.batches import in_batches
from exitbench.harness.planning.plan import make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.running import worker
from exitbench.methods.registry import method_names
from exitbench.results.spool.attempts import latest_status

SUITE = """
schema = 1
name = "rows"
seed = 3
[defaults]
batch_rows = {rows}
[models.own]
recipe = "{model}"
[tasks]
wmt-en-fr = {{ source = "builtin", limit = 5, max_new_tokens = 6 }}
[fit]
documents = 6
"""
SWEEP = '[[sweep]]\nmethod = "{method}"\ngrid = {{ {grid} }}\nkinds = ["quality"]\n'
CALIBRATION = (
    '[[calibration]]\nmethod = "calm-softmax"\nlevels = [0.9, 0.1]\ndelta = 0.5\nepsilon = 0.5\ndocuments = 5\n'
)
POLICIES = ("state-copy", "state-copy-lazy", "sync-parallel", "recompute-backlog", "exact", "noisy")
NEAR_TIE = 1e-4
NEEDS_HEADS = {"heads"}
GRIDS = {
    "calm-classifier": "threshold = [0.5, 0.9]",
    "calm-saturation": "threshold = [0.8, 0.95]",
    "calm-softmax": f"threshold = [0.3, 0.7], decay = ['none'], kv_policy = {list(POLICIES)}",
    "del": "max_drafts = [2]",
    "entropy": "threshold = [0.3, 0.6]",
    "free": "threshold = [0.5, 0.9]",
    "heads": "threshold = [0.01, 0.3]",
    "patience": "patience = [1, 2]",
    "prompt-lookup": "drafts = [2]",
    "mee-lstm": "hidden = [16], threshold = [0.6]",
    "random": "mean_exit = [4.0]",
    "self-speculation": "exit_layer = [2], drafts = [2]",
    "static": "exit_layer = [3]",
}
DECAYED = "threshold = [0.3, 0.7], decay = ['code']"
"""Settings that share a pass with those of the first policy."""
MODELS = {"builtin-weighted": "an encoder-decoder", "builtin-exit-heads": "a decoder-only model with exit heads"}


def names(model: str) -> list[str]:
    """Return the methods that a model supports."""
    return [name for name in method_names() if name not in NEEDS_HEADS or "heads" in model]


@dataclass(frozen=True)
class AttemptFolders:
    """Folders of attempts by number of rows and label: decoded alone with one row, and in shared passes with four.

    Attributes:
        shared: For each label of a pass's first cell, the number of cells that the pass answered.
    """

    folders: dict[int, dict[str, Path]]
    shared: dict[str, int]


@pytest.fixture(scope="module", params=MODELS)
def attempt_folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AttemptFolders:
    model = request.param
    methods = names(model)
    sweeps = [SWEEP.format(method=name, grid=GRIDS.get(name, "")) for name in methods]
    sweeps.append(SWEEP.format(method="calm-softmax", grid=DECAYED))
    results = {}
    events: list[dict[str, Any]] = []
    for rows in (1, 4):
        root = tmp_path_factory.mktemp(f"rows{rows}")
        (root / "rows.toml").write_text(SUITE.format(rows=rows, model=model) + "".join(sweeps) + CALIBRATION)
        suite = load_suite(root / "rows.toml")
        (group,) = make_plan(suite, root / "spool", root / "models", None).groups
        assert group.folder is not None
        spec = WorkerSpec(group.to_run("all"), group.folder, None, root / "spool", "cpu", 1, shares=rows > 1)
        worker.run(spec, events.append)
        ended = latest_status(root / "spool")
        assert {ended[cell.item.cell.cell_id].status for cell in group.cells} == {"ok"}
        results[rows] = {cell.item.label: ended[cell.item.cell.cell_id].path for cell in group.cells}
    return AttemptFolders(results, {event["label"]: event["cells"] for event in events if event.get("cells", 1) > 1})


@pytest.fixture(scope="module")
def runs(attempt_folders: AttemptFolders) -> dict[int, dict[str, Path]]:
    return attempt_folders.folders


def test_thresholds_decays_and_patiences_of_a_method_and_policy_share_a_pass(attempt_folders: AttemptFolders) -> None:
    """Otherwise, the comparison below would not test shared passes."""
    softmax = sorted(cells for label, cells in attempt_folders.shared.items() if "/calm-softmax:" in label)
    assert softmax == [*[2] * (len(POLICIES) - 1), 4], "of each policy two thresholds, of one two decays as well"
    shared = {label.split("/")[2].split(":")[0]: cells for label, cells in attempt_folders.shared.items()}
    assert shared.pop("heads", 2) == 2
    del shared["calm-softmax"]
    assert shared == dict.fromkeys(["calm-classifier", "calm-saturation", "entropy", "free", "patience"], 2)


@pytest.mark.parametrize("table", ["samples", "tokens"])
def test_every_method_answers_equally_with_four_shared_rows_and_with_one(
    runs: dict[int, dict[str, Path]], table: str
) -> None:
    labels = [label for label in runs[1] if label.endswith("/quality")]
    assert {label.split("/")[2].partition(":")[0] for label in labels} > {"calm-softmax", "free", "full", "mee-lstm"}
    for label in labels:
        one, four = (pq.read_table(runs[rows][label] / f"{table}.parquet").to_pydict() for rows in (1, 4))
        scores = [one.pop("score", []), four.pop("score", [])]
        assert one == four, label
        assert scores[0] == pytest.approx(scores[1], abs=NEAR_TIE, nan_ok=True), label


def test_rows_of_a_batch_exit_at_different_blocks(runs: dict[int, dict[str, Path]]) -> None:
    """Otherwise, the comparison above would not test different exits within a batch."""
    layers = {
        label: set(pq.read_table(path / "tokens.parquet")["exit_layer"].to_pylist())
        for label, path in runs[4].items()
        if label.endswith("/quality")
    }
    assert sum(len(result) > 1 for result in layers.values()) >= 8, layers


def test_calibration_with_four_rows_equals_calibration_with_one(runs: dict[int, dict[str, Path]]) -> None:
    for label in (label for label in runs[1] if label.endswith("/calibration")):
        one, four = (pq.read_table(runs[rows][label] / "calibration.parquet").to_pydict() for rows in (1, 4))
        assert one == four


def test_out_of_memory_batches_are_retried_with_half_the_rows() -> None:
    tried: list[int] = []
    done: list[int] = []

    def run(batch: Sequence[int]) -> None:
        tried.append(len(batch))
        if len(batch) > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB.")
        done.extend(batch)

    told: list[int] = []
    in_batches(range(7), 7, run, told.append)
    assert tried == [7, 3, 1, 1, 1, 1, 1, 1, 1]
    assert done == list(range(7)) and told == list(range(1, 8))


def test_out_of_memory_with_one_row_and_other_errors_are_raised() -> None:
    def no_memory(batch: Sequence[int]) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        in_batches(range(4), 4, no_memory, lambda done: None)

    def wrong(batch: Sequence[int]) -> None:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes"):
        in_batches(range(4), 4, wrong, lambda done: None)
