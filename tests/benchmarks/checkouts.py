"""Copies of a commit and of the work tree from which `exitbench` can be imported (see against.py)."""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

from exitbench.errors import UserError

ROOT = Path(__file__).parents[2]
# An editable installation would find files missing in a copy in the work tree.
FORGET = """import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable___exitbench" not in repr(finder)]
"""


def commit_of(rev: str) -> str:
    """Return the full hash of a commit.

    Raises:
        UserError: No such commit, or not a git repository.
    """
    git("rev-parse", "HEAD")
    try:
        return git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{rev}^{{commit}}")
    except UserError:
        allowed = "Allowed: a commit, a branch or a tag, e.g. HEAD~1."
        raise UserError(f"--against {rev}: there is no such commit. {allowed}") from None


def copy_commit(commit: str, folder: Path) -> None:
    """Write the files of a commit to a folder."""
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")


def copy_work_tree(folder: Path) -> None:
    """Copy the current files of the work tree, including untracked ones but not ignored ones."""
    for name in git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def import_path(copy: Path) -> Path:
    """Create and return a folder next to a copy from which Python imports only that copy's `exitbench`."""
    path = copy.with_name(f"{copy.name}-packages")
    root = path / "exitbench"
    shutil.copytree(copy / "harness" / "_root", root)
    for top in copy.glob("*/__init__.py"):
        (root / top.parent.name).symlink_to(top.parent)
    (path / "sitecustomize.py").write_text(FORGET, encoding="utf-8")
    return path


def git(*arguments: str) -> str:
    """Return git's output.

    Raises:
        UserError: git is missing, or there is no such repository or commit.
    """
    try:
        process = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    except OSError as error:
        raise UserError(f"--against needs git, which cannot be started: {error.strerror}.") from None
    except subprocess.CalledProcessError as error:
        raise UserError(f"--against needs the repository's history. git: {error.stderr.strip()}") from None
    return process.stdout.strip()
