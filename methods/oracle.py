"""Oracle exit: the first block whose token is already that of full depth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from exitbench.methods.base import NOTHING_FITTED, BlockView, Gate, Parts, argmax_token, blocks_from, param
from exitbench.methods.gated import Skipping
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import KV_POLICIES
from exitbench.methods.registry import register
from exitbench.methods.thresholds import Constant


class FullAgreement(Gate):
    """Gate that scores 1 if this block's most probable token is that of the last block, else 0.

    With ``stable``, it must also be that of every block in between. All blocks run before the gate is evaluated. The
    gate's declared cost is zero, as if the exit layers were known in advance.
    """

    looks_ahead: ClassVar[bool] = True

    def __init__(self, stable: bool) -> None:
        self.stable = stable

    def score(self, view: BlockView) -> Tensor:
        """Return 1 for each active row whose most probable token is already that of the last block, else 0, [A].

        With ``stable``, all blocks in between must agree too.
        """
        if "agrees_AL" not in view.memory:
            choice_LA = argmax_token(view.logits_ahead_LAV)
            agrees_LA = choice_LA == choice_LA[-1]
            if self.stable:
                agrees_LA = agrees_LA.flip(0).cummin(0).values.flip(0)
            view.memory["agrees_AL"] = agrees_LA.T
        return view.memory["agrees_AL"][:, view.block - 1].float()

    def score_sql(self, gate_blocks: Sequence[int]) -> str:
        """Return SQL for the score at block ``l``, from a probe's columns (stored predictions of every block)."""
        return "(l >= stable_from)::INT" if self.stable else "(top1_id[l] = top1_id[-1])::INT"


@register
@dataclass(frozen=True)
class Oracle(Skipping):
    """Exit at the first block whose most probable token is that of the last block.

    All blocks run for every token to find its exit layer, so no work is saved. The exit layers are those of a perfect
    gate. But the KV policy fills the skipped blocks, for example with copied states (t5x's `oracle_tok_consistency`),
    which may change later tokens. A replay gives the ideal oracle without this effect: it recomputes exits from the
    stored predictions of every block.
    """

    name: ClassVar[str] = "oracle"
    source: ClassVar[str] = "t5x's token-consistency oracle; NATCAP's ideal exit (first); stable: this project's"

    match: str = param(
        "first",
        "first: first block that matches full depth; stable: first from which all later ones match",
        choices=("first", "stable"),
    )

    def parts(self, n_blocks: int, fitted: Mapping[str, Tensor] = NOTHING_FITTED) -> Parts:
        """Return gate, threshold, head and KV policy; the oracle gate is evaluated at every block before the last."""
        gate, policy = FullAgreement(self.match == "stable"), KV_POLICIES[self.kv_policy]
        return Parts(gate, Constant(0.5), LMHead(), policy, blocks_from(1, n_blocks))
