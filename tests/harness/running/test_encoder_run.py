"""A suite with encoders: documents exit as a whole, every evaluated block is stored, and the frontier has the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from suite_runs import plan_suite, run_plan

from exitbench.harness.cells.cell import GenerationSettings
from exitbench.harness.cells.texts import TextEncoding
from exitbench.harness.engine.checkpoints.encoder_loading import load_encoder
from exitbench.harness.engine.checkpoints.exit_head_files import new_off_ramps, save_off_ramps
from exitbench.harness.engine.checkpoints.files import OFF_RAMPS_FILE
from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer
from exitbench.harness.engine.encoders.classify import pooled_states
from exitbench.results.database.connection import Database, open_database
from exitbench.results.ingest.ingest import ingest
from exitbench.results.maintenance.integrity import check
from exitbench.results.spool.schema import FITTED_FILE

pytestmark = pytest.mark.usefixtures("toy_classification")

SUITE = """
schema = 1
name = "encoders"
seed = 3
[models.three]
path = "THREE"
random_weights = true
[models.number]
path = "NUMBER"
random_weights = true
[tasks.polarity]
task = "toy-polarity"
source = "local"
files = { data = "polarity.tsv" }
train_files = { data = "polarity-train.tsv" }
[tasks.rating]
task = "toy-rating"
source = "local"
files = { data = "rating.tsv" }
[defaults]
batch_size = 4
[timing]
documents = 8
max_rounds = 2
warm_up = 1
[[sweep]]
models = ["three"]
tasks = ["polarity"]
method = "static"
grid = { exit_layer = [1, 2] }
kinds = ["quality", "timing"]
[[sweep]]
models = ["three"]
tasks = ["polarity"]
method = "max-prob"
grid = { threshold = [0.5] }
kinds = ["quality", "timing"]
[[sweep]]
models = ["three"]
tasks = ["polarity"]
method = "oracle"
kinds = ["quality", "timing"]
[[sweep]]
models = ["three"]
tasks = ["polarity"]
method = "berxit"
grid = { threshold = [0.35] }
kinds = ["quality"]
[[sweep]]
models = ["number"]
tasks = ["rating"]
method = "random"
grid = { mean_exit = [2.0] }
kinds = ["quality"]
"""
BERXIT = 0.35
LABELS = ("bad", "so-so", "good")


@pytest.fixture(scope="module")
def folder(classifier_folder: Callable[..., Path], toy_texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the suite and return its folder. One of its models has three labels and off-ramps at blocks 1 and 3.

    That model's labels are named and ordered differently from the task's.
    """
    folder = tmp_path_factory.mktemp("encoders")
    three = classifier_folder(("Good", "bad", "so-so"))
    draw = torch.Generator().manual_seed(1)
    save_off_ramps(three / OFF_RAMPS_FILE, "linear", new_off_ramps("linear", (1, 3), 16, 3, draw))
    suite = SUITE.replace("THREE", str(three)).replace("NUMBER", str(classifier_folder(("LABEL_0",))))
    run_plan(plan_suite(folder, suite, toy_texts), folder / "spool", toy_texts)
    assert ingest(folder / "spool", folder / "exitbench.duckdb").quarantined == ()
    return folder


@pytest.fixture(scope="module")
def database(folder: Path) -> Database:
    return open_database(folder / "exitbench.duckdb")


def test_every_cell_succeeds_and_the_database_passes_its_check(
    folder: Path, toy_texts: Path, database: Database
) -> None:
    assert database.query("SELECT DISTINCT status FROM attempt").to_pylist() == [{"status": "ok"}]
    plan = plan_suite(folder, (folder / "suite.toml").read_text(), toy_texts)
    assert set(+plan.states()) == {"done"}
    assert check(folder / "spool", folder / "exitbench.duckdb").problems == ()


def test_gate_is_evaluated_at_each_block_until_the_document_exits(database: Database) -> None:
    rows = database.query("""
        SELECT any_value(blocks) AS blocks, list(block ORDER BY block) AS asked, list(exited ORDER BY block) AS exited,
               any_value(exit_layer) AS exit_layer
        FROM sequence_trace AS t JOIN runs USING (attempt_id) JOIN token_trace AS k USING (attempt_id, doc_key)
        WHERE t.method = 'max-prob' GROUP BY attempt_id, doc_key
    """).to_pylist()
    assert len(rows) == 24 and len({row["exit_layer"] for row in rows}) > 1
    for row in rows:
        assert row["asked"] == list(range(1, row["exit_layer"] + 1))
        assert row["exited"] == [False] * (row["exit_layer"] - 1) + [True]


def test_model_labels_are_mapped_to_task_labels_by_name(database: Database) -> None:
    rows = database.query("""
        SELECT a.output_text, t.token_id, s.label_id, s.prediction, t.text
        FROM answers AS a JOIN token_trace AS t USING (attempt_id, doc_key)
        JOIN sequence_trace AS s USING (attempt_id, doc_key) WHERE s.exited AND a.task = 'toy-polarity'
    """).to_pylist()
    assert {row["output_text"] for row in rows} == set(LABELS)
    for row in rows:
        assert LABELS[row["label_id"]] == row["output_text"]
        assert row["token_id"] == row["label_id"] == row["prediction"]
        assert row["text"] is None, "a label is no token"


def test_accuracy_uses_the_labels_at_the_exits(database: Database) -> None:
    for row in database.query("""
        SELECT f.value, 100 * avg(s.is_right::INT) AS found FROM frontier AS f
        JOIN sequence_trace AS s USING (attempt_id) WHERE s.exited AND f.task = 'toy-polarity' GROUP BY ALL
    """).to_pylist():
        assert row["value"] == pytest.approx(row["found"])


def test_frontier_has_depth_cost_and_speed_of_encoder_runs(database: Database) -> None:
    rows = database.query("SELECT * FROM frontier WHERE task = 'toy-polarity'").to_pylist()
    (static,) = (row for row in rows if row["mean_exit_layer"] == 2 and row["method"] == "static")
    (oracle,) = (row for row in rows if row["method"] == "oracle")
    assert static["mean_exit_layer"] == 2.0
    assert 1.9 < static["ideal_speedup_flops"] <= 2.0  # the classifier is read once either way
    assert static["speed_status"] != "not timed" and static["timed_documents"] > 0
    assert oracle["mean_blocks_run"] == 4.0 and oracle["token_match"] == 1.0


def test_oracle_scores_blocks_by_their_off_ramps(database: Database) -> None:
    rows = database.query("""
        SELECT s.block, s.label_id, s.score, t.full_token_id FROM sequence_trace AS s
        JOIN token_trace AS t USING (attempt_id, doc_key) WHERE s.method = 'oracle' AND s.block < 4
    """).to_pylist()
    assert {row["score"] for row in rows} == {0.0, 1.0}
    assert all((row["label_id"] == row["full_token_id"]) == (row["score"] == 1) for row in rows)


def test_fitted_gate_scores_equal_those_computed_from_stored_tensors(
    folder: Path, database: Database, classifier_folder: Callable[..., Path]
) -> None:
    """Scores of the quality cell equal those computed here from the states and the tensors that the fit cell stored."""
    (fit,) = database.query(
        "SELECT attempt_id, cell_id FROM cell JOIN attempt USING (cell_id) WHERE kind = 'fit'"
    ).to_pylist()
    (path,) = (folder / "spool").glob(f"??/{fit['cell_id']}/{fit['attempt_id']}/{FITTED_FILE}")
    fitted = load_file(path)
    assert {name: tuple(tensor.shape) for name, tensor in fitted.items()} == {"weight": (16,), "bias": ()}
    curve = database.query("SELECT train_loss FROM fit_curves ORDER BY epoch")["train_loss"].to_pylist()
    assert len(curve) == 5 and curve[-1] < curve[0]
    rows = database.query("""
        SELECT s.doc_key, s.block, s.score, s.exited, a.input_text FROM sequence_trace AS s
        JOIN answers AS a USING (doc_key) WHERE s.method = 'berxit' AND a.method = 'full' AND a.task = 'toy-polarity'
        ORDER BY s.doc_key, s.block
    """).to_pylist()
    three = classifier_folder(("Good", "bad", "so-so"))
    model = load_encoder(three).model
    encoding = TextEncoding(load_tokenizer(three), GenerationSettings(1), model.max_positions)
    texts = {row["doc_key"]: encoding(row["input_text"].split("\n"), 0) for row in rows}
    states_LD = {key: pooled_states(model, [text])[:, 0] for key, text in texts.items()}
    assert len(states_LD) == 24
    for row in rows:
        assert row["exited"] == (row["block"] == 4 or row["score"] > BERXIT)
        if row["block"] < 4:
            wanted = torch.sigmoid(states_LD[row["doc_key"]][row["block"]] @ fitted["weight"] + fitted["bias"])
            assert row["score"] == pytest.approx(float(wanted), abs=1e-5)


def test_regression_runs_store_numbers_and_no_labels(database: Database) -> None:
    rows = database.query("""
        SELECT s.*, a.output_text FROM sequence_trace AS s JOIN answers AS a USING (attempt_id, doc_key)
        WHERE s.task = 'toy-rating'
    """).to_pylist()
    assert rows and all(
        row["label_id"] is None and row["probability"] is None and row["is_right"] is None for row in rows
    )
    assert all(float(row["output_text"]) == row["prediction"] for row in rows if row["exited"])
    match = "SELECT DISTINCT token_match FROM frontier WHERE task = 'toy-rating'"
    assert database.query(match).to_pylist() == [{"token_match": None}]


def test_long_inputs_are_truncated_and_counted(database: Database) -> None:
    row = database.query("""
        SELECT max(n_prompt) AS longest, count(*) FILTER (n_cut > 0) AS cut FROM answers
        WHERE task = 'toy-polarity' AND method = 'full'
    """).to_pylist()[0]
    counted = """
        SELECT DISTINCT value FROM metric_values JOIN runs USING (attempt_id)
        WHERE metric = 'prompts_truncated' AND runs.kind = 'quality'
    """
    assert row["longest"] == 30 and row["cut"] > 0
    assert database.query(counted).to_pylist() == [{"value": float(row["cut"])}]


def test_exit_shares_per_block_add_up_to_1(database: Database) -> None:
    for row in database.query("""
        SELECT sum(exited) AS n, sum(share_exited) AS share, max(asked) AS asked
        FROM sequence_blocks GROUP BY attempt_id
    """).to_pylist():
        assert row["n"] == row["asked"] and row["share"] == pytest.approx(1)
