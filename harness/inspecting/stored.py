"""Weights as they lie on disk: from the headers of safetensors alone, no tensor is read."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exitbench.harness.engine.checkpoints.files import weight_files
from exitbench.harness.engine.checkpoints.sizes import numel_by_format, stored_tensors

_PICKLES: Final = ("pytorch_model.bin", "pytorch_model.bin.index.json")
"""What transformers would open, and this project never does."""


@dataclass(frozen=True)
class Stored:
    """The files of a model's own weights.

    Attributes:
        files: Their names.
        size_bytes: Of all files together.
        n_tensors: Tensors in them.
        numel_by_format: Numbers of each format, as safetensors spells it.
    """

    files: tuple[str, ...]
    size_bytes: int
    n_tensors: int
    numel_by_format: Mapping[str, int]

    @property
    def numel(self) -> int:
        """Numbers of any format."""
        return sum(self.numel_by_format.values())


def read_stored(folder: Path) -> Stored:
    """Read the headers of a checkpoint's weights.

    Raises:
        UserError: There are none that are read, or a file is damaged.
    """
    paths = weight_files(folder).paths
    tensors = list(stored_tensors(paths))
    size_bytes = sum(path.stat().st_size for path in paths)
    numel = dict(numel_by_format(tensors).most_common())
    return Stored(tuple(path.name for path in paths), size_bytes, len(tensors), numel)


def conversion(folder: Path, auto_class: str, *, has_tokenizer: bool) -> str | None:
    """Return the command that converts a folder's pickle; None where it has none that transformers opens.

    Args:
        folder: The checkpoint.
        auto_class: Of transformers, that reads such models.
        has_tokenizer: Whether there is one to go with it.
    """
    if not any((folder / name).is_file() for name in _PICKLES):
        return None
    source, target = json.dumps(str(folder)), json.dumps(f"{folder}-safetensors")
    saved = [auto_class, "AutoTokenizer"] if has_tokenizer else [auto_class]
    steps = (f"t.{cls}.from_pretrained({source}).save_pretrained({target})" for cls in saved)
    return f"python -c {shlex.quote('; '.join(['import transformers as t', *steps]))}"
