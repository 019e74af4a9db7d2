"""The SAMSum task (Gliwa et al. 2019)."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from exitbench.tasks.base import Task
from exitbench.tasks.document import Document, DocumentScore
from exitbench.tasks.sources import member, read_hub, read_json, require

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

FIELDS = ("id", "dialogue", "summary")


class Samsum(Task):
    """Summaries of chat dialogues.

    Metrics: `rougeL`, `rouge1`, `rouge2`: F-measures with stemming, 0..100.
    """

    name: ClassVar[str] = "samsum"
    metric_version: ClassVar[str] = f"rouge-score|f-measure|stemmer:porter|version:{version('rouge-score')}"
    metrics: ClassVar[tuple[str, ...]] = ("rougeL", "rouge1", "rouge2")
    consistency_metric: ClassVar[str] = "rougeL"
    default_max_new_tokens: ClassVar[int] = 128
    local_roles: ClassVar[tuple[frozenset[str], ...]] = (frozenset({"data"}),)

    def prompt(self, doc: Document) -> str:
        """Return T5's form of a text to summarise."""
        return f"summarize: {doc.fields['dialogue']}"

    def target(self, doc: Document) -> str:
        """Return the reference summary."""
        return str(doc.fields["summary"])

    def with_reference(self, doc: Document, text: str) -> Document:
        """Return the document with another reference."""
        return Document(doc.key, {**doc.fields, "summary": text})

    def score(self, doc: Document, output: str) -> DocumentScore:
        """Score a summary."""
        scores = _scorer().score(self.target(doc), output)
        return DocumentScore({metric: 100 * scores[metric].fmeasure for metric in self.metrics})

    def _read_local(self, files: Mapping[str, Path]) -> list[dict[str, Any]]:
        return read_samsum(files["data"])

    def _read_hub(self, split: str) -> list[dict[str, Any]]:
        # The hub's copy was read from CSV: the corpus's one empty dialogue is null there, an empty text here.
        return [{name: row[name] or "" for name in FIELDS} for row in read_hub("knkarthick/samsum", None, split)]


def read_samsum(path: Path) -> list[dict[str, Any]]:
    """Read SAMSum's original form, a JSON list of objects with id, dialogue and summary.

    Raises:
        UserError: If a record has another form, naming the record and the key.
    """
    records = []
    for position, entry in enumerate(require(read_json(path), list, str(path))):
        where = f"{path}, [{position}]"
        record = require(entry, dict, where)
        records.append({name: member(record, name, str, where) for name in FIELDS})
    return records


@cache
def _scorer() -> "RougeScorer":
    # Imported at the first score: it pulls in nltk and SciPy, a second that no listing of tasks should wait for.
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(Samsum.metrics), use_stemmer=True)
