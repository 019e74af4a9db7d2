"""Train the model of a recipe, and write it as an ordinary Hugging Face checkpoint."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.exit_head_files import save_exit_heads
from exitbench.harness.engine.checkpoints.files import EXIT_HEADS_FILE
from exitbench.harness.engine.model.positions import padded
from exitbench.harness.training.cached_states import cached_states, state_batches
from exitbench.harness.training.data import (
    Batch,
    Example,
    TextData,
    curriculum,
    cut_batches,
    encode,
    make_tokenizer,
    pad,
)
from exitbench.harness.training.models import is_causal, new_model, read_model
from exitbench.harness.training.objectives import (
    ExitHeadsObjective,
    Objective,
    block_quality,
    head_quality,
    make_objective,
)
from exitbench.harness.training.recipe import TRAINING_VERSION, ExitHeadsRecipe, Recipe
from exitbench.harness.training.trainer import (
    EXTRAS,
    ExitTrainer,
    Rows,
    TrainingClock,
    computed_precision,
    resume_point,
)
from exitbench.results.spool.schema import CARD_FILE, TRAINING_LOG, TRAINING_LOG_FILE

Portions = list[tuple[int, list[Example]]]


def train(
    recipe: Recipe, text: TextData, start: Path | None, folder: Path, work: Path, on_step: Callable[[int], None]
) -> None:
    """Train a recipe's decoder or encoder-decoder; write checkpoint, tokenizer, exit heads, log and card to `folder`.

    Args:
        recipe: The recipe to train.
        text: Training and validation pairs of the recipe.
        start: Folder of the checkpoint to start from; None for a new model.
        folder: Existing, empty folder for the results.
        work: Folder of resume points; training continues from the latest one in it.
        on_step: Callback that receives the number of training steps done. Computing states that are cached before
            training counts as further steps (`Recipe.cache_steps`).

    Raises:
        UserError: No training pair is short enough for `max_tokens`, or the start is not a checkpoint of a supported
            family.
    """
    point = resume_point(work)
    clock = TrainingClock(point)
    settings = recipe.optimisation
    prepare(recipe)
    model, tokenizer = _begin(recipe, text, start)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    portions, validation = _examples(recipe, text, tokenizer)
    if recipe.exit_heads is not None and recipe.exit_heads.text == "generated":
        portions = [(0, generated_examples(recipe.exit_heads, model, tokenizer, portions, recipe.seed))]
    objective = make_objective(recipe, model)
    cached = None
    if isinstance(objective, ExitHeadsObjective) and objective.settings.cached_tokens:
        examples = [example for _, examples in portions for example in examples]

        def on_tokens(n_tokens: int) -> None:
            on_step(min(recipe.cache_steps, n_tokens // settings.batch_tokens))

        cached = cached_states(model, objective, examples, settings, recipe.seed, work, on_tokens)

    def batches(step: int) -> Iterator[Batch]:
        if cached is not None:
            return state_batches(cached, settings.batch_tokens, recipe.seed, step)
        cut = islice(curriculum(portions, settings.batch_tokens, recipe.seed), step, None)
        return (pad(examples, causal=is_causal(model)) for examples in cut)

    rows = minimise(recipe, model, objective, batches, work, lambda step: on_step(recipe.cache_steps + step), clock)
    saved = model.bfloat16().float() if settings.saved_precision == "bf16" else model
    validation_batches = [
        pad(batch, causal=is_causal(model)) for batch in cut_batches(validation, settings.batch_tokens)
    ]
    accuracy, loss_nats = block_quality(saved, validation_batches)
    quality: dict[str, Any] = {"token_accuracy": accuracy, "loss_nats": loss_nats}

    (model.bfloat16() if settings.saved_precision == "bf16" else model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if isinstance(objective, ExitHeadsObjective):
        dtype = torch.bfloat16 if settings.saved_precision == "bf16" else torch.float32
        tensors = {name: tensor.detach().to("cpu", dtype) for name, tensor in objective.tensors.items()}
        save_exit_heads(folder / EXIT_HEADS_FILE, objective.settings.kind, tensors)
        heads = {name: tensor.to(model.device, torch.float32) for name, tensor in tensors.items()}
        quality["exit_heads"] = head_quality(objective, heads, model.float(), validation_batches)
    write_log(folder / TRAINING_LOG_FILE, rows)
    counts = {
        "train_pairs": len(text.train),
        "train_examples_per_epoch": sum(len(examples) for _, examples in portions),
        "validation_pairs": len(validation),
    }
    if cached is not None:
        counts["cached_tokens"] = len(cached)
    write_card(folder / CARD_FILE, recipe, text, model, rows, clock, counts, quality)


def prepare(recipe: Recipe) -> None:
    """Prepare this process for a training: seed torch by the recipe, and silence transformers' messages and bars."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # it warns about tied weights, which a resume point stores once
    torch.manual_seed(recipe.seed)


def minimise(
    recipe: Recipe,
    model: PreTrainedModel,
    objective: Objective,
    batches: Callable[[int], Iterator[Batch]],
    work: Path,
    on_step: Callable[[int], None],
    clock: TrainingClock,
) -> Rows:
    """Train a model up to the recipe's last step, from the latest resume point in `work`; return the training log.

    Args:
        recipe: The recipe.
        model: Model to train in place.
        objective: The training loss.
        batches: Function that returns an endless iterator of batches from a training step (0-based) on.
        work: Folder of resume points.
        on_step: Callback that receives the number of training steps done.
        clock: Clock of the training time, which every resume point stores.

    Returns:
        The log as rows of (step, block, metric, value); block is None for values of the whole model.

    Raises:
        UserError: The final loss is not finite.
    """
    trainer = ExitTrainer(model, objective, batches, recipe.optimisation, work, recipe.seed, on_step, clock)
    trainer.train_from(resume_point(work))
    rows = trainer.rows()
    if not math.isfinite(_final_loss_nats(rows)):
        raise UserError(f"Recipe {recipe.name!r}: the loss is {_final_loss_nats(rows)}. Lower the learning rates.")
    if objective.extras is not None:
        delattr(model, EXTRAS)
    return rows


def write_card(
    path: Path,
    recipe: Recipe,
    text: TextData,
    model: PreTrainedModel,
    rows: Rows,
    clock: TrainingClock,
    counts: Mapping[str, int],
    quality: Mapping[str, Any],
) -> None:
    """Write the card of a trained model as JSON: recipe, data, sizes, quality on validation data, time.

    Args:
        path: File to write.
        recipe: The recipe.
        text: Training and validation pairs of the recipe.
        model: The trained model.
        rows: The training log, rows of (step, block, metric, value).
        clock: Clock of the training time.
        counts: Numbers of training and validation examples, by their keys in the card.
        quality: Quality of each block on validation data, such as accuracy and loss, by its keys in the card.
    """
    wall_seconds, cpu_seconds = clock.seconds()
    card = {
        "recipe": recipe.described(),
        "start_recipe": recipe.first.described() if recipe.first is not None else None,
        "command": f"exitbench train {recipe.name}",
        "data_sha256": text.sha256,
        "training_version": TRAINING_VERSION,
        **counts,
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": recipe.optimisation.steps,
        "final_loss_nats": _final_loss_nats(rows),
        "validation": quality,
        "wall_seconds": wall_seconds,
        "cpu_seconds": cpu_seconds,
        "threads": torch.get_num_threads(),
        "computed_precision": computed_precision(recipe.optimisation),
        "device": str(model.device),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    path.write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


def _final_loss_nats(rows: Rows) -> float:
    return [value for _, _, metric, value in rows if metric == "loss_nats"][-1]


def _begin(recipe: Recipe, text: TextData, start: Path | None) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    if start is not None:
        return read_model(start)
    assert recipe.tokenizer is not None and recipe.architecture is not None, "a recipe without a start has both"
    tokenizer = make_tokenizer(recipe.tokenizer, [pair for pair, _ in text.train])
    return new_model(recipe.architecture, tokenizer), tokenizer


def _examples(recipe: Recipe, text: TextData, tokenizer: PreTrainedTokenizerFast) -> tuple[Portions, list[Example]]:
    longest = recipe.optimisation.max_tokens
    portions = [
        (
            source.from_step,
            source.repeat
            * encode([p for p, source_of_pair in text.train if source_of_pair is source], tokenizer, longest),
        )
        for source in recipe.train
    ]
    validation = encode(text.validation, tokenizer, longest)
    if not all(examples for _, examples in portions) or not validation:
        raise UserError(
            f"Recipe {recipe.name!r}: a part of the data has no pair of at most max_tokens = {longest} tokens."
        )
    return portions, validation


def write_log(path: Path, rows: Rows) -> None:
    """Write the training log as CSV with the columns step, block, metric and value.

    Column block is empty for values of the whole model, which are None in `rows`.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(TRAINING_LOG.names)
        for step, block, metric, value in rows:
            writer.writerow((step, "" if block is None else block, metric, f"{value:.6g}"))


BATCH_ROWS = 64


@torch.no_grad()
def generated_examples(
    settings: ExitHeadsRecipe,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    portions: list[tuple[int, list[Example]]],
    seed: int,
) -> list[Example]:
    """Return training examples sampled from the model itself, after the recipe's prompts or those of its documents.

    The same seed gives the same texts.

    Args:
        settings: Settings of the exit heads: prompts, number and length of texts.
        model: The frozen model.
        tokenizer: Its tokenizer.
        portions: Tokenized documents of the recipe, whose prompts are used if `settings` has none. Each portion comes
            with its first training step, which is ignored.
        seed: Seed of sampling.
    """
    if settings.prompts:
        prompts = [np.array(tokenizer(prompt).input_ids) for prompt in settings.prompts]
    else:
        prompts = [example.source for _, examples in portions for example in examples]
        order = np.random.default_rng(seed).permutation(len(prompts))
        prompts = [prompts[index] for index in order[: settings.texts]]
    chosen = [prompts[index % len(prompts)] for index in range(settings.texts)]
    chosen.sort(key=len)
    torch.manual_seed(seed)
    model.eval()
    examples_sampled: list[Example] = []
    for start in range(0, len(chosen), BATCH_ROWS):
        examples_sampled += _sample(model, chosen[start : start + BATCH_ROWS], settings.text_tokens)
    return examples_sampled


def _sample(model: PreTrainedModel, prompts: list[np.ndarray], n_tokens: int) -> list[Example]:
    # A causal model continues at the right end, so prompts are padded on the left.
    ids, mask = padded([prompt.tolist() for prompt in prompts], model.device, "left" if is_causal(model) else "right")
    generated = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids) if mask is None else mask.long(),
        do_sample=True,
        temperature=1.0,  # the checkpoint's own settings may say otherwise
        top_k=0,
        top_p=1.0,
        max_new_tokens=n_tokens,
    ).cpu()
    answers = generated[:, ids.shape[1] :] if is_causal(model) else generated[:, 1:]
    ends = model.generation_config.eos_token_id
    return [Example(prompt, _until(answer.numpy(), ends)) for prompt, answer in zip(prompts, answers, strict=True)]


def _until(ids: np.ndarray, ends: int | list[int]) -> np.ndarray:
    """Return the ids up to and including the first end-of-sequence token (one of `ends`); all ids if there is none."""
    places = np.flatnonzero(np.isin(ids, ends))
    return ids[: places[0] + 1] if len(places) else ids
