"""What the command line and the Python API do, as functions of typed options: plan, run, tune, compare."""
