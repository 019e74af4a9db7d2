"""Generation settings in real runs: answers equal those of transformers, and settings that are ignored are stored."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from suite_runs import plan_suite, run_plan, successful_attempts
from transformers import AutoTokenizer, GPT2LMHeadModel, T5ForConditionalGeneration

from exitbench.harness.cells.job import CellJob
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest
from exitbench.tasks.registry import get_task

LONGEST = 8
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'system' %}<pad> context : {{ message.content }}\n"
    "{% else %}question : {{ message.content }}\n{% endif %}{% endfor %}French :"
)
SYSTEM = "the house is old"
SWEEPS = """
[timing]
documents = 4
max_rounds = 1
[[sweep]]
method = "calm-softmax"
grid = { threshold = [0.0001] }
kinds = ["quality", "timing"]
[[sweep]]
method = "calm-classifier"
grid = { epochs = [1] }
kinds = ["quality"]
[fit]
documents = 6
"""
FULL_DEPTH = '[[sweep]]\nmethod = "full"\nkinds = ["quality"]\n'

Ran = dict[str, tuple[CellJob, Path]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Ran]:
    """Return a function that runs a suite of one model on 20 documents and returns cells and attempts by label."""

    def go(model: Path, *lines: str, sweeps: str = SWEEPS) -> Ran:
        plan, spool = plan_suite(tmp_path, suite(model, *lines, sweeps=sweeps)), tmp_path / "spool"
        run_plan(plan, spool)
        attempts = successful_attempts(plan, spool)
        return {cell.item.label: (cell.item, attempts[cell.item.label]) for cell in plan.groups[0].cells}

    return go


def suite(model: Path, *lines: str, sweeps: str) -> str:
    task = "\n".join(["[tasks.wmt-en-fr]", "limit = 20", f"max_new_tokens = {LONGEST}", *lines])
    return f'schema = 1\nname = "asked"\nseed = 3\n[models.m]\npath = "{model}"\n{task}\n{sweeps}'


def answers(ran: Ran, method: str) -> dict[str, list[int]]:
    rows = pq.read_table(ran[f"m/wmt-en-fr/{method}/quality"][1] / "samples.parquet").to_pylist()
    return {row["doc_key"]: row["output_ids"] for row in rows}


def metrics(ran: Ran, label: str) -> dict[str, float]:
    rows = pq.read_table(ran[f"m/wmt-en-fr/{label}"][1] / "metrics.parquet").to_pylist()
    return {row["metric"]: row["value"] for row in rows}


def check_all_cells(ran: Ran, full: dict[str, list[int]]) -> None:
    """Check that full depth equals transformers, and that other cells are compared with it."""
    assert answers(ran, "full") == full
    assert len({tuple(ids) for ids in full.values()}) > 5
    early = answers(ran, "calm-softmax:threshold=0.0001")
    matches = sum(mine == theirs for key, ids in full.items() for mine, theirs in zip(early[key], ids, strict=False))
    told = metrics(ran, "calm-softmax:threshold=0.0001/quality")
    assert told["token_match"] == pytest.approx(matches / sum(map(len, full.values())))
    assert 1 < told["mean_exit_layer"] < 4
    timed = metrics(ran, "calm-softmax:threshold=0.0001/timing")
    first = list(full)[:4]
    assert timed["full_tokens_per_request"] == pytest.approx(sum(len(full[key]) for key in first) / 4)
    assert timed["tokens_per_request"] == pytest.approx(sum(len(early[key]) for key in first) / 4)


def test_encoder_decoder_cells_with_logit_rules_equal_transformers_generate(
    run: Callable[..., Ran], worded_model: Path
) -> None:
    rules = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_length": 5, "forced_bos_token_id": 9}
    ran = run(worded_model, *(f"{name} = {value}" for name, value in rules.items()))
    model = T5ForConditionalGeneration.from_pretrained(worded_model).eval()
    tokenizer = AutoTokenizer.from_pretrained(worded_model)
    item, task = ran["m/wmt-en-fr/full/quality"][0], get_task("wmt-en-fr")
    expected = {}
    for document in item.data.load(None):
        prompt = tokenizer(task.prompt(document), return_tensors="pt")["input_ids"]
        # With a cache, transformers fails where encoder and decoder differ in depth.
        generated = model.generate(
            prompt, max_new_tokens=LONGEST, do_sample=False, num_beams=1, use_cache=False, **rules
        )
        expected[document.key] = generated[0, 1:].tolist()
    assert len(expected) == 20
    check_all_cells(ran, expected)
    record = json.loads((ran["m/wmt-en-fr/full/quality"][1] / "cell.json").read_text())
    assert record["generation"] == {"max_new_tokens": LONGEST, "stop": [], **rules}


def test_chat_cells_with_logit_rules_equal_transformers_generate(
    run: Callable[..., Ran], causal_model: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(causal_model, tmp_path / "chat"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    rules = {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "min_length": 30}
    chat = ('prompt_style = "t5"', "chat_template = true", f'system = "{SYSTEM}"')
    asked = (*chat, *(f"{name} = {value}" for name, value in rules.items()))
    ran = run(folder, *asked)
    model, tokenizer = GPT2LMHeadModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    item, task = ran["m/wmt-en-fr/full/quality"][0], get_task("wmt-en-fr")
    expected = {}
    for document in item.data.load(None):
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.prompt(document)}]
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        generated = model.generate(**prompt, max_new_tokens=LONGEST, do_sample=False, num_beams=1, **rules)
        expected[document.key] = generated[0, prompt["input_ids"].shape[1] :].tolist()
    check_all_cells(ran, expected)


def test_generation_settings_that_are_not_applied_are_stored_with_the_run(
    run: Callable[..., Ran], causal_model: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(causal_model, tmp_path / "own"))
    config = json.loads((folder / "generation_config.json").read_text())
    settings: dict[str, Any] = {"repetition_penalty": 1.3, "num_beams": 4}
    (plain,) = plan_suite(tmp_path, suite(folder, sweeps=FULL_DEPTH)).groups[0].cells
    (folder / "generation_config.json").write_text(json.dumps({**config, **settings}))
    asked = run(folder, sweeps='[[sweep]]\nmethod = "full"\nkinds = ["quality", "probe"]\n')
    item, attempt = asked["m/wmt-en-fr/full/quality"]
    assert item.cell.cell_id == plain.item.cell.cell_id, "nothing else is asked"
    assert item.cell.identity == json.loads((attempt / "cell.json").read_text())["identity"]
    ingest(tmp_path / "spool", tmp_path / "x.duckdb")
    with open_database(tmp_path / "x.duckdb") as database:
        runs = database.query("SELECT kind, not_applied FROM runs ORDER BY kind").to_pylist()
        result = database.query("SELECT kind, severity, message FROM qc WHERE rule = 'generation_not_applied'")
    assert [(row["kind"], json.loads(row["not_applied"])) for row in runs] == [
        ("probe", {"num_beams": 4, "repetition_penalty": 1.3}),
        ("quality", {"num_beams": 4, "repetition_penalty": 1.3}),
    ]
    message = 'not decoded with the checkpoint\'s own generation settings: {"num_beams":4,"repetition_penalty":1.3}'
    assert [(row["kind"], row["severity"]) for row in result.to_pylist()] == [("quality", 2)]
    assert result.to_pylist()[0]["message"].replace(" ", "") == message.replace(" ", "")


def test_checkpoint_without_generation_settings_has_none_stored_as_not_applied(
    run: Callable[..., Ran], causal_model: Path, tmp_path: Path
) -> None:
    ((_, attempt),) = run(causal_model, sweeps=FULL_DEPTH).values()
    assert "not_applied" not in json.loads((attempt / "cell.json").read_text())
    ingest(tmp_path / "spool", tmp_path / "x.duckdb")
    with open_database(tmp_path / "x.duckdb") as database:
        assert database.query("SELECT not_applied FROM runs").to_pylist() == [{"not_applied": None}]
        assert database.query("SELECT * FROM qc WHERE rule = 'generation_not_applied'").num_rows == 0
