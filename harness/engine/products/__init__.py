"""Implementations (forms) of matrix products with a model's weights, and the choice of the fastest on this machine."""
