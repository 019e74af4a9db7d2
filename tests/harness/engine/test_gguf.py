"""`exitbench convert`: a GGUF file becomes a checkpoint with equal weights, tokens and answers, or nothing."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer

import exitbench as eb
from exitbench.errors import UserError
from exitbench.harness.cells.prompts import render_chat
from exitbench.harness.cli.main import main
from exitbench.harness.engine.checkpoints import gguf_conversion
from exitbench.harness.engine.checkpoints.digest import inspect_checkpoint
from exitbench.harness.engine.checkpoints.gguf_conversion import convert_gguf
from exitbench.harness.engine.checkpoints.gguf_origin import name_in_results, read_origin
from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer
from exitbench.harness.planning.plan import make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.reports.front.suite_toml import stored_suite
from exitbench.results.database.connection import open_database

ROOT = Path(__file__).parents[3]
WIDTH, HEADS, KV_HEADS, HIDDEN, BLOCKS = 64, 2, 1, 96, 2
TOKENS = ["<|end|>", "<|start|>", *sorted(ByteLevel.alphabet()), "Ġt", "he", "Ġthe", "ĠĠ"]
MERGES = ["Ġ t", "h e", "Ġt he", "Ġ Ġ"]
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def tensors() -> dict[str, np.ndarray]:
    """Return random weights by their names in GGUF."""
    draw = np.random.default_rng(0)
    shapes = {"token_embd.weight": (len(TOKENS), WIDTH)}
    for block in range(BLOCKS):
        shapes |= {
            f"blk.{block}.attn_q.weight": (WIDTH, WIDTH),
            f"blk.{block}.attn_k.weight": (WIDTH // HEADS * KV_HEADS, WIDTH),
            f"blk.{block}.attn_v.weight": (WIDTH // HEADS * KV_HEADS, WIDTH),
            f"blk.{block}.attn_output.weight": (WIDTH, WIDTH),
            f"blk.{block}.ffn_gate.weight": (HIDDEN, WIDTH),
            f"blk.{block}.ffn_up.weight": (HIDDEN, WIDTH),
            f"blk.{block}.ffn_down.weight": (WIDTH, HIDDEN),
        }
    weights = {name: draw.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    norms = [*(f"blk.{block}.{norm}_norm.weight" for block in range(BLOCKS) for norm in ("attn", "ffn"))]
    return weights | {name: draw.uniform(0.5, 1.5, WIDTH).astype(np.float32) for name in (*norms, "output_norm.weight")}


def write_gguf(
    path: Path,
    edit: Callable[[gguf.GGUFWriter], object] = lambda writer: None,
    architecture: str = "llama",
    leave_out: str = "",
) -> Path:
    """Write a small GGUF file: embeddings in Q8_0, norms in F32, other weights in Q4_1."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("Tiny")
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(BLOCKS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, *[1] * (len(TOKENS) - 2)])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for name, weight in tensors().items():
        kind = Type.F32 if weight.ndim == 1 else Type.Q8_0 if name.startswith("token") else Type.Q4_1
        if name != leave_out:
            writer.add_tensor(name, gguf.quantize(weight, kind), raw_dtype=kind)
    edit(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.Q4_1.gguf")


@pytest.fixture(scope="module")
def converted(file: Path) -> Path:
    folder = file.parent / "converted"
    convert_gguf(file, folder, "float32")
    return folder


def rotated(weight: np.ndarray, heads: int) -> np.ndarray:
    """Return a query or key weight with its rows in transformers' order: rotary halves instead of pairs."""
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def test_weights_equal_those_dequantized_by_the_gguf_package(file: Path, converted: Path) -> None:
    stored = load_file(converted / "model.safetensors")
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    names = {
        "token_embd": "model.embed_tokens",
        "blk.0.attn_q": "model.layers.0.self_attn.q_proj",
        "blk.1.attn_k": "model.layers.1.self_attn.k_proj",
        "blk.1.attn_v": "model.layers.1.self_attn.v_proj",
        "blk.1.ffn_down": "model.layers.1.mlp.down_proj",
        "output_norm": "model.norm",
    }
    for name, here in names.items():
        tensor = reader[f"{name}.weight"]
        weight = gguf.dequantize(tensor.data, tensor.tensor_type)
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.rpartition(".")[2])
        assert np.array_equal(stored[f"{here}.weight"], weight if heads is None else rotated(weight, heads)), name
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}


def test_answers_equal_transformers_on_the_gguf_file(file: Path, converted: Path) -> None:
    prompts = ["the cat and the dog", "a", "The  17 houses\nof 2024"]
    reference = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    model = eb.load_model(converted)
    answers = eb.decode(model, prompts, max_new_tokens=12)
    expected = []
    for prompt in prompts:
        ids = model.tokenizer(prompt, return_tensors="pt")
        with torch.no_grad():
            output = reference.generate(**ids, max_new_tokens=12, do_sample=False)
        expected.append(tuple(output[0, ids["input_ids"].shape[1] :].tolist()))
    assert [answer.token_ids for answer in answers] == expected
    assert len({token for answer in expected for token in answer}) > 4, "the model answers always the same"


@pytest.mark.parametrize(
    "text", ["the cat", "  17 x\n\n2024", "naïve 漢字 🙂", "<|start|>user\nthe<|end|>", " the  the"]
)
def test_tokenizer_round_trips_every_text(converted: Path, text: str) -> None:
    tokenizer = load_tokenizer(converted)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(TOKENS))), "the model has as many embeddings"


def test_digits_are_split_as_the_file_says_unlike_in_transformers(file: Path, converted: Path) -> None:
    here = load_tokenizer(converted).tokenize("the  17")
    assert here == ["the"[0], "he", "ĠĠ", "1", "7"]
    there = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    assert there.tokenize("the  17") != here, "transformers reads it: no need to correct it any more"


def test_the_chat_template_and_special_tokens_are_kept(converted: Path) -> None:
    tokenizer = load_tokenizer(converted)
    rendered = render_chat(tokenizer, "Be brief.", "the cat")
    expected = "<|start|>system\nBe brief.<|end|>\n<|start|>user\nthe cat<|end|>\n<|start|>assistant\n"
    assert rendered == expected
    assert tokenizer(rendered)["input_ids"][0] == 1
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 0)


def test_results_state_the_quantization_and_the_file(file: Path, converted: Path) -> None:
    model = inspect_checkpoint("tiny", converted).model
    sha256 = gguf_conversion._digest(file)
    assert (model.name, model.source) == ("tiny-GGUF-Q4_1", f"gguf:tiny.Q4_1.gguf@{sha256}")
    assert inspect_checkpoint(model.name, converted).model == model, "from the cache, by the name of an exported suite"
    (remark, *_) = inspect_checkpoint("tiny", converted).remarks
    assert "Q4_1" in remark and "Q8_0" in remark and "scores are not the published checkpoint's" in remark
    assert name_in_results("tiny", None) == "tiny"


SUITE = """\
schema = 1
name = "converted"
seed = 1

[models.tiny]
path = "{path}"

[tasks.squad]
task = "squad"
source = "builtin"
limit = 2
max_new_tokens = 4
prompt_style = "t5"

[[sweep]]
method = "static"
grid = {{ exit_layer = [1] }}
kinds = ["quality"]
"""


def test_runs_table_and_exported_suite_name_the_quantization(file: Path, converted: Path, tmp_path: Path) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text(SUITE.format(path=converted))
    assert main(["run", str(suite), "--runs", str(tmp_path), "--no-report"]) == 0
    with open_database(tmp_path / "exitbench.duckdb") as database:
        models = database.query("SELECT DISTINCT model, model_source FROM runs").to_pylist()
        cells = database.query("SELECT cell_id FROM runs").to_pylist()
        texts = [stored_suite(database, str(cells[0]["cell_id"]), "again", place) for place in (None, converted)]
    assert models == [{"model": "tiny-GGUF-Q4_1", "model_source": f"gguf:{file.name}@{gguf_conversion._digest(file)}"}]
    without, exported = texts
    assert without is not None and 'path = "the folder of the checkpoint"' in without
    (tmp_path / "again.toml").write_text(str(exported))
    assert "[models.tiny-GGUF-Q4_1]" in str(exported) and f'path = "{converted}"' in str(exported)
    plan = make_plan(load_suite(tmp_path / "again.toml"), tmp_path / "spool", tmp_path, None)
    known = {cell["cell_id"] for cell in cells}
    assert {cell.item.cell.cell_id for group in plan.groups for cell in group.cells} <= known


def test_converted_folder_holds_only_data_files(converted: Path) -> None:
    assert {path.name for path in converted.iterdir() if not path.name.startswith(".")} == {
        *("config.json", "generation_config.json", "model.safetensors", "gguf.json"),
        *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    }
    assert [path.name for path in converted.parent.iterdir() if path.name.startswith(".")] == []


def test_files_next_to_the_gguf_file_are_not_read(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    convert_gguf(path, tmp_path / "out", "bfloat16")
    tokenizer = load_tokenizer(tmp_path / "out")
    assert tokenizer.tokenize("the cat") == ["t", "he", "Ġ", "c", "a", "t"]
    assert type(tokenizer).__name__ == "TokenizersBackend"
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-2000])
    return path


def header_only(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:300])
    return path


def linked(path: Path) -> Path:
    (path.parent / "link.gguf").symlink_to(path)
    return path.parent / "link.gguf"


def no_gguf(path: Path) -> Path:
    path.write_bytes(b"PK\x03\x04 not this")
    return path


BAD = {
    "another file": (lambda to: no_gguf(to), "not a GGUF file: it does not begin with GGUF"),
    "no file": (lambda to: to, "cannot be read (No such file"),
    "a folder": (lambda to: to.parent, "or not a regular file"),
    "a link": (lambda to: linked(write_gguf(to)), "link.gguf: a link, or not a regular file"),
    "truncated weights": (lambda to: cut(write_gguf(to)), "a truncated or damaged GGUF file"),
    "truncated header": (lambda to: header_only(write_gguf(to)), "a truncated or damaged GGUF file"),
    "unknown architecture": (
        lambda to: write_gguf(to, architecture="clip"),
        "transformers cannot read its architecture, 'clip'",
    ),
    "missing weights": (
        lambda to: write_gguf(to, leave_out="blk.1.ffn_up.weight"),
        "the weights of model.layers.1.mlp.up_proj.weight are not in the file",
    ),
    "weights that are not read": (
        lambda to: write_gguf(to, lambda writer: writer.add_tensor("rope_freqs.weight", np.ones(16, np.float32))),
        "so the result would be another model",
    ),
    "scaled positions": (
        lambda to: write_gguf(to, lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)),
        "rope.scaling.type is 'yarn'",
    ),
    "unknown tokenizer": (
        lambda to: write_gguf(to, lambda writer: writer.kv_data[0]["tokenizer.ggml.model"].__setattr__("value", "x")),
        "transformers cannot read its tokenizer",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_gets_one_message_and_nothing_is_written(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, says = BAD[case]
    (tmp_path / "files").mkdir()
    path = make(tmp_path / "files" / "model.gguf")
    assert main(["convert", str(path), str(tmp_path / "out" / "model")]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "it/s" not in line]
    assert says in said[-1] and said[-1].startswith("exitbench: ")
    assert "Traceback" not in "".join(said)
    assert not (tmp_path / "out" / "model").exists() and not list(tmp_path.glob("out/.*"))


def test_non_empty_output_folder_is_refused_and_unchanged(file: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"is there already; allowed: a new or an empty folder\."):
        convert_gguf(file, tmp_path, "float32")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_missing_gguf_package_is_reported_with_the_install_command(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert main(["convert", str(file), str(tmp_path / "out")]) == 2
    assert "pip install 'exitbench[gguf]'" in capsys.readouterr().err


def test_interrupted_conversion_leaves_no_files(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        assert [path.name for path in tmp_path.glob(".out-*/*.safetensors")] == ["model.safetensors"]
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf_conversion, "_write_tokenizer", interrupted)
    assert main(["convert", str(file), str(tmp_path / "out")]) == 130
    assert list(tmp_path.iterdir()) == []


def test_convert_prints_the_next_command(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(file), str(tmp_path / "my model")]) == 0
    said = capsys.readouterr().out
    assert "Results name the model NAME-GGUF-Q4_1." in said
    assert f"  exitbench inspect '{tmp_path / 'my model'}'\n" in said
    assert main(["inspect", str(tmp_path / "my model")]) == 0
    assert "weights dequantized from GGUF" in " ".join(capsys.readouterr().out.split())


def test_suites_of_the_packaged_model_contain_the_hub_line_that_nox_replaces() -> None:
    session = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    on_hub = re.search(r"^SMOLLM2_ON_HUB = '(.+)'$", session, re.MULTILINE)
    names = re.findall(r'^    "(.+)": SMOLLM2,$', session, re.MULTILINE)
    assert on_hub is not None and names
    for name in names:
        suite = (ROOT / "harness" / "suites" / f"{name}.toml").read_text(encoding="utf-8")
        assert suite.count("\npath = ") == suite.count(on_hub[1]) <= 1
        assert on_hub[1] in suite or "\nrecipe = " in suite, "no model of it starts from the package"


@pytest.mark.parametrize(
    ("key", "value"), [("quantization", "Q4/../x"), ("file", "a/b"), ("sha256", 7), ("tensor_types", {"Q4_1": "many"})]
)
def test_invalid_gguf_records_are_refused(converted: Path, tmp_path: Path, key: str, value: object) -> None:
    record = json.loads((converted / "gguf.json").read_text())
    (tmp_path / "gguf.json").write_text(json.dumps({**record, key: value}))
    with pytest.raises(UserError, match=rf"gguf\.json: {key} is "):
        read_origin(tmp_path)
