"""The notebook runs from top to bottom, here on few documents; `nox -s notebook` executes it whole, as Jupyter does."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "from-checkpoint-to-frontier.ipynb"


def cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return found


def sources() -> list[str]:
    return ["".join(cell["source"]) for cell in cells() if cell["cell_type"] == "code"]


def test_notebook_has_at_most_15_cells_and_no_stored_output() -> None:
    """Speeds depend on the reader's machine, so the notebook is stored without output."""
    assert len(cells()) <= 15
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells() if "outputs" in cell)


def test_cells_that_show_numbers_include_the_note_on_small_generated_data() -> None:
    for source in sources():
        shows = any(word in source for word in (".show()", "figure.", "axes.", ".style", "print("))
        assert not shows or "NOTE" in source, source


def test_notebook_cells_run_in_order(snippets: ModuleType, tmp_path: Path) -> None:
    code = "\n".join(sources())
    for whole, few in (
        ("limit=20", "limit=3"),
        ("[4, 6]", "[4]"),
        ("[0.9, 0.999]", "[0.9]"),
        ('"test", 40', '"test", 4'),
        ("0, 1, 500", "0, 1, 20"),
    ):
        assert code.count(whole) == 1
        code = code.replace(whole, few)
    python, apart = snippets.Python(tmp_path), f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}"
    try:
        python.output_of(snippets.Block("temporary files", "python", None, apart))
        assert "\nwmt-en-fr (vanilla): " in python.output_of(snippets.Block(NOTEBOOK.name, "python", None, code))
    finally:
        python.end()
