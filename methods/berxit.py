"""BERxiT: exit on the score of a learned module that predicts whether an off-ramp is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from exitbench.errors import UserError
from exitbench.methods.base import BlockView, Cost, FitData, Fitted, Gate, Head, ModelInterface, argmax_token, param
from exitbench.methods.gated import PeriodicGating, Thresholded
from exitbench.methods.heads import TrainedHead
from exitbench.methods.registry import register

BATCH = 256


class LearnedCorrectness(Gate):
    """Gate whose score is sigmoid(w x + b) of the state x: the predicted probability that the off-ramp is right.

    Right means that the off-ramp's label is the reference's. All blocks share w and b; x has the final norm applied.

    Args:
        fitted: ``weight`` [D] and ``bias`` []; may be empty if `score` is never called.
    """

    reads_logits: ClassVar[bool] = False

    def __init__(self, fitted: Mapping[str, Tensor]) -> None:
        self.fitted = fitted

    def score(self, view: BlockView) -> Tensor:
        """Return the predicted probability that the off-ramp is right, for each active row, [A]."""
        state_AD = view.model.final_normed(view.hidden_AD).float()
        return torch.sigmoid(state_AD @ self.fitted["weight"] + self.fitted["bias"])

    def cost(self, model: ModelInterface, gate_blocks: Sequence[int]) -> Cost:
        """Return the cost of one dot product per gate block."""
        return Cost(matmul_flops=2 * model.d_model * len(gate_blocks), read_numel=model.d_model * len(gate_blocks))


@register
@dataclass(frozen=True)
class Berxit(Thresholded, PeriodicGating):
    """Exit when a linear module, shared by all blocks, predicts that the off-ramp's label is the reference's.

    The module is trained on the states of the frozen model, with the squared error of its prediction as loss.
    """

    name: ClassVar[str] = "berxit"
    source: ClassVar[str] = "BERxiT (learning to exit)"
    head_class: ClassVar[type[Head]] = TrainedHead

    epochs: int = param(5, "passes over the train split", low=1)
    learning_rate: float = param(1e-2, "learning rate of AdamW", low=0.0)
    fit_seed: int = param(0, "seed of the data order", low=0)

    def check(self, n_blocks: int) -> None:
        """Raise UserError if the model has only one block: the module is trained on the blocks before the last."""
        super().check(n_blocks)
        if n_blocks < 2:
            raise UserError(f"{self.name} needs a model of at least 2 blocks, not {n_blocks}.")

    def gate(self, fitted: Mapping[str, Tensor]) -> LearnedCorrectness:
        """Return the gate with the fitted module."""
        return LearnedCorrectness(fitted)

    def gate_fit_params(self) -> dict[str, Any]:
        """Return the parameters that affect the training of the linear module, by name."""
        return {"epochs": self.epochs, "learning_rate": self.learning_rate, "fit_seed": self.fit_seed}

    def fit_gate(self, train_data: FitData, held_out_data: FitData, on_progress: Callable[[float], None]) -> Fitted:
        """Train the linear module with AdamW; the training curve has the losses and held-out accuracy of each epoch."""
        generator = torch.Generator().manual_seed(self.fit_seed)
        (state_MD, right_M), (other_MD, other_M) = _examples(train_data), _examples(held_out_data)
        weight = state_MD.new_zeros(state_MD.shape[1]).requires_grad_()
        bias = state_MD.new_zeros(()).requires_grad_()
        optimizer = torch.optim.AdamW([weight, bias], lr=self.learning_rate)
        curve = []
        for epoch in range(1, self.epochs + 1):
            total = 0.0
            for index_M in torch.split(torch.randperm(len(state_MD), generator=generator), BATCH):
                at_M = index_M.to(state_MD.device)
                with torch.enable_grad():
                    loss = F.mse_loss(torch.sigmoid(state_MD[at_M] @ weight + bias), right_M[at_M])
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                total += float(loss.detach()) * len(index_M)
            with torch.no_grad():
                p_right_M = torch.sigmoid(other_MD @ weight + bias)
                hits = ((p_right_M > 0.5).float() == other_M).float().mean()
                held_out_loss = float(F.mse_loss(p_right_M, other_M))
            row = {
                "train_loss": total / len(state_MD),
                "held_out_loss": held_out_loss,
                "held_out_accuracy": float(hits),
            }
            curve.append({"epoch": float(epoch), **row})
            on_progress(epoch / self.epochs)
        return Fitted({"weight": weight.detach().clone(), "bias": bias.detach().clone()}, curve)


def _examples(data: FitData) -> tuple[Tensor, Tensor]:
    """Return normed states [M, D] of M (block, document) pairs, and whether the off-ramp is right (1) or not (0), [M].

    Blocks are 1..L-1. Right means equal to the reference's label.
    """
    head, states, right = TrainedHead(), [], []
    for block, state_ND in enumerate(data.states_LND[1:-1], start=1):
        states.append(data.model.final_normed(state_ND).float())
        right.append((argmax_token(head.logits_after(data.model, block, state_ND)) == data.gold_token_N).float())
    return torch.cat(states), torch.cat(right)
