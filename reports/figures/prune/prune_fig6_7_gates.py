"""Contrastive gates and the softmax gate as a function of the first gated block (PRUNE figures 6 and 7)."""

from functools import partial

from exitbench.reports.figures.prune import AT_RELATIVE_DEPTH, STAND_INS, mean_depths, sweep

TITLE = "Contrastive gates against the softmax gate"
CAPTION = (
    "Left: mean exit layer; the thin line is the earliest possible, an exit at the first gated block. Right: the "
    "task's score. All gates read the whole vocabulary, have a constant threshold and emit the plain most probable "
    "token; dotted: full depth, no early exit. Series are drawn side by side at each block; bars are 95 % intervals "
    f"over documents. Figures 6 (SQuAD) and 7 (SamSum) of PRUNE, on our models and data. {STAND_INS} "
    f"{AT_RELATIVE_DEPTH} “The contrastive gate exits earlier” below shows what the means over these settings hide."
)

GATES = {
    ("calm-softmax", "full"): "softmax",
    ("contrastive-reweighted", "full"): "reweighted contrast",
    ("contrastive-jsd", "full"): "JSD contrast",
}

finding = partial(mean_depths, names=GATES)
plot = partial(sweep, names=GATES)
