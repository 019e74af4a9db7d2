"""Command line: `main` dispatches, `arguments/` declares options, `commands/` implements the commands."""
