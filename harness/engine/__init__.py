"""Engine that runs a transformer block by block: checkpoints, model, KV cache, and the decode loop of all methods."""

from typing import Final

ENGINE_VERSION: Final = 1
"""Version of everything the engine computes. Raise it whenever tokens, exit layers, blocks run, scores, costs or probe
signals of any cell may change, or when a component shared by methods (gate, head, threshold rule, KV policy) computes
something else. The golden traces show when (tests/golden). Do not raise it for pure speed-ups or refactorings.
"""
