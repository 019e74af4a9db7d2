"""Oracle exit: the first block that already says what full depth would say."""

from dataclasses import dataclass
from typing import ClassVar

from exitbench.methods.base import Method, Parts, blocks_from, param
from exitbench.methods.gates import FullAgreement
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import StateCopy
from exitbench.methods.registry import register
from exitbench.methods.thresholds import Constant


@register
@dataclass(frozen=True)
class Oracle(Method):
    """Exit at the first block whose choice is the last block's; keys and values of skipped blocks are copied for real.

    The full depth is run for every token to know its choice, so nothing is saved: the exit layers are what a perfect
    gate would reach, including the damage that state copying does to later tokens (t5x `oracle_tok_consistency`).
    """

    name: ClassVar[str] = "oracle"
    source: ClassVar[str] = "methods.md 1.12, token-consistency and stable oracles"

    stable: bool = param(False, "false: first match, which may be lost again; true: from there on every block agrees")

    def parts(self, n_blocks: int) -> Parts:
        """A gate that looks ahead."""
        return Parts(FullAgreement(self.stable), Constant(0.5), LMHead(), StateCopy(), blocks_from(1, n_blocks))
