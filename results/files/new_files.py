"""New files, all or none: nothing that is there is replaced, and a failure leaves nothing behind."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from exitbench.errors import UserError


def write_new_files(folder: Path, texts: Mapping[str, str]) -> None:
    """Write text files into a folder, which is made with those above it where they are missing.

    Args:
        folder: Where.
        texts: UTF-8 text of each file, by its path within the folder.

    Raises:
        UserError: One of them is there already, as a file or anything else, or cannot be written; names it.
    """
    for name in texts:
        if os.path.lexists(folder / name):
            raise UserError(f"{folder / name}: is there already. Nothing was written.")
    made: list[Path] = []
    try:
        for name, text in texts.items():
            path = folder / name
            for above in _missing(path.parent):
                above.mkdir()
                made.append(above)
            with path.open("xb") as file:  # what came there in the meantime is not replaced
                made.append(path)
                file.write(text.encode("utf-8"))
    except BaseException as error:
        for path in reversed(made):
            path.rmdir() if path.is_dir() else path.unlink()
        if isinstance(error, OSError):
            raise UserError(f"{folder / name}: cannot be written ({error.strerror}). Nothing was written.") from error
        raise


def _missing(folder: Path) -> Iterator[Path]:
    """The folders that have to be made, from the top down."""
    if not os.path.exists(folder):
        yield from _missing(folder.parent)
        yield folder
