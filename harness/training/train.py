"""The training loop: from text to an ordinary Hugging Face checkpoint in a folder."""

import copy
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor
from tqdm import tqdm

from exitbench.errors import UserError
from exitbench.harness.training.data import (
    EOS,
    PAD,
    UNK,
    Batch,
    TextData,
    curriculum,
    cut_batches,
    encode,
    make_tokenizer,
    pad,
)
from exitbench.harness.training.losses import IGNORED, block_weights, head_loss, readable_states
from exitbench.harness.training.recipe import OptimisationRecipe, Recipe

# Part of every model's digest: raise it whenever a change here makes other weights of the same recipe.
TRAINING_VERSION = 2
CURVE_POINTS = 100


@dataclass(frozen=True)
class BlockQuality:
    """Teacher-forced quality of each decoder block, 1..L, over all validation tokens."""

    token_accuracy: tuple[float, ...]
    loss_nats: tuple[float, ...]


def train(recipe: Recipe, text: TextData, folder: Path, progress: bool = True, line: int = 0) -> None:
    """Train a recipe's model and write checkpoint, tokenizer and card.json to `folder`.

    Args:
        recipe: What to train.
        text: The recipe's data.
        folder: An existing, empty folder.
        progress: Show steps, loss and time left on stderr.
        line: Line of the progress bar below the first.

    Raises:
        UserError: No pair is short enough for `max_tokens`.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    settings = recipe.optimisation
    longest = settings.max_tokens
    tokenizer = make_tokenizer(recipe.tokenizer, [pair for pair, _ in text.train])
    portions = [
        (source.from_step, source.repeat * encode([p for p, own in text.train if own is source], tokenizer, longest))
        for source in recipe.train
    ]
    validation = encode(text.validation, tokenizer, longest)
    if not all(examples for _, examples in portions) or not validation:
        raise UserError(
            f"Recipe {recipe.name!r}: a part of the data has no pair of at most max_tokens = {longest} tokens."
        )

    torch.manual_seed(recipe.seed)
    model = make_model(recipe, tokenizer)
    bar = tqdm(
        total=settings.steps,
        desc=f"training {recipe.name}",
        unit="step",
        file=sys.stderr,
        disable=not progress,
        mininterval=1.0,
        position=line,
    )
    with bar:
        curve = optimise(model, curriculum(portions, settings.batch_tokens, recipe.seed), settings, bar)
    batches = [pad(batch) for batch in cut_batches(validation, settings.batch_tokens)]
    quality = block_quality(model, batches)

    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    card = {
        "recipe": asdict(recipe),
        "data_sha256": text.sha256,
        "training_version": TRAINING_VERSION,
        "train_pairs": len(text.train),
        "train_examples_per_epoch": sum(len(examples) for _, examples in portions),
        "validation_pairs": len(validation),
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": settings.steps,
        "loss_curve": curve,
        "validation": asdict(quality),
        "wall_seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


def make_model(recipe: Recipe, tokenizer: Tokenizer) -> transformers.T5ForConditionalGeneration:
    """A freshly drawn model of the recipe's architecture and the tokenizer's vocabulary."""
    pad_id, end_id = tokenizer.token_to_id(PAD), tokenizer.token_to_id(EOS)
    config = transformers.T5Config(
        vocab_size=tokenizer.get_vocab_size(),
        pad_token_id=pad_id,
        eos_token_id=end_id,
        decoder_start_token_id=pad_id,
        **asdict(recipe.architecture),
    )
    # At these lengths, eager attention trains faster on a CPU than the fused kernel, whose backward pass is slow.
    return transformers.T5ForConditionalGeneration._from_config(config, attn_implementation="eager")


def optimise(
    model: transformers.T5ForConditionalGeneration,
    batches: Iterator[Batch],
    settings: OptimisationRecipe,
    bar: "tqdm[None]",
) -> list[tuple[int, float]]:
    """Run the recipe's steps on the model and return (step, mean joint loss since the last point) pairs."""
    optimizers = make_optimizers(model, settings)
    schedulers = [
        transformers.get_scheduler(settings.schedule, optimizer, settings.warmup_steps, settings.steps)
        for optimizer in optimizers
    ]
    weights = block_weights(model.config.num_decoder_layers, settings.loss)
    worker = model if settings.precision == "fp32" else copy.deepcopy(model).bfloat16()
    every = max(1, settings.steps // CURVE_POINTS)
    curve: list[tuple[int, float]] = []
    total, since = 0.0, 0

    worker.train()
    for step, batch in zip(range(1, settings.steps + 1), batches, strict=False):
        loss = joint_loss(worker, batch, weights, settings.label_smoothing)
        loss.backward()  # type: ignore[no-untyped-call]
        hand_over_gradients(worker, model)
        if settings.clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            scheduler.step()
        hand_back_weights(model, worker)
        total, since = total + loss.item(), since + 1
        if step % every == 0 or step == settings.steps:
            curve.append((step, total / since))
            bar.set_postfix(loss=f"{total / since:.3f}", refresh=False)
            total, since = 0.0, 0
        bar.update()
    return curve


def hand_over_gradients(worker: torch.nn.Module, model: torch.nn.Module) -> None:
    """Move the gradients of a bf16 worker to the fp32 weights; nothing to do where they are one model."""
    if worker is model:
        return
    for theirs, own in zip(worker.parameters(), model.parameters(), strict=True):
        own.grad = theirs.grad.float() if theirs.grad is not None else None
        theirs.grad = None


@torch.no_grad()
def hand_back_weights(model: torch.nn.Module, worker: torch.nn.Module) -> None:
    """Round the fp32 weights to the bf16 worker's."""
    if worker is not model:
        torch._foreach_copy_(list(worker.parameters()), list(model.parameters()))


def make_optimizers(
    model: transformers.T5ForConditionalGeneration, settings: OptimisationRecipe
) -> list[torch.optim.Optimizer]:
    """The shared embedding with its own rate; matrices with weight decay, by Muon if asked; the rest without."""
    embedding, rate = model.shared.weight, settings.learning_rate
    named = [(name, p) for name, p in model.named_parameters() if p is not embedding]
    # Position tables have one row a bucket: a look-up, not a matrix that maps states.
    matrices = [p for name, p in named if p.dim() > 1 and "relative_attention_bias" not in name]
    others = [p for name, p in named if p.dim() <= 1 or "relative_attention_bias" in name]
    groups: list[dict[str, Any]] = [
        {"params": [embedding], "lr": rate * settings.embedding_learning_rate_factor, "weight_decay": 0.0},
        {"params": others, "lr": rate, "weight_decay": 0.0},
    ]
    decay = settings.weight_decay
    muon: list[torch.optim.Optimizer] = []
    if settings.optimizer == "muon":
        lr = settings.muon_learning_rate
        muon.append(torch.optim.Muon(matrices, lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    else:
        groups.append({"params": matrices, "lr": rate, "weight_decay": decay})
    return [torch.optim.AdamW(groups, betas=(0.9, settings.adam_beta2), fused=True), *muon]


def joint_loss(
    model: transformers.T5ForConditionalGeneration, batch: Batch, weights: Tensor, label_smoothing: float
) -> Tensor:
    """Weighted sum of the cross-entropies of the blocks that have a weight."""
    states = readable_states(model, batch.source, batch.source_mask, batch.target)
    gold = batch.target[batch.target != IGNORED]
    head = model.lm_head.weight
    losses = [w * head_loss(h, head, gold, label_smoothing) for w, h in zip(weights, states, strict=True) if w > 0]
    return torch.stack(losses).sum()


@torch.no_grad()
def block_quality(model: transformers.T5ForConditionalGeneration, batches: Sequence[Batch]) -> BlockQuality:
    """Token accuracy and loss of every decoder block, teacher-forced, in fp32."""
    model.eval()
    blocks = model.config.num_decoder_layers
    right, loss, tokens = torch.zeros(blocks), torch.zeros(blocks), 0
    for batch in batches:
        states = readable_states(model, batch.source, batch.source_mask, batch.target)
        gold = batch.target[batch.target != IGNORED]
        guesses = torch.stack([torch.nn.functional.linear(h, model.lm_head.weight).argmax(-1) for h in states])
        right += (guesses == gold).sum(-1)
        loss += torch.stack([head_loss(h, model.lm_head.weight, gold) for h in states]) * len(gold)
        tokens += len(gold)
    return BlockQuality(tuple((right / tokens).tolist()), tuple((loss / tokens).tolist()))


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, which `transformers.AutoTokenizer` reads."""
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
