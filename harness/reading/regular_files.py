"""Open regular files only, in somebody else's folder.

Links are followed: the hub's cache keeps `snapshots/*/model.safetensors` as links into `blobs/`, and the folder is one
that the user named. What would be waited for, or read without end, is refused: pipes, sockets, devices.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from exitbench.errors import UserError

_MOST_BYTES = 2**23


def is_file(path: Path) -> bool:
    """Whether there is a file to be read, at the end of a link too.

    Raises:
        UserError: There is something, but not a file: reading it would wait, or never end.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise UserError(f"{path}: a link to a file that is not there.") from None
        return False
    except (OSError, ValueError) as error:  # no permission, a name that cannot be one
        raise UserError(f"{path}: cannot be read ({error}).") from error
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: not a regular file.")
    return True


def read_json(path: Path, most_bytes: int = _MOST_BYTES) -> dict[str, Any]:
    """Read a JSON object; empty where there is no file.

    Raises:
        UserError: Not a regular file, too large, or not a JSON object.
    """
    if not is_file(path):
        return {}
    if (size := path.stat().st_size) > most_bytes:
        raise UserError(f"{path}: {size:,} bytes; allowed: at most {most_bytes:,}.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: not valid JSON ({error.msg}).") from error
    except RecursionError as error:
        raise UserError(f"{path}: not valid JSON (nested too deep).") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not valid JSON (byte {error.start} is not UTF-8).") from error
    except ValueError as error:  # an integer of thousands of digits
        raise UserError(f"{path}: not valid JSON ({error}).") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a JSON object.")
    return content
