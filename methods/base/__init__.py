"""Parts of a method: gate x threshold x head x KV policy. Plug-ins import their base classes from here.

Blocks are numbered 1..L; an exit layer is the number of blocks executed.

A method is a frozen dataclass, registered by name, whose fields are its documented parameters; it builds `Parts`. The
decode loop evaluates the gate at the method's blocks, compares with the threshold, emits from the head, and hands rows
that leave to the KV policy. What each part promises:

* A gate keeps what it remembers in `view.memory`, from which the loop drops rows as they leave. `needs_history` gates
  read the states of earlier blocks, `looks_ahead` gates (oracles) those of later ones.
* `score_sql` gives over a probe what `score` returns, so that a replay can sweep the gate.
* Given tokens are scored with `log_p` in place of `choose`: the emitting distribution over the whole vocabulary
  (docs/likelihood.md). A gate that overrides `choose` also overrides `log_p`, or says `why_no_log_p`. A head that reads
  a part of the vocabulary says `reads_part`.
* `Parts.certified` replaces the head by one with bounds (`BlockView.bounds`). A gate's `bounds` says what its score can
  be within them; the exact head is read only for rows whose decision they leave open.
* KV policies with `deferred` leave skipped blocks until a later token of the row runs them. The exit state is
  projected (`state-copy-lazy`), the waiting token runs the block next to the later one (`sync-parallel`), or all tokens
  since the last full pass are fed again from block 1 (`recompute-backlog`).
* Policies with `verifies` compare with full depth, and then cut a row's answer and cache where it differs.
* `Parts.cost` adds up the work of an answer. The loop counts multiplied rows of the LM head per token (`head_rows`),
  because pruned heads decide them as they go.
* For encoders a document is one token of a decoder whose vocabulary is the labels. The head is the block's off-ramp or
  the model's classifier. `Gate.scores_numbers` says that a gate can score a regression too.
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
