"""ROUGE as rouge-score computes it, with stemming."""

from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

VERSION: Final = f"rouge-score|f-measure|stemmer:porter|version:{version('rouge-score')}"


@cache
def scorer(*names: str) -> "RougeScorer":
    """Return what scores by some of ROUGE's variants, such as ``rougeL``."""
    # Imported at the first score: it pulls in nltk and SciPy, a second that no listing of tasks should wait for.
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(names), use_stemmer=True)
