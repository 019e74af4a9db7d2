"""One SQL file and one list of columns a table; putting a pair here puts it into the report.

A module holds ORDER (place on the page), TITLE, CAPTION, EMPTY (said when there is no row) and COLUMNS.
"""

from exitbench.reports.tables.text import summary_markdown, summary_text

__all__ = ["summary_markdown", "summary_text"]
