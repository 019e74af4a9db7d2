"""Numbers of threads: numpy's OpenBLAS gets one, whatever number torch has.

OpenBLAS has a pool of its own. Idle threads of two pools spin, and would take the cores from each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np  # noqa: F401  # loads the library that is looked for below
from threadpoolctl import ThreadpoolController


@contextmanager
def numpy_in_one_thread() -> Iterator[None]:
    """Limit numpy's own OpenBLAS to one thread in this process, until the context ends."""
    with _openblas_of_numpy().limit(limits=1):
        yield


def numpy_has_one_thread() -> bool:
    """Return whether numpy multiplies by its own OpenBLAS, with one thread."""
    return [openblas.num_threads for openblas in _openblas_of_numpy().lib_controllers] == [1]


@cache
def _openblas_of_numpy() -> ThreadpoolController:
    libraries = ThreadpoolController()
    paths = [each.filepath for each in libraries.lib_controllers if "numpy.libs" in each.filepath]
    return libraries.select(filepath=paths)
