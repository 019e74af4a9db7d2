"""Random seeds of a cell, derived in the same way for all methods, so that comparisons between methods stay paired.

A method's name is never an argument: two methods of one suite get the same random numbers for the same document, and
resample the same documents. Other seeds do not come from the suite: built-in data use the seed of their task, a fit the
method's parameter `fit_seed`, and training the seed of its recipe. Timing uses no random numbers; its order is fixed.
"""

import hashlib
from typing import Literal

Axis = Literal["decode", "bootstrap"]


def seed_for(axis: Axis, suite_seed: int, *keys: str) -> int:
    """Return the seed for one use of random numbers (an axis).

    Args:
        axis: ``decode``: random numbers of methods while a document is decoded, independent of batch and order; needs
            the document's key. ``bootstrap``: resamples of documents.
        suite_seed: Seed of the suite.
        keys: For ``decode`` the document's key; empty for ``bootstrap``.

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
    """Return the formula of each seed as text, by axis (use of random numbers), to document it in cell.json."""
    return {"decode": f"int(sha256('{suite_seed}:' + doc_key)[:15], 16)", "bootstrap": str(suite_seed)}
