"""Work on stored results: rescoring, part-of-speech tags, replays, tuning, and checks of reproducibility."""
