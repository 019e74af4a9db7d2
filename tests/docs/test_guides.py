"""The front page and every page of docs/guide work as shown. Sentences are short on every page of the project."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock
from sentences import sentences, words_of
from snippets import Page, begins_with, output_of

from exitbench.results.database import access, current

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
LONGEST = 30
GENERATED = {"docs/families.md"}
"""Pages that a command writes as a whole."""
RUN = "exitbench run builtin --only weighted/squad/* --kinds quality,probe,replay --limit 20 --no-report"
"""Command for `begins with: runs of builtin`: a real run of the built-in suite, without timing, which needs a
quiet machine.
"""


@pytest.fixture(scope="session")
def built_in_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the runs folder that the command `RUN` makes, once for all test processes; read only."""
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
    """Copy a guide's initial files into its folder: real runs, made-up runs, or a checkpoint."""
    if beginning == "runs of builtin":
        copy_runs(request.getfixturevalue("built_in_runs"), folder / "runs")
    elif beginning == "made-up runs":  # with times, which cost nothing here and are no machine's
        copy_runs(request.getfixturevalue("example_database").parent, folder / "runs")
    elif beginning == "checkpoints":
        (checkpoint,) = (ROOT / "harness" / "checkpoints").glob("builtin-weighted-*")
        shutil.copytree(checkpoint, folder / "checkpoints" / "mine")
    else:
        raise AssertionError(f"begins with {beginning!r}: allowed are runs of builtin, made-up runs, checkpoints")


def copy_runs(runs: Path, to: Path) -> None:
    """Copy a runs folder, with the mark that its database was checked, which names the database's file."""
    shutil.copytree(runs, to)
    access.leave_mark(to / "exitbench.duckdb", current.version())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_guide_code_blocks_run_as_shown(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    for beginning in begins_with(page):
        begin(beginning, tmp_path, request)
    guide = Page(page, tmp_path)
    guide.run()
    print(f"{len(guide.not_run)} not run", *guide.not_run, sep="\n  ")


def tracked_pages() -> list[str]:
    """Return every Markdown page tracked by git, except generated ones."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(set(listed.stdout.split()) - GENERATED)


@pytest.mark.parametrize("page", tracked_pages())
def test_no_sentence_of_the_documentation_exceeds_30_words(page: str) -> None:
    counted = ((line, words_of(sentence), sentence) for line, sentence in sentences(ROOT / page))
    assert not [f"{page}:{line}: {n} words: {sentence}" for line, n, sentence in counted if n > LONGEST]


def test_generated_blocks_are_exempt_from_sentence_checks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Before.\n<!-- measured: x -->\nWritten by a command.\n<!-- end -->\nAfter.\n", "utf-8")
    assert list(sentences(page)) == [(1, "Before."), (5, "After.")]
