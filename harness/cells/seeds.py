"""Random seeds of a cell, derived by axis alike for all methods, so that pairs stay paired.

A method's name is never an argument: two methods of one suite draw alike for the same document, and resample the same
documents. Other seeds are not a suite's: built-in data have their task's, a fit its method's parameter `fit_seed`, a
training its recipe's. Timing draws nothing, its order is fixed.
"""

import hashlib
from typing import Literal

Axis = Literal["decode", "bootstrap"]


def seed_for(axis: Axis, suite_seed: int, *keys: str) -> int:
    """Return the seed of one axis.

    Args:
        axis: ``decode``: what methods draw while a document is decoded, in any batch and order; needs the document's
            key. ``bootstrap``: resamples of documents.
        suite_seed: Of the suite.
        keys: What the axis is divided by.
    """
    if axis == "bootstrap":
        return suite_seed
    (doc_key,) = keys
    return int(hashlib.sha256(f"{suite_seed}:{doc_key}".encode()).hexdigest()[:15], 16)


def derivations(suite_seed: int) -> dict[Axis, str]:
    """Return, for readers of cell.json, how the seed of each axis is found."""
    return {"decode": f"int(sha256('{suite_seed}:' + doc_key)[:15], 16)", "bootstrap": str(suite_seed)}
