"""Access to files in a third-party folder that opens only regular files.

Links are followed: the hub's cache stores `snapshots/*/model.safetensors` as links into `blobs/`, and the user named
the folder. Pipes, sockets and devices are rejected, since reading them could block or never end.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from exitbench.errors import UserError

_MOST_BYTES = 2**23


def is_file(path: Path) -> bool:
    """Return whether a readable regular file exists at the path, following links.

    Raises:
        UserError: The path exists but is not a readable regular file; reading it could block or never end.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise UserError(f"{path}: a link to a file that is not there.") from None
        return False
    except (OSError, ValueError) as error:  # no permission, an invalid name
        raise UserError(f"{path}: cannot be read ({error}).") from error
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: not a regular file.")
    return True


def read_json(path: Path, most_bytes: int = _MOST_BYTES) -> dict[str, Any]:
    """Read a JSON object from a file; return an empty dict if the file does not exist.

    Raises:
        UserError: The path is not a regular file, or the file is too large or not a JSON object.
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
    except ValueError as error:  # an integer with thousands of digits
        raise UserError(f"{path}: not valid JSON ({error}).") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a JSON object.")
    return content
