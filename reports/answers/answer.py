"""Answer of one run to one document, looked up by names that a user types, and printed with its tokens' exit layers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from exitbench.errors import UserError
from exitbench.reports.labels import number_format
from exitbench.reports.plotting.exit_colours import shades
from exitbench.results.analysis.traces import (
    TracedRun,
    answers,
    gate_scores,
    probe_rows,
    run_index,
    shared_prefix,
    token_texts,
    tokens,
    traced_runs,
)
from exitbench.results.database.connection import Database
from exitbench.terminal import visible

Row = Mapping[str, Any]

_FORMAT: Final = """
    SELECT
        $dtype AS dtype, max(value) FILTER (metric = 'format_logprob_gap') AS format_logprob_gap,
        max(value) FILTER (metric = 'format_choice_gap') AS format_choice_gap,
        max(value) FILTER (metric IN ('format_choice_match', 'format_token_match')) AS format_match
    FROM metric WHERE attempt_id = $full AND role = 'format'
"""


@dataclass(frozen=True)
class TracedAnswer:
    """Answer of one run to one document, with all that the database records of its tokens.

    Attributes:
        name: Name of the run.
        run: The run.
        ordinal: Number of the document, from 1, in the order of document keys.
        n_documents_total: Number of documents of the run.
        key: Key of the document.
        answer_row: Row of the answer: lengths, stop reason, scores.
        tokens: One row per token, by position.
        full_ids: Token ids of full depth's answer; None if full depth has not run.
        probe: Tokens that each block of full depth would predict, one row per token of its answer; empty if this was
            not recorded.
        gate: The gate's scores at each block, one row per row of `probe`; empty if no scores were recorded.
        texts: Text of each token id.
        number_format: How the run's number format changes full depth, as text; None for float32.
    """

    name: str
    run: TracedRun
    ordinal: int
    n_documents_total: int
    key: str
    answer_row: Row
    tokens: Sequence[Row]
    full_ids: Sequence[int] | None
    probe: Sequence[Row]
    gate: Sequence[Row]
    texts: Mapping[int, str]
    number_format: str | None

    @property
    def ids(self) -> list[int]:
        """Token ids of the answer."""
        return [row["token_id"] for row in self.tokens]

    @property
    def n_equal_tokens(self) -> int:
        """Number of tokens before the first that differs from full depth's answer; all if full depth has not run."""
        return len(self.tokens) if self.full_ids is None else shared_prefix(self.ids, self.full_ids)

    def differs(self, place: int) -> bool:
        """Return whether the token at index `place`, from 0, differs from full depth's; False without full depth."""
        if self.full_ids is None:
            return False
        return place >= len(self.full_ids) or self.full_ids[place] != self.ids[place]

    def full_text(self, place: int) -> str | None:
        """Return the text of full depth's token at index `place`, from 0; None past its end or without full depth."""
        if self.full_ids is None or place >= len(self.full_ids):
            return None
        return self.texts[self.full_ids[place]]

    def scores(self) -> dict[str, float]:
        """Return the task's scores of this document, by metric."""
        scores: dict[str, float] = json.loads(self.answer_row["scores"])
        return scores


def find_answers(database: Database, names: Sequence[str], document: str) -> list[TracedAnswer]:
    """Return the answers of the named runs to the named document.

    Args:
        database: An open database.
        names: Each a cell id, a prefix of one, or a glob over MODEL/TASK/METHOD; each must match exactly one run.
        document: Document key, a prefix of it, or its number from 1 in the order of keys.

    Raises:
        UserError: A name matches no run or several, the document does not exist, or a run has not answered it.
    """
    runs = traced_runs(database)
    choice, by_attempt = run_index(runs), {run.attempt_id: run for run in runs}
    results: list[TracedAnswer] = []
    for text in names:
        named_run = choice.find_one(text)
        run, name = by_attempt[named_run.attempt_id], choice.name(named_run)
        keys = answers(database, [run.attempt_id])["doc_key"].to_pylist()
        # A number is resolved on the first run, so that all runs show the same document.
        key = _document(document, keys, name) if not results else results[0].key
        if key not in keys:
            raise UserError(
                f"{name} has not answered document {key} of {results[0].name}: its documents are different."
            )
        results.append(_answer(database, run, name, key, keys))
    return results


def _document(text: str, keys: Sequence[str], name: str) -> str:
    if text in keys:
        return text
    if text.isascii() and text.isdigit() and len(text) <= len(str(len(keys))) and 1 <= int(text) <= len(keys):
        return keys[int(text) - 1]
    matches = [key for key in keys if key.startswith(text)] if text else []
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UserError(
            f"{name} has no document {text!r}: {len(matches)} keys begin with it, such as {matches[0]!r}. "
            f"Allowed: 1 to {len(keys)}, or more characters of a key."
        )
    close = get_close_matches(text, keys, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    choices = f"1 to {len(keys)}, or a key such as {keys[0]!r}" if keys else "none: it answered no document"
    raise UserError(f"{name} has no document {text!r}.{hint} Allowed: {choices}.")


def _answer(database: Database, run: TracedRun, name: str, key: str, keys: Sequence[str]) -> TracedAnswer:
    (answer_row,) = answers(database, [run.attempt_id], [key]).to_pylist()
    token_rows = tokens(database, [run.attempt_id], [key]).to_pylist()
    full = None
    if run.full_attempt_id is not None:
        full = tokens(database, [run.full_attempt_id], [key])["token_id"].to_pylist()
    probe = probe_rows(database, run.probe_attempt_id, [key]).to_pylist()
    gate = gate_scores(database, run.scores_attempt_id, [key]).to_pylist()
    ids = {row["token_id"] for row in token_rows} | set(full or ())
    ids |= {token_id for row in probe for name in ("top1_id", "top2_id", "top3_id") for token_id in row[name]}
    ids |= {row["full_token_id"] for row in probe}
    texts = _labels(database, run, key) if run.classifies else token_texts(database, run.tokenizer_sha256, ids)
    format_note = _number_format(database, run)
    return TracedAnswer(
        name, run, keys.index(key) + 1, len(keys), key, answer_row, token_rows, full, probe, gate, texts, format_note
    )


def _number_format(database: Database, run: TracedRun) -> str | None:
    (row,) = database.query(_FORMAT, {"full": run.full_attempt_id, "dtype": run.dtype}).to_pylist()
    return number_format(row)


def _labels(database: Database, run: TracedRun, key: str) -> dict[int, str]:
    """Return the label names in an encoder's and full depth's answers to document `key`, by label id.

    For regression, the only id is 0, and its text is the run's own output.
    """
    attempts = [attempt for attempt in (run.full_attempt_id, run.attempt_id) if attempt is not None]
    by_attempt = {row["attempt_id"]: row for row in answers(database, attempts, [key]).to_pylist()}
    rows = [by_attempt[attempt] for attempt in attempts if attempt in by_attempt]
    return {ids[0]: row["output_text"] for row in rows for ids in [row["output_ids"] or [0]]}


_CLIPPED: Final = 60
"""Characters of a token that are shown within a text; `print_token` shows all of it."""

_WIDE: Final = 160
"""Width in columns of a table that is written to a file."""

_SUBSCRIPTS: Final = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_REASONS: Final = {"threshold": "the gate opened", "last": "it is the last block"}


class HeatMap:
    """Printer of answers that shows each token's exit layer by colour, or as a number where there are few colours.

    Model output is never parsed as markup, and control characters are escaped.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._coloured = console.is_terminal and console.color_system is not None and not console.no_color
        # 16 colours are too few to tell blocks apart.
        self._numbered = not self._coloured or console.color_system == "standard"
        self._plain = not console.encoding.lower().startswith("utf")

    def print_answers(self, answers: Sequence[TracedAnswer]) -> None:
        """Print one or more runs' answers to one document; mark the first token that differs from full depth's."""
        first = answers[0]
        self._line(
            f"document {first.ordinal} of {first.n_documents_total}: {first.key}, "
            f"{first.answer_row['n_prompt']} prompt tokens"
        )
        for answer in answers:
            self._line()
            self._line(answer.name, bold=True)
            if answer.run.random_weights:
                self._line("random weights: the model was never trained, so this means nothing")
            self._line(_summary(answer))
            if answer.number_format is not None:
                self._line(answer.number_format)
            self._line()
            self._print(self._body(answer))
        self._line()
        for other in answers[1:]:
            self._line(_together(first, other))
        blocks = sorted({answer.run.blocks for answer in answers})
        for n in blocks:
            self._print(self._legend(n))

    def print_token(self, answer: TracedAnswer, position: int) -> None:
        """Print all that is recorded of the token at `position`, from 1: exit layer, score, read-outs of every block.

        Raises:
            UserError: The answer has no such token.
        """
        if not 1 <= position <= len(answer.tokens):
            raise UserError(f"--token {position}: {answer.name} has tokens 1 to {len(answer.tokens)} here.")
        place, row = position - 1, answer.tokens[position - 1]
        self._line()
        self._line(f"token {position} of {answer.name}: {_quoted(answer.texts[row['token_id']])}")
        reason = _REASONS.get(row["reason"], row["reason"])
        score = "" if row["score"] is None else f", score {row['score']:.3g}"
        self._line(f"exit after block {row['exit_layer']} of {answer.run.blocks}: {reason}{score}")
        if answer.full_ids is not None:
            full = answer.full_text(place)
            outcome = "had already ended" if full is None else f"has {_quoted(full)}"
            self._line(f"full depth {outcome}" + (", another token" if full and answer.differs(place) else ""))
        if place > answer.n_equal_tokens:
            self._line(
                "Read-outs by block are of full depth's answer, which differs from this one from token "
                f"{answer.n_equal_tokens + 1} on: they do not apply to this token."
            )
        elif place >= len(answer.probe):
            self._line("Full depth's answer was not probed here, so there are no read-outs by block.")
        else:
            self._line(f"oracle: block {answer.probe[place]['first_match']}")
            self._print(self._lens(answer, place))

    def _body(self, answer: TracedAnswer) -> Text:
        papers = shades(answer.run.blocks)
        body = Text(overflow="fold")
        for place, row in enumerate(answer.tokens):
            text, differs = answer.texts[row["token_id"]], answer.differs(place)
            if text.startswith(" ") and place:
                body.append(" ")
            if differs and place == answer.n_equal_tokens:
                body.append("!= " if self._plain else "≠ ", Style(bold=True))
            shade = papers[row["exit_layer"] - 1]
            style = (
                Style(color=shade.text_colour, bgcolor=shade.background, underline=differs)
                if self._coloured
                else Style()
            )
            body.append(_clipped(text), style)
            if self._numbered:
                body.append(self._number(row["exit_layer"]))
            if differs and not self._coloured:
                body.append("*")
            if text.strip(" ") == "\n":
                body.append("\n")
        return body

    def _number(self, layer: int) -> str:
        return f"[{layer}]" if self._plain else str(layer).translate(_SUBSCRIPTS)

    def _legend(self, blocks: int) -> Text:
        legend = Text("exit after block ")
        if self._coloured:
            for block, shade in enumerate(shades(blocks), start=1):
                legend.append(f" {block} ", Style(color=shade.text_colour, bgcolor=shade.background))
            legend.append("  ")
            legend.append("underlined", Style(underline=True))
        else:
            legend.append(f"1 to {blocks} as word{self._number(blocks)}; *")
        legend.append(f": not full depth's token; {'!=' if self._plain else '≠'}: the first that differs")
        return legend

    def _lens(self, answer: TracedAnswer, place: int) -> Table:
        probe, exit_layer = answer.probe[place], answer.tokens[place]["exit_layer"]
        gate = answer.gate[place]["score"] if len(answer.gate) == len(answer.probe) else None
        table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
        names = ["block", "", "1st", "2nd", "3rd", "full depth's"] + ([] if gate is None else ["gate"])
        for name in names:
            table.add_column(Text(name), justify="right" if name in ("block", "gate") else "left", overflow="fold")
        papers = shades(answer.run.blocks)
        for n in range(answer.run.blocks):
            marks = ["exit"] * (n + 1 == exit_layer) + ["oracle"] * (n + 1 == probe["first_match"])
            shade = papers[n]
            style = Style(color=shade.text_colour, bgcolor=shade.background) if self._coloured else Style()
            cells = [Text(f"{n + 1:>2} ", style), Text(" ".join(marks))]
            for ids, share in (("top1_id", "p1"), ("top2_id", "p2"), ("top3_id", "p3")):
                hit = Style(bold=probe[ids][n] == probe["full_token_id"])
                cells.append(
                    Text(_clipped(answer.texts[probe[ids][n]], 24), hit).append(f" {probe[share][n]:.2f}", Style.null())
                )
            cells.append(Text(f"#{probe['rank_final'][n]} {probe['p_final'][n]:.2f}"))
            if gate is not None:
                cells.append(Text("-" if gate[n] != gate[n] else f"{gate[n]:.3f}"))
            table.add_row(*cells)
        return table

    def _line(self, text: str = "", *, bold: bool = False) -> None:
        self._print(Text(visible(text), Style(bold=bold)))

    def _print(self, what: Text | Table) -> None:
        # Lines for a file or a pipe are not wrapped.
        piped = not self._console.is_terminal
        if isinstance(what, Table):
            self._console.print(what, width=max(self._console.width, _WIDE) if piped else None)
        else:
            self._console.print(what, soft_wrap=piped, highlight=False)


def _summary(answer: TracedAnswer) -> str:
    n = len(answer.tokens)
    if not n:
        return "an empty answer"
    mean = sum(row["exit_layer"] for row in answer.tokens) / n
    parts = [f"{n} tokens", f"mean exit layer {mean:.1f} of {answer.run.blocks}"]
    if answer.full_ids is not None and not answer.run.is_full_depth:
        differing = sum(answer.differs(place) for place in range(n))
        same = f"{n - differing} as full depth, first difference at token {answer.n_equal_tokens + 1}"
        parts.append(same if differing else "all as full depth")
    parts += [f"{name} {value:.1f}" for name, value in answer.scores().items()]
    return ", ".join([*parts, f"ended by {answer.answer_row['stop_reason']}"])


def _together(first: TracedAnswer, other: TracedAnswer) -> str:
    if first.ids == other.ids:
        return "both answers are the same"
    return f"the answers differ from token {shared_prefix(first.ids, other.ids) + 1}"


def _quoted(text: str) -> str:
    """Return a token's whole text in quotes, without its leading space."""
    return f'"{visible(text.removeprefix(" "))}"'


def _clipped(text: str, most: int = _CLIPPED) -> str:
    text = text.removeprefix(" ")
    if not text.strip():
        return "".join("↵" if character == "\n" else visible(character) for character in text).replace(" ", "␣") or "␣"
    text = visible(text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 1]}…"
