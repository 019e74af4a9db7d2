"""The site has every document, at the places that its navigation names, and every link and anchor leads somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

import exitbench

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MEASURED = sorted((ROOT / "tests" / "benchmarks").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")), *MEASURED]
GENERATED = {"gallery.md", "contributing.md", "changelog.md", "schema.md", "sql.md"}
"""Pages that docs/site/hooks.py adds; no document links to them, since they are only on the site."""


def entries(nav: object) -> Iterator[str]:
    """Yield the pages of mkdocs.yml's `nav`, which nests lists and mappings."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, list | dict):
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from entries(part)


@cache
def config() -> dict[str, object]:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def prose(path: Path) -> str:
    """Return a document without its code blocks, and without characters of links and headings in inline code."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda code: re.sub(r"[\[\]()#<]", "", code[0]), text)


@cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors that both GitHub and mkdocs give to a document's headings, and explicit anchors."""
    names: set[str] = set()
    text = prose(path)
    for heading in re.findall(r"^#+ +(.+?)\s*$", text, re.MULTILINE):
        name = (
            re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower().replace(" ", "-")
        )
        names.add(name)
    return frozenset(names | set(re.findall(r'(?:id|name)="([^"]+)"', text)))


def test_navigation_lists_every_document_and_no_missing_page() -> None:
    named = list(entries(config()["nav"]))
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(named) == sorted(written | GENERATED)


def test_no_existing_page_is_commented_out_in_the_navigation() -> None:
    waiting = re.findall(r"^ *# - [^:]*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert [page for page in waiting if (DOCS / page).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_and_anchor_of_a_document_resolves(document: Path) -> None:
    wrong = []
    for path, anchor in re.findall(r"\]\(([^()#\s]*)(?:#([^()\s]+))?\)", prose(document)):
        if re.match(r"[a-z]+:", path):
            continue
        target = (document.parent / path).resolve() if path else document
        if not target.is_file():
            wrong.append(path)
        elif anchor and anchor not in anchors(target):
            wrong.append(f"{path}#{anchor}")
    assert wrong == []


def test_api_page_lists_every_public_name_once() -> None:
    documented = re.findall(r"^::: exitbench\.(\w+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(documented) == sorted(set(exitbench.__all__) - {"__version__"})


def test_site_build_is_strict_and_uses_no_remote_resource() -> None:
    assert config()["strict"] is True
    assert set(config()["validation"].values()) == {"warn"}  # type: ignore[attr-defined]
    assert config()["theme"]["font"] is False  # type: ignore[index]
    assert not re.search(r"https?://", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
