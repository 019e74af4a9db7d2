"""Tables of the report: one SQL file and one module with a list of columns per table.

A new pair of files here is a new table of the report. A module holds TITLE, CAPTION, EMPTY (text shown without rows)
and COLUMNS; ORDER as in figures/__init__.py.
"""
