"""Training objectives for encoder classifiers whose blocks are read out by off-ramps or by the model's own classifier.

Shape suffixes: B rows of a batch, T tokens, D hidden size, C labels (1 for regression), L blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.exit_head_files import new_off_ramps
from exitbench.harness.engine.encoders.model import OffRamps, RampKind, read_out_state
from exitbench.harness.engine.encoders.stack import EncoderStack, find_encoder_stack
from exitbench.harness.training.data import Batch
from exitbench.harness.training.losses import JointLoss, block_weights
from exitbench.harness.training.objectives import ByStep, Logged, Objective
from exitbench.harness.training.recipe import OffRampsRecipe, Recipe


class Readers:
    """Read-outs of the blocks of an encoder: off-ramps before the last block, or its own classifier at every block.

    An off-ramp is a small classifier after a block.

    Args:
        stack: The encoder with its classifier.
        settings: Settings of the off-ramps; None for none, so that the encoder's own classifier reads every block.
        seed: Seed of the off-ramps' initial weights.
    """

    def __init__(self, stack: EncoderStack, settings: OffRampsRecipe | None, seed: int) -> None:
        self.stack = stack
        self.off_ramps: OffRamps | None = None
        self.learned: nn.ParameterDict | None = None
        if settings is None or settings.kind == "shared-head":
            return
        blocks = tuple(range(1, stack.n_blocks))
        kind: RampKind = "linear" if settings.kind == "shared-pooler" else settings.kind
        drawn = new_off_ramps(kind, blocks, stack.d_model, stack.n_labels, torch.Generator().manual_seed(seed))
        # Parameter names must not contain dots.
        self.learned = nn.ParameterDict({name.replace(".", "/"): nn.Parameter(t) for name, t in drawn.items()})
        self.learned.to(stack.lm.device)
        tensors: dict[str, Tensor] = {name.replace("/", "."): parameter for name, parameter in self.learned.items()}
        if settings.kind == "shared-pooler":
            pooler = _own_pooler(stack.lm)
            kind = "pooler-linear"
            for block in blocks:
                tensors |= {f"{block}.pool.weight": pooler.weight, f"{block}.pool.bias": pooler.bias}
        self.off_ramps = OffRamps(kind, blocks, tensors)

    def logits(self, batch: Batch) -> list[Tensor]:
        """Run a batch of texts through all blocks; return the label logits read out at every block, each [B, C]."""
        stack, logits_L = self.stack, []
        hidden_BTD, context = stack.embed(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
        for block in range(1, stack.n_blocks + 1):
            hidden_BTD = stack.block(block, hidden_BTD, context)
            if self.off_ramps is None or block == stack.n_blocks:
                logits_L.append(stack.classify(stack.pooled(hidden_BTD, context)))
            else:
                state_BS = read_out_state(stack, self.off_ramps, block, hidden_BTD, context)
                logits_L.append(self.off_ramps.logits(block, state_BS))
        return logits_L


def _own_pooler(lm: Any) -> nn.Linear:
    pooler = getattr(lm.base_model, "pooler", None)
    dense = getattr(pooler, "dense", pooler)
    if not isinstance(dense, nn.Linear):
        raise UserError(
            f"model_type {lm.config.model_type!r} has no pooler to share. Allowed: off-ramps of kind pooler-linear, "
            "attention, linear or shared-head."
        )
    return dense


def make_classifier_objective(recipe: Recipe, model: PreTrainedModel) -> tuple[Objective, Readers]:
    """Return the training objective of a recipe for an encoder classifier, and the read-outs that it trains.

    Off-ramps are created here. The model is frozen if the recipe's loss trains only them.

    Raises:
        UserError: The model or its labels are incompatible with the objective.
    """
    settings, stack = recipe.objective, find_encoder_stack(model)
    readers = Readers(stack, recipe.off_ramps, recipe.seed)
    if settings.loss in ("two-stage", "self-distillation"):
        if stack.n_labels == 1 and settings.loss == "self-distillation":
            raise UserError(
                f"Recipe {recipe.name!r}: self-distillation is of probabilities, which a rating has none of."
            )
        model.requires_grad_(False)
        return OnFrozen(readers, settings.loss == "self-distillation", settings.label_smoothing), readers

    def joint(loss: JointLoss) -> BlockLosses:
        return BlockLosses(readers, block_weights(stack.n_blocks, loss, settings.blocks), settings.label_smoothing)

    objective: Objective
    if settings.loss == "alternating":
        objective = ByStep(lambda step: step % 2 == 0, joint("last"), joint("branchynet"))  # BERxiT
    else:
        objective = joint(cast(JointLoss, settings.loss))
    if settings.every_block_steps:
        objective = ByStep(lambda step: step < settings.every_block_steps, joint("weighted"), objective)
    return objective, readers


@dataclass(frozen=True)
class BlockLosses:
    """Objective: weighted sum of all blocks' losses on the labels.

    Of the weights in `losses.block_weights`, PABEE uses `weighted`, and NATCAP's joint optimization `branchynet`.

    Attributes:
        readers: Read-outs of the blocks.
        weights_L: Weight of each block's loss, [L].
        label_smoothing: Share of the correct label's probability that is spread over all labels.
    """

    readers: Readers
    weights_L: Tensor
    label_smoothing: float

    @property
    def extras(self) -> nn.Module | None:
        """Modules trained in addition to the model's own: the off-ramps; None if no module is added."""
        return self.readers.learned

    def __call__(self, model: PreTrainedModel, batch: Batch, step: int) -> tuple[Tensor, Logged]:
        """Return the weighted sum of the blocks' losses on a batch, and the unweighted loss of each block to log.

        Blocks with weight 0 are not logged. `step` is not used, nor is `model`: the read-outs run the encoder.
        """
        logits = self.readers.logits(batch)
        losses = {
            block: weight * answer_loss(logits[block - 1], batch["labels"], self.label_smoothing)
            for block, weight in enumerate(self.weights_L.tolist(), start=1)
            if weight > 0
        }
        logged: Logged = {
            ("block_loss_nats", block): loss.detach() / self.weights_L[block - 1] for block, loss in losses.items()
        }
        return torch.stack(list(losses.values())).sum(), logged


@dataclass(frozen=True)
class OnFrozen:
    """Objective that trains off-ramps on a frozen model: the sum of the off-ramps' losses.

    Attributes:
        readers: Read-outs of the blocks, with an off-ramp at every block but the last.
        distils: Whether off-ramps learn the last block's distribution (FastBERT: KL(last || off-ramp), as in its
            published code). Otherwise they learn the labels (DeeBERT's second stage).
        label_smoothing: Share of the correct label's probability that is spread over all labels, if they are learned.
    """

    readers: Readers
    distils: bool
    label_smoothing: float

    @property
    def extras(self) -> nn.Module | None:
        """Modules trained in addition to the model's own: the off-ramps."""
        return self.readers.learned

    def __call__(self, model: PreTrainedModel, batch: Batch, step: int) -> tuple[Tensor, Logged]:
        """Return the summed loss of all blocks but the last on a batch, and the loss of each of them to log."""
        model.eval()  # dropout would make features and targets noisy
        *logits, last_BC = self.readers.logits(batch)
        losses = [self._loss(logits_BC, last_BC, batch["labels"]) for logits_BC in logits]
        logged: Logged = {("block_loss_nats", block): loss.detach() for block, loss in enumerate(losses, start=1)}
        return torch.stack(losses).sum(), logged

    def _loss(self, logits_BC: Tensor, last_BC: Tensor, labels_B: Tensor) -> Tensor:
        if not self.distils:
            return answer_loss(logits_BC, labels_B, self.label_smoothing)
        taught_BC = last_BC.detach().log_softmax(-1)
        return F.kl_div(logits_BC.log_softmax(-1), taught_BC, log_target=True, reduction="batchmean")


def answer_loss(logits_BC: Tensor, labels_B: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the loss of a block's predictions on a batch, mean over rows.

    Args:
        logits_BC: Logits read out at the block; one column for ratings.
        labels_B: Label indices, whose cross-entropy in nats is returned; or floating-point ratings, whose squared
            error is.
        label_smoothing: Share of the correct label's probability that is spread over all labels; unused for ratings.
    """
    if labels_B.is_floating_point():
        return F.mse_loss(logits_BC.squeeze(-1).float(), labels_B)
    return F.cross_entropy(logits_BC.float(), labels_B, label_smoothing=label_smoothing)


@torch.no_grad()
def predictions(readers: Readers, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
    """Return every block's predictions for all texts and its mean loss, for validation.

    Args:
        readers: Read-outs of the blocks.
        batches: Batches of texts with their labels.

    Returns:
        Predictions, [L, texts], as label indices or as ratings; and mean losses (cross-entropy in nats, or squared
        error of ratings), [L].
    """
    readers.stack.lm.eval()
    answers, losses, rows = [], [], 0
    for batch in batches:
        moved = {name: tensor.to(readers.stack.lm.device) for name, tensor in batch.items()}
        logits_LBC = torch.stack(readers.logits(moved)).float().cpu()
        answers_LB = logits_LBC.squeeze(-1) if readers.stack.n_labels == 1 else logits_LBC.argmax(-1)
        answers.append(answers_LB)
        rows += answers_LB.shape[1]
        losses.append(
            torch.stack([answer_loss(logits_BC, batch["labels"]) for logits_BC in logits_LBC]) * answers_LB.shape[1]
        )
    return torch.cat(answers, dim=1), torch.stack(losses).sum(0) / rows
