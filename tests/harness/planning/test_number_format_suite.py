"""`builtin-bf16` asks what `builtin-full` asks, in another number format, so that every run has its pair."""

from exitbench.harness.planning.suite import Suite, load_suite

Asked = tuple[object, ...]


def asked(suite: Suite) -> set[Asked]:
    """Quality cells, each by what it asks but for the number format."""
    recipes = {entry.name: (entry.recipe, entry.path, entry.random_weights) for entry in suite.models}
    data = {entry.label: (entry.data, entry.generation.max_new_tokens, entry.generation.stop) for entry in suite.tasks}
    return {
        (suite.seed, suite.device, suite.batch_size, recipes[model], data[task], sweep.method, point)
        for sweep in suite.sweeps
        if "quality" in sweep.kinds
        for model in sweep.models
        for task in sweep.tasks
        for point in sweep.points
    }


def test_every_cell_in_bf16_has_a_counterpart_in_fp32() -> None:
    fp32, bf16 = load_suite("builtin-full"), load_suite("builtin-bf16")
    assert (fp32.dtype, bf16.dtype) == ("float32", "bfloat16")
    assert asked(bf16) <= asked(fp32)
    assert {entry.name for entry in bf16.models} == {entry.name for entry in fp32.models}
    assert {cell[-2] for cell in asked(bf16)} == {"full", "static", "calm-softmax"}
