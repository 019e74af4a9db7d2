"""Third-party text has no effect on a terminal: messages, progress, rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exitbench import progress
from exitbench.errors import UserError
from exitbench.harness.cli.commands import listing
from exitbench.harness.cli.commands.rows import FORMATS
from exitbench.harness.cli.main import main

ATTACKS = {
    "escape": "\x1b[2J",
    "title": "\x1b]0;owned\x07",
    "csi": "\x9b31m",
    "backspace": "ok\x08\x08no",
    "return": "fine\rbad",
    "right to left": "\u202egnp.exe",
    "isolate": "\u2066a\u2069",
    "separator": "a\u2028b",
    "zero width": "pass\u200bword",
    "tag": "a\U000e0041",
    "delete": "a\x7fb",
    "half": "a\ud83d",
}
EVERY = pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS.keys())


def harmless(text: str) -> bool:
    """Return whether all characters are printable or line breaks."""
    return all(c == "\n" or c.isprintable() for c in text)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@EVERY
@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "{}"],
        ["{}"],
        ["run", "builtin", "--limit", "{}"],
        ["run", "builtin", "--kinds", "{}"],
        ["plan", "builtin", "--data-dir", "{}"],
        ["report", "--runs", "{}"],
        ["report", "--paper", "{}"],
        ["sql", "SELECT", "{}"],
        ["list", "{}"],
        ["--{}"],
    ],
    ids=" ".join,
)
def test_quoted_input_is_escaped_in_messages(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = main([argument.replace("{}", text) for argument in arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert harmless(printed.err) and len(printed.err.splitlines()) == 1


@EVERY
def test_control_characters_in_any_user_error_are_escaped(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> Any:
        raise UserError(f"first {text}\nsecond")

    monkeypatch.setitem(listing.LISTS, "tasks", fails)
    assert main(["list", "tasks"]) == 2
    err = capsys.readouterr().err
    assert harmless(err) and err.endswith("\nsecond\n")


@EVERY
@pytest.mark.parametrize("bars", [progress.Lines, progress.Bars])
def test_labels_are_escaped_in_progress_output(text: str, bars: Callable[..., progress.Progress]) -> None:
    stream = io.StringIO()
    with bars({f"m/{text}/quality": progress.Expected()}, stream) as bar:
        bar.start(f"m/{text}/quality", 3)
        bar.end(f"m/{text}/quality", "failed")
    assert text not in stream.getvalue()
    assert f"m/{text.encode('unicode_escape').decode()}/quality" in stream.getvalue()


@EVERY
@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_rows_are_escaped_on_a_terminal_in_every_format(text: str, form: str) -> None:
    terminal = Terminal()
    FORMATS[form]([f"n{text}"], [[text], [[text]], [{"a": text}]], terminal)
    assert harmless(terminal.getvalue())


@EVERY
def test_rows_in_a_pipe_are_not_escaped(text: str) -> None:
    for form in ("csv", "json"):
        pipe = io.StringIO(newline="")
        FORMATS[form](["name"], [[text]], pipe)
        pipe.seek(0)
        read = list(csv.DictReader(pipe)) if form == "csv" else json.loads(pipe.getvalue())
        assert read == [{"name": text}]


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_memory_and_recursion_errors_are_reported_in_one_line(
    error: type[Exception], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> Any:
        raise error

    monkeypatch.setitem(listing.LISTS, "tasks", fails)
    assert main(["list", "tasks"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("exitbench: list: ") and len(err.splitlines()) == 1


def test_unexpected_exception_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Any:
        raise KeyError("doc")

    monkeypatch.setitem(listing.LISTS, "tasks", fails)
    with pytest.raises(KeyError):
        main(["list", "tasks"])


def test_long_messages_are_shortened_to_one_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> Any:
        raise UserError("x" * 10**6 + "\n" * 10**4 + "end")

    monkeypatch.setitem(listing.LISTS, "tasks", fails)
    assert main(["list", "tasks"]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) <= 21 and len(err) < 4000 and "more lines" in err
