"""Random seeds of a cell, derived in the same way for all methods, so that comparisons between methods stay paired.

A method's name is never an argument: two methods of one suite get the same random numbers for the same document, and
resample the same documents, with the suite's seed itself. Other seeds do not come from the suite: built-in data use the
seed of their task, a fit the method's parameter `fit_seed`, and training the seed of its recipe. Timing uses no random
numbers; its order is fixed.
"""

import hashlib


def decode_seed(suite_seed: int, doc_key: str) -> int:
    """Return the seed of methods' random numbers while a document is decoded; it does not depend on batch and order.

    Examples:
        >>> decode_seed(0, "doc-1") == decode_seed(0, "doc-2")
        False
    """
    return int(hashlib.sha256(f"{suite_seed}:{doc_key}".encode()).hexdigest()[:15], 16)


def derivations(suite_seed: int) -> dict[str, str]:
    """Return the formula of each seed as text, by use of random numbers, to document it in cell.json."""
    return {"decode": f"int(sha256('{suite_seed}:' + doc_key)[:15], 16)", "bootstrap": str(suite_seed)}
