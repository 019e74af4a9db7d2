"""Wrap decoder blocks: record their arguments in transformers' forward pass, and call them later on some rows.

While a step is recorded, block 1 really runs, on all rows (every token runs it). The other blocks only record their
arguments and return their input, in the form of block 1's output (a tensor or a tuple).

Shape suffixes: B rows of the batch, A rows running at a block, T new positions, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Handler = Callable[["WrappedBlock", tuple[Any, ...], dict[str, Any]], Any]
"""Replacement of a block's call, given the block and its arguments."""

Path = tuple[Any, ...]
"""Location of an argument: its index or name, then indices into tuples."""

Axes = dict[tuple[int, Path], tuple[int, int] | None]
"""Batch dimension of each argument, by block and location, with its number of entries per row; None if it has none."""

UNKNOWN = (0, 1)
"""Batch dimension assumed for an argument never seen: most have the rows first."""


class WrappedBlock:
    """A decoder block whose calls can be redirected to a function (`Calls.handler`).

    Attributes:
        number: Number of the block, 1..L.
        run: The block's own forward pass.
    """

    def __init__(self, number: int, module: nn.Module, calls: Calls) -> None:
        self.number, self.run, self._calls = number, module.forward, calls
        module.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the block; if there is a handler (`Calls.handler`), call it instead and return its result."""
        handler = self._calls.handler
        return self.run(*args, **kwargs) if handler is None else handler(self, args, kwargs)


class SparedLinear:
    """A projection that is skipped while a block only stores keys and values, since these do not depend on it."""

    def __init__(self, module: Any, calls: Calls) -> None:
        self._module, self._calls = module, calls
        self.run: Callable[[Tensor], Tensor] = module.forward
        self._blank = torch.empty(0)
        module.forward = self

    def __call__(self, x: Tensor) -> Tensor:
        """Return the projection of ``x``, or zeros while blocks only store keys and values."""
        if not self._calls.only_stores:
            return self.run(x)
        shape = (*x.shape[:-1], self._module.out_features)
        if self._blank.shape != shape:
            self._blank = x.new_zeros(shape)
        return self._blank

    def undo(self) -> None:
        """Restore the module's own forward pass."""
        del self._module.forward


class Calls:
    """Switch for the calls of a model's decoder blocks: the blocks run, or a function (handler) receives the calls.

    Attributes:
        blocks: Blocks 1..L.
        handler: Function that receives the calls; None: the blocks run.
        only_stores: Whether blocks are called for their keys and values only, so that other projections are skipped.
        batch_axes: Batch dimension of each argument of each block, by which arguments of some rows are selected; see
            `Axes`.
    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self.handler: Handler | None = None
        self.only_stores = False
        self.blocks = [WrappedBlock(number, block, self) for number, block in enumerate(blocks, start=1)]
        self.batch_axes: Axes = {}

    @contextmanager
    def taken_over(self, handler: Handler) -> Iterator[None]:
        """Redirect the calls of all blocks to ``handler`` in a `with` block, which contains one forward pass."""
        self.handler = handler
        try:
            yield
        finally:
            self.handler = None


@dataclass(eq=False)
class RecordedCalls:
    """Arguments of all blocks, recorded during one forward pass.

    Attributes:
        n_rows: Number of rows of the batch, B.
        embedding_BTD: Input of block 1.
        first_BTD: Output of block 1.
        arguments: Positional and keyword arguments of each block by its number, without the hidden state.
    """

    n_rows: int
    embedding_BTD: Tensor | None = None
    first_BTD: Tensor | None = None
    arguments: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    _output: Any = None
    _selected: tuple[Tensor | None, dict[tuple[int, tuple[int, int]], Tensor]] = (None, {})

    def handle(self, block: WrappedBlock, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a block's arguments; run the block if it is block 1, else return its input state as its output.

        Block 1 must be called first: the other blocks' outputs get the form of its output (a tensor or a tuple).
        """
        state = state_in(args, kwargs)
        self.arguments[block.number] = without_state(args, kwargs)
        if self.embedding_BTD is None:
            self._output = block.run(*args, **kwargs)
            self.embedding_BTD, self.first_BTD = state, state_of(self._output)
            return self._output
        return with_state(self._output, state)

    def arguments_of(self, block: int, rows_A: Tensor | None, axes: Axes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a block's recorded positional and keyword arguments for some rows of the batch (None: all).

        ``axes`` has the batch dimension of each argument, along which its rows are selected; see `Axes`.
        """
        args, kwargs = self.arguments[block]
        if rows_A is None:
            return args, kwargs
        if self._selected[0] is not rows_A:
            self._selected = rows_A, {}
        chosen = self._selected[1]

        def select(path: Path, value: Any) -> Any:
            if type(value) in (tuple, list):
                return type(value)(select((*path, index), item) for index, item in enumerate(value))
            if type(value) is dict:
                return {name: select((*path, name), item) for name, item in value.items()}
            axis = axes.get((block, path), UNKNOWN)
            if axis is None or not isinstance(value, Tensor) or axis[0] >= value.dim():
                return value
            dim, per_row = axis
            if value.shape[dim] != self.n_rows * per_row:
                return value
            key = id(value), axis
            if key not in chosen:  # mostly one mask and one pair of rotary angles for all blocks
                chosen[key] = _rows_of(value, rows_A, dim, per_row)
            return chosen[key]

        picked = tuple(select((index,), value) for index, value in enumerate(args))
        return picked, {name: select((name,), value) for name, value in kwargs.items()}


def _rows_of(value: Tensor, rows_A: Tensor, dim: int, per_row: int) -> Tensor:
    if per_row == 1:
        return value.index_select(dim, rows_A)
    entries = torch.arange(per_row, device=rows_A.device)
    return value.index_select(dim, (rows_A[:, None] * per_row + entries).flatten())


def state_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the hidden state among a block's arguments: the first one, or ``hidden_states``."""
    return args[0] if args else kwargs["hidden_states"]


def without_state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a block's positional and keyword arguments without the hidden state."""
    return args[1:], kwargs if args else {name: value for name, value in kwargs.items() if name != "hidden_states"}


def state_of(output: Any) -> Tensor:
    """Return the hidden state in a block's output: the output itself, or the first item of a tuple."""
    state: Tensor = output[0] if isinstance(output, (tuple, list)) else output
    return state


def with_state(output: Any, state: Tensor) -> Any:
    """Return a block's output, in which `state` replaces the hidden state."""
    return (state, *output[1:]) if isinstance(output, (tuple, list)) else state


def shapes(recorded: RecordedCalls) -> dict[tuple[int, Path], tuple[int, ...]]:
    """Return the shapes of all tensors among the recorded arguments, by block number and location in its arguments.

    A location is the argument's index or name, followed by indices or keys if the tensor is inside a tuple or dict.
    """
    tensor_shapes: dict[tuple[int, Path], tuple[int, ...]] = {}

    def look(block: int, path: Path, value: Any) -> None:
        if isinstance(value, Tensor):
            tensor_shapes[block, path] = tuple(value.shape)
        elif type(value) in (tuple, list):
            for index, item in enumerate(value):
                look(block, (*path, index), item)
        elif type(value) is dict:
            for name, item in value.items():
                look(block, (*path, name), item)

    for block, (args, kwargs) in recorded.arguments.items():
        for index, value in enumerate(args):
            look(block, (index,), value)
        for name, value in kwargs.items():
            look(block, (name,), value)
    return tensor_shapes


def learn_axes(first: RecordedCalls, second: RecordedCalls) -> Axes:
    """Return the batch dimension of each block argument, by comparing one step recorded with two numbers of rows.

    By block and location in its arguments, the result has the dimension whose size differs, and its number of entries
    per row; None if no size differs.
    """
    axes: Axes = {}
    other_shapes = shapes(second)
    for key, shape in shapes(first).items():
        if len(other_shapes.get(key, ())) != len(shape):
            continue
        pairs = enumerate(zip(shape, other_shapes[key], strict=True))
        axes[key] = next(((dim, size // first.n_rows) for dim, (size, grown) in pairs if size != grown), None)
    return axes
