"""Answers token by token, for the HTML page and for a terminal."""
