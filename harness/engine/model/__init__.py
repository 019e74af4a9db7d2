"""The transformer: weights, positions, key-value cache, blocks and heads that can be run one by one, their cost."""
