"""Reports on results with hostile names, parameters and keys: page, pictures, CSV, Markdown, LaTeX."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from exitbench.reports.drawing import draw
from exitbench.reports.frame import Frame
from exitbench.reports.material import Material, read_material
from exitbench.reports.page import page
from exitbench.reports.tables.columns import fill
from exitbench.reports.tables.writing import FORMATS, latex_text, markdown_text

HOSTILE = {
    "script": "</script><script>alert(1)</script>",
    "image": "<img src=x onerror=alert(1)>",
    "attribute": '" onmouseover="alert(1)" x=\'',
    "style": "</style><base href='https://evil.example/'>",
    "comment": "--><svg onload=alert(1)>",
    "template": "{{ 7 * 7 }}{% raw %}",
    "formula": "=cmd|' /C calc'!A0",
    "separators": "a,b;c\td\"e'f",
    "line ends": "a\rb\r\nc\nd",
    "mathtext": r"$\frac{$^{\infty}$",
    "latex": r"\input{/etc/passwd}\write18{id}%&#_~^",
    "markdown": "|a|`b`[c](javascript:alert(1))**d**<e>",
    "path": "../../etc/passwd",
    "controls": "\x1b]0;owned\x07\u009b31m\u202e",
}
EVERY = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
MODEL = "".join(HOSTILE[name] for name in ("script", "attribute", "style", "comment", "template", "mathtext", "path"))
LABEL = HOSTILE["image"] + HOSTILE["latex"] + HOSTILE["markdown"]


class Page(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def _policy(page: Page) -> dict[str, list[str]]:
    (policy,) = (a["content"] or "" for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    return {rule.split()[0]: rule.split()[1:] for rule in policy.split("; ")}


@pytest.fixture(scope="module")
def database(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with results of a hostile model on a task with a hostile label."""
    models, tasks = (replace(example.MODELS[1], name=MODEL),), (replace(example.TASKS[0], label=LABEL),)
    return Path(replace(example.WORLD, models=models, tasks=tasks).make_database(tmp_path_factory.mktemp("hostile")))


@pytest.fixture(scope="module")
def material(database: Path) -> Material:
    return read_material(database)


@pytest.fixture(scope="module")
def html(material: Material) -> str:
    return page(material, (), [fill(source, frame) for source, frame in material.tables])


def test_data_never_becomes_html_tags_or_event_handlers(html: str) -> None:
    page = Page(html)
    scripts = [attributes for tag, attributes in page.tags if tag == "script" and "type" not in attributes]
    assert len(scripts) == len(_policy(page)["script-src"]) and not any("src" in script for script in scripts)
    assert not [tag for tag, _ in page.tags if tag in ("base", "iframe", "object", "embed", "link")]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert "49{% raw" not in html and "{{ 7 * 7 }}" in html


def test_content_security_policy_forbids_base_forms_and_external_sources(html: str) -> None:
    rules = _policy(Page(html))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == ["'none'"]
    assert rules["img-src"] == ["'self'"]
    assert all(source.startswith("'sha256-") for name in ("style-src", "script-src") for source in rules[name])


@pytest.mark.parametrize("form", ["md", "latex"])
def test_markdown_and_latex_tables_escape_markup_in_the_data(form: str, material: Material) -> None:
    filled = [fill(source, frame) for source, frame in material.tables if frame.rows]
    written = "\n".join(FORMATS[form](table) for table in filled)
    assert all(c == "\n" or c.isprintable() for c in written)
    assert (r"\<script" if form == "md" else r"\textbackslash{}input") in written, "the hostile text is in no table"
    for tag in ("<script", "<img", "<base") if form == "md" else (r"\input", r"\write18"):
        assert not re.search(rf"(?<!\\){re.escape(tag)}", written)


@EVERY
def test_csv_round_trips_hostile_text(text: str) -> None:
    """Formulas remain text, and no text can change the number of rows and columns."""
    frame = Frame((text, "n"), ({text: text, "n": 1}, {text: f"{text}2", "n": 2}))
    rows = list(csv.reader(io.StringIO(frame.csv(), newline="")))
    assert rows == [[text, "n"], [text, "1"], [f"{text}2", "2"]]


@EVERY
def test_markdown_cell_stays_one_cell_without_markup(text: str) -> None:
    written = markdown_text(text)
    assert "\n" not in written and all(c.isprintable() for c in written)
    assert not re.search(r"(?<!\\)(?:\\\\)*[|<>`*\[\]$]", written)


@EVERY
def test_latex_cell_contains_no_command(text: str) -> None:
    written = latex_text(text)
    commands = set(re.findall(r"\\[A-Za-z]+", written))
    assert commands <= {r"\textbackslash", r"\textasciitilde", r"\textasciicircum"}
    assert not re.search(r"(?<!\\)[%&#_]", written)


@pytest.mark.parametrize("place", [0, 1])
def test_svg_figure_contains_names_only_as_text(place: int, tmp_path: Path) -> None:
    """Names become text in the SVG, never elements or attributes that could run, and are not part of a file's path."""
    texts = list(HOSTILE.values())[place::2]  # a panel each
    rows = tuple({"loss": text, "training": text, "step": n, "value": 1.0 / n} for text in texts for n in (1, 2, 3))
    drawing = draw("training_loss", Frame(tuple(rows[0]), rows), tmp_path)
    assert not drawing.error, drawing.error
    assert drawing.picture and re.fullmatch(r"training_loss\.[0-9a-f]{12}\.svg", drawing.picture.name)
    root = ElementTree.fromstring(drawing.picture.read_text("utf-8"))
    tags = {element.tag.rsplit("}")[-1] for element in root.iter()}
    assert tags.isdisjoint({"script", "foreignObject", "image", "a"})
    assert not [name for element in root.iter() for name in element.attrib if name.lower().startswith("on")]
    assert {path.name.partition(".")[0] for path in tmp_path.rglob("*.*")} == {"training_loss"}
