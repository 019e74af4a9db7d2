"""Findings in one line: how many of each severity; the table stands at the page's end."""

from collections import Counter
from collections.abc import Sequence

from exitbench.reports.frame import Row
from exitbench.terminal import number_of

_WORDS = {3: "do not cite", 2: "look before you cite", 1: "a remark"}


def line(findings: Sequence[Row]) -> tuple[str, int]:
    """Return how many findings there are, in words, and the worst severity, 0 where there is none.

    Args:
        findings: Rows of the table of findings.
    """
    if not findings:
        return "No rule found anything about these runs.", 0
    counts = Counter(row["severity"] for row in findings)
    told = (f"{counts[severity]} × {words}" for severity, words in _WORDS.items() if counts[severity])
    return f"{number_of(len(findings), 'finding')}: {', '.join(told)}.", max(counts)
