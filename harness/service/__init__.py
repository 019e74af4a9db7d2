"""Operations behind the command line and the Python API, as functions of typed options: plan, run, tune, compare."""
