"""The summarisation task: one rule, several data sets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from exitbench.tasks.base import Task
from exitbench.tasks.document import Document, DocumentScore
from exitbench.tasks.sources import read_hub
from exitbench.tasks.summarisation import scoring
from exitbench.tasks.summarisation.readers import read_articles, read_dialogues, read_dialogues_of_lines, read_patents

METRICS: Final = ("rougeL", "rouge1", "rouge2")


@dataclass(frozen=True)
class Corpus:
    """A data set of texts with summaries.

    Attributes:
        fields: Names of its fields: id, text, summary. A record of a data set without an id has its number.
        hub: Name of the data set on the hub, and of its part.
        read: Reads a local file, in its original form, to records of these fields.
        max_new_tokens: Budget of a summary.
    """

    fields: tuple[str, str, str]
    hub: tuple[str, str | None]
    read: Callable[[Path], list[dict[str, Any]]]
    max_new_tokens: int = 128


CORPORA: Final = {
    "samsum": Corpus(("id", "dialogue", "summary"), ("knkarthick/samsum", None), read_dialogues),
    "dialogsum": Corpus(("id", "dialogue", "summary"), ("knkarthick/dialogsum", None), read_dialogues_of_lines),
    "cnn-dailymail": Corpus(("id", "article", "highlights"), ("abisee/cnn_dailymail", "3.0.0"), read_articles),
    "bigpatent": Corpus(
        ("id", "description", "abstract"), ("NortheasternUniversity/big_patent", "all"), read_patents, 256
    ),
}
"""By the names of tasks."""


class Summarisation(Task):
    """Summaries of texts.

    Metrics: `rougeL`, `rouge1`, `rouge2`: F-measures with stemming, 0..100.

    Args:
        name: Of a data set, of `CORPORA`.
    """

    metric_version = scoring.VERSION
    metrics = METRICS
    consistency_metric = "rougeL"
    local_roles = (frozenset({"data"}),)

    def __init__(self, name: str) -> None:
        self.name, self.corpus = name, CORPORA[name]
        self.default_max_new_tokens = self.corpus.max_new_tokens

    def prompt(self, doc: Document) -> str:
        """Return T5's form of a text to summarise."""
        return f"summarize: {doc.fields[self.corpus.fields[1]]}"

    def target(self, doc: Document) -> str:
        """Return the reference summary."""
        return str(doc.fields[self.corpus.fields[2]])

    def with_reference(self, doc: Document, text: str) -> Document:
        """Return the document with another reference."""
        return Document(doc.key, {**doc.fields, self.corpus.fields[2]: text})

    def score(self, doc: Document, output: str) -> DocumentScore:
        """Score a summary."""
        scores = scoring.scorer(*METRICS).score(self.target(doc), output)
        return DocumentScore({metric: 100 * scores[metric].fmeasure for metric in self.metrics})

    def _read_local(self, files: Mapping[str, Path]) -> list[dict[str, Any]]:
        return self.corpus.read(files["data"])

    def _read_hub(self, split: str) -> list[dict[str, Any]]:
        name, text, summary = self.corpus.fields
        rows = enumerate(read_hub(*self.corpus.hub, split), start=1)
        # SAMSum's copy was read from CSV: the corpus's one empty dialogue is null there, an empty text here.
        return [
            {name: row.get(name) or str(number), text: row[text] or "", summary: row[summary] or ""}
            for number, row in rows
        ]
