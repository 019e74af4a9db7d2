"""The Python API: models, answers, probes and replays, and messages about invalid calls."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import transformers

import exitbench as eb
from exitbench.harness.api import models, results, running
from exitbench.tasks import builtin
from exitbench.tasks.registry import get_task

THRESHOLDS = [0.0, 0.3, 0.6, 0.9, 1.0]


@pytest.fixture(scope="module")
def model() -> eb.Model:
    return eb.load_model("builtin-weighted")


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    task = get_task("wmt-en-fr")
    return [task.prompt(document) for document in builtin.documents("wmt-en-fr", "test", 6)]


EXAMPLES = """
import doctest
from exitbench.harness.api import models, results, running
for module in (models, running, results):  # results are those of the run
    assert doctest.testmod(module).attempted > 1
"""


def test_docstring_examples_pass(snippets: ModuleType, tmp_path: Path) -> None:
    python = snippets.Python(tmp_path)
    try:
        assert python.output_of(snippets.Block("examples", "python", None, EXAMPLES)) == ""  # a failure is printed
    finally:
        python.end()


def test_every_public_function_has_an_example() -> None:
    for module in (models, running, results):
        public = [value for name, value in vars(module).items() if name in eb.__all__ and inspect.isfunction(value)]
        assert public and all("Examples:" in (function.__doc__ or "") for function in public)


def test_import_is_lightweight_and_every_listed_name_resolves() -> None:
    code = (
        "import sys, exitbench as eb\n"
        "assert not {'torch', 'duckdb', 'pyarrow', 'numpy'} & set(sys.modules)\n"
        "assert {'Model', 'decode', 'open_results'} <= set(dir(eb))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert all(getattr(eb, name) for name in dir(eb))
    with pytest.raises(AttributeError, match="no attribute 'decoed'"):
        _ = eb.decoed


def test_unreachable_threshold_equals_full_depth(model: eb.Model, prompts: list[str]) -> None:
    full = eb.decode(model, prompts)
    never = eb.decode(model, prompts, "calm-softmax", threshold=1.0)
    assert [answer.text for answer in never] == [answer.text for answer in full]
    assert {layer for answer in full for layer in answer.exit_layers} == {model.n_blocks}
    assert all(len(answer.tokens) == len(answer.token_ids) == len(answer.blocks_run) for answer in full)


def test_replay_equals_exits_computed_from_the_probe_at_every_threshold(model: eb.Model, prompts: list[str]) -> None:
    """The expected exit is the first block whose margin exceeds the threshold, or else the last block."""
    probe = eb.probe(model, prompts)
    table = eb.replay(probe, "calm-softmax", THRESHOLDS)
    rows = probe.table.to_pylist()
    for row in table.to_pylist():
        exits = [
            next((at for at in range(1, 8) if one["p1"][at - 1] - one["p2"][at - 1] > row["threshold"]), 8)
            for one in rows
        ]
        matches = [one["top1_id"][at - 1] == one["full_token_id"] for at, one in zip(exits, rows, strict=True)]
        assert row["mean_exit_layer"] == pytest.approx(sum(exits) / len(exits), abs=0.02)
        assert row["token_match"] == pytest.approx(sum(matches) / len(matches), abs=0.02)
    assert table.column("mean_exit_layer").to_pylist() == sorted(table.column("mean_exit_layer").to_pylist())


def test_replay_accepts_thresholds_as_an_array(model: eb.Model, prompts: list[str]) -> None:
    probe = eb.probe(model, prompts[:1])
    assert eb.replay(probe, "calm-softmax", np.asarray(THRESHOLDS)) == eb.replay(probe, "calm-softmax", THRESHOLDS)


def test_replay_equals_decoding_if_the_answers_are_equal(model: eb.Model, prompts: list[str]) -> None:
    (full,), (early,) = eb.decode(model, prompts[:1]), eb.decode(model, prompts[:1], "calm-softmax", threshold=0.95)
    assert early.text == full.text
    (row,) = eb.replay(eb.probe(model, prompts[:1]), "calm-softmax", [0.95]).to_pylist()
    assert row["mean_exit_layer"] == pytest.approx(early.mean_exit_layer)


def test_replay_keeps_the_first_token_of_decoder_only_models_at_full_depth(prompts: list[str]) -> None:
    causal = eb.load_model("builtin-layer-skip")
    probe = eb.probe(causal, prompts[:3], max_new_tokens=8)
    (row,) = eb.replay(probe, "calm-softmax", [0.0], min_exit=2).to_pylist()
    n_tokens = probe.table.num_rows
    assert row["mean_exit_layer"] == pytest.approx((3 * causal.n_blocks + (n_tokens - 3) * 2) / n_tokens)


def test_answer_prints_exit_layers_and_converts_to_pandas(
    model: eb.Model, prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (answer,) = eb.decode(model, prompts[:1], "static", exit_layer=3)
    frame = answer.to_pandas()
    assert list(frame.columns) == ["position", "token", "token_id", "exit_layer", "blocks_run", "score"]
    assert set(frame["exit_layer"]) == {3}
    answer.show()
    printed = capsys.readouterr().out
    assert printed.count("███·····  3\n") == len(answer.tokens)
    assert printed.endswith("3.00 of 8 blocks on average\n")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda model: eb.load_model("no/such/folder"), "not a Hugging Face checkpoint folder"),
        (lambda model: eb.load_model("builtin-weighted", dtype="int4"), "dtype 'int4' is not known. Allowed: float32"),
        (lambda model: eb.load_model("builtin-weighted", device="cuda:99"), "device 'cuda:99' is not on this machine."),
        (lambda model: eb.decode(model, ["a"], "calm-sofmax"), "Did you mean 'calm-softmax'"),
        (lambda model: eb.decode(model, ["a"], "static", exit_layer=9), "exit_layer"),
        (lambda model: eb.decode(model, ["a"], "mee-lstm"), "must be fitted first"),
        (lambda model: eb.probe(model, []), "there are no prompts"),
        (lambda model: eb.replay(eb.probe(model, ["a"]), "static", [0.5]), "has no threshold"),
        (lambda model: eb.replay(eb.probe(model, ["a"]), "mee-lstm", [0.5]), "cannot be computed from a probe"),
        (lambda model: eb.open_results("no such folder"), "there is no database. Allowed: a folder of runs"),
    ],
)
def test_invalid_input_errors_name_the_allowed_values(model: eb.Model, call: object, says: str) -> None:
    assert callable(call)
    with pytest.raises(eb.UserError, match=says):
        call(model)


def test_method_that_the_engine_cannot_run_is_refused(model: eb.Model, tmp_path: Path) -> None:
    """A pruned head reads single rows of the LM head, and this model's logits pass a soft cap after it."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "final_logit_softcapping": 0.01}
    config = transformers.Gemma2Config(vocab_size=len(model.tokenizer), **sizes, **heads)
    transformers.Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    capped = eb.load_model(tmp_path)
    assert isinstance(capped, eb.Model)
    with pytest.raises(eb.UserError, match=r"'max-prob' cannot be run on .* a soft cap"):
        eb.decode(capped, ["the key is lost ."], "max-prob", head="pruned-fixed")
