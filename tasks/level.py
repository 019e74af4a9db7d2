"""Level of the generated data: how hard they are, 1 to 3."""

from typing import Final

from exitbench.errors import UserError

LEVELS: Final = (1, 2, 3)
"""More facts, hops and clauses a document from level to level."""
DEFAULT_LEVEL: Final = 2
"""What the models that come along learned."""


def require_level(level: int) -> None:
    """Check a level.

    Raises:
        UserError: There is no such level.
    """
    if level not in LEVELS:
        raise UserError(f"built-in data: level is {level}. Allowed: {', '.join(map(str, LEVELS))}.")
