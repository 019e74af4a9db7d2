"""The page: one HTML file with everything in it, which asks the network for nothing.

`page.html` lays it out. Each script is for one thing (`page.js` tables, filters and copying, `chart.js` the frontier,
`documents*.js` the answers), and nothing but that is lost without it.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from exitbench.reports.claims.words import HEADINGS, by_kind, counted
from exitbench.reports.drawing import DrawnFigure
from exitbench.reports.frame import Frame, Row
from exitbench.reports.front import cards, findings, title, words
from exitbench.reports.labels import labels, setting
from exitbench.reports.material import Material
from exitbench.reports.plotting.style import series_styles
from exitbench.reports.registry import PAPERS, SECTIONS
from exitbench.reports.tables.filled import FilledTable

_HERE: Final = Path(__file__).parent
_STYLES: Final = ("page.css", "front.css", "results.css", "chart.css", "documents.css")
_SCRIPTS: Final = (
    *("address.js", "page.js", "front.js", "results.js", "chart_axes.js", "chart_panel.js", "chart.js"),
    *("documents_data.js", "documents_panel.js", "documents_answer.js", "documents.js"),
)
_SHORT: Final = {"ours": "Costs and gains", "explain": "Explanations"}
_MOST_ROWS: Final = 1000
"""More rows of a table are in its CSV file only: nobody reads them, and they would be most of the page.
The results are whole: the chart draws their rows."""
_POINT: Final = (
    *(
        "value",
        "ci_low",
        "ci_high",
        "full_value",
        "delta",
        "delta_low",
        "delta_high",
        "mean_exit_layer",
        "mean_blocks_run",
        "blocks",
        "speedup",
    ),
    *("speedup_low", "speedup_high", "aa_low", "aa_high", "speedup_per_token", "tokens_per_request"),
    *("full_tokens_per_request", "is_other_length", "speedup_decode", "ideal_speedup_decode", "ideal_speedup_bytes"),
    *("n", "timed_documents", "timed_rounds"),
)


@dataclass(frozen=True)
class Section:
    """A part of the page: figures, then tables."""

    key: str
    title: str
    short_title: str
    figures: tuple[DrawnFigure, ...]
    tables: tuple[FilledTable, ...]


def page(material: Material, drawn: Sequence[DrawnFigure], filled: Sequence[FilledTable]) -> str:
    """Return the whole page as HTML.

    Args:
        material: What the report is made from.
        drawn: Its figures.
        filled: Its tables.
    """
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["marked"] = _marked
    environment.filters["packed_csv"] = _packed_csv
    # our own files, not data: the only text that is not escaped
    style = Markup("".join((_HERE / name).read_text("utf-8") for name in _STYLES))
    scripts = [Markup((_HERE / name).read_text("utf-8")) for name in _SCRIPTS]
    return environment.get_template("page.html").render(
        style=style,
        scripts=scripts,
        style_hash=_integrity(style),
        script_hashes=" ".join(f"'{_integrity(script)}'" for script in scripts),
        sections=_sections(drawn, filled),
        whole=material.paper is None,
        most_rows=_MOST_ROWS,
        severe=material.severe,
        **_front(material),
        claims=[(HEADINGS[kind].capitalize(), some, counted(some)) for kind, some in by_kind(material.claims).items()],
        documents=base64.b64encode(material.documents or b"").decode("ascii"),
        points=_points(material.rows("summary")),
    )


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


def _front(material: Material) -> dict[str, Any]:
    """Return what the first screen shows: what ran, findings in a line, and what to use."""
    results = material.rows("summary")
    names, exports = labels(results), {row["cell_id"]: row for row in material.front.exports}
    calibrations = material.rows("calibrations")
    return {
        "facts": title.facts(material.front.runs, results),
        "warning": title.warning(material.front.runs),
        "findings_line": findings.line(material.rows("qc")),
        "cards": [words.shown(card, names, exports, calibrations) for card in cards.cards(results)],
        "default_percent": cards.DEFAULT_PERCENT,
        "most_percent": cards.MOST_PERCENT,
    }


def _points(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what the interactive frontier draws: a point for each row of the results, in their order."""
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
            for number, row in enumerate(rows)
            if not row["random_weights"]
        ],
    }


def _sweep(row: Row) -> str:
    """Return what runs have in common that differ in their threshold alone."""
    params = {name: value for name, value in json.loads(row["params"]).items() if name != "threshold"}
    return json.dumps([row["method"], params, row["kv_policy"], row["setting_id"], row["execution"]])


def _packed_csv(frame: Frame) -> str:
    """Return the rows as CSV, compressed, as text that an attribute can hold; the same each time."""
    return base64.b64encode(gzip.compress(frame.csv().encode("utf-8"), mtime=0)).decode("ascii")


def _marked(text: str) -> Markup:
    """Return `text` escaped, with what stands in backticks as code."""
    parts = [Markup("<code>{}</code>" if i % 2 else "{}").format(part) for i, part in enumerate(text.split("`"))]
    return Markup("").join(parts)


def _integrity(text: str) -> str:
    """Return the hash by which the page's policy allows this inline text, and so no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
