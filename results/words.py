"""Words of messages."""


def counted(n: int, one: str, many: str) -> str:
    """Return a number with what it counts: ``1 attempt is``, ``2 attempts are``."""
    return f"{n} {one if n == 1 else many}"
