"""Sealed folders: whole whoever writes them, how often, and from how many processes at once."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from exitbench.errors import UserError
from exitbench.results.sealed import (
    DamagedFile,
    SpoolError,
    check_digest,
    check_sealed,
    own_name,
    read_json,
    write_sealed,
)


def write(text: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "it.txt").write_text(text)

    return fill


def test_who_comes_second_leaves_what_is_there(tmp_path: Path) -> None:
    write_sealed(tmp_path / "one", write("first"))
    write_sealed(tmp_path / "one", write("second"))
    assert (tmp_path / "one" / "it.txt").read_text() == "first"
    check_sealed(tmp_path / "one", ["it.txt"])


def test_several_may_write_it_at_once(tmp_path: Path) -> None:
    place, together, failed = tmp_path / "one", threading.Barrier(4, timeout=300), []

    def fill(folder: Path) -> None:
        write("same")(folder)
        together.wait()  # all of them found nothing there

    def one() -> None:
        try:
            write_sealed(place, fill)
        except UserError as error:
            failed.append(error)

    writers = [threading.Thread(target=one) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failed == []
    check_sealed(place, ["it.txt"])
    assert list(tmp_path.iterdir()) == [place]


def test_a_folder_without_a_seal_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "other.txt").touch()
    with pytest.raises(UserError, match=os.strerror(errno.ENOTEMPTY)):
        write_sealed(tmp_path / "one", write("first"))


def test_what_others_have_begun_is_not_touched(tmp_path: Path) -> None:
    """Process numbers are the same on two machines that share a folder."""
    begun = tmp_path / f".one-{os.getpid()}"
    begun.mkdir()
    write_sealed(tmp_path / "one", write("first"))
    assert begun.is_dir()
    assert own_name("x") != own_name("x")


def test_what_the_device_cannot_read_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    path.symlink_to("/proc/self/mem")  # reading it is an error of the device
    for look in (read_json, lambda path: check_digest(path, "0" * 64)):
        with pytest.raises(SpoolError, match="cannot be read") as raised:
            look(path)
        assert not isinstance(raised.value, DamagedFile)
