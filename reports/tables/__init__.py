"""The tables: one SQL file and one list of columns each, and the results table as text and as Markdown."""
