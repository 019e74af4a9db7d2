"""Figures, tables and the HTML page, all regenerated from the result database by SQL. Never imports torch."""
