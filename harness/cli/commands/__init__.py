"""Implementations of the commands. `cli.main` calls them with the parsed arguments."""
