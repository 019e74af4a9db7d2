"""DEL: self-speculative decoding that adapts exit layer and draft length to the acceptance seen in the answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from exitbench.methods.base import (
    NOTHING_FITTED,
    BlockView,
    Cost,
    Gate,
    Method,
    ModelInterface,
    Parts,
    argmax_token,
    blocks_from,
    check_block,
    param,
)
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import Speculation
from exitbench.methods.registry import register
from exitbench.methods.thresholds import Constant


class BestDraft(Gate):
    """Gate that scores 1 at the exit layer it chose for a row's next drafts, until it has made their chosen number.

    It chooses from counts that it keeps per row during an answer (its answer memory), weighted by age. `compared_A`
    counts comparisons with full depth, and `matches_AC` the matches of each of C candidate blocks. The choice is
    stored there too: `exit_layer_A`, and the number of drafts `drafts_A` (0: no draft).

    Args:
        candidates: Blocks at which a row may draft, ascending.
        max_drafts: Maximum number of drafts before they are verified.
        memory_decay: Weight of a comparison relative to the next one.
        head_blocks: Cost of one read of the LM head, in blocks.
    """

    needs_history: ClassVar[bool] = True
    remembers: ClassVar[bool] = True
    reads_logits: ClassVar[bool] = False

    def __init__(self, candidates: Sequence[int], max_drafts: int, memory_decay: float, head_blocks: float) -> None:
        self._candidates, self._max_drafts = tuple(candidates), max_drafts
        self._memory_decay, self._head_blocks = memory_decay, head_blocks

    def start_answers(self, n_rows: int, device: torch.device) -> dict[str, Tensor]:
        """Return an answer memory of zeros: a row does not draft before its first comparison with full depth."""
        return {
            "matches_AC": torch.zeros(n_rows, len(self._candidates), dtype=torch.float64, device=device),
            "compared_A": torch.zeros(n_rows, dtype=torch.float64, device=device),
            "exit_layer_A": torch.zeros(n_rows, dtype=torch.long, device=device),
            "drafts_A": torch.zeros(n_rows, dtype=torch.long, device=device),
        }

    def score(self, view: BlockView) -> Tensor:
        """Return 1 for rows that draft at this block and 0 for the other active rows, [A]."""
        waiting_A = torch.tensor(view.waiting_A, device=view.hidden_AD.device)
        drafts_A = (view.answer_memory["exit_layer_A"] == view.block) & (waiting_A < view.answer_memory["drafts_A"])
        return drafts_A.float()

    def remember(self, view: BlockView, token_A: Tensor) -> None:
        """Update the rate at which each candidate block predicts full depth's token, and choose the next drafts by it.

        This happens only for tokens ``token_A`` that were emitted after the last block.
        """
        if not (view.is_last and self._candidates):
            return
        states_CAD = torch.stack([view.state(block) for block in self._candidates])
        predicted_N = argmax_token(view.model.logits(states_CAD.flatten(0, 1)))
        agrees_AC = (predicted_N.view(len(self._candidates), -1) == token_A).T
        memory = view.answer_memory
        matches_AC = memory["matches_AC"] * self._memory_decay + agrees_AC
        compared_A = memory["compared_A"] * self._memory_decay + 1
        # Half a match and half a mismatch in advance: one comparison is no certainty.
        acceptance_AC = (matches_AC + 0.5) / (compared_A[:, None] + 1)
        exit_layer_A, drafts_A = self._choice(acceptance_AC, view.model.n_blocks)
        view.answer_memory |= {
            "matches_AC": matches_AC,
            "compared_A": compared_A,
            "exit_layer_A": exit_layer_A,
            "drafts_A": drafts_A,
        }

    def _choice(self, acceptance_AC: Tensor, n_blocks: int) -> tuple[Tensor, Tensor]:
        """Return exit layer [A] and number of drafts [A] with the most expected tokens per block run (DEL's TPL).

        Both are 0 for rows in which no draft is expected to pay. ``acceptance_AC`` has the estimated probability that a
        draft of each candidate block is accepted.
        """
        lengths_K = torch.arange(self._max_drafts + 1, device=acceptance_AC.device)
        blocks_C = acceptance_AC.new_tensor(self._candidates)
        tokens_ACK = (acceptance_AC[:, :, None] ** lengths_K).cumsum(-1)
        drafting_CK = (blocks_C + self._head_blocks)[:, None] * lengths_K
        best_A = (tokens_ACK / (drafting_CK + n_blocks + self._head_blocks)).flatten(1).argmax(-1)
        drafts_A = best_A % len(lengths_K)
        exit_layer_A = blocks_C.long()[best_A // len(lengths_K)]
        return torch.where(drafts_A > 0, exit_layer_A, 0), drafts_A

    def remember_cost(self, model: ModelInterface, exit_layer: int) -> Cost:
        """Return the cost of one LM-head product for the states of all candidate blocks; 0 if the token exits early."""
        if exit_layer < model.n_blocks or not self._candidates:
            return Cost()
        numel = model.vocab_size * model.d_model
        return Cost(matmul_flops=2.0 * numel * len(self._candidates), read_numel=numel)


@register
@dataclass(frozen=True)
class DynamicExitLayer(Method):
    """Draft with the exit layer and draft length from which most tokens per block run are expected (DEL).

    Both are chosen again after every full-depth token, from the acceptance seen in the answer so far. Full depth
    verifies every draft, so the answer equals that of greedy full depth up to rounding.
    """

    name: ClassVar[str] = "del"
    source: ClassVar[str] = "DEL (arXiv 2504.05598)"

    min_exit: int = param(1, "first block that may draft", low=1)
    every: int = param(1, "every n-th block from min_exit on may draft", low=1)
    max_drafts: int = param(6, "longest draft", low=1)
    memory_decay: float = param(0.95, "weight of a comparison relative to the next one", low=0.0, high=1.0)
    head_blocks: float = param(
        0.0, "blocks that one read of the LM head counts as when the draft is chosen; DEL counts none", low=0.0
    )

    def check(self, n_blocks: int) -> None:
        """Raise UserError if `min_exit`, the first block that may draft, is deeper than the decoder."""
        check_block(self, "min_exit", n_blocks)

    def parts(self, n_blocks: int, fitted: Mapping[str, Tensor] = NOTHING_FITTED) -> Parts:
        """Return gate, threshold, head and KV policy; the gate is evaluated at every block that may draft."""
        blocks = blocks_from(self.min_exit, n_blocks, self.every)
        gate = BestDraft(sorted(blocks), self.max_drafts, self.memory_decay, self.head_blocks)
        return Parts(gate, Constant(0.5), LMHead(), Speculation(self.max_drafts), blocks)
