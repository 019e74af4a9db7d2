"""Locks of GPUs are in a folder that only the user can write to."""

import os
import tempfile
from pathlib import Path

import pytest

from exitbench.errors import UserError
from exitbench.harness.processes.locks import locked
from exitbench.harness.running.executors.gpus import Gpu, free_gpu, lock_folder


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a temporary directory that all users share, on a machine without a runtime directory of the user."""
    folder = tmp_path / "tmp"
    folder.mkdir(mode=0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return folder


def test_lock_folder_is_private_to_the_user(shared: Path) -> None:
    before = os.umask(0)
    try:
        folder = lock_folder()
    finally:
        os.umask(before)
    assert folder == shared / f"exitbench-gpus-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert lock_folder() == folder


def test_private_runtime_directory_is_preferred_for_locks(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert lock_folder().parent == runtime
    runtime.chmod(0o777)
    assert lock_folder().parent == shared


def test_lock_folder_writable_by_others_is_refused(shared: Path) -> None:
    (shared / f"exitbench-gpus-{os.getuid()}").mkdir()
    (shared / f"exitbench-gpus-{os.getuid()}").chmod(0o777)
    with pytest.raises(UserError, match="not a folder that you alone can write to"):
        lock_folder()


def test_symlink_or_file_as_lock_folder_is_refused(shared: Path, tmp_path: Path) -> None:
    place, theirs = shared / f"exitbench-gpus-{os.getuid()}", tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    place.symlink_to(theirs)
    with pytest.raises(UserError, match="not a folder"):
        lock_folder()
    place.unlink()
    place.touch()
    with pytest.raises(UserError, match="not a folder"):
        lock_folder()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_lock_folder_of_another_user_is_refused(shared: Path) -> None:
    place = shared / f"exitbench-gpus-{os.getuid()}"
    place.mkdir(mode=0o700)
    os.chown(place, 12345, 12345)
    with pytest.raises(UserError, match="not a folder"):
        lock_folder()


def test_symlink_as_lock_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("theirs")
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    with pytest.raises(UserError, match="is a link"), locked(tmp_path / "lock", wait=True):
        pass
    assert (tmp_path / "target").read_text() == "theirs"


def test_multi_gpu_model_locks_all_its_gpus_or_none(tmp_path: Path) -> None:
    gpus = [Gpu(f"GPU-{place}", str(place)) for place in range(3)]
    with free_gpu(gpus, tmp_path, lambda: False, needed=(0, 2)) as variables:
        assert variables == {}, "a map names GPUs by their place among all"
        with free_gpu(gpus, tmp_path, lambda: False) as other:
            assert other == {"CUDA_VISIBLE_DEVICES": "1"}
        looks = iter([False, True])
        with free_gpu(gpus, tmp_path, lambda: next(looks), needed=(1, 2)) as nothing:
            assert nothing is None
        with locked(tmp_path / "GPU-1.lock", wait=False) as is_free:
            assert is_free, "the one that was free is not kept while waiting for the other"
