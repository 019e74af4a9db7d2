"""Threads of matrix products: those of torch, and one of numpy's own OpenBLAS.

OpenBLAS has a pool of its own. The idle threads of two pools spin, and take the cores from each other: with two threads
in each, decoding on two cores took ten times as long.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from threadpoolctl import ThreadpoolController


def set_threads(threads: int) -> None:
    """Set the number of threads of torch in this process, and limit numpy's OpenBLAS to one."""
    torch.set_num_threads(threads)
    for openblas in _openblas_of_numpy():
        openblas.set_num_threads(1)


def numpy_has_one_thread() -> bool:
    """Return whether numpy multiplies by its own OpenBLAS, with one thread."""
    return [openblas.num_threads for openblas in _openblas_of_numpy()] == [1]


@cache
def _openblas_of_numpy() -> tuple[Any, ...]:
    libraries = ThreadpoolController().lib_controllers
    return tuple(each for each in libraries if each.internal_api == "openblas" and "numpy.libs" in each.filepath)
