"""What early exit costs and gives: figures of no paper; here what makes a frontier."""

from collections.abc import Sequence

from exitbench.reports.frame import Frame, Row


def series_of(frame: Frame) -> str:
    """Return the column that colours tell apart: the method where there is one model, else the model."""
    return "model" if len(frame.distinct("model")) > 1 else "method"


def envelope(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other reaches in both coordinates (more is better), ascending in the first."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(set(points), reverse=True):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front[::-1]


def recommended(frame: Frame) -> dict[str, Row]:
    """Return of each model what the cards name where a loss of 1 % is allowed, if they name a method."""
    chosen = frame.where(lambda row: row["is_recommended"])
    return {model: max(rows.rows, key=lambda row: row["speedup"]) for (model,), rows in chosen.groups("model")}
