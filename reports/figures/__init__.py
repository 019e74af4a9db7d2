"""One SQL file and one plot function a figure; putting a pair here puts it into the report.

A module holds ORDER (place on the page), TITLE, CAPTION, EMPTY (said when there is no row: which command
fills it) and ``plot(frame) -> Figure``, which is only called with at least one row.
"""
