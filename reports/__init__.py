"""Figures, tables and the HTML page, all regenerated from the result database by SQL. Never imports torch.

* The same database always gives the same bytes. A figure is drawn again only if its rows, the code of reports, the
  versions of the drawing libraries or its files have changed. A note next to each picture records what it was drawn
  from.
* A report is kept as it is while every file has the digest in `report/.report.json` (`current.py`).
* Every figure can be printed as it was drawn: 3.3 or 6.9 inches wide, at most 9 tall, no text below 7 points, outside
  the figure or over other text (tests/reports/print_rules.py). Its caption begins with what its rows show
  (`finding(frame)`).
* Views that many queries read are computed once, as temporary tables with the views' names, so a figure's SQL also runs
  in `exitbench sql`.
* Findings of severity 3 (view `qc`) forbid a final report; `--draft` and `exitbench run` write a draft, marked as such.
* Packed answers of the page are kept in `report/.answers`, named after digests of their rows and code.
* A ledger entry (`claims`) is a paper's claim, a consistency check of printed numbers, or a question of this project. A
  claim has its place and a quotation of at most 25 words. It holds or fails only if the whole interval of its evidence
  says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ReportSummary:
    """Result of writing a report: its files and what is missing from it.

    Attributes:
        index_html: Path of the page. Its folder can be moved; a page written as a single file can be sent alone.
        files: Every other file of the report, under figures/ and tables/ next to the page.
        figures: Names of the figures drawn.
        empty: Names of the figures and tables whose queries return no rows.
        broken: Figures that could not be drawn, each with the reason.
        is_draft: Whether severe findings about runs forbid citing the report; the page says so at its top.
    """

    index_html: Path
    files: tuple[Path, ...]
    figures: tuple[str, ...]
    empty: tuple[str, ...]
    broken: Mapping[str, str]
    is_draft: bool
