"""A figure in a notebook equals the report's: rows, picture, caption and rules."""

import subprocess
import sys
from pathlib import Path

import pytest

import exitbench as eb
from exitbench.reports.render import write_figures


def test_notebook_figure_equals_the_reports_picture(small_database: Path, tmp_path: Path) -> None:
    with eb.open_results(small_database) as results:
        figure = results.figure("exit_histogram")
    (drawn,) = write_figures(small_database, tmp_path, "exit_histogram", kinds=("png",))
    assert figure.caption == drawn.caption
    written = (tmp_path / "figures" / "exit_histogram.png").read_bytes()
    picture, size = figure._repr_png_()  # what IPython asks objects for
    assert picture == written
    assert size == {"width": round(110 * figure.get_figwidth())}
    figure.savefig(tmp_path / "figure.pdf")
    assert b"/Type3" not in (tmp_path / "figure.pdf").read_bytes()


def test_notebook_figure_imports_no_torch_transformers_or_pyplot(small_database: Path) -> None:
    code = (
        "import sys, exitbench as eb\n"
        f"with eb.open_results({str(small_database)!r}) as results:\n"
        "    results.figure('exit_histogram')\n"
        "print(sorted({'torch', 'transformers', 'matplotlib.pyplot'} & sys.modules.keys()))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fronteir", r"No figure is called 'fronteir'\. Did you mean 'frontier'"),
        ("heads_*", r"'heads_\*' names 4 figures: heads_fig1_training, .* Name one\."),
        ("encoder_confidence", r"Figure encoder_confidence has no rows here\. No data yet: run "),
    ],
)
def test_figure_that_cannot_be_drawn_is_a_user_error(small_database: Path, name: str, message: str) -> None:
    with eb.open_results(small_database) as results, pytest.raises(eb.UserError, match=message):
        results.figure(name)


def test_severe_findings_allow_only_a_draft_figure(incomplete_database: Path) -> None:
    with eb.open_results(incomplete_database) as results:
        with pytest.raises(eb.UserError, match="say not to cite"):
            results.figure("exit_histogram")
        assert results.figure("exit_histogram", draft=True).caption
