"""Effects of a number format on full depth, checked against transformers in float32 and a loop in this file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from suite_runs import plan_suite, run_plan
from transformers import AutoTokenizer, BertForSequenceClassification, T5ForConditionalGeneration

from exitbench.harness.cells.job import CellJob, WorkerSpec
from exitbench.harness.engine.checkpoints.encoder_loading import load_encoder
from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.engine.decoding.likelihood import Scored
from exitbench.harness.engine.decoding.probe import states_of
from exitbench.harness.engine.encoders.classify import pooled_states
from exitbench.harness.running import passes
from exitbench.harness.work import metrics as metrics_module
from exitbench.harness.work.kinds import work_of
from exitbench.harness.work.loaded import LoadedModel
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest
from exitbench.results.spool.attempts import latest_status

pytestmark = pytest.mark.usefixtures("toy_classification")

SUITE = """
schema = 1
name = "formats"
seed = 3
[defaults]
dtype = "DTYPE"
batch_rows = 4
[models.tiny]
path = "MODEL"
random_weights = true
[tasks]
TASK
[[sweep]]
method = "static"
grid = { exit_layer = [2] }
kinds = ["quality"]
"""
SQUAD = 'squad = { source = "builtin", limit = 6, max_new_tokens = 7 }'
POLARITY = 'polarity = { task = "toy-polarity", source = "local", files = { data = "polarity.tsv" } }'

FormatRun = tuple[CellJob, dict[str, dict[str, Any]]]
"""Full depth's cell, and its metrics of role format by name."""


@pytest.fixture(scope="module")
def model(worded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a T5 checkpoint with larger logits, so that rounding changes its probabilities visibly."""
    folder = tmp_path_factory.mktemp("sharp")
    shutil.copytree(worded_model, folder, dirs_exist_ok=True)
    lm = T5ForConditionalGeneration.from_pretrained(worded_model)
    lm.shared.weight.data *= 20
    lm.save_pretrained(folder)
    return folder


@pytest.fixture
def run_format(tmp_path: Path) -> Callable[..., FormatRun]:
    """Return a function that runs full depth and a static depth in a number format.

    It returns full depth's cell and the metrics of the number format.
    """

    def run(dtype: str, model: Path, task: str, data: Path | None = None) -> FormatRun:
        suite = SUITE.replace("DTYPE", dtype).replace("MODEL", str(model)).replace("TASK", task)
        plan = plan_suite(tmp_path, suite, data)
        run_plan(plan, tmp_path / "spool", data)
        ended = latest_status(tmp_path / "spool")
        assert {one.status for one in ended.values()} == {"ok"}
        items = {one.item.cell.full_depth_cell_id is None: one.item for one in plan.groups[0].cells}
        full, static = (
            {
                row["metric"]: row
                for row in pq.read_table(ended[items[is_full].cell.cell_id].path / "metrics.parquet").to_pylist()
                if row["role"] == "format"
            }
            for is_full in (True, False)
        )
        assert not static, "full depth's cell measures it, once"
        return items[True], full

    return run


def outputs_of(root: Path, item: CellJob) -> dict[str, list[int]]:
    """Token ids of full depth's answers, by document."""
    path = latest_status(root / "spool")[item.cell.cell_id].path
    return {row["doc_key"]: row["output_ids"] for row in pq.read_table(path / "samples.parquet").to_pylist()}


def log_probs_in_float32(model: Path, item: CellJob, outputs: dict[str, list[int]]) -> Iterator[torch.Tensor]:
    """Yield for each answer the log-probabilities [T, V] of its T tokens' positions, by transformers in float32."""
    lm, tokenizer = T5ForConditionalGeneration.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    for document in item.data.load(None):
        prompt = tokenizer(item.data.task_object.prompt_for(document, "seq2seq"), return_tensors="pt").input_ids
        fed = torch.tensor([[lm.config.decoder_start_token_id, *outputs[document.key][:-1]]])
        with torch.no_grad():
            yield lm(input_ids=prompt, decoder_input_ids=fed).logits[0].log_softmax(-1)


def log_probs_in_format(
    dtype: str, model: Path, item: CellJob, outputs: dict[str, list[int]]
) -> Iterator[torch.Tensor]:
    """Yield the same log-probabilities in a number format, with each prefix of the answer run from the start."""
    checkpoint, tokenizer = load_checkpoint(model, getattr(torch, dtype)), AutoTokenizer.from_pretrained(model)
    for document in item.data.load(None):
        prompt = tokenizer(item.data.task_object.prompt_for(document, "seq2seq")).input_ids
        ids = outputs[document.key]
        last = [states_of(checkpoint, [prompt], [ids[:n]])[-1][-1:] for n in range(1, len(ids) + 1)]
        yield torch.cat([checkpoint.model.logits(state) for state in last]).float().log_softmax(-1)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_format_gaps_of_answers_equal_a_token_by_token_comparison(
    run_format: Callable[..., FormatRun], model: Path, tmp_path: Path, dtype: str
) -> None:
    item, metrics = run_format(dtype, model, SQUAD)
    outputs = outputs_of(tmp_path, item)
    gaps: list[float] = []
    same: list[bool] = []
    with torch.inference_mode():
        pairs = zip(
            outputs_in_order(item, outputs),
            log_probs_in_format(dtype, model, item, outputs),
            log_probs_in_float32(model, item, outputs),
            strict=True,
        )
        for ids, own_TV, other_TV in pairs:
            for token_id, own_V, other_V in zip(ids, own_TV, other_TV, strict=True):
                gaps.append(abs(float(own_V[token_id] - other_V[token_id])))
                same.append(bool((own_V.argmax() == token_id) == (other_V.argmax() == token_id)))
    assert set(metrics) == {"format_logprob_gap", "format_token_match"}
    assert len(gaps) > 20 and np.mean(gaps) > 0.005, "or there is nothing to measure"
    assert metrics["format_logprob_gap"]["value"] == pytest.approx(np.mean(gaps), rel=0.1)
    assert metrics["format_token_match"]["value"] == pytest.approx(np.mean(same), abs=0.05)
    assert metrics["format_logprob_gap"]["ci_low"] < np.mean(gaps) < metrics["format_logprob_gap"]["ci_high"]
    assert {row["n"] for row in metrics.values()} == {6}


def outputs_in_order(item: CellJob, outputs: dict[str, list[int]]) -> Iterator[Sequence[int]]:
    return (outputs[document.key] for document in item.data.load(None))


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.exhaustive)])
def test_format_gaps_of_classifiers_compare_labels_as_choices(
    run_format: Callable[..., FormatRun], classifier_folder: Callable[..., Path], toy_texts: Path, dtype: str
) -> None:
    model = classifier_folder(("bad", "so-so", "good"))
    item, metrics = run_format(dtype, model, POLARITY, toy_texts)
    lm = BertForSequenceClassification.from_pretrained(model).eval()
    encoder = load_encoder(model, getattr(torch, dtype)).model
    work = work_of(LoadedModel(WorkerSpec((item,), model, toy_texts, toy_texts, "cpu", 1)), item)
    gaps: list[float] = []
    apart: list[float] = []
    same: list[bool] = []
    with torch.inference_mode():
        for text in work.requests(work.documents):
            types = None if text.types is None else torch.tensor([text.types])
            other = lm(input_ids=torch.tensor([text.ids]), token_type_ids=types).logits[0].log_softmax(-1)
            own = encoder.logits(pooled_states(encoder, [text])[-1])[0].float().log_softmax(-1)
            moved = own - other
            gaps += moved.abs().tolist()
            apart += [abs(float(moved[a] - moved[b])) for a in range(3) for b in range(a)]
            same.append(bool(own.argmax() == other.argmax()))
    assert set(metrics) == {"format_logprob_gap", "format_choice_gap", "format_choice_match"}
    assert np.mean(gaps) > 1e-4, "or there is nothing to measure"
    assert metrics["format_logprob_gap"]["value"] == pytest.approx(np.mean(gaps), rel=1e-3)
    assert metrics["format_choice_gap"]["value"] == pytest.approx(np.mean(apart), rel=1e-3)
    assert metrics["format_choice_match"]["value"] == pytest.approx(np.mean(same))


def test_format_token_match_counts_tokens_greedy_in_both_formats_or_neither() -> None:
    def scored(logprobs: list[float], greedy: list[bool]) -> Scored:
        return Scored([5] * len(greedy), logprobs=logprobs, greedy=greedy)

    own = [[scored([-1.0, -2.0, -3.0], [True, True, False])], [scored([-1.0], [False])]]
    other = [[scored([-1.5, -2.0, -2.75], [True, False, False])], [scored([-1.0], [True])]]
    result = metrics_module.token_gaps(zip(own, other, strict=True), 0)
    assert result["format_token_match"].value == 2 / 4
    assert result["format_logprob_gap"].value == pytest.approx(0.75 / 4)
    assert metrics_module.token_gaps([], 0) == {}


def test_float32_is_not_compared_with_itself(run_format: Callable[..., FormatRun], model: Path) -> None:
    _, metrics = run_format("float32", model, SQUAD)
    assert not metrics


def test_float32_comparison_is_limited_to_few_documents(
    run_format: Callable[..., FormatRun], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_module, "FORMAT_DOCUMENTS", 2)
    _, metrics = run_format("bfloat16", model, SQUAD)
    assert {row["n"] for row in metrics.values()} == {2}


def test_float32_comparison_is_skipped_without_enough_memory(
    run_format: Callable[..., FormatRun],
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(passes, "available_bytes", lambda *devices: 1000)
    _, metrics = run_format("bfloat16", model, SQUAD)
    assert not metrics
    messages = capsys.readouterr().err
    assert "bfloat16 was not compared with float32: that needs" in messages and "on cpu" in messages


def test_out_of_memory_in_the_float32_reference_does_not_fail_the_cell(
    run_format: Callable[..., FormatRun],
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*arguments: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(passes, "load_model", fail)
    _, metrics = run_format("bfloat16", model, SQUAD)
    assert not metrics and "no room" in capsys.readouterr().err


def test_frontier_has_the_format_gaps_of_every_method(
    run_format: Callable[..., FormatRun], model: Path, tmp_path: Path
) -> None:
    _, metrics = run_format("bfloat16", model, SQUAD)
    ingest(tmp_path / "spool", tmp_path / "x.duckdb")
    with open_database(tmp_path / "x.duckdb") as database:
        rows = database.query(
            "SELECT method, format_logprob_gap, format_choice_gap, format_match FROM frontier ORDER BY method"
        ).to_pylist()
    assert [row["method"] for row in rows] == ["full", "static"]
    for row in rows:
        assert row["format_logprob_gap"] == metrics["format_logprob_gap"]["value"]
        assert row["format_match"] == metrics["format_token_match"]["value"]
        assert row["format_choice_gap"] is None
