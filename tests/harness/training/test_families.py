"""Families of transformers, each trained in seconds: both transformers and this engine can load the checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.exit_head_files import read_exit_blocks
from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Request
from exitbench.harness.engine.model.exit_heads import exit_logits
from exitbench.harness.training import ensure_trained, load_recipe
from exitbench.harness.training.block_states import decoder_states
from exitbench.harness.training.data import make_tokenizer
from exitbench.harness.training.losses import block_weights
from exitbench.harness.training.models import new_model
from exitbench.harness.training.objectives import ExitHeadsObjective, JointObjective
from exitbench.harness.training.recipe import ArchitectureRecipe, ExitHeadsRecipe, OptimisationRecipe, TokenizerRecipe
from exitbench.harness.training.trainer import make_optimizer
from exitbench.methods.registry import baseline_method, get_method

ENCODER_DECODERS, CAUSAL = ("marian", "pegasus"), ("gpt_neox", "phi")
FAMILIES = (*ENCODER_DECODERS, *CAUSAL)
LONG, SHORT = ("steps = 40", "steps = 60"), ("steps = 40", "steps = 10\nsave_steps = 4")
SLOWER = ("learning_rate = 1e-2", "learning_rate = 4e-3")
DROPOUT = ("dropout_rate = 0.0", "dropout_rate = 0.1")
PROMPTS = ("a red dog sleeps in the park", "the cat runs at night", "two boys")
NEW_TOKENS = 12
WriteRecipe = Callable[..., Path]


def of_family(family: str) -> tuple[str, str]:
    """Return the replacement that turns the tiny recipe into one of another family."""
    depths = "num_layers = 3\nnum_decoder_layers = 3" if family in ENCODER_DECODERS else "num_decoder_layers = 3"
    return "num_layers = 3\nnum_decoder_layers = 3", f'family = "{family}"\n{depths}'


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for the families' models, shared by all tests."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def trained(write_recipe: WriteRecipe, data_dir: Path, models: Path) -> Callable[[str], Path]:
    return lambda family: ensure_trained(
        load_recipe(write_recipe(of_family(family), LONG, SLOWER, DROPOUT)), models, data_dir
    )


def plain(folder: Path, family: str) -> Any:
    auto = AutoModelForSeq2SeqLM if family in ENCODER_DECODERS else AutoModelForCausalLM
    return auto.from_pretrained(folder).eval()


def answers(checkpoint: Checkpoint, prompts: list[list[int]], method: Any) -> list[list[int]]:
    """Return the engine's answers, one prompt at a time, to be compared with those of transformers."""
    parts = method.parts(checkpoint.model.n_blocks)
    return [
        list(decode(checkpoint, prefill(checkpoint.model, [Request(prompt)], NEW_TOKENS), parts)[0].token_ids)
        for prompt in prompts
    ]


def generated(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Return transformers' own answers, without the prompt or the start token."""
    result = [
        model.generate(torch.tensor([p]), max_new_tokens=NEW_TOKENS, do_sample=False)[0].tolist() for p in prompts
    ]
    return [ids[1 if model.config.is_encoder_decoder else len(p) :] for ids, p in zip(result, prompts, strict=True)]


@pytest.mark.parametrize("family", FAMILIES)
def test_trained_checkpoints_of_every_family_decode_as_in_transformers(trained: Any, family: str) -> None:
    folder = trained(family)
    model, ours = plain(folder, family), load_checkpoint(folder)
    assert model.config.model_type == family and ours.engine == "hosted"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = [tokenizer(prompt).input_ids for prompt in PROMPTS]
    assert all(prompt[-1] == tokenizer.eos_token_id for prompt in prompts)
    wanted = generated(model, prompts)
    assert answers(ours, prompts, baseline_method()()) == wanted
    assert answers(ours, prompts, get_method("calm-softmax").from_params({"threshold": 1.0})) == wanted
    assert len({token for answer in wanted for token in answer}) > 2, "one token again and again would prove little"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_and_its_card_lists_every_block(trained: Any, family: str) -> None:
    folder = trained(family)
    card = json.loads((folder / "card.json").read_text())
    accuracy, loss_nats = card["validation"]["token_accuracy"], card["validation"]["loss_nats"]
    assert len(accuracy) == len(loss_nats) == 3
    assert max(loss_nats) < 5.77 - 0.5, "below the 5.77 nats of a guess among 320 tokens, at every block"


@pytest.mark.parametrize("family", FAMILIES)
def test_interrupted_training_resumes_to_the_same_weights(
    write_recipe: WriteRecipe, models: Path, data_dir: Path, family: str
) -> None:
    recipe = load_recipe(write_recipe(of_family(family), SHORT, SLOWER, DROPOUT))
    whole = ensure_trained(recipe, models, data_dir)

    def interrupt(step: int) -> None:
        if step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_trained(recipe, data_dir / "killed", data_dir, interrupt)
    steps: list[int] = []
    resumed = ensure_trained(recipe, data_dir / "killed", data_dir, steps.append)
    assert steps[0] == 5
    for file in ("model.safetensors", "training_log.csv"):
        assert (resumed / file).read_bytes() == (whole / file).read_bytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_new_models_have_the_recipes_configuration_and_no_forced_token(family: str) -> None:
    model = made(family)
    assert (model.config.pad_token_id, model.config.eos_token_id) == (0, 1)
    if family in ENCODER_DECODERS:
        assert model.config.decoder_start_token_id == 0
        assert model.generation_config.forced_eos_token_id is None
        assert (model.config.encoder_layers, model.config.decoder_layers) == (2, 3)
    assert model.config.max_position_embeddings == 64
    dropouts = {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}
    assert 0.3 in dropouts | {getattr(model.get_decoder(), "dropout", None)}


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_of_the_last_block_equals_transformers(family: str) -> None:
    """Tested with nonzero biases, including the bias of the logits that published translation models have."""
    model = noisy(made(family))
    if family in ENCODER_DECODERS:
        model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(0))
    tokens = torch.arange(3, 19)[None]
    batch = {"input_ids": tokens, "labels": tokens.flip(1)}
    loss, _ = JointObjective(block_weights(3, "last"), label_smoothing=0.0)(model, batch, 0)
    torch.testing.assert_close(loss, model(**batch).loss)


def noisy(model: Any) -> Any:
    """Add noise to all parameters, so that norms and biases matter; return the model in evaluation mode."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def made(family: str) -> Any:
    torch.manual_seed(0)
    architecture = ArchitectureRecipe(
        family=family, d_model=32, d_kv=8, d_ff=64, num_heads=4, num_decoder_layers=3,  # type: ignore[arg-type]
        num_layers=2 if family in ENCODER_DECODERS else 0, dropout_rate=0.3, max_positions=64,
    )  # fmt: skip
    return new_model(architecture, make_tokenizer(TokenizerRecipe(kind="builtin"), []))


def test_muon_leaves_embeddings_and_lm_head_to_adamw() -> None:
    """AdamW also trains an LM head that is separate from the embedding, because its rows are tokens."""
    settings = OptimisationRecipe(
        steps=1, batch_tokens=16, learning_rate=1e-3, optimizer="muon", muon_learning_rate=1e-3
    )
    model = made("gpt_neox")
    adamw, muon = make_optimizer(model, settings).optimizers  # type: ignore[attr-defined]
    of_muon = {id(p) for group in muon.param_groups for p in group["params"]}
    of_adamw = {id(p) for group in adamw.param_groups for p in group["params"]}
    assert not of_muon & of_adamw and len(of_muon | of_adamw) == len(list(model.parameters()))
    for table in (model.get_input_embeddings().weight, model.get_output_embeddings().weight):
        assert id(table) in of_adamw
    assert id(model.get_decoder().layers[0].mlp.dense_h_to_4h.weight) in of_muon


# ------------------------------------------------------------------------------------------ exit heads


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("settings", ["", 'kind = "lens"\n', 'kind = "norm"\n', 'init = "copy"\n'])
@pytest.mark.sampled(2)
def test_exit_heads_trained_on_a_frozen_decoder_load_in_the_engine(
    trained: Any, models: Path, data_dir: Path, tmp_path: Path, family: str, settings: str
) -> None:
    frozen = trained(family)
    text = (tmp_path / "tiny.toml").read_text()
    base = (tmp_path / "tiny.toml").rename(tmp_path / "base.toml")
    heads = text[: text.index("[tokenizer]")].replace('name = "tiny"', 'name = "heads"')
    heads += f'[start]\nrecipe = "{base}"\n[objective]\nloss = "exit-heads"\n'
    heads += f"[exit_heads]\ncount = 2\ntexts = 8\ntext_tokens = 6\n{settings}"
    heads += "[optimisation]\nsteps = 4\nbatch_tokens = 400\nlearning_rate = 1e-2\n"
    (tmp_path / "heads.toml").write_text(heads)
    folder = ensure_trained(load_recipe(tmp_path / "heads.toml"), models, data_dir)
    assert (folder / "model.safetensors").read_bytes() == (frozen / "model.safetensors").read_bytes()
    checkpoint = load_checkpoint(folder)
    assert checkpoint.engine == "hosted" and read_exit_blocks(folder) == checkpoint.model.exit_blocks == (1, 2)
    states = torch.randn(5, checkpoint.model.d_model, generator=torch.Generator().manual_seed(0))
    assert checkpoint.model.exit_logits(1, states).isfinite().all()
    prompts = [AutoTokenizer.from_pretrained(folder)(prompt).input_ids for prompt in PROMPTS]
    always = get_method("heads").from_params({"threshold": -1e9}).bound_to(checkpoint.model.exit_blocks)
    assert all(answers(checkpoint, prompts, always))


@pytest.mark.parametrize("family", CAUSAL)
def test_untrained_copied_exit_head_equals_the_models_read_out(family: str) -> None:
    """An untrained exit head is a copy of the model's own norm and LM head, and so gives the same logits."""
    model = noisy(made(family))
    objective = ExitHeadsObjective(ExitHeadsRecipe(count=2, init="copy", entropy_weight=0.0), model, 0)
    tokens = torch.arange(3, 19)[None]
    batch = {"input_ids": tokens, "labels": tokens}
    states = decoder_states(model, batch)
    _, logged = objective(model, batch, 0)
    for block in (1, 2):
        ours = states.logits_NV(block).log_softmax(-1)
        entropy = -(ours.exp() * ours).sum(-1).mean()
        torch.testing.assert_close(logged["exit_head_entropy_nats", block], entropy)


def test_copied_residual_mlp_has_the_exit_blocks_weights_and_initially_adds_0() -> None:
    model = noisy(made("llama"))
    settings = ExitHeadsRecipe(kind="residual-mlp", after_blocks=(2,), init="copy")
    objective = ExitHeadsObjective(settings, model, 0)
    block = model.model.layers[1]
    for name, weight in {
        "norm": block.post_attention_layernorm.weight,
        "gate": block.mlp.gate_proj.weight,
        "up": block.mlp.up_proj.weight,
    }.items():
        assert torch.equal(objective.tensors[f"2.{name}.weight"], weight)
    tokens = torch.arange(3, 19)[None]
    states = decoder_states(model, {"input_ids": tokens, "labels": tokens})
    logits = exit_logits(objective.tensors, "residual-mlp", 2, states.raw[1], states)
    assert torch.equal(logits, states.logits_NV(2))


def test_copying_an_unsupported_mlp_is_refused() -> None:
    settings = ExitHeadsRecipe(kind="residual-mlp", after_blocks=(2,), init="copy")
    with pytest.raises(UserError, match=r"'gpt_neox': its blocks have no gated silu MLP.*init = \"scratch\""):
        ExitHeadsObjective(settings, made("gpt_neox"), 0)
    with pytest.raises(UserError, match=r"after_blocks has 3, and the model has 3 decoder blocks\. Allowed: 1 to 2"):
        ExitHeadsObjective(ExitHeadsRecipe(after_blocks=(1, 3)), made("llama"), 0)
