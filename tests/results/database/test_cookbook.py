"""The cookbook's questions: each query runs, has an answer, and agrees with a slow computation from the spool.

The example gets more cells: another seed, KV policy and number format, rejected drafts, a vocabulary, a training and
another environment.
"""

import json
import math
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from stored_rows import query_rows

from exitbench.results.database.connection import Database, open_database
from exitbench.results.queries import query_names, saved_query
from exitbench.results.queries.cookbook import SECTIONS, cookbook_markdown
from exitbench.results.side_records.trainings import record_training
from exitbench.results.side_records.vocabularies import record_vocabulary

Opener = Callable[[Path], AbstractContextManager[Database]]
Row = Mapping[str, Any]
BLOCKS = 4
DRAFTS = {
    "name": "self-speculation",
    "params": {"exit_layer": 1},
    "revision": "1",
    "distribution": None,
    "version": None,
    "unused_params": [],
}


@dataclass(frozen=True)
class Cell:
    """One finished attempt at a cell, read from its files without the database."""

    record: Row
    path: Path

    @property
    def key(self) -> tuple[str, ...]:
        """Names of model and task, method and parameters."""
        facts = self.record
        return (
            facts["model"]["name"],
            facts["task"]["label"],
            facts["method"]["name"],
            _text(facts["method"]["params"]),
        )

    @property
    def is_full_depth(self) -> bool:
        return bool(self.record["full_depth_cell_id"] is None)

    def rows(self, table: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.path / f"{table}.parquet").to_pylist()
        return rows

    def outputs(self) -> dict[str, list[dict[str, Any]]]:
        """Return the traced tokens of each document in order of position."""
        documents = defaultdict(list)
        for row in self.rows("tokens"):
            documents[row["doc_key"]].append(row)
        return {key: sorted(rows, key=lambda row: int(row["position"])) for key, rows in documents.items()}


@pytest.fixture(scope="module")
def spool(example: Any, example_spool: Path, example_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the example's spool with more cells, which are not yet in the database next to it."""
    root = Path(shutil.copytree(example_spool, tmp_path_factory.mktemp("cookbook") / "spool"))
    shutil.copyfile(example_database, root.parent / "exitbench.duckdb")
    _extend(example, root)
    return root


@pytest.fixture(scope="module")
def encoder_database(example: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database of four documents classified by an encoder; document n exits after block n."""
    folder = tmp_path_factory.mktemp("encoder")
    cell = example.cell_json(example.MODELS[1], example.Task("toy", "toy", ("accuracy",)), example.FULL, "quality")
    trace = [
        {"doc_key": f"{n:016x}", "block": block, "label_id": n % 2, "prediction": float(n % 2), "probability": 0.9}
        | {"gold": float(n > 1), "score": 0.5 if block < BLOCKS else None, "exited": block == n}
        for n in range(1, BLOCKS + 1)
        for block in range(1, n + 1)
    ]
    metrics = example.metric_rows({"mean_exit_layer": example.plain(2.5)}, "depth")
    example.write_attempt(folder / "spool", cell, {"sequence_trace": trace, "metrics": metrics})
    return example.ingested(folder)


def test_encoder_queries_report_exits_and_saved_layers_by_block(encoder_database: Path) -> None:
    with open_database(encoder_database) as connected:
        rows = connected.query(saved_query("encoder_exits").with_defaults()).to_pylist()
        (speedups,) = connected.query(saved_query("published_speedups").with_defaults()).to_pylist()
        (rule,) = connected.query(saved_query("encoder_methods").with_defaults()).to_pylist()
    assert [(row["block"], row["still_in"], row["exited"]) for row in rows] == [
        (1, 4, 1),
        (2, 3, 1),
        (3, 2, 1),
        (4, 1, 1),
    ]
    assert [row["right_of_exited"] for row in rows] == [0, 0, 1, 0]
    assert speedups["layers_saved"] == pytest.approx(1 - 2.5 / speedups["blocks"])
    assert (rule["layers_saved"], rule["always_one_label"]) == (speedups["layers_saved"], 75.0)
    assert speedups["layer_ratio"] == pytest.approx(speedups["blocks"] / 2.5)


@pytest.fixture(scope="module")
def database(example: Any, spool: Path, open_computed: Opener) -> Iterator[Database]:
    with open_computed(example.ingested(spool.parent)) as opened:
        yield opened


@pytest.fixture(scope="module")
def cells(spool: Path) -> list[Cell]:
    """Return the latest successful attempt at every cell."""
    by_attempt = {}
    for done_file in sorted(spool.glob("??/*/*/DONE"), key=lambda path: path.parent.name):
        if json.loads((done_file.parent / "status.json").read_text())["status"] == "ok":
            by_attempt[done_file.parent.parent.name] = Cell(
                json.loads((done_file.parent / "cell.json").read_text()), done_file.parent
            )
    return list(by_attempt.values())


def _extend(example: Any, root: Path) -> None:
    model, task = example.MODELS[1], example.TASKS[0]
    full = example.cell_json(model, task, example.FULL, "quality")
    world = example.WORLD.beliefs(model, task)
    for method in (example.Method("static", {"exit_layer": 2}, "exact"), example.CALM[0]):
        cell = example.cell_json(model, task, method, "quality", full["cell_id"])
        if method is example.CALM[0]:
            cell = _other(example, cell, seed=8)
        example.WORLD.write_quality(root, cell, task, world, example.exits_of(method, world))
    brief = example.Method("static", {"exit_layer": 3})
    timing = example.cell_json(model, task, brief, "timing", full["cell_id"])
    example.WORLD.write_timing(root, timing, world, example.exits_of(brief, world), tokens=2)
    _write_untraced(example, root, _other(example, deepcopy(full), dtype="bfloat16"))
    _write_drafts(example, root, _other(example, deepcopy(full), method=DRAFTS, full_depth_cell_id=full["cell_id"]))
    for model in example.MODELS:
        digest = example.cell_json(model, task, example.FULL, "quality")["model"]["tokenizer_sha256"]
        texts = [_spelling(token_id) for token_id in range(example.WORLD.vocabulary)]
        record_vocabulary(root, digest, texts, {0})
    (root.parent / "trained").mkdir()
    (root.parent / "trained" / "card.json").write_text('{"recipe": {"name": "small"}}')
    log = ["step,block,metric,value", "0,,loss_nats,9", "0,1,loss,8", "4,,loss_nats,5", "5,1,loss,3"]
    log += ["10,,loss_nats,1", "10,1,loss,2\n"]
    (root.parent / "trained" / "training_log.csv").write_text("\n".join(log))
    record_training(root, "a" * 64, root.parent / "trained")
    _write_benchmarks(example, root)


def _other(example: Any, cell: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a copy of the cell with some fields changed, also in its identity, and with the new id."""
    changed = {**cell, **changes}
    changed["identity"] = {**cell["identity"], **{name: changes[name] for name in changes if name in cell["identity"]}}
    return {**changed, "cell_id": example.content_id(changed["identity"])}


def _spelling(token_id: int) -> str:
    """Return a token's spelling: ids that end in 5 are punctuation, and other multiples of 3 begin a word."""
    return "." if token_id % 10 == 5 else f"\u2581w{token_id}" if token_id % 3 == 0 else f"w{token_id}"


def _write_drafts(example: Any, root: Path, cell: dict[str, Any]) -> None:
    """Write a run of two documents. Some tokens of the first follow rejected drafts.

    Its answer also continues after full depth's has ended, at position 6.
    """
    keys = example.WORLD.doc_keys()
    tokens = [
        {"doc_key": keys[document], "position": position, "token_id": token_id, "full_token_id": full_id}
        | {"exit_layer": layer, "blocks_run": BLOCKS, "head_rows": 150, "reason": "threshold", "rejected": rejected}
        for document, position, token_id, full_id, layer, rejected in (
            (0, 1, 3, 3, 1, 0),
            (0, 2, 4, 4, 4, 2),
            (0, 6, 7, None, 4, 1),
            (1, 1, 9, 9, 1, 0),
        )
    ]
    samples = [
        {"doc_key": keys[document], "output_text": "t", "output_ids": ids, "n_prompt": 1, "n_output": len(ids)}
        | {"stop_reason": "length", "scores": '{"f1": 0.0, "em": 0}', "statistics": "{}"}
        for document, ids in enumerate(([3, 4, 7], [9]))
    ]
    env = deepcopy(example.ENV)
    env["environment"]["packages"] |= {"torch": "2.14.0", "numpy": "2.0.0"}
    env["environment"]["git_dirty"] = True
    env["hardware"]["threads"] = 4
    metrics = {"f1": example.plain(0.0), "acceptance_rate": example.plain(40.0), "token_match": example.plain(0.75)}
    tables = {"tokens": tokens, "samples": samples, "metrics": example.metric_rows(metrics)}
    example.write_attempt(root, cell, tables, env=env)


def _write_untraced(example: Any, root: Path, cell: dict[str, Any]) -> None:
    """Write a full-depth run of one document without the table `tokens`; queries over tokens do not see this run."""
    sample = {"doc_key": example.WORLD.doc_keys()[0], "output_text": "t", "output_ids": [3], "n_prompt": 1}
    sample |= {"n_output": 1, "stop_reason": "eos", "scores": '{"f1": 50.0, "em": 0}', "statistics": "{}"}
    metrics = example.metric_rows({"f1": example.plain(50.0)})
    example.write_attempt(root, cell, {"samples": [sample], "metrics": metrics})


MEDIANS_S = (
    # day, commit, whether more than that was measured, threads
    ((1, "first", False, 1), 4.0),
    ((2, "first", False, 1), 6.0),
    ((3, "second", False, 1), 10.0),
    ((4, "second", True, 1), 1.0),
    ((5, "second", True, 1), 3.0),
    ((6, "second", False, 2), 7.0),
)


def _write_benchmarks(example: Any, root: Path) -> None:
    """Write results of one benchmark in pytest-benchmark's format, from machines with different numbers of threads."""
    (root / "perf").mkdir()
    for (day, commit, dirty, threads), median_s in MEDIANS_S:
        benchmark = {"fullname": "tests/benchmarks/test_ingest.py::test_rows[a/b]", "params": None}
        artifact = {
            "machine_info": {**example.ENV, "hardware": {**example.ENV["hardware"], "threads": threads}},
            "commit_info": {"id": commit, "dirty": dirty},
            "datetime": f"2026-01-0{day}T00:00:00+00:00",
            "benchmarks": [benchmark | {"extra_info": {"measured": day}, "stats": {"median": median_s}}],
        }
        (root / "perf" / f"{day:016x}.json").write_text(json.dumps(artifact))


def _text(params: Row) -> str:
    return json.dumps(params, sort_keys=True)


def _rows(database: Database, name: str, **parameters: Any) -> list[dict[str, Any]]:
    query = saved_query(name)
    return query_rows(database, query.sql, {**query.defaults, **parameters})


def _answer(database: Database, name: str, **parameters: Any) -> list[dict[str, Any]]:
    """Return the rows of a saved query. A row with a setting's label also gets the setting's parameters."""
    rows = _rows(database, name, **parameters)
    return [row | {"params": _params(database)[row["method"], row["label"]]} if "label" in row else row for row in rows]


@cache
def _params(database: Database) -> Mapping[tuple[str, str], str]:
    """Return the parameters of every method and label."""
    rows = database.query("SELECT method, label, params FROM settings").to_pylist()
    params_by_key = {(row["method"], row["label"]): row["params"] for row in rows}
    assert len(params_by_key) == len(rows)
    return params_by_key


def _comparable_text(row: Row) -> str:
    """Return a row as text for comparison. Floats are rounded, because threads add in different orders."""
    return str([f"{value:.6g}" if isinstance(value, float) else value for value in row.values()])


def _key(row: Row) -> tuple[str, ...]:
    return (row["model"], row["task_label"], row["method"], _text(json.loads(row["params"])))


def _quality(cells: Iterable[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.record["kind"] == "quality" and not cell.is_full_depth]


def _probe_of(cell: Cell, cells: Iterable[Cell]) -> dict[tuple[str, int], Row]:
    full = cell.record["full_depth_cell_id"]
    (probe,) = [c for c in cells if c.record["kind"] == "probe" and c.record["full_depth_cell_id"] == full]
    return {(row["doc_key"], row["position"]): row for row in probe.rows("probe")}


def _differs_at(tokens: Iterable[Row]) -> float:
    """Return the first position whose token differs from full depth's, or infinity."""
    return min((row["position"] for row in tokens if row["token_id"] != row["full_token_id"]), default=math.inf)


def _is_whole(tokens: Sequence[Row]) -> bool:
    """Return whether no position is missing."""
    return [row["position"] for row in tokens] == list(range(1, len(tokens) + 1))


def _grouped(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    groups = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return dict(groups)


@pytest.mark.parametrize("name", query_names())
def test_saved_query_is_documented_and_its_cookbook_text_gives_equal_rows(
    database: Database, choice_database: Path, encoder_database: Path, many_documents_database: Path, name: str
) -> None:
    query = saved_query(name)
    assert query.section in SECTIONS
    assert query.question.endswith("?") and query.question.count("?") == 1
    assert query.reading.endswith(".")
    assert set(re.findall(r"\$(\w+)", query.sql)) == set(query.defaults)
    databases = {"Choices": choice_database, "Encoders": encoder_database}
    other = many_documents_database if name == "what_to_use" else databases.get(query.section)
    with nullcontext(database) if other is None else open_database(other) as connected:
        rows = _rows(connected, name)
        assert rows
        keys = [_comparable_text(row) for row in rows]
        assert len(keys) == len(set(keys)), "a row that occurs twice"
        assert keys == [_comparable_text(row) for row in query_rows(connected, query.with_defaults())]


def test_cookbook_lists_every_query_under_its_section() -> None:
    document = cookbook_markdown()
    assert len(query_names()) >= 20
    for name in query_names():
        query = saved_query(name)
        chapter = document.partition(f'<a id="{name}"></a>{query.question}\n')[2].partition("\n### ")[0]
        assert f"exitbench sql @{name}" in chapter and query.with_defaults().strip() in chapter
        before = document.partition(f'<a id="{name}"></a>')[0]
        assert re.findall(r"^## (.+)$", before, re.MULTILINE)[-1] == query.section


def test_token_trace_has_the_text_of_every_token(database: Database) -> None:
    rows = database.query(
        "SELECT token_id, text, full_token_id, full_text, tokenizer_sha256 FROM token_trace "
        "JOIN runs USING (attempt_id)"
    ).to_pylist()
    with_text = [row for row in rows if row["text"] is not None]
    assert {row["tokenizer_sha256"] for row in with_text} == {row["tokenizer_sha256"] for row in rows}
    assert all(row["text"] == _spelling(row["token_id"]) for row in with_text) and len(with_text) == len(rows)
    assert all(
        row["full_text"] == _spelling(row["full_token_id"]) for row in with_text if row["full_token_id"] is not None
    )


def test_subword_kind_is_derived_from_token_spelling(database: Database, cells: list[Cell]) -> None:
    def piece(row: Row) -> str:
        token_id = row["token_id"]
        if token_id == 0:
            return "no text"
        if _spelling(token_id) == ".":
            return "punctuation"
        return "first piece" if token_id % 3 == 0 or row["position"] == 1 else "continuation"

    expected = _grouped(
        ((cell.key, cell.record["seed"], cell.record["kv_policy"], piece(row)), row)
        for cell in _quality(cells)
        for row in cell.rows("tokens")
    )
    depths = sorted(
        (key[0], key[3], mean(row["exit_layer"] for row in rows), len(rows)) for key, rows in expected.items()
    )
    answer = _answer(database, "exit_by_subword")
    assert {row["piece"] for row in answer} == {"no text", "punctuation", "first piece", "continuation"}
    result = sorted((_key(row), row["piece"], row["mean_exit_layer"], row["n"]) for row in answer)
    assert result == [(*key, pytest.approx(depth), n) for *key, depth, n in depths]


def test_oracle_comparison_stops_at_the_first_divergence(database: Database, cells: list[Cell]) -> None:
    expected = []
    for cell in _quality(cells):
        probe = _probe_of(cell, cells)
        for doc_key, tokens in cell.outputs().items():
            end = _differs_at(tokens)
            for row in tokens:
                if row["position"] < end:
                    waste = row["exit_layer"] - probe[doc_key, row["position"]]["first_match"]
                    if waste >= 2:
                        expected.append((*cell.key, doc_key, row["position"], waste, _spelling(row["token_id"])))
    answer = _answer(database, "oracle_far_below", rows=10_000)
    result = [(*_key(row), row["doc_key"], row["position"], row["blocks_too_many"], row["text"]) for row in answer]
    assert sorted(result) == sorted(expected)
    assert [row["blocks_too_many"] for row in answer] == sorted(
        (row["blocks_too_many"] for row in answer), reverse=True
    )
    assert len(_answer(database, "oracle_far_below", rows=3, method="calm-*")) == 3


def test_near_ties_are_measured_at_the_first_divergence_of_a_document(database: Database, cells: list[Cell]) -> None:
    margin = 2.0
    expected = {}
    for cell in _quality(cells):
        probe = _probe_of(cell, cells)
        margins = []
        said_second = 0
        for doc_key, tokens in cell.outputs().items():
            end = _differs_at(tokens)
            for row in tokens:
                if row["position"] == end:
                    probed = probe.get((doc_key, row["position"]))
                    margins.append(
                        math.nan if probed is None else math.log(probed["p1"][-1]) - math.log(probed["p2"][-1])
                    )
                    said_second += probed is not None and probed["top2_id"][-1] == row["token_id"]
        if margins:
            finite = [value for value in margins if not math.isnan(value)]
            shares = (sum(value < margin for value in finite), said_second, len(margins) - len(finite))
            middle = median(finite) if finite else -1
            expected[cell.record["cell_id"]] = (
                *(cell.key, cell.record["seed"], cell.record["kv_policy"], len(margins)),
                *(share / len(margins) for share in shares),
                middle,
            )
    answer = _answer(database, "near_ties", margin=margin)
    names = ("kv_policy", "divergences", "share_near_tie", "share_said_second", "share_behind_end")
    result = sorted(
        (
            _key(row),
            row["seed"],
            *(row[name] for name in names),
            -1 if row["median_margin"] is None else row["median_margin"],
        )
        for row in answer
    )
    assert result == [(*row[:3], *map(pytest.approx, row[3:])) for row in sorted(expected.values())]
    assert {row["share_behind_end"] for row in answer} == {0, 1}
    assert 0 < mean(row["share_near_tie"] for row in answer) < 1


def test_divergences_are_counted_at_the_exit_layer_of_the_first_differing_token(
    database: Database, cells: list[Cell]
) -> None:
    expected = []
    for cell in _quality(cells):
        flags: dict[int, list[bool]] = defaultdict(list)
        for tokens in cell.outputs().values():
            end = _differs_at(tokens)
            for row in tokens if _is_whole(tokens) else ():
                if row["position"] <= end:
                    flags[row["exit_layer"]].append(row["position"] == end)
        expected += [(cell.key, cell.record["seed"], layer, len(ends), sum(ends)) for layer, ends in flags.items()]
    answer = _answer(database, "divergence_by_layer")
    result = [(_key(row), row["seed"], row["exit_layer"], row["tokens"], row["departures"]) for row in answer]
    assert sorted(result) == sorted(expected)


def test_exit_reliability_bins_have_equal_size_and_stop_at_the_first_divergence(
    database: Database, cells: list[Cell]
) -> None:
    expected = {}
    for cell in _quality(cells):
        ordered = []
        for tokens in cell.outputs().values():
            end = _differs_at(tokens)
            ordered += [row for row in tokens if row["position"] <= end and row["reason"] == "threshold"]
        scores = [row["score"] for row in ordered]
        if scores and None not in scores and min(scores) < max(scores):
            expected[cell.key, cell.record["seed"]] = ordered
    groups = _grouped(((_key(row), row["seed"]), row) for row in _answer(database, "exit_reliability"))
    assert groups.keys() == expected.keys()
    for key, rows in groups.items():
        ordered = sorted(expected[key], key=lambda row: float(row["score"]))
        assert [row["tenth"] for row in rows] == list(range(1, min(10, len(ordered)) + 1))
        assert max(row["n"] for row in rows) - min(row["n"] for row in rows) <= 1
        assert all(lower["score_to"] <= other["score_from"] for lower, other in pairwise(rows))
        first = ordered[: rows[0]["n"]]
        assert rows[0]["agreement"] == mean(row["token_id"] == row["full_token_id"] for row in first)
        assert sum(row["n"] for row in rows) == len(ordered)


def _probe_tokens(cells: Iterable[Cell]) -> dict[tuple[str, str], list[Row]]:
    """Return the tokens of each probe, by model and task."""
    return {cell.key[:2]: cell.rows("probe") for cell in cells if cell.record["kind"] == "probe"}


def test_gap_reliability_bins_all_blocks_but_the_last(database: Database, cells: list[Cell]) -> None:
    answer = _answer(database, "gap_reliability")
    by_gap = {(row["model"], row["task_label"], round(10 * row["gap_from"])): row for row in answer}
    grouped_rows = _grouped(
        ((*key, min(math.floor(10 * (p1 - p2)), 9)), (p1 - p2, top1 == row["full_token_id"]))
        for key, tokens in _probe_tokens(cells).items()
        for row in tokens
        for p1, p2, top1 in list(zip(row["p1"], row["p2"], row["top1_id"], strict=True))[:-1]
    )
    # Gaps are computed in single precision there, so that one at the very edge of a step may fall beside it.
    assert sum(row["n"] for row in answer) == sum(map(len, grouped_rows.values()))
    assert sum(abs(len(pairs) - by_gap[key]["n"]) for key, pairs in grouped_rows.items()) <= 4
    close = [key for key, pairs in grouped_rows.items() if len(pairs) == by_gap[key]["n"]]
    assert len(close) > 0.9 * len(grouped_rows)
    for key in close:
        assert by_gap[key]["mean_gap"] == pytest.approx(mean(gap for gap, _ in grouped_rows[key]), abs=1e-3)
        assert by_gap[key]["agreement"] == pytest.approx(mean(agrees for _, agrees in grouped_rows[key]), abs=0.1)


def test_calibration_error_is_weighted_by_tokens_per_bin(database: Database, cells: list[Cell]) -> None:
    probes = _probe_tokens(cells)
    for row in _answer(database, "confidence_error_by_block"):
        tokens = probes[row["model"], row["task_label"]]
        at = row["block"] - 1
        steps = _grouped(
            (
                min(math.floor(10 * token["p1"][at]), 9),
                (token["p1"][at], token["top1_id"][at] == token["full_token_id"]),
            )
            for token in tokens
        )
        error = sum(abs(sum(p for p, _ in step) - sum(agrees for _, agrees in step)) for step in steps.values())
        assert row["calibration_error"] == pytest.approx(error / len(tokens), rel=1e-4)
        assert row["mean_p1"] == pytest.approx(mean(token["p1"][at] for token in tokens))
        assert row["n"] == len(tokens)


def test_signal_quality_area_equals_the_share_of_correctly_ordered_pairs(database: Database, cells: list[Cell]) -> None:
    signals: dict[str, Callable[[Row, int], float]] = {
        "p1": lambda token, at: float(token["p1"][at]),
        "entropy": lambda token, at: -float(token["entropy"][at]),
        "cosine_previous": lambda token, at: float(token["cosine_previous"][at]),
    }
    probes = _probe_tokens(cells)
    answer = _answer(database, "signal_quality", documents=8)
    assert {row["signal"] for row in answer} == {*signals, "gap"}
    for row in answer:
        if row["signal"] in signals:
            at = row["block"] - 1
            values = _grouped(
                (token["top1_id"][at] == token["full_token_id"], signals[row["signal"]](token, at))
                for token in probes[row["model"], row["task_label"]]
            )
            pairs = [(a > b) + (a == b) / 2 for a in values[True] for b in values[False]]
            assert row["area"] == pytest.approx(mean(pairs))
            assert (row["agreeing"], row["other"]) == (len(values[True]), len(values[False]))


def test_block_curves_are_means_over_tokens(database: Database, cells: list[Cell]) -> None:
    probes = _probe_tokens(cells)
    for row in _answer(database, "block_curves"):
        tokens = probes[row["model"], row["task_label"]]
        for name in ("p_final", "entropy", "cosine_previous", "cosine_last", "jsd_last"):
            assert row[name] == pytest.approx(mean(token[name][row["block"] - 1] for token in tokens), rel=1e-5)


def test_suitability_counts_tokens_lost_between_first_match_and_stability(
    database: Database, cells: list[Cell]
) -> None:
    probes = _probe_tokens(cells)
    for row in _answer(database, "suitability"):
        tokens = probes[row["model"], row["task_label"]]
        matches = [[choice == t["full_token_id"] for choice in t["top1_id"]] for t in tokens]
        assert row["n"] == len(tokens)
        assert row["first_match"] == pytest.approx(mean(t["first_match"] for t in tokens) / row["blocks"])
        assert row["stable_from"] == pytest.approx(mean(t["stable_from"] for t in tokens) / row["blocks"])
        assert row["agreement_mid"] == pytest.approx(mean(each[row["blocks"] // 2 - 1] for each in matches))
        assert row["agreement_area"] == pytest.approx(mean(mean(each) for each in matches))
        lost = [t["stable_from"] - t["first_match"] for t in tokens if t["first_match"] < t["stable_from"]]
        assert row["share_lost"] == len(lost) / len(tokens) > 0
        assert row["blocks_between"] == pytest.approx(mean(lost))
        assert row["share_only_last"] == sum(t["stable_from"] == row["blocks"] for t in tokens) / len(tokens)


def test_token_frequency_is_counted_within_each_run(database: Database, cells: list[Cell]) -> None:
    expected = []
    for cell in _quality(cells):
        groups = _grouped((row["token_id"], row["exit_layer"]) for row in cell.rows("tokens"))
        by_frequency = _grouped(("1" if len(group) == 1 else "2..9", group) for group in groups.values())
        for frequency, members in by_frequency.items():
            layers = [layer for group in members for layer in group]
            expected.append((cell.key, cell.record["seed"], frequency, len(members), len(layers), mean(layers)))
    answer = _answer(database, "exit_by_frequency")
    names = ("seed", "frequency", "different_tokens", "n", "mean_exit_layer")
    result = sorted((_key(row), *(row[name] for name in names)) for row in answer)
    assert result == [(*row[:-1], pytest.approx(row[-1])) for row in sorted(expected)]


def test_earliest_exiting_tokens_come_first_with_their_text(database: Database, cells: list[Cell]) -> None:
    answer = _answer(database, "earliest_tokens", times=2, rows=3)
    runs = _grouped(((_key(row), row["seed"]), row) for row in answer)
    for cell in _quality(cells):
        groups = _grouped((row["token_id"], row["exit_layer"]) for row in cell.rows("tokens"))
        depths = sorted(mean(group) for group in groups.values() if len(group) >= 2)[:3]
        mine = [
            row
            for row in runs.get((cell.key, cell.record["seed"]), [])
            if len(runs[cell.key, cell.record["seed"]]) <= 3
        ]
        if mine:
            assert [row["mean_exit_layer"] for row in mine] == pytest.approx(depths)
            assert all(row["text"] == _spelling(row["token_id"]) for row in mine)
    assert len(runs) > 20


def test_exit_depth_is_correlated_with_that_of_the_previous_token(database: Database, cells: list[Cell]) -> None:
    answer = {(_key(row), row["seed"]): row for row in _answer(database, "depth_follows_depth")}
    calm = [cell for cell in _quality(cells) if cell.key[2] == "calm-softmax"]
    for cell in calm:
        layers = [[row["exit_layer"] for row in tokens] for tokens in cell.outputs().values()]
        pairs = [pair for document in layers for pair in pairwise(document)]
        row = answer[cell.key, cell.record["seed"]]
        left_values, right = zip(*pairs, strict=True)
        product = mean((a - mean(left_values)) * (b - mean(right)) for a, b in pairs)
        spread = math.sqrt(
            mean((a - mean(left_values)) ** 2 for a in left_values) * mean((b - mean(right)) ** 2 for b in right)
        )
        assert row["correlation"] == (pytest.approx(product / spread) if spread else None)
        early = [b == cell.record["model"]["blocks"] for a, b in pairs if a < cell.record["model"]["blocks"]]
        assert row["full_after_early"] == (pytest.approx(mean(early)) if early else None)
        assert row["pairs"] == len(pairs)


def test_gate_never_opens_reports_the_share_of_tokens_at_the_last_block(database: Database, cells: list[Cell]) -> None:
    answer = {(_key(row), row["seed"], row["n"]): row for row in _answer(database, "gate_never_opens")}
    for cell in _quality(cells):
        rows = cell.rows("tokens")
        assert answer[cell.key, cell.record["seed"], len(rows)]["share_last"] == mean(
            r["reason"] == "last" for r in rows
        )


def test_lost_documents_report_the_distance_from_early_exit_to_divergence(
    database: Database, cells: list[Cell]
) -> None:
    expected = []
    full = {cell.record["cell_id"]: cell for cell in cells if cell.is_full_depth and cell.record["kind"] == "quality"}
    for cell in _quality(cells):
        reference = {row["doc_key"]: row for row in full[cell.record["full_depth_cell_id"]].rows("samples")}
        outputs = cell.outputs()
        for row in cell.rows("samples"):
            best, score = (json.loads(sample["scores"]) for sample in (reference[row["doc_key"]], row))
            metric = next(iter(best))
            if score[metric] < best[metric]:
                tokens = outputs[row["doc_key"]]
                end = _differs_at(tokens)
                early = [t["position"] for t in tokens if t["exit_layer"] < cell.record["model"]["blocks"]]
                back = [end - position for position in early if position <= end < math.inf]
                at = None if end == math.inf else end
                expected.append((*cell.key, row["doc_key"], metric, at or 0, min(back, default=-1)))
    answer = _answer(database, "lost_documents", rows=10_000)
    result = []
    for row in answer:
        back = -1 if row["tokens_since_exit"] is None else row["tokens_since_exit"]
        result.append((*_key(row), row["doc_key"], row["metric"], row["differs_at"] or 0, back))
    assert sorted(result) == sorted(expected)
    assert {row[-1] for row in expected} > {0, -1}
    assert [row["loss"] for row in answer] == sorted((row["loss"] for row in answer), reverse=True)


def test_replay_is_joined_with_the_real_run_of_equal_parameters(database: Database) -> None:
    answer = _answer(database, "replay_against_real")
    assert len(answer) == 19
    # The example's real decodes follow the probe, so that nothing is off; two seeds share one replay.
    assert {row["method"] for row in answer} == {"calm-softmax"}
    assert {(row["exit_layer_off"], row["match_off"]) for row in answer} == {(0, 0)}


def test_kv_policies_are_compared_at_equal_method_and_parameters(database: Database) -> None:
    (row,) = _answer(database, "kv_policy_effect")
    assert (row["model"], row["task_label"], row["method"], row["kv_policy"]) == (
        "world-gpt",
        "squad",
        "static",
        "exact",
    )
    assert (row["exit_layer_more"], row["match_more"], row["value_more"]) == (0, 0, 0)
    assert len(_answer(database, "kv_policy_effect", reference="exact")) == 1


def test_only_runs_of_several_seeds_vary_over_seeds(database: Database) -> None:
    (row,) = _answer(database, "seed_variation")
    assert (row["seeds"], row["which"], json.loads(row["params"])["threshold"]) == (2, [7, 8], 0.3)
    assert row["sd_value"] == stdev([row["mean_value"]] * 2) == 0


def test_random_exits_are_interpolated_at_each_methods_depth(database: Database) -> None:
    points = database.query("SELECT * FROM frontier WHERE execution = 'real'").to_pylist()
    answer = _answer(database, "between_random_and_oracle")
    assert {row["method"] for row in answer} >= {"static", "calm-softmax"}
    for row in answer:
        candidates = [
            p for p in points if all(p[name] == row[name] for name in ("model", "task_label", "method", "params"))
        ]
        (setting,) = {
            p["setting_id"] for p in candidates if (p["kv_policy"], p["seed"]) == (row["kv_policy"], row["seed"])
        }
        same_setting = [p for p in points if p["setting_id"] == setting]
        budgets = sorted((p["mean_exit_layer"], p["token_match"]) for p in same_setting if p["method"] == "random")
        depths, matches = zip(*budgets, (candidates[0]["blocks"], 1), strict=True)
        assert row["random_match"] == pytest.approx(np.interp(row["mean_exit_layer"], depths, matches))
        assert row["shallower"] == (row["mean_exit_layer"] < depths[0])
        (oracle,) = (p["token_match"] for p in same_setting if p["method"] == "oracle")
        share = (row["token_match"] - row["random_match"]) / (oracle - row["random_match"])
        assert row["share_of_gap"] == pytest.approx(share)


def test_speed_ups_per_request_and_token_differ_by_the_length_of_outputs(database: Database) -> None:
    brief, *further_rows = _answer(database, "tokens_per_request")
    # A prompt costs 2 blocks; 5 tokens of 4 blocks and an overhead of 1 against 2 tokens of 3 blocks.
    assert (brief["tokens_per_request"], brief["full_tokens_per_request"]) == (2, 5)
    assert brief["length_ratio"] == pytest.approx(2 / 5)
    assert brief["speedup_per_request"] == pytest.approx((2 + 5 * 5) / (2 + 2 * 4), rel=0.02)
    assert brief["speedup_per_token"] == pytest.approx(5 / 4, rel=0.02)
    assert (brief["timed_documents"], brief["timed_rounds"]) == (8, 1)
    assert len(further_rows) == 36
    for row in further_rows:
        assert (row["tokens_per_request"], row["length_ratio"]) == (5, 1)
        assert row["speedup_per_token"] >= row["speedup_per_request"]


def test_a_speed_up_counts_only_outside_the_noise_floor(database: Database) -> None:
    answer = _answer(database, "speed_beyond_noise")
    for row in answer:
        faster, slower = row["speedup_low"] > max(1, row["aa_high"]), row["speedup_high"] < min(1, row["aa_low"])
        assert row["verdict"] == ("faster" if faster else "slower" if slower else "not to be told apart")
    assert {row["verdict"] for row in answer} >= {"faster"}


def test_realised_share_is_measured_over_ideal_decode_speedup(database: Database) -> None:
    for row in _answer(database, "cost_against_time"):
        assert row["realised"] == pytest.approx(row["speedup_decode"] / row["ideal_speedup_decode"])
        assert row["ideal_speedup_decode"] == pytest.approx(1 / row["share_of_blocks"])


def test_fastest_within_loss_has_the_largest_speedup_among_allowed_settings(database: Database) -> None:
    frontier = database.query("SELECT * FROM frontier WHERE execution = 'real' AND speedup IS NOT NULL").to_pylist()
    for loss in (0.5, 1000):
        for row in _answer(database, "fastest_within_loss", loss=loss):
            peers = [o for o in frontier if (o["model"], o["task_label"]) == (row["model"], row["task_label"])]
            assert row["speedup"] == max(o["speedup"] for o in peers if o["delta"] >= -loss)


def test_rejected_drafts_are_counted_for_self_speculation_only(database: Database) -> None:
    (row,) = _answer(database, "rejected_drafts")
    assert (row["method"], row["n"], row["rejected"], row["acceptance_rate"]) == ("self-speculation", 4, 3, 40.0)
    assert (row["rejected_per_token"], row["share_corrected"]) == (0.75, 0.5)


def test_blocks_run_beyond_the_exit_count_as_catch_up_work(database: Database) -> None:
    rows = {row["method"]: row for row in _answer(database, "work_caught_up")}
    assert rows["static"]["blocks_caught_up"] == rows["static"]["share_of_skipped"] == 0
    # Exits at 1, 4, 4 and 1 of 4 blocks, all of which were run.
    assert (rows["self-speculation"]["blocks_caught_up"], rows["self-speculation"]["share_of_skipped"]) == (1.5, 1)


def test_head_work_is_in_units_of_full_depth_head_evaluations(database: Database) -> None:
    for row in _answer(database, "head_work"):
        expected = {"calm-softmax": row["blocks_per_token"], "self-speculation": 1.5}.get(row["method"], 1)
        assert row["heads_per_token"] == pytest.approx(expected)


def test_stop_reasons_counts_outputs_of_different_length_or_at_the_limit(database: Database) -> None:
    (row,) = [row for row in _answer(database, "stop_reasons") if row["method"] == "self-speculation"]
    assert (row["documents"], row["mean_tokens"], row["full_mean_tokens"], row["length_factor"]) == (2, 2, 5, 0.4)
    assert (row["share_of_other_length"], row["share_at_limit"], row["full_share_at_limit"]) == (1, 1, 0)


def test_environment_differences_lists_fields_that_differ_between_attempts(
    database: Database, cells: list[Cell]
) -> None:
    drafts, other = (
        next(cell.path.name for cell in cells if (cell.key[2] == "self-speculation") is wanted)
        for wanted in (True, False)
    )
    expected = {("package", "torch", "2.13.0", "2.14.0"), ("package", "numpy", None, "2.0.0")}
    expected |= {
        ("machine and interpreter", "threads", "2", "4"),
        ("machine and interpreter", "dirty", "false", "true"),
    }
    for parameters in ({}, {"a": other, "b": drafts[:-4]}):
        rows = _answer(database, "environment_differences", **parameters)
        sides = {(row["part"], row["name"], row["a"], row["b"]) for row in rows}
        assert sides in (expected, {(part, name, b, a) for part, name, a, b in expected})
    assert sides == expected
    assert not database.query(saved_query("environment_differences").sql, {"a": other, "b": other}).to_pylist()


def test_failed_cells_show_the_last_line_of_their_log(database: Database) -> None:
    rows = {row["status"]: row for row in _answer(database, "failed_cells")}
    assert rows["oom"]["last_line"] == "allocating"
    assert rows["failed"]["signal"] == 9


def test_time_by_kind_counts_hours_of_all_attempts(database: Database, spool: Path) -> None:
    answer = _answer(database, "time_by_kind")
    attempts = [json.loads((done_file.parent / "status.json").read_text()) for done_file in spool.glob("??/*/*/DONE")]
    took = [
        (datetime.fromisoformat(status["ended_at"]) - datetime.fromisoformat(status["started_at"])).total_seconds()
        for status in attempts
    ]
    assert sum(row["attempts"] for row in answer) == len(attempts)
    assert 3600 * sum(row["hours"] for row in answer) == pytest.approx(sum(took))
    assert {row["status"] for row in answer} == {"ok", "oom", "failed"}


def test_training_loss_reports_first_halfway_and_last_values(database: Database) -> None:
    values = [
        (row["metric"], row["block"], row["first_value"], row["value_half_way"], row["last_value"])
        for row in _answer(database, "training_loss")
    ]
    assert values == [("loss", 1, 8, 3, 2), ("loss_nats", None, 9, 1, 1)]


def test_perf_history_takes_the_median_per_commit_and_keeps_dirty_runs_separate(
    database: Database,
) -> None:
    answer = _answer(database, "perf_history", benchmark="ingest/*")
    assert {(row["benchmark"], row["cpu"], row["gpu"]) for row in answer} == {("ingest/rows[a/b]", "Test CPU", None)}
    columns = ("threads", "commit", "dirty", "runs", "median_s", "times_before", "measured")
    assert [tuple(row[name] for name in columns) for row in answer] == [
        (1, "first", False, 2, 5.0, None, 2),
        (1, "second", False, 1, 10.0, 2.0, 3),
        (1, "second", True, 1, 1.0, 0.1, 4),
        (1, "second", True, 1, 3.0, 3.0, 5),
        (2, "second", False, 1, 7.0, None, 6),
    ]
    assert not _answer(database, "perf_history", benchmark="replay/*")


def test_traces_without_full_depth_tokens_have_no_divergence_rows(example: Any, tmp_path: Path) -> None:
    cell = example.cell_json(example.MODELS[0], example.TASKS[0], example.CALM[0], "quality", "0" * 64)
    token = {"doc_key": "a", "position": 1, "token_id": 7, "exit_layer": 2, "blocks_run": 2, "score": 0.5}
    sample = {"doc_key": "a", "output_text": "t", "output_ids": [7], "n_prompt": 1, "n_output": 1, "stop_reason": "eos"}
    tokens, samples = [token | {"reason": "threshold"}], [sample | {"scores": "{}", "statistics": "{}"}]
    example.write_attempt(tmp_path / "spool", cell, {"tokens": tokens, "samples": samples})
    with open_database(example.ingested(tmp_path)) as opened:
        assert len(_answer(opened, "gate_never_opens")) == 1
        for name in ("divergence_by_layer", "near_ties", "exit_reliability", "oracle_far_below"):
            assert _answer(opened, name) == []
