"""Read safetensors by name: every tensor accounted for, each of a number format that means what it says."""

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
from exitbench.harness.engine.checkpoints.files import CONFIG, DEQUANTISE, INDEX, listed, weight_files
from exitbench.harness.engine.model.weights import Linear

FORMATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""By safetensors' names. An 8-bit float is a floating point format too, but needs a scale that lies elsewhere."""

_BLOCK = re.compile("[0-9]{1,5}")
_OF_QUANTISATION = re.compile(
    r".*[._](SCB|absmax|nested_absmax|quant_map|nested_quant_map|quant_state\..*|weight_format"  # bitsandbytes
    r"|qweight|qzeros|scales|g_idx"  # GPTQ, AWQ
    r"|weight_scale|weight_scale_inv|weight_scale_2|weight_zero_point|weight_packed|weight_shape|input_scale)"  # fp8
)


class OtherTensors(UserError):
    """A checkpoint's tensors are not those that a family's reader asks for; another reader may know their names."""


class Tensors:
    """The tensors of a checkpoint by name, in one number format (None: that of the file) and place.

    Each is read when it is asked for, into memory of its own. On ``meta`` nothing is.
    """

    def __init__(self, folder: Path, dtype: torch.dtype | None, device: str) -> None:
        self.folder, self.dtype, self.device = folder, dtype, device
        self.files = _places(folder)
        self.read: set[str] = set()

    @property
    def config(self) -> Path:
        """What the tensors are read by."""
        return self.folder / CONFIG

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Read one tensor and check its shape and number format; ``dtype`` overrides the checkpoint's.

        Raises:
            OtherTensors: The tensor is missing.
            UserError: It is quantised, or has another shape than config.json says.
        """
        if name not in self.files:
            raise OtherTensors(
                f"{self.folder}: tensor {name!r} is missing from the checkpoint ({len(self.files)} tensors found)."
                + prefix_note(self.files, [name])
            )
        with opened(self.files[name]) as file:
            stored = file.get_slice(name)
            check_format(self.files[name], name, stored.get_dtype())
            found = tuple(stored.get_shape())
            if shape and found != shape:
                raise UserError(
                    f"{self.folder}: tensor {name!r} has shape {list(found)}, config.json asks for {list(shape)}."
                )
            self.read.add(name)
            dtype = dtype or self.dtype
            if self.device == "meta":
                return torch.empty(found, dtype=dtype or FORMATS[stored.get_dtype()], device="meta")
            tensor: Tensor = file.get_tensor(name)
            return tensor.to(device=self.device, dtype=dtype, copy=True)  # a copy is aligned as torch does it

    def unread(self, name: str) -> Unread:
        """One that is read later.

        Raises:
            UserError: It is quantised.
        """
        with opened(self.files[name]) as file:
            check_format(self.files[name], name, file.get_slice(name).get_dtype())
        return Unread(self, name)

    def holds_weights(self, name: str) -> bool:
        """Whether a tensor has a number format in which weights are read."""
        with opened(self.files[name]) as file:
            return file.get_slice(name).get_dtype() in FORMATS

    def linear(self, name: str, shape: tuple[int, int], *, bias: bool = False, transposed: bool = False) -> Linear:
        """Read a projection [out, in], with its bias if the family has one; ``transposed``: stored as [width, out]."""
        weight = self(f"{name}.weight", *(shape[::-1] if transposed else shape))
        return Linear(weight.T.contiguous() if transposed else weight, self(f"{name}.bias", shape[0]) if bias else None)

    def norm(self, name: str, width: int, *, bias: bool = False) -> Linear:
        """Read an elementwise norm: weight [D] and bias [D] or None."""
        return Linear(self(f"{name}.weight", width), self(f"{name}.bias", width) if bias else None)

    def is_copy(self, name: str, of: str) -> bool:
        """Whether a tensor that is there has the very values of another, and so need not be read."""
        if name not in self.files or of not in self.files:
            return False
        with opened(self.files[name]) as one, opened(self.files[of]) as other:
            same = torch.equal(one.get_tensor(name), other.get_tensor(of))
        if same:
            self.read.add(name)
        return same

    def depth(self, prefix: str) -> int:
        """How many blocks the names below a prefix count, `PREFIX.0.` to `PREFIX.N-1.`."""
        matches = (re.match(re.escape(prefix) + r"\.(\d{1,9})\.", name) for name in self.files)
        return max((int(match[1]) + 1 for match in matches if match), default=0)

    def check_all_read(self, harmless: Iterable[str]) -> None:
        """Check that every tensor was read or is known to do nothing.

        Args:
            harmless: Patterns of the whole names of tensors that no model computes with.

        Raises:
            OtherTensors: Some tensors were not: the model is another than was read.
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
                f"{self.files[unread[0]]}: {count} not part of the model that config.json describes: {listed(unread)}. "
                "The model would be another than was trained, so it is not read. If they are of no use, save it "
                "without them: `Auto...from_pretrained(folder)` of transformers, then `save_pretrained`."
            )


_WRAPPERS = {"_orig_mod.": ", as torch.compile calls them", "module.": ", as DistributedDataParallel calls them"}


def prefix_note(files: Mapping[str, Path], missing: Iterable[str]) -> str:
    """Say how to take off a prefix with which the names of a model that was saved within another begin.

    Args:
        files: The file of each tensor.
        missing: Names that were looked for.

    Returns:
        Sentences after a space; empty if no missing tensor is there under a longer name.
    """
    pairs = ((name, longer) for name in missing for longer in files if longer.endswith(f".{name}"))
    name, longer = next(pairs, ("", ""))
    if not name:
        return ""
    prefix = longer.removesuffix(name)
    begin = sum(one.startswith(prefix) for one in files)
    of = files[longer].name
    return (
        f" {begin} of {len(files)} names begin with {prefix!r}{_WRAPPERS.get(prefix, '')}. Take it off in a copy of "
        f'the folder: `python -c "from safetensors.torch import load_file, save_file; save_file({{n.removeprefix('
        f"'{prefix}'): t for n, t in load_file('{of}').items()}}, '{of}', metadata={{'format': 'pt'}})\"`"
        + (f", each file, and in {INDEX}." if len(set(files.values())) > 1 else ".")
    )


def opened(path: Path) -> Any:
    """A safetensors file, whose tensors are read and not mapped.

    A file that is mapped could change under a model, its pages be taken away while something is timed; one larger than
    the memory cannot be mapped at all.

    Raises:
        SafetensorError: It is none, or cut short.
        OSError: It cannot be read.
    """
    return safe_open(path, framework="pt", backend="pread")


@dataclass(frozen=True)
class Unread:
    """A tensor that is read when somebody takes all of it, `unread[...]`: what transformers does with its own files."""

    tensors: Tensors
    name: str

    def __getitem__(self, _: EllipsisType) -> Tensor:
        """Read it.

        Raises:
            UserError: See `Tensors`.
        """
        return self.tensors(self.name)


def save_heads(path: Path, entry: str, kind: str, tensors: Mapping[str, Tensor]) -> None:
    """Write heads of the blocks that the names of the tensors tell, with their kind and blocks as a metadata entry."""
    blocks = sorted({int(name.partition(".")[0]) for name in tensors})
    # One entry: several would be written in any order, and the same heads would have many digests.
    metadata = {entry: json.dumps({"kind": kind, "blocks": ",".join(map(str, blocks))})}
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path, metadata=metadata)


def heads_header(path: Path, entry: str, kinds: Sequence[str]) -> tuple[str, tuple[int, ...]]:
    """Return kind and blocks of a file of heads, from its header alone.

    Raises:
        UserError: The header is not that of such a file.
    """
    try:
        with safe_open(path, framework="np") as file:
            said = json.loads((file.metadata() or {}).get(entry, "{}"))
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{path}: not a complete safetensors file of {entry.replace('_', ' ')} ({error}).") from error
    said = said if isinstance(said, dict) else {}
    kind, listed = said.get("kind"), said.get("blocks")
    if not isinstance(kind, str) or kind not in kinds:
        raise UserError(f"{path}: metadata 'kind' is {kind!r}.{suggestion(str(kind), kinds)}")
    places = listed.split(",") if isinstance(listed, str) else []
    blocks = tuple(map(int, places)) if all(map(_BLOCK.fullmatch, places)) else ()
    if not blocks or blocks[0] < 1 or any(after <= before for before, after in pairwise(blocks)):
        raise UserError(f"{path}: metadata 'blocks' is {listed!r}; allowed: ascending block numbers such as '2,4,6'.")
    return kind, blocks


def heads_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a file of heads.

    Raises:
        UserError: One is not of numbers that are read.
    """
    with opened(path) as file:
        for name in file.keys():  # noqa: SIM118
            check_format(path, name, file.get_slice(name).get_dtype())
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


Shapes = Mapping[str, tuple[int, ...]]
"""Of tensors, by name."""


def check_heads(
    path: Path, kind: str, blocks: Sequence[int], tensors: Mapping[str, Tensor], needed: Shapes, optional: Shapes
) -> None:
    """Check that a file of heads has every tensor that it needs, in the model's shapes, and none that nothing reads.

    Raises:
        UserError: It has not; names the tensor and shapes.
    """
    for name, shape in {**needed, **optional}.items():
        if name not in tensors:
            if name in needed:
                raise UserError(f"{path}: tensor {name!r} is missing; kind {kind!r} needs it, {list(shape)}.")
        elif (found := tuple(tensors[name].shape)) != shape:
            raise UserError(f"{path}: tensor {name!r} has shape {list(found)}, the model asks for {list(shape)}.")
    if unknown := sorted(tensors.keys() - needed.keys() - optional.keys()):
        raise UserError(
            f"{path}: tensor {unknown[0]!r} is not part of heads of kind {kind!r} at blocks "
            f"{', '.join(map(str, blocks))} (metadata 'kind' and 'blocks')."
        )


def _places(folder: Path) -> dict[str, Path]:
    """The file of every tensor.

    Raises:
        UserError: A file is damaged, or the weights are not clear: a tensor in two files, or not where the index says.
    """
    files = weight_files(folder)
    places: dict[str, Path] = {}
    for path in files.paths:
        try:
            with opened(path) as file:
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
        said, file_name = index.get(name), places[name].name if name in places else None
        if said != file_name:
            raise UserError(
                f"{path}: tensor {name!r} is in {file_name or 'no file'}, weight_map says {said or 'nothing of it'}."
            )


def check_format(path: Path, name: str, number_format: str) -> None:
    """Check that a tensor's number format, as safetensors spells it, is one in which weights are read.

    Raises:
        UserError: It holds integers or 8-bit floats.
    """
    if number_format not in FORMATS:
        raise UserError(f"{path}: tensor {name!r} holds {number_format}, not weights in full precision. {DEQUANTISE}")
