"""Readers of data sets in their original formats, plain or .gz; error messages name file and line."""

import csv
import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from exitbench.errors import UserError, suggestion

T = TypeVar("T")
_JSON_TYPES = {dict: "an object", list: "a list", str: "a string", int: "a whole number", float: "a number"}
_SHOWN_NAMES = 10
MAX_BYTES = 1 << 30
"""Maximum size of an unpacked file: 30 times the largest file of the data sets, and small enough for memory."""
_CHUNK_BYTES = 1 << 20
_INTEGERS = 1 << 63


def resolve_files(
    task: str, data_dir: Path | None, files: Iterable[tuple[str, str]], role_sets: tuple[frozenset[str], ...]
) -> dict[str, Path]:
    """Return the path of each file of a local source by its role, after checking the roles.

    A role says what a file is for, such as `data`, or the code of the file's language.

    Args:
        task: The task's name, for messages.
        data_dir: Folder that the paths are relative to.
        files: Pairs (role, path) from the suite.
        role_sets: Allowed combinations of roles.

    Raises:
        UserError: data_dir is None; or a role is unknown, repeated or missing.
    """
    if data_dir is None:
        raise UserError(
            f"{task}: a local source needs --data-dir (data_dir in Python), the folder that the paths of `files` are "
            "relative to."
        )
    known_roles = frozenset().union(*role_sets)
    paths: dict[str, Path] = {}
    for role, path in files:
        if role not in known_roles:
            raise UserError(
                f"{task}: unknown role {role!r} in files ({role} = {path!r}).{suggestion(role, known_roles)}"
            )
        if role in paths:
            raise UserError(f"{task}: role {role!r} is given twice in files: {paths[role]} and {data_dir / path}.")
        paths[role] = path_inside(data_dir, path)
    if frozenset(paths) not in role_sets:
        accepted = " or ".join(" + ".join(sorted(roles)) for roles in role_sets)
        raise UserError(f"{task}: files gives {' + '.join(sorted(paths)) or 'no role'}. Needed: {accepted}.")
    return paths


def path_inside(folder: Path, path: str) -> Path:
    """Return `folder / path`, after checking that it is inside the folder.

    A suite, which may be third-party, must not read other files of its user's machine.

    Raises:
        UserError: The path leads out of the folder, directly or by a link.
    """
    inside = folder / path
    try:
        outside = not inside.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, too long a name, NUL
        raise UserError(f"--data-dir {folder}: {path!r} is no path ({error}).") from None
    if outside:
        raise UserError(
            f"{path!r} leads out of --data-dir {folder}, by itself or by a link. Name a folder that holds everything."
        )
    return inside


def read_text(path: Path) -> str:
    """Read a UTF-8 file, plain or (if its name ends in .gz) compressed; a byte-order mark is removed.

    Raises:
        UserError: The file is missing or unreadable, damaged gzip, or not UTF-8; the message names the line.
    """
    return _decoded(_read_bytes(path), str(path))


def read_lines(path: Path) -> list[str]:
    """Read a text file into a list of lines, without line ends.

    Lines end at a newline only: `str.splitlines` would also split at U+2028 and similar characters, which occur inside
    sentences of parallel corpora, and would shift all following pairs.
    """
    lines = read_text(path).split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def read_parallel(path_a: Path, path_b: Path) -> list[tuple[str, str]]:
    """Read two line-aligned files into pairs of corresponding lines.

    Raises:
        UserError: The files have different numbers of lines.
    """
    lines_a, lines_b = read_lines(path_a), read_lines(path_b)
    if len(lines_a) != len(lines_b):
        raise UserError(
            f"{path_a} has {len(lines_a)} lines but {path_b} has {len(lines_b)}: line "
            f"{min(len(lines_a), len(lines_b)) + 1} has no partner. Parallel files need the same number of lines."
        )
    return list(zip(lines_a, lines_b, strict=True))


def read_tab_separated(path: Path) -> list[tuple[str, str]]:
    """Read the sentence pairs of a tatoeba/manythings file: two texts per line and, in newer files, an attribution.

    Raises:
        UserError: A line has neither two nor three columns.
    """
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) not in (2, 3):
            raise UserError(
                f"{path}, line {number}: {len(columns)} TAB-separated columns. "
                "Allowed: two texts, or two texts and an attribution."
            )
        pairs.append((columns[0], columns[1]))
    return pairs


def read_json(path: Path) -> Any:
    """Read a JSON file; return its value.

    Raises:
        UserError: The file is not JSON; the message names line and column.
    """
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}.") from error
    except RecursionError:
        raise UserError(f"{path}: its lists or objects are nested too deep.") from None
    except UserError:
        raise
    except ValueError:  # Python refuses to read thousands of digits
        raise UserError(f"{path}: a number has too many digits; whole numbers fit into 64 bits.") from None


def require(value: object, kind: type[T], location: str) -> T:
    """Return a JSON value after checking its type.

    Args:
        value: The value that was read.
        kind: The required type: dict, list, str or int.
        location: File and position of the value, for the message.

    Raises:
        UserError: The value has another type, is too large an integer, or is a string that UTF-8 cannot encode.
    """
    # Compare exact types, since JSON's true would pass as an int.
    if type(value) is not kind:
        found_kind = _JSON_TYPES.get(type(value), json.dumps(value))
        raise UserError(f"{location}: is {found_kind}. Needed: {_JSON_TYPES[kind]}.")
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise UserError(f"{location}: holds half of a surrogate pair, which is not a character.")
    if isinstance(value, int) and not -_INTEGERS <= value < _INTEGERS:
        raise UserError(f"{location}: is {value}. Needed: a whole number between -2^63 and 2^63 - 1.")
    return value


def member(record: Mapping[str, object], key: str, kind: type[T], location: str) -> T:
    """Return the value of a key in a record, after checking that it exists and has the required type.

    Args:
        record: A JSON object.
        key: The key to read.
        kind: The required type.
        location: File and position of the record, for the message.

    Raises:
        UserError: The key is missing or its value has another type.
    """
    if key not in record:
        raise UserError(f"{location}: key {key!r} is missing. Present: {', '.join(sorted(record)) or 'nothing'}.")
    return require(record[key], kind, f"{location}, key {key!r}")


def read_hub(name: str, config: str | None, split: str) -> Iterable[Mapping[str, Any]]:
    """Load one split of a data set of the Hugging Face hub, or of its local cache, as rows by column name.

    `config` names the data set's configuration; None for a data set with only one.

    Raises:
        UserError: The hub cannot be reached or has no such split.
    """
    import datasets

    label = f"hub data set {name}" + (f" ({config})" if config else "")
    try:
        rows: Iterable[Mapping[str, Any]] = datasets.load_dataset(name, config, split=split)
    except ValueError as error:
        raise UserError(f"{label}, split {split!r}: {error}") from error
    except OSError as error:
        raise UserError(
            f"{label}, split {split!r}: could not be downloaded ({type(error).__name__}: {error}). "
            "Without a network use local files (source kind 'local', with data_dir and files) "
            "or generated data (source kind 'builtin')."
        ) from error
    return rows


def _read_bytes(path: Path) -> bytes:
    _require_file(path)
    packed = path.suffix == ".gz"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            data = _at_most(file, MAX_BYTES + 1)
    except EOFError as error:
        raise UserError(
            f"{path}: the gzip file is cut short after {path.stat().st_size} bytes. Copy it again."
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: not a whole gzip file ({error}). A name in .gz must hold gzip.") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from error
    if len(data) > MAX_BYTES:
        unpacked_note = ", unpacked," if packed else ""
        raise UserError(f"{path}: has{unpacked_note} more than {MAX_BYTES} bytes, the most that is read. Split it.")
    return data


def _at_most(file: gzip.GzipFile | io.BufferedReader, size_bytes: int) -> bytes:
    """Read at most `size_bytes` bytes of a file: a compressed file may unpack to a thousand times its size."""
    data = bytearray()
    while len(data) < size_bytes and (chunk := file.read(min(_CHUNK_BYTES, size_bytes - len(data)))):
        data += chunk
    return bytes(data)


def _require_file(path: Path) -> None:
    if path.is_file():
        return
    if path.is_dir():
        raise UserError(f"{path}: is a folder. Needed: a file.")
    if path.exists():
        raise UserError(f"{path}: is a device or a pipe. Needed: a file.")
    missing, folder = path, path.parent
    while not folder.is_dir() and folder != folder.parent:
        missing, folder = folder, folder.parent
    what = "no such file" if missing == path else f"no such file, since {folder} has no {missing.name!r}"
    names = get_close_matches(missing.name, (entry.name for entry in folder.iterdir()), n=_SHOWN_NAMES, cutoff=0.0)
    hint = suggestion(missing.name, names) if names else f" {folder} is empty."
    raise UserError(f"{path}: {what}.{hint}")


_MAX_MEMBERS = 10_000


def read_members(path: Path, endings: str | tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each regular file in a tar archive, if the file's name has one of the endings.

    Raises:
        UserError: The file is not a tar archive, is damaged or too large, or contains text that is not UTF-8.
    """
    _require_file(path)
    remaining = MAX_BYTES
    try:
        with tarfile.open(path, "r|*") as archive:
            for number, member in enumerate(archive):
                remaining -= member.size
                if remaining < 0 or number >= _MAX_MEMBERS:
                    raise UserError(f"{path}: holds more than {MAX_BYTES} bytes or {_MAX_MEMBERS} files. Split it.")
                if not member.isreg() or not member.name.endswith(endings):
                    continue
                file = archive.extractfile(member)
                assert file is not None, "a regular file"
                data = file.read()
                if member.name.endswith(".gz"):
                    data = _unpacked(data, remaining, path)
                    remaining -= len(data)
                yield member.name, _decoded(data, f"{path}, {member.name}")
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise UserError(f"{path}: not a whole tar archive ({error}). Copy it again.") from None


def _unpacked(data: bytes, most: int, path: Path) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        unpacked = file.read(most + 1)
    if len(unpacked) > most:
        raise UserError(f"{path}: holds more than {MAX_BYTES} bytes unpacked. Split it.")
    return unpacked


def _decoded(data: bytes, location: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, byte = error.object.count(b"\n", 0, error.start) + 1, error.object[error.start]
        raise UserError(f"{location}, line {line}: byte 0x{byte:02x} is not UTF-8. Only UTF-8 text is read.") from error


_FORMS = ("json", "jsonl", "csv", "tsv", "parquet")
_MAX_FIELD_CHARACTERS = 1 << 24


def read_table(path: Path) -> list[Mapping[str, Any]]:
    """Read the records of a JSON, JSON lines, CSV, TSV or Parquet file; the ending of its name decides the format.

    All formats but Parquet may be compressed (`.gz`).

    Raises:
        UserError: The ending is not supported, or the file does not have that format or contains a record without named
            fields.
    """
    form = path.name.removesuffix(".gz").rpartition(".")[2]
    if form == "parquet":
        return _parquet(path)
    if form == "json":
        return _json(path)
    if form == "jsonl":
        return read_json_lines(path)
    if form in ("csv", "tsv"):
        return read_csv(path, "," if form == "csv" else "\t")
    endings = ", ".join(f".{form}" for form in _FORMS)
    raise UserError(f"{path}: its name ends in .{form}. Allowed: {endings}; all but Parquet with .gz too.")


def read_json_lines(path: Path) -> list[Mapping[str, Any]]:
    """Read a file with one JSON object per line; empty lines are skipped.

    Raises:
        UserError: A line is not a JSON object.
    """
    return parse_json_lines(read_text(path), str(path))


def parse_json_lines(text: str, location: str) -> list[Mapping[str, Any]]:
    """Parse text with one JSON object per line into a list; skip empty lines. `location` is for error messages."""
    records: list[Mapping[str, Any]] = []
    # Split at newlines only: JSON may contain U+2028 and similar characters unescaped.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{location}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place}: not JSON: {error}.") from None
        records.append(require(value, dict, place))
    return records


def read_csv(path: Path, delimiter: str = ",") -> list[Mapping[str, Any]]:
    """Read a CSV file into one dictionary per record; the first line names the columns, and every value is text.

    Raises:
        UserError: A record has another number of columns than the first line.
    """
    before = csv.field_size_limit(_MAX_FIELD_CHARACTERS)
    rows = csv.DictReader(io.StringIO(read_text(path), newline=""), delimiter=delimiter, strict=True)
    records: list[Mapping[str, Any]] = []
    try:
        for number, row in enumerate(rows, start=1):
            if None in row or None in row.values():
                raise UserError(f"{path}, record {number}: has other columns than line 1.")
            records.append(row)
    except csv.Error as error:
        raise UserError(f"{path}, line {rows.line_num}: not CSV: {error}.") from None
    finally:
        csv.field_size_limit(before)
    return records


def _json(path: Path) -> list[Mapping[str, Any]]:
    values = require(read_json(path), list, str(path))
    return [require(value, dict, f"{path}, [{i}]") for i, value in enumerate(values)]


def _parquet(path: Path) -> list[Mapping[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    _require_file(path)
    try:
        rows: list[Mapping[str, Any]] = pq.read_table(path, memory_map=False).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not Parquet: {error}.") from None
    return rows
