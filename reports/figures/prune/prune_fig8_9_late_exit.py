"""Score, FLOPs and speed with a late first gated block (PRUNE figures 8 and 9)."""

from functools import partial

from exitbench.reports.figures.prune import STAND_INS, cheapest_head, costs
from exitbench.reports.plotting.panels import LENGTH_NOTE

TITLE = "Late exits: score, FLOPs and measured speed of the two gates, pruned and not"
CAPTION = (
    "Left: the task's score, dotted at full depth. Middle: FLOPs of whole answers in multiples of full depth's, on a "
    "logarithmic axis. As we count, every row of the LM head that was multiplied is in: the read of the whole "
    "vocabulary at the first block asked, and those of all blocks that the JSD gate looks back to, which the published "
    "rule leaves out. Right: time of full depth over the gate's, measured; grey bars: full depth against itself. "
    f"{LENGTH_NOTE} A 0 at the edge: the published rule counts nothing. Bars and lines are 95 % intervals over "
    "documents. The first block asked is the one run that is nearest to the published 19 of 24. Adaptive pruning is "
    "the published form. Figures 8 (SQuAD) and 9 (SamSum) of PRUNE, which have no times, on our models and data; "
    f"{STAND_INS[0].lower()}{STAND_INS[1:]} Grey crosses: published scores, and published FLOPs relative to the "
    "unpruned softmax gate, whose cross is put on ours; two where the draft and the final blog differ about the same "
    "experiment (for JSD with adaptive pruning 247 and 3.6 times less than JSD on SQuAD)."
)

GATES = {
    ("contrastive-jsd", "full"): "JSD",
    ("calm-softmax", "full"): "softmax",
    ("contrastive-jsd", "pruned-adaptive-code"): "JSD + adaptive",
    ("calm-softmax", "pruned-fixed"): "softmax + fixed",
}

finding = partial(cheapest_head, names=GATES)
plot = partial(costs, names=GATES, timed=True)
