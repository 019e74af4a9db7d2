"""Run the code on a page of docs/guide, top to bottom, in a new folder: commands, Python, SQL and files.

    ```console             `$ COMMAND` is run without a shell; a backslash at the end continues it. The lines below are
                           its whole output, stderr included; a line `...` matches any lines. Without lines below, the
                           output is not compared. `# exit code 2` as the first line is the expected exit code (0).
    ```python              run in one namespace per page; a ```text block right after it is its output
    ```sql                 run on runs/exitbench.duckdb by `exitbench sql`; must have rows; a ```text block right after
                           it is its output
    ```toml title="a/b"    written to that path, in any language
    <!-- not run: WHY -->  before a block: shown only. WHY begins with one of `REASONS`.
    <!-- numbers vary -->  before a block: numbers and widths of columns are not compared

Times, sizes, speed-ups (1.5x), digests, dates and absolute paths are never compared.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

REASONS = (
    "a cluster",
    "a GPU",
    "the hub",
    "the network",
    "another program",
    "takes minutes",
    "an excerpt",
    "a message",
    "a reference",
)
"""Reasons for which a block may be shown without being run; text in brackets may follow."""

_FENCE = re.compile(r"```(\w*)(?: title=\"([^\"]+)\")?\s*")
_REMARK = re.compile(r"<!--\s*(.*?)\s*-->\s*")
_SHELL = {"|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>&1"}
_VARIES = (
    (re.compile(r"\b[0-9a-f]{8,64}\b"), "DIGEST"),
    (re.compile(r"\b\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?)?"), "DATE"),
    (re.compile(r"\b\d[\d.,]*\s?(ns|µs|ms|s|min|minutes|h|kB|MB|GB|MiB|GiB)\b"), "AMOUNT"),
    (re.compile(r"\b\d[\d.]*x\b"), "RATIO"),
    (re.compile(r"(?<![\w.*'])(/[\w.+-]+){2,}"), "PATH"),
)
_ASKING = threading.Lock()
"""Held from a request to the server until its reply."""
_INSTALLED = """\
import contextlib, io, json, sys
sys.path.insert(0, {site!r})
from exitbench.harness.cli.main import main
with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
    code = main({arguments!r})
print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""
_NUMBER = re.compile(r"(≈ ?)?[-+]?\d+(\.\d+)?")
_ENVIRONMENT = {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    "COLUMNS": "100",
    "MPLBACKEND": "Agg",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # a plug-in that the server has imported already would be warned of
}


class PageMismatch(AssertionError):
    """Something shown on a page is not what happens; the message begins with the place on the page."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its place, language and text, and the comments right before it."""

    place: str
    language: str
    title: str | None
    text: str
    remarks: tuple[str, ...] = ()

    @property
    def not_run(self) -> str | None:
        """Reason why the block is not run; None if it is run."""
        return next((remark[9:].strip() for remark in self.remarks if remark.startswith("not run:")), None)

    @property
    def varies(self) -> bool:
        """Whether the block's numbers vary by machine."""
        return "numbers vary" in self.remarks


def blocks(page: Path) -> list[Block]:
    """Return the fenced code blocks of a page, in order."""
    blocks_read: list[Block] = []
    remarks: list[str] = []
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
    for number, line in lines:
        if remark := _REMARK.fullmatch(line):
            remarks.append(remark[1])
        elif line.lstrip().startswith(("```", "~~~")):
            place = f"{page.name}:{number}"
            if not (fence := _FENCE.fullmatch(line)):
                raise PageMismatch(
                    f'{place}: a block begins at the line\'s start with ```LANGUAGE or ```LANGUAGE title="PATH"'
                )
            body: list[str] = []
            while (text := next(lines, (0, None))[1]) is not None and text.rstrip() != "```":
                body.append(text)
            if text is None:
                raise PageMismatch(f"{place}: the block does not end")
            blocks_read.append(Block(place, fence[1], fence[2], "\n".join(body), tuple(remarks)))
            remarks = []
        elif line.strip():
            remarks = []
    return blocks_read


def begins_with(page: Path) -> list[str]:
    """Return what the page's folder contains at first, as listed in the comment `<!-- begins with: A, B -->`."""
    comment = re.search(r"^<!-- begins with: (.*?) -->$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return comment[1].split(", ") if comment else []


@dataclass
class Page:
    """Page of a guide, and the folder in which its blocks are run."""

    path: Path
    folder: Path
    not_run: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Run every block in order; raise `PageMismatch` at the first difference."""
        python = None
        printed: str | None = None  # by the block before
        try:
            for block in blocks(self.path):
                before, printed = printed, None
                if block.not_run is not None:
                    if not block.not_run.startswith(REASONS):
                        raise PageMismatch(f"{block.place}: not run: {block.not_run!r} is none of {', '.join(REASONS)}")
                    self.not_run.append(f"{block.place}: {block.not_run}")
                elif block.title is not None:
                    self._write(block)
                elif block.language == "console":
                    self._commands(block)
                elif block.language == "python":
                    python = python or Python(self.folder)
                    printed = python.output_of(block)
                elif block.language == "sql":
                    printed = self._rows(block)
                elif block.language == "text" and before is not None:
                    _require(block.place, block.text.splitlines(), before, block.varies)
                else:
                    raise PageMismatch(
                        f"{block.place}: a block {block.language!r} here is neither run nor `not run: WHY`"
                    )
        finally:
            if python is not None:
                python.end()

    def _write(self, block: Block) -> None:
        path = self.folder / str(block.title)
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise PageMismatch(f"{block.place}: {block.title} lies outside the page's folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text + "\n", encoding="utf-8")

    def _commands(self, block: Block) -> None:
        start, *commands = re.split(r"(?m)^\$ ", block.text.replace("\\\n", " "))
        if start.strip() or not commands:
            raise PageMismatch(f"{block.place}: a console block begins with `$ COMMAND`")
        for command_text in commands:
            command, *expected_lines = command_text.rstrip().split("\n")
            code = re.fullmatch(r"# exit code (\d+)", expected_lines[0]) if expected_lines else None
            words = shlex.split(command, comments=True)
            output = output_of(self.folder, words, block.place, int(code[1]) if code else 0)
            if expected_lines[bool(code) :]:
                _require(f"{block.place}: {command}", expected_lines[bool(code) :], output, block.varies)

    def _rows(self, block: Block) -> str:
        output = output_of(self.folder, ["exitbench", "sql", block.text], block.place)
        if len(output.splitlines()) < 3:  # names of columns, a rule, rows
            raise PageMismatch(f"{block.place}: the query has no rows:\n{output}")
        return output


def output_of(folder: Path, words: list[str], place: str, code: int = 0) -> str:
    """Return the output of a command in a folder, including stderr; raise `PageMismatch` for another exit code."""
    if shell := _SHELL.intersection(words):
        raise PageMismatch(f"{place}: {' '.join(sorted(shell))} needs a shell; commands run without one")
    if words[0] == "exitbench" or words[:2] == ["python", "-m"]:
        ended, output = _served(words, folder)
    else:
        try:
            process = subprocess.run(
                words,
                cwd=folder,
                env=os.environ | _ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
            )
        except FileNotFoundError:
            raise PageMismatch(f"{place}: there is no program {words[0]}") from None
        ended, output = process.returncode, process.stdout
    if ended != code:
        raise PageMismatch(f"{place}: {shlex.join(words)} ends with {ended}, not {code}:\n{output}")
    return output


def _served(words: list[str], folder: Path) -> tuple[int, str]:
    """Let the server process run a command, and return its exit code and output."""
    with tempfile.NamedTemporaryFile() as output:
        return _run_command(words, folder, os.devnull, output.name), Path(output.name).read_text(encoding="utf-8")


def _run_command(words: list[str], folder: Path, input_text: str, output: str) -> int:
    """Let the server process run a command in a folder, with files for input and output; return the exit code."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    with _ASKING:
        print(json.dumps([words, str(folder), input_text, output]), file=server.stdin, flush=True)
        return int(server.stdout.readline())


@cache
def _server() -> subprocess.Popen[str]:
    """Return the process (server.py) that runs commands for this test process, started on first use.

    It ends when its standard input closes, at the end of the tests.
    """
    number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    command, pipe = [sys.executable, str(Path(__file__).with_name("server.py")), number], subprocess.PIPE
    return subprocess.Popen(command, env=os.environ | _ENVIRONMENT, stdin=pipe, stdout=pipe, text=True)


class Python:
    """A Python interpreter in a folder, with one namespace for all blocks."""

    def __init__(self, folder: Path) -> None:
        self._pipes = tempfile.TemporaryDirectory()
        request_pipe, reply_pipe = (os.path.join(self._pipes.name, name) for name in ("request", "reply"))
        os.mkfifo(request_pipe), os.mkfifo(reply_pipe)
        _run_command(["python"], folder, request_pipe, reply_pipe)
        self._requests = open(request_pipe, "w", encoding="utf-8")  # noqa: SIM115 - until `end`
        self._replies = open(reply_pipe, encoding="utf-8")  # noqa: SIM115

    def output_of(self, block: Block) -> str:
        """Run a block in the interpreter and return its printed output."""
        print(json.dumps([block.text, block.place]), file=self._requests, flush=True)
        answer = self._replies.readline()
        printed, error = json.loads(answer) if answer else ("", "the interpreter has ended")
        if error:
            raise PageMismatch(f"{block.place}: {error}")
        return str(printed)

    def end(self) -> None:
        """Close the interpreter's input and wait until it has ended."""
        self._requests.close()
        self._replies.read()
        self._replies.close()
        self._pipes.cleanup()


def run_installed(folder: Path, site: Path, *arguments: str) -> tuple[int, str, str]:
    """Run `exitbench` in a folder, in a new process that finds the distributions installed in folder ``site``.

    Returns:
        The exit code, and what was printed to standard output and standard error, without a traceback.
    """
    python = Python(folder)
    try:
        source = _INSTALLED.format(site=str(site), arguments=arguments)
        code, printed, error = json.loads(python.output_of(Block("command", "python", None, source)))
    finally:
        python.end()
    assert "Traceback" not in error, error
    return code, printed, error


def _require(place: str, expected_lines: list[str], output: str, varies: bool) -> None:
    """Raise `PageMismatch` unless the shown lines equal the output; a line `...` matches any number of lines."""
    wanted = [_masked(line, varies) for line in expected_lines]
    output_lines = [_masked(line, varies) for line in output.rstrip().splitlines()]
    parts: list[list[str]] = [[]]
    for line in wanted:
        if line == "...":
            parts.append([])
        else:
            parts[-1].append(line)
    at, last = 0, len(parts) - 1
    for number, part in enumerate(parts):
        first, end = at, len(output_lines) - len(part) + 1
        places = [0] if number == 0 else [len(output_lines) - len(part)] if number == last else range(first, end)
        match = next(
            (
                place_index
                for place_index in places
                if place_index >= first and output_lines[place_index : place_index + len(part)] == part
            ),
            None,
        )
        if match is None or (number == last and match + len(part) != len(output_lines)):
            lines = "\n".join(part)
            raise PageMismatch(f"{place}: shown, but not so:\n{lines}\n--- it is\n{output}")
        at = match + len(part)


def _masked(line: str, varies: bool) -> str:
    line = line.rstrip()
    for pattern, word in _VARIES:
        line = pattern.sub(word, line)
    if not varies:
        return line
    return re.sub(r"\s+", " ", re.sub(r"([-─])\1+", r"\1", _NUMBER.sub("#", line)))
