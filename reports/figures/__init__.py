"""Figures of the report: one SQL file and one module per figure, one folder per paper.

A new pair of files here is a new figure of the report. Names begin with the paper and the figure's number there
(`mee_fig1_...`), which give its place on the page; this project's own figures have plain names and ORDER. A module
holds TITLE, CAPTION, EMPTY (the text shown without rows, which names the command that fills the figure; default: its
folder's), ``plot(frame) -> Figure`` and ``finding(frame) -> str``: the result in one sentence, with which the caption
begins. Both are only called with at least one row.
"""
