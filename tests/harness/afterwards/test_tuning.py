"""Choosing a setting: which candidates and finalists are kept, and how many documents a guarantee needs."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from exitbench.errors import UserError
from exitbench.harness.afterwards.candidates import Candidate
from exitbench.harness.afterwards.tuning import Tuning, choose, tunable_methods, why_not_certified
from exitbench.harness.planning.entries.task import read_task
from exitbench.harness.planning.suite import Point, load_suite
from exitbench.harness.reading.toml import TomlTable
from exitbench.methods.registry import get_method
from exitbench.results.database.connection import open_database
from exitbench.results.statistics.risk_control import documents_needed


@pytest.fixture(scope="module")
def tuning() -> Tuning:
    suite = load_suite("builtin")
    return Tuning(suite, suite.models[0], suite.task("squad"), ("calm-softmax", "max-prob"), 1.0, documents=100)


def decoded(method: str, parameter: str, value: float, **row: Any) -> tuple[Candidate, dict[str, Any]]:
    point = Point(((parameter, value),), get_method(method).from_params({parameter: value}))
    default = {"full_value": 80.0, "gain": 0.0, "ideal_speedup_bytes": 2.0, "mean_blocks_run": 3.0}
    return Candidate(point, 3.0, 0.99, 3.0), {**default, "loss_high_percent": None, **row}


def names(candidates: tuple[Candidate, ...]) -> list[str]:
    return [one.point.label for one in candidates]


def test_finalists_are_the_fastest_setting_per_method_within_the_loss_bound(tuning: Tuning) -> None:
    choice = choose(
        tuning,
        [
            decoded("calm-softmax", "threshold", 0.3, loss_high_percent=3.0, ideal_speedup_bytes=4.0),
            decoded("calm-softmax", "threshold", 0.5, loss_high_percent=0.9, ideal_speedup_bytes=2.5),
            decoded("calm-softmax", "threshold", 0.9, loss_high_percent=0.1, ideal_speedup_bytes=1.5),
            decoded("max-prob", "threshold", 0.5, loss_high_percent=1.0, ideal_speedup_bytes=3.0),
            decoded("static", "exit_layer", 4, loss_high_percent=0.5, ideal_speedup_bytes=1.8),
            decoded("static", "exit_layer", 6, loss_high_percent=0.2, ideal_speedup_bytes=1.2),
        ],
    )
    assert choice.is_shown
    assert names(choice.finalists) == ["max-prob:threshold=0.5", "calm-softmax:threshold=0.5"]
    assert choice.depth is not None and names((choice.depth,)) == ["static:exit_layer=4"]


def test_without_a_proven_setting_the_safest_observed_one_becomes_finalist(tuning: Tuning) -> None:
    choice = choose(
        tuning,
        [
            decoded("calm-softmax", "threshold", 0.5, gain=-0.5, loss_high_percent=4.0, ideal_speedup_bytes=3.0),
            decoded("calm-softmax", "threshold", 0.9, gain=-0.7, loss_high_percent=2.0, ideal_speedup_bytes=1.5),
            decoded("max-prob", "threshold", 0.9, gain=-0.81, loss_high_percent=1.1),  # 1 % of 80 is 0.8
            decoded("static", "exit_layer", 6, gain=0.0, loss_high_percent=0.5),
        ],
    )
    assert not choice.is_shown
    assert names(choice.finalists) == ["calm-softmax:threshold=0.9"]
    assert choice.depth is not None


def test_number_of_finalists_is_limited(tuning: Tuning) -> None:
    results = [
        decoded(name, "threshold", 0.5, loss_high_percent=0.0) for name in ("calm-softmax", "max-prob", "entropy")
    ]
    assert len(choose(dataclasses.replace(tuning, finalists=2), results).finalists) == 2


def test_result_without_a_loss_bound_is_never_proven(tuning: Tuning) -> None:
    choice = choose(tuning, [decoded("max-prob", "threshold", 0.5, gain=0.0)])
    assert (choice.is_shown, len(choice.finalists)) == (False, 1)


def test_methods_that_need_training_are_not_tuned_by_default() -> None:
    quick = tunable_methods()
    assert {"calm-softmax", "max-prob", "entropy"} <= set(quick)
    assert not {"calm-classifier", "heads", "static", "full", "self-speculation"} & set(quick)


def test_search_documents_are_disjoint_from_reported_and_calibration_documents(tuning: Tuning) -> None:
    promised = dataclasses.replace(tuning, epsilon=0.1, documents=20)
    (entry,) = promised.certify([decoded("max-prob", "threshold", 0.5)[0]], [], full_share=0.8).calibrations
    task = tuning.task
    reported = {task.data.task_object.likeness(one) for one in task.data.load(None)}
    searched, tested = promised.searched.data.load(None), task.other_split("calibration", 20, "a test").load(None)
    assert entry.documents == len(searched) == len(tested) == 20
    likeness = task.data.task_object.likeness
    assert not {likeness(one) for one in searched} & {likeness(one) for one in tested}
    assert not {likeness(one) for one in searched} & reported


def test_task_without_another_split_is_searched_on_documents_beyond_its_limit(tuning: Tuning, tmp_path: Path) -> None:
    records = [{"id": str(number), "text": f"word {number}", "answer": "word"} for number in range(30)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "own.toml").write_text(
        'schema = 1\nname = "own"\nprompt = "{text}"\ntarget = "answer"\nmetrics = ["f1"]\nmax_new_tokens = 4\n'
        '[fields]\ntext = "text"\nanswer = "answer"\n'
    )
    table = {"task": str(tmp_path / "own.toml"), "files": {"data": "data.jsonl"}, "limit": 10}
    task = read_task("own", TomlTable(tmp_path / "suite.toml", "", ("tasks", "own"), table))
    own = dataclasses.replace(tuning, task=task, documents=15)
    reported, searched = ({one.key for one in data.load(tmp_path)} for data in (task.data, own.searched.data))
    assert (len(reported), len(searched), reported & searched) == (10, 15, set())
    unlimited = dataclasses.replace(task, data=dataclasses.replace(task.data, limit=None))
    with pytest.raises(UserError, match="choosing a threshold needs calibration_files"):
        dataclasses.replace(own, task=unlimited).searched  # noqa: B018 - a property


def test_lm_eval_task_without_calibration_split_is_searched_on_documents_beyond_its_limit(tuning: Tuning) -> None:
    table = {"task": "lm-eval:hellaswag", "limit": 10}
    task = read_task("hellaswag", TomlTable(Path("suite.toml"), "", ("tasks", "hellaswag"), table))
    assert dataclasses.replace(tuning, task=task).searched.data.apart_from == (task.data,)
    table["calibration_split"] = "train[:100]"
    task = read_task("hellaswag", TomlTable(Path("suite.toml"), "", ("tasks", "hellaswag"), table))
    assert dataclasses.replace(tuning, task=task).searched.data.split == "train[:100]"


def test_error_probability_is_divided_among_the_finalists(tuning: Tuning) -> None:
    promised = dataclasses.replace(tuning, epsilon=0.1)
    finalists = [decoded(name, "threshold", 0.5)[0] for name in ("max-prob", "calm-softmax")]
    others = [decoded("max-prob", "threshold", level)[0] for level in (0.2, 0.9)]
    first, second = promised.certify(finalists, [*finalists, *others], full_share=0.8).calibrations
    assert first.settings.epsilon == second.settings.epsilon == 0.05
    assert first.settings.delta == pytest.approx(0.008)
    assert first.settings.levels == (0.9, 0.5, 0.2)


@pytest.mark.parametrize(("documents", "enough"), [(338, False), (339, True)])
def test_too_few_documents_for_the_guarantee_are_refused_before_running(
    tuning: Tuning, documents: int, enough: bool
) -> None:
    promised = dataclasses.replace(tuning, epsilon=0.1, documents=documents)
    if enough:
        promised.require_enough_documents()
        return
    with pytest.raises(UserError, match="takes 339 documents or more"):
        promised.require_enough_documents()


def test_relative_loss_on_a_lower_score_needs_more_documents(tuning: Tuning) -> None:
    promised = dataclasses.replace(tuning, epsilon=0.1, documents=400)
    promised.require_enough_documents()
    assert promised.points_of(promised.share_of(80.0)) == pytest.approx(0.8)
    with pytest.raises(UserError, match="takes 424 documents or more"):
        promised.require_enough_documents(promised.share_of(80.0))


def test_certified_metric_is_a_per_document_metric(tuning: Tuning) -> None:
    translating = dataclasses.replace(tuning, task=tuning.suite.task("wmt-en-fr"))
    assert (tuning.certified_metric, translating.certified_metric) == ("f1", "chrf")


def test_failed_calibration_reports_its_loss_and_the_documents_needed(example_database: Path) -> None:
    with open_database(example_database) as database:
        (failed,) = database.query(
            "SELECT * FROM calibrations WHERE NOT passed AND NOT random_weights ORDER BY cell_id LIMIT 1"
        ).to_pylist()
        (line,) = why_not_certified(database, [failed["cell_id"]])
    needed = documents_needed(failed["mean_loss"], failed["delta"], failed["epsilon"])
    assert line.startswith(f"{failed['method']} at {failed['threshold']:g} lost {100 * failed['mean_loss']:.2g} % of ")
    assert f"on {failed['n']:,} documents, where {100 * failed['delta']:.2g} % may be lost: " in line
    if needed is None:
        assert line.endswith("no number of documents shows a loss that is not kept.")
    else:
        assert line.endswith(f"to show that takes about {needed:,} documents at this loss.")
