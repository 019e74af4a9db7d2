"""Hostile checkpoints: each is refused at once with a message that fits on a screen; nothing is run or written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from exitbench.errors import UserError
from exitbench.harness.cli.main import main
from exitbench.harness.engine.checkpoints.digest import inspect_checkpoint
from exitbench.tasks.builtin.corpus import build_tokenizer

SUITE = """\
schema = 1
name = "small"
seed = 7
[models.tiny]
path = "{folder}"
random_weights = true
[tasks.squad]
task = "squad"
source = "builtin"
limit = 2
max_new_tokens = {budget}
[[sweep]]
method = "static"
kinds = ["quality"]
"""
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PROJECTION = "model.layers.1.mlp.up_proj.weight"
HUGE, MANY = 10**12, 2 * 10**9
TIME_LIMIT_S = 120

Attack = Callable[[Path], object]
Plan = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound checkpoint: two Llama blocks with the tokenizer of the built-in data."""
    folder = tmp_path_factory.mktemp("honest")
    tokenizer = build_tokenizer()
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    vocabulary = {"vocab_size": tokenizer.get_vocab_size(), "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1}
    LlamaForCausalLM(LlamaConfig(**shape, **vocabulary, max_position_embeddings=64)).save_pretrained(folder)
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "model"))


@pytest.fixture(autouse=True)
def no_attack_takes_for_ever() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise AssertionError(f"not refused within {TIME_LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(TIME_LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Return a function that runs `exitbench plan` for one model; it returns exit code, stdout and stderr."""

    def run(folder: Path, budget: int = 4) -> tuple[int, str, str]:
        suite = tmp_path / "small.toml"
        suite.write_text(SUITE.format(folder=folder, budget=budget))
        return main(["plan", str(suite), "--runs", str(tmp_path / "runs")]), *capsys.readouterr()

    return run


def config(**values: Any) -> Attack:
    return edited("config.json", **values)


def edited(name: str, **values: Any) -> Attack:
    """Return an attack that changes keys of a JSON file."""

    def edit(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **values}))

    return edit


def written(name: str, content: bytes | str) -> Attack:
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def tensors(edit: Callable[[dict[str, Tensor]], object]) -> Attack:
    """Return an attack that changes the weights."""

    def change(folder: Path) -> None:
        weights = load_file(folder / WEIGHTS)
        edit(weights)
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})

    return change


def stored(dtype: torch.dtype) -> Attack:
    return tensors(lambda weights: weights.update({PROJECTION: weights[PROJECTION].to(dtype)}))


def with_tensor(name: str, *shape: int) -> Attack:
    return tensors(lambda weights: weights.update({name: torch.ones(*shape)}))


def in_parts(places: Callable[[dict[str, str]], object], parts: int = 2) -> Attack:
    """Return an attack that splits the weights into several files with an index, and changes the index."""

    def change(folder: Path) -> None:
        weights, index = load_file(folder / WEIGHTS), {}
        (folder / WEIGHTS).unlink()
        for part in range(parts):
            name = f"model-{part + 1:05}-of-{parts:05}.safetensors"
            some = {key: weights[key] for key in sorted(weights)[part::parts]}
            save_file(some, folder / name, metadata={"format": "pt"})
            index.update(dict.fromkeys(some, name))
        places(index)
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))

    return change


def instead(name: str, make: Callable[[Path], object]) -> Attack:
    """Return an attack that replaces a file by what `make` creates."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def bound_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)
    os.chdir(here)


def tokenizer_json(edit: Callable[[dict[str, Any]], object]) -> Attack:
    def change(folder: Path) -> None:
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text())
        edit(content)
        path.write_text(json.dumps(content))

    return change


def as_qwen2(**values: Any) -> Attack:
    def change(folder: Path) -> None:
        shape = json.loads((folder / "config.json").read_text())
        kept_keys = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        qwen2 = Qwen2Config(**{key: shape[key] for key in kept_keys}, num_key_value_heads=2, eos_token_id=1)
        Qwen2ForCausalLM(qwen2).save_pretrained(folder)
        config(**values)(folder)

    return change


def header(text: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text


def split_pattern(regex: str) -> Attack:
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return tokenizer_json(lambda content: content.update(pre_tokenizer=split))


def added_token(token_id: int, text: str) -> Attack:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    token = {"id": token_id, "content": text, "special": True, **flags}
    return tokenizer_json(lambda content: content["added_tokens"].append(token))


ATTACKS: dict[str, tuple[Attack, str]] = {
    # What would be computed with other numbers than the model's.
    "quantization_config": (config(quantization_config={"quant_method": "fp8"}), "quantization_config ('fp8')"),
    "quantization_config of no method": (
        config(quantization_config={"bits": 4}),
        "quantised weights are not supported",
    ),
    "compression_config": (config(compression_config={"format": "int-quantized"}), "compression_config"),
    "int8": (stored(torch.int8), f"tensor '{PROJECTION}' holds I8"),
    "uint8": (stored(torch.uint8), "holds U8"),
    "fp8 e4m3": (stored(torch.float8_e4m3fn), "holds F8_E4M3"),
    "fp8 e5m2": (stored(torch.float8_e5m2), "holds F8_E5M2"),
    "bool": (stored(torch.bool), "holds BOOL"),
    "scales of bitsandbytes": (with_tensor("model.layers.1.mlp.up_proj.SCB", 24), "belongs to quantised weights"),
    "scales of 4 bits": (with_tensor("model.layers.1.mlp.up_proj.weight.absmax", 4), "belongs to quantised weights"),
    "scales of fp8": (with_tensor("model.layers.1.mlp.up_proj.weight_scale_inv", 1), "belongs to quantised weights"),
    "zeros of GPTQ": (with_tensor("model.layers.1.mlp.up_proj.qzeros", 1, 3), "belongs to quantised weights"),
    "one block more": (with_tensor("model.layers.2.input_layernorm.weight", 16), "num_hidden_layers is 2, but"),
    "norms of another family": (
        with_tensor("model.layers.0.self_attn.q_norm.weight", 8),
        "1 tensor is not part of the model that config.json describes: model.layers.0.self_attn.q_norm.weight.",
    ),
    "a bias": (with_tensor("model.layers.0.self_attn.q_proj.bias", 16), "1 tensor is not part of the model"),
    "many unread tensors": (
        tensors(lambda weights: weights.update({f"adapter.{n}\x1b[2J": torch.ones(1) for n in range(4000)})),
        "4000 tensors are not part of the model",
    ),
    "an adapter": (written("adapter_config.json", "{}"), "an adapter next to the weights"),
    "an adapter's weights": (written("adapter_model.safetensors", b""), "an adapter next to the weights"),
    "an adapter as a dangling link": (
        instead("adapter_config.json", lambda path: path.symlink_to("/nonexistent")),
        "an adapter next to the weights",
    ),
    "other weights by name": (config(transformers_weights="../other.safetensors"), "transformers_weights"),
    "blocks that differ": (config(per_layer_config={"0": {"hidden_size": 8}}), "per_layer_config"),
    "an encoder": (config(architectures=["T5EncoderModel"]), "'T5EncoderModel' is an encoder only"),
    "a classifier": (config(architectures=["LlamaForSequenceClassification"]), "has no classifier with exits"),
    "layer_types": (as_qwen2(layer_types=["full_attention", "sliding_attention"]), "layer_types"),
    # Files of weights.
    "header of 2^63 bytes": (written(WEIGHTS, header(b"{}", 2**63)), "not a complete safetensors file"),
    "header of deep JSON": (written(WEIGHTS, header(b'{"a":' * 50_000)), "not a complete safetensors file"),
    "empty weights": (written(WEIGHTS, b""), "not a complete safetensors file"),
    "weights are a pipe": (instead(WEIGHTS, os.mkfifo), "not a regular file"),
    "weights are a socket": (instead(WEIGHTS, bound_socket), "not a regular file"),
    "weights are a folder": (instead(WEIGHTS, Path.mkdir), "not a regular file"),
    "weights are a device": (instead(WEIGHTS, lambda path: path.symlink_to("/dev/zero")), "not a regular file"),
    "weights are a link to nothing": (instead(WEIGHTS, lambda path: path.symlink_to("gone")), "that is not there"),
    "weights are a link to themselves": (instead(WEIGHTS, lambda path: path.symlink_to(WEIGHTS)), "cannot be read"),
    "weights are a link to a text": (instead(WEIGHTS, lambda path: path.symlink_to("/etc/passwd")), "not a complete"),
    "a part elsewhere": (
        in_parts(lambda index: index.update({PROJECTION: "../honest/model.safetensors"})),
        "'../honest/model.safetensors' for",
    ),
    "a part by its full path": (in_parts(lambda index: index.update({PROJECTION: "/etc/passwd"})), "'/etc/passwd' for"),
    "a part that is a pickle": (in_parts(lambda index: index.update({PROJECTION: "evil.bin"})), "'evil.bin' for"),
    "a part that is no name": (in_parts(lambda index: index.update({PROJECTION: 7})), "weight_map says 7 for"),
    "a part with NUL": (in_parts(lambda index: index.update({PROJECTION: "a\0.safetensors"})), "weight_map says"),
    "a part that is missing": (
        in_parts(lambda index: index.update({PROJECTION: "gone.safetensors"})),
        "gone.safetensors: this part of the weights is missing",
    ),
    "a tensor that the index does not know": (in_parts(lambda index: index.pop(PROJECTION)), "nothing of it"),
    "a tensor that no part has": (
        in_parts(lambda index: index.update({"ghost": "model-00001-of-00002.safetensors"})),
        "tensor 'ghost' is in no file",
    ),
    "a tensor in two parts": (
        lambda folder: (
            in_parts(lambda index: None)(folder),
            save_file(load_file(folder / "model-00001-of-00002.safetensors"), folder / "a.safetensors"),
            (folder / INDEX).write_text((folder / INDEX).read_text().replace("model-00002-of-00002", "a", 1)),
        ),
        "allowed: one file a tensor",
    ),
    "no weight_map": (lambda folder: (in_parts(len)(folder), written(INDEX, "{}")(folder)), "weight_map is missing"),
    "the index is a pipe": (
        lambda folder: ((folder / WEIGHTS).unlink(), os.mkfifo(folder / INDEX)),
        f"{INDEX}: not a regular file",
    ),
    "exit heads are a pipe": (instead("exit_heads.safetensors", os.mkfifo), "not a regular file"),
    # config.json and generation_config.json.
    "config is a pipe": (instead("config.json", os.mkfifo), "config.json: not a regular file"),
    "config is a device": (instead("config.json", lambda path: path.symlink_to("/dev/zero")), "not a regular file"),
    "config is 9 MB": (written("config.json", " " * 9_000_000), "9,000,000 bytes"),
    "config is nested": (written("config.json", '{"a":' * 200_000), "nested too deep"),
    "config is not UTF-8": (written("config.json", b'{"model_type": "\xff"}'), "is not UTF-8"),
    "config has a long number": (written("config.json", '{"vocab_size": ' + "9" * 5000 + "}"), "not valid JSON"),
    "a number as a string": (config(num_attention_heads="2"), "num_attention_heads is '2'; allowed: a whole number"),
    "a number that is true": (config(num_hidden_layers=True), "num_hidden_layers is True"),
    "no heads": (config(num_attention_heads=0), "num_attention_heads is 0"),
    "heads that do not divide": (config(num_attention_heads=3), "hidden size (16) is not a multiple"),
    "more key/value heads": (config(num_key_value_heads=3), "num_key_value_heads 3"),
    "an epsilon that is an object": (config(rms_norm_eps={}), "rms_norm_eps is {}; allowed: a number above 0"),
    "an epsilon without end": (written("config.json", '{"model_type": "llama", "rms_norm_eps": 1e999}'), "is inf"),
    "rope is a list": (config(rope_parameters=[1]), "rope_parameters is [1]; allowed: an object or null"),
    "rope of a string": (config(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": "x"}), "'x'"),
    "rope of nothing": (config(rope_parameters={"rope_type": "llama3", "rope_theta": 1e4, "factor": 2.0}), "rope"),
    "a family that is a list": (config(model_type=["llama"]), "model_type ['llama'] is not supported"),
    "10^12 blocks": (config(num_hidden_layers=HUGE), "num_hidden_layers is 1000000000000; allowed"),
    "10^12 wide heads": (config(head_dim=HUGE), "head_dim is 1000000000000; allowed"),
    "10^12 positions": (config(max_position_embeddings=HUGE), "max_position_embeddings"),
    "2 * 10^9 labels": (config(num_labels=MANY), "num_labels"),
    "2 * 10^9 windows": (as_qwen2(num_hidden_layers=MANY, use_sliding_window=True), "num_hidden_layers"),
    "eos is a string": (config(eos_token_id="1"), "eos_token_id is '1'; allowed: a whole number, a list of them"),
    "eos is negative": (edited("generation_config.json", eos_token_id=-5), "eos_token_id is -5; allowed: 0 to"),
    "eos beyond the vocabulary": (edited("generation_config.json", eos_token_id=[1, 10**6]), "eos_token_id is 1000000"),
    "eos is true": (edited("generation_config.json", eos_token_id=True), "eos_token_id is True"),
    "eos is an object": (edited("generation_config.json", eos_token_id={"a": 1}), "eos_token_id is {'a': 1}"),
    "pad is a list": (config(pad_token_id=[0]), "pad_token_id is [0]"),
    "generation config is a pipe": (instead("generation_config.json", os.mkfifo), "not a regular file"),
    "generation config is nested": (written("generation_config.json", "[" * 200_000), "nested too deep"),
    # Tokenizers.
    "tokenizer is a pipe": (instead("tokenizer.json", os.mkfifo), "tokenizer.json: not a regular file"),
    "tokenizer config is a pipe": (instead("tokenizer_config.json", os.mkfifo), "not a regular file"),
    "tokenizer is nested": (written("tokenizer.json", "[" * 200_000), "cannot read the tokenizer ('RecursionError"),
    "tokenizer is no object": (written("tokenizer.json", "null"), "cannot read the tokenizer"),
    "tokenizer of a broken pattern": (split_pattern("(((("), "cannot read the tokenizer"),
    "tokenizer of a deep pattern": (split_pattern("(" * 100_000 + ")" * 100_000), "cannot read the tokenizer"),
    "tokenizer of negative ids": (
        tokenizer_json(lambda content: content["model"].update(vocab={"a": -1})),
        "cannot read the tokenizer",
    ),
    "tokens that the model lacks": (added_token(10**6, "\x1b[2J</script>\u202e"), "the tokenizer has ids up to"),
    "200,000 tokens": (
        edited("tokenizer_config.json", extra_special_tokens=[f"<{n}>" for n in range(200_000)]),
        "extra_special_tokens has 200,000 tokens",
    ),
    "tokenizer elsewhere": (
        edited("tokenizer_config.json", fast_tokenizer_files=["../../tokenizer.1.0.json"]),
        "fast_tokenizer_files",
    ),
    "tokenizer with arguments": (edited("tokenizer_config.json", init_inputs=["/etc/passwd"]), "init_inputs"),
    "tokenizer of another format": (edited("tokenizer_config.json", gguf_file="/etc/passwd"), "gguf_file"),
    "tokenizer class is a number": (edited("tokenizer_config.json", tokenizer_class=7), "cannot read the tokenizer"),
    "tokenizer is a program": (
        lambda folder: (
            written("tokenizer.py", f"open({str(folder.parent / 'RAN')!r}, 'w')\nclass Evil: pass\n")(folder),
            edited("tokenizer_config.json", tokenizer_class="Evil", auto_map={"AutoTokenizer": ["tokenizer.Evil"] * 2})(
                folder
            ),
        ),
        "a program of its own, which is never run",
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_hostile_checkpoint_is_refused_with_a_short_message(name: str, folder: Path, tmp_path: Path) -> None:
    attack, says = ATTACKS[name]
    attack(folder)
    before = listing(folder)
    with pytest.raises(UserError) as refused:
        inspect_checkpoint("tiny", folder)
    message = str(refused.value)
    assert says in message
    assert str(folder) in message
    assert len(message) < 1500 and message.count("\n") <= 5
    assert listing(folder) == before
    assert not (tmp_path / "RAN").exists()


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_plan_reports_a_quantized_checkpoint(folder: Path, plan: Plan) -> None:
    assert plan(folder)[0] == 0
    config(quantization_config={"quant_method": "fp8"})(folder)
    code, output, err = plan(folder)
    assert (code, output) == (2, "")
    assert err.startswith(f"exitbench: {folder / 'config.json'}: quantization_config ('fp8'): quantised weights")
    assert "model.dequantize().save_pretrained(folder)" in err and "Traceback" not in err


@pytest.mark.parametrize("location", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("named", ["../../evil", "os.system", "Evil"])
def test_classes_outside_transformers_are_not_imported(location: str, named: str, folder: Path, tmp_path: Path) -> None:
    for module in ("evil.py", "Evil.py", "tokenizer.py", "tokenization_evil.py"):
        (folder / module).write_text(f"open({str(tmp_path / 'RAN')!r}, 'w')\n")
    edited(location, tokenizer_class=named)(folder)
    config(auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}, _name_or_path="../../evil")(folder)
    inspect_checkpoint("tiny", folder)
    assert not (tmp_path / "RAN").exists()


def test_chat_template_is_not_rendered_on_inspection(folder: Path, tmp_path: Path) -> None:
    escape = "{{ cycler.__init__.__globals__.os.system('touch " + str(tmp_path / "RAN") + "') }}"
    edited("tokenizer_config.json", chat_template=escape)(folder)
    (folder / "chat_template.jinja").write_text(escape)
    inspect_checkpoint("tiny", folder)
    assert not (tmp_path / "RAN").exists()


def test_pickle_files_are_never_opened(folder: Path, tmp_path: Path) -> None:
    evil = b"cos\nsystem\n(S'touch " + str(tmp_path / "RAN").encode() + b"'\ntR."
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        (folder / name).write_bytes(evil)
    inspect_checkpoint("tiny", folder)
    (folder / WEIGHTS).unlink()
    with pytest.raises(UserError, match="never pickles"):
        inspect_checkpoint("tiny", folder)
    assert not (tmp_path / "RAN").exists()


def test_inspection_does_not_write_through_symlinks(folder: Path, tmp_path: Path) -> None:
    victims = [tmp_path / "victim", tmp_path / "other"]
    for victim, name in zip(victims, (".exitbench.partial", ".exitbench.json"), strict=True):
        victim.write_text("kept")
        (folder / name).symlink_to(victim)
    inspect_checkpoint("tiny", folder)
    assert [victim.read_text() for victim in victims] == ["kept", "kept"]


def test_inspection_does_not_block_on_named_pipes(folder: Path) -> None:
    os.mkfifo(folder / ".exitbench.json")
    os.mkfifo(folder / ".exitbench.partial")
    inspect_checkpoint("tiny", folder)


def test_bundled_description_with_a_wrong_hash_is_not_trusted(folder: Path) -> None:
    honest = inspect_checkpoint("tiny", folder)
    card = json.loads((folder / ".exitbench.json").read_text())
    card["model"]["weights_sha256"] = "0" * 64
    (folder / ".exitbench.json").unlink()
    content, time_ns = (folder / WEIGHTS).read_bytes(), 1_600_000_000_123_456_789
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).write_bytes(content)  # as an archive unpacks it: with a time of its choice
    os.utime(folder / WEIGHTS, ns=(time_ns, time_ns))
    card["files"][WEIGHTS][1:] = [time_ns] * (len(card["files"][WEIGHTS]) - 1)
    (folder / ".exitbench.json").write_text(json.dumps(card))
    inspected = inspect_checkpoint("tiny", folder).model
    assert inspected == honest.model
    assert inspected.weights_sha256 == hashlib.sha256(content).hexdigest()


def test_plan_refuses_max_new_tokens_beyond_the_models_positions(folder: Path, plan: Plan, tmp_path: Path) -> None:
    code, _, err = plan(folder, budget=64)
    assert code == 2
    assert err.startswith(f"exitbench: {tmp_path / 'small.toml'}:7: [tasks.squad]")
    assert "max_new_tokens is 64, but model 'tiny' has 64 positions" in err and "at most 63" in err
    assert plan(folder, budget=63)[0] == 0


def test_plan_lists_checkpoint_notes_below_the_models_name(folder: Path, plan: Plan) -> None:
    shutil.copy(folder / WEIGHTS, folder / "old\x1b[2J_run.safetensors")
    config(eos_token_id=None)(folder)
    edited("generation_config.json", eos_token_id=None)(folder)
    for _ in range(2):  # found, and then remembered
        code, output, _ = plan(folder)
        name, strays, end, *_ = output.splitlines()
        assert (code, name) == (0, f"tiny: checkpoint {folder}")
        assert strays == r"  not read: old\x1b[2J_run.safetensors (the weights are those of model.safetensors)"
        assert end.startswith("  no end-of-sequence token: every answer runs to its budget; the tokenizer's is 1")
