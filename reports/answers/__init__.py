"""Answers token by token, for the page and for a terminal."""
