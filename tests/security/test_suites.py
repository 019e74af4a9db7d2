"""Third-party suites, recipes and data files: each attack is a file written by the test, and ends with one message."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from exitbench.errors import UserError
from exitbench.harness.cli.main import main
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.reading import toml
from exitbench.harness.training import load_recipe, recipe_path
from exitbench.tasks import sources

HEAD = """\
schema = 1
name = "foreign"
seed = 7
[models.m]
recipe = "builtin-vanilla"
[tasks.lines]
task = "wmt-en-fr"
source = "local"
files = { en = "text.en", fr = "text.fr" }
"""
SWEEP = '[[sweep]]\nmethod = "static"\nkinds = ["quality"]\n'
SECRET = "the secret of this machine"

Message = Callable[..., str]


@pytest.fixture
def message_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Message:
    """Return a function that plans a suite with the given text and returns the error message.

    It checks that the message fits on a screen, that the exit code is 2, and that nothing was written.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()

    def plan(text: str | bytes) -> str:
        path = tmp_path / "s.toml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        code = main(["plan", "s.toml", "--data-dir", "data"])
        printed = capsys.readouterr()
        assert (code, printed.out) == (2, "")
        assert printed.err.startswith("exitbench: ") and len(printed.err.splitlines()) <= 21
        assert len(printed.err) < 4000
        assert all(c == "\n" or c.isprintable() for c in printed.err)
        assert not (tmp_path / "runs").exists()
        return printed.err

    return plan


# ------------------------------------------------------------------------------------------ bombs


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = " + "[" * 100_000, "nested too deep"),
        ("x = " + "{a=" * 50_000, "nested too deep"),
        (f"schema = {'9' * 5000}", "a number has too many digits"),
        (b"\xff\xfe", "not UTF-8 text"),
        ("name = 'a\0b'", "not valid TOML"),
        ("#" * (toml.MAX_BYTES + 1 if hasattr(toml, "MAX_BYTES") else 1 << 21), "is larger than"),
        ("[" + ".".join("a" * 500) + "]\n" * 2, "a key has more than 100 parts"),
        (".".join(["a"] * 300_000) + " = 1", "a key has more than 100 parts"),
        ("x = {" + ".".join(['"a"'] * 100_000) + " = 1}", "a key has more than 100 parts"),
        ("seed = 0x" + "f" * 300_000, "a number has too many digits"),
        ("x = [{y = 0x" + "f" * 300_000 + "}]", "a number has too many digits"),
    ],
    ids=[
        *("nested lists", "nested tables", "digits", "bytes", "NUL", "size", "deep header", "dotted key", "quoted key"),
        *("hexadecimal digits", "digits within"),
    ],
)
def test_unparsable_suite_gives_one_error_message(message_of: Message, text: str | bytes, says: str) -> None:
    assert says in message_of(text)


def test_oversized_grid_is_refused_before_expansion(message_of: Message) -> None:
    values = ", ".join(f"{n / 1000}" for n in range(1, 400))
    thresholds = f"grid = {{ threshold = [{values}], every = [{', '.join(map(str, range(1, 400)))}] }}"
    text = HEAD + '[[sweep]]\nmethod = "calm-softmax"\n' + thresholds
    assert "points: fewer values, or several suites" in message_of(text)


def test_too_many_settings_in_all_sweeps_together_are_refused(message_of: Message) -> None:
    values = ", ".join(f"{n / 1000}" for n in range(1, 200))
    grid = f"{{ threshold = [{values}], every = [{', '.join(map(str, range(1, 200)))}] }}"
    assert "settings, with all sweeps before it" in message_of(
        HEAD + f'[[sweep]]\nmethod = "calm-softmax"\ngrid = {grid}\n' * 3
    )


@pytest.mark.parametrize("name", ["text.en.gz", "text.en"])
def test_oversized_plain_or_gzip_file_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_BYTES", 1 << 20)
    path = tmp_path / name
    data = b"\n" * (64 << 20)
    path.write_bytes(gzip.compress(data, 1) if name.endswith(".gz") else data)
    with pytest.raises(UserError, match="more than 1048576 bytes, the most that is read"):
        sources.read_text(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 200_000, "nested too deep"),
        ('{"a":' * 200_000, "nested too deep"),
        ("9" * 5000, "a number has too many digits"),
        ("[1, 2", "not JSON"),
        ("\0", "not JSON"),
    ],
    ids=["lists", "objects", "digits", "cut", "NUL"],
)
def test_unparsable_json_documents_give_one_error_message(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "dev.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        sources.read_json(path)
    assert str(caught.value).startswith(str(path)) and says in str(caught.value)


def test_numbers_beyond_64_bits_in_documents_are_refused(message_of: Message, tmp_path: Path) -> None:
    answer = {"text": "a", "answer_start": 1 << 70}
    paragraph = {"context": "a", "qas": [{"id": "1", "question": "?", "answers": [answer]}]}
    (tmp_path / "data" / "dev.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]}))
    files = 'task = "squad"\nsource = "local"\nfiles = { data = "dev.json" }\n'
    text = HEAD.replace('[models.m]\nrecipe = "builtin-vanilla"', '[models.m]\nrecipe = "builtin-vanilla"')
    message = message_of(text[: text.index("[tasks")] + "[tasks.t]\n" + files + SWEEP)
    assert "Needed: a whole number between -2^63 and 2^63 - 1" in message


# ------------------------------------------------------------------------------------------ out of the data folder


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "secret").write_text(f"{SECRET}\n")
    return folder


@pytest.mark.parametrize(
    "path",
    ["../elsewhere/secret", "{folder}/secret", "link", "linked/secret", "inside/../../elsewhere/secret", "loop"],
)
def test_suite_cannot_read_files_outside_the_data_folder(
    message_of: Message, secret: Path, tmp_path: Path, path: str
) -> None:
    data = tmp_path / "data"
    (data / "text.fr").write_text("un\n")
    (data / "inside").mkdir()
    (data / "link").symlink_to(secret / "secret")
    (data / "linked").symlink_to(secret)
    (data / "loop").symlink_to(data / "loop")
    message = message_of(HEAD.replace("text.en", path.format(folder=secret)) + SWEEP)
    assert "leads out of --data-dir data" in message or "is no path" in message
    assert SECRET not in message and "Allowed: " not in message


def test_symlinks_within_the_data_folder_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert sources.read_text(sources.path_inside(tmp_path, "link")) == "x"


def test_named_pipe_in_the_data_folder_does_not_block(message_of: Message, tmp_path: Path) -> None:
    (tmp_path / "data" / "text.fr").write_text("un\n")
    os.mkfifo(tmp_path / "data" / "text.en")
    assert "is a device or a pipe" in message_of(HEAD + SWEEP)


def test_path_with_a_nul_byte_gives_one_error_message(message_of: Message) -> None:
    assert "is no path" in message_of(HEAD.replace('"text.en"', r'"te\u0000xt"') + SWEEP)


# ------------------------------------------------------------------------------------------ names

HOSTILE_NAMES = {
    "parent": "..",
    "hidden": ".ssh",
    "option": "--help",
    "path": "a/b",
    "absolute": "/etc/passwd",
    "escape": "a\\u001b[31m",
    "bell": "\\u0007",
    "csi": "\\u009b31m",
    "right to left": "a\\u202eb",
    "newline": "a\\nb",
    "nul": "a\\u0000",
    "tag": "<script>alert(1)</script>",
    "shell": "$(touch pwned)",
    "quote": 'a\\"b',
    "sql": "a'; DROP TABLE cell; --",
    "formula": "=cmd|' /C calc'!A0",
    "mathtext": "$\\\\frac{$",
    "unicode": "模型é",
    "emoji": "🙂",
    "empty": "",
    "long": "a" * 300,
}


@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES.keys())
@pytest.mark.parametrize("owner", ["suite", "model", "task"])
def test_invalid_names_are_refused(message_of: Message, owner: str, name: str) -> None:
    before = {"suite": 'name = "foreign"', "model": "[models.m]", "task": "[tasks.lines]"}[owner]
    after = {"suite": f'name = "{name}"', "model": f'[models."{name}"]', "task": f'[tasks."{name}"]'}[owner]
    message = message_of(HEAD.replace(before, after) + SWEEP)
    assert "cannot be a name. Allowed: 1 to 100 of the letters a to z and A to Z, digits, '_', '-' and '.'" in message


def test_common_names_are_accepted(tmp_path: Path) -> None:
    for name in ("gpt-2.5_XL", "_a", "7b", "a" * 100):
        (tmp_path / "s.toml").write_text(
            HEAD.replace("foreign", name).replace("[models.m]", f"[models.'{name}']") + SWEEP
        )
        suite = load_suite(tmp_path / "s.toml")
        assert (suite.name, suite.models[0].name) == (name, name)


def test_recipe_name_cannot_leave_the_models_folder(tmp_path: Path) -> None:
    text = recipe_path("builtin-vanilla").read_text()
    path = tmp_path / "r.toml"
    path.write_text(text.replace('name = "builtin-vanilla"', 'name = "../../elsewhere"'))
    assert path.read_text() != text
    with pytest.raises(UserError, match="cannot be a name"):
        load_recipe(path)


@pytest.mark.parametrize("place", ["top", "model", "sweep", "grid", "files"])
def test_control_characters_in_keys_are_escaped_in_messages(message_of: Message, place: str) -> None:
    key = r'"\u001b]0;owned\u0007\u009b2J\u202e"'
    texts = {
        "top": f"{key} = 1\n" + HEAD + SWEEP,
        "model": HEAD.replace("[models.m]", f"[models.m]\n{key} = 1") + SWEEP,
        "sweep": HEAD + SWEEP + f"{key} = 1\n",
        "grid": HEAD + SWEEP + f"grid = {{ {key} = [1] }}\n",
        "files": HEAD.replace("{ en =", f"{{ {key} =") + SWEEP,
    }
    assert r"\x1b]0;owned\x07\x9b2J\u202e" in message_of(texts[place])
