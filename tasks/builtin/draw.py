"""Random choices that stay the same for ever.

Python guarantees the sequence of `random.Random.random()` across versions, and of no other method; so
every choice here is made from that alone.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """A seeded source of choices."""

    def __init__(self, key: str) -> None:
        """Start the sequence that belongs to a key."""
        self._random = random.Random(key)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self._random.random() < probability

    def one(self, choices: Sequence[T]) -> T:
        """Return one of the choices, each as likely as the others."""
        return choices[int(self._random.random() * len(choices))]

    def some(self, choices: Sequence[T], n: int) -> list[T]:
        """Return n different choices in random order (Fisher-Yates); with n = len(choices), a shuffle."""
        pool = list(choices)
        for i in range(n):
            j = i + int(self._random.random() * (len(pool) - i))
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:n]
