"""HTML page of the report. It makes no network requests; its pictures are next to it, or embedded.

`page.html` is the template. Each script serves one feature (`page.js` tables, filters and copying, `chart.js` the
frontier, `documents*.js` the answers), and the page works without it except for that feature.
"""

import base64
import gzip
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from exitbench.reports.claims import FAILS, HEADINGS, HOLDS, VERDICTS, Verdict, by_kind
from exitbench.reports.claims.claim import CONSISTENCY
from exitbench.reports.drawing import PAGE, DrawnFigure
from exitbench.reports.frame import Frame, Row
from exitbench.reports.front import cards, words
from exitbench.reports.labels import labels, setting
from exitbench.reports.material import Material
from exitbench.reports.plotting.style import DOUBLE_INCHES, SINGLE_INCHES, data_uri, series_styles, size_of
from exitbench.reports.registry import OURS, PAPERS, SECTIONS, ReportSource
from exitbench.reports.tables.columns import FilledTable

_HERE: Final = Path(__file__).parent
_STYLES: Final = (
    *("page.css", "front.css", "results.css", "gallery.css", "find.css", "claims.css", "chart.css", "documents.css"),
)
_SCRIPTS: Final = (
    *("address.js", "page.js", "contents.js", "find.js", "front.js", "results.js"),
    *("chart_axes.js", "chart_panel.js", "chart.js"),
    *("documents_data.js", "documents_events.js", "documents_panel.js", "documents_labels.js"),
    *("documents_answer.js", "documents.js"),
)
_OPEN: Final = ("findings", "results", "provenance")
_COMMAND: Final = re.compile(r"`((?:nox|exitbench) .+?)`")
_SENTENCE: Final = re.compile(r"(?<=[.?!])\s+(?=\S)")
_SHORT: Final = {"ours": "Costs and gains", "explain": "Explanations"}
_POINTS_AN_INCH: Final = 72
_MOST_ROWS: Final = 200
"""Maximum number of rows of a table on the page; its CSV file has all rows."""
_MOST_RESULTS: Final = 700
"""The same for results, whose rows the chart draws: a browser opens a page with 5,000 of them in 16 s."""
_POINT: Final = (
    *("value", "ci_low", "ci_high", "full_value", "lower_is_better", "delta", "delta_low", "delta_high"),
    *("mean_exit_layer", "mean_blocks_run", "blocks", "speedup"),
    *("speedup_low", "speedup_high", "aa_low", "aa_high", "speedup_per_token", "tokens_per_request"),
    *("full_tokens_per_request", "is_other_length", "speedup_decode", "ideal_speedup_decode", "ideal_speedup_bytes"),
    *("energy_ratio", "energy_ratio_low", "energy_ratio_high", "joules_per_token", "full_joules_per_token"),
    *("n", "timed_documents", "timed_rounds", "speed_status"),
)


@dataclass(frozen=True)
class Section:
    """Section of the page: figures, then tables."""

    key: str
    title: str
    short_title: str
    figures: tuple[DrawnFigure, ...]
    tables: tuple[FilledTable, ...]

    @property
    def is_gallery(self) -> bool:
        """True if its items are cards that open on click; items of other sections are always open."""
        return self.key not in _OPEN

    @property
    def items(self) -> Sequence[DrawnFigure | FilledTable]:
        """Figures of the section, then its tables."""
        return [*self.figures, *self.tables]

    @property
    def visible_items(self) -> tuple[DrawnFigure | FilledTable, ...]:
        """Figures and tables shown on the page: those with rows and, if the section is always open, those without."""
        return tuple(it for it in self.items if it.frame.rows or not self.is_gallery)

    @property
    def missing(self) -> tuple[ReportSource, ...]:
        """Figures and tables for which the database has no rows."""
        return tuple(it.source for it in self.items if not it.frame.rows)

    @property
    def commands(self) -> tuple[str, ...]:
        """Shell commands that produce the missing items, each taken from the text shown in place of the item."""
        matches = (_COMMAND.search(source.empty) for source in self.missing)
        return tuple(dict.fromkeys(command[1] for command in matches if command))


@cache
def _template() -> Template:
    """Return the page's Jinja template, which is compiled once per process."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["marked"] = _marked
    environment.filters["told"] = _split_caption
    environment.filters["packed_csv"] = _packed_csv
    return environment.get_template("page.html")


def page(
    material: Material, drawn: Sequence[DrawnFigure], filled: Sequence[FilledTable], single_file: bool = False
) -> str:
    """Return the whole page as HTML.

    Args:
        material: Inputs of the report.
        drawn: Its figures.
        filled: Its tables.
        single_file: Whether to embed pictures and data, so that the file can be sent alone.
    """
    # bundled files, not data: the only text that is not escaped
    style = Markup("".join((_HERE / name).read_text("utf-8") for name in _STYLES))
    scripts = [Markup((_HERE / name).read_text("utf-8")) for name in _SCRIPTS]
    every_section = _sections(drawn, filled)
    shown = _shown_results(material.rows("summary"))
    sections = [section for section in every_section if section.visible_items]
    # Costs and gains come first, if there are any.
    before_claims = [section.key for section in sections if section.key in ("results", OURS)]
    return _template().render(
        style=style,
        scripts=scripts,
        style_hash=_integrity(style),
        script_hashes=" ".join(f"'{_integrity(script)}'" for script in scripts),
        single_file=single_file,
        pictures={it.source.name: it.picture and _picture(it.picture, single_file) for it in drawn},
        sections=sections,
        empty_sections=[section for section in every_section if not section.visible_items],
        claims_after=before_claims[-1] if before_claims and material.claims else None,
        anchors={it.source.name for section in sections for it in section.visible_items},
        whole=material.paper is None,
        most_rows=_MOST_ROWS,
        severe=material.severe,
        **_front(material),
        claims={HEADINGS[kind]: sorted(some, key=_rank) for kind, some in by_kind(material.claims).items()},
        measured_verdicts=(HOLDS, FAILS),
        recomputed=HEADINGS[CONSISTENCY],
        tally=_tally(material.claims),
        most_claims=max(Counter(it.claim.paper for it in material.claims).values(), default=0),
        claims_of=_claims_of(material.claims),
        documents=base64.b64encode(material.documents or b"").decode("ascii"),
        shown_results=shown,
        points=_points(material.rows("summary"), shown),
    )


def _shown_results(rows: Sequence[Row]) -> list[int]:
    """Return the indices of the result rows shown on the page, at most `_MOST_RESULTS`.

    They are the first rows of each combination of model, task, setting, metric and execution; the number per
    combination is as large as the limit allows.
    """
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        groups[tuple(row[name] for name in ("model", "task", "setting", "metric", "execution"))].append(place)
    each = max(map(len, groups.values()), default=0)
    while each > 1 and sum(min(each, len(group)) for group in groups.values()) > _MOST_RESULTS:
        each -= 1
    return sorted(place for group in groups.values() for place in group[:each])[:_MOST_RESULTS]


@dataclass(frozen=True)
class Picture:
    """Picture of a figure on the page.

    Attributes:
        address: URL of the file next to the page, or a data URI with the picture.
        width: Width in points.
        height: Height in points.
    """

    address: str
    width: int
    height: int

    @property
    def is_narrow(self) -> bool:
        """True if the picture has the width of one column of a paper."""
        return self.width < (SINGLE_INCHES + DOUBLE_INCHES) / 2 * _POINTS_AN_INCH


def _picture(path: Path, single_file: bool) -> Picture:
    content = path.read_text("utf-8")
    return Picture(data_uri(content) if single_file else f"figures/{PAGE}/{path.name}", *size_of(content))


def _sections(drawn: Sequence[DrawnFigure], filled: Sequence[FilledTable]) -> tuple[Section, ...]:
    sections = (
        Section(
            key,
            title,
            _SHORT.get(key, key.upper() if key in PAPERS else key.capitalize()),
            tuple(figure for figure in drawn if figure.source.section == key),
            tuple(table for table in filled if table.source.section == key),
        )
        for key, title in SECTIONS.items()
    )
    return tuple(section for section in sections if section.figures or section.tables)


def _rank(verdict: Verdict) -> int:
    return VERDICTS.index(verdict.verdict)


def _tally(verdicts: Sequence[Verdict]) -> dict[str, list[tuple[str, int, int]]]:
    """Return the counts of verdicts on the claims of each paper, as segments of a bar.

    A segment is (verdict, number of claims with verdicts before it in `VERDICTS`, number of claims with it).
    """
    papers = {it.claim.paper: Counter[str]() for it in verdicts}
    for it in verdicts:
        papers[it.claim.paper][it.verdict] += 1
    return {
        paper: [
            (verdict, sum(counts[before] for before in VERDICTS[:place]), counts[verdict])
            for place, verdict in enumerate(VERDICTS)
            if counts[verdict]
        ]
        for paper, counts in papers.items()
    }


def _claims_of(verdicts: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    """Return verdicts by name of the figure or table on the claim's subject, each list in the order of `VERDICTS`."""
    by_item: dict[str, list[Verdict]] = defaultdict(list)
    for it in sorted(verdicts, key=_rank):
        if it.claim.shown_in:
            by_item[it.claim.shown_in].append(it)
    return dict(by_item)


def _front(material: Material) -> dict[str, Any]:
    """Return the template variables of the page's first screen: facts, warning, findings about runs, and cards."""
    results = material.rows("summary")
    names, exports = labels(results), {row["cell_id"]: row for row in material.front.exports}
    calibrations = material.rows("calibrations")
    texts = [words.describe_card(card, names, exports, calibrations) for card in cards.cards(results)]
    return {
        "facts": words.facts(material.front.runs, results),
        "warning": words.data_warning(material.front.runs),
        "findings_line": cards.findings_line(material.rows("qc")),
        "cards": texts,
        "paying": sum(words.recommends_faster(card, cards.DEFAULT_PERCENT) for card in texts),
        "untimed": sum(not card.is_timed for card in texts),
        "default_percent": cards.DEFAULT_PERCENT,
        "most_percent": cards.MOST_PERCENT,
    }


def _points(rows: Sequence[Row], shown: Sequence[int]) -> dict[str, Any]:
    """Return the data of the interactive frontier chart: one point per result on the page, in the order of `shown`.

    Results of random weights are left out.
    """
    names, short = labels(rows), labels(rows, brief=True)
    return {
        "styles": {
            name: [style.colour, style.marker] for name, style in series_styles(row["method"] for row in rows).items()
        },
        "points": [
            {
                "row": number,
                "label": names[setting(row)],
                "short": short[setting(row)],
                **{name: row[name] for name in ("method", "model", "task", "metric")},
                **{name: row[name] for name in _POINT if row[name] is not None},
                "simulated": row["execution"] == "simulated",
                "full": row["is_full_depth"],
                "bound": row["method"] in ("random", "oracle"),
                "sweep": _sweep(row),
                "threshold": json.loads(row["params"]).get("threshold"),
            }
            for number, row in enumerate(rows[place] for place in shown)
            if not row["random_weights"]
        ],
    }


def _sweep(row: Row) -> str:
    """Return a key that is equal for result rows that differ only in their threshold."""
    params = {name: value for name, value in json.loads(row["params"]).items() if name != "threshold"}
    return json.dumps([row["method"], params, row["kv_policy"], row["setting_id"], row["execution"]])


def _packed_csv(frame: Frame) -> str:
    """Return the rows as CSV, gzipped and in base64 for an HTML attribute; equal rows give equal text."""
    return base64.b64encode(gzip.compress(frame.csv().encode("utf-8"), mtime=0)).decode("ascii")


def _split_caption(it: DrawnFigure | FilledTable) -> tuple[str, str]:
    """Split the caption of a figure or table into the text that its closed card shows and the remainder.

    The card's text is the figure's finding if there is one, else the first sentence.
    """
    if isinstance(it, DrawnFigure) and it.finding:
        return it.finding, it.source.module.CAPTION
    first, *remainder = _SENTENCE.split(it.source.module.CAPTION, 1)
    return first, "".join(remainder)


def _marked(text: str) -> Markup:
    """Return `text` escaped, with text in backticks as code."""
    parts = [Markup("<code>{}</code>" if i % 2 else "{}").format(part) for i, part in enumerate(text.split("`"))]
    return Markup("").join(parts)


def _integrity(text: str) -> str:
    """Return the hash with which the page's content security policy allows this inline text and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
