"""Base class of tasks that require a label, or a number, per text or pair of texts: the tasks of encoders."""

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
        labels: Names of the labels, in the order of `gold`; None for a regression.
    """

    output_type: OutputType = "classification"
    default_max_new_tokens: int = 1
    labels: tuple[str, ...] | None

    @abstractmethod
    def texts(self, doc: Document) -> tuple[str, ...]:
        """Return the text, or both texts of a pair."""

    @abstractmethod
    def gold(self, doc: Document) -> int | float:
        """Return the index of the correct label, or the correct number."""

    @abstractmethod
    def score_prediction(self, doc: Document, prediction: int | float) -> DocumentScore:
        """Score a predicted label index, or a predicted number."""

    @property
    def is_regression(self) -> bool:
        """True for regression tasks."""
        return self.labels is None

    def prediction_text(self, prediction: int | float) -> str:
        """Return a prediction as written in results: the label's name, or the number."""
        return repr(float(prediction)) if self.labels is None else self.labels[int(prediction)]

    def parse_prediction(self, text: str) -> int | float:
        """Return the prediction that a text stands for.

        Raises:
            UserError: The text is no label, or no finite number.
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
        """Score a prediction given as text."""
        return self.score_prediction(doc, self.parse_prediction(output))

    def prompt(self, doc: Document) -> str:
        """Return the texts, one per line."""
        return "\n".join(self.texts(doc))

    def prompts(self, documents: Sequence[Document], kind: ModelKind) -> list[str]:
        """Return the texts of each document as JSON, so that no two pairs give the same text."""
        return [canonical_json(self.texts(document)) for document in documents]

    def target(self, doc: Document) -> str:
        """Return the correct answer as text."""
        return self.prediction_text(self.gold(doc))
