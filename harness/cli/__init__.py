"""The command line: `main` finds the command, `arguments/` declares options, `commands/` has a module a command."""
