"""Three gates with a whole LM head against the contrastive gate with adaptive pruning (PRUNE figures 12 and 13)."""

from functools import partial

from exitbench.reports.figures.prune import AT_RELATIVE_DEPTH, STAND_INS, mean_depths, sweep

TITLE = "Gates over the whole vocabulary against the contrastive gate with adaptive pruning"
CAPTION = (
    "Left: mean exit layer; the thin line is the earliest possible. Right: the task's score; dotted: full depth. The "
    "three gates over the whole vocabulary and, of the JSD gate, over the adaptive pruned head as published. Bars are "
    "95 % intervals over documents. Figures 12 (SQuAD) and 13 (SamSum) of PRUNE, on our models and data. Their points "
    f"are those of figures 6, 7, 10 and 11. {STAND_INS} {AT_RELATIVE_DEPTH}"
)

GATES = {
    ("calm-softmax", "full"): "softmax",
    ("contrastive-reweighted", "full"): "reweighted contrast",
    ("contrastive-jsd", "full"): "JSD contrast",
    ("contrastive-jsd", "pruned-adaptive-code"): "JSD + adaptive",
}

finding = partial(mean_depths, names=GATES)
plot = partial(sweep, names=GATES)
