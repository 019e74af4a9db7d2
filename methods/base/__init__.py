"""Base classes of a method's four parts: gate, threshold, head and KV policy. Plug-ins import them from here.

Blocks are numbered 1..L. An exit layer is the block after which a token is emitted.

A method is a frozen dataclass, registered by name, whose fields are its documented parameters; it builds `Parts`. The
decode loop evaluates the gate at the method's blocks and compares the score with the threshold. A row of the batch
exits if its score is higher: the head gives its token, and the KV policy handles the blocks it skipped. The contract of
each part:

* A gate stores the state that it carries from block to block in `view.memory`, from which the loop drops the rows that
  exit. Gates with `needs_history` read the states of earlier blocks, those with `looks_ahead` (oracles) later ones.
* What a gate carries from token to token of an answer is in `view.answer_memory` (`start_answers`, `remember`). It
  stays with the row, so that a row's tokens do not depend on the other rows of its batch.
* `score_sql` computes the same number as `score` from a probe, the stored record of every block's predictions. A replay
  recomputes exits from it at other thresholds, without running the model.
* Log-likelihoods of given tokens come from `log_p`, not `choose`: the distribution over the whole vocabulary from which
  the method emits (docs/likelihood.md). A gate that overrides `choose` also overrides `log_p`, or explains in
  `why_no_log_p` why it cannot. A head that may read a part of the vocabulary sets `reads_part`.
* `Parts.certified` replaces the head by one that computes intervals of the logits first (`BlockView.bounds`). A gate's
  `bounds` is the range of its score over these intervals. The exact head is read only for rows whose decision is still
  open within that range.
* KV policies with `deferred` leave skipped blocks empty until a later token of the row runs them. Then the exit state
  is projected (`state-copy-lazy`), or the waiting token runs the block together with the later token (`sync-parallel`).
  Or all tokens since the last full pass run again from block 1 (`recompute-backlog`).
* Policies with `verifies` compare emitted tokens with full depth, and cut a row's answer and cache at the first
  rejected token.
* `Parts.cost` adds up the cost of an answer. The loop counts the LM head's weight rows that are multiplied for each
  token (`head_rows`), because a pruned head selects them while it runs.
* For encoders a document is one token of a decoder whose vocabulary is the labels. The head is the block's off-ramp or
  the model's classifier. `Gate.scores_numbers` marks a gate that can also score a regression.
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
