"""Pruned heads under the contrastive gate by the first gated block (PRUNE figures 10 and 11)."""

from functools import partial

from exitbench.reports.figures.prune import AT_RELATIVE_DEPTH, STAND_INS, mean_depths, sweep

TITLE = "The contrastive gate over pruned heads"
CAPTION = (
    "Left: mean exit layer; the thin line is the earliest possible. Right: the task's score; dotted: full depth. The "
    "JSD gate over the whole vocabulary (which the published figures leave out) and over lists of kept ids: one size "
    "(fixed), shrinking with the block (decaying, by id as in the published code or by rank as in the text), or with "
    "the gate's score (adaptive; as published it cuts nothing and is fixed pruning, which “Adaptive pruning” below "
    "shows token by token). Bars are 95 % intervals over documents. Figures 10 (SQuAD) and 11 (SamSum) of PRUNE, on "
    f"our models and data, with sizes scaled to our vocabulary. {STAND_INS} {AT_RELATIVE_DEPTH} Two published points "
    "are left out: fixed pruning from blocks 6 and 3 on in figure 11a (12.305 and 7.095 blocks), since a value seems "
    "inserted into that list."
)

HEADS = {
    ("contrastive-jsd", "full"): "whole vocabulary",
    ("contrastive-jsd", "pruned-fixed"): "fixed",
    ("contrastive-jsd", "pruned-decaying-idsorted"): "decaying (by id)",
    ("contrastive-jsd", "pruned-decaying"): "decaying (by rank)",
    ("contrastive-jsd", "pruned-adaptive-code"): "adaptive",
    ("contrastive-jsd", "pruned-adaptive"): "adaptive (as meant)",
}

finding = partial(mean_depths, names=HEADS)
plot = partial(sweep, names=HEADS)
