"""Training objectives: each computes a loss and values to log from a model and a batch.

Distillation of a decoder's deep states into its own shallow ones follows FREE (Bae et al. 2023); layer dropout and the
early-exit loss on a curriculum follow LayerSkip (Elhoushi et al. 2024, section 4). LayerSkip counts layers 0..L-1, so
index l in the results of its functions here is block l + 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from exitbench.harness.engine.checkpoints.exit_head_files import new_exit_heads
from exitbench.harness.engine.model.exit_heads import WITH_LM_HEAD, exit_logits, lm_head_input
from exitbench.harness.training.block_states import (
    States,
    block_mlp,
    decoder_blocks,
    decoder_states,
    final_norm,
    own_read_out,
)
from exitbench.harness.training.data import Batch
from exitbench.harness.training.losses import (
    IGNORED,
    VOCABULARY_SLICE_TOKENS,
    JointLoss,
    block_weights,
    check_shallow,
    exit_head_loss,
    head_loss,
    lm_head_divergences,
    shallow_deep_weights,
    tuned_lens_loss,
)
from exitbench.harness.training.recipe import ExitHeadsRecipe, ObjectiveRecipe, Recipe

DistillationKind = Literal["last", "uniform", "closest-code", "closest-text"]

# The only row of FREE's published table (L=24: S=4, 6, 8, 10, 12; L=12: S=3) that differs from the rule below.
UNEVEN_TEACHERS = {(24, 10): (3, 6, 8, 11, 13, 16, 18, 20, 22, 24)}


def teacher_blocks(n_blocks: int, shallow: int) -> list[int]:
    """Return, for FREE's distillation, the blocks (of 1..L) whose states blocks 1..S learn to imitate: one for each.

    For the six pairs of depths in FREE's code, the blocks are those of that code. For other depths, block k of 1..S is
    taught by block ceil(k L / S); this rule also reproduces five of the six pairs.

    Args:
        n_blocks: L, the number of decoder blocks.
        shallow: S, the block of the early exit; blocks 1..S are the students.

    Raises:
        UserError: S is not a block before the last.

    Examples:
        >>> teacher_blocks(12, 3)
        [4, 8, 12]
    """
    check_shallow(n_blocks, shallow)
    published = UNEVEN_TEACHERS.get((n_blocks, shallow))
    return list(published or (-(-k * n_blocks // shallow) for k in range(1, shallow + 1)))


def distillation_loss(
    student: Sequence[Tensor], teacher: Sequence[Tensor], kind: DistillationKind, transform: nn.Module | None = None
) -> Tensor:
    """Return FREE's distillation loss: the mean squared error between final-normed states of shallow and deep blocks.

    Errors are averaged over elements, then over pairs of blocks. `kind` selects the pairs; S is the early exit's block:

    * `last`: block S and block L.
    * `uniform`: block k and the k-th of `teacher_blocks`, which are spread evenly over the depth.
    * `closest-code`: each of `teacher_blocks`, from deep to shallow, and the block of 1..S with the least error. Each
      block must precede the one chosen before it, as in FREE's code.
    * `closest-text`: each shallow block and the closest of blocks S+1..L, as in the text of Monotonic Early Exiting.

    Args:
        student: States of blocks 1..S, each [N tokens, D hidden size]; they receive gradients.
        teacher: States of blocks 1..L, each [N, D]; they receive no gradients.
        kind: Rule for pairing blocks.
        transform: A module [N, D] -> [N, D] applied to the student's states; None for none.

    Returns:
        The loss, a scalar.

    Raises:
        UserError: S is not a block before the last.
    """
    check_shallow(len(teacher), len(student))
    students = [h if transform is None else transform(h) for h in student]
    teachers = [h.detach() for h in teacher]
    tables = [teachers[block - 1] for block in teacher_blocks(len(teachers), len(students))]
    if kind == "last":
        pairs = [(students[-1], teachers[-1])]
    elif kind == "uniform":
        pairs = list(zip(students, tables, strict=True))
    elif kind == "closest-code":
        chosen = assign_students(_errors(tables, students))
        pairs = [(students[k], h) for k, h in zip(chosen, tables, strict=True)]
    else:
        deep = teachers[len(students) :]
        pairs = [(h, deep[int(j)]) for h, j in zip(students, _errors(students, deep).argmin(1), strict=True)]
    return torch.stack([F.mse_loss(student_state, teacher_state) for student_state, teacher_state in pairs]).mean()


def assign_students(errors: Tensor) -> list[int]:
    """Assign to each teacher (deep block), from last to first, the student (shallow block) of least error.

    Each student must precede the one assigned just before. If there is no such student, that one is assigned again.

    Args:
        errors: Error of each student (column) for each teacher (row), [T teachers, S students].

    Returns:
        The 0-based index of a student for each teacher, in the order of the teachers.
    """
    rows: list[list[float]] = errors.tolist()
    chosen, bound = [], errors.shape[1]
    for row in reversed(rows):
        bound = min(range(bound), key=row.__getitem__, default=bound)
        chosen.append(bound)
    return chosen[::-1]


@torch.no_grad()
def _errors(rows: Sequence[Tensor], columns: Sequence[Tensor]) -> Tensor:
    """Return the mean squared error of each state in `rows` with each state in `columns`, [n rows, n columns]."""
    return torch.stack([torch.stack([F.mse_loss(a, b) for b in columns]) for a in rows])


Curriculum = Literal["none", "rotational", "gradual"]


def dropout_rates(n_blocks: int, p_max: float) -> list[float]:
    """Return LayerSkip's probability of skipping each block: p_max * (exp(l ln 2 / (L - 1)) - 1) for l = 0..L-1.

    It is 0 at the first block and p_max at the last. The paper's factor that grows over training steps is 1 here, as
    the paper does for fine-tuning.

    Args:
        n_blocks: L, the number of decoder blocks.
        p_max: Probability of skipping the last block.
    """
    # The maximum avoids 0 / 0 for a decoder of one block, which has nothing to skip.
    return [p_max * math.expm1(layer * math.log(2) / max(n_blocks - 1, 1)) for layer in range(n_blocks)]


def early_exit_weights(
    n_blocks: int, step: int, steps: int, e_scale: float, curriculum: Curriculum, rotation: int = 1
) -> Tensor:
    """Return LayerSkip's weight of each block's cross-entropy at a training step, [L]; the weights sum to 1.

    The weights are e(l) = e_scale * (0 + .. + l) for l < L - 1 and e(L - 1) = L - 1 + e_scale * (0 + .. + L - 2). They
    are divided by their sum over the blocks that take part at this step. Block 1 (l = 0) always has weight 0.

    Args:
        n_blocks: L, the number of decoder blocks.
        step: Number of completed training steps, 0..steps-1.
        steps: Total number of training steps, T.
        e_scale: Factor in these weights; 0 leaves only the last block's loss.
        curriculum: Rule for the blocks that take part at a step; the last block always does. `none`: all blocks.
            `rotational`: every `rotation`-th block, shifted by one block at each step. `gradual`: blocks from the last
            down, one more every T / (2 L) steps.
        rotation: R, the distance between blocks of the rotational curriculum.
    """
    layer = torch.arange(n_blocks)
    if curriculum == "none":
        active = torch.ones(n_blocks, dtype=torch.bool)
    elif curriculum == "rotational":
        active = (layer - step) % rotation == 0
    else:
        active = layer >= n_blocks - 1 - 2 * n_blocks * step // steps
    weights = e_scale * layer.cumsum(0).double()
    # The maximum avoids 0 / 0 for a decoder of one block.
    weights[-1] = max(n_blocks - 1, 1) + (weights[-2] if n_blocks > 1 else 0)
    active[-1] = True
    weights *= active
    return (weights / weights.sum()).float()


class LayerDropout(ExitStack):
    """Context manager in which decoder blocks (in training mode) are randomly skipped for whole sequences of a batch.

    A skipped sequence keeps the block's input as its state. Other outputs of a block (T5's position biases, which block
    1 computes for all blocks) are passed on. In evaluation mode nothing is drawn or changed. Skips depend only on the
    generator, so a resumed training that restores its state skips the same blocks.
    """

    def __init__(self, model: Any, rates: Sequence[float], generator: torch.Generator) -> None:
        """Prepare to skip block l with probability `rates[l - 1]`; for blocks with rate 0, no random number is drawn.

        Args:
            model: A transformers model with a decoder.
            rates: Probability of skipping each decoder block, [L].
            generator: Random generator; for each block in order, one number per sequence of the batch is drawn.
        """
        super().__init__()
        self._blocks = decoder_blocks(model)
        self._rates, self._generator = tuple(rates), generator

    def __enter__(self) -> Self:
        for block, rate in zip(self._blocks, self._rates, strict=True):
            if rate > 0:
                self.callback(self._hook(block, rate).remove)
        return self

    def _hook(self, block: nn.Module, rate: float) -> RemovableHandle:
        def skip(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
            if not module.training:
                return output
            before = inputs[0]
            drawn = torch.rand(len(before), generator=self._generator, device=self._generator.device)
            keep = (drawn >= rate).to(before.device)[:, None, None]
            if isinstance(output, tuple):
                return (torch.where(keep, output[0], before), *output[1:])
            return torch.where(keep, output, before)

        # Prepended: transformers' own hooks record hidden states and must see the input of the next block.
        return block.register_forward_hook(skip, prepend=True)


CACHED = "states"
"""Name of computed states [N, K + 1, D] in a batch, in place of texts; see `ExitHeadsObjective.states`."""

Logged = dict[tuple[str, int | None], Tensor]
"""Values of one step by (metric, block); block None is the whole model."""


class Objective(Protocol):
    """Protocol of a training objective: a loss, values to log, and modules trained in addition to the model's own."""

    @property
    def extras(self) -> nn.Module | None:
        """Modules trained in addition to the model's own, such as exit heads; None if there are none."""

    def __call__(self, model: PreTrainedModel, batch: Batch, step: int) -> tuple[Tensor, Logged]:
        """Return the loss of a batch at a training step (0-based), and values to log by (metric, block).

        Block is None for a value of the whole model.
        """


def make_objective(recipe: Recipe, model: PreTrainedModel) -> Objective:
    """Return the training objective of a recipe for a decoder; the model is frozen if only exit heads are trained."""
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
        weights_L = block_weights(n_blocks, cast(JointLoss, settings.loss), settings.blocks)
        objective = JointObjective(weights_L, settings.label_smoothing)
    if not settings.every_block_steps:
        return objective
    first = JointObjective(block_weights(n_blocks, "weighted"), settings.label_smoothing)
    return ByStep(lambda step: step < settings.every_block_steps, first, objective)


def block_count(model: PreTrainedModel) -> int:
    """Return the number of decoder blocks of a transformers model, L."""
    return len(decoder_blocks(model))


@dataclass
class JointObjective:
    """Objective: weighted sum of all blocks' cross-entropies, read out by the model's own LM head (CALM, FREE).

    Attributes:
        weights_L: Weight of each block's cross-entropy; blocks with weight 0 are not read out.
        label_smoothing: Share of the correct token's probability that is spread over the vocabulary.
        extras: Modules trained in addition to the model's own; None, since there are none.
    """

    weights_L: Tensor
    label_smoothing: float
    extras: nn.Module | None = None

    def __call__(self, model: PreTrainedModel, batch: Batch, step: int) -> tuple[Tensor, Logged]:
        """Return the weighted sum of the blocks' cross-entropies on a batch, and each block's cross-entropy to log."""
        return weighted_losses(decoder_states(model, batch), self.weights_L, self.label_smoothing)


class ByStep:
    """Objective that is `first` at the training steps (counted from 0) for which `uses_first` is true, else `other`.

    Additional modules (`extras`) are those of `other`.
    """

    def __init__(self, uses_first: Callable[[int], bool], first: Objective, other: Objective) -> None:
        self.uses_first, self.first, self.other = uses_first, first, other
        self.extras = other.extras

    def __call__(self, model: PreTrainedModel, batch: Batch, step: int) -> tuple[Tensor, Logged]:
        """Return the loss and logged values of the objective in effect at this training step."""
        return (self.first if self.uses_first(step) else self.other)(model, batch, step)


def weighted_losses(states: States, weights_L: Tensor, label_smoothing: float) -> tuple[Tensor, Logged]:
    """Return the weighted sum of the blocks' cross-entropies in nats, and each block's cross-entropy to log.

    Args:
        states: States of every block, with labels and the model's read-out.
        weights_L: Weight of each block, [L]; blocks with weight 0 are not read out.
        label_smoothing: Share of the correct token's probability that is spread over the vocabulary.
    """
    total, logged = torch.zeros((), device=states.head.device), Logged()
    for block, weight in enumerate(weights_L.tolist(), start=1):
        if weight > 0:
            loss = head_loss(states.head_input(block), states.head, states.gold, label_smoothing, states.head_bias)
            logged["block_loss_nats", block] = loss.detach()
            total = total + weight * loss
    return total, logged


class ShallowDeepObjective:
    """Objective of FREE: cross-entropies of a shallow block S and the last block L, and a distillation loss.

    By the distillation loss, the states of blocks 1..S imitate those of deeper blocks.
    """

    def __init__(self, settings: ObjectiveRecipe, n_blocks: int, width: int) -> None:
        self.settings = settings
        self.weights_L = shallow_deep_weights(n_blocks, settings.shallow_blocks)
        self.extras = nn.Linear(width, width) if settings.distillation_transform else None

    def __call__(self, model: PreTrainedModel, batch: Batch, step: int) -> tuple[Tensor, Logged]:
        """Return the loss (S CE_S + L CE_L) / (S + L) + alpha KD of a batch, and its terms to log.

        CE_b is the cross-entropy of block b, S the shallow and L the last block. KD is the distillation loss between
        shallow and deep states; alpha is its weight in the recipe.
        """
        settings, states = self.settings, decoder_states(model, batch)
        loss, logged = weighted_losses(states, self.weights_L, settings.label_smoothing)
        if settings.distillation != "none":
            student = states.normed[: settings.shallow_blocks]
            distance = distillation_loss(student, states.normed, settings.distillation, self.extras)
            logged["distillation_loss", None] = distance.detach()
            loss = loss + settings.distillation_weight * distance
        return loss, logged


class LayerSkipObjective:
    """Objective of LayerSkip: cross-entropies of early blocks on a curriculum, with random skipping of blocks.

    The curriculum determines which blocks take part in the loss at each training step.
    """

    def __init__(self, settings: ObjectiveRecipe, n_blocks: int, steps: int, seed: int) -> None:
        self.settings, self.steps, self.seed = settings, steps, seed
        self.rates = dropout_rates(n_blocks, settings.layer_dropout)
        self.n_blocks = n_blocks
        self.extras: nn.Module | None = None

    def __call__(self, model: PreTrainedModel, batch: Batch, step: int) -> tuple[Tensor, Logged]:
        """Return the weighted sum of cross-entropies over this step's blocks, and each block's cross-entropy to log."""
        settings = self.settings
        weights_L = early_exit_weights(
            self.n_blocks, step, self.steps, settings.early_exit_scale, settings.curriculum, settings.rotation
        )
        # Seeded by seed and step, so that a resumed training draws the same as an uninterrupted one.
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        with LayerDropout(model, self.rates, generator):
            states = decoder_states(model, batch)
        return weighted_losses(states, weights_L, settings.label_smoothing)


class ExitHeadsObjective:
    """Objective that trains exit heads to imitate the last block of the frozen model (HEADS; tuned lens).

    An exit head is a trained read-out after a block, which turns its state into logits.
    """

    def __init__(self, settings: ExitHeadsRecipe, model: PreTrainedModel, seed: int) -> None:
        self.settings = settings
        self.blocks = settings.blocks(block_count(model))
        self.own = own_read_out(model)
        head = self.own.head
        has_own_norm = settings.kind == "lens" or (settings.init == "scratch" and settings.kind not in WITH_LM_HEAD)
        norm: Any = None if has_own_norm else final_norm(model)
        copies_mlp = settings.kind == "residual-mlp" and settings.init == "copy"
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
            logit_scale=self.own.scale,
            lm_head_bias=self.own.head_bias,
            block_mlps={block: block_mlp(model, block) for block in self.blocks} if copies_mlp else None,
        )
        # Parameter names must not contain dots.
        self.extras = nn.ParameterDict({name.replace(".", "/"): nn.Parameter(t) for name, t in tensors.items()})

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Weights of the exit heads, by their names in `exit_heads.safetensors`."""
        return {name.replace("/", "."): tensor for name, tensor in self.extras.items()}

    def __call__(self, model: PreTrainedModel, batch: Batch, step: int) -> tuple[Tensor, Logged]:
        """Return the mean loss over the exit heads, and each head's loss, agreement with the last block, and entropy.

        The values per head are for the log.

        The batch has texts, or the states of its tokens that were computed before training (key `CACHED`).
        """
        *states_KND, final_ND = self.states(model, batch).unbind(1)
        read = self._read_in_lm_head if self.settings.kind in WITH_LM_HEAD else self._read_each
        losses_K, agreements_K, entropies_K = read(states_KND, final_ND)
        logged = Logged()
        for k, block in enumerate(self.blocks):
            logged["exit_head_loss", block] = losses_K[k].detach()
            logged["exit_head_accuracy", block] = agreements_K[k]
            logged["exit_head_entropy_nats", block] = entropies_K[k]
        return losses_K.mean(), logged

    @torch.no_grad()
    def states(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        """Return states of N tokens after the K blocks with exit heads, and the LM head's input, [N, K + 1, D].

        The LM head's input is the state after the last block and final norm. States that were computed before training
        are taken from the batch if it has them (key `CACHED`).
        """
        model.eval()  # dropout would make features and targets noisy, and with cached states the read-out
        if CACHED in batch:
            return batch[CACHED]
        if self.settings.positions == "all" and not model.config.is_encoder_decoder:
            labels = torch.where(batch["attention_mask"].bool(), batch["input_ids"], IGNORED)
            batch = {**batch, "labels": labels}
        states = decoder_states(model, batch)
        return torch.stack([*(states.raw[block - 1] for block in self.blocks), states.normed[-1]], dim=1)

    def _read_in_lm_head(self, states_KND: Sequence[Tensor], final_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return loss, agreement with the last block, and entropy, each [K], of exit heads that end in the LM head.

        The loss is the KL divergence from the last block's distribution.

        Args:
            states_KND: States of N tokens after the K blocks with exit heads.
            final_ND: The LM head's input after the last block.
        """
        own, tensors = self.own, self.tensors
        inputs = [
            lm_head_input(tensors, self.settings.kind, block, state_ND, own) * own.scale
            for block, state_ND in zip(self.blocks, states_KND, strict=True)
        ]
        return lm_head_divergences(inputs, final_ND * own.scale, own.head, own.head_bias)

    def _read_each(self, states_KND: Sequence[Tensor], final_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return loss, agreement with the last block, and entropy, each [K], of exit heads with their own output layer.

        The loss combines the cross-entropy to the last block's tokens or distribution with a reward for entropy.

        Args:
            states_KND: States of N tokens after the K blocks with exit heads.
            final_ND: The LM head's input after the last block.
        """
        with torch.no_grad():
            final_NV = self.own.logits_of_normed(final_ND)
            choices_N = final_NV.argmax(-1)
            target = choices_N if self.settings.target == "hard" else final_NV.softmax(-1)
        losses, agreements, entropies = [], [], []
        for block, state_ND in zip(self.blocks, states_KND, strict=True):
            logits_NV = exit_logits(self.tensors, self.settings.kind, block, state_ND, self.own)
            losses.append(exit_head_loss(logits_NV, target, self.settings.entropy_weight))
            log_p_NV = logits_NV.detach().log_softmax(-1)
            agreements.append((log_p_NV.argmax(-1) == choices_N).float().mean())
            entropies.append(-(log_p_NV.exp() * log_p_NV).sum(-1).mean())
        return torch.stack(losses), torch.stack(agreements), torch.stack(entropies)


@torch.no_grad()
def head_quality(
    objective: ExitHeadsObjective, tensors: Mapping[str, Tensor], model: PreTrainedModel, batches: Sequence[Batch]
) -> dict[str, Any]:
    """Return how well exit heads, and the model's own LM head at the same blocks, imitate the last block.

    Both read teacher-forced validation texts, at the kind of positions that the heads are trained on.

    Args:
        objective: The objective that trained the exit heads.
        tensors: Weights of the exit heads, by their names in `exit_heads.safetensors`.
        model: The frozen model.
        batches: Batches of validation texts.

    Returns:
        `blocks`, `tokens` (their number), and lists of one value per block: `agreement` (share of tokens whose most
        probable token is the last block's) and `divergence_nats` (mean of KL(last block || head)). The same for the
        model's own LM head with prefix `own_`.
    """
    kind, own, blocks = objective.settings.kind, objective.own, objective.blocks
    agreements, divergences = torch.zeros(2, len(blocks), 2, dtype=torch.float64)
    n_tokens = 0
    for batch in batches:
        states_NKD = objective.states(model, {name: tensor.to(model.device) for name, tensor in batch.items()})
        for states_SKD in torch.split(states_NKD, VOCABULARY_SLICE_TOKENS):
            *states_KSD, final_SD = states_SKD.unbind(1)
            final_SV = own.logits_of_normed(final_SD)
            for k, (block, state_SD) in enumerate(zip(blocks, states_KSD, strict=True)):
                for i, logits_SV in enumerate((own.logits(state_SD), exit_logits(tensors, kind, block, state_SD, own))):
                    agreements[k, i] += (logits_SV.argmax(-1) == final_SV.argmax(-1)).sum().cpu()
                    divergences[k, i] += tuned_lens_loss(logits_SV, final_SV).cpu() * len(final_SV)
        n_tokens += len(states_NKD)
    result: dict[str, Any] = {"blocks": list(blocks), "tokens": n_tokens}
    for name, sums in (("agreement", agreements), ("divergence_nats", divergences)):
        result[f"own_{name}"], result[name] = (sums / n_tokens).T.tolist()
    return result


@torch.no_grad()
def block_quality(model: PreTrainedModel, batches: Sequence[Batch]) -> tuple[list[float], list[float]]:
    """Return each decoder block's teacher-forced token accuracy and mean loss in nats, with the model's own LM head.

    Args:
        model: The model.
        batches: Batches of validation texts.

    Returns:
        Accuracies of blocks 1..L (share of tokens equal to the label), and mean cross-entropies of blocks 1..L.
    """
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
