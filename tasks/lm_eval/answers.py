"""Scoring functions of bundled lm-eval tasks, for metrics that lm-eval does not have."""

from collections.abc import Mapping, Sequence
from typing import Any

from exitbench.tasks.squad import exact_match, token_f1
from exitbench.tasks.summarisation import rouge_scorer


def narrativeqa(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Return token F1 and exact match by SQuAD's rules, 0..1, and ROUGE-L, 0..100, of an answer, by metric name.

    `doc` is the record with the reference answers, `results` holds the generated one. Each value is the highest over
    the reference answers.
    """
    answers = [answer["text"] for answer in doc["answers"]]
    rouge = max(rouge_scorer("rougeL").score(answer, results[0])["rougeL"].fmeasure for answer in answers)
    return {"f1": token_f1(results[0], answers), "em": exact_match(results[0], answers), "rougeL": 100 * rouge}
