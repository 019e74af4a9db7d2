"""New files are written all or none, and existing files are never replaced."""

import os
from pathlib import Path

import pytest

from exitbench.errors import UserError
from exitbench.harness.cli.commands.new import write_new_files

TEXTS = {"a/b/one.txt": "one\n", "a/two.txt": "zwei €\n", "three.txt": ""}


def found(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_files_and_their_parent_folders_are_created(tmp_path: Path) -> None:
    write_new_files(tmp_path / "new" / "folder", TEXTS)
    assert {name: (tmp_path / "new" / "folder" / name).read_text("utf-8") for name in TEXTS} == TEXTS


@pytest.mark.parametrize("name", TEXTS)
def test_existing_file_is_named_and_kept_and_no_other_file_is_written(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = found(tmp_path)
    with pytest.raises(UserError, match=rf"{name}: is there already"):
        write_new_files(tmp_path, TEXTS)
    assert found(tmp_path) == before and (tmp_path / name).read_text() == "mine"


def test_dangling_symlink_counts_as_an_existing_file(tmp_path: Path) -> None:
    (tmp_path / "three.txt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"three\.txt: is there already"):
        write_new_files(tmp_path, TEXTS)
    assert found(tmp_path) == ["three.txt"]


def test_earlier_files_are_removed_if_a_later_one_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/x/last.txt: cannot be written \(Not a directory\)"):
        write_new_files(tmp_path, {**TEXTS, "file/x/last.txt": "last"})
    assert found(tmp_path) == ["file"]


def test_existing_folders_are_kept_on_failure(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        write_new_files(tmp_path, {**TEXTS, f"{'x' * 300}.txt": "too long a name"})
    assert found(tmp_path) == ["a"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_write_protected_folder_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match=r"one.txt: cannot be written \(Permission denied\)"):
        write_new_files(tmp_path, TEXTS)
    tmp_path.chmod(0o700)
    assert found(tmp_path) == []
