"""The site of the documentation, opened as files: search answers, commands are copied as such, nothing is fetched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
Open = Callable[..., Any]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site made by `mkdocs build`."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


def test_search_answers_without_a_server(site: Path, open_page: Open) -> None:
    page = open_page(address=(site / "index.html").as_uri(), fragment="?q=safetensors+pickle")
    results = page.locator(".md-search-result__item h1")
    results.first.wait_for()
    assert "What ExitBench does not do" in results.all_inner_texts()


def test_of_a_block_with_commands_the_commands_are_copied(site: Path, open_page: Open) -> None:
    page = open_page(address=(site / "index.html").as_uri(), fragment="")
    block = page.locator(".language-console", has_text="exitbench inspect builtin-weighted")
    assert "calm-saturation" in block.inner_text()
    block.hover()
    button = block.locator("[data-clipboard-target]")
    button.click()
    assert button.get_attribute("data-clipboard-text") == "exitbench inspect builtin-weighted"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("name", ["index", "guide/troubleshooting", "api", "gallery", "schema", "methods"])
def test_no_page_is_wider_than_its_window(site: Path, open_page: Open, name: str, width: int, scheme: str) -> None:
    page = open_page(width=width, scheme=scheme, address=(site / f"{name}.html").as_uri(), fragment="")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[scheme]
