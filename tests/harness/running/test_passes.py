"""Fits, scores, replays over scores and calibrations, checked against transformers and plain Python loops."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from suite_runs import plan_suite, worker_spec
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5ForConditionalGeneration

from exitbench.harness.cells.cell import Cell, Consistency, MethodRef
from exitbench.harness.cells.job import CellJob, WorkerSpec
from exitbench.harness.running import worker
from exitbench.harness.running.passes import quality_pass
from exitbench.harness.work import generation
from exitbench.harness.work.base import Work
from exitbench.harness.work.generation import text_loss
from exitbench.harness.work.kinds import work_of
from exitbench.harness.work.loaded import LoadedModel
from exitbench.harness.work.metrics import depth_interval
from exitbench.results.spool.attempts import attempt_status, latest_status
from exitbench.results.spool.schema import FITTED_FILE
from exitbench.results.statistics.risk_control import calibrate
from exitbench.tasks import registry
from exitbench.tasks.base import Task
from exitbench.tasks.document import Document, DocumentScore
from exitbench.tasks.registry import get_task
from exitbench.tasks.squad import Squad

DEPTH, LONGEST, KEPT = 4, 8, 8
THRESHOLDS = (0.1, 0.3, 0.5, 0.7)
MARGINS = (0.002, 0.01, 0.02, 0.05)  # random logits lie close together
PER_BLOCK = (0.6, 0.4, 0.3)
SUITE = f"""
schema = 1
name = "passes"
seed = 3
[models.tiny]
path = "MODEL"
random_weights = true
[tasks]
squad = {{ source = "builtin", limit = 5, max_new_tokens = {LONGEST} }}
[fit]
documents = 6
[[sweep]]
method = "calm-classifier"
grid = {{ decay = ["none", "code"] }}
query = {{ threshold = {list(THRESHOLDS)} }}
kinds = ["replay"]
[[sweep]]
method = "calm-classifier"
grid = {{ rule = ["per-block"], decay = ["none"], levels = [{list(PER_BLOCK)}] }}
kinds = ["replay"]
[[sweep]]
method = "calm-classifier"
grid = {{ decay = ["none"], threshold = [0.5] }}
kinds = ["quality"]
[[sweep]]
method = "calm-softmax"
grid = {{ head = ["pruned-fixed"], k_schedule = ["constant"], k_first = [{KEPT}], k_min = [2], decay = ["none"] }}
query = {{ threshold = {list(MARGINS)} }}
kinds = ["replay"]
[[sweep]]
method = "self-speculation"
grid = {{ exit_layer = [2, 3], drafts = [2] }}
kinds = ["quality"]
[[sweep]]
method = "free"
grid = {{ threshold = [0.0], rollback = [3.4], kv_policy = [
    "sync-parallel", "sync-parallel-rollback", "sync-parallel-rollback-code",
] }}
kinds = ["quality"]
[[calibration]]
method = "calm-softmax"
levels = [1.0, 0.0]
delta = 0.05
epsilon = 0.05
rule = "naive"
documents = 4
[[calibration]]
method = "calm-softmax"
levels = [0.0]
delta = 0.04
epsilon = 0.05
rule = "naive"
documents = 4
[[calibration]]
method = "calm-softmax"
levels = [1.0, 0.5, 0.0]
delta = 0.99
epsilon = 0.05
consistency = "risk"
rule = "naive"
documents = 4
"""


@dataclass(frozen=True)
class Run:
    """A spool and the cells that were run into it."""

    items: dict[str, CellJob]
    spec: WorkerSpec
    events: list[dict[str, Any]]
    scored: list[tuple[str, str, str, DocumentScore]]
    """Cell, document, text and score, each time a quality pass scores."""

    def cells(self, kind: str, method: str = "") -> list[Cell]:
        return [i.cell for i in self.items.values() if i.cell.kind == kind and i.cell.method.name.startswith(method)]

    def folder(self, cell_id: str | None) -> Path:
        assert cell_id is not None
        status = attempt_status(self.spec.spool, cell_id)
        assert status is not None
        return status.path

    def rows(self, cell_id: str | None, table: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.folder(cell_id) / f"{table}.parquet").to_pylist()
        return rows

    def metrics(self, cell_id: str) -> dict[str, float]:
        return {row["metric"]: row["value"] for row in self.rows(cell_id, "metrics")}


@pytest.fixture(scope="module")
def ran(worded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("passes")
    (group,) = plan_suite(folder, SUITE.replace("MODEL", str(worded_model))).groups
    spec = worker_spec(group, folder / "spool")
    events: list[dict[str, Any]] = []
    scored: list[tuple[str, str, str, DocumentScore]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(worker.PASSES, "quality", partial(watched_quality_pass, scored))
        assert worker.run(spec, events.append) == 0
    return Run({item.label: item for item in spec.cells}, spec, events, scored)


def watched_quality_pass(scored: list[Any], work: Work[Any], *rest: Any) -> None:
    """Run the quality pass; append each output that the task scores, and its score, to ``scored``."""
    item = work.item
    kind = type(get_task(item.cell.task.name))
    score = kind.score

    def noted(task: Task, document: Document, text: str) -> DocumentScore:
        scored.append((item.cell.cell_id, document.key, text, score(task, document, text)))
        return cast(DocumentScore, scored[-1][-1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "score", noted)
        quality_pass(work, *rest)


def test_each_document_is_scored_once_and_the_score_is_stored(ran: Run) -> None:
    for cell in ran.cells("quality"):
        scored = {key: (text, score) for cell_id, key, text, score in ran.scored if cell_id == cell.cell_id}
        stored = ran.rows(cell.cell_id, "samples")
        assert len(stored) == len(scored) == sum(cell_id == cell.cell_id for cell_id, *_ in ran.scored)
        for row in stored:
            text, score = scored[row["doc_key"]]
            assert row["output_text"] == text
            assert (json.loads(row["scores"]), json.loads(row["statistics"])) == (score.values, score.statistics)


class FakeWriter:
    """Fake of an attempt's writer that keeps the tables in memory."""

    def __init__(self) -> None:
        self.written: list[Any] = []

    def write(self, name: str, table: Any) -> None:
        self.written.append((name, table))


def test_probe_reuses_full_depth_answers_without_decoding(ran: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (probed,) = (item for item in ran.items.values() if item.cell.kind == "probe")
    (full,) = (item for item in ran.items.values() if item.cell.kind == "quality" and item.cell.method.name == "full")
    model, alone, shared = LoadedModel(ran.spec), FakeWriter(), FakeWriter()
    work_of(model, probed).probe(cast(Any, alone), lambda done: None)
    quality_pass(work_of(model, full), cast(Any, FakeWriter()), lambda done: None)
    monkeypatch.setattr(generation, "decode", None)
    work_of(model, probed).probe(cast(Any, shared), lambda done: None)
    assert shared.written == alone.written


def test_answers_of_other_methods_or_logit_rules_are_not_cached_as_full_depth(ran: Run) -> None:
    model = LoadedModel(ran.spec)
    (full,) = (item for item in ran.items.values() if item.cell.kind == "quality" and item.cell.method.name == "full")
    static = replace(full, cell=replace(full.cell, method=MethodRef("static", {"exit_layer": 2}, "1")))
    ruled = replace(full, cell=replace(full.cell, generation=replace(full.cell.generation, min_length=2)))
    for item in (static, ruled):
        quality_pass(work_of(model, item), cast(Any, FakeWriter()), lambda done: None)
    assert not model.full_answers


def test_every_cell_succeeds_and_reports_its_document_count(ran: Run) -> None:
    assert {event["status"] for event in ran.events if event["event"] == "end"} == {"ok"}
    started = {event["label"]: event["documents"] for event in ran.events if event["event"] == "start"}
    documents = {cell.kind: started[label] for label, item in ran.items.items() for cell in [item.cell]}
    assert (documents["fit"], documents["scores"], documents["replay"]) == (6, 5, 5)
    calibrated = [n for label, n in started.items() if label.endswith("/calibration")]
    assert calibrated == [4 * 3, 4 * 2, 4 * 4]  # full depth, then every level


# ------------------------------------------------------------------------------------------ fit


def test_fit_stores_tensors_and_training_curve(ran: Run) -> None:
    (fit,) = ran.cells("fit")
    tensors = load_file(ran.folder(fit.cell_id) / FITTED_FILE)
    assert {name: tuple(value.shape) for name, value in tensors.items()} == {"0.weight": (2, 32), "0.bias": (2,)}
    curve = ran.rows(fit.cell_id, "fit_curve")
    assert [row["epoch"] for row in curve] == [1, 2, 3, 4, 5]
    assert ran.metrics(fit.cell_id) == {name: curve[-1][name] for name in ("held_out_loss", "held_out_accuracy")}
    assert (fit.task.split, fit.task.documents) == ("train", 6)


def test_fitted_gate_exits_alike_in_decoding_and_replay_at_the_first_token(ran: Run) -> None:
    (quality,) = ran.cells("quality", "calm-classifier")
    (replay,) = [cell for cell in ran.cells("replay") if cell.method == quality.method]
    real, simulated = (
        {
            row["doc_key"]: (row["exit_layer"], row["token_id"])
            for row in ran.rows(cell.cell_id, "tokens")
            if is_first_token(row)
        }
        for cell in (quality, replay)
    )
    assert real == simulated
    assert len(real) == 5


def is_first_token(row: dict[str, Any]) -> bool:
    """Return whether the token is the first of its answer, which no earlier exit can have changed."""
    return bool(row["position"] == 1)


def fitted_quality(ran: Run) -> CellJob:
    return next(i for i in ran.items.values() if i.cell.kind == "quality" and i.cell.fit_cell_id)


def test_cell_whose_fit_was_never_run_is_skipped_with_a_reason(ran: Run, tmp_path: Path) -> None:
    item = fitted_quality(ran)
    worker.run(replace(ran.spec, cells=(item,), spool=tmp_path), lambda event: None)
    status, fit = latest_status(tmp_path)[item.cell.cell_id], str(item.cell.fit_cell_id)[:12]
    assert (status.status, status.reason) == ("skipped", f"needs cell {fit}, which was never run")


def test_cell_whose_fit_failed_is_skipped_with_a_reason(
    ran: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("no gradient")

    monkeypatch.setitem(worker.PASSES, "fit", broken)
    item = fitted_quality(ran)
    fit = next(i for i in ran.items.values() if i.cell.kind == "fit")
    worker.run(replace(ran.spec, cells=(fit, item), spool=tmp_path), lambda event: None)
    ended = latest_status(tmp_path)
    assert ended[fit.cell.cell_id].status == "failed"
    assert ended[item.cell.cell_id].status == "skipped"
    assert ended[item.cell.cell_id].reason == f"needs cell {fit.cell.cell_id[:12]}, which ended as failed"


# ------------------------------------------------------------------------------------------ scores


@dataclass(frozen=True)
class Reference:
    """Outputs of transformers for full depth's answers, by document key: normed states [L, N, D] and logits."""

    normed: dict[str, Tensor]
    logits: dict[str, Tensor]


@pytest.fixture(scope="module")
def reference(ran: Run, worded_model: Path) -> Reference:
    model = T5ForConditionalGeneration.from_pretrained(worded_model).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(worded_model)
    (probe,) = ran.cells("probe")
    item = next(i for i in ran.items.values() if i.cell.kind == "probe")
    outputs: dict[str, list[int]] = {}
    for row in ran.rows(probe.cell_id, "probe"):
        outputs.setdefault(row["doc_key"], []).append(row["token_id"])
    normed, logits = {}, {}
    for document in item.data.load(None):
        prompt = torch.tensor([tokenizer(get_task("squad").prompt(document))["input_ids"]])
        fed = torch.tensor([[0, *outputs[document.key][:-1]]])
        with torch.no_grad():
            result = model(input_ids=prompt, decoder_input_ids=fed, output_hidden_states=True)
            *raw, last = result.decoder_hidden_states  # transformers norms the last state itself
            states = [model.decoder.final_layer_norm(state) for state in raw[1:]]
            normed[document.key] = torch.cat([*states, last])
            logits[document.key] = model.lm_head(normed[document.key] * normed[document.key].shape[-1] ** -0.5)
    return Reference(normed, logits)


def test_scores_of_a_fitted_gate_equal_its_network_on_transformers_states(ran: Run, reference: Reference) -> None:
    (scores,) = ran.cells("scores", "calm-classifier")
    fitted = load_file(ran.folder(scores.fit_cell_id) / FITTED_FILE)
    rows = ran.rows(scores.cell_id, "scores")
    assert len(rows) == sum(logits.shape[1] for logits in reference.logits.values())
    for row in rows:
        at = row["position"] - 1
        for block in range(DEPTH):
            state = reference.normed[row["doc_key"]][block, at]
            stay, leave = (fitted["0.weight"] @ state + fitted["0.bias"]).tolist()
            if block < DEPTH - 1:
                assert row["score"][block] == pytest.approx(1 / (1 + math.exp(stay - leave)), abs=1e-4)
            assert row["emitted_id"][block] == int(reference.logits[row["doc_key"]][block, at].argmax())
        assert math.isnan(row["score"][-1])


def test_scores_of_a_pruned_head_are_margins_among_ids_kept_by_the_first_block(ran: Run, reference: Reference) -> None:
    (scores,) = ran.cells("scores", "calm-softmax")
    differ = 0
    for row in ran.rows(scores.cell_id, "scores"):
        logits = reference.logits[row["doc_key"]][:, row["position"] - 1]
        kept = logits[0].topk(KEPT).indices
        for block in range(DEPTH):
            pruned = 0 < block < DEPTH - 1
            read = logits[block][kept] if pruned else logits[block]
            best = int(read.argmax())
            assert row["emitted_id"][block] == (int(kept[best]) if pruned else best)
            differ += row["emitted_id"][block] != int(logits[block].argmax())
            if block < DEPTH - 1:
                p1, p2 = torch.softmax(read, 0).topk(2).values.tolist()
                assert row["score"][block] == pytest.approx(p1 - p2, abs=1e-4)
    assert differ, "pruning must change a token somewhere, or nothing is shown"


# ------------------------------------------------------------------------------------------ replay over scores


def expected_threshold(cell: Cell, block: int, position: int) -> float:
    """Return the threshold at a block and position, computed from its definition."""
    params = cell.method.params
    if params["rule"] == "per-block":
        return PER_BLOCK[block - 1]
    level: float = params["threshold"]
    if params["decay"] == "code":
        return 0.9 * level + 0.1 * level * math.exp(-4.0 * position / LONGEST)
    return level


def test_a_replay_over_scores_equals_a_loop_over_its_table(ran: Run) -> None:
    replays = ran.cells("replay")
    assert len(replays) == 2 * len(THRESHOLDS) + 1 + len(MARGINS)
    depths = set()
    for cell in replays:
        expected = {}
        for row in ran.rows(cell.scores_cell_id, "scores"):
            layer = DEPTH
            for block in range(DEPTH - 1, 0, -1):
                if np.float32(row["score"][block - 1]) > np.float32(expected_threshold(cell, block, row["position"])):
                    layer = block
            expected[row["doc_key"], row["position"]] = (layer, row["emitted_id"][layer - 1])
            depths.add((cell.method.name, layer))
        tokens = ran.rows(cell.cell_id, "tokens")
        assert {(t["doc_key"], t["position"]): (t["exit_layer"], t["token_id"]) for t in tokens} == expected
        assert all((t["reason"] == "last") == (t["exit_layer"] == DEPTH) for t in tokens)
        mean = sum(layer for layer, _ in expected.values()) / len(expected)
        assert ran.metrics(cell.cell_id)["mean_exit_layer"] == pytest.approx(mean)
    assert {name for name, layer in depths if layer < DEPTH} == {"calm-classifier", "calm-softmax"}


def test_mean_blocks_run_is_stored_next_to_the_mean_exit_layer(ran: Run) -> None:
    beyond = {}
    for cell in (*ran.cells("quality"), *ran.cells("replay")):
        tokens, metrics = ran.rows(cell.cell_id, "tokens"), ran.metrics(cell.cell_id)
        means = [sum(token[name] for token in tokens) / len(tokens) for name in ("exit_layer", "blocks_run")]
        assert [metrics["mean_exit_layer"], metrics["mean_blocks_run"]] == pytest.approx(means)
        beyond[cell.kind, cell.method.name] = metrics["mean_blocks_run"] - metrics["mean_exit_layer"]
    assert beyond["quality", "self-speculation"] > 0  # drafts are verified at full depth
    assert beyond["quality", "full"] == beyond["replay", "calm-softmax"] == 0


def test_token_match_of_a_replay_compares_with_full_depth_tokens(ran: Run) -> None:
    (probe,) = ran.cells("probe")
    full = {(row["doc_key"], row["position"]): row["full_token_id"] for row in ran.rows(probe.cell_id, "probe")}
    for cell in ran.cells("replay"):
        same = [t["token_id"] == full[t["doc_key"], t["position"]] for t in ran.rows(cell.cell_id, "tokens")]
        assert ran.metrics(cell.cell_id)["token_match"] == pytest.approx(sum(same) / len(full))


# ------------------------------------------------------------------------------------------ cost


def test_cost_parts_per_token_add_up_to_the_ideal_speedup(ran: Run) -> None:
    verified = set()
    for cell in ran.cells("quality"):
        metrics = ran.metrics(cell.cell_id)
        parts = {name: value for name, value in metrics.items() if name.startswith("cost_")}
        total = parts.pop("cost_total_bytes")
        assert sum(parts.values()) == pytest.approx(total)
        tokens, full = (len(ran.rows(one, "tokens")) for one in (cell.cell_id, cell.full_depth_cell_id or cell.cell_id))
        assert total * tokens / full == pytest.approx(1 / metrics["ideal_speedup_bytes"])
        verified.add(("cost_verification_bytes" in parts, "acceptance_rate" in metrics))
        if cell.method.name == "full":
            assert parts["cost_gates_bytes"] == parts["cost_kv_bytes"] == 0
            assert parts["cost_blocks_bytes"] > parts["cost_heads_bytes"] > 0
    # No draft may have been verified where the tail of an answer is dropped.
    assert verified - {(True, False)} == {(True, True), (False, False)}


# ------------------------------------------------------------------------------------------ calibration


def test_calibration_tests_levels_until_the_first_failure(ran: Run) -> None:
    walked, nothing, risk = (ran.rows(cell.cell_id, "calibration") for cell in ran.cells("calibration"))
    assert [(row["step"], row["threshold"], row["passed"]) for row in walked] == [(1, 1.0, True), (2, 0.0, False)]
    assert [(row["step"], row["threshold"], row["passed"]) for row in nothing] == [(1, 0.0, False)]
    assert [(row["step"], row["threshold"], row["passed"]) for row in risk] == [
        (1, 1.0, True),
        (2, 0.5, True),
        (3, 0.0, True),
    ]
    assert {row["n"] for row in (*walked, *nothing, *risk)} == {4}
    assert [row["mean_exit_layer"] for row in walked] == [DEPTH, 1]
    assert walked[0]["mean_loss"] == 0 < 0.05 <= walked[1]["mean_loss"]


def test_calibrated_threshold_is_evaluated_on_held_out_documents(ran: Run) -> None:
    walked, _, risk = ran.cells("calibration")
    assert walked.calibration is not None
    assert "threshold" in walked.method.unused_params  # each level takes its place
    assert walked.calibration.held_out_sha256 == ran.cells("probe")[0].task.data_sha256 != walked.task.data_sha256
    assert ran.metrics(walked.cell_id) == {"threshold": 1.0, "held_out_loss": 0.0, "held_out_mean_exit_layer": DEPTH}
    chosen = ran.metrics(risk.cell_id)
    assert (chosen["threshold"], chosen["held_out_mean_exit_layer"]) == (0.0, 1.0)
    assert {row["n"] for row in ran.rows(walked.cell_id, "metrics") if row["metric"] == "held_out_loss"} == {5}


def test_calibration_falls_back_to_full_depth_if_no_level_passes(ran: Run) -> None:
    _, nothing, _ = ran.cells("calibration")
    assert ran.metrics(nothing.cell_id) == {"held_out_loss": 0.0, "held_out_mean_exit_layer": DEPTH}


QUESTION = Document.from_fields({"question": "What?", "answers": {"text": ["red car"], "answer_start": [0]}})


@pytest.mark.parametrize(
    ("consistency", "full", "early", "loss"),
    [
        ("textual", "red car", "red car", 0.0),
        ("textual", "blue bus", "blue bus", 0.0),  # wrong, but what full depth says
        ("textual", "", "", 0.0),  # the score of nothing against nothing does not matter
        ("textual", "blue bus", "blue car", 0.5),
        ("textual", "blue bus", "red car", 1.0),  # right, but not what full depth says
        ("risk", "red car", "red car", 0.0),
        ("risk", "red car", "red bus", 0.5),
        ("risk", "red car", "blue bus", 1.0),
        ("risk", "blue bus", "red car", 0.0),  # better than full depth: no negative loss
        ("risk", "red bus", "blue bus", 0.5),
        ("risk", "blue bus", "green van", 0.0),
    ],
)
def test_calibration_loss_of_a_document_per_consistency(
    ran: Run, consistency: Consistency, full: str, early: str, loss: float
) -> None:
    item = calibrating(ran, consistency)
    assert loss_of(item, full, early) == pytest.approx(loss)


def loss_of(item: CellJob, full: str, early: str) -> float:
    assert item.cell.calibration is not None
    return text_loss(item.data.task_object, item.cell.calibration, QUESTION, full, early)


class Errors(Squad):
    """A task whose only score is an error from 0 to 200."""

    name = "squad-errors"
    metrics = ("error",)
    consistency_metric = "error"
    lower_is_better = frozenset({"error"})

    def bounds(self, metric: str) -> tuple[float, float] | None:
        return 0.0, 200.0

    def score(self, doc: Document, output: str) -> DocumentScore:
        return DocumentScore({"error": 200 - 2 * super().score(doc, output).values["f1"]})


@pytest.mark.parametrize(
    ("consistency", "full", "early", "loss"),
    [
        ("textual", "blue bus", "blue bus", 0.0),
        ("textual", "blue bus", "blue car", 0.5),
        ("textual", "blue bus", "red car", 1.0),
        ("risk", "red car", "red bus", 0.5),
        ("risk", "red car", "blue bus", 1.0),
        ("risk", "blue bus", "red car", 0.0),
        ("risk", "red bus", "blue bus", 0.5),
    ],
)
def test_calibration_loss_with_a_lower_is_better_metric(
    ran: Run, monkeypatch: pytest.MonkeyPatch, consistency: Consistency, full: str, early: str, loss: float
) -> None:
    monkeypatch.setitem(registry._TASKS, "squad", Errors)
    item = calibrating(ran, consistency)
    assert loss_of(item, full, early) == pytest.approx(loss)


def test_calibration_on_an_error_metric_chooses_the_last_level_without_a_rise(
    ran: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry._TASKS, "squad", Errors)
    item = calibrating(ran, "risk")
    answers = {0.9: "red car", 0.5: "red car", 0.1: "blue bus"}

    def losses_at(level: float) -> NDArray[np.float64]:
        return np.array([loss_of(item, "red car", answers[level])] * 50)

    assert calibrate("hoeffding-bentkus", tuple(answers), losses_at, 0.1, 0.05).chosen == 0.5


def calibrating(ran: Run, consistency: Consistency) -> CellJob:
    item = next(i for i in ran.items.values() if i.cell.calibration is not None)
    assert item.cell.calibration is not None
    return replace(item, cell=replace(item.cell, calibration=replace(item.cell.calibration, consistency=consistency)))


# ------------------------------------------------------------------------------------------ verification


def test_self_speculation_equals_full_depth_and_reports_its_acceptance_rate(ran: Run) -> None:
    for cell in ran.cells("quality", "self-speculation"):
        full = ran.rows(cell.full_depth_cell_id, "samples")
        assert [row["output_ids"] for row in ran.rows(cell.cell_id, "samples")] == [row["output_ids"] for row in full]
        tokens = ran.rows(cell.cell_id, "tokens")
        kept = sum(row["exit_layer"] < DEPTH for row in tokens)
        rejected = sum(row["rejected"] for row in tokens)
        metrics = ran.metrics(cell.cell_id)
        assert rejected > 0
        assert metrics["acceptance_rate"] == pytest.approx(kept / (kept + rejected))
        assert metrics["token_match"] == 1
        assert {row["blocks_run"] for row in tokens} == {DEPTH}


def test_only_runs_that_verify_drafts_have_an_acceptance_rate(ran: Run) -> None:
    for cell in ran.cells("quality", "free"):
        verifies, tokens = cell.kv_policy != "sync-parallel", ran.rows(cell.cell_id, "tokens")
        # Every token is a draft here, so that only a policy that verifies the end of an answer verifies any.
        drafted = cell.kv_policy == "sync-parallel-rollback"
        assert ("acceptance_rate" in ran.metrics(cell.cell_id)) == drafted
        assert drafted == all(row["blocks_run"] == DEPTH for row in tokens)
        assert drafted or all(row["blocks_run"] == row["exit_layer"] < DEPTH for row in tokens)
        rejected = {row["rejected"] for row in tokens}
        assert (rejected != {None}) == verifies
        assert verifies == (None not in rejected)
    assert {row["rejected"] for c in ran.cells("quality", "calm") for row in ran.rows(c.cell_id, "tokens")} == {None}


def test_fixed_depth_has_no_confidence_interval() -> None:
    fixed = depth_interval([8, 12, 4], [2, 3, 1], 8, is_fixed=True)
    assert (fixed.value, fixed.low, fixed.high, fixed.n) == (4.0, None, None, 3)


def test_equal_but_not_fixed_depths_have_a_confidence_interval() -> None:
    chosen = depth_interval([8, 12, 4], [2, 3, 1], 8, is_fixed=False)
    assert chosen.low is not None and chosen.high is not None and chosen.low < 4.0 < chosen.high


def test_fixed_depth_after_a_full_depth_first_token_has_a_confidence_interval() -> None:
    mixed = depth_interval([8 + 4, 8 + 8, 8], [2, 3, 1], 8, is_fixed=True)
    assert mixed.low is not None and mixed.high is not None and mixed.low < mixed.value < mixed.high
