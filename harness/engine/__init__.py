"""The depth-addressed engine: checkpoints, the transformer and its cache, and the decode loop that methods steer."""

from typing import Final

ENGINE_VERSION: Final = 1
"""Raised whenever tokens, exit layers, blocks run, scores, costs or a probe's signals of any cell may become others,
and whenever what several methods share (a gate, a head, a threshold rule, a KV policy) comes to compute something else:
the golden traces say so (tests/golden). Not raised for what is only faster, or only written otherwise.
"""
