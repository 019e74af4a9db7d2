"""The translation task, of any pair of languages."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from exitbench.errors import UserError
from exitbench.tasks.base import FloatArray, Task
from exitbench.tasks.document import Document, DocumentScore
from exitbench.tasks.sources import read_hub, read_parallel, read_tab_separated
from exitbench.tasks.translation import scoring
from exitbench.tasks.translation.languages import LANGUAGES, TOKENIZERS, pair_of


class Translation(Task):
    """Translation of sentences from one language to another: WMT, IWSLT, and any other sentence pairs.

    Metrics: `bleu` and `chrf`, 0..100, corpus scores equal to sacrebleu's; a document's value is the
    sentence score. Local files: one a language, line by line, under the languages' codes as roles (`en`
    and `fr`); or `pairs`, in columns, of which English is the first.

    Args:
        name: Data set and pair, such as `wmt-en-fr`, `wmt16-ro-en`, `iwslt14-de-en`. They differ in the
            data set that the hub is asked for; `wmt` is WMT14.

    Raises:
        UserError: It names a language that is not known.
    """

    metrics = ("bleu", "chrf")
    consistency_metric = "chrf"
    default_max_new_tokens = 128

    def __init__(self, name: str) -> None:
        self.name, self.pair = name, pair_of(name)
        self._bleu = scoring.bleu_by(TOKENIZERS.get(self.pair.target, "13a"))
        self.metric_version = scoring.signature(self._bleu)
        self.local_roles = (frozenset({self.pair.source, self.pair.target}), frozenset({"pairs"}))

    def prompt(self, doc: Document) -> str:
        """Return T5's form of a sentence to translate."""
        source, target = LANGUAGES[self.pair.source], LANGUAGES[self.pair.target]
        return f"translate {source} to {target}: {doc.fields[self.pair.source]}"

    def target(self, doc: Document) -> str:
        """Return the reference translation."""
        return str(doc.fields[self.pair.target])

    def with_reference(self, doc: Document, text: str) -> Document:
        """Return the document with another reference."""
        return Document(doc.key, {**doc.fields, self.pair.target: text})

    def score(self, doc: Document, output: str) -> DocumentScore:
        """Score a translation."""
        reference = self.target(doc)
        statistics = {
            "bleu": self._bleu.statistics(output, reference),
            "chrf": scoring.chrf_statistics(output, reference),
        }
        values = {
            "bleu": self._bleu.of_sentence(output, reference),
            "chrf": scoring.sentence_chrf(output, reference),
        }
        return DocumentScore(values, statistics)

    def aggregate(self, metric: str, total: FloatArray, n: FloatArray) -> FloatArray:
        """Return the corpus score of summed statistics; see `Task.aggregate`."""
        return {"bleu": scoring.bleu, "chrf": scoring.chrf}[metric](total)

    def _read_local(self, files: Mapping[str, Path]) -> list[dict[str, Any]]:
        if "pairs" in files:
            pairs: Iterable[tuple[str, str]] = read_tab_separated(files["pairs"])
            if self.pair.target == "en":
                pairs = [(foreign, english) for english, foreign in pairs]
            return self._numbered(pairs)
        return self._numbered(read_parallel(files[self.pair.source], files[self.pair.target]))

    def _read_hub(self, split: str) -> list[dict[str, Any]]:
        if self.pair.hub is None:
            raise UserError(f'{self.name}: the hub has no data set of {self.pair.of}. Allowed: source = "local".')
        ours = (self.pair.source, self.pair.target)
        # The hub names a pair by the other language first, whatever the direction.
        other = next((language for language in ours if language != "en"), ours[0])
        rows = read_hub(self.pair.hub, f"{other}-{'en' if 'en' in ours else ours[1]}", split)
        return self._numbered((row["translation"][ours[0]], row["translation"][ours[1]]) for row in rows)

    def _numbered(self, pairs: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
        """Return records whose id is the line's number, since corpora repeat sentence pairs."""
        source, target = self.pair.source, self.pair.target
        return [{"id": str(number), source: one, target: other} for number, (one, other) in enumerate(pairs, start=1)]
