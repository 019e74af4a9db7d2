"""The built-in suites: every cell of `builtin` is also in `builtin-full`, so that running both repeats no cell."""

import dataclasses
from collections import Counter

import pytest

from exitbench.harness.planning.expand import expand
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.training import load_recipe

SETTINGS = ("seed", "device", "dtype", "batch_size", "batch_rows", "fit_documents", "timing")


def test_every_cell_of_builtin_is_also_in_builtin_full() -> None:
    part, full = load_suite("builtin"), load_suite("builtin-full")
    assert {draft.label for draft in expand(part, None)} < {draft.label for draft in expand(full, None)}
    assert {entry.name: entry.recipe for entry in part.models} == {e.name: e.recipe for e in full.models}
    for mine, other in zip(part.tasks, full.tasks, strict=True):
        assert dataclasses.replace(mine, location="") == dataclasses.replace(other, location="")
    for name in SETTINGS:
        assert getattr(part, name) == getattr(full, name), name


def test_builtin_measures_enough_documents_and_timings_to_compare_methods() -> None:
    suite = load_suite("builtin")
    assert all(entry.data.limit is not None and entry.data.limit >= 200 for entry in suite.tasks)
    assert suite.timing.documents >= 20
    timed = Counter(draft.method.name for draft in expand(suite, None) if draft.kind == "timing")
    compared = {"calm-softmax", "calm-saturation", "calm-classifier", "max-prob", "entropy", "patience", "mee-lstm"}
    assert timed.keys() >= {"full", "static", *compared}
    assert all(timed[name] >= 2 for name in compared)


@pytest.mark.parametrize("kind", ["quality", "probe"])
def test_builtin_seeds_recipes_differ_only_in_their_seed(kind: str) -> None:
    suite = load_suite("builtin-seeds")
    recipes = [load_recipe(entry.recipe or "") for entry in suite.models]
    assert [recipe.seed for recipe in recipes] == [0, 1, 2]
    assert len({dataclasses.replace(recipe, name="", seed=0) for recipe in recipes}) == 1
    asked = [
        {draft.label.partition("/")[2] for draft in expand(suite, None) if draft.model is model and draft.kind == kind}
        for model in suite.models
    ]
    assert asked[0] and asked[0] == asked[1] == asked[2]
