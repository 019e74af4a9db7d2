"""The English to French translation task."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from exitbench.tasks.base import FloatArray, Task
from exitbench.tasks.document import Document, DocumentScore
from exitbench.tasks.sources import read_hub, read_parallel, read_tab_separated
from exitbench.tasks.wmt_en_fr import scoring


class WmtEnFr(Task):
    """Translation from English to French: WMT14, and any other sentence pairs.

    Metrics: `bleu` and `chrf`, 0..100, corpus scores equal to sacrebleu's; a document's value is the
    sentence score. Local files: `en` and `fr`, line by line, or `pairs`, in columns.
    """

    name: ClassVar[str] = "wmt-en-fr"
    metric_version: ClassVar[str] = scoring.signature()
    metrics: ClassVar[tuple[str, ...]] = ("bleu", "chrf")
    consistency_metric: ClassVar[str] = "chrf"
    default_max_new_tokens: ClassVar[int] = 128
    local_roles: ClassVar[tuple[frozenset[str], ...]] = (frozenset({"en", "fr"}), frozenset({"pairs"}))

    def prompt(self, doc: Document) -> str:
        """Return T5's form of a sentence to translate."""
        return f"translate English to French: {doc.fields['en']}"

    def target(self, doc: Document) -> str:
        """Return the reference translation."""
        return str(doc.fields["fr"])

    def with_reference(self, doc: Document, text: str) -> Document:
        """Return the document with another reference."""
        return Document(doc.key, {**doc.fields, "fr": text})

    def score(self, doc: Document, output: str) -> DocumentScore:
        """Score a translation."""
        reference = self.target(doc)
        statistics = {
            "bleu": scoring.bleu_statistics(output, reference),
            "chrf": scoring.chrf_statistics(output, reference),
        }
        values = {"bleu": scoring.sentence_bleu(output, reference), "chrf": scoring.sentence_chrf(output, reference)}
        return DocumentScore(values, statistics)

    def aggregate(self, metric: str, total: FloatArray, n: FloatArray) -> FloatArray:
        """Return the corpus score of summed statistics; see `Task.aggregate`."""
        return {"bleu": scoring.bleu, "chrf": scoring.chrf}[metric](total)

    def _read_local(self, files: Mapping[str, Path]) -> list[dict[str, Any]]:
        if "pairs" in files:
            return _numbered(read_tab_separated(files["pairs"]))
        return _numbered(read_parallel(files["en"], files["fr"]))

    def _read_hub(self, split: str) -> list[dict[str, Any]]:
        rows = read_hub("wmt/wmt14", "fr-en", split)
        return _numbered((row["translation"]["en"], row["translation"]["fr"]) for row in rows)


def _numbered(pairs: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return records whose id is the line's number, since corpora repeat sentence pairs."""
    return [{"id": str(number), "en": en, "fr": fr} for number, (en, fr) in enumerate(pairs, start=1)]
