"""One SQL file and one list of columns a table; putting a pair here puts it into the report.

A module holds TITLE, CAPTION, EMPTY (said when there is no row) and COLUMNS; ORDER as in figures/__init__.py.
"""
