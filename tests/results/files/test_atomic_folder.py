"""Atomically written folders are complete, for any number of writers and processes."""

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from exitbench.errors import UserError
from exitbench.results.files.atomic import (
    JSON_BYTES,
    DamagedFile,
    SpoolError,
    check_digest,
    check_digested_folder,
    read_json,
    unique_name,
    write_digested_folder,
)


def write(text: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "it.txt").write_text(text)

    return fill


def test_second_writer_keeps_the_existing_folder(tmp_path: Path) -> None:
    write_digested_folder(tmp_path / "one", write("first"))
    write_digested_folder(tmp_path / "one", write("second"))
    assert (tmp_path / "one" / "it.txt").read_text() == "first"
    check_digested_folder(tmp_path / "one", ["it.txt"])


def test_concurrent_writers_leave_one_complete_folder(tmp_path: Path) -> None:
    place, together, failed = tmp_path / "one", threading.Barrier(4, timeout=300), []

    def fill(folder: Path) -> None:
        write("same")(folder)
        together.wait()  # all of them found nothing there

    def write_one() -> None:
        try:
            write_digested_folder(place, fill)
        except UserError as error:
            failed.append(error)

    writers = [threading.Thread(target=write_one) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failed == []
    check_digested_folder(place, ["it.txt"])
    assert list(tmp_path.iterdir()) == [place]


def test_existing_folder_without_digests_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "other.txt").touch()
    with pytest.raises(UserError, match=os.strerror(errno.ENOTEMPTY)):
        write_digested_folder(tmp_path / "one", write("first"))


def test_unfinished_folders_of_other_writers_are_not_touched(tmp_path: Path) -> None:
    """Two machines that share a folder may have processes with equal ids."""
    unfinished = tmp_path / f".one-{os.getpid()}"
    unfinished.mkdir()
    write_digested_folder(tmp_path / "one", write("first"))
    assert unfinished.is_dir()
    assert unique_name("x") != unique_name("x")


def test_device_read_error_is_not_reported_as_damage() -> None:
    path = Path("/proc/self/mem")  # reading it is an error of the device
    for look in (read_json, lambda path: check_digest(path, "0" * 64)):
        with pytest.raises(SpoolError, match="cannot be read") as raised:
            look(path)
        assert not isinstance(raised.value, DamagedFile)


def _make(path: Path, kind: str) -> None:
    if kind == "link":
        path.with_name("real").write_text("{}")
        path.symlink_to(path.with_name("real"))
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as unix_socket, contextlib.chdir(path.parent):  # its path has few characters
            unix_socket.bind(path.name)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["link", "pipe", "socket", "folder", "device"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "cell.json"
    _make(path, kind)
    for look in (read_json, lambda path: check_digest(path, "0" * 64)):
        with pytest.raises(DamagedFile, match="is a link, or something else than a regular file"):
            look(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 200_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b'{"a": "\xff"}', "is not JSON"),
        (b'{"a": "\\ud800"}', "surrogates not allowed"),
        (b"[]", "is not a JSON object"),
    ],
    ids=["lists", "objects", "digits", "not UTF-8", "half a pair", "list"],
)
def test_json_that_is_no_object_is_reported_with_its_file(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DamagedFile, match=rf"a\.json: .*{message}"):
        read_json(tmp_path / "a.json")


def test_oversized_json_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "cell.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DamagedFile, match=f"has more than {JSON_BYTES} bytes"):
        read_json(tmp_path / "cell.json")
