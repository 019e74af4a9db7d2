"""Stored paths contain neither the user's name nor the location of packages."""

from pathlib import Path
from typing import Any

import pytest

from exitbench.results.files.formats import abbreviate_home
from exitbench.results.spool.attempts import AttemptWriter, read_attempt


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "ada.l"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('File "{home}/run.py", line 3', 'File "~/run.py", line 3'),
        ("{home}: no such file", "~: no such file"),
        ("{home}s/run.py", "{home}s/run.py"),
        ('File "{home}/.venv/lib/python3.11/site-packages/torch/x.py"', 'File ".../site-packages/torch/x.py"'),
        ('File "/usr/lib/python3/dist-packages/numpy/x.py"', 'File ".../dist-packages/numpy/x.py"'),
        ("{home}/.pyenv/versions/3.11.7/lib/python3.11/json/decoder.py:3", ".../lib/python3.11/json/decoder.py:3"),
        ('File "/home/grace.h/x/run.py", line 3', 'File "~/x/run.py", line 3'),
        ("/Users/grace: no such file; /root/x, /rooted/x", "~: no such file; ~/x, /rooted/x"),
        ("https://example.org/home/grace/x", "https://example.org/home/grace/x"),
        ("a/b and https://example.org/lib", "a/b and https://example.org/lib"),
    ],
)
def test_paths_below_home_and_of_packages_are_shortened(home: Path, text: str, expected: str) -> None:
    assert abbreviate_home(text.format(home=home)) == expected.format(home=home)


@pytest.mark.parametrize("nowhere", ["", "/"])
def test_paths_are_unchanged_without_a_home_folder(nowhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", nowhere)
    assert abbreviate_home("/data/run.py") == "/data/run.py"


def test_failure_reason_and_log_of_an_attempt_hide_the_home_folder(
    home: Path, tmp_path: Path, cell: dict[str, Any], env: dict[str, Any]
) -> None:
    with AttemptWriter(tmp_path / "spool", cell, env) as writer:
        writer.log_path.write_text(f'File "{home}/plugin.py"\n')
        writer.finish("failed", f"{home}/weights: is missing")
    status = read_attempt(writer.path).status
    assert (status["reason"], status["log_tail"]) == ("~/weights: is missing", 'File "~/plugin.py"')
