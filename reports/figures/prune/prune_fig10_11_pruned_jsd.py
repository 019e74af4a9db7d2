"""Pruned heads under the contrastive gate, as a function of the first gated block (PRUNE figures 10 and 11)."""

from functools import partial

from exitbench.reports.figures.prune import AT_RELATIVE_DEPTH, STAND_INS, mean_depths, sweep

TITLE = "The contrastive gate over pruned heads"
CAPTION = (
    "Left: mean exit layer; the thin line is the earliest possible. Right: the task's score; dotted: full depth. The "
    "JSD gate over the whole vocabulary (which the published figures omit) and over lists of kept ids. The size of a "
    "list is constant (fixed), shrinks with the block (decaying, by id as in the published code or by rank as in the "
    "text), or depends on the gate's score (adaptive; the published form cuts nothing and equals fixed pruning, which "
    "“Adaptive pruning” below shows token by token). Bars are 95 % intervals over documents. Figures 10 (SQuAD) and "
    f"11 (SamSum) of PRUNE, on our models and data, with sizes scaled to our vocabulary. {STAND_INS} "
    f"{AT_RELATIVE_DEPTH} Two published points are excluded: fixed pruning from blocks 6 and 3 on in figure 11a "
    "(12.305 and 7.095 blocks), since a value seems inserted into that list."
)

HEADS = {
    ("contrastive-jsd", "full"): "whole vocabulary",
    ("contrastive-jsd", "pruned-fixed"): "fixed",
    ("contrastive-jsd", "pruned-decaying-idsorted"): "decaying (by id)",
    ("contrastive-jsd", "pruned-decaying"): "decaying (by rank)",
    ("contrastive-jsd", "pruned-adaptive-code"): "adaptive",
    ("contrastive-jsd", "pruned-adaptive"): "adaptive (as intended)",
}

finding = partial(mean_depths, names=HEADS)
plot = partial(sweep, names=HEADS)
