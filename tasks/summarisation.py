"""Summarisation: SAMSum, and data sets that differ from it only in their fields."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from exitbench.tasks.base import Task
from exitbench.tasks.document import Document, DocumentScore
from exitbench.tasks.sources import (
    member,
    parse_json_lines,
    read_csv,
    read_hub,
    read_json,
    read_json_lines,
    read_members,
    require,
)
from exitbench.tasks.styles import StyleTexts

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

ROUGE_VERSION: Final = f"rouge-score|f-measure|stemmer:porter|version:{version('rouge-score')}"


@cache
def rouge_scorer(*names: str) -> "RougeScorer":
    """Return rouge-score's scorer, with stemming, for the named variants of ROUGE, such as ``rougeL``."""
    # Imported at the first score: nltk and SciPy take a second, which listing tasks should not wait for.
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(names), use_stemmer=True)


def read_dialogues(path: Path) -> list[dict[str, Any]]:
    """Read SAMSum's original format: a JSON list of objects with id, dialogue and summary.

    Raises:
        UserError: A record has another form; the message names the record and the key.
    """
    records = []
    for position, entry in enumerate(require(read_json(path), list, str(path))):
        location = f"{path}, [{position}]"
        record = require(entry, dict, location)
        records.append({name: member(record, name, str, location) for name in ("id", "dialogue", "summary")})
    return records


def read_dialogsum(path: Path) -> list[dict[str, Any]]:
    """Read DialogSum's original format: JSON lines with fname, dialogue and summary.

    The test split has three summaries, of which summary1 is used. The hub's CSV file, with id, dialogue, summary and
    topic, is read too.

    Raises:
        UserError: A record has another form; the message names the record and the key.
    """
    if path.name.removesuffix(".gz").endswith(".csv"):
        rows, name = read_csv(path), "id"
    else:
        rows, name = read_json_lines(path), "fname"
    records = []
    for number, row in enumerate(rows, start=1):
        location = f"{path}, record {number}"
        summary = member(row, "summary1" if "summary1" in row else "summary", str, location)
        records.append({"id": member(row, name, str, location), "dialogue": member(row, "dialogue", str, location)})
        records[-1]["summary"] = summary
    return records


def read_articles(path: Path) -> list[dict[str, Any]]:
    """Read CNN/DailyMail as CSV with the columns article, highlights and id.

    Raises:
        UserError: A column is missing.
    """
    fields = ("id", "article", "highlights")
    return [
        {name: member(row, name, str, f"{path}, record {number}") for name in fields}
        for number, row in enumerate(read_csv(path), start=1)
    ]


def read_patents(path: Path) -> list[dict[str, Any]]:
    """Read BigPatent's original JSON lines with publication_number, description and abstract, or a tar of such files.

    Raises:
        UserError: A record has another form; the message names the record and the key.
    """
    return [
        {
            "id": member(row, "publication_number", str, location),
            "description": member(row, "description", str, location),
            "abstract": member(row, "abstract", str, location),
        }
        for row, location in _patents(path)
    ]


def _patents(path: Path) -> Iterator[tuple[Any, str]]:
    if not path.name.endswith((".tar", ".tar.gz", ".tgz")):
        yield from ((row, f"{path}, record {number}") for number, row in enumerate(read_json_lines(path), start=1))
        return
    for name, text in read_members(path, (".jsonl", ".json", ".gz")):
        location = f"{path}, {name}"
        rows = parse_json_lines(text, location)
        yield from ((row, f"{location}, record {number}") for number, row in enumerate(rows, start=1))


METRICS: Final = ("rougeL", "rouge1", "rouge2")


@dataclass(frozen=True)
class SummaryDataset:
    """Data set of texts with summaries, and the texts of its prompts.

    Attributes:
        fields: Names of its fields: id, text, summary. Records of a data set without ids get their number as id.
        hub: Name of the data set on the hub, and its configuration.
        read: Function that reads a local file in the original format into records with these fields.
        max_new_tokens: Maximum number of generated tokens of a summary.
        instruction: Instruction to the model in the styles `chat` and `completion`.
        title: Word that precedes the text in these styles.
        examples: Default number of few-shot examples in style `completion`; 0 if texts are long.
    """

    fields: tuple[str, str, str]
    hub: tuple[str, str | None]
    read: Callable[[Path], list[dict[str, Any]]]
    max_new_tokens: int = 128
    instruction: str = "Summarize the dialogue in one or two sentences."
    title: str = "Dialogue"
    examples: int = 3


CORPORA: Final = {
    "samsum": SummaryDataset(("id", "dialogue", "summary"), ("knkarthick/samsum", None), read_dialogues),
    "dialogsum": SummaryDataset(("id", "dialogue", "summary"), ("knkarthick/dialogsum", None), read_dialogsum),
    "cnn-dailymail": SummaryDataset(
        ("id", "article", "highlights"),
        ("abisee/cnn_dailymail", "3.0.0"),
        read_articles,
        instruction="Summarize the article in three short sentences, one on each line.",
        title="Article",
        examples=1,
    ),
    "bigpatent": SummaryDataset(
        ("id", "description", "abstract"),
        ("NortheasternUniversity/big_patent", "all"),
        read_patents,
        max_new_tokens=256,
        instruction="Summarize the description of the invention in one paragraph.",
        title="Description",
        examples=0,
    ),
}
"""Data sets by task name."""


class Summarisation(Task):
    """Summarisation of dialogues, news articles or patents.

    Metrics: `rougeL`, `rouge1`, `rouge2`: F-measures with stemming, 0..100.

    Args:
        name: Name of a data set in `CORPORA`.
    """

    metric_version = ROUGE_VERSION
    metrics = METRICS
    consistency_metric = "rougeL"
    local_roles = (frozenset({"data"}),)

    def __init__(self, name: str) -> None:
        self.name, self.corpus = name, CORPORA[name]
        self.default_max_new_tokens = self.corpus.max_new_tokens
        identifier, text, _ = self.corpus.fields
        self.style_texts = StyleTexts(
            instruction=self.corpus.instruction,
            question=f"{self.corpus.title}: {{{text}}}",
            cue="Summary:",
            stop="\n\n",
            fields=(identifier, text),
            examples=self.corpus.examples,
            hub_split="validation",
        )

    def prompt(self, doc: Document) -> str:
        """Return the prompt in T5's format: the text to summarise after `summarize:`."""
        return f"summarize: {doc.fields[self.corpus.fields[1]]}"

    def target(self, doc: Document) -> str:
        """Return the document's reference summary."""
        return str(doc.fields[self.corpus.fields[2]])

    def with_reference(self, doc: Document, text: str) -> Document:
        """Return a copy of the document with `text` as its only reference."""
        return Document(doc.key, {**doc.fields, self.corpus.fields[2]: text})

    def score(self, doc: Document, output: str) -> DocumentScore:
        """Return the ROUGE F-measures of a summary against the reference."""
        scores = rouge_scorer(*METRICS).score(self.target(doc), output)
        return DocumentScore({metric: 100 * scores[metric].fmeasure for metric in self.metrics})

    def _read_local(self, files: Mapping[str, Path]) -> list[dict[str, Any]]:
        return self.corpus.read(files["data"])

    def _read_hub(self, split: str) -> list[dict[str, Any]]:
        name, text, summary = self.corpus.fields
        rows = enumerate(read_hub(*self.corpus.hub, split), start=1)
        # SAMSum's copy on the hub was read from CSV: the corpus's one empty dialogue is null there and an empty text
        # here.
        return [
            {name: row.get(name) or str(number), text: row[text] or "", summary: row[summary] or ""}
            for number, row in rows
        ]
