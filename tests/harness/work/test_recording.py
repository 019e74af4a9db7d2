"""Extra records (parts of blocks, prompts, times of tokens) are made by separate cells, on the first documents."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from suite_runs import plan_suite, run_plan, worker_spec
from transformers import AutoTokenizer

from exitbench.harness.cells.job import CellJob
from exitbench.harness.planning.plan import Plan
from exitbench.harness.running import worker
from exitbench.results.database.connection import Database, open_database
from exitbench.results.ingest.ingest import ingest
from exitbench.results.maintenance.integrity import check
from exitbench.tasks import builtin
from exitbench.tasks.registry import get_task

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
TIMED = f"""
schema = 1
name = "clocked"
seed = 3
[models.tiny]
path = "MODEL"
random_weights = true
[tasks]
squad = {{ source = "builtin", limit = {DOCUMENTS}, max_new_tokens = 6, stop = ["avec", "an", "red red red"] }}
[timing]
documents = 2
max_rounds = 3
warm_up = 1
[[sweep]]
method = "static"
grid = {{ exit_layer = [2] }}
kinds = ["quality", "timing", "probe"]
"""
CLOCKED = f'{TIMED}record = ["token-times", "prompt-ids"]\nrecord_documents = {RECORDED}\n'
CLOCK = f"tiny/squad/static:exit_layer=2,record=token-times,documents={RECORDED}/timing"
PROMPTS = f"tiny/squad/full:record=prompt-ids,documents={RECORDED}/probe"
LABEL = f"tiny/squad/full:record=sublayers;layer-pairs,documents={RECORDED}/probe"


def planned(folder: Path, model: Path, text: str) -> Plan:
    return plan_suite(folder, text.replace("MODEL", str(model)))


@pytest.fixture(scope="module")
def items(worded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, CellJob]:
    folder = tmp_path_factory.mktemp("planned")
    (group,) = planned(folder, worded_model, RECORDING).groups
    return {cell.item.label: cell.item for cell in group.cells}


@pytest.fixture(scope="module")
def runs(worded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a suite without extra records, then the same suite with them; return the folder of both."""
    folder = tmp_path_factory.mktemp("recorded")
    run_plan(planned(folder, worded_model, PLAIN), folder / "spool")
    recording = planned(folder, worded_model, RECORDING)
    (left,) = (cell for cell in recording.groups[0].cells if cell.state != "done")
    assert (left.item.label, left.state, left.why) == (LABEL, "new", ""), "a plain probe is no earlier version of it"
    run_plan(recording, folder / "spool")
    ingest(folder / "spool", folder / "exitbench.duckdb")
    return folder


@pytest.fixture(scope="module")
def database(runs: Path) -> Database:
    return open_database(runs / "exitbench.duckdb")


def test_replays_use_the_plain_probe_and_not_the_recording_one(items: dict[str, CellJob]) -> None:
    plain, recording = items["tiny/squad/full/probe"].cell, items[LABEL].cell
    replay = items["tiny/squad/calm-softmax:threshold=0.3/replay"].cell
    assert replay.probe_cell_id == plain.cell_id != recording.cell_id
    assert "record" not in plain.identity
    assert recording.identity["record"] == {"what": ["sublayers", "layer-pairs"], "documents": RECORDED}


def test_sublayer_records_have_every_part_of_every_block_for_every_token(database: Database) -> None:
    rows = database.query(
        "SELECT doc_key, position, token_id, block, list(read_out ORDER BY read_out) AS parts, "
        "min(len(top_ids)) AS kept, max(abs(list_sum(top_p) - 0.5)) AS off, min(entropy) AS entropy "
        "FROM sublayer_trace GROUP BY ALL"
    ).to_pylist()
    answers = database.query("SELECT doc_key, position, token_id FROM probe_trace").to_pylist()
    documents = {row["doc_key"] for row in rows}
    assert len(documents) == RECORDED < len({answer["doc_key"] for answer in answers}) == DOCUMENTS
    expected = [(*answer.values(), block) for answer in answers for block in range(1, DEPTH + 1)]
    result = [(row["doc_key"], row["position"], row["token_id"], row["block"]) for row in rows]
    assert sorted(result) == sorted(row for row in expected if row[0] in documents)
    assert all(row["parts"] == sorted(PARTS) and row["kept"] == 10 for row in rows)
    assert all(row["off"] < 0.5 and 0 < row["entropy"] < 12 for row in rows)


def test_sublayer_read_outs_of_whole_blocks_equal_the_plain_probe(database: Database) -> None:
    rows = database.query(
        "SELECT s.top_ids, s.top_p, s.entropy, l.top1_id, l.p1, l.p2, l.entropy AS plain FROM sublayer_trace AS s "
        "JOIN layer_trace AS l USING (doc_key, position, block) WHERE s.read_out = 'block'"
    ).to_pylist()
    assert rows
    for row in rows:
        assert row["top_ids"][0] == row["top1_id"]
        assert [*row["top_p"][:2], row["entropy"]] == pytest.approx([row["p1"], row["p2"], row["plain"]], abs=1e-4)


def test_layer_pairs_are_symmetric_and_equal_the_plain_probe_for_neighbours(database: Database) -> None:
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


def test_database_with_records_passes_its_check(runs: Path) -> None:
    assert check(runs / "spool", runs / "exitbench.duckdb").problems == ()


@pytest.fixture(scope="module")
def clocked(worded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Database:
    """Run a suite that records prompts and times of tokens, with the recording cells last; return the database."""
    folder = tmp_path_factory.mktemp("clocked")
    spec = worker_spec(planned(folder, worded_model, CLOCKED).groups[0], folder / "spool")
    items = sorted(spec.cells, key=lambda item: "record" in item.label)
    assert worker.run(replace(spec, cells=tuple(items)), lambda event: None) == 0
    ingest(folder / "spool", folder / "exitbench.duckdb")
    assert check(folder / "spool", folder / "exitbench.duckdb").problems == ()
    return open_database(folder / "exitbench.duckdb")


def test_recording_adds_separate_cells_and_keeps_the_other_ids(worded_model: Path, tmp_path: Path) -> None:
    ids = {}
    for text in (TIMED, CLOCKED):
        (group,) = planned(tmp_path, worded_model, text).groups
        ids[text] = {cell.item.label: cell.item.cell.cell_id for cell in group.cells}
    assert ids[CLOCKED].keys() - ids[TIMED].keys() == {CLOCK, PROMPTS}
    assert ids[TIMED].items() <= ids[CLOCKED].items()
    assert len(set(ids[CLOCKED].values())) == len(ids[CLOCKED])


def test_recorded_prompt_tokens_equal_the_model_input(clocked: Database, worded_model: Path) -> None:
    tokenizer, task = AutoTokenizer.from_pretrained(worded_model), get_task("squad")
    documents = {document.key: document for document in builtin.documents("squad", "test", 1000)}
    rows = clocked.query("SELECT doc_key, position, token_id, text FROM prompt_tokens ORDER BY ALL").to_pylist()
    results: dict[str, list[int]] = {}
    for row in rows:
        results.setdefault(row["doc_key"], []).append(row["token_id"])
        assert row["position"] == len(results[row["doc_key"]])
        assert row["text"] == tokenizer.convert_ids_to_tokens(row["token_id"])
    assert len(results) == RECORDED
    assert results == {key: tokenizer(task.prompt(documents[key]))["input_ids"] for key in results}


def test_token_times_cover_every_token_in_every_round_and_arm(clocked: Database) -> None:
    key = ("doc_key", "position", "token_id", "exit_layer")
    rows = clocked.query("SELECT * FROM token_timings").to_pylist()
    assert all(row["ms"] > 0 for row in rows)
    assert {row["method"] for row in rows} == {"static"}
    documents = {row["doc_key"] for row in rows}
    assert len(documents) == RECORDED
    assert {(row["arm"], row["exit_layer"]) for row in rows} == {("full", DEPTH), ("method", 2)}
    ends = clocked.query("SELECT method, n_output FROM answers WHERE stop_reason = 'stop_string'").to_pylist()
    assert {row["method"] for row in ends} == {"static", "full"} and max(row["n_output"] for row in ends) < 6
    for arm, method in (("method", "static"), ("full", "full")):
        answers = clocked.query("FROM token_trace WHERE method = ? AND execution = 'real'", [method]).to_pylist()
        expected = sorted(tuple(row[name] for name in key) for row in answers if row["doc_key"] in documents)
        for round_ in range(3):
            timed = [row for row in rows if (row["arm"], row["round"]) == (arm, round_)]
            assert sorted(tuple(row[name] for name in key) for row in timed) == expected


def test_frontier_takes_no_speed_from_runs_that_record_token_times(clocked: Database) -> None:
    plain, recording = clocked.query(
        "SELECT attempt_id, record IS NOT NULL AS records FROM runs WHERE kind = 'timing' ORDER BY records"
    )["attempt_id"].to_pylist()
    assert recording > plain, "the later one"
    (row,) = clocked.query("FROM frontier WHERE method = 'static'").to_pylist()
    assert row["timing_attempt_id"] == plain and row["speed_status"] != "not timed"
    assert set(clocked.query("SELECT attempt_id FROM timings")["attempt_id"].to_pylist()) == {plain}


BATCHED = CLOCKED.replace("[[sweep]]", "[defaults]\nbatch_size = 2\n[[sweep]]")
DRAFTED = CLOCKED.replace('"static"', '"self-speculation"').replace("grid = { exit_layer = [2] }\n", "")


@pytest.mark.parametrize(("suite", "reason"), [(BATCHED, "use batch size 1"), (DRAFTED, "no time is one token's")])
def test_token_times_are_skipped_with_a_reason_if_tokens_share_a_step(
    suite: str, reason: str, worded_model: Path, tmp_path: Path
) -> None:
    spec = worker_spec(planned(tmp_path, worded_model, suite).groups[0], tmp_path / "spool")
    needed = ("full/quality", f"record=token-times,documents={RECORDED}/timing")
    items = tuple(item for item in spec.cells if item.label.endswith(needed))
    worker.run(replace(spec, cells=items), lambda event: None)
    ingest(tmp_path / "spool", tmp_path / "exitbench.duckdb")
    with open_database(tmp_path / "exitbench.duckdb") as database:
        (row,) = database.query("FROM failures").to_pylist()
    assert row["status"] == "skipped" and reason in row["reason"]
