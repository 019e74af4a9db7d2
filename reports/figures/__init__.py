"""One SQL file and one plot function a figure; putting a pair here puts it into the report.

A module holds ORDER (place on the page), TITLE, CAPTION, NEEDS (the cells that fill it) and ``plot(frame) -> Figure``,
which is only called with at least one row.
"""
