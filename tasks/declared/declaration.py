"""What a task's TOML file says, as plain data: part of what a cell asks for, so that workers need no file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from exitbench.errors import UserError, suggestion
from exitbench.tasks.declared.templates import Pieces, parse

PREFIX: Final = "toml:"
"""Before the name that a task's file gives it."""
DEFAULT_MAX_NEW_TOKENS: Final = 64
CHOICE_METRICS: Final = ("acc", "acc_norm")
"""Of tasks with choices: the share whose most probable choice is right, as it is, and by its length."""


@dataclass(frozen=True)
class Declaration:
    """A task without code.

    Attributes:
        name: What it is called, without `PREFIX`.
        fields: Pairs (name, column of the file); a column with dots leads into objects of JSON.
        prompt: Template of the input of an encoder-decoder.
        causal_prompt: Of a decoder-only model; None: the same.
        target: Field with the reference, or (JSON) a list of references; with choices, which of them is right.
        metrics: Names of `METRICS`, or with choices of `CHOICE_METRICS`, headline first.
        max_new_tokens: Longest answer, where a suite says nothing.
        choices: Field with a list of choices, or a template for each; None: the model writes an answer.
        bleu_tokenize: How BLEU cuts texts into words: one of `BLEU_TOKENIZERS`; None: sacrebleu's default, 13a.
    """

    name: str
    fields: tuple[tuple[str, str], ...]
    prompt: str
    target: str
    metrics: tuple[str, ...]
    causal_prompt: str | None = None
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    choices: str | tuple[str, ...] | None = None
    bleu_tokenize: str | None = None

    def __post_init__(self) -> None:
        """Check what the parts say of each other; where they stand in a file, whoever reads it adds.

        Raises:
            UserError: A field, a metric or a template is not what is allowed.
        """
        allowed = self._allowed_metrics()
        names = frozenset(name for name, _ in self.fields)
        for name in names:
            if not name.isidentifier():
                raise UserError(f"fields: {name!r} is no name. Allowed: letters, digits and _, no digit first.")
        if self.target not in names:
            raise UserError(f"target: unknown field {self.target!r}.{suggestion(self.target, names)}")
        if not self.metrics or len(set(self.metrics)) < len(self.metrics):
            raise UserError(f"metrics: {list(self.metrics)} are not one or more, each once.{suggestion('', allowed)}")
        for metric in self.metrics:
            if metric not in allowed:
                raise UserError(f"metrics: unknown metric {metric!r}.{suggestion(metric, allowed)}")
        _ = self.seq2seq_pieces, self.causal_pieces
        if self.choices is not None:
            self._check_choices(names)
        if self.bleu_tokenize is not None:
            self._check_tokenizer(self.bleu_tokenize)

    def _allowed_metrics(self) -> tuple[str, ...]:
        if self.choices is not None:
            return CHOICE_METRICS
        from exitbench.tasks.declared.metrics import METRICS  # its libraries are not for every reader of requests

        return tuple(METRICS)

    def _check_choices(self, names: frozenset[str]) -> None:
        if self.causal_prompt is not None:
            raise UserError("causal_prompt: does not go with choices, whose prompt is one for all models.")
        if isinstance(self.choices, str) and self.choices not in names:
            raise UserError(f"choices: unknown field {self.choices!r}.{suggestion(self.choices, names)}")
        if not isinstance(self.choices, str) and len(self.choice_pieces) < 2:
            raise UserError("choices: needed: the name of a field with a list, or two templates or more.")

    def _check_tokenizer(self, name: str) -> None:
        from exitbench.tasks.declared.metrics import BLEU_TOKENIZERS, bleu_rule

        if "bleu" not in self.metrics:
            raise UserError('bleu_tokenize: goes with the metric "bleu".')
        if name not in BLEU_TOKENIZERS:
            raise UserError(f"bleu_tokenize: unknown tokenizer {name!r}.{suggestion(name, BLEU_TOKENIZERS)}")
        try:
            bleu_rule(name)
        except UserError as error:
            raise UserError(f"bleu_tokenize: {error}") from None

    @property
    def task_name(self) -> str:
        """What results call the task."""
        return f"{PREFIX}{self.name}"

    @property
    def seq2seq_pieces(self) -> Pieces:
        """The prompt of an encoder-decoder, read."""
        return parse(self.prompt, frozenset(name for name, _ in self.fields), "prompt")

    @property
    def causal_pieces(self) -> Pieces:
        """The prompt of a decoder-only model, read."""
        if self.causal_prompt is None:
            return self.seq2seq_pieces
        return parse(self.causal_prompt, frozenset(name for name, _ in self.fields), "causal_prompt")

    @property
    def choice_pieces(self) -> tuple[Pieces, ...]:
        """The templates of the choices, read; none where a field has their list."""
        if self.choices is None or isinstance(self.choices, str):
            return ()
        names = frozenset(name for name, _ in self.fields)
        return tuple(parse(template, names, "choices") for template in self.choices)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {key: value for key, value in asdict(self).items() if key != "bleu_tokenize" or value is not None}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Declaration":
        """Rebuild a declaration from its JSON."""
        fields = tuple((name, column) for name, column in record["fields"])
        choices = record.get("choices")
        given = {"fields": fields, "metrics": tuple(record["metrics"])}
        return cls(**{**record, **given, "choices": tuple(choices) if isinstance(choices, list) else choices})
