"""One SQL file and one plot function a figure, in a folder a paper; putting a pair there puts it into the report.

Names begin with the paper and the figure's number there (`mee_fig1_...`), which place it on the page; our own figures
have plain names and ORDER. A module holds TITLE, CAPTION, EMPTY (said when there is no row: which command
fills it; where it has none, that of its folder), ``plot(frame) -> Figure`` and ``finding(frame) -> str``: what these
rows show, in one sentence that the caption begins with. Both are only called with at least one row.
"""
