"""Answers in a terminal: each token in the colour of its exit layer, or with its number where there are no colours."""

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from exitbench.errors import UserError
from exitbench.reports.answers.answer import Answer
from exitbench.reports.plotting.exit_colours import shades
from exitbench.results.analysis.traces import shared_prefix
from exitbench.terminal import visible

_CLIPPED: Final = 60
"""Characters of a token that are shown in a text; `print_token` shows all."""

_WIDE: Final = 160
"""Columns of a table that goes to a file."""

_SUBSCRIPTS: Final = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_REASONS: Final = {"threshold": "the method let it go", "last": "no block was left"}


class HeatMap:
    """Prints answers. What models wrote is never read as markup, and control characters are spelled out."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._coloured = console.is_terminal and console.color_system is not None and not console.no_color
        # Of 16 colours there are too few to tell blocks apart.
        self._numbered = not self._coloured or console.color_system == "standard"
        self._plain = not console.encoding.lower().startswith("utf")

    def print_answers(self, answers: Sequence[Answer]) -> None:
        """Print one answer or several to one document, each with where it leaves full depth's."""
        first = answers[0]
        self._line(
            f"document {first.ordinal} of {first.of_documents}: {first.key}, {first.about['n_prompt']} prompt tokens"
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

    def print_token(self, answer: Answer, position: int) -> None:
        """Print all that is known of the token at `position`, from 1.

        Raises:
            UserError: The answer has no such token.
        """
        if not 1 <= position <= len(answer.tokens):
            raise UserError(f"--token {position}: {answer.name} has tokens 1 to {len(answer.tokens)} here.")
        place, row = position - 1, answer.tokens[position - 1]
        self._line()
        self._line(f"token {position} of {answer.name}: {_said(answer.texts[row['token_id']])}")
        reason = _REASONS.get(row["reason"], row["reason"])
        score = "" if row["score"] is None else f", score {row['score']:.3g}"
        self._line(f"exit after block {row['exit_layer']} of {answer.run.blocks}: {reason}{score}")
        if answer.full_ids is not None:
            full = answer.full_text(place)
            said = "had ended before" if full is None else f"said {_said(full)}"
            self._line(f"full depth {said}" + (", another token" if full and answer.differs(place) else ""))
        if place > answer.shared:
            self._line(
                f"Read-outs by block are of full depth's own answer, which this one left at token {answer.shared + 1}: "
                "they say nothing about this token."
            )
        elif place >= len(answer.probe):
            self._line("Full depth's answer was not probed here, so there are no read-outs by block.")
        else:
            self._line(f"oracle: block {answer.probe[place]['first_match']}")
            self._print(self._lens(answer, place))

    def _body(self, answer: Answer) -> Text:
        papers = shades(answer.run.blocks)
        body = Text(overflow="fold")
        for place, row in enumerate(answer.tokens):
            text, differs = answer.texts[row["token_id"]], answer.differs(place)
            if text.startswith(" ") and place:
                body.append(" ")
            if differs and place == answer.shared:
                body.append("!= " if self._plain else "≠ ", Style(bold=True))
            shade = papers[row["exit_layer"] - 1]
            style = Style(color=shade.ink, bgcolor=shade.paper, underline=differs) if self._coloured else Style()
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
                legend.append(f" {block} ", Style(color=shade.ink, bgcolor=shade.paper))
            legend.append("  ")
            legend.append("underlined", Style(underline=True))
        else:
            legend.append(f"1 to {blocks} as word{self._number(blocks)}; *")
        legend.append(f": not full depth's token; {'!=' if self._plain else '≠'}: the first that is not")
        return legend

    def _lens(self, answer: Answer, place: int) -> Table:
        probe, left = answer.probe[place], answer.tokens[place]["exit_layer"]
        gate = answer.gate[place]["score"] if len(answer.gate) == len(answer.probe) else None
        table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
        names = ["block", "", "1st", "2nd", "3rd", "full depth's"] + ([] if gate is None else ["gate"])
        for name in names:
            table.add_column(Text(name), justify="right" if name in ("block", "gate") else "left", overflow="fold")
        papers = shades(answer.run.blocks)
        for n in range(answer.run.blocks):
            marks = ["exit"] * (n + 1 == left) + ["oracle"] * (n + 1 == probe["first_match"])
            shade = papers[n]
            style = Style(color=shade.ink, bgcolor=shade.paper) if self._coloured else Style()
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
        # Lines for a file or a pipe are as long as they are.
        piped = not self._console.is_terminal
        if isinstance(what, Table):
            self._console.print(what, width=max(self._console.width, _WIDE) if piped else None)
        else:
            self._console.print(what, soft_wrap=piped, highlight=False)


def _summary(answer: Answer) -> str:
    n = len(answer.tokens)
    if not n:
        return "an empty answer"
    mean = sum(row["exit_layer"] for row in answer.tokens) / n
    parts = [f"{n} tokens", f"mean exit layer {mean:.1f} of {answer.run.blocks}"]
    if answer.full_ids is not None and not answer.run.is_full_depth:
        differing = sum(answer.differs(place) for place in range(n))
        same = f"{n - differing} as full depth, first difference at token {answer.shared + 1}"
        parts.append(same if differing else "all as full depth")
    parts += [f"{name} {value:.1f}" for name, value in answer.scores().items()]
    return ", ".join([*parts, f"ended by {answer.about['stop_reason']}"])


def _together(first: Answer, other: Answer) -> str:
    if first.ids == other.ids:
        return "both answers are the same"
    return f"the answers part at token {shared_prefix(first.ids, other.ids) + 1}"


def _said(text: str) -> str:
    """A token in quotes, all of it."""
    return f'"{visible(text.removeprefix(" "))}"'


def _clipped(text: str, most: int = _CLIPPED) -> str:
    text = text.removeprefix(" ")
    if not text.strip():
        return "".join("↵" if character == "\n" else visible(character) for character in text).replace(" ", "␣") or "␣"
    text = visible(text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 1]}…"
