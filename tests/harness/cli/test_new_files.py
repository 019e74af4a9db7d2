"""New files are written all or none, and existing files are never replaced."""

import os
from pathlib import Path

import pytest

from exitbench.errors import UserError
from exitbench.harness.cli.commands.new import write_new_files

TEXTS = {"a/b/one.txt": "one\n", "a/two.txt": "zwei €\n", "three.txt": ""}


def found(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_files_and_the_folders_above_them_are_made(tmp_path: Path) -> None:
    write_new_files(tmp_path / "new" / "folder", TEXTS)
    assert {name: (tmp_path / "new" / "folder" / name).read_text("utf-8") for name in TEXTS} == TEXTS


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_there_is_named_and_kept_and_nothing_else_is_written(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = found(tmp_path)
    with pytest.raises(UserError, match=rf"{name}: is there already"):
        write_new_files(tmp_path, TEXTS)
    assert found(tmp_path) == before and (tmp_path / name).read_text() == "mine"


def test_a_link_that_leads_nowhere_is_there_too(tmp_path: Path) -> None:
    (tmp_path / "three.txt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"three\.txt: is there already"):
        write_new_files(tmp_path, TEXTS)
    assert found(tmp_path) == ["three.txt"]


def test_where_a_later_file_cannot_be_written_the_earlier_ones_are_removed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/x/last.txt: cannot be written \(Not a directory\)"):
        write_new_files(tmp_path, {**TEXTS, "file/x/last.txt": "last"})
    assert found(tmp_path) == ["file"]


def test_folders_that_were_there_stay(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        write_new_files(tmp_path, {**TEXTS, f"{'x' * 300}.txt": "too long a name"})
    assert found(tmp_path) == ["a"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match=r"one.txt: cannot be written \(Permission denied\)"):
        write_new_files(tmp_path, TEXTS)
    tmp_path.chmod(0o700)
    assert found(tmp_path) == []
