"""Figures and tables of encoders: queries are compared with slow Python, and every point is drawn."""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.axes import Axes
from print_rules import drawn

from exitbench.reports import figures, tables
from exitbench.reports.claims import check_claim
from exitbench.reports.claims.claim import read_claims
from exitbench.reports.figures.encoders import (
    encoder_confidence,
)
from exitbench.reports.frame import Frame
from exitbench.reports.plotting.panels import MOST_PANELS
from exitbench.results.database.connection import open_database
from exitbench.results.files.formats import content_id

Rows = Callable[[Path, ModuleType, str], Frame]

BLOCKS, DOCUMENTS = 4, 40
RNG = np.random.default_rng(5)
RIGHT_DB = RNG.random((DOCUMENTS, BLOCKS)) < np.array([0.5, 0.7, 0.85, 1.0])  # [documents, blocks]
SCORE_DB = np.round(0.4 * RNG.random((DOCUMENTS, BLOCKS)) + 0.5 * RIGHT_DB, 1)  # with ties
STATIC = (1, 3)


def exits_of(method: str, params: dict[str, Any]) -> np.ndarray:
    """Return the exit layer of each document under a method."""
    if method == "static":
        return np.full(DOCUMENTS, params["exit_layer"])
    if method == "oracle":
        return RIGHT_DB.argmax(axis=1) + 1
    if method == "max-prob":
        sure = np.greater(SCORE_DB, params["threshold"])
        sure[:, -1] = True
        return sure.argmax(axis=1) + 1
    return np.full(DOCUMENTS, BLOCKS)


def trace_of(method: str, exits: np.ndarray) -> Iterator[dict[str, Any]]:
    for document, block in product(range(DOCUMENTS), range(1, BLOCKS + 1)):
        evaluated = block == exits[document] if method in ("static", "full") else block <= exits[document]
        if evaluated:
            label = int(RIGHT_DB[document, block - 1])
            yield {
                "doc_key": f"{document:016x}", "block": block, "label_id": label, "prediction": float(label),
                "probability": 0.9, "gold": 1.0, "score": None if block == BLOCKS else SCORE_DB[document, block - 1],
                "exited": bool(block == exits[document]),
            }  # fmt: skip


@pytest.fixture(scope="module")
def database(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database of an encoder of four blocks, trained on the last: one task, four methods, timed at two batch
    sizes.
    """
    folder = tmp_path_factory.mktemp("encoders")
    settings: list[tuple[str, dict[str, Any]]] = [
        ("full", {}),
        *(("static", {"exit_layer": block}) for block in STATIC),
        ("oracle", {"match": "first"}),
        *(("max-prob", {"threshold": threshold}) for threshold in (0.3, 0.6, 1.0)),
    ]
    for batch_size in (1, 32):
        full_id = None
        for name, params in settings if batch_size == 1 else settings[:1] + settings[-2:-1]:
            cell = _cell(example, name, params, "quality", batch_size, full_id)
            full_id = full_id or cell["cell_id"]
            exits = exits_of(name, params)
            _write_quality(example, folder / "spool", cell, name, exits)
            if params.get("threshold") == 0.6:
                timed = _cell(example, name, params, "timing", batch_size, full_id)
                _write_timing(example, folder / "spool", timed, 2.0 if batch_size == 1 else 1.0)
    return Path(example.ingested(folder))


def _cell(example: ModuleType, name: str, params: dict[str, Any], kind: str, size: int, full: str | None) -> Any:
    model = example.Model("toy-bert", "encoder", BLOCKS, 0)
    method, task = example.Method(name, params), example.Task("sst2", "sst2", ("acc",))
    cell = example.cell_json(model, task, method, kind, full, documents=DOCUMENTS)
    identity = cell["identity"] | {"batch_size": size}
    return cell | {"batch_size": size, "identity": identity, "cell_id": content_id(identity)}


def _write_quality(example: ModuleType, root: Path, cell: Any, name: str, exits: np.ndarray) -> None:
    right = RIGHT_DB[np.arange(DOCUMENTS), exits - 1]
    half = 10.0
    value = 100 * float(right.mean())
    acc = example.Interval(value, value - half, value + half, "t", DOCUMENTS)
    tokens = {
        "doc_key": [f"{document:016x}" for document in range(DOCUMENTS)], "position": [1] * DOCUMENTS,
        "token_id": right.astype(int), "exit_layer": exits, "blocks_run": exits, "reason": ["threshold"] * DOCUMENTS,
        "full_token_id": [1] * DOCUMENTS,
    }  # fmt: skip
    depth = example.plain(float(exits.mean()), DOCUMENTS)
    metrics = example.metric_rows({"acc": acc, "mean_exit_layer": depth, "mean_blocks_run": depth})
    tables = {"sequence_trace": trace_of(name, exits), "tokens": pa.table(tokens).to_pylist(), "metrics": metrics}
    example.write_attempt(root, cell, tables)


def _write_timing(example: ModuleType, root: Path, cell: Any, speedup: float) -> None:
    ends = {"speedup": speedup, "speedup_decode": speedup, "aa_speedup": 1.0}
    metrics = {name: example.Interval(at, at - 0.1, at + 0.1, "t", DOCUMENTS) for name, at in ends.items()}
    rows = example.metric_rows(metrics | {"timed_documents": example.plain(20)}, "speed")
    example.write_attempt(root, cell, {"metrics": rows})


def markers(axes: Axes) -> list[tuple[float, float]]:
    lines = [line for line in axes.lines if line.get_marker() not in ("None", None, "")]
    return [(float(x), float(y)) for line in lines for x, y in zip(*line.get_data(), strict=True)]


def test_encoder_confidence_has_no_rows_for_generative_models(small_database: Path, rows_of: Rows) -> None:
    assert rows_of(small_database, figures, "encoder_confidence").rows == ()


def test_encoder_confidence_figure_is_printable_and_has_a_finding(database: Path, rows_of: Rows) -> None:
    drawn(encoder_confidence, rows_of(database, figures, "encoder_confidence"))


def test_tasks_with_the_most_documents_are_drawn_when_there_are_too_many(database: Path, rows_of: Rows) -> None:
    frame = rows_of(database, figures, "encoder_confidence")
    many = [{**row, "task": f"{n:02}", "n": n} for n in range(1, MOST_PANELS + 4) for row in frame.rows]
    panels = encoder_confidence.plot(Frame(frame.columns, tuple(many))).axes
    assert [axes.get_title()[:2] for axes in panels] == [f"{n:02}" for n in range(4, MOST_PANELS + 4)]


def test_frontier_and_exit_histogram_include_encoder_settings(database: Path, rows_of: Rows) -> None:
    scores = rows_of(database, figures, "frontier")
    gated = [row for row in scores.rows if row["method"] == "max-prob"]
    exits = {threshold: exits_of("max-prob", {"threshold": threshold}) for threshold in (0.3, 0.6, 1.0)}
    right = {threshold: RIGHT_DB[np.arange(DOCUMENTS), layers - 1].mean() for threshold, layers in exits.items()}
    assert sorted({(row["depth"], row["quality"]) for row in gated}) == [
        (pytest.approx(exits[threshold].mean() / BLOCKS), pytest.approx(right[threshold]))
        for threshold in sorted(exits)
    ], "at full depth all labels are right"
    blocks = {row["depth"]: row["quality"] for row in scores.rows if row["method"] in ("static", "full")}
    assert blocks == {block / BLOCKS: pytest.approx(RIGHT_DB[:, block - 1].mean()) for block in (*STATIC, BLOCKS)}
    timed = [row for row in scores.rows if row["method"] == "max-prob" and row["speedup"] is not None]
    assert sorted((row["setting"], row["speedup"], row["inside_noise_floor"]) for row in timed) == [
        ("float32, cpu, batch 1", 2.0, False),
        ("float32, cpu, batch 32", 1.0, True),
    ]
    leaving = rows_of(database, figures, "exit_histogram")
    for threshold, layers in exits.items():
        tokens_by_layer = {row["exit_layer"]: row["tokens"] for row in leaving.rows if f":{threshold}" in row["params"]}
        assert tokens_by_layer == {int(block): int((layers == block).sum()) for block in np.unique(layers)}


def test_right_labels_are_compared_with_all_wrong_ones_of_their_block(database: Path, rows_of: Rows) -> None:
    frame = rows_of(database, figures, "encoder_confidence")
    wins = pairs = 0.0
    for block in range(BLOCKS - 1):
        right, score = RIGHT_DB[:, block], SCORE_DB[:, block].astype(np.float32)
        for is_right in (True, False):
            (row,) = (r for r in frame.rows if (r["block"], r["is_right"]) == (block + 1, is_right))
            assert row["texts"] == (right == is_right).sum()
            assert row["mean"] == pytest.approx(score[right == is_right].mean())
        for right_score, other in product(score[right], score[~right]):
            wins, pairs = wins + (right_score > other) + (right_score == other) / 2, pairs + 1
    assert len(frame.rows) == 2 * (BLOCKS - 1), "of the run that asked most, where nobody leaves"
    assert encoder_confidence.chance_right_is_higher(frame) == pytest.approx(wins / pairs)
    (axes,) = encoder_confidence.plot(frame).axes
    assert sorted(markers(axes)) == sorted((row["block"], row["mean"]) for row in frame.rows)


def test_oracle_exits_are_listed_next_to_published_ones_of_the_task(database: Path, rows_of: Rows) -> None:
    rows = rows_of(database, tables, "natcap_tables1_2_3_7_8_10_ideal_exit").rows
    encoders = [row for row in rows if row["kind"] == "classification (encoders)"]
    exits = exits_of("oracle", {})
    local = encoders[0]
    assert (local["printed_in"], local["data"], local["n"], local["blocks"]) == ("here", "sst2", DOCUMENTS, BLOCKS)
    assert (local["ideal_exit"], local["can_exit"]) == (
        pytest.approx(exits.mean()),
        pytest.approx(100 * (exits < BLOCKS).mean(), abs=1e-5),
    )
    spread = 2.0227 * exits.std(ddof=1) / np.sqrt(DOCUMENTS)  # Student's t of 39 degrees of freedom
    assert local["ideal_half_width"] == pytest.approx(spread, rel=1e-3)
    images = [row["data"] for row in encoders[1:7]]
    assert images == ["GLUE SST-2"] * 6 and "GLUE SST-2" not in [row["data"] for row in encoders[7:]]


def test_ideal_gate_is_listed_next_to_the_published_one_of_the_task(database: Path, rows_of: Rows) -> None:
    rows = rows_of(database, tables, "natcap_table4_ideal_gate").rows
    assert [(row["printed_in"], row["data"]) for row in rows[:2]] == [("here", "sst2"), ("Table 4", "GLUE SST-2")]
    assert (rows[0]["kv_policy"], rows[0]["batch_size"], rows[0]["delta"]) == (None, 1, 0.0)


def test_published_speedups_are_checked_under_each_definition(database: Path) -> None:
    claims = {claim.claim_id: claim for claim in read_claims() if claim.ledger == "encoders"}
    with open_database(database) as opened:
        verdict_by_claim = {name: check_claim(opened, claim) for name, claim in claims.items() if claim.suite is None}
    assert {name: (verdict.value, verdict.verdict) for name, verdict in verdict_by_claim.items()} == {
        "pabee-speed-up-by-its-own-code": (1.62, "inconsistent"),
        "pabee-speed-up-as-a-saving": (pytest.approx(1 - 1 / 1.62), "consistent"),
        "pabee-speed-up-by-elasticberts-ratio": (pytest.approx(12 / 1.57), "consistent"),
        "encoders-natcap-speed-up-by-elasticberts-ratio": (pytest.approx(2.07 * 8 / 12), "inconsistent"),
        "encoders-natcap-speed-up-by-pabees-saving": (pytest.approx(0.115, abs=1e-3), "inconsistent"),
    }
