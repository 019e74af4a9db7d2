"""Score, FLOPs and speed with a late first gated block (PRUNE figures 8 and 9)."""

from functools import partial

from exitbench.reports.figures.prune import STAND_INS, cheapest_head, costs
from exitbench.reports.plotting.panels import LENGTH_NOTE

TITLE = "Late exits: score, FLOPs and measured speed of the two gates, pruned and not"
CAPTION = (
    "Left: the task's score, dotted at full depth. Middle: FLOPs of whole answers as multiples of full depth's, on a "
    "logarithmic axis. Our count includes every row of the LM head that was multiplied: the read of the whole "
    "vocabulary at the first gated block, and those of all earlier blocks that the JSD gate compares with; the "
    "published rule omits both. Right: time of full depth over the gate's, measured; gray bars: full depth against "
    f"itself. {LENGTH_NOTE} A 0 at the edge: the published rule counts nothing. Bars and lines are 95 % intervals over "
    "documents. Of the first gated blocks that were run, the one nearest to the published 19 of 24 is shown. Adaptive "
    "pruning is the published form. Figures 8 (SQuAD) and 9 (SamSum) of PRUNE, which have no times, on our models and "
    f"data. {STAND_INS} Gray crosses: published scores, and published FLOPs relative to the unpruned softmax gate, "
    "whose cross is placed on ours. There are two where the draft and the final blog differ about the same experiment "
    "(for JSD with adaptive pruning 247 and 3.6 times less than JSD on SQuAD)."
)

GATES = {
    ("contrastive-jsd", "full"): "JSD",
    ("calm-softmax", "full"): "softmax",
    ("contrastive-jsd", "pruned-adaptive-code"): "JSD + adaptive",
    ("calm-softmax", "pruned-fixed"): "softmax + fixed",
}

finding = partial(cheapest_head, names=GATES)
plot = partial(costs, names=GATES, timed=True)
