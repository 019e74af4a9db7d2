"""`builtin-bf16` and `builtin-int8` repeat cells of `builtin-full` in other number formats, for comparison."""

import pytest

from exitbench.harness.planning.suite import Suite, load_suite

Asked = tuple[object, ...]


def asked(suite: Suite) -> set[Asked]:
    """Return the quality cells of a suite without their number format."""
    recipes = {entry.name: (entry.recipe, entry.path, entry.random_weights) for entry in suite.models}
    data = {entry.label: (entry.data, entry.generation.max_new_tokens, entry.generation.stop) for entry in suite.tasks}
    return {
        (suite.seed, suite.device, suite.batch_size, recipes[model], data[task], sweep.points[0].method.name, point)
        for sweep in suite.sweeps
        if "quality" in sweep.kinds
        for model in sweep.models
        for task in sweep.tasks
        for point in sweep.points
    }


@pytest.mark.parametrize(("name", "dtype"), [("builtin-bf16", "bfloat16"), ("builtin-int8", "int8")])
def test_every_cell_of_the_bf16_and_int8_suites_has_an_fp32_counterpart(name: str, dtype: str) -> None:
    fp32, other = load_suite("builtin-full"), load_suite(name)
    assert (fp32.dtype, other.dtype) == ("float32", dtype)
    assert asked(other) <= asked(fp32)
    generate = {entry.name for entry in fp32.models if entry.runs_task("squad")}
    assert {entry.name for entry in other.models} == generate
    assert {cell[-2] for cell in asked(other)} == {"full", "static", "calm-softmax"}


def test_int8_and_bf16_suites_have_the_same_cells() -> None:
    assert asked(load_suite("builtin-int8")) == asked(load_suite("builtin-bf16"))
