"""What makes a frontier: settings that no other beats in both, and the fastest that keeps the quality."""

from collections.abc import Sequence

from exitbench.reports.frame import Frame, Row

KEPT = 0.99  # of full depth's quality


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


def fastest_within(frame: Frame) -> dict[str, Row]:
    """Return the fastest row of each model among those that keep the quality, if there is one."""
    kept = [row for row in frame.rows if row["quality"] >= KEPT and row["attainable"]]
    return {
        model: max(rows.rows, key=lambda row: row["speedup"])
        for (model,), rows in Frame(frame.columns, tuple(kept)).groups("model")
    }
