"""Comparing runs: pairing by document, versions of scores, and what is refused or only reported."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from exitbench.errors import UserError
from exitbench.results.analysis.comparison import Comparison, RunContrast, compare
from exitbench.results.database.connection import Database, open_database
from exitbench.results.files.formats import content_id
from exitbench.results.statistics.intervals import Aggregate
from exitbench.results.statistics.paired import holm

FULL, STATIC = "world-t5/squad/full", "world-t5/squad/static"


def mean(_task: str, _metric: str) -> Aggregate:
    return lambda total, n: total[..., 0] / n


def length_ratio(_task: str, metric: str) -> Aggregate:
    """Return the function that computes a metric from sums: their ratio for `corpus`, else a mean over documents."""
    return lambda total, n: total[..., 0] / (total[..., 1] if metric == "corpus" else n)


def by_quantity(comparison: Comparison) -> dict[str, RunContrast]:
    return {contrast.quantity: contrast for contrast in comparison.contrasts}


Answer = tuple[float, Sequence[int]]  # em, token ids
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, example: ModuleType) -> Write:
    """Return a function that writes a quality run of the method `static` into a spool and returns its attempt id."""

    def run(
        exit_layer: int, answers: Mapping[str, Answer], statistics: Mapping[str, Any] | None = None, **options: Any
    ) -> str:
        method = example.Method("static", {"exit_layer": exit_layer})
        cell = example.cell_json(example.MODELS[0], example.TASKS[0], method, "quality", "full-depth")
        cell |= {name: value for name, value in options.items() if name != "metric_version"}
        cell["task"] |= {"metric_version": options.get("metric_version", "1")}
        cell["identity"] |= options
        cell["cell_id"] = content_id(cell["identity"])
        rows = [
            {
                "doc_key": key,
                "output_text": "",
                "output_ids": list(ids),
                "n_prompt": 1,
                "n_output": len(ids),
                "stop_reason": "eos",
                "scores": json.dumps({"em": em, **({"corpus": em} if statistics else {})}),
                "statistics": json.dumps({"corpus": statistics[key]} if statistics else {}),
            }
            for key, (em, ids) in answers.items()
        ]
        tables = {"samples": rows, "metrics": metrics(json.loads(rows[0]["scores"]), options)}
        return str(example.write_attempt(tmp_path / "spool", cell, tables))

    return run


def metrics(names: Iterable[str], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows of metrics on a scale of 0 to 100, except `corpus`, which has none."""
    return [
        {
            "metric": name,
            "metric_version": options.get("metric_version", "1"),
            "role": "task",
            "lower_is_better": False,
            "scale_low": None if name == "corpus" else 0.0,
            "scale_high": None if name == "corpus" else 100.0,
            "value": 0.0,
            "n": 1,
        }
        for name in names
    ]


@pytest.fixture
def opened(tmp_path: Path, example: ModuleType) -> Callable[[], Database]:
    """Return a function that ingests the written attempts and opens the database."""
    return lambda: open_database(example.ingested(tmp_path), read_only=False)


def test_metrics_are_those_of_the_runs_and_the_delta_is_paired(example_database: Path) -> None:
    with open_database(example_database) as database:
        contrasts = by_quantity(compare(database, FULL, STATIC, mean))
        stored = database.query(
            "SELECT method, metric, value FROM metric_values WHERE model = 'world-t5' AND task = 'squad' "
            "AND kind = 'quality' AND method IN ('full', 'static') AND metric IN ('f1', 'em', 'token_match')"
        ).to_pylist()
    values = {(row["method"], row["metric"]): row["value"] for row in stored}
    for metric in ("f1", "em"):
        contrast = contrasts[metric]
        assert (contrast.a, contrast.b) == pytest.approx((values["full", metric], values["static", metric]))
        assert contrast.estimate == pytest.approx(contrast.b - contrast.a)
        assert contrast.low <= contrast.estimate <= contrast.high
        assert contrast.p == 2 / 2**8  # all of eight documents are worse: no other exchange lies as far
        assert contrast.n == 8
    assert contrasts["equal_tokens"].estimate == pytest.approx(values["static", "token_match"])


def test_verdict_follows_metric_direction_and_holm_adjusted_p_value(example_database: Path, tmp_path: Path) -> None:
    shutil.copy(example_database, tmp_path / "exitbench.duckdb")
    with open_database(tmp_path / "exitbench.duckdb", read_only=False) as database:
        contrasts = by_quantity(compare(database, FULL, STATIC, mean))
        with database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE metric SET lower_is_better = true WHERE metric = 'f1'")
        errors = by_quantity(compare(database, FULL, STATIC, mean))
        family = by_quantity(compare(database, FULL, "world-t5/squad/calm-softmax:threshold=0.[36]", mean))
    assert contrasts["f1"].estimate == errors["f1"].estimate < 0
    assert (contrasts["f1"].verdict, contrasts["em"].verdict) == ("worse", "worse")
    assert (errors["f1"].verdict, errors["em"].verdict) == ("better", "worse")
    assert {contrasts[name].verdict for name in contrasts if name not in ("f1", "em")} == {None}
    assert {(contrast.p_holm <= 0.05, contrast.verdict) for contrast in family.values() if contrast.p is not None} == {
        (False, None)
    }


def test_run_compared_with_itself_shows_no_difference(example_database: Path) -> None:
    with open_database(example_database) as database:
        contrasts = by_quantity(compare(database, STATIC, STATIC, mean))
    assert (contrasts["f1"].estimate, contrasts["f1"].p) == (0, 1)
    # Eight documents: with more than 37% others, one would have been among them.
    assert (contrasts["f1"].low, contrasts["f1"].high) == pytest.approx((-36.94, 36.94), abs=0.01)
    assert {(contrasts[metric].detectable, contrasts[metric].how) for metric in ("f1", "em")} == {
        (None, "no document differs")
    }
    assert (
        contrasts["equal_tokens"].estimate,
        contrasts["equal_answers"].estimate,
        contrasts["tokens_per_answer"].estimate,
    ) == (
        1,
        1,
        1,
    )
    assert (contrasts["first_divergence"].estimate, contrasts["first_divergence"].how) == (None, "no answer differs")
    assert contrasts["speedup"].estimate == 1


def test_a_glob_of_several_runs_is_one_family(example_database: Path) -> None:
    with open_database(example_database) as database:
        comparison = compare(database, FULL, "world-t5/squad/*", mean)
    tested = [contrast for contrast in comparison.contrasts if contrast.p is not None]
    assert {contrast.run_b for contrast in tested} == {
        "world-t5/squad/oracle",
        "world-t5/squad/random",
        "world-t5/squad/static",
        *(f"world-t5/squad/calm-softmax:threshold={threshold}" for threshold in (0.3, 0.6, 0.9)),
    }
    assert [contrast.p_holm for contrast in tested] == holm([contrast.p for contrast in tested])
    assert max(contrast.p_holm / contrast.p for contrast in tested) > 1


def test_swapping_the_runs_negates_the_difference_and_inverts_the_speedup(example_database: Path) -> None:
    with open_database(example_database) as database:
        forward, backward = (by_quantity(compare(database, *pair, mean)) for pair in ((FULL, STATIC), (STATIC, FULL)))
    assert forward["f1"].estimate == -backward["f1"].estimate
    assert forward["f1"].p == backward["f1"].p
    assert forward["speedup"].estimate == pytest.approx(1 / backward["speedup"].estimate)


def test_speedup_is_relative_to_full_depth_of_the_same_session(example_database: Path) -> None:
    calm = "world-t5/squad/calm-softmax:threshold=0.3"
    with open_database(example_database) as database:
        against_full, against_static = (
            by_quantity(compare(database, a, calm, mean))["speedup"] for a in (FULL, STATIC)
        )
        stored = database.query(
            "SELECT method, value, ci_low, ci_high FROM metric_values WHERE model = 'world-t5' AND task = 'squad' "
            "AND metric = 'speedup' AND (method = 'static' OR (params ->> 'threshold')::DOUBLE = 0.3)"
        ).to_pylist()
    speedups = {row["method"]: row["value"] for row in stored}
    assert (against_full.a, against_full.b) == (1, pytest.approx(speedups["calm-softmax"]))
    assert against_full.estimate == pytest.approx(speedups["calm-softmax"])
    assert against_full.low < against_full.estimate < against_full.high
    assert against_static.estimate == pytest.approx(speedups["calm-softmax"] / speedups["static"])


def test_missing_speedup_is_explained_for_untimed_or_incomparable_runs(
    write: Write, opened: Callable[[], Database]
) -> None:
    a, b = write(1, {"x": (0, [1])}), write(2, {"x": (0, [1])})
    c = write(3, {"x": (0, [1])}, batch_size=8)
    with opened() as database:
        untimed, other = (by_quantity(compare(database, a, name, mean))["speedup"] for name in (b, c))
    assert (untimed.estimate, untimed.how) == (None, "world-t5/squad/static:exit_layer=1 was not timed")
    assert other.estimate is None
    assert "not comparable" in other.how


def test_answers_are_compared_token_by_token(write: Write, opened: Callable[[], Database]) -> None:
    a = write(1, {"x": (0, [1, 2, 3]), "y": (0, [1, 2]), "z": (100, [5])})
    b = write(2, {"z": (100, [5]), "y": (0, [1, 2, 9]), "x": (100, [7, 2, 3])})
    with opened() as database:
        contrasts = by_quantity(compare(database, a, b, mean))
    assert contrasts["equal_tokens"].estimate == pytest.approx((2 + 2 + 1) / 6)
    assert contrasts["equal_answers"].estimate == pytest.approx(1 / 3)
    assert (contrasts["first_divergence"].estimate, contrasts["first_divergence"].n) == ((1 + 3) / 2, 2)
    assert (contrasts["tokens_per_answer"].a, contrasts["tokens_per_answer"].b) == (2, pytest.approx(7 / 3))
    assert (contrasts["em"].estimate, contrasts["em"].how) == (pytest.approx(100 / 3), "McNemar, exact")


def test_corpus_metric_is_computed_from_summed_statistics(write: Write, opened: Callable[[], Database]) -> None:
    answers: dict[str, Answer] = {"x": (50, [1]), "y": (50, [1])}
    a = write(1, answers, {"x": [1, 2], "y": [3, 3]})
    b = write(2, answers, {"x": [2, 2], "y": [3, 10]})
    with opened() as database:
        contrast = by_quantity(compare(database, a, b, length_ratio))["corpus"]
    assert (contrast.a, contrast.b) == (4 / 5, 5 / 12)
    # Exchanged: x [2,2]+[3,3] against [1,2]+[3,10]; y likewise; both. Two of four lie as far as observed, or farther.
    gaps = [abs(5 / 12 - 4 / 5), abs(5 / 5 - 4 / 12)]
    assert contrast.p == sum(2 for gap in gaps if gap >= gaps[0]) / 4


def test_difference_in_a_metric_without_scale_has_an_interval_of_its_spread(
    write: Write, opened: Callable[[], Database]
) -> None:
    answers: dict[str, Answer] = {f"k{i}": (50, [1]) for i in range(8)}
    a = write(1, answers, {key: [20 + i, 1] for i, key in enumerate(answers)})
    b = write(2, answers, {key: [1500 + 40 * i, 1] for i, key in enumerate(answers)})
    with opened() as database:
        contrast = by_quantity(compare(database, a, b, length_ratio))["corpus"]
        same = by_quantity(compare(database, a, a, length_ratio))["corpus"]
    moved = np.array([1480 + 39 * i for i in range(8)])
    reach = 2.3646 * moved.std(ddof=1) / 8**0.5  # Student's t with 7 degrees of freedom
    assert contrast.estimate == pytest.approx(moved.mean())
    assert (contrast.low, contrast.high) == pytest.approx((moved.mean() - reach, moved.mean() + reach), abs=0.1)
    # Without a scale, nothing bounds documents that were not seen.
    assert (same.estimate, same.low, same.high) == (0, None, None)


def test_equal_binary_values_of_a_metric_without_scale_have_no_interval(
    write: Write, opened: Callable[[], Database]
) -> None:
    answers: dict[str, Answer] = {f"k{i}": (0, [1]) for i in range(8)}
    a, b = (write(layer, answers, {key: [0.0, 1.0] for key in answers}) for layer in (1, 2))
    with opened() as database:
        with database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE sample SET statistics = '{}'")
        contrasts = by_quantity(compare(database, a, b, mean))
    assert (contrasts["corpus"].estimate, contrasts["corpus"].low) == (0, None)
    assert (contrasts["em"].estimate, contrasts["em"].low) == (0, pytest.approx(-36.94, abs=0.01))


def test_values_that_are_no_metric_of_the_task_are_not_compared(write: Write, opened: Callable[[], Database]) -> None:
    a, b = (write(layer, {"x": (0, [1])}) for layer in (1, 2))
    with opened() as database:
        with database.engine.begin() as connection:
            connection.exec_driver_sql("""UPDATE sample SET scores = '{"em": 0, "note": 7}'""")
        assert "note" not in by_quantity(compare(database, a, b, mean))


def test_runs_on_different_documents_are_refused_and_the_documents_listed(
    write: Write, opened: Callable[[], Database]
) -> None:
    a = write(1, {f"k{i:02}": (0, [1]) for i in range(13)})
    b = write(2, {"k00": (0, [1]), "other": (0, [1])})
    with opened() as database, pytest.raises(UserError, match="not of the same documents") as error:
        compare(database, a, b, mean)
    assert "only in world-t5/squad/static:exit_layer=1 (12): k01, k02" in str(error.value)
    assert "k10, ..." in str(error.value)
    assert "only in world-t5/squad/static:exit_layer=2 (1): other" in str(error.value)


def test_differing_settings_are_reported_as_warnings(write: Write, opened: Callable[[], Database]) -> None:
    a = write(1, {"x": (0, [1])})
    b = write(2, {"x": (0, [1])}, batch_size=8, dtype="bfloat16", random_weights=True)
    with opened() as database:
        warnings = compare(database, a, b, mean).warnings
        assert compare(database, a, a, mean).warnings == ()
    assert [warning.split(" ")[0] for warning in warnings] == [
        "batch_size",
        "dtype",
        "random_weights",
        "world-t5/squad/static:exit_layer=2:",
    ]
    assert "1 (world-t5/squad/static:exit_layer=1) and 8" in warnings[0]


def rescored(database: Database, attempt_id: str, version: str, em: float) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql(
            f"INSERT INTO sample_rescore SELECT attempt_id, doc_key, '{version}', '{{\"em\": {em}}}', '{{}}', now() "
            f"FROM sample WHERE attempt_id = '{attempt_id}'"
        )
        connection.exec_driver_sql(
            f"INSERT INTO metric SELECT * REPLACE ('{version}' AS metric_version) FROM metric "
            f"WHERE attempt_id = '{attempt_id}' QUALIFY row_number() OVER (PARTITION BY metric) = 1"
        )


def test_scores_are_compared_at_the_latest_common_metric_version(write: Write, opened: Callable[[], Database]) -> None:
    a, b = write(1, {"x": (10, [1])}), write(2, {"x": (20, [1])}, metric_version="2")
    with opened() as database:
        with pytest.raises(UserError, match="different versions of the metrics") as error:
            compare(database, a, b, mean)
        assert "exit_layer=1: 1\n" in str(error.value) and "exitbench rescore" in str(error.value)
        rescored(database, a, "2", 30)
        contrast = by_quantity(compare(database, a, b, mean))["em"]
        assert (contrast.a, contrast.b) == (30, 20)
        rescored(database, a, "3", 40)
        assert by_quantity(compare(database, a, b, mean))["em"].a == 30  # b has no version 3
        rescored(database, b, "3", 50)
        contrast = by_quantity(compare(database, a, b, mean))["em"]
        assert (contrast.a, contrast.b) == (40, 50)


def test_answers_without_exported_token_ids_are_not_called_equal(write: Write, opened: Callable[[], Database]) -> None:
    a, b = write(1, {"x": (0, [1, 2])}), write(2, {"x": (0, [1, 3, 4])})
    with opened() as database:
        with database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE sample SET output_ids = []")
        contrasts = by_quantity(compare(database, a, b, mean))
    assert contrasts["equal_tokens"].estimate is None
    reason = "token ids are not stored: whole texts were scored, or an export omitted the ids"
    assert contrasts["equal_tokens"].how == reason
    assert "equal_answers" not in contrasts
    assert (contrasts["tokens_per_answer"].a, contrasts["tokens_per_answer"].b) == (2, 3)
