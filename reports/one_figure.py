"""One figure of the report as a matplotlib object, for notebooks; draws what `exitbench report` draws."""

from exitbench.errors import UserError
from exitbench.reports import figures
from exitbench.reports.drawing import plotted
from exitbench.reports.findings import require_final, severe_findings
from exitbench.reports.frame import Frame
from exitbench.reports.material import require_named
from exitbench.reports.plotting.style import ReportFigure
from exitbench.results.database.connection import Database


def one_figure(database: Database, name: str, *, draft: bool = False) -> ReportFigure:
    """Ask a figure's query and draw its rows.

    Args:
        database: Open.
        name: One of `exitbench list figures`.
        draft: Whether to draw it where findings say not to cite runs of the database.

    Raises:
        UserError: No figure has that name, the database has no rows for it, or findings forbid it.
    """
    sources = require_named(figures, name)
    if len(sources) > 1:
        raise UserError(f"{name!r} names {len(sources)} figures: {', '.join(one.name for one in sources)}. Name one.")
    (source,) = sources
    require_final(severe_findings(database), database.path, draft)
    frame = Frame.query(database, source.sql).bounded()
    if not frame.rows:
        raise UserError(f"Figure {source.name} has no rows here. {source.module.EMPTY}")
    figure, finding = plotted(source, frame)
    figure.caption = f"{finding} {source.module.CAPTION}".lstrip()
    return figure
