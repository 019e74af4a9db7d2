"""config.json as transformers completes it, with its own defaults for keys that the file leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exitbench.errors import UserError, told


def completed(path: Path, family: str, values: dict[str, Any]) -> Any:
    """The configuration of a family with these values.

    Raises:
        UserError: transformers' own checks of the family refuse them.
    """
    from transformers import AutoConfig
    from transformers.utils import logging

    logging.set_verbosity_error()  # its advice about keys is for those who can change them
    try:
        return AutoConfig.for_model(family, **values)
    except Exception as error:  # whatever these checks raise
        raise UserError(f"{path}: not a configuration that transformers takes ({told(error)}).") from error
