"""Whole trainings: the result is an ordinary checkpoint, complete or absent, and the same after a kill."""

import csv
import dataclasses
import json
import multiprocessing
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.exit_head_files import read_exit_blocks
from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.training import ensure_trained, find_trained, load_recipe, store
from exitbench.harness.training.cached_states import cached_states, state_batches
from exitbench.harness.training.data import encode, make_tokenizer, pad, read_text
from exitbench.harness.training.models import new_model, read_model
from exitbench.harness.training.objectives import ExitHeadsObjective, make_objective
from exitbench.harness.training.recipe import Recipe
from exitbench.harness.training.store import TRAINING_VERSION, ensure_all_trained, model_digest
from exitbench.harness.training.train import train
from exitbench.harness.training.trainer import COMPLETE, ExitTrainer, TrainingClock

# A fork has torch imported already; with one thread of torch it is safe.
FORK = multiprocessing.get_context("fork")
LLAMA = (
    ("num_layers = 3\nnum_decoder_layers = 3", 'family = "llama"\nnum_decoder_layers = 3'),
    ('loss = "weighted"', 'loss = "layer-skip"\nlayer_dropout = 0.2'),
)
MUON = (("warmup_steps", 'optimizer = "muon"\nmuon_learning_rate = 1e-2\nwarmup_steps'),)
SHARED = (*MUON, ("save_steps = 5", "save_steps = 5\nshared_steps = 8"))
WriteRecipe = Callable[..., Path]


def trained(path: Path, models: Path, data_dir: Path) -> Path:
    return ensure_trained(load_recipe(path), models, data_dir)


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def log_of(folder: Path) -> dict[tuple[str, str], list[float]]:
    """Return the values of a training log by metric and block, in the order of the steps."""
    results: dict[tuple[str, str], list[float]] = {}
    with (folder / "training_log.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            results.setdefault((row["metric"], row["block"]), []).append(float(row["value"]))
    return results


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the trained model that several tests start from; read only."""
    return tmp_path_factory.mktemp("models")


# ------------------------------------------------------------------------------------------ what comes out


def test_training_writes_a_standard_checkpoint_with_card_and_log(write_recipe: WriteRecipe, data_dir: Path) -> None:
    recipe, models = load_recipe(write_recipe()), data_dir / "models"
    assert find_trained(recipe, models) is None
    folder = ensure_trained(recipe, models, data_dir)

    digest = model_digest(recipe, read_text(recipe, data_dir, "seq2seq").sha256, "", TRAINING_VERSION)
    assert folder == models / f"tiny-{digest[:8]}"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder)
    text = "Le chien d'à côté court : où ?"
    ids = tokenizer(text).input_ids
    assert ids[-1] == model.config.eos_token_id == tokenizer.eos_token_id == 1
    assert tokenizer.decode(ids, skip_special_tokens=True).strip() == text
    assert model.config.decoder_start_token_id == model.config.pad_token_id == tokenizer.pad_token_id == 0
    assert model.config.vocab_size == len(tokenizer) == 320
    assert model.generate(**tokenizer("a red dog", return_tensors="pt"), max_new_tokens=3).shape[0] == 1

    card, log = json.loads((folder / "card.json").read_text()), log_of(folder)
    assert card["steps"] == 40 == len(log["loss_nats", ""])
    assert card["final_loss_nats"] == pytest.approx(log["loss_nats", ""][-1], rel=1e-4)
    assert log["loss_nats", ""][-1] < 0.7 * log["loss_nats", ""][0]
    assert all(log["block_loss_nats", block][-1] < log["block_loss_nats", block][0] for block in "123")
    assert len(card["validation"]["token_accuracy"]) == 3
    assert find_trained(recipe, models) == find_trained(recipe, data_dir / "none", models) == folder
    assert find_trained(dataclasses.replace(recipe, seed=4), models) is None
    assert sorted(path.name for path in models.iterdir() if path.is_dir()) == [folder.name]


def test_causal_training_writes_a_checkpoint_that_transformers_loads(
    write_recipe: WriteRecipe, data_dir: Path, models: Path
) -> None:
    folder = trained(write_recipe(*LLAMA), models, data_dir)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.num_hidden_layers == 3
    prompt = tokenizer("a red dog", return_tensors="pt", return_token_type_ids=False)
    assert model.generate(**prompt, max_new_tokens=3).shape[0] == 1
    losses = log_of(folder)["loss_nats", ""]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
    ("precision", "has_products", "computed"),
    [("fp32", True, "fp32"), ("bf16", True, "bf16"), ("bf16", False, "fp32")],
)
def test_bfloat16_is_computed_where_the_processor_has_fast_products_and_saved_if_requested(
    write_recipe: WriteRecipe,
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    has_products: bool,
    computed: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has_products)
    seen: set[torch.dtype] = set()

    def note(module: torch.nn.Module, _: Any, output: Any) -> None:
        if module.training and isinstance(module, torch.nn.Linear):
            seen.add(output.dtype)

    hook = torch.nn.modules.module.register_module_forward_hook(note)
    settings = f'steps = 20\nprecision = "{precision}"\nsaved_precision = "bf16"'
    folder = trained(write_recipe(("steps = 40", settings)), data_dir / "models", data_dir)
    hook.remove()
    assert seen == {torch.bfloat16 if computed == "bf16" else torch.float32}
    assert json.loads((folder / "card.json").read_text())["computed_precision"] == computed
    assert AutoModelForSeq2SeqLM.from_pretrained(folder, dtype="auto").dtype == torch.bfloat16
    losses = log_of(folder)["loss_nats", ""]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("linear", ""),
        ("linear", 'init = "copy"\nentropy_weight = 0.0\ntarget = "hard"\ntext = "documents"\n'),
        ("mlp", 'norm = "rms"\nhidden_width = 16\nentropy_weight = 0.1\nprompts = ["a red dog"]\n'),
        ("lens", 'text = "documents"\n'),
        ("residual-mlp", 'norm = "rms"\nhidden_width = 16\ntext = "documents"\n'),
        ("lens", 'text = "documents"\npositions = "all"\ncached_tokens = 300\nafter_blocks = [1, 2]\n'),
    ],
)
@pytest.mark.parametrize("family", ["t5", "llama"])
@pytest.mark.sampled(2)
def test_exit_head_training_lowers_the_loss_and_keeps_the_model_frozen(
    write_recipe: WriteRecipe, data_dir: Path, models: Path, tmp_path: Path, family: str, kind: str, settings: str
) -> None:
    base_path = write_recipe(*(LLAMA if family == "llama" else ()))
    base_text = base_path.read_text()
    base = base_path.rename(tmp_path / "base.toml")
    heads = base_text[: base_text.index("[tokenizer]")].replace('name = "tiny"', 'name = "heads"')
    heads += f'[start]\nrecipe = "{base}"\n[objective]\nloss = "exit-heads"\n'
    heads += f'[exit_heads]\nkind = "{kind}"\ncount = 2\ntexts = 20\ntext_tokens = 8\n{settings}'
    heads += "[optimisation]\nsteps = 15\nbatch_tokens = 400\nlearning_rate = 1e-2\n"
    (tmp_path / "heads.toml").write_text(heads)
    folder, frozen = trained(tmp_path / "heads.toml", models, data_dir), trained(base, models, data_dir)
    assert read_exit_blocks(folder) == (1, 2)
    assert (folder / "model.safetensors").read_bytes() == (frozen / "model.safetensors").read_bytes()
    log = log_of(folder)
    for block in "12":
        assert log["exit_head_loss", block][-1] < log["exit_head_loss", block][0]
        assert len(log["exit_head_accuracy", block]) == len(log["exit_head_entropy_nats", block]) == 15


def of_heads(base: Path, **settings: Any) -> str:
    """Return the text of a recipe that trains exit heads on the model of another recipe."""
    text = base.read_text()
    table = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    return (
        text[: text.index("[tokenizer]")].replace('name = "tiny"', 'name = "heads"')
        + f'[start]\nrecipe = "{base}"\n[objective]\nloss = "exit-heads"\n[exit_heads]\ntext = "documents"\n{table}'
        + "[optimisation]\nsteps = 30\nbatch_tokens = 60\nlearning_rate = 1e-2\nsave_steps = 7\n"
    )


@pytest.mark.parametrize("kind", ["lens", "norm", "residual-mlp"])
def test_trained_exit_heads_are_closer_to_the_last_block_than_the_lm_head(
    write_recipe: WriteRecipe, data_dir: Path, models: Path, tmp_path: Path, kind: str
) -> None:
    base = write_recipe(*LLAMA).rename(tmp_path / "base.toml")
    path = tmp_path / "heads.toml"
    path.write_text(of_heads(base, kind=kind, after_blocks=[2], init="copy", positions="all", cached_tokens=600))
    folder = trained(path, models, data_dir)
    card = json.loads((folder / "card.json").read_text())
    heads = card["validation"]["exit_heads"]
    assert heads["blocks"] == [2] == list(read_exit_blocks(folder)) and card["cached_tokens"] == 600
    assert heads["divergence_nats"][0] < 0.9 * heads["own_divergence_nats"][0]
    # The validation pairs' tokens but each text's first, read by the engine: the same shares.
    checkpoint, reference = load_checkpoint(folder), AutoModelForCausalLM.from_pretrained(folder)
    pairs = read_text(load_recipe(path), data_dir, "causal").validation
    texts = [
        torch.from_numpy(np.concatenate((example.source, example.target)))
        for example in encode(pairs, AutoTokenizer.from_pretrained(folder), 128)
    ]
    assert heads["tokens"] == sum(len(text) - 1 for text in texts)
    own, head = 0, 0
    for text in texts:
        states = reference(text[None], output_hidden_states=True)
        last = states.logits[0, :-1].argmax(-1)
        state = states.hidden_states[2][0, :-1]
        own += int((checkpoint.model.logits(state).argmax(-1) == last).sum())
        head += int((checkpoint.model.exit_logits(2, state).argmax(-1) == last).sum())
    assert heads["own_agreement"] == [pytest.approx(own / heads["tokens"])]
    assert heads["agreement"] == [pytest.approx(head / heads["tokens"])]


def test_cached_states_equal_the_frozen_models_and_appear_once_per_epoch(
    write_recipe: WriteRecipe, data_dir: Path, models: Path, tmp_path: Path
) -> None:
    base = write_recipe(*LLAMA).rename(tmp_path / "base.toml")
    path = tmp_path / "heads.toml"
    path.write_text(of_heads(base, kind="lens", after_blocks=[1], positions="all", cached_tokens=10**6))
    recipe, frozen = load_recipe(path), trained(base, models, data_dir)
    model, tokenizer = read_model(frozen)
    examples = encode([pair for pair, _ in read_text(recipe, data_dir, "causal").train], tokenizer, 128)
    objective = make_objective(recipe, model)
    assert isinstance(objective, ExitHeadsObjective)
    states = cached_states(model, objective, examples, recipe.optimisation, 0, tmp_path, lambda n_tokens: None)
    expected = []
    for example in examples:
        ids = torch.from_numpy(np.concatenate((example.source, example.target)))[None]
        with torch.no_grad():
            hidden = model(ids, output_hidden_states=True).hidden_states
        expected.append(torch.stack([hidden[1][0, :-1], hidden[-1][0, :-1]], dim=1))
    wanted = torch.cat(expected)
    assert states.shape == wanted.shape
    by_sum = [each[each.double().sum((1, 2)).argsort()] for each in (states, wanted)]
    torch.testing.assert_close(by_sum[0].sum(0), by_sum[1].sum(0), rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(by_sum[0].square().sum(0), by_sum[1].square().sum(0), rtol=1e-4, atol=1e-2)
    batches = state_batches(states, 60, seed=1, step=0)
    epoch = [next(batches)["states"] for _ in range(-(-len(states) // 60))]
    assert torch.equal(*(each.flatten(1).sort(dim=0).values for each in (torch.cat(epoch), states)))
    again = state_batches(states, 60, seed=1, step=2)
    assert torch.equal(next(again)["states"], epoch[2])
    assert not torch.equal(next(batches)["states"], epoch[0]), "every epoch has an order of its own"


def test_cached_states_are_read_out_without_dropout(write_recipe: WriteRecipe, data_dir: Path, tmp_path: Path) -> None:
    """T5 applies dropout after its final norm, which must be off here."""
    base = write_recipe(("dropout_rate = 0.0", "dropout_rate = 0.5")).rename(tmp_path / "base.toml")
    path = tmp_path / "heads.toml"
    path.write_text(of_heads(base, kind="lens", after_blocks=[1], cached_tokens=10))
    new = load_recipe(base)
    assert new.tokenizer is not None and new.architecture is not None
    pairs = [pair for pair, _ in read_text(new, data_dir, "seq2seq").train]
    model = new_model(new.architecture, make_tokenizer(new.tokenizer, pairs))
    objective = make_objective(load_recipe(path), model)
    states = torch.randn(6, 2, 32, generator=torch.Generator().manual_seed(0))
    losses = {float(objective(model.train(), {"states": states}, 0)[0]) for _ in range(3)}
    assert len(losses) == 1


@pytest.mark.parametrize("while_caching", [True, False])
def test_interrupted_training_on_cached_states_resumes_to_the_same_heads(
    write_recipe: WriteRecipe,
    data_dir: Path,
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    while_caching: bool,
) -> None:
    base = write_recipe(*LLAMA).rename(tmp_path / "base.toml")
    path, steps = tmp_path / "heads.toml", list[int]()
    path.write_text(of_heads(base, kind="lens", after_blocks=[1, 2], positions="all", cached_tokens=300))
    recipe = load_recipe(path)
    whole, other = trained(path, models, data_dir), tmp_path / "other"
    shutil.copytree(trained(base, models, data_dir), other / trained(base, models, data_dir).name)

    def stop(step: int) -> None:
        steps.append(step)
        if step >= (2 if while_caching else recipe.cache_steps + 16):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_trained(recipe, other, data_dir, stop)
    assert recipe.cache_steps == 5 and steps[-1] == (2 if while_caching else 21)
    states_run = list[int]()
    run = ExitHeadsObjective.states

    def noted(objective: Any, model: Any, batch: Any) -> Any:
        states_run.append("states" not in batch)
        return run(objective, model, batch)

    monkeypatch.setattr(ExitHeadsObjective, "states", noted)
    resumed = ensure_trained(recipe, other, data_dir, steps.append)
    assert steps[-1] == recipe.cache_steps + 30
    assert (resumed / "exit_heads.safetensors").read_bytes() == (whole / "exit_heads.safetensors").read_bytes()
    assert (resumed / "training_log.csv").read_text() == (whole / "training_log.csv").read_text()
    # A batch that is in the file is not run again; the last runs are those of the validation.
    assert (states_run.index(False) > 0) == while_caching


def test_start_option_overrides_the_start_checkpoint(
    write_recipe: WriteRecipe, data_dir: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "get_context", lambda method: FORK)
    base = write_recipe(*LLAMA).rename(tmp_path / "base.toml")
    frozen = shutil.copytree(trained(base, models, data_dir), tmp_path / "elsewhere")
    path = tmp_path / "heads.toml"
    text = of_heads(base, kind="norm", after_blocks=[1], cached_tokens=100)
    path.write_text(text.replace(f'recipe = "{base}"', 'checkpoint = "none"'))
    (folder,) = ensure_all_trained([load_recipe(path)], tmp_path / "new", data_dir, 1, frozen)
    assert (folder / "model.safetensors").read_bytes() == (frozen / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match=r"--start is for recipes with the same \[start\] checkpoint, not for tiny"):
        ensure_all_trained([load_recipe(base)], tmp_path / "new", data_dir, 1, frozen)


def test_shallow_deep_recipe_logs_its_distillation_loss(write_recipe: WriteRecipe, data_dir: Path) -> None:
    objective = (
        'loss = "shallow-deep"\nshallow_blocks = 1\ndistillation = "closest-code"\ndistillation_transform = true'
    )
    path = write_recipe(('loss = "weighted"', objective), ("steps = 40", "steps = 15"))
    folder = trained(path, data_dir / "models", data_dir)
    log = log_of(folder)
    assert log["distillation_loss", ""][-1] < log["distillation_loss", ""][0]
    assert {block for metric, block in log if metric == "block_loss_nats"} == {"1", "3"}
    # The linear map of the shallow side is no part of the model.
    AutoModelForSeq2SeqLM.from_pretrained(folder)


def test_training_can_start_from_any_checkpoint_folder(
    write_recipe: WriteRecipe, data_dir: Path, models: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained(write_recipe(), models, data_dir), data_dir / "start")
    text = write_recipe(("steps = 40", "steps = 6")).read_text()
    path = tmp_path / "further.toml"
    path.write_text(
        text[: text.index("[tokenizer]")] + '[start]\ncheckpoint = "start"\n' + text[text.index("[objective]") :]
    )
    further = log_of(trained(path, tmp_path / "models", data_dir))["loss_nats", ""]
    assert further[0] < 0.7 * log_of(data_dir / "start")["loss_nats", ""][0]


# ------------------------------------------------------------------------------------------ interrupted


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param((), marks=pytest.mark.exhaustive),
        LLAMA,
        pytest.param(MUON, marks=pytest.mark.exhaustive),
        SHARED,
    ],
    ids=["adamw", "llama", "muon", "shared"],
)
def test_killed_training_resumes_to_the_same_weights_and_log(
    write_recipe: WriteRecipe, data_dir: Path, changes: tuple[tuple[str, str], ...]
) -> None:
    dropout = ("dropout_rate = 0.0", "dropout_rate = 0.1")
    path = write_recipe(("steps = 40", "steps = 18\nsave_steps = 5"), dropout, *changes)
    whole = trained(path, data_dir / "whole", data_dir)
    process = FORK.Process(target=trained, args=(path, data_dir / "killed", data_dir))
    process.start()
    deadline = time.monotonic() + 300
    while not list((data_dir / "killed").glob(f".tiny-*/checkpoint-*/{COMPLETE}")):
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.join()
    assert list((data_dir / "killed").glob("[!.]*")) == []
    assert find_trained(load_recipe(path), data_dir / "killed") is None

    resumed = trained(path, data_dir / "killed", data_dir)
    assert (resumed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert (resumed / "training_log.csv").read_text() == (whole / "training_log.csv").read_text()
    assert [entry.name for entry in (data_dir / "killed").iterdir() if entry.is_dir()] == [resumed.name]


def test_incomplete_resume_point_is_ignored(write_recipe: WriteRecipe, data_dir: Path, models: Path) -> None:
    path = write_recipe(("steps = 40", "steps = 6"))
    whole = trained(path, models, data_dir)
    half = data_dir / "models" / f".{whole.name}.partial" / "checkpoint-5"
    half.mkdir(parents=True)
    (half / "trainer_state.json").write_text("{")
    resumed = trained(path, data_dir / "models", data_dir)
    assert (resumed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_training_killed_after_its_last_step_resumes_without_another_step(
    write_recipe: WriteRecipe, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_recipe(("steps = 40", "steps = 7\nsave_steps = 2"))
    whole = trained(path, data_dir / "whole", data_dir)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("exitbench.harness.training.train.block_quality", interrupted)
        trained(path, data_dir / "killed", data_dir)
    with monkeypatch.context() as patch:
        patch.setattr(ExitTrainer, "training_step", interrupted)
        resumed = trained(path, data_dir / "killed", data_dir)
    assert (resumed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert (resumed / "training_log.csv").read_text() == (whole / "training_log.csv").read_text()


def test_card_includes_the_time_spent_before_an_interruption(
    write_recipe: WriteRecipe, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_recipe(("steps = 40", "steps = 4\nsave_steps = 2"), ("warmup_steps = 5\n", ""))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("exitbench.harness.training.train.block_quality", interrupted)
        trained(path, data_dir / "models", data_dir)
    (complete,) = (data_dir / "models").glob(f".tiny-*/checkpoint-4/{COMPLETE}")
    complete.write_text("[1000.0, 500.0]")
    card = json.loads((trained(path, data_dir / "models", data_dir) / "card.json").read_text())
    assert 1000 < card["wall_seconds"] < 1100
    assert 500 < card["cpu_seconds"] < 600


# ------------------------------------------------------------------------------------------ out of memory


class OutOfMemoryObjective:
    """Objective that raises an out-of-memory error for batches of more than ``most_rows`` rows."""

    extras = None

    def __init__(self, recipe: Recipe, model: Any, most_rows: int) -> None:
        self.inner, self.most_rows, self.seen = make_objective(recipe, model), most_rows, list[int]()

    def __call__(self, model: Any, batch: Any, step: int) -> Any:
        self.seen.append(len(batch["labels"]))
        if len(batch["labels"]) > self.most_rows:
            raise torch.OutOfMemoryError("no more")
        return self.inner(model, batch, step)


def test_batch_that_exceeds_memory_is_split_with_the_same_result(
    write_recipe: WriteRecipe, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = load_recipe(write_recipe(("steps = 40", "steps = 1"), ("warmup_steps = 5\n", "")))
    text = read_text(recipe, data_dir, "seq2seq")
    assert recipe.tokenizer is not None and recipe.architecture is not None
    tokenizer = make_tokenizer(recipe.tokenizer, [pair for pair, _ in text.train])
    rows = encode([pair for pair, _ in text.train], tokenizer, 64)[:7]
    weights, seen = [], []
    for most_rows in (7, 2):
        torch.manual_seed(0)
        model = new_model(recipe.architecture, tokenizer)
        objective = OutOfMemoryObjective(recipe, model, most_rows)
        batches = lambda _: iter([pad(rows, causal=False)] * 2)  # noqa: E731
        folder = tmp_path / str(most_rows)
        trainer = ExitTrainer(
            model, objective, batches, recipe.optimisation, folder, 0, lambda step: None, TrainingClock(None)
        )
        trainer.train()
        weights.append(model.decoder.block[0].layer[0].SelfAttention.q.weight.detach().clone())
        seen.append(objective.seen)
    assert seen == [[7], [7, 4, 2, 2, 3, 2, 1]]
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=1e-5)
    assert "a batch of 7 rows does not fit into memory; trying 4." in capsys.readouterr().err


def test_single_row_that_exceeds_memory_is_an_error(write_recipe: WriteRecipe, data_dir: Path, tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(("steps = 40", "steps = 1"), ("warmup_steps = 5\n", "")))
    assert recipe.tokenizer is not None and recipe.architecture is not None
    tokenizer = make_tokenizer(recipe.tokenizer, [pair for pair, _ in read_text(recipe, data_dir, "seq2seq").train])
    from exitbench.harness.training.data import Example

    example = Example(torch.tensor([5, 1]).numpy(), torch.tensor([6, 1]).numpy())
    model = new_model(recipe.architecture, tokenizer)
    batches = lambda _: iter([pad([example], causal=False)])  # noqa: E731
    trainer = ExitTrainer(
        model,
        OutOfMemoryObjective(recipe, model, 0),
        batches,
        recipe.optimisation,
        tmp_path / "work",
        0,
        lambda step: None,
        TrainingClock(None),
    )
    with pytest.raises(UserError, match="a single pair does not fit"):
        trainer.train()


# ------------------------------------------------------------------------------------------ the store


def test_trained_model_is_reused_until_its_data_changes(write_recipe: WriteRecipe, data_dir: Path) -> None:
    path, models = write_recipe(("steps = 40", "steps = 6")), data_dir / "models"
    first = trained(path, models, data_dir)
    stamp = (first / "card.json").stat().st_mtime_ns
    assert trained(path, models, data_dir) == first
    assert (first / "card.json").stat().st_mtime_ns == stamp
    (data_dir / "val.fr").write_text("un chat\nun chien\n")
    assert trained(path, models, data_dir) != first


def test_the_same_recipe_gives_the_same_weights(write_recipe: WriteRecipe, data_dir: Path, models: Path) -> None:
    path = write_recipe(("steps = 40", "steps = 6"))
    folders = (models, data_dir / "models")
    weights = [(trained(path, folder, data_dir) / "model.safetensors").read_bytes() for folder in folders]
    assert weights[0] == weights[1]


def test_two_concurrent_processes_train_a_model_once(
    write_recipe: WriteRecipe, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, models, log = write_recipe(("steps = 40", "steps = 6")), data_dir / "models", tmp_path / "log"

    def logged(*arguments: Any) -> None:
        with log.open("a") as file:
            file.write("trained\n")
        train(*arguments)

    monkeypatch.setattr("exitbench.harness.training.train.train", logged)
    both = [FORK.Process(target=trained, args=(path, models, data_dir)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert log.read_text() == "trained\n"
    assert len(list(models.glob("[!.]*"))) == 1


def test_model_of_another_training_version_or_start_is_not_reused(
    write_recipe: WriteRecipe, data_dir: Path, models: Path, tmp_path: Path
) -> None:
    recipe, copies = load_recipe(write_recipe(("steps = 40", "steps = 6"))), tmp_path / "copies"
    model = ensure_trained(recipe, models, data_dir)
    card = Path(shutil.copytree(model, copies / model.name)) / "card.json"
    content = json.loads(card.read_text())
    for change in ({"training_version": TRAINING_VERSION - 1}, {"start_recipe": content["recipe"]}):
        card.write_text(json.dumps({**content, **change}))
        assert find_trained(recipe, copies) is None
    card.write_text(json.dumps(content))
    assert find_trained(recipe, copies) == card.parent


def test_non_finite_loss_is_an_error_and_leaves_no_model(write_recipe: WriteRecipe, data_dir: Path) -> None:
    path = write_recipe(("learning_rate = 1e-2", "learning_rate = 1e30"), ("steps = 40", "steps = 12"))
    with pytest.raises(UserError, match="Lower the learning rates"):
        trained(path, data_dir / "models", data_dir)
    assert list((data_dir / "models").glob("[!.]*")) == []


def test_missing_data_is_a_user_error_and_leaves_no_folder(write_recipe: WriteRecipe, data_dir: Path) -> None:
    (data_dir / "val.fr").unlink()
    with pytest.raises(UserError, match=r"val\.fr"):
        trained(write_recipe(), data_dir / "models", data_dir)
    assert not (data_dir / "models").exists()


def test_every_block_steps_train_all_blocks_before_the_chosen_loss(write_recipe: WriteRecipe, data_dir: Path) -> None:
    short, asked = ("steps = 40", "steps = 9"), ('loss = "weighted"', 'loss = "last"\nevery_block_steps = 7')
    both = log_of(trained(write_recipe(short, asked), data_dir / "models", data_dir))
    every = log_of(trained(write_recipe(short), data_dir / "models", data_dir))
    assert both["loss_nats", ""][:7] == every["loss_nats", ""][:7]
    assert [len(both["block_loss_nats", block]) for block in "123"] == [7, 7, 9]
    assert both["loss_nats", ""][8] == pytest.approx(both["block_loss_nats", "3"][8])
