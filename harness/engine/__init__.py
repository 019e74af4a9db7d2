"""The depth-addressed engine: checkpoints, the transformer and its cache, and the decode loop that methods steer."""
