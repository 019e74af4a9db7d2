"""What each command of the command line does; `cli` reads the arguments and calls one of these."""
