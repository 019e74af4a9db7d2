"""The documentation's site, opened as files: search works, commands are copied without output, nothing is fetched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exitbench import __version__

ROOT = Path(__file__).parents[2]
Open = Callable[..., Any]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site made by `mkdocs build`."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


def test_search_works_without_a_server(site: Path, open_page: Open) -> None:
    page = open_page(address=(site / "index.html").as_uri(), fragment="?q=safetensors+pickle")
    results = page.locator(".md-search-result__item h1")
    results.first.wait_for()
    assert "What ExitBench does not do" in results.all_inner_texts()


def test_copy_button_copies_commands_without_their_output(site: Path, open_page: Open) -> None:
    page = open_page(address=(site / "index.html").as_uri(), fragment="")
    block = page.locator(".language-console", has_text="exitbench inspect builtin-weighted")
    assert "calm-saturation" in block.inner_text()
    block.hover()
    button = block.locator("[data-clipboard-target]")
    button.click()
    assert button.get_attribute("data-clipboard-text") == "exitbench inspect builtin-weighted"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("name", ["index", "guide/troubleshooting", "api", "gallery", "schema", "methods/index"])
def test_no_page_is_wider_than_its_window(site: Path, open_page: Open, name: str, width: int, scheme: str) -> None:
    page = open_page(width=width, scheme=scheme, address=(site / f"{name}.html").as_uri(), fragment="")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[scheme]


def test_every_page_shows_the_version_and_search_finds_how_to_cite(site: Path, open_page: Open) -> None:
    for name in ("index", "guide/troubleshooting", "methods/static"):
        page = open_page(address=(site / f"{name}.html").as_uri(), fragment="")
        assert page.locator(".md-copyright").inner_text().strip() == f"ExitBench {__version__}"
    page = open_page(address=(site / "index.html").as_uri(), fragment="?q=how+to+cite")
    results = page.locator(".md-search-result__item h2")
    results.first.wait_for(state="attached")
    assert "How to cite" in results.all_text_contents()


@pytest.mark.parametrize(("name", "words"), [("schema", "probe"), ("families", "gemma")])
def test_long_tables_can_be_filtered_by_words(site: Path, open_page: Open, name: str, words: str) -> None:
    page = open_page(address=(site / f"{name}.html").as_uri(), fragment="")
    field = page.locator(".filter-rows").first
    rows = field.locator("xpath=following::table[1]").locator("tbody tr")
    before = rows.count()
    field.fill(words)
    left = rows.evaluate_all("rows => rows.filter((row) => row.checkVisibility()).map((row) => row.innerText)")
    assert before >= 15 and 0 < len(left) < before
    assert all(words in text.lower() for text in left)
