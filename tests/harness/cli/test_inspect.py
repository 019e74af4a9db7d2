"""``exitbench inspect``: its report on one screen, its exit codes, and the ways to name a model."""

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import transformers

from exitbench.harness.cli.commands.inspect import model_folder
from exitbench.harness.cli.main import main
from exitbench.harness.inspecting.inspection import inspect_folder
from exitbench.harness.training.store import SHIPPED

SCREEN_LINES, SCREEN_WIDTH = 48, 100


def test_report_of_a_bundled_model_fits_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "builtin-exit-heads"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert captured.err == ""
    assert len(lines) <= SCREEN_LINES
    assert max(map(len, lines)) <= SCREEN_WIDTH
    assert lines[0].startswith(str(SHIPPED / "builtin-exit-heads-"))
    labels = [line[:12].strip() for line in lines[1:] if line and not line.startswith(" ")]
    assert labels[:5] == ["family", "engine", "blocks", "parameters", "tokens"]
    assert "engine      lean; hosted reads it too, not proved (--engine hosted does)" in lines
    assert "exit heads  linear, after blocks 2, 4, 6, 121,125 parameters" in lines
    assert any(line.startswith("calm-softmax") and line.endswith("yes") for line in lines)
    assert any(line.startswith("mee-lstm") and line.endswith("after a fit") for line in lines)


def test_row_by_row_decoding_is_explained_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = transformers.BartConfig(
        **dict.fromkeys(("vocab_size", "max_position_embeddings"), 80),
        **dict.fromkeys(("d_model", "decoder_ffn_dim"), 16),
        **dict.fromkeys(("encoder_layers", "decoder_layers", "decoder_attention_heads"), 2),
        is_decoder=True,
        is_encoder_decoder=False,
    )
    reference = transformers.BartForCausalLM(config)
    for parameter in reference.parameters():
        parameter.data = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.3
    reference.save_pretrained(tmp_path)
    assert main(["inspect", str(tmp_path)]) == 1  # it has no tokenizer
    output = " ".join(capsys.readouterr().out.split())
    assert "hosted, proved; lean: no (" in output
    assert "yes, row by row" in output
    assert output.count("this model counts positions with their padding") == 1
    assert "no tokenizer, see below" in output


def test_parameter_values_the_engine_refuses_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """On the hosted engine, this model's logits are not those of its LM head alone: its own code scales the states."""
    assert main(["inspect", "builtin-vanilla", "--engine", "hosted"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "hosted, proved; lean reads it too" in output
    assert "- not head = pruned-fixed, pruned-decaying, " in output
    assert output.count("single rows of the LM head") == 1


def test_json_output_has_every_inspection_field(causal_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(causal_model), "--format", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads(json.dumps(asdict(inspect_folder(causal_model))))


def test_missing_weights_are_listed_last_and_exit_with_1(
    causal_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(causal_model, tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert main(["inspect", str(folder)]) == 1
    output = capsys.readouterr().out
    listed = output.partition("It cannot be run:\n")[2]
    assert " ".join(listed.split()).startswith(f"- {folder}: no model.safetensors")  # broken where a line ends
    told = listed.splitlines()
    assert told[-2] == (
        "- To convert the pickle yourself, in an environment that you trust (opening one can run its code):"
    )
    assert told[-1] == f"    {inspect_folder(folder).convert}"
    assert "engine      not tried, see below" in output
    assert "(by config.json alone, as if all weights of a block were read)" in output


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("nowhere", "there is no folder 'nowhere' and no recipe of that name. Allowed: builtin-causal,"),
        ("builtin-wieghted", "Did you mean 'builtin-weighted'?"),
        ("builtin-weighted@7", "is a recipe that is not trained yet. Train it: exitbench train builtin-weighted@7."),
        (".", "not a Hugging Face checkpoint folder (no config.json)"),
    ],
)
def test_invalid_model_is_refused_with_a_one_line_message(
    model: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["inspect", model]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("config", [None, "config.json"])
@pytest.mark.parametrize("written", ["model.gguf", "folder"])
@pytest.mark.parametrize("command", ["inspect", "new"])
def test_gguf_file_gets_a_conversion_hint_instead_of_a_recipe_suggestion(
    tmp_path: Path,
    causal_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    written: str,
    config: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("folder" if written == "folder" else ".")
    folder.mkdir(exist_ok=True)
    (folder / "model.gguf").touch()
    if config is not None:
        shutil.copy(causal_model / config, folder)
    arguments = ["inspect", written] if command == "inspect" else ["new", "suite", "mine", "--model", written]
    assert main(arguments) in (1, 2)
    captured = capsys.readouterr()
    said = " ".join((captured.out + captured.err).split())
    assert "model.gguf is GGUF: a file of mostly quantized weights for another program." in said
    assert f"`exitbench convert {folder / 'model.gguf'} model-safetensors`" in said
    assert "builtin-causal" not in said


def test_depth_of_an_unloadable_encoder_decoder_is_reported(
    tmp_path: Path, worded_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(worded_model / name, tmp_path)
    assert main(["inspect", str(tmp_path)]) == 1
    assert re.search(r"^blocks +\d+ in the encoder, 4 in the decoder", capsys.readouterr().out, re.MULTILINE)


def test_model_folder_takes_precedence_over_a_recipe_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert model_folder("builtin-free", tmp_path).parent == SHIPPED
    (tmp_path / "builtin-free").mkdir()
    assert model_folder("builtin-free", tmp_path) == Path("builtin-free")


def test_recipe_trained_in_the_models_folder_takes_precedence(tmp_path: Path) -> None:
    (shipped,) = SHIPPED.glob("builtin-free-*")
    trained = shutil.copytree(shipped, tmp_path / "models" / shipped.name)
    assert model_folder("builtin-free", tmp_path / "models") == trained
