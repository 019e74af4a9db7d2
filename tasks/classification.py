"""Base class of classification and regression tasks on a text or a pair of texts, for encoder-only models."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

from exitbench.errors import UserError, suggestion
from exitbench.tasks.base import ModelKind, OutputType, Task
from exitbench.tasks.document import Document, DocumentScore, canonical_json


class ClassificationTask(Task):
    """Task whose answer is one of its labels, or a number if it has no labels (regression).

    Attributes:
        labels: Names of the labels; `gold` returns an index into them. None for a regression.
    """

    output_type: OutputType = "classification"
    default_max_new_tokens: int = 1
    labels: tuple[str, ...] | None

    @abstractmethod
    def texts(self, doc: Document) -> tuple[str, ...]:
        """Return the text of a document, or both texts of its pair."""

    @abstractmethod
    def gold(self, doc: Document) -> int | float:
        """Return the index of the document's correct label or, for a regression, the correct number."""

    @abstractmethod
    def score_prediction(self, doc: Document, prediction: int | float) -> DocumentScore:
        """Return the scores of a predicted label index or, for a regression, of a predicted number."""

    @property
    def is_regression(self) -> bool:
        """True if the task has no labels, so that its answer is a number."""
        return self.labels is None

    def prediction_text(self, prediction: int | float) -> str:
        """Return a prediction as it is stored in results: the label's name or, for a regression, the number."""
        return repr(float(prediction)) if self.labels is None else self.labels[int(prediction)]

    def parse_prediction(self, text: str) -> int | float:
        """Convert a stored prediction to a label index or, for a regression, a number; inverse of `prediction_text`.

        Raises:
            UserError: The text is not a label of the task or, for a regression, not a finite number.
        """
        if self.labels is not None:
            if text not in self.labels:
                raise UserError(f"{self.name}: {text!r} is no label of the task.{suggestion(text, self.labels)}")
            return self.labels.index(text)
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise UserError(f"{self.name}: {text!r} is not a finite number, which the task requires.")
        return number

    def score(self, doc: Document, output: str) -> DocumentScore:
        """Return the scores of a prediction given as text: a label's name or, for a regression, a number."""
        return self.score_prediction(doc, self.parse_prediction(output))

    def prompt(self, doc: Document) -> str:
        """Return the document's texts, one per line."""
        return "\n".join(self.texts(doc))

    def prompts(self, documents: Sequence[Document], kind: ModelKind) -> list[str]:
        """Return each document's texts as JSON, so that two different pairs of texts never give the same string."""
        return [canonical_json(self.texts(document)) for document in documents]

    def target(self, doc: Document) -> str:
        """Return the correct label's name or, for a regression, the correct number as text."""
        return self.prediction_text(self.gold(doc))
