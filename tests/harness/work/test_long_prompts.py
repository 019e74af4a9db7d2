"""Documents that do not fit are left out of every kind of cell, prompts are cut, and both are counted and reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from suite_runs import plan_suite, run_plan, worker_spec
from transformers import AutoTokenizer, GPT2LMHeadModel

from exitbench.harness.cells.cell import Cell
from exitbench.harness.cells.corpus import Corpora
from exitbench.harness.cells.job import CellJob, DataRequest
from exitbench.harness.service.outcome import print_left_out
from exitbench.harness.work.kinds import work_of
from exitbench.harness.work.loaded import LoadedModel
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest
from exitbench.results.spool.attempts import attempt_status
from exitbench.tasks.document import Document
from exitbench.tasks.registry import get_task
from exitbench.tasks.squad import Squad

DOCUMENTS = 12
LONGEST = 8
"""New tokens; of the 58 positions of the model 50 are left for prompts."""
ALL_KINDS = """
[[sweep]]
method = "calm-softmax"
grid = { threshold = [0.3] }
kinds = ["quality", "timing", "probe", "replay", "scores"]
record = ["sublayers"]
record_documents = 2
[[sweep]]
method = "calm-classifier"
grid = { epochs = [1] }
kinds = ["quality"]
[[calibration]]
method = "calm-softmax"
levels = [1.0, 0.0]
delta = 0.9
epsilon = 0.5
rule = "naive"
documents = 10
[fit]
documents = 10
[timing]
documents = 30
max_rounds = 1
"""
ONE_KIND = '[[sweep]]\nmethod = "calm-softmax"\ngrid = { threshold = [0.3] }\nkinds = ["quality"]\n'


@dataclass(frozen=True)
class Run:
    """A spool and the cells that were run into it."""

    folder: Path
    items: tuple[CellJob, ...]
    model: Path

    def rows(self, cell: Cell, table: str) -> list[dict[str, Any]]:
        status = attempt_status(self.folder / "spool", cell.cell_id)
        assert status is not None
        assert status.status == "ok", status.reason
        path = status.path / f"{table}.parquet"
        return list(pq.read_table(path).to_pylist()) if path.exists() else []

    def findings(self) -> list[tuple[str, str, int, str]]:
        ingest(self.folder / "spool", self.folder / "x.duckdb")
        others = "('dirty_commit', 'busy_machine', 'cut_by_length', 'near_floor')"
        query = f"SELECT kind, rule, severity, message FROM qc WHERE rule NOT IN {others} ORDER BY ALL"
        with open_database(self.folder / "x.duckdb") as database:
            return [tuple(row.values()) for row in database.query(query).to_pylist()]  # type: ignore[misc]


@pytest.fixture
def run(causal_model: Path, tmp_path: Path) -> Callable[..., Run]:
    """Plan and run a suite of one causal model on `DOCUMENTS` documents."""

    def go(sweeps: str, *lines: str) -> Run:
        plan = plan_suite(tmp_path, text(causal_model, sweeps, *lines))
        run_plan(plan, tmp_path / "spool")
        return Run(tmp_path, tuple(cell.item for cell in plan.groups[0].cells), causal_model)

    return go


def text(model: Path, sweeps: str, *lines: str) -> str:
    task = "\n".join(["[tasks.squad]", f"limit = {DOCUMENTS}", f"max_new_tokens = {LONGEST}", *lines])
    head = f'schema = 1\nname = "long"\nseed = 3\n[defaults]\nbatch_size = 2\n[models.small]\npath = "{model}"\n'
    return f"{head}{task}\n{sweeps}"


def lengths(run: Run, data: DataRequest) -> dict[str, int]:
    tokenizer, task = AutoTokenizer.from_pretrained(run.model), get_task("squad")
    documents: list[Document] = data.load(None)
    return {document.key: len(tokenizer(task.causal_prompt(document))["input_ids"]) for document in documents}


def test_every_kind_of_cell_drops_and_counts_documents_that_exceed_the_model(run: Callable[..., Run]) -> None:
    built = run(ALL_KINDS)
    assert {item.cell.kind for item in built.items} == {
        *("quality", "timing", "probe", "scores", "replay", "fit", "calibration")
    }
    for item in built.items:
        known = [lengths(built, data) for data in (item.data, item.held_out) if data is not None]
        fitting = {key for own in known for key, length in own.items() if length + LONGEST <= 58}
        dropped = sum(map(len, known)) - len(fitting)
        assert dropped > 0, "some are too long"
        counts = {row["metric"]: row for row in built.rows(item.cell, "metrics")}
        assert (counts["documents_dropped"]["value"], counts["documents_dropped"]["n"]) == (
            dropped,
            len(fitting) + dropped,
        )
        assert "prompts_truncated" not in counts
        tables = {name: built.rows(item.cell, name) for name in ("samples", "tokens", "probe", "scores", "timings")}
        for rows in filter(None, tables.values()):
            keys = {row["doc_key"] for row in rows}
            assert keys <= fitting
            if item.cell.kind != "timing":  # which names two documents by the first
                assert keys == fitting
        if item.cell.kind == "quality":
            assert {row["n_cut"] for row in tables["samples"]} == {None}
            assert counts["f1"]["n"] == len(fitting)
        if item.cell.kind == "calibration":
            assert {row["n"] for row in built.rows(item.cell, "calibration")} == {
                sum(length + LONGEST <= 58 for length in known[0].values())
            }
    left_out = f"of {DOCUMENTS} documents are excluded: prompt and answer do not fit the model's positions"
    result = [row for row in built.findings() if row[1] == "documents_dropped"]
    assert len(result) == len(built.items)
    assert {severity for _, _, severity, _ in result} == {2}
    assert {message.partition(" ")[2] for kind, _, _, message in result if kind == "quality"} == {left_out}


def test_documents_dropped_by_the_suites_limit_are_a_minor_finding(run: Callable[..., Run]) -> None:
    result = run(ONE_KIND, "max_prompt_tokens = 47", 'truncate = "drop"')
    known = lengths(result, result.items[0].data)
    fitting = {key for key, length in known.items() if length <= 47}
    for item in result.items:
        rows = result.rows(item.cell, "samples")
        assert {row["doc_key"]: row["n_prompt"] for row in rows} == {key: known[key] for key in fitting}
        assert {row["n_cut"] for row in rows} == {0}
    n = DOCUMENTS - len(fitting)
    said = f"{n} of {DOCUMENTS} documents are excluded: their prompts are longer than max_prompt_tokens"
    assert result.findings() == [("quality", "documents_dropped", 1, said)] * 2


def test_decoder_only_models_get_the_causal_prompt(causal_model: Path, tmp_path: Path) -> None:
    suite = text(causal_model, ALL_KINDS, "max_prompt_tokens = 47", 'truncate = "drop"')
    spec = worker_spec(plan_suite(tmp_path, suite).groups[0], tmp_path / "spool")
    tokenizer, item = AutoTokenizer.from_pretrained(causal_model), spec.cells[0]
    work = work_of(LoadedModel(spec), item)
    for document in work.documents:
        (request,) = work.requests([document])
        assert request.prompt_ids == tokenizer(Squad().causal_prompt(document))["input_ids"]
    (config,) = {other.cell.task.prompts_sha256 for other in spec.cells if other.data == item.data}
    described = Corpora(tmp_path / "other").describe(item.data, None).prompts_sha256
    assert config == described["causal"] != described["seq2seq"]


@pytest.mark.parametrize("side", ["left", "right"])
def test_truncated_prompts_and_answers_equal_transformers(run: Callable[..., Run], side: str) -> None:
    result = run(ONE_KIND, "max_prompt_tokens = 47", f'truncate = "{side}"')
    known, data = lengths(result, result.items[0].data), result.items[0].data
    tokenizer = AutoTokenizer.from_pretrained(result.model, truncation_side=side)
    reference = GPT2LMHeadModel.from_pretrained(result.model).eval()
    documents = {document.key: document for document in data.load(None)}
    full = next(item for item in result.items if item.cell.full_depth_cell_id is None)
    for item in result.items:
        rows = result.rows(item.cell, "samples")
        assert {row["doc_key"]: row["n_cut"] for row in rows} == {key: max(0, n - 47) for key, n in known.items()}
        assert {row["doc_key"]: row["n_prompt"] for row in rows} == {key: min(47, n) for key, n in known.items()}
    for row in result.rows(full.cell, "samples"):
        prompt = tokenizer(get_task("squad").causal_prompt(documents[row["doc_key"]]), truncation=True, max_length=47)
        generated = reference.generate(
            **prompt.convert_to_tensors("pt", prepend_batch_axis=True), max_new_tokens=LONGEST
        )
        assert row["output_ids"] == generated[0, row["n_prompt"] :].tolist()
    n_cut = sum(length > 47 for length in known.values())
    said = ("quality", "prompts_truncated", 1, f"{n_cut} of {DOCUMENTS} prompts are truncated to max_prompt_tokens")
    assert result.findings() == [said] * 2


def test_cell_in_which_no_document_fits_fails_with_a_reason(run: Callable[..., Run]) -> None:
    result = run(ONE_KIND, "max_prompt_tokens = 9", 'truncate = "drop"')
    status = attempt_status(result.folder / "spool", result.items[0].cell.cell_id)
    assert status is not None
    assert status.status == "failed"
    shortest = min(lengths(result, result.items[0].data).values())
    said = f"none of the {DOCUMENTS} prompts fits: the shortest has {shortest} tokens, 9 fit next to 8 new ones"
    assert said in str(status.reason)


def test_dropped_documents_are_printed_per_suite(run: Callable[..., Run], capsys: pytest.CaptureFixture[str]) -> None:
    result = run(ONE_KIND)
    result.findings()
    print_left_out(result.folder / "x.duckdb", "long")
    n = sum(length + LONGEST > 58 for length in lengths(result, result.items[0].data).values())
    said = f"small on squad: {n} of {DOCUMENTS} documents left out, whose prompts are too long\n"
    assert capsys.readouterr().out == said
    assert n > 0
    print_left_out(result.folder / "x.duckdb", "another suite")
    assert capsys.readouterr().out == ""
