"""The metrics that a declared task may name: those of our own tasks, over one or several references."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from exitbench.errors import UserError
from exitbench.tasks.base import FloatArray
from exitbench.tasks.squad.scoring import exact_match, token_f1
from exitbench.tasks.summarisation import scoring as rouge
from exitbench.tasks.translation import scoring


@dataclass(frozen=True)
class MetricRule:
    """How a metric is computed.

    Attributes:
        version: Changes whenever a score could change.
        value: Of an output and its references: 0..100.
        statistics: Corpus metrics only: of an output and its only reference, what adds up over documents, [S].
        aggregate: Corpus metrics only: the metric of sums [..., S].
    """

    version: str
    value: Callable[[str, Sequence[str]], float]
    statistics: Callable[[str, str], list[float]] | None = None
    aggregate: Callable[[FloatArray], FloatArray] | None = None


def _verbatim(output: str, references: Sequence[str]) -> float:
    return 100.0 * (output.strip() in {reference.strip() for reference in references})


def _f1(output: str, references: Sequence[str]) -> float:
    return 100 * token_f1(output, references)


def _em(output: str, references: Sequence[str]) -> float:
    return 100 * exact_match(output, references)


def _rouge(name: str, output: str, references: Sequence[str]) -> float:
    return 100 * max(float(rouge.scorer(name).score(reference, output)[name].fmeasure) for reference in references)


def _of_one(value: Callable[[str, str], float]) -> Callable[[str, Sequence[str]], float]:
    return lambda output, references: value(output, references[0])


BLEU_TOKENIZERS: Final = ("13a", "intl", "zh", "char", "none", "ja-mecab", "ko-mecab")
"""sacrebleu's, the default first; those with SentencePiece models are left out, since sacrebleu downloads these."""


def bleu_rule(tokenizer: str) -> MetricRule:
    """Return BLEU with one of sacrebleu's ways to cut a text into words.

    Raises:
        UserError: sacrebleu needs another package for it.
    """
    try:
        bleu = scoring.bleu_by(tokenizer)
    except (RuntimeError, ImportError) as error:
        raise UserError(f"{tokenizer!r} cannot be used: {' '.join(str(error).split())}") from None
    return MetricRule(scoring.signature(bleu), _of_one(bleu.of_sentence), bleu.statistics, scoring.bleu)


_BLEU: Final = bleu_rule(BLEU_TOKENIZERS[0])

METRICS: Final[Mapping[str, MetricRule]] = {
    "exact_match": MetricRule("verbatim|1", _verbatim),
    "em": MetricRule("squad-v1.1-rules|1", _em),
    "f1": MetricRule("squad-v1.1-rules|1", _f1),
    **{name: MetricRule(rouge.VERSION, functools.partial(_rouge, name)) for name in ("rouge1", "rouge2", "rougeL")},
    "bleu": _BLEU,
    "chrf": MetricRule(_BLEU.version, _of_one(scoring.sentence_chrf), scoring.chrf_statistics, scoring.chrf),
}
"""Values are the best over the references, but those of corpus metrics, which take a single one."""
