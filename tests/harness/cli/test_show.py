"""``exitbench show`` prints what is in the database, in colour or with numbers, and escapes texts."""

import io
import os
import pty
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from rich.console import Console

from exitbench.harness.cli.main import main
from exitbench.reports.answers.answer import HeatMap, TracedAnswer, find_answers
from exitbench.reports.plotting.exit_colours import shades
from exitbench.results.analysis.traces import readable
from exitbench.results.database.connection import Database, open_database
from exitbench.terminal import visible

CALM, STATIC, FULL = (f"world-t5/squad/{name}" for name in ("calm-softmax:threshold=0.3", "static", "full"))
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def stored(database: Path, method: str, threshold: str, place: int) -> tuple[str, list[tuple]]:
    """Return a document's key and its tokens, as a query gives them."""
    sql = """
        SELECT doc_key, token_id, exit_layer, full_token_id, score FROM token_trace
        WHERE model = 'world-t5' AND task = 'squad' AND execution = 'real' AND method = $method
            AND coalesce(params ->> 'threshold', '') = $threshold ORDER BY doc_key, position
    """
    with open_database(database) as opened:
        rows = opened.query(sql, {"method": method, "threshold": threshold}).to_pylist()
    key = sorted({row["doc_key"] for row in rows})[place]
    return key, [tuple(row.values())[1:] for row in rows if row["doc_key"] == key]


def shown(database: Path, *arguments: str) -> int:
    return main(["show", *arguments, "--database", str(database)])


def test_uncoloured_output_prints_the_exit_layer_of_every_token(
    example_database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, tokens = stored(example_database, "calm-softmax", "0.3", 1)
    assert shown(example_database, CALM, "--doc", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"document 2 of 8: {key}, ")
    (body,) = (line for line in lines if line.startswith("#"))
    subscripts = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
    expected = [
        f"#{token}{str(layer).translate(subscripts)}" + ("*" if token != full else "")
        for token, layer, full, _ in tokens
    ]
    assert body.replace("≠ ", "").split(" ") == expected
    first = next(n for n, (token, _, full, _) in enumerate(tokens) if token != full)
    assert body.split("≠ ")[0].split(" ")[:-1] == expected[:first]
    same = sum(token == full for token, _, full, _ in tokens)
    assert f"{same} as full depth, first difference at token {first + 1}" in lines[3]
    assert shown(example_database, CALM, "--doc", key) == 0
    assert capsys.readouterr().out.splitlines() == lines


def test_against_option_shows_two_runs_and_their_first_difference(
    example_database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(example_database, FULL, "--against", STATIC) == 0
    output = capsys.readouterr().out
    assert output.index(FULL) < output.index(STATIC)
    _, first = stored(example_database, "full", "", 0)
    _, second = stored(example_database, "static", "", 0)
    parted = next(n for n, (a, b) in enumerate(zip(first, second, strict=True), 1) if a[0] != b[0])
    assert f"the answers differ from token {parted}\n" in output


def test_token_option_prints_the_logit_lens_up_to_the_first_difference(
    example_database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, tokens = stored(example_database, "calm-softmax", "0.3", 1)
    last = next(n for n, (token, _, full, _) in enumerate(tokens, 1) if token != full)
    assert shown(example_database, CALM, "--doc", key, "--token", str(last)) == 0
    table = [line.split() for line in capsys.readouterr().out.split("gate\n")[1].splitlines()]
    with open_database(example_database) as database:
        sql = "SELECT * FROM probe_trace WHERE model = 'world-t5' AND task = 'squad' AND doc_key = ? AND position = ?"
        (probe,) = database.query(sql, [key, last]).to_pylist()
    assert len(table) == len(probe["p1"])
    for block, cells in enumerate(table, start=1):
        assert int(cells[0]) == block
        assert ("exit" in cells) == (block == tokens[last - 1][1])
        assert ("oracle" in cells) == (block == probe["first_match"])
        cells = [cell for cell in cells if cell not in ("exit", "oracle")]
        assert cells[1:3] == [f"#{probe['top1_id'][block - 1]}", f"{probe['p1'][block - 1]:.2f}"]
        assert cells[7:9] == [f"#{probe['rank_final'][block - 1]}", f"{probe['p_final'][block - 1]:.2f}"]
    assert shown(example_database, CALM, "--doc", key, "--token", str(last + 1)) == 0
    output = capsys.readouterr().out
    assert (
        f"differs from this one from token {last} on: they do not apply to this token" in output and "1st" not in output
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["world-t5/squad/statik"], "Did you mean 'world-t5/squad/static'"),
        ([STATIC, "--doc", "9"], "has no document '9'. Allowed: 1 to 8, or a key such as"),
        ([STATIC, "--doc", "0"], "Allowed: 1 to 8"),
        ([STATIC, "--doc", "d4735e3a265e16ef"], "Did you mean 'd4735e3a265e16ee'?"),
        ([STATIC, "--token", "6"], "--token 6: world-t5/squad/static has tokens 1 to 5 here."),
        (["world-t5/squad/calm*"], "names 3 quality runs, one is needed"),
    ],
)
def test_arguments_without_a_match_are_refused_with_suggestions(
    example_database: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert shown(example_database, *arguments) == 2
    assert message in capsys.readouterr().err


def test_terminal_output_is_coloured_unless_no_color_is_set(
    example_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tokens = stored(example_database, "calm-softmax", "0.3", 0)
    coloured = _in_a_terminal(example_database, monkeypatch, COLORTERM="truecolor")
    for _, layer, _, _ in tokens:
        red, green, blue = bytes.fromhex(shades(6)[layer - 1].background[1:])
        assert f"48;2;{red};{green};{blue}m" in coloured
    assert "₁" not in coloured
    plain = _in_a_terminal(example_database, monkeypatch, COLORTERM="truecolor", NO_COLOR="1")
    assert "38;2" not in plain and "48;2" not in plain and "₁" in plain


def _in_a_terminal(database: Path, monkeypatch: pytest.MonkeyPatch, encoding: str = "utf-8", **variables: str) -> str:
    """Return the output of `exitbench show` on a terminal of this encoding."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **variables}.items():
        monkeypatch.setenv(name, value)
    ours, theirs = pty.openpty()
    with ThreadPoolExecutor() as threads, monkeypatch.context() as patched:
        output = threads.submit(_read_all, ours)
        with open(theirs, "w", encoding=encoding) as terminal:
            patched.setattr(sys, "stdout", terminal)
            assert shown(database, CALM) == 0
        return output.result()


def _read_all(descriptor: int) -> str:
    parts = []
    with suppress(OSError):  # Linux says so that the other side has closed
        while part := os.read(descriptor, 65_536):
            parts.append(part)
    os.close(descriptor)
    return b"".join(parts).decode()


@pytest.fixture
def answer(example_database: Path) -> TracedAnswer:
    with open_database(example_database) as database:
        return find_answers(database, [CALM], "1")[0]


def printed(answer: TracedAnswer, texts: dict[int, str], *, colour: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=colour, color_system="truecolor" if colour else None, width=80)
    heat_map, spelled = HeatMap(console), replace(answer, texts=texts)
    heat_map.print_answers([spelled])
    heat_map.print_token(spelled, 1)
    return file.getvalue()


@pytest.mark.parametrize("colour", [True, False])
def test_control_characters_and_markup_in_model_output_are_escaped(answer: TracedAnswer, colour: bool) -> None:
    hostile = (" [bold red]x[/]", "\x1b]0;title\x07\x1b[2J", "\u202eevil\u2066", " \n", "w" * 10_000, ":fire:")
    texts = {token_id: hostile[n % len(hostile)] for n, token_id in enumerate(sorted(answer.texts))}
    first = next(iter(answer.tokens))["token_id"]
    texts[first] = hostile[1] + "y" * 200
    out = ESCAPE.sub("", printed(answer, texts, colour=colour))
    assert not set(out) & {"\x1b", "\x07", "\u202e", "\u2066"}
    assert r"\x1b]0;title\x07\x1b[2J" in out and len(out) < 20_000
    assert "y" * 200 in out.replace("\n", "")  # the token that is asked for, all of it
    every = {token_id: hostile[0] for token_id in texts}
    assert "[bold red]x[/]" in ESCAPE.sub("", printed(answer, every, colour=colour))


def test_ascii_terminal_gets_ascii_output(example_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = _in_a_terminal(example_database, monkeypatch, "ascii", NO_COLOR="1")
    _, tokens = stored(example_database, "calm-softmax", "0.3", 0)
    assert out.isascii() and f"#{tokens[0][0]}[{tokens[0][1]}]" in out


def test_tokens_are_printed_as_readable_text() -> None:
    assert [readable(text, "sentencepiece", True) for text in ("▁cat", "s", "▁")] == [" cat", "s", " "]
    assert [readable(text, "bytes", True) for text in ("Ġcat", "Ċ", "Ã©", "Ã")] == [" cat", "\n", "é", "\\xc3"]
    assert [readable(text, "wordpiece", False) for text in ("cat", "##s")] == [" cat", "s"]
    assert [readable(text, "words", True) for text in ("cat", ".")] == [" cat", " ."]
    assert readable("</s>", "bytes", None) == " </s>"
    assert visible("a\tb\u200fc\U000e0001é") == r"a\tb\u200fc\U000e0001é"


def test_superseded_attempts_can_be_found_by_id(example_database: Path) -> None:
    with open_database(example_database) as database:
        assert _ids(database) == {
            answer.run.attempt_id for answer in find_answers(database, sorted(_ids(database)), "1")
        }


def test_answer_in_another_number_format_shows_its_gap_to_float32(
    example_database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(example_database, CALM) == 0
    assert "against float32" not in capsys.readouterr().out
    path = tmp_path / "formats.duckdb"
    shutil.copyfile(example_database, path)
    with duckdb.connect(path) as connection:
        connection.execute("UPDATE cell SET dtype = 'int8'")
        connection.execute("""
            INSERT INTO metric BY NAME
            SELECT
                attempt_id, 200 + range AS ordinal, ['format_logprob_gap', 'format_token_match'][range] AS metric,
                '2' AS metric_version, [0.25, 0.9][range] AS value, 8 AS n, scored_at, 'format' AS role
            FROM metric JOIN attempt USING (attempt_id) JOIN cell USING (cell_id), range(1, 3)
            WHERE metric = 'mean_exit_layer' AND full_depth_cell_id IS NULL
        """)
    assert shown(path, CALM) == 0
    assert "\nint8 against float32: 0.25 nats, 90.0 % of tokens equal\n" in capsys.readouterr().out


def _ids(database: Database) -> set[str]:
    sql = """
        SELECT attempt_id FROM attempt JOIN cell USING (cell_id) JOIN dataset_artifact USING (data_id)
        WHERE status = 'ok' AND kind = 'quality' AND task = 'squad'
    """
    return set(database.query(sql)["attempt_id"].to_pylist())
