"""What lies beside attempts in the spool: trainings, vocabularies, rescores, tags."""
