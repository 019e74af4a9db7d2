"""A threshold sweep as a picture: how deep tokens go and how many full depth emits too, against the threshold."""

from collections.abc import Sequence
from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from exitbench.reports.plotting.style import COLOURS, DOUBLE_INCHES, LIGHT, save, theme
from exitbench.terminal import visible

_INCHES: Final = 2.4


def sweep_picture(
    title: str,
    thresholds: Sequence[float],
    mean_exit_layers: Sequence[float],
    token_matches: Sequence[float],
    n_blocks: int,
    kind: str,
) -> bytes:
    """Return the picture of a sweep.

    Args:
        title: What was replayed.
        thresholds: In any order.
        mean_exit_layers: At each of them, 1..n_blocks.
        token_matches: At each of them, the share of tokens that full depth emits too.
        n_blocks: Decoder blocks, L.
        kind: Of the file: pdf, png or svg.
    """
    order = sorted(range(len(thresholds)), key=lambda index: thresholds[index])
    x, depths, matches = (
        [values[index] for index in order] for values in (thresholds, mean_exit_layers, token_matches)
    )
    with theme(LIGHT):
        figure = Figure(figsize=(DOUBLE_INCHES, _INCHES), layout="constrained")
        by_threshold, trade = figure.subplots(1, 2)
        by_threshold.plot(x, depths, color=COLOURS[0], marker="o" if len(x) < 30 else "", markersize=3)
        by_threshold.set(xlabel="threshold", ylabel=f"mean exit layer (of {n_blocks})", ylim=(0, n_blocks * 1.05))
        trade.plot(depths, matches, color=COLOURS[1], marker="o" if len(x) < 30 else ".", markersize=3)
        trade.set(xlabel=f"mean exit layer (of {n_blocks})", ylabel="tokens as full depth")
        trade.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
        figure.suptitle(f"{visible(title)} (simulated)")
        return save(figure, kind)
