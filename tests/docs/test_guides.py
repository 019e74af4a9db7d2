"""The front page and every page of docs/guide do what they show, and say it in short sentences."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from filelock import FileLock
from sentences import sentences, words_of
from snippets import Page, begins_with, output_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
LONGEST = 30
RUN = "exitbench run builtin --only weighted/squad/* --kinds quality,probe,replay --limit 20 --no-report"
"""`begins with: runs of builtin`: a real run of the built-in suite, without timing, which asks for a quiet machine."""


@pytest.fixture(scope="session")
def built_in_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `runs` that `RUN` makes, once for all processes of the session. Read only."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if shared.name.startswith("popen-") else shared
    folder = shared / "runs-of-builtin"
    with FileLock(shared / "runs-of-builtin.lock"):
        if not (folder / "done").exists():
            folder.mkdir(exist_ok=True)
            output_of(folder, RUN.split(), "RUN")
            (folder / "done").touch()
    return folder / "runs"


def begin(beginning: str, folder: Path, request: pytest.FixtureRequest) -> None:
    """Put into a page's folder what the page begins with."""
    if beginning == "runs of builtin":
        shutil.copytree(request.getfixturevalue("built_in_runs"), folder / "runs")
    elif beginning == "made-up runs":  # with times, which cost nothing here and are no machine's
        shutil.copytree(request.getfixturevalue("example_database").parent, folder / "runs")
    elif beginning == "checkpoints":
        (checkpoint,) = (ROOT / "harness" / "checkpoints").glob("builtin-weighted-*")
        shutil.copytree(checkpoint, folder / "checkpoints" / "mine")
    else:
        raise AssertionError(f"begins with {beginning!r}: allowed are runs of builtin, made-up runs, checkpoints")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_guide_does_what_it_shows(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    for beginning in begins_with(page):
        begin(beginning, tmp_path, request)
    guide = Page(page, tmp_path)
    guide.run()
    print(f"{len(guide.not_run)} not run", *guide.not_run, sep="\n  ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_sentence_of_a_guide_is_longer_than_30_words(page: Path) -> None:
    counted = ((line, words_of(sentence), sentence) for line, sentence in sentences(page))
    assert not [f"{page.name}:{line}: {n} words: {sentence}" for line, n, sentence in counted if n > LONGEST]
