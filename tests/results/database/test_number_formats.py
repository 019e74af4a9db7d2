"""`number_formats` pairs runs that differ only in the number format, and documents within each pair."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import stdev
from types import ModuleType
from typing import Any

import pytest
from stored_rows import query_rows

from exitbench.results.database.connection import Database, open_database
from exitbench.results.files.formats import content_id
from exitbench.results.queries import saved_query

FP32 = {"a": (50.0, (1, 2)), "b": (70.0, (3,)), "c": (90.0, (4, 5, 6))}
BF16 = {"a": (52.0, (1, 9)), "b": (70.0, (3,)), "c": (80.0, (4, 5))}
MEAN_FP32, MEAN_BF16 = 70.0, 202 / 3
# Each case is a pair of runs of its own seed.
SAME, FITTED, CORPUS, VERSIONS, WITHOUT_TOKENS, RANDOM, OTHER = range(7)
DIFFERENCES: tuple[Mapping[str, Any], ...] = (
    {"model": {"weights_sha256": "other"}},
    {"task": {"data_sha256": "other"}},
    {"method": {"params": {"threshold": 0.4}}},
    {"kv_policy": "exact"},
    {"generation": {"max_new_tokens": 17}},
    {"device": "cuda"},
    {"batch_size": 4},
    {"seed": 100},
)


def _write(
    example: ModuleType,
    root: Path,
    answers: Mapping[str, tuple[float, Sequence[int]]],
    value: float,
    exit_layer: float,
    overrides: Mapping[str, Any],
    *,
    version: str = "1",
    n_output: int | None = None,
    random_weights: bool = False,
) -> None:
    """Write a gate's quality run, given each document's score and tokens, and the run's value and mean exit layer."""
    cell = example.cell_json(example.MODELS[0], example.TASKS[0], example.CALM[0], "quality", "full-depth")
    cell["random_weights"] = random_weights
    for part in (cell, cell["identity"]):
        part |= {name: {**part[name], **new} if isinstance(new, dict) else new for name, new in overrides.items()}
    cell["cell_id"] = content_id(cell["identity"])
    samples = [
        {"doc_key": key, "output_text": "", "output_ids": list(ids), "n_prompt": 1, "n_output": n_output or len(ids)}
        | {"stop_reason": "eos", "scores": json.dumps({"f1": score}), "statistics": "{}"}
        for key, (score, ids) in answers.items()
    ]
    metrics = [
        {"metric": name, "metric_version": version, "value": each, "n": len(answers), **about}
        for name, each, about in (
            ("f1", value, {"role": "headline", "lower_is_better": False}),
            ("mean_exit_layer", exit_layer, {"role": "depth"}),
        )
    ]
    example.write_attempt(root, cell, {"samples": samples, "metrics": metrics})


@pytest.fixture(scope="module")
def database(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    root = tmp_path_factory.mktemp("number_formats")
    write = partial(_write, example, root / "spool")
    bf16 = {"dtype": "bfloat16"}
    write(FP32, MEAN_FP32, 3.0, {"seed": SAME})
    write(BF16, MEAN_BF16, 3.5, bf16 | {"seed": SAME})
    write(FP32, MEAN_FP32, 3.0, {"seed": FITTED, "fit_cell_id": "fitted in fp32"})
    write(BF16, MEAN_BF16, 3.5, bf16 | {"seed": FITTED, "fit_cell_id": "fitted in bf16"})
    write(FP32, 41.0, 3.0, {"seed": CORPUS})
    write(BF16, MEAN_BF16, 3.0, bf16 | {"seed": CORPUS})  # the mean of its documents by chance
    write(FP32, MEAN_FP32, 3.0, {"seed": VERSIONS})
    write(BF16, MEAN_BF16, 3.0, bf16 | {"seed": VERSIONS}, version="2")
    for overrides in ({}, bf16):
        write({"a": (50.0, ())}, 50.0, 3.0, {"seed": WITHOUT_TOKENS, **overrides}, n_output=2)
        write(FP32, MEAN_FP32, 3.0, {"seed": RANDOM, **overrides}, random_weights=True)
    write(FP32, MEAN_FP32, 3.0, {"seed": OTHER})
    for other in DIFFERENCES:
        write(BF16, MEAN_BF16, 3.5, {"seed": OTHER, **bf16, **other})
    with open_database(example.ingested(root)) as opened:
        yield opened


Ask = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def ask(database: Database) -> Ask:
    """Return a function that runs the query `number_formats` and returns the rows of one case, which is a seed."""

    def run(case: int, **parameters: Any) -> list[dict[str, Any]]:
        query = saved_query("number_formats")
        rows = query_rows(database, query.sql, {**query.defaults, **parameters})
        return [row for row in rows if row["seed"] == case]

    return run


def test_run_is_paired_with_its_counterpart_in_another_number_format(ask: Ask) -> None:
    (row,) = ask(SAME)
    assert (row["documents"], row["share_identical"], row["metric"]) == (3, pytest.approx(1 / 3), "f1")
    assert (row["reference_value"], row["value"]) == (MEAN_FP32, MEAN_BF16)
    assert row["value_more"] == pytest.approx((2 + 0 - 10) / 3)
    # 4.303: Student's t at two degrees of freedom, 97.5%.
    assert row["half_width"] == pytest.approx(4.303 * stdev([2, 0, -10]) / math.sqrt(3))
    assert (row["reference_exit_layer"], row["mean_exit_layer"], row["exit_layer_more"]) == (3.0, 3.5, 0.5)


def test_either_number_format_can_be_the_reference(ask: Ask) -> None:
    (row,) = ask(SAME, dtype="float32", reference="bfloat16")
    assert (row["value"], row["reference_value"], row["exit_layer_more"]) == (MEAN_FP32, MEAN_BF16, -0.5)
    assert ask(SAME, dtype="float16") == []


def test_runs_with_any_other_difference_are_not_paired(ask: Ask, database: Database) -> None:
    overrides = database.query(
        "SELECT count(*) AS runs FROM runs WHERE dtype = 'bfloat16' AND seed >= $seed", {"seed": OTHER}
    )
    assert overrides.to_pylist() == [{"runs": len(DIFFERENCES)}]
    assert ask(OTHER) == ask(100) == []


def test_fitted_runs_are_paired_despite_separate_fits(ask: Ask) -> None:
    assert len(ask(FITTED)) == 1


def test_corpus_metric_has_no_per_document_interval(ask: Ask) -> None:
    (row,) = ask(CORPUS)
    assert (row["value_more"], row["half_width"]) == (MEAN_BF16 - 41.0, None)


def test_values_of_two_versions_of_a_metric_are_not_subtracted(ask: Ask) -> None:
    (row,) = ask(VERSIONS)
    assert (row["reference_value"], row["value_more"], row["half_width"]) == (None, None, None)


def test_answers_without_tokens_are_not_called_identical(ask: Ask) -> None:
    (row,) = ask(WITHOUT_TOKENS)
    assert (row["documents"], row["share_identical"]) == (1, None)


def test_random_weights_are_left_out(ask: Ask) -> None:
    assert ask(RANDOM) == []
