"""Tables of a suite file that take a module to read: a task, of lm-eval or declared too, and where a model goes."""
