"""Score and FLOPs of the softmax gate over whole and pruned heads (PRUNE figures 4 and 5)."""

from functools import partial

from exitbench.reports.figures.prune import STAND_INS, cheapest_head, costs

TITLE = "Pruning the vocabulary of the softmax gate: score and FLOPs"
CAPTION = (
    "Left: the task's score, dotted at full depth. Right: FLOPs of whole answers as multiples of full depth's, on a "
    "logarithmic axis, of the whole model and of its LM head. Our count includes every row of the head that was "
    "multiplied. The published rule omits the read of the whole vocabulary at the first gated block, which chooses "
    "the ids to keep. It also counts d² per row instead of 2 d, which multiples do not show. If every token exits at "
    "that block, nothing remains, a 0 at the edge. Bars and lines are 95 % intervals over documents. Of the first "
    "gated blocks that were run, the one nearest to the published 7 of 24 (last block trained) or 2 of 24 (every "
    "block) is shown. Figures 4 (SQuAD) and 5 (SamSum) of PRUNE, which have absolute FLOPs, on our models and data. "
    f"{STAND_INS} Gray crosses: published scores, and published FLOPs relative to its unpruned gate, whose cross is "
    "placed on ours. By id: the published form of decaying; by rank: that of the text. “FLOPs saved by pruning” below "
    "shows the full read by block."
)

HEADS = {
    ("calm-softmax", "full"): "none",
    ("calm-softmax", "pruned-fixed"): "fixed",
    ("calm-softmax", "pruned-decaying-idsorted"): "decaying (by id)",
    ("calm-softmax", "pruned-decaying"): "decaying (by rank)",
}

finding = partial(cheapest_head, names=HEADS)
plot = partial(costs, names=HEADS, timed=False)
