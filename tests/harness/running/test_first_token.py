"""First tokens in whole cells: replays exit where real decodes exit, and suites may gate the first token."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import transformers
from suite_runs import plan_suite, run_plan, successful_attempts
from transformers import PreTrainedTokenizerFast

from exitbench.errors import UserError
from exitbench.harness.planning.plan import Plan
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest
from exitbench.results.queries import saved_query
from exitbench.tasks.builtin.corpus import build_tokenizer

L = 4
SPECIAL_TOKENS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
SIZES: dict[str, Any] = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=L, num_attention_heads=4, num_key_value_heads=2
)
FAMILIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "llama": lambda tokens: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **tokens)),
    "qwen2": lambda tokens: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES, **tokens)),
    "qwen3": lambda tokens: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, head_dim=8, **tokens)),
    "smollm3": lambda tokens: transformers.SmolLM3ForCausalLM(transformers.SmolLM3Config(**SIZES, **tokens)),
    "olmo2": lambda tokens: transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**SIZES, **tokens)),
    "gpt2": lambda tokens: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=32, n_head=4, n_layer=L, n_positions=99, tie_word_embeddings=False, **tokens)
    ),
    "t5": lambda tokens: transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            d_model=32, d_kv=8, d_ff=48, num_heads=4, num_layers=L, decoder_start_token_id=0, **tokens
        )
    ),
}
LINES = (
    'task = "wmt-en-fr"\nsource = "local"\nfiles = { en = "text.en", fr = "text.fr" }\nmax_new_tokens = 4\n'
    'prompt_style = "t5"\n'
)
TASKS = {"whole": f"[tasks.whole]\n{LINES}", "gated": f'[tasks.gated]\n{LINES}first_token = "gated"\n'}
# The score of random exits is not in a probe: their replays ask the gate.
SWEEPS = """
[[sweep]]
method = "oracle"
grid = { kv_policy = ["exact"] }
kinds = ["quality", "replay"]
[[sweep]]
method = "random"
grid = { mean_exit = [2.0], kv_policy = ["exact"] }
kinds = ["quality", "replay"]
"""
TIMING = """
[timing]
documents = 2
max_rounds = 1
[[sweep]]
method = "static"
grid = { exit_layer = [2] }
kinds = ["quality", "timing"]
[[sweep]]
method = "calm-softmax"
grid = { threshold = [0.05], decay = ["none"] }
kinds = ["replay"]
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes a random model whose early blocks sometimes agree with the last block."""

    def save(family: str) -> Path:
        torch.manual_seed(1)
        folder, tokenizer = tmp_path_factory.mktemp(family), build_tokenizer()
        tokens = dict(vocab_size=tokenizer.get_vocab_size(), bos_token_id=0, eos_token_id=1, pad_token_id=0)
        reference = FAMILIES[family](tokens)
        for name, parameter in reference.named_parameters():
            if parameter.dim() > 1:
                is_block = any(part in name for part in ("layers.", ".h.", "block."))
                parameter.data = torch.randn_like(parameter) * (0.12 if is_block else 0.5)
        reference.save_pretrained(folder)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL_TOKENS).save_pretrained(folder)
        return folder

    return save


def planned(folder: Path, checkpoint: Path, tasks: list[str], sweeps: str) -> Plan:
    head = f'schema = 1\nname = "first"\nseed = 3\n[defaults]\nbatch_size = 3\n[models.m]\npath = "{checkpoint}"\n'
    return plan_suite(folder, head + "".join(TASKS[task] for task in tasks) + sweeps, folder / "data")


def run(folder: Path, checkpoint: Path, tasks: list[str], sweeps: str) -> dict[str, Path]:
    """Run a suite; return the folder of each cell's attempt, by the cell's label."""
    plan = planned(folder, checkpoint, tasks, sweeps)
    run_plan(plan, folder / "spool", folder / "data")
    return successful_attempts(plan, folder / "spool")


def exits(attempt: Path) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the exit layer and id of every token, by document and position."""
    rows = pq.read_table(attempt / "tokens.parquet").to_pylist()
    return {(row["doc_key"], row["position"]): (row["exit_layer"], row["token_id"]) for row in rows}


def first_exits(tokens: dict[tuple[str, int], tuple[int, int]]) -> set[int]:
    return {layer for (_, position), (layer, _) in tokens.items() if position == 1}


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=[pytest.mark.exhaustive] if family in ("qwen2", "qwen3", "olmo2") else [])
        for family in FAMILIES
    ],
)
def test_replays_exit_where_real_decodes_exit(
    checkpoint: Callable[[str], Path], tmp_path: Path, data_dir: Path, family: str
) -> None:
    tasks = ["whole", "gated"] if family == "llama" else ["whole"]
    ran = run(tmp_path, checkpoint(family), tasks, SWEEPS)
    for task in tasks:
        oracle = f"m/{task}/oracle:kv_policy=exact"
        real, replayed = exits(ran[f"{oracle}/quality"]), exits(ran[f"{oracle}/replay"])
        assert real == replayed, "an oracle's tokens are full depth's, and so is an exact cache"
        assert min(layer for layer, _ in real.values()) < L
        drawn = f"m/{task}/random:mean_exit=2.0,kv_policy=exact"
        first = first_exits(real)
        real, replayed = exits(ran[f"{drawn}/quality"]), exits(ran[f"{drawn}/replay"])
        first |= first_exits(real)
        assert (first == {L}) == (family != "t5" and task == "whole")
        both = real.keys() & replayed.keys()
        assert {place: real[place][0] for place in both} == {place: replayed[place][0] for place in both}
        assert {position for _, position in both} >= {1, 2}


def test_gated_first_token_is_a_task_setting_that_changes_ids_and_costs(
    checkpoint: Callable[[str], Path], tmp_path: Path, data_dir: Path
) -> None:
    """`first_token = "gated"` is part of a cell's id, and `plan` and `runs` show it.

    The blocks of the first token then count as work of decoding.
    """
    folder = checkpoint("llama")
    (group,) = planned(tmp_path, folder, ["whole", "gated"], TIMING).groups
    (remark,) = group.remarks
    assert remark == 'first_token = "gated": the first token of an answer may exit early too; of gated'
    cells = {cell.item.label: cell.item.cell for cell in group.cells}
    whole, gated = (cells[f"m/{task}/static:exit_layer=2/quality"] for task in ("whole", "gated"))
    assert whole.identity["generation"] == {"max_new_tokens": 4, "stop": []}
    assert gated.identity["generation"] == {"max_new_tokens": 4, "stop": [], "first_token": "gated"}
    assert whole.cell_id != gated.cell_id
    ran = run(tmp_path, folder, ["whole", "gated"], TIMING)
    assert json.loads((ran["m/gated/static:exit_layer=2/timing"] / "cell.json").read_text())["generation"] == {
        "max_new_tokens": 4,
        "stop": [],
        "first_token": "gated",
    }
    full = [exits(ran[f"m/{task}/full/quality"]) for task in ("whole", "gated")]
    assert full[0] == full[1]
    static = exits(ran["m/gated/static:exit_layer=2/quality"])
    assert {layer for layer, _ in static.values()} == {2}
    ingest(tmp_path / "spool", tmp_path / "x.duckdb")
    with open_database(tmp_path / "x.duckdb") as database:
        answer = database.query("SELECT DISTINCT task_label, first_token FROM runs ORDER BY 1").to_pylist()
        ideal = database.query(
            """SELECT task_label, value FROM metric_values WHERE metric = 'cost_blocks_bytes' AND method = 'full'
            ORDER BY 1"""
        ).to_pylist()
        replays = database.query(
            "SELECT task_label, mean_exit_layer, token_match FROM frontier WHERE execution = 'simulated' ORDER BY 1"
        ).to_pylist()
        query = saved_query("threshold_replay")
        swept = [row for row in database.query(query.sql, query.defaults).to_pylist() if row["threshold"] == 0.05]
        query = saved_query("threshold_for_agreement")
        least = database.query(query.sql, {**query.defaults, "agreement": 0.0}).to_pylist()
    assert answer == [{"task_label": "gated", "first_token": "gated"}, {"task_label": "whole", "first_token": "full"}]
    assert ideal[0]["value"] > ideal[1]["value"]
    for asked in (swept, least):
        assert [row["threshold"] for row in asked] == [0.05, 0.05]
        assert [row["mean_exit_layer"] for row in asked] == pytest.approx([row["mean_exit_layer"] for row in replays])
        assert [row["token_match"] for row in asked] == pytest.approx([row["token_match"] for row in replays])
    assert replays[0]["mean_exit_layer"] < replays[1]["mean_exit_layer"]


def test_gated_first_token_is_refused_for_an_encoder_decoder(
    checkpoint: Callable[[str], Path], tmp_path: Path, data_dir: Path
) -> None:
    with pytest.raises(UserError) as caught:
        planned(tmp_path, checkpoint("t5"), ["gated"], SWEEPS)
    assert str(caught.value) == (
        f"{tmp_path}/suite.toml:8: [tasks.gated] first_token: model 'm' is an encoder-decoder, whose first token "
        'always goes through the gate, behind the decoder\'s start token; "gated" goes with decoder-only models.'
    )
