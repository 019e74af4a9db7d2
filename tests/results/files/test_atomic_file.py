"""Atomic writing of files: readers find the old or the new content, and only regular files are replaced."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from exitbench.results.files.atomic import whole_file, write_whole_file


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))


def _link(path: Path) -> None:
    path.with_name("target").write_text("of somebody")
    path.symlink_to("target")


OTHER_KINDS: dict[str, Callable[[Path], object]] = {
    "a link": _link,
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a socket": _socket,
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_non_regular_target_is_refused_before_writing(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    OTHER_KINDS[kind](path)
    before = {file: file.lstat() for file in tmp_path.iterdir()}
    with pytest.raises(OSError, match=f"it is {kind}; only a regular file is replaced"), whole_file(path):
        pytest.fail("there was something to write to")
    assert {file: file.lstat() for file in tmp_path.iterdir()} == before


def test_pipe_created_during_writing_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(OSError, match="it is a pipe"), whole_file(path) as file:
        file.write_text("new")
        os.mkfifo(path)
    assert list(tmp_path.iterdir()) == [path]


def test_writing_to_a_device_is_refused(tmp_path: Path) -> None:
    device = tmp_path / "full"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    except PermissionError:  # who may make no device can replace none either
        device = Path("/dev/full")
    before = device.lstat()
    with pytest.raises(OSError, match="it is a device"):
        write_whole_file(device, "new")
    assert device.lstat().st_ino == before.st_ino


def test_a_regular_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write_whole_file(path, "old\r\n")
    with pytest.raises(RuntimeError), whole_file(path) as file:
        file.write_text("half")
        raise RuntimeError
    assert path.read_bytes() == b"old\r\n"
    write_whole_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
