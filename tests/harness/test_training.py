"""Training: what a recipe may say, what the losses are, and that a model folder is complete or absent."""

import dataclasses
import gzip
import json
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tqdm import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, T5Config, T5ForConditionalGeneration

from exitbench.errors import UserError
from exitbench.harness.training import ensure_trained, find_trained, load_recipe, recipe_names
from exitbench.harness.training.__main__ import main
from exitbench.harness.training.data import Example, curriculum, cut_batches, epochs, pad, read_text
from exitbench.harness.training.losses import IGNORED, block_weights, head_loss, readable_states
from exitbench.harness.training.recipe import Recipe
from exitbench.harness.training.store import model_digest
from exitbench.harness.training.train import TRAINING_VERSION, block_quality, joint_loss, optimise, train

# A fork has torch imported already; with one thread of torch it is safe.
FORK = multiprocessing.get_context("fork")
RECIPE = """\
name = "tiny"
seed = 3

[[train]]
task = "wmt-en-fr"
source = "local"
files = { en = "train.en.gz", fr = "train.fr.gz" }
repeat = 2

[[validation]]
task = "wmt-en-fr"
source = "local"
files = { en = "val.en", fr = "val.fr" }

[tokenizer]
kind = "bpe"
vocab_size = 320

[architecture]
d_model = 32
d_kv = 8
d_ff = 64
num_heads = 4
num_layers = 3
num_decoder_layers = 3
dropout_rate = 0.0

[optimisation]
loss = "weighted"
steps = 40
batch_tokens = 400
learning_rate = 1e-2
warmup_steps = 5
"""
ENGLISH = ("a red dog", "the cat", "two boys", "sleeps", "runs", "sees a car", "in the park", "at night")
FRENCH = ("un chien rouge", "le chat", "deux garçons", "dort", "court", "voit une auto", "dans le parc", "la nuit")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Sentences of three phrases, translated phrase by phrase; two training lines are in the validation file too."""
    folder = tmp_path / "data"
    folder.mkdir()
    triples = [(i, j, k) for i in range(3) for j in range(3, 6) for k in range(6, 8)] * 2
    random.Random(0).shuffle(triples)
    english = [" ".join(ENGLISH[n] for n in triple) for triple in triples]
    french = [" ".join(FRENCH[n] for n in triple) for triple in triples]
    for side, lines in (("en", english), ("fr", french)):
        with gzip.open(folder / f"train.{side}.gz", "wt", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        (folder / f"val.{side}").write_text("".join(f"{line}\n" for line in lines[:2]), encoding="utf-8")
    return folder


@pytest.fixture
def write_recipe(tmp_path: Path) -> Callable[..., Path]:
    """Write the tiny recipe with some of its text replaced."""

    def write(*changes: tuple[str, str]) -> Path:
        text = RECIPE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        path = tmp_path / "tiny.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def tiny_model() -> T5ForConditionalGeneration:
    torch.manual_seed(1)
    config = T5Config(
        vocab_size=50, d_model=16, d_kv=4, d_ff=32, num_heads=4, num_layers=1, num_decoder_layers=4,
        dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config).eval()


def examples(count: int, seed: int = 0) -> list[Example]:
    """Random examples whose target is their source."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 9, (count,), generator=rng).tolist()
    ids = [torch.randint(3, 50, (n,), generator=rng).numpy() for n in lengths]
    return [Example(row, row) for row in ids]


# ---- recipes ----


def test_every_shipped_recipe_reads_and_is_called_as_its_file() -> None:
    assert recipe_names()
    assert [load_recipe(name).name for name in recipe_names()] == recipe_names()


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (("d_ff", "d_fff"), "d_fff = 64", "Did you mean 'd_ff'?"),
        (("steps = 40", "steps = 0"), "steps = 0", "Allowed: 1 to"),
        (("steps = 40", 'steps = "many"'), 'steps = "many"', "whole number"),
        (('loss = "weighted"', 'loss = "wieghted"'), "wieghted", "Did you mean 'weighted'?"),
        (('kind = "bpe"', 'kind = "builtin"'), "[tokenizer]", "only with it"),
        (("warmup_steps = 5", "warmup_steps = 40"), "warmup_steps = 40", "fewer than steps"),
        (('"val.fr" }', '"val.fr" }\nrepaet = 2'), "repaet", "Did you mean 'repeat'?"),
        (("num_layers = 3", "num_layers = 2"), "num_layers = 2", "at least num_decoder_layers"),
        (("seed = 3", "seed = -3"), "seed = -3", "0 or more"),
    ],
)
def test_a_mistake_in_a_recipe_is_named_with_its_line(
    write_recipe: Callable[..., Path], change: tuple[str, str], line: str, message: str
) -> None:
    path = write_recipe(change)
    with pytest.raises(UserError) as caught:
        load_recipe(path)
    number = next(n for n, text in enumerate(path.read_text().splitlines(), start=1) if line in text)
    assert str(caught.value).startswith(f"{path}:{number}:")
    assert message in str(caught.value)


def test_an_unknown_recipe_suggests_a_shipped_one() -> None:
    with pytest.raises(UserError, match="Did you mean 'multi30k-en-fr'"):
        load_recipe("multi30k-enfr")


def test_a_prompt_is_trained_on_once_and_never_if_it_is_validated_on(
    write_recipe: Callable[..., Path], data_dir: Path
) -> None:
    text = read_text(load_recipe(write_recipe()), data_dir)
    prompts = [pair.prompt for pair, _ in text.train]
    held_out = {pair.prompt for pair in text.validation}
    assert len(prompts) == len(set(prompts)) == 18 - len(held_out)
    assert not held_out & set(prompts)
    assert {source.repeat for _, source in text.train} == {2}


# ---- losses ----


def test_weights_of_the_joint_loss_are_calms() -> None:
    assert block_weights(4, "weighted").tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert block_weights(4, "last").tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("tokens", [7, 1100])
def test_head_loss_and_its_gradients_equal_torchs(tokens: int, smoothing: float) -> None:
    torch.manual_seed(0)
    states, head = torch.randn(tokens, 12, requires_grad=True), torch.randn(30, 12, requires_grad=True)
    gold = torch.randint(0, 30, (tokens,))
    reference = F.cross_entropy(states @ head.T, gold, label_smoothing=smoothing)
    wanted = torch.autograd.grad(3 * reference, (states, head))
    loss = head_loss(states, head, gold, smoothing)
    got = torch.autograd.grad(3 * loss, (states, head))
    torch.testing.assert_close(loss, reference)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


def test_the_joint_loss_equals_one_written_out_token_by_token(tiny_model: T5ForConditionalGeneration) -> None:
    batch = pad(examples(5))
    got = joint_loss(tiny_model, batch, block_weights(4, "weighted"), 0.0)

    seen: list[torch.Tensor] = []
    hooks = [b.register_forward_hook(lambda _m, _i, out: seen.append(out[0])) for b in tiny_model.decoder.block]
    tiny_model(input_ids=batch.source, attention_mask=batch.source_mask, labels=batch.target)
    for hook in hooks:
        hook.remove()
    total = 0.0
    for depth, hidden in enumerate(seen, start=1):
        logits = tiny_model.lm_head(tiny_model.decoder.final_layer_norm(hidden) * 16**-0.5)
        log_p = logits.log_softmax(-1)
        tokens = [
            -log_p[row, t, gold].item()
            for row, golds in enumerate(batch.target.tolist())
            for t, gold in enumerate(golds)
            if gold != IGNORED
        ]
        total += depth / 10 * sum(tokens) / len(tokens)
    assert got.item() == pytest.approx(total, rel=1e-5)


def test_the_last_readable_state_is_what_transformers_reads(tiny_model: T5ForConditionalGeneration) -> None:
    batch = pad(examples(5))
    states = readable_states(tiny_model, batch.source, batch.source_mask, batch.target)
    logits = tiny_model(input_ids=batch.source, attention_mask=batch.source_mask, labels=batch.target).logits
    torch.testing.assert_close(tiny_model.lm_head(states[-1]), logits[batch.target != IGNORED])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_weighted_loss_teaches_every_block(
    tiny_model: T5ForConditionalGeneration, write_recipe: Callable[..., Path], precision: str
) -> None:
    path = write_recipe(("steps = 40", f'steps = 60\nprecision = "{precision}"'))
    batches = [pad(examples(16))]
    before = block_quality(tiny_model, batches)
    optimise(tiny_model, iter(batches * 60), load_recipe(path).optimisation, tqdm(disable=True))
    after = block_quality(tiny_model, batches)
    assert all(new < 0.8 * old for new, old in zip(after.loss_nats, before.loss_nats, strict=True))
    assert all(new > old for new, old in zip(after.token_accuracy, before.token_accuracy, strict=True))
    assert {p.dtype for p in tiny_model.parameters()} == {torch.float32}


# ---- batches ----


def test_batches_hold_every_example_once_and_no_more_tokens_than_allowed() -> None:
    everything = examples(300)
    batches = cut_batches(everything, 120)
    assert sorted(id(e) for batch in batches for e in batch) == sorted(id(e) for e in everything)
    assert max(pad(b).source.numel() + pad(b).target.numel() for b in batches) <= 120
    assert len(batches) < 40  # about 3300 tokens: batches are filled


def test_a_curriculum_shows_later_portions_from_their_step_on_and_never_drops_one() -> None:
    early = [Example(np.array([5, 1]), np.array([6, 1])) for _ in range(12)]
    late = [Example(np.array([7, 1]), np.array([8, 1])) for _ in range(12)]
    stream = curriculum([(0, early), (5, late)], batch_tokens=16, seed=0)
    shown = [set(next(stream).source[:, 0].tolist()) for _ in range(17)]
    assert shown[:5] == [{5}] * 5
    assert set().union(*shown[5:]) == {5, 7}


def test_an_epoch_shows_everything_once_and_the_next_in_another_order() -> None:
    everything = examples(100)
    count = len(cut_batches(everything, 120))
    stream = epochs(everything, 120, seed=0)
    first, second = ([next(stream).source for _ in range(count)] for _ in range(2))
    again = epochs(everything, 120, seed=0)
    assert all(torch.equal(a, next(again).source) for a in first)
    assert sum(int((a > 0).sum()) for a in first) == sum(len(e.source) for e in everything)
    assert not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, second, strict=True))


# ---- identity ----


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to every leaf of a nested dataclass."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), (*path, field.name))
    elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        yield from leaves(value[0], (*path, 0))
    else:
        yield path


def changed(value: Any, path: tuple[Any, ...]) -> Any:
    """The nested dataclass with one leaf made different."""
    if not path:
        return (
            value + 1 if isinstance(value, int | float) else (*value, "x") if isinstance(value, tuple) else value + "x"
        )
    if isinstance(value, tuple):
        return (changed(value[0], path[1:]), *value[1:])
    return dataclasses.replace(value, **{path[0]: changed(getattr(value, path[0]), path[1:])})


def test_the_digest_changes_with_every_field_the_data_and_the_code(write_recipe: Callable[..., Path]) -> None:
    recipe = load_recipe(write_recipe())
    paths = list(leaves(recipe))
    assert len(paths) > 35
    variants = [model_digest(changed(recipe, path), "a", 1) for path in paths]
    variants += [model_digest(recipe, "a", 1), model_digest(recipe, "b", 1), model_digest(recipe, "a", 2)]
    assert len(set(variants)) == len(variants)


# ---- whole runs ----


def test_a_tiny_recipe_trains_into_an_ordinary_checkpoint(write_recipe: Callable[..., Path], data_dir: Path) -> None:
    recipe = load_recipe(write_recipe())
    models = data_dir / "models"
    assert find_trained(recipe, models) is None
    folder = ensure_trained(recipe, models, data_dir, progress=False)

    digest = model_digest(recipe, read_text(recipe, data_dir).sha256, TRAINING_VERSION)
    assert folder == models / digest[:16]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder)
    text = "Le chien d'à côté court : où ?"
    ids = tokenizer(text).input_ids
    assert ids[-1] == model.config.eos_token_id == tokenizer.eos_token_id == 1
    assert tokenizer.decode(ids, skip_special_tokens=True).strip() == text
    assert model.config.decoder_start_token_id == model.config.pad_token_id == tokenizer.pad_token_id == 0
    assert model.config.vocab_size == len(tokenizer) == 320
    assert model.generate(**tokenizer("a red dog", return_tensors="pt"), max_new_tokens=3).shape[0] == 1

    card = json.loads((folder / "card.json").read_text())
    assert card["loss_curve"][-1][1] < 0.7 * card["loss_curve"][0][1]
    assert card["loss_curve"][-1][0] == card["steps"] == 40
    assert len(card["validation"]["token_accuracy"]) == 3
    assert find_trained(recipe, models) == folder
    assert find_trained(dataclasses.replace(recipe, seed=4), models) is None


def test_a_trained_model_is_reused_and_other_data_trains_anew(
    write_recipe: Callable[..., Path], data_dir: Path
) -> None:
    recipe = load_recipe(write_recipe(("steps = 40", "steps = 6")))
    models = data_dir / "models"
    first = ensure_trained(recipe, models, data_dir, progress=False)
    stamp = (first / "card.json").stat().st_mtime_ns
    assert ensure_trained(recipe, models, data_dir, progress=False) == first
    assert (first / "card.json").stat().st_mtime_ns == stamp
    (data_dir / "val.fr").write_text("un chat\nun chien\n")
    assert ensure_trained(recipe, models, data_dir, progress=False) != first


def test_the_same_recipe_gives_the_same_weights(write_recipe: Callable[..., Path], data_dir: Path) -> None:
    recipe = load_recipe(write_recipe(("steps = 40", "steps = 6")))
    weights = [
        (ensure_trained(recipe, data_dir / name, data_dir, progress=False) / "model.safetensors").read_bytes()
        for name in ("one", "two")
    ]
    assert weights[0] == weights[1]


def test_a_kill_leaves_nothing_that_looks_like_a_model_and_the_next_run_cleans_up(
    write_recipe: Callable[..., Path], data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, models = load_recipe(write_recipe(("steps = 40", "steps = 1000000"))), data_dir / "models"
    process = FORK.Process(target=ensure_trained, args=(recipe, models, data_dir, False))
    process.start()
    try:
        deadline = time.monotonic() + 60
        while not list(models.glob(".*-*")):
            assert process.is_alive() and time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.kill()
        process.join()
    assert list(models.glob("[!.]*")) == []
    assert find_trained(recipe, models) is None

    digest = model_digest(recipe, read_text(recipe, data_dir).sha256, TRAINING_VERSION)[:16]
    assert len(list(models.glob(f".{digest}-*"))) == 1
    monkeypatch.setattr("exitbench.harness.training.train.optimise", lambda *_: [(1, 0.0)])
    assert ensure_trained(recipe, models, data_dir, progress=False).name == digest
    assert list(models.glob(f".{digest}-*")) == []


def test_two_processes_train_a_model_once(
    write_recipe: Callable[..., Path], data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, models, log = load_recipe(write_recipe(("steps = 40", "steps = 6"))), data_dir / "models", tmp_path / "log"

    def logged(*arguments: Any) -> None:
        with log.open("a") as file:
            file.write("trained\n")
        train(*arguments)

    monkeypatch.setattr("exitbench.harness.training.train.train", logged)
    both = [FORK.Process(target=ensure_trained, args=(recipe, models, data_dir, False)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert log.read_text() == "trained\n"
    assert len(list(models.glob("[!.]*"))) == 1


def test_the_command_prints_the_folder_or_the_mistake(
    write_recipe: Callable[..., Path],
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, models = write_recipe(("steps = 40", "steps = 6")), data_dir / "models"
    arguments = ["training", str(path), "--models-dir", str(models), "--threads", "1"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert main() == 2
    assert "data" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*arguments, "--data-dir", str(data_dir)])
    assert main() == 0
    printed = capsys.readouterr()
    assert (Path(printed.out.strip()) / "model.safetensors").is_file()
    assert "6/6" in printed.err


def test_missing_data_is_the_users_error_and_leaves_nothing(write_recipe: Callable[..., Path], data_dir: Path) -> None:
    (data_dir / "val.fr").unlink()
    with pytest.raises(UserError, match=r"val\.fr"):
        ensure_trained(load_recipe(write_recipe()), data_dir / "models", data_dir, progress=False)
    assert not (data_dir / "models").exists()


def test_built_in_data_needs_no_folder(write_recipe: Callable[..., Path]) -> None:
    source = 'source = "builtin"\ndocuments = 20'
    path = write_recipe(
        ('source = "local"\nfiles = { en = "train.en.gz", fr = "train.fr.gz" }', source),
        ('source = "local"\nfiles = { en = "val.en", fr = "val.fr" }', source + '\nsplit = "validation"'),
        ('kind = "bpe"\nvocab_size = 320', 'kind = "builtin"'),
    )
    recipe: Recipe = load_recipe(path)
    text = read_text(recipe, None)
    assert len(text.validation) == 20
    assert len(text.train) == len({pair.prompt for pair, _ in text.train}) <= 20
