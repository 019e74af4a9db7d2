"""Tables of a suite file that take a module to read: a task of ours, of lm-eval, or declared in TOML."""
