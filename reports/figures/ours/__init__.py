"""Figures of this project: costs and gains of early exit. This module: colours, Pareto fronts, recommended settings."""

from collections.abc import Sequence

from exitbench.reports.frame import Frame, Row


def series_column(frame: Frame) -> str:
    """Return the column whose values are told apart by colour: the method if there is one model, else the model."""
    return "model" if len(frame.distinct("model")) > 1 else "method"


def envelope(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the Pareto-optimal points (more is better in both coordinates), ascending in the first."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(set(points), reverse=True):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front[::-1]


def recommended(frame: Frame) -> dict[str, Row]:
    """Return, by model, the row of its fastest setting recommended at an allowed loss of 1 %; models may lack one."""
    chosen = frame.filter(lambda row: row["is_recommended"])
    return {model: max(rows.rows, key=lambda row: row["speedup"]) for (model,), rows in chosen.groups("model")}
