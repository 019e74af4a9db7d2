"""Origin of a checkpoint that was converted from GGUF: `gguf.json` in its folder, and the model's name in results.

The weights of such a checkpoint were quantized once, so its scores are not those of the published model. Therefore its
name in results includes the quantization: in the database, and in every table, figure and export.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from exitbench.errors import UserError
from exitbench.harness.reading.config_values import shortened
from exitbench.harness.reading.regular_files import read_json
from exitbench.results.files.atomic import write_whole_file

ORIGIN_FILE = "gguf.json"

_TEXTS = {
    "file": r"[^/\\\x00-\x1f\x7f]{1,255}",
    "sha256": r"[0-9a-f]{64}",
    "quantization": r"[A-Za-z0-9_]{1,40}",
    "dtype": r"float32|bfloat16",
}


@dataclass(frozen=True)
class GgufOrigin:
    """GGUF file that a checkpoint was converted from.

    Attributes:
        file: Name of the GGUF file.
        sha256: Digest of the GGUF file.
        quantization: Most frequent quantization type of its weights, such as ``Q4_1``.
        tensor_types: Number of weights of each type in the GGUF file.
        dtype: Number format that the weights were converted to.
    """

    file: str
    sha256: str
    quantization: str
    tensor_types: Mapping[str, int]
    dtype: str

    @property
    def source(self) -> str:
        """Origin of the model as results record it, ``gguf:FILE@SHA256``."""
        return f"gguf:{self.file}@{self.sha256}"

    @property
    def remark(self) -> str:
        """Sentence for plans and inspections: weights were dequantized, so scores differ from the original's."""
        types = ", ".join(f"{numel:,} {name}" for name, numel in self.tensor_types.items())
        return f"weights dequantized from GGUF ({types} in {self.file}): scores are not the published checkpoint's"

    def write(self, folder: Path) -> None:
        """Write this description to `gguf.json` in a checkpoint folder."""
        write_whole_file(folder / ORIGIN_FILE, json.dumps(asdict(self), indent=1) + "\n")


def read_origin(folder: Path) -> GgufOrigin | None:
    """Return the GGUF file that a checkpoint was converted from; None for any other checkpoint.

    Raises:
        UserError: `gguf.json` is not what `exitbench convert` writes.
    """
    path = folder / ORIGIN_FILE
    record = read_json(path)
    if not record:
        return None
    for key, form in _TEXTS.items():
        if not isinstance(record.get(key), str) or not re.fullmatch(form, record[key]):
            raise UserError(f"{path}: {key} is {shortened(record.get(key))}; allowed: what `exitbench convert` writes.")
    types = record.get("tensor_types")
    if not isinstance(types, dict) or not all(type(numel) is int for numel in types.values()):
        raise UserError(f"{path}: tensor_types is {shortened(types)}; allowed: numbers of weights by type.")
    return GgufOrigin(*(record[key] for key in ("file", "sha256", "quantization", "tensor_types", "dtype")))


def name_in_results(name: str, folder: Path | None) -> str:
    """Return a model's name in results: its name in the suite and, if converted from GGUF, the quantization.

    A name that ends in the quantization already is unchanged, so that an exported suite gives the same names.

    Raises:
        UserError: `gguf.json` is not what `exitbench convert` writes.
    """
    origin = None if folder is None else read_origin(folder)
    suffix = "" if origin is None else f"-GGUF-{origin.quantization}"
    return name if name.endswith(suffix) else f"{name}{suffix}"
