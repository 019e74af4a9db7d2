"""AdamW with a rate of its own for embeddings and position tables; Muon for the matrices if asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from exitbench.harness.training.recipe import OptimisationRecipe


class Together(torch.optim.Optimizer):
    """Several optimisers over different parameters, stepped, scheduled and saved as one."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers
        super().__init__([p for o in optimizers for group in o.param_groups for p in group["params"]], {})
        self._share_groups()

    def _share_groups(self) -> None:
        """Let schedulers write into the optimisers' own groups."""
        self.param_groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step each."""
        for optimizer in self.optimizers:
            optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """The states of all, in order."""
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        for optimizer, state in zip(self.optimizers, state_dict["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self._share_groups()


def make_optimizer(model: nn.Module, settings: OptimisationRecipe) -> torch.optim.Optimizer:
    """The optimiser of all parameters that learn; weight decay for matrices only."""
    embeddings: list[nn.Parameter] = []
    positions: list[nn.Parameter] = []
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    embedding = model.get_input_embeddings().weight  # type: ignore[operator]
    # Rows that are looked up or chosen, one a token or a position: orthogonalised as a whole, they would be mixed.
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    head = model.get_output_embeddings()  # type: ignore[operator]
    if head is not None:  # a classifier has none
        tables.add(id(head.weight))
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter is embedding:
            embeddings.append(parameter)
        elif "relative_attention_bias" in name:  # one row a bucket: a look-up, not a matrix that maps states
            positions.append(parameter)
        elif id(parameter) in tables and settings.optimizer == "muon":
            others.append(parameter)
        else:
            (matrices if parameter.dim() == 2 else others).append(parameter)
    rate = settings.learning_rate
    groups: list[dict[str, Any]] = [
        {"params": embeddings, "lr": rate * settings.embedding_learning_rate_factor, "weight_decay": 0.0},
        {"params": positions, "lr": rate * settings.position_learning_rate_factor, "weight_decay": 0.0},
        {"params": others, "lr": rate, "weight_decay": 0.0},
    ]
    muon: list[torch.optim.Optimizer] = []
    if settings.optimizer == "muon":
        lr, decay = settings.muon_learning_rate, settings.weight_decay
        muon.append(torch.optim.Muon(matrices, lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    else:
        groups.append({"params": matrices, "lr": rate, "weight_decay": settings.weight_decay})
    known = [group for group in groups if group["params"]]
    return Together([torch.optim.AdamW(known, betas=(0.9, settings.adam_beta2), fused=True), *muon])
