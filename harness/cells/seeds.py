"""Random seeds of a cell, derived in the same way for all methods, so that pairs stay paired.

A method's name is never an argument: two methods of one suite draw the same for the same document, and resample the
same documents. Other seeds do not come from the suite: built-in data have their task's, a fit its method's parameter
`fit_seed`, a training its recipe's. Timing draws nothing, its order is fixed.
"""

import hashlib
from typing import Literal

Axis = Literal["decode", "bootstrap"]


def seed_for(axis: Axis, suite_seed: int, *keys: str) -> int:
    """Return the seed of one axis.

    Args:
        axis: ``decode``: random numbers of methods while a document is decoded, in any batch and order; needs the
            document's key. ``bootstrap``: resamples of documents.
        suite_seed: Seed of the suite.
        keys: Keys by which the axis is divided.

    Examples:
        >>> seed_for("decode", 0, "doc-1") == seed_for("decode", 0, "doc-1")
        True
        >>> seed_for("bootstrap", 7)
        7
    """
    if axis == "bootstrap":
        return suite_seed
    (doc_key,) = keys
    return int(hashlib.sha256(f"{suite_seed}:{doc_key}".encode()).hexdigest()[:15], 16)


def derivations(suite_seed: int) -> dict[Axis, str]:
    """Return, for readers of cell.json, the formula for the seed of each axis."""
    return {"decode": f"int(sha256('{suite_seed}:' + doc_key)[:15], 16)", "bootstrap": str(suite_seed)}
