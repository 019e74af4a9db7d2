"""Score and FLOPs of the softmax gate over whole and pruned heads (PRUNE figures 4 and 5)."""

from functools import partial

from exitbench.reports.figures.prune import STAND_INS, cheapest_head, costs

TITLE = "Pruning the vocabulary of the softmax gate: score and FLOPs"
CAPTION = (
    "Left: the task's score, dotted at full depth. Right: FLOPs of whole answers in multiples of full depth's, on a "
    "logarithmic axis, of the whole model and of its LM head. As we count, every row of the head that was multiplied "
    "is in. The published rule leaves out the read of the whole vocabulary at the first block asked, which chooses "
    "the ids to keep (and takes d² for a row instead of 2 d, which multiples do not show); where every token leaves "
    "at that block nothing is left, a 0 at the edge. Bars and lines are 95 % intervals over documents. The first "
    "block asked is the one run that is nearest to the published 7 of 24 (last block trained) or 2 of 24 (every "
    "block). Figures 4 (SQuAD) and 5 (SamSum) of PRUNE, which have absolute FLOPs, on our models and data; "
    f"{STAND_INS[0].lower()}{STAND_INS[1:]} Grey crosses: published scores, and published FLOPs relative to its "
    "unpruned gate, whose cross is put on ours. By id: the published form of decaying; by rank: that of the text. "
    "“FLOPs saved by pruning” below follows the full read by block."
)

HEADS = {
    ("calm-softmax", "full"): "none",
    ("calm-softmax", "pruned-fixed"): "fixed",
    ("calm-softmax", "pruned-decaying-idsorted"): "decaying (by id)",
    ("calm-softmax", "pruned-decaying"): "decaying (by rank)",
}

finding = partial(cheapest_head, names=HEADS)
plot = partial(costs, names=HEADS, timed=False)
