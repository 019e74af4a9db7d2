"""Numbered SQL files that bring a database from any older schema to this one."""
