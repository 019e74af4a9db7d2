"""Parts of a method: gate x threshold x head x KV policy. Plug-ins import their base classes from here.

Blocks are numbered 1..L; an exit layer is the number of blocks executed.
"""

from exitbench.methods.base.cost import Cost, Drafting
from exitbench.methods.base.method import NOTHING_FITTED, FitData, Fitted, Method, check_block
from exitbench.methods.base.params import param
from exitbench.methods.base.parts import Gate, Head, KVPolicy, Parts, Threshold, blocks_from
from exitbench.methods.base.protocols import DecoderCache, LogitBounds, ModelInterface
from exitbench.methods.base.view import ActiveRows, BlockView, Reading, argmax_token

__all__ = [
    "NOTHING_FITTED",
    "ActiveRows",
    "BlockView",
    "Cost",
    "DecoderCache",
    "Drafting",
    "FitData",
    "Fitted",
    "Gate",
    "Head",
    "KVPolicy",
    "LogitBounds",
    "Method",
    "ModelInterface",
    "Parts",
    "Reading",
    "Threshold",
    "argmax_token",
    "blocks_from",
    "check_block",
    "param",
]
