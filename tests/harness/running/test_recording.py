"""Probes that record the inside of blocks: cells of their own beside plain probes, of the first documents."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from exitbench.harness.cells.job import CellJob, WorkerSpec
from exitbench.harness.planning.plan import Plan, make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.running import worker
from exitbench.results.database.connection import Database, open_database
from exitbench.results.ingest.ingest import ingest
from exitbench.results.maintenance.integrity import check

DEPTH, DOCUMENTS, RECORDED = 4, 5, 2
PARTS = ("self-attention", "after-self-attention", "cross-attention", "after-attention", "feed-forward", "block")
PLAIN = f"""
schema = 1
name = "recorded"
seed = 3
[models.tiny]
path = "MODEL"
random_weights = true
[tasks]
squad = {{ source = "builtin", limit = {DOCUMENTS}, max_new_tokens = 6 }}
[[sweep]]
method = "calm-softmax"
query = {{ threshold = [0.3] }}
kinds = ["replay"]
[[sweep]]
method = "full"
kinds = ["probe"]
"""
RECORDING = f'{PLAIN}record = ["layer-pairs", "sublayers"]\nrecord_documents = {RECORDED}\n'
LABEL = f"tiny/squad/full:record=sublayers;layer-pairs,documents={RECORDED}/probe"


def planned(folder: Path, model: Path, text: str) -> Plan:
    (folder / "suite.toml").write_text(text.replace("MODEL", str(model)))
    return make_plan(load_suite(folder / "suite.toml"), folder / "spool", folder / "models", None)


def states(plan: Plan) -> dict[str, tuple[str, str]]:
    return {cell.item.label: (cell.state, cell.why) for group in plan.groups for cell in group.cells}


@pytest.fixture(scope="module")
def items(worded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, CellJob]:
    folder = tmp_path_factory.mktemp("planned")
    (group,) = planned(folder, worded_model, RECORDING).groups
    return {cell.item.label: cell.item for cell in group.cells}


@pytest.fixture(scope="module")
def runs(worded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plain suite run first, the recording one after it."""
    folder = tmp_path_factory.mktemp("recorded")
    for text in (PLAIN, RECORDING):
        plan = planned(folder, worded_model, text)
        (group,) = plan.groups
        assert group.folder is not None
        left = group.to_run("stale")
        if text == RECORDING:
            assert [item.label for item in left] == [LABEL]
            assert states(plan)[LABEL] == ("new", ""), "a plain probe is no earlier version of it"
        assert worker.run(WorkerSpec(left, group.folder, None, folder / "spool", "cpu", 1), lambda event: None) == 0
    ingest(folder / "spool", folder / "exitbench.duckdb")
    return folder


@pytest.fixture(scope="module")
def database(runs: Path) -> Database:
    return open_database(runs / "exitbench.duckdb")


def test_what_others_compute_from_stays_the_plain_probe(items: dict[str, CellJob]) -> None:
    plain, recording = items["tiny/squad/full/probe"].cell, items[LABEL].cell
    replay = items["tiny/squad/calm-softmax:threshold=0.3/replay"].cell
    assert replay.probe_cell_id == plain.cell_id != recording.cell_id
    assert "record" not in plain.identity
    assert recording.identity["record"] == {"what": ["sublayers", "layer-pairs"], "documents": RECORDED}


def test_every_part_of_every_block_is_read_out_for_every_token(database: Database) -> None:
    rows = database.query(
        "SELECT doc_key, position, token_id, block, list(read_out ORDER BY read_out) AS parts, "
        "min(len(top_ids)) AS kept, max(abs(list_sum(top_p) - 0.5)) AS off, min(entropy) AS entropy "
        "FROM sublayer_trace GROUP BY ALL"
    ).to_pylist()
    answers = database.query("SELECT doc_key, position, token_id FROM probe_trace").to_pylist()
    documents = {row["doc_key"] for row in rows}
    assert len(documents) == RECORDED < len({answer["doc_key"] for answer in answers}) == DOCUMENTS
    expected = [(*answer.values(), block) for answer in answers for block in range(1, DEPTH + 1)]
    found = [(row["doc_key"], row["position"], row["token_id"], row["block"]) for row in rows]
    assert sorted(found) == sorted(row for row in expected if row[0] in documents)
    assert all(row["parts"] == sorted(PARTS) and row["kept"] == 10 for row in rows)
    assert all(row["off"] < 0.5 and 0 < row["entropy"] < 12 for row in rows)


def test_the_block_itself_is_read_out_as_the_plain_probe_does(database: Database) -> None:
    rows = database.query(
        "SELECT s.top_ids, s.top_p, s.entropy, l.top1_id, l.p1, l.p2, l.entropy AS plain FROM sublayer_trace AS s "
        "JOIN layer_trace AS l USING (doc_key, position, block) WHERE s.read_out = 'block'"
    ).to_pylist()
    assert rows
    for row in rows:
        assert row["top_ids"][0] == row["top1_id"]
        assert [*row["top_p"][:2], row["entropy"]] == pytest.approx([row["p1"], row["p2"], row["plain"]], abs=1e-4)


def test_pairs_of_blocks_agree_with_what_the_plain_probe_says_of_neighbours(database: Database) -> None:
    pairs = {
        (row["doc_key"], row["block_a"], row["block_b"]): row
        for row in database.query("SELECT * FROM layer_pairs").to_pylist()
    }
    assert len(pairs) == RECORDED * DEPTH**2
    for (key, a, b), row in pairs.items():
        turned = pairs[key, b, a]
        assert (row["cosine"], row["jsd"], row["n"]) == (turned["cosine"], turned["jsd"], turned["n"])
        assert 0 <= row["jsd"] <= math.log(2)
        assert a != b or (row["cosine"], row["jsd"]) == (pytest.approx(1), 0)
    means = database.query(
        "SELECT doc_key, block, avg(cosine_previous_normed) AS cosine, avg(jsd_previous) AS jsd, "
        "avg(jsd_last) AS last, count(*) AS n FROM layer_trace WHERE block > 1 GROUP BY ALL"
    ).to_pylist()
    compared = [(row, pairs[row["doc_key"], row["block"] - 1, row["block"]]) for row in means if
                (row["doc_key"], 1, 2) in pairs]  # fmt: skip
    assert len(compared) == RECORDED * (DEPTH - 1)
    for row, pair in compared:
        to_last = pairs[row["doc_key"], row["block"], DEPTH]["jsd"]
        assert [pair["cosine"], pair["jsd"], to_last] == pytest.approx(
            [row["cosine"], row["jsd"], row["last"]], abs=1e-4
        )
        assert pair["n"] == row["n"]


def test_database_and_spool_say_the_same(runs: Path) -> None:
    assert check(runs / "spool", runs / "exitbench.duckdb").problems == ()
