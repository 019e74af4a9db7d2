"""The hosted engine: families of transformers run block by block, proved on loading, refused where they differ.

Every family is tried by `nox -s models`; here are a few whose forward passes have least in common.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "models"
MODULES = ("tiny", "checks", "run", "document")
FAMILIES = {
    "bloom": "causal",  # alibi, with an entry for each row and head
    "gpt_neox": "causal",  # attention and feed-forward in parallel, part of the rotary angles
    "gemma2": "causal",  # sliding windows, norms after sub-layers, soft caps
    "mixtral": "causal",  # experts
    "opt": "causal",  # learned positions from the mask
    "deepseek_v3": "causal",  # keys and values of different width
    "bart": "seq2seq",  # no final norm, a bias after the head
    "t5": "seq2seq",  # position bias handed on from block 1
}


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    """The modules of `nox -s models`, which lie beside each other and are no package."""
    sys.path.insert(0, str(FOLDER))
    yield {name: __import__(name) for name in MODULES}
    sys.path.remove(str(FOLDER))
    for name in MODULES:
        del sys.modules[name]


@pytest.fixture(scope="module")
def made(scripts: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """A family's model in transformers and in the engine, made once."""
    twins: dict[str, Any] = {}

    def make(name: str) -> Any:
        if name not in twins:
            tiny = scripts["tiny"]
            family = next(f for f in tiny.families() if (f.name, f.kind) == (name, FAMILIES[name]))
            with torch.no_grad():
                twins[name] = scripts["checks"].load(tiny.tiny_model(family), tmp_path_factory.mktemp(name))
        return twins[name]

    return make


@pytest.mark.parametrize("check", range(7))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_does_what_transformers_does(scripts: Any, made: Any, family: str, check: int) -> None:
    scripts["checks"].CHECKS[check](made(family))


def test_there_are_so_many_checks(scripts: Any) -> None:
    assert len(scripts["checks"].CHECKS) == 7
