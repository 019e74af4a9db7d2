"""Exit classifiers: small networks on hidden states that decide whether to exit; their losses, training and gates.

A network maps features of (block, token) pairs to two logits, stay and exit; the score is P(exit).

Shape suffixes: M blocks that are trained on (1..L-1 or a part), N tokens, F features, C the two classes.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exitbench.errors import UserError
from exitbench.methods.base import FitData, Fitted, argmax_token, param
from exitbench.methods.gated import Gated
from exitbench.methods.offline import CHUNK_BYTES

LossName = Literal["calm", "logit-adjusted", "geometric", "free-code"]
LOSSES: tuple[LossName, ...] = ("calm", "logit-adjusted", "geometric", "free-code")
TARGETS = ("final-argmax", "gold-token")
BATCH_TOKENS = 256
LEAST_PRIOR = 1e-6  # a class that a batch lacks would give a logarithm of 0


@dataclass(frozen=True)
class TrainedGate(Gated):
    """Base class of gated methods whose gate is a small network, fitted on the frozen model's states.

    It learns whether a block's token is right: equal to full depth's, or to the reference's if `target` says so.
    """

    first_block: ClassVar[int] = 1
    """First block at which the network can be evaluated."""

    loss: str = param(
        "calm",
        "calm: cross-entropy balanced per block; logit-adjusted: pooled, with class priors (FREE, labels unshifted); "
        "geometric: likelihood of the first correct block; free-code: FREE with labels off by one block, as published",
        choices=LOSSES,
    )
    target: str = param(
        "final-argmax",
        "token that a correct block predicts: the last block's or the reference's",
        choices=TARGETS,
    )
    epochs: int = param(5, "passes over the train split", low=1)
    learning_rate: float = param(1e-3, "learning rate of AdamW", low=0.0)
    fit_seed: int = param(0, "seed of initial weights and data order", low=0)

    @abstractmethod
    def build_network(self, d_model: int) -> nn.Module:
        """Return the untrained network, which maps features [..., F] to two logits, stay and exit, [..., 2]."""

    @abstractmethod
    def features(self, data: FitData) -> Tensor:
        """Return the network's F input features of N tokens at the M blocks from `first_block` to L-1, [M, N, F]."""

    def check(self, n_blocks: int) -> None:
        """Raise UserError if the decoder has no block from `first_block` to L-1 to train the network on."""
        super().check(n_blocks)
        if n_blocks <= self.first_block:
            raise UserError(f"{self.name} needs a decoder of at least {self.first_block + 1} blocks, not {n_blocks}.")

    def gate_fit_params(self) -> dict[str, Any]:
        """Return the parameters that affect the network's training, by name.

        These are all except those for threshold, decay, gate blocks and KV policy.
        """
        shared = {item.name for item in dataclasses.fields(Gated)}
        return {name: value for name, value in self.params().items() if name not in shared}

    def fit_gate(self, train_data: FitData, held_out_data: FitData, on_progress: Callable[[float], None]) -> Fitted:
        """Train the network with AdamW; the training curve has the losses and held-out accuracy of each epoch."""
        generator = torch.Generator().manual_seed(self.fit_seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.fit_seed)
            network = self.build_network(train_data.model.d_model).to(train_data.states_LND.device)
        train, validation = (self._examples(data) for data in (train_data, held_out_data))
        loss = cast(LossName, self.loss)
        optimizer = torch.optim.AdamW(network.parameters(), lr=self.learning_rate)
        curve = []
        for epoch in range(1, self.epochs + 1):
            total = 0.0
            for batch in train.batches(generator):
                with torch.enable_grad():
                    value = exit_loss(loss, network(batch.features_MNF), batch)
                    optimizer.zero_grad()
                    value.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                total += float(value.detach()) * batch.right_MN.shape[1]
            with torch.no_grad():
                logits_MNC = network(validation.features_MNF)
                held_out_loss = float(exit_loss(loss, logits_MNC, validation))
                hits = (logits_MNC.argmax(-1) == validation.right_MN).float().mean()
            row = {"train_loss": total / train.right_MN.shape[1], "held_out_loss": held_out_loss}
            curve.append({"epoch": float(epoch), **row, "held_out_accuracy": float(hits)})
            on_progress(epoch / self.epochs)
        return Fitted({name: value.detach().clone() for name, value in network.state_dict().items()}, curve)

    def _examples(self, data: FitData) -> Examples:
        features_MNF = self.features(data)
        choice_LN = argmax_tokens(data)
        goal_N = data.final_token_N if self.target == "final-argmax" else data.gold_token_N
        right_LN = choice_LN == goal_N
        if self.loss == "free-code":  # block l is taught whether block l - 1 (block 1: block L) agrees with block L - 1
            right_LN = choice_LN.roll(1, 0) == choice_LN[-2]
        return Examples(features_MNF, right_LN[self.first_block - 1 : -1].long())


@dataclass(frozen=True)
class Examples:
    """Training examples of an exit classifier: features of M blocks and N tokens, and labels (1: the token is right).

    A block's token is right if it equals full depth's, or the reference's if the method's `target` says so.
    """

    features_MNF: Tensor
    right_MN: Tensor

    def batches(self, generator: torch.Generator) -> Iterator[Examples]:
        """Yield batches of tokens, in an order drawn from ``generator``; a batch has the examples at all M blocks."""
        for index_N in torch.split(torch.randperm(self.right_MN.shape[1], generator=generator), BATCH_TOKENS):
            yield Examples(self.features_MNF[:, index_N], self.right_MN[:, index_N])


def normed_states(data: FitData) -> Tensor:
    """Return the final-normed embedding (index 0) and outputs of blocks 1 to L, [L+1, N, D]."""
    return data.model.final_normed(data.states_LND).float()


def argmax_tokens(data: FitData) -> Tensor:
    """Return the most probable token after every block, by the model's LM head, [L, N]; in chunks to limit memory."""
    states_LND = data.states_LND[1:]
    chunk = max(1, CHUNK_BYTES // (4 * data.model.vocab_size * len(states_LND)))
    pieces = [argmax_token(data.model.logits(piece)) for piece in torch.split(states_LND, chunk, dim=1)]
    return torch.cat(pieces, dim=1)


def exit_loss(name: LossName, logits_MNC: Tensor, batch: Examples) -> Tensor:
    """Return the training loss of an exit classifier's logits (CALM section 3.5 and t5x; FREE's util/losses.py).

    ``logits_MNC`` has the logits for stay and exit, ``batch`` the labels, and ``name`` selects the loss.
    ``calm``: cross-entropy per block, averaged over blocks; positives are weighted by the share of negatives, and
    negatives by that of positives. ``logit-adjusted`` and ``free-code``: one cross-entropy over all blocks, of logits
    plus log class shares. ``geometric``: -log P(stop at the first right block), with
    P(stop at l) = P_l(exit) prod_{j<l} P_j(stay).
    """
    right_MN = batch.right_MN
    if name == "geometric":
        return _geometric(F.log_softmax(logits_MNC, dim=-1), right_MN)
    if name in ("logit-adjusted", "free-code"):
        share = right_MN.float().mean()
        prior_C = torch.stack([1 - share, share]).clamp(min=LEAST_PRIOR)
        return F.cross_entropy((logits_MNC + prior_C.log()).flatten(0, 1), right_MN.flatten())
    wrong_MN = F.cross_entropy(logits_MNC.flatten(0, 1), right_MN.flatten(), reduction="none").view(right_MN.shape)
    share_M1 = right_MN.float().mean(1, keepdim=True)
    weight_MN = torch.where(right_MN == 1, 1 - share_M1, share_M1)
    per_block_M = (weight_MN * wrong_MN).sum(1) / weight_MN.sum(1).clamp(min=1e-12)
    return per_block_M.mean()


def _geometric(log_p_MNC: Tensor, right_MN: Tensor) -> Tensor:
    stay_MN, exit_MN = log_p_MNC[..., 0], log_p_MNC[..., 1]
    stayed_MN = stay_MN.cumsum(0)
    before_MN = torch.cat([torch.zeros_like(stayed_MN[:1]), stayed_MN[:-1]])
    stop_MN = torch.cat([before_MN + exit_MN, stayed_MN[-1:]])  # last row: does not stop before block L
    ever_N = right_MN.any(0)
    first_N = torch.where(ever_N, right_MN.argmax(0), len(right_MN))
    return -stop_MN.gather(0, first_N[None])[0].mean()


class Perceptron:
    """Fitted `nn.Sequential` of linear layers with ReLU between them, without the per-call overhead of modules.

    Args:
        fitted: Weights and biases, with the names of `nn.Sequential`: ``0.weight``, ``0.bias``, ``2.weight``, ...
    """

    def __init__(self, fitted: Mapping[str, Tensor]) -> None:
        places = sorted(int(name.removesuffix(".weight")) for name in fitted if name.endswith(".weight"))
        layers = [(fitted[f"{place}.weight"], fitted.get(f"{place}.bias")) for place in places]
        self._inner, self._last = layers[:-1], layers[-1]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits for stay and exit, [A, 2], of features [A, F]."""
        for weight, bias in self._inner:
            x = F.linear(x, weight, bias).relu_()
        return F.linear(x, *self._last)


def exit_probability(logits_AC: Tensor) -> Tensor:
    """Return P(exit) of each row, [A], from its logits for stay and exit."""
    return torch.softmax(logits_AC, dim=-1)[..., 1]
