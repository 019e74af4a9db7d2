"""Records next to the attempts in the spool: trainings, vocabularies, rescores, tags."""
