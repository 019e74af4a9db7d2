"""MEE's recurrent exit classifier: an LSTM over a token's states after successive blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exitbench.methods.base import BlockView, Cost, FitData, Gate, ModelInterface, param
from exitbench.methods.exit_networks import TrainedGate, exit_probability, normed_states
from exitbench.methods.registry import register


class BlockLSTM(nn.Module):
    """LSTM over the states of a token after successive blocks, with two logits (stay, exit) per block."""

    def __init__(self, d_model: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(d_model, hidden, layers)
        self.out = nn.Linear(hidden, 2)

    def forward(self, normed_MND: Tensor) -> Tensor:
        """Return logits [M, N, 2] of the final-normed states of N tokens after blocks 1..M, [M, N, D]."""
        return cast(Tensor, self.out(self.lstm(normed_MND)[0]))


class Recurrent(Gate):
    """Gate whose score is P(exit) from an LSTM over the states h^1 .. h^l after all blocks so far.

    The LSTM runs one step per block from block 1 on, also for blocks without a gate.

    Args:
        hidden: Width of the LSTM.
        layers: Number of LSTM layers.
        fitted: Weights of the LSTM and of the output layer.
        forgets: If True, reset the LSTM before block L-1, whose score then depends on h^{L-1} alone (as in the
            published code).
    """

    needs_history: ClassVar[bool] = True

    def __init__(self, hidden: int, layers: int, fitted: Mapping[str, Tensor], forgets: bool = False) -> None:
        self.hidden, self.layers, self.fitted, self.forgets = hidden, layers, fitted, forgets

    def score(self, view: BlockView) -> Tensor:
        """Return the LSTM's P(exit) for each active row, [A]."""
        memory, n_rows = view.memory, view.hidden_AD.shape[0]
        if "steps_A" not in memory:
            memory["steps_A"] = torch.zeros(n_rows, dtype=torch.long, device=view.hidden_AD.device)
            for name in ("h_AKH", "c_AKH"):
                memory[name] = torch.zeros(n_rows, self.layers, self.hidden, device=view.hidden_AD.device)
        for block in range(int(memory["steps_A"][0]) + 1, view.block + 1):
            if self.forgets and block == view.model.n_blocks - 1:
                memory |= {name: torch.zeros_like(memory[name]) for name in ("h_AKH", "c_AKH")}
            x_A = view.model.final_normed(view.state(block)).float()
            memory["h_AKH"], memory["c_AKH"] = self._step(x_A, memory["h_AKH"], memory["c_AKH"])
        memory["steps_A"] = torch.full_like(memory["steps_A"], view.block)
        top_AH = memory["h_AKH"][:, -1]
        return exit_probability(F.linear(top_AH, self.fitted["out.weight"], self.fitted["out.bias"]))

    def _step(self, x: Tensor, h_AKH: Tensor, c_AKH: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden and cell states [A, K, H] of K LSTM layers after one step on input ``x`` [A, D].

        It is faster than `torch.nn.LSTM`.
        """
        hs, cs = [], []
        for layer, (h, c) in enumerate(zip(h_AKH.unbind(1), c_AKH.unbind(1), strict=True)):
            w = {
                part: self.fitted[f"lstm.{part}_l{layer}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            }
            gates = F.linear(x, w["weight_ih"], w["bias_ih"]) + F.linear(h, w["weight_hh"], w["bias_hh"])
            enter, forget, new, output = gates.chunk(4, dim=-1)
            c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
            x = output.sigmoid() * c.tanh()
            hs.append(x)
            cs.append(c)
        return torch.stack(hs, dim=1), torch.stack(cs, dim=1)

    def cost(self, model: ModelInterface, gate_blocks: Sequence[int]) -> Cost:
        """Return the cost of an LSTM step per block up to the last gate block, and an output layer per gate block."""
        inputs = [model.d_model] + [self.hidden] * (self.layers - 1)
        step = sum(4 * self.hidden * (width + self.hidden) for width in inputs)
        numel = step * max(gate_blocks, default=0) + 2 * self.hidden * len(gate_blocks)
        return Cost(matmul_flops=2 * numel, elementwise_flops=20 * self.hidden * len(gate_blocks), read_numel=numel)


@register
@dataclass(frozen=True)
class MeeLstm(TrainedGate):
    """Exit when an LSTM that reads the state after every block predicts that this block's token is right.

    Right means equal to the token that full depth predicts, or to the reference's if `target` says so.
    """

    name: ClassVar[str] = "mee-lstm"
    source: ClassVar[str] = "MEE section 3"

    min_exit: int = param(4, "first block at which the gate is evaluated", low=1)
    decay: str = param(
        "code",
        "decay of the threshold with the position; MEE's runs use code",
        choices=("none", "code", "paper"),
    )
    layers: int = param(2, "LSTM layers: 2 (as in the text) or 1 (as in the code)", low=1, high=2)
    hidden: int = param(250, "width of the LSTM", low=1)
    variant: str = param(
        "text",
        "text: one pass over all blocks; code: the LSTM's state is reset before block L-1 is scored, as published",
        choices=("text", "code"),
    )

    def gate_fit_params(self) -> dict[str, Any]:
        """Return the parameters that affect the LSTM's training, by name; `variant` only affects the score."""
        return {name: value for name, value in super().gate_fit_params().items() if name != "variant"}

    def build_network(self, d_model: int) -> nn.Module:
        """Return the untrained LSTM with its output layer."""
        return BlockLSTM(d_model, self.hidden, self.layers)

    def features(self, data: FitData) -> Tensor:
        """Return the final-normed states of N tokens after blocks 1..L-1, [L-1, N, D]."""
        return normed_states(data)[1:-1]

    def gate(self, fitted: Mapping[str, Tensor]) -> Recurrent:
        """Return the gate with the fitted LSTM."""
        return Recurrent(self.hidden, self.layers, fitted, forgets=self.variant == "code")
