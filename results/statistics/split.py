"""The two parts of a test set: one chooses among settings, the other confirms and reports the choice.

The best of many settings looks better than it is on the documents on which it was chosen. So a recommendation is chosen
on the choosing part, and its quality, its speed and the bound on its loss are measured on the confirming part.
"""

import hashlib
from typing import Final

CHOOSING_BELOW: Final = "55"
"""A document belongs to the choosing part if the first byte of its key's MD5 is below this, in hexadecimal: a third.

A small part chooses with a margin: what its wide bound allows is mostly confirmed by the narrower bound of the rest."""


def is_choosing(doc_key: str) -> bool:
    """Return whether a document belongs to the choosing part, on which settings are chosen, not to the confirming part.

    The macro `is_choosing` in `views.sql` is the same in SQL.

    Args:
        doc_key: Key of the document, as in the column `doc_key`.
    """
    return hashlib.md5(doc_key.encode(), usedforsecurity=False).hexdigest()[:2] < CHOOSING_BELOW
