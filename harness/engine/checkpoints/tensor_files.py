"""Read the tensors of safetensors files by name; unsupported number formats and leftover tensors are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from exitbench.errors import UserError, suggestion
from exitbench.harness.engine.checkpoints.files import CONFIG, DEQUANTISE, INDEX, join_names, weight_files
from exitbench.harness.engine.model.weights import Linear

FORMATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Torch formats by safetensors name. 8-bit floats are missing: they need a scale that is stored elsewhere."""

_BLOCK = re.compile("[0-9]{1,5}")
_OF_QUANTISATION = re.compile(
    r".*[._](SCB|absmax|nested_absmax|quant_map|nested_quant_map|quant_state\..*|weight_format"  # bitsandbytes
    r"|qweight|qzeros|scales|g_idx"  # GPTQ, AWQ
    r"|weight_scale|weight_scale_inv|weight_scale_2|weight_zero_point|weight_packed|weight_shape|input_scale)"  # fp8
)


class OtherTensors(UserError):
    """Raised if a checkpoint has other tensors than its family in the lean engine; the hosted engine may read them."""


class Tensors:
    """Reader of a checkpoint's tensors by name, onto one device and in one number format (None: as stored).

    Each tensor is read on request into newly allocated memory; on the ``meta`` device only its shape is read.
    """

    def __init__(self, folder: Path, dtype: torch.dtype | None, device: str) -> None:
        self.folder, self.dtype, self.device = folder, dtype, device
        self.files = _places(folder)
        self.read: set[str] = set()
        self._opened: dict[Path, Any] = {}

    @property
    def config(self) -> Path:
        """Path of config.json, for messages."""
        return self.folder / CONFIG

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Read one tensor and check its ``shape`` (if given) and stored format; ``dtype`` overrides the reader's dtype.

        Raises:
            OtherTensors: The tensor is missing.
            UserError: The tensor is quantised, or has another shape than config.json says.
        """
        if name not in self.files:
            raise OtherTensors(
                f"{self.folder}: tensor {name!r} is missing from the checkpoint ({len(self.files)} tensors found)."
                + prefix_note(self.files, [name])
            )
        file = self._file(name)
        stored = file.get_slice(name)
        check_format(self.files[name], name, stored.get_dtype())
        actual = tuple(stored.get_shape())
        if shape and actual != shape:
            raise UserError(
                f"{self.folder}: tensor {name!r} has shape {list(actual)}, config.json requires {list(shape)}."
            )
        self.read.add(name)
        dtype = dtype or self.dtype
        if self.device == "meta":
            return torch.empty(actual, dtype=dtype or FORMATS[stored.get_dtype()], device="meta")
        tensor: Tensor = file.get_tensor(name)
        return tensor.to(device=self.device, dtype=dtype, copy=True)  # a copy has torch's own alignment

    def _file(self, name: str) -> Any:
        """Return the open safetensors file that holds a tensor; each file is opened once, since headers can be long."""
        path = self.files[name]
        if path not in self._opened:
            self._opened[path] = open_safetensors(path)
        return self._opened[path]

    def unread(self, name: str) -> Unread:
        """Return a handle from which transformers reads a tensor later.

        Raises:
            UserError: The tensor is quantised.
        """
        check_format(self.files[name], name, self._file(name).get_slice(name).get_dtype())
        return Unread(self, name)

    def holds_weights(self, name: str) -> bool:
        """Return whether a tensor is stored in a number format of weights: a float of 16, 32 or 64 bits."""
        return self._file(name).get_slice(name).get_dtype() in FORMATS

    def linear(self, name: str, shape: tuple[int, int], *, bias: bool = False, transposed: bool = False) -> Linear:
        """Read a projection of shape [out, in], and its bias if ``bias``; ``transposed`` means stored as [in, out]."""
        weight = self(f"{name}.weight", *(shape[::-1] if transposed else shape))
        return Linear(weight.T.contiguous() if transposed else weight, self(f"{name}.bias", shape[0]) if bias else None)

    def norm(self, name: str, width: int, *, bias: bool = False) -> Linear:
        """Read a norm's elementwise weight and, if ``bias``, its bias; both have the shape [width]."""
        return Linear(self(f"{name}.weight", width), self(f"{name}.bias", width) if bias else None)

    def is_copy(self, name: str, original: str) -> bool:
        """Return whether the stored tensor ``name`` equals the tensor ``original``; if so, mark ``name`` as read."""
        if name not in self.files or original not in self.files:
            return False
        same = torch.equal(self._file(name).get_tensor(name), self._file(original).get_tensor(original))
        if same:
            self.read.add(name)
        return same

    def depth(self, prefix: str) -> int:
        """Return the number N of blocks, whose tensor names start with `PREFIX.0.` to `PREFIX.N-1.`; 0 if none do."""
        matches = (re.match(re.escape(prefix) + r"\.(\d{1,9})\.", name) for name in self.files)
        return max((int(match[1]) + 1 for match in matches if match), default=0)

    def check_all_read(self, harmless: Iterable[str]) -> None:
        """Check that every tensor was read or is known to be unused.

        Args:
            harmless: Patterns of the full names of tensors that are never used in computation.

        Raises:
            OtherTensors: Some tensors were not read: they belong to another model.
        """
        patterns = [re.compile(pattern) for pattern in harmless]
        unread = [
            name
            for name in sorted(self.files.keys() - self.read)
            if not any(pattern.fullmatch(name) for pattern in patterns)
        ]
        if unread:
            count = "1 tensor is" if len(unread) == 1 else f"{len(unread)} tensors are"
            raise OtherTensors(
                f"{self.files[unread[0]]}: {count} not part of the model that config.json describes: "
                f"{join_names(unread)}. The model would be another than was trained, so it is not read. "
                "If they are of no use, save it without them: `Auto...from_pretrained(folder)` of transformers, then "
                "`save_pretrained`."
            )


_WRAPPERS = {"_orig_mod.": ", as torch.compile calls them", "module.": ", as DistributedDataParallel calls them"}


def prefix_note(files: Mapping[str, Path], missing: Iterable[str]) -> str:
    """Return advice on removing the prefix that all tensor names get if a model is saved inside a wrapper.

    Args:
        files: File of each stored tensor, by tensor name.
        missing: Expected tensor names that are not among the stored ones.

    Returns:
        Sentences with a leading space; "" if no stored name is a missing name with a prefix.
    """
    pairs = ((name, longer) for name in missing for longer in files if longer.endswith(f".{name}"))
    name, longer = next(pairs, ("", ""))
    if not name:
        return ""
    prefix = longer.removesuffix(name)
    begin = sum(file_name.startswith(prefix) for file_name in files)
    file = files[longer].name
    return (
        f" {begin} of {len(files)} names begin with {prefix!r}{_WRAPPERS.get(prefix, '')}. Take it off in a copy of "
        f'the folder: `python -c "from safetensors.torch import load_file, save_file; save_file({{n.removeprefix('
        f"'{prefix}'): t for n, t in load_file('{file}').items()}}, '{file}', metadata={{'format': 'pt'}})\"`"
        + (f", each file, and in {INDEX}." if len(set(files.values())) > 1 else ".")
    )


def open_safetensors(path: Path) -> Any:
    """Open a safetensors file for reading, without memory mapping.

    A mapped file could change under a model, or lose its pages during a timing; one larger than memory cannot be
    mapped.

    Raises:
        SafetensorError: The file is truncated, or not a safetensors file.
        OSError: The file cannot be read.
    """
    return safe_open(path, framework="pt", backend="pread")


@dataclass(frozen=True)
class Unread:
    """Handle that reads a tensor on ``handle[...]``, the protocol by which transformers loads its own files."""

    tensors: Tensors
    name: str

    def __getitem__(self, _: EllipsisType) -> Tensor:
        """Read the whole tensor.

        Raises:
            UserError: The tensor is missing or quantised.
        """
        return self.tensors(self.name)


def save_heads(path: Path, entry: str, kind: str, tensors: Mapping[str, Tensor]) -> None:
    """Write exit heads or off-ramps to a safetensors file, with their kind and blocks in the metadata entry ``entry``.

    The blocks are parsed from the tensor names, ``{block}.NAME``.
    """
    blocks = sorted({int(name.partition(".")[0]) for name in tensors})
    # One entry: several would be written in any order, so that equal heads would have different digests.
    metadata = {entry: json.dumps({"kind": kind, "blocks": ",".join(map(str, blocks))})}
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path, metadata=metadata)


def heads_header(path: Path, entry: str, kinds: Sequence[str]) -> tuple[str, tuple[int, ...]]:
    """Return the kind and the blocks of a file of exit heads or off-ramps, from its header alone.

    Raises:
        UserError: The metadata entry ``entry`` has no valid blocks, or a kind that is not among ``kinds``.
    """
    try:
        with safe_open(path, framework="np") as file:
            record = json.loads((file.metadata() or {}).get(entry, "{}"))
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{path}: not a complete safetensors file of {entry.replace('_', ' ')} ({error}).") from error
    record = record if isinstance(record, dict) else {}
    kind, listed = record.get("kind"), record.get("blocks")
    if not isinstance(kind, str) or kind not in kinds:
        raise UserError(f"{path}: metadata 'kind' is {kind!r}.{suggestion(str(kind), kinds)}")
    places = listed.split(",") if isinstance(listed, str) else []
    blocks = tuple(map(int, places)) if all(map(_BLOCK.fullmatch, places)) else ()
    if not blocks or blocks[0] < 1 or any(after <= before for before, after in pairwise(blocks)):
        raise UserError(f"{path}: metadata 'blocks' is {listed!r}; allowed: ascending block numbers such as '2,4,6'.")
    return kind, blocks


def heads_tensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a file of exit heads or off-ramps, by name.

    Raises:
        UserError: A tensor has an unsupported number format.
    """
    with open_safetensors(path) as file:
        for name in file.keys():  # noqa: SIM118
            check_format(path, name, file.get_slice(name).get_dtype())
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of tensors, by name."""


def check_heads(
    path: Path, kind: str, blocks: Sequence[int], tensors: Mapping[str, Tensor], needed: Shapes, optional: Shapes
) -> None:
    """Check that exit heads or off-ramps have all ``needed`` tensors, the model's shapes, and no unknown tensors.

    ``needed`` and ``optional`` are the shapes of tensors that must and that may be there, by tensor name.

    Raises:
        UserError: A tensor is missing, unknown or of another shape; the message names it.
    """
    for name, shape in {**needed, **optional}.items():
        if name not in tensors:
            if name in needed:
                raise UserError(f"{path}: tensor {name!r} is missing; kind {kind!r} needs it, {list(shape)}.")
        elif (actual := tuple(tensors[name].shape)) != shape:
            raise UserError(f"{path}: tensor {name!r} has shape {list(actual)}, the model requires {list(shape)}.")
    if unknown := sorted(tensors.keys() - needed.keys() - optional.keys()):
        raise UserError(
            f"{path}: tensor {unknown[0]!r} is not part of heads of kind {kind!r} at blocks "
            f"{', '.join(map(str, blocks))} (metadata 'kind' and 'blocks')."
        )


def _places(folder: Path) -> dict[str, Path]:
    """Return the file of every tensor in a checkpoint folder, by tensor name.

    Raises:
        UserError: A file is damaged, a tensor is in two files, or the index is wrong about a tensor.
    """
    files = weight_files(folder)
    places: dict[str, Path] = {}
    for path in files.paths:
        try:
            with open_safetensors(path) as file:
                names = list(file.keys())
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path}: not a complete safetensors file ({error}).") from error
        for name in names:
            if name in places:
                raise UserError(f"{path}: tensor {name!r} is in {places[name].name} too; allowed: one file a tensor.")
            if _OF_QUANTISATION.fullmatch(name):
                raise UserError(f"{path}: tensor {name!r} belongs to quantised weights. {DEQUANTISE}")
            places[name] = path
    if files.index is not None:
        _check_index(folder / INDEX, files.index, places)
    return places


def _check_index(path: Path, index: Mapping[str, str], places: Mapping[str, Path]) -> None:
    for name in sorted(index.keys() | places.keys()):
        place, file_name = index.get(name), places[name].name if name in places else None
        if place != file_name:
            raise UserError(
                f"{path}: tensor {name!r} is in {file_name or 'no file'}, weight_map says {place or 'nothing of it'}."
            )


def check_format(path: Path, name: str, number_format: str) -> None:
    """Check that a tensor's number format (safetensors' name) is one of weights: a float of 16, 32 or 64 bits.

    Raises:
        UserError: The tensor holds integers or 8-bit floats.
    """
    if number_format not in FORMATS:
        raise UserError(f"{path}: tensor {name!r} holds {number_format}, not weights in full precision. {DEQUANTISE}")
