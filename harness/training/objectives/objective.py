"""Training objectives by recipe: one object that turns model and batch into a loss and what to log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.exit_head_files import new_exit_heads
from exitbench.harness.engine.model.exit_heads import exit_logits
from exitbench.harness.training.data import Batch
from exitbench.harness.training.objectives.distillation import distillation_loss
from exitbench.harness.training.objectives.layer_dropout import LayerDropout, dropout_rates, early_exit_weights
from exitbench.harness.training.objectives.losses import (
    JointLoss,
    block_weights,
    exit_head_loss,
    head_loss,
    shallow_deep_weights,
    tuned_lens_loss,
)
from exitbench.harness.training.readable import (
    States,
    decoder_blocks,
    decoder_states,
    final_norm,
    head_bias,
    head_scale,
)
from exitbench.harness.training.recipe import ExitHeadsRecipe, ObjectiveRecipe, Recipe

Logged = dict[tuple[str, int | None], Tensor]
"""Values of one step by metric and block; block None is the whole model."""


class Objective(Protocol):
    """A loss; modules that it learns beside the model's own are its ``extras``."""

    @property
    def extras(self) -> nn.Module | None:
        """What learns beside the model."""

    def __call__(self, model: PreTrainedModel, batch: Batch, step: int) -> tuple[Tensor, Logged]:
        """Return the loss of a batch at a step (0 upwards), and what to log."""


def make_objective(recipe: Recipe, model: PreTrainedModel) -> Objective:
    """The objective of a recipe; freezes the model where only exit heads learn."""
    settings, n_blocks = recipe.objective, block_count(model)
    if recipe.exit_heads is not None:
        model.requires_grad_(False)
        return ExitHeadsObjective(recipe.exit_heads, model, recipe.seed)
    objective: Objective
    if settings.loss == "shallow-deep":
        objective = ShallowDeepObjective(settings, n_blocks, model.config.hidden_size)
    elif settings.loss == "layer-skip":
        objective = LayerSkipObjective(settings, n_blocks, recipe.optimisation.steps, recipe.seed)
    else:
        objective = JointObjective(block_weights(n_blocks, cast(JointLoss, settings.loss)), settings.label_smoothing)
    if not settings.every_block_steps:
        return objective
    first = JointObjective(block_weights(n_blocks, "weighted"), settings.label_smoothing)
    return FirstThen(first, objective, settings.every_block_steps)


def block_count(model: PreTrainedModel) -> int:
    """Decoder blocks, L."""
    return len(decoder_blocks(model))


@dataclass
class JointObjective:
    """Weighted cross-entropies of the blocks, all read by the model's own norm and head (CALM, FREE)."""

    weights_L: Tensor
    label_smoothing: float
    extras: nn.Module | None = None

    def __call__(self, model: PreTrainedModel, batch: Batch, step: int) -> tuple[Tensor, Logged]:
        """Sum over the blocks that have a weight."""
        return weighted_losses(decoder_states(model, batch), self.weights_L, self.label_smoothing)


class FirstThen:
    """One objective until a step, then another."""

    def __init__(self, first: Objective, then: Objective, steps: int) -> None:
        self.first, self.then, self.steps = first, then, steps
        self.extras = then.extras

    def __call__(self, model: PreTrainedModel, batch: Batch, step: int) -> tuple[Tensor, Logged]:
        """The loss of the objective that this step has."""
        return (self.first if step < self.steps else self.then)(model, batch, step)


def weighted_losses(states: States, weights_L: Tensor, label_smoothing: float) -> tuple[Tensor, Logged]:
    """Sum of the weighted cross-entropies, and each block's."""
    total, logged = torch.zeros((), device=states.head.device), Logged()
    for block, weight in enumerate(weights_L.tolist(), start=1):
        if weight > 0:
            loss = head_loss(states.readable(block), states.head, states.gold, label_smoothing, states.head_bias)
            logged["block_loss_nats", block] = loss.detach()
            total = total + weight * loss
    return total, logged


class ShallowDeepObjective:
    """FREE: cross-entropies of blocks S and L, and shallow states that learn deep ones."""

    def __init__(self, settings: ObjectiveRecipe, n_blocks: int, width: int) -> None:
        self.settings = settings
        self.weights_L = shallow_deep_weights(n_blocks, settings.shallow_blocks)
        self.extras = nn.Linear(width, width) if settings.distillation_transform else None

    def __call__(self, model: PreTrainedModel, batch: Batch, step: int) -> tuple[Tensor, Logged]:
        """(S CE_S + L CE_L) / (S + L) + alpha KD."""
        settings, states = self.settings, decoder_states(model, batch)
        loss, logged = weighted_losses(states, self.weights_L, settings.label_smoothing)
        if settings.distillation != "none":
            student = states.normed[: settings.shallow_blocks]
            distance = distillation_loss(student, states.normed, settings.distillation, self.extras)
            logged["distillation_loss", None] = distance.detach()
            loss = loss + settings.distillation_weight * distance
        return loss, logged


class LayerSkipObjective:
    """LayerSkip: sequences skip blocks at random, and early blocks learn to read out, on a curriculum."""

    def __init__(self, settings: ObjectiveRecipe, n_blocks: int, steps: int, seed: int) -> None:
        self.settings, self.steps, self.seed = settings, steps, seed
        self.rates = dropout_rates(n_blocks, settings.layer_dropout)
        self.n_blocks = n_blocks
        self.extras: nn.Module | None = None

    def __call__(self, model: PreTrainedModel, batch: Batch, step: int) -> tuple[Tensor, Logged]:
        """Weighted cross-entropies of the blocks that the curriculum has at this step."""
        settings = self.settings
        weights_L = early_exit_weights(
            self.n_blocks, step, self.steps, settings.early_exit_scale, settings.curriculum, settings.rotation
        )
        # Drawn from seed and step, so that a training that goes on draws what one in a piece would have drawn.
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        with LayerDropout(model, self.rates, generator):
            states = decoder_states(model, batch)
        return weighted_losses(states, weights_L, settings.label_smoothing)


class ExitHeadsObjective:
    """Exit heads that imitate the frozen model (HEADS; tuned lens)."""

    def __init__(self, settings: ExitHeadsRecipe, model: PreTrainedModel, seed: int) -> None:
        n_blocks = block_count(model)
        if settings.count >= n_blocks:
            raise UserError(f"{settings.count} exit heads need a decoder of more blocks than this one's {n_blocks}.")
        self.settings = settings
        self.blocks = settings.blocks(n_blocks)
        head = model.get_output_embeddings().weight
        norm: Any = final_norm(model) if settings.init == "copy" and settings.kind != "lens" else None
        tensors = new_exit_heads(
            kind=settings.kind,
            blocks=self.blocks,
            d_model=head.shape[1],
            vocab_size=head.shape[0],
            norm=settings.norm,
            init=settings.init,
            final_norm_weight=None if norm is None else norm.weight.detach(),
            final_norm_bias=getattr(norm, "bias", None),
            lm_head_weight=head.detach(),
            hidden_width=settings.hidden_width,
            generator=torch.Generator().manual_seed(seed),
            logit_scale=head_scale(model),
            lm_head_bias=head_bias(model),
        )
        # Parameter names may hold no dots.
        self.extras = nn.ParameterDict({name.replace(".", "/"): nn.Parameter(t) for name, t in tensors.items()})

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The heads, by the names of `exit_heads.safetensors`."""
        return {name.replace("/", "."): tensor for name, tensor in self.extras.items()}

    def __call__(self, model: PreTrainedModel, batch: Batch, step: int) -> tuple[Tensor, Logged]:
        """Mean over the heads."""
        model.eval()  # dropout would make features and targets noisy
        with torch.no_grad():
            states = decoder_states(model, batch)
            final_NV = states.logits_NV(len(states.normed))
        losses, logged = [], Logged()
        for block in self.blocks:
            logits_NV = exit_logits(self.tensors, self.settings.kind, block, states.raw[block - 1], states.read_out)
            losses.append(self._loss(logits_NV, final_NV))
            log_p_NV = logits_NV.detach().log_softmax(-1)
            agrees_N = log_p_NV.argmax(-1) == final_NV.argmax(-1)
            logged["exit_head_loss", block] = losses[-1].detach()
            logged["exit_head_accuracy", block] = agrees_N.float().mean()
            logged["exit_head_entropy_nats", block] = -(log_p_NV.exp() * log_p_NV).sum(-1).mean()
        return torch.stack(losses).mean(), logged

    def _loss(self, logits_NV: Tensor, final_NV: Tensor) -> Tensor:
        if self.settings.kind == "lens":
            return tuned_lens_loss(logits_NV, final_NV)
        target = final_NV.argmax(-1) if self.settings.target == "hard" else final_NV.softmax(-1)
        return exit_head_loss(logits_NV, target, self.settings.entropy_weight)


@torch.no_grad()
def block_quality(model: PreTrainedModel, batches: Sequence[Batch]) -> tuple[list[float], list[float]]:
    """Token accuracy and loss in nats of every decoder block by the model's own head, teacher-forced."""
    model.eval()
    n_blocks, tokens = block_count(model), 0
    right_L, loss_L = torch.zeros(n_blocks), torch.zeros(n_blocks)
    for batch in batches:
        states = decoder_states(model, {name: tensor.to(model.device) for name, tensor in batch.items()})
        for block in range(1, n_blocks + 1):
            logits_NV = states.logits_NV(block)
            right_L[block - 1] += (logits_NV.argmax(-1) == states.gold).sum().cpu()
            loss_L[block - 1] += F.cross_entropy(logits_NV, states.gold, reduction="sum").cpu()
        tokens += len(states.gold)
    return (right_L / tokens).tolist(), (loss_L / tokens).tolist()
