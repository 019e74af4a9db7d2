"""Cells required by fitted methods, replays and calibrations: their order, and what their ids depend on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exitbench.errors import UserError
from exitbench.harness.cells.cell import Cell, Kind
from exitbench.harness.planning.expand import CellTemplate, expand, select
from exitbench.harness.planning.plan import make_plan
from exitbench.harness.planning.suite import load_suite

Writer = Callable[..., Path]
Planner = Callable[[str], dict[str, Cell]]

FILES = 'files = { en = "text.en", fr = "text.fr" }'
TRAIN = 'train_files = { en = "train.en", fr = "train.fr" }'
CALIBRATION = 'calibration_files = { en = "calibration.en", fr = "calibration.fr" }'

CLASSIFIER = """\
[[sweep]]
method = "calm-classifier"
query = { threshold = [0.3, 0.7] }
kinds = ["timing", "replay", "quality"]
"""
MARGIN = '[[sweep]]\nmethod = "calm-softmax"\nquery = { threshold = [0.3] }\nkinds = ["replay"]\n'
CALIBRATED = """\
[[calibration]]
method = "calm-classifier"
levels = [0.9, 0.5]
delta = 0.1
epsilon = 0.05
"""


@pytest.fixture
def whole_suite(write_suite: Writer) -> Writer:
    """Return a function that writes a suite whose task has files for every split."""

    def write(*texts: str) -> Path:
        path = write_suite(*texts)
        path.write_text(path.read_text().replace(FILES, f"{FILES}, {TRAIN}, {CALIBRATION}"))
        return path

    return write


@pytest.fixture
def split_data(data_dir: Path) -> Path:
    """Return a folder with parallel text for every split, each with different words."""
    for split in ("train", "calibration"):
        for language in ("en", "fr"):
            (data_dir / f"{split}.{language}").write_text("".join(f"{split} {n} {language}\n" for n in range(3)))
    return data_dir


@pytest.fixture
def planner(whole_suite: Writer, split_data: Path, tmp_path: Path) -> Planner:
    """Return a function that plans a suite and returns its cells by label, without the label's model and task."""

    def plan(*texts: str) -> dict[str, Cell]:
        suite = load_suite(whole_suite(*texts))
        (group,) = make_plan(suite, tmp_path / "spool", tmp_path / "models", split_data).groups
        return {planned.item.label.removeprefix("tiny/lines/"): planned.item.cell for planned in group.cells}

    return plan


@pytest.fixture
def drafted(whole_suite: Writer) -> Callable[..., list[CellTemplate]]:
    def draft(*texts: str) -> list[CellTemplate]:
        return expand(load_suite(whole_suite(*texts)))

    return draft


def names(drafts: list[CellTemplate]) -> list[str]:
    return [draft.label.removeprefix("tiny/lines/") for draft in drafts]


def test_method_objects_are_created_once_per_suite_point(whole_suite: Writer) -> None:
    suite = load_suite(whole_suite(CLASSIFIER, CALIBRATED))
    points = [*suite.sweeps[0].points, *suite.calibrations[0].points]
    kinds = ("timing", "quality", "replay", "calibration")
    drafts = [draft for draft in expand(suite) if draft.kind in kinds and draft.method.name == "calm-classifier"]
    assert len(drafts) > len(points)
    assert {id(draft.method) for draft in drafts} == {id(point.method) for point in points}


def test_required_cells_come_first_and_timing_cells_last(drafted: Callable[..., list[CellTemplate]]) -> None:
    assert names(drafted(CLASSIFIER, CALIBRATED)) == [
        "full/quality",
        "calm-classifier/fit",
        "full/probe",
        "calm-classifier/scores",
        "calm-classifier:threshold=0.3/quality",
        "calm-classifier:threshold=0.7/quality",
        "calm-classifier:threshold=0.3/replay",
        "calm-classifier:threshold=0.7/replay",
        "calm-classifier:textual,delta=0.1,epsilon=0.05,hoeffding-bentkus,levels=0.9;0.5,documents=100/calibration",
        "calm-classifier:threshold=0.3/timing",
        "calm-classifier:threshold=0.7/timing",
    ]


def test_timed_tasks_limits_the_timing_cells_of_a_sweep(whole_suite: Writer) -> None:
    path = whole_suite('[[sweep]]\nmethod = "static"\ntimed_tasks = ["lines"]\n')
    (task,) = [line for line in path.read_text().splitlines() if line.startswith("lines = ")]
    path.write_text(path.read_text().replace(task, f"{task}\n{task.replace('lines = ', 'others = ', 1)}"))
    own = [draft for draft in expand(load_suite(str(path))) if draft.method.name == "static"]
    assert sorted((draft.task.label, draft.kind) for draft in own) == [
        ("lines", "quality"),
        ("lines", "timing"),
        ("others", "quality"),
    ]


def test_model_tasks_key_limits_the_tasks_of_a_model(write_suite: Writer) -> None:
    path = write_suite()
    text = path.read_text()
    model = text[text.index("[models.tiny]") : text.index("[tasks]")]
    (task,) = (line for line in text.splitlines() if line.startswith("lines = "))
    narrow = model.replace("[models.tiny]", '[models.narrow]\ntasks = ["verses"]')
    text = text.replace(model, model + narrow).replace(task, f"{task}\n{task.replace('lines', 'verses')}")
    path.write_text(text)
    quality = [d.label for d in expand(load_suite(path)) if d.method.name == "static" and d.kind == "quality"]
    assert quality == ["tiny/lines/static/quality", "tiny/verses/static/quality", "narrow/verses/static/quality"]

    path.write_text(text.replace('["verses"]', '["verse"]'))
    with pytest.raises(UserError, match=r"\[models\.narrow\] tasks: .*Did you mean 'verses'"):
        load_suite(path)
    path.write_text(text + 'models = ["narrow"]\ntasks = ["lines"]\n')
    with pytest.raises(UserError, match=r"none of its models runs one of its tasks \(lines\).*narrow: verses"):
        load_suite(path)


def test_replay_scored_from_the_probe_needs_no_scores_cell(drafted: Callable[..., list[CellTemplate]]) -> None:
    assert names(drafted(MARGIN)) == ["full/quality", "full/probe", "calm-softmax:threshold=0.3/replay"]


def test_pruned_head_needs_a_scores_cell_but_no_fit(drafted: Callable[..., list[CellTemplate]]) -> None:
    pruned = MARGIN.replace("query", 'grid = { head = ["pruned-fixed"] }\nquery')
    assert names(drafted(pruned)) == [
        "full/quality",
        "full/probe",
        "calm-softmax:head=pruned-fixed/scores",
        "calm-softmax:head=pruned-fixed,threshold=0.3/replay",
    ]


def test_cells_depend_on_their_fit_probe_and_scores(planner: Planner) -> None:
    cells = planner(CLASSIFIER + CALIBRATED)
    full, fit, probe, scores = (
        cells[name].cell_id for name in ("full/quality", "calm-classifier/fit", "full/probe", "calm-classifier/scores")
    )
    assert cells["calm-classifier/fit"].depends_on == ()
    assert cells["calm-classifier/scores"].depends_on == (probe, fit)
    assert cells["calm-classifier:threshold=0.3/quality"].depends_on == (full, fit)
    assert cells["calm-classifier:threshold=0.3/replay"].depends_on == (probe, scores, fit)
    assert cells["calm-classifier:threshold=0.3/timing"].depends_on == (fit,)
    (calibration,) = (cell for cell in cells.values() if cell.kind == "calibration")
    assert calibration.depends_on == (fit,)
    assert (calibration.task.split, cells["calm-classifier/fit"].task.split) == ("calibration", "train")
    assert calibration.calibration is not None
    assert calibration.calibration.held_out_sha256 == cells["full/quality"].task.data_sha256


def test_threshold_does_not_change_the_fit_and_scores_ids(planner: Planner) -> None:
    before, after = planner(CLASSIFIER), planner(CLASSIFIER.replace("0.3, 0.7", "0.1"))
    for shared in ("calm-classifier/fit", "calm-classifier/scores"):
        assert before[shared].cell_id == after[shared].cell_id
    assert "threshold" not in before["calm-classifier/fit"].method.params


def test_each_classifier_network_has_its_fit_and_scores_cells(planner: Planner) -> None:
    cells = planner(CLASSIFIER.replace("query", 'grid = { network = ["linear", "mlp"] }\nquery'))
    assert [name for name in cells if name.endswith(("fit", "scores"))] == [
        "calm-classifier/fit",
        "calm-classifier:network=mlp/fit",
        "calm-classifier/scores",
        "calm-classifier:network=mlp/scores",
    ]
    linear, mlp = (cells[f"calm-classifier:network={n},threshold=0.3/quality"].fit_cell_id for n in ("linear", "mlp"))
    assert (linear, mlp) == (cells["calm-classifier/fit"].cell_id, cells["calm-classifier:network=mlp/fit"].cell_id)


def test_epsilon_rule_adds_one_fit_for_all_values_of_epsilon(planner: Planner) -> None:
    fitted = MARGIN.replace("threshold = [0.3]", 'rule = ["epsilon"], epsilon = [0.9, 0.95]')
    cells = planner(fitted)
    (fit,) = (cell for cell in cells.values() if cell.kind == "fit")
    replays = [cell for cell in cells.values() if cell.kind == "replay"]
    assert {cell.method.params["epsilon"] for cell in replays} == {0.9, 0.95}
    assert {cell.fit_cell_id for cell in replays} == {fit.cell_id}
    assert fit.method.params["epsilon"] == 0.0, "fits of earlier versions, for one value, have other ids"


def test_epsilon_rule_on_a_fitted_gate_does_not_change_its_scores_cell(planner: Planner) -> None:
    cells = planner(CLASSIFIER.replace("threshold = [0.3, 0.7]", 'rule = ["constant", "epsilon"]'))
    assert len([cell for cell in cells.values() if cell.kind == "fit"]) == 2
    (scores,) = (cell for cell in cells.values() if cell.kind == "scores")
    assert scores.fit_cell_id == cells["calm-classifier/fit"].cell_id
    assert {cell.scores_cell_id for cell in cells.values() if cell.kind == "replay"} == {scores.cell_id}


def test_other_training_documents_change_the_fit_and_its_dependents(planner: Planner, split_data: Path) -> None:
    before = planner(CLASSIFIER + MARGIN)
    (split_data / "train.fr").write_text("un\ndeux\ntrois\n")
    after = planner(CLASSIFIER + MARGIN)
    changed = {name for name, cell in before.items() if cell.cell_id != after[name].cell_id}
    assert changed == {name for name in before if name.startswith("calm-classifier")}
    assert len(changed) == 8


def test_other_calibration_documents_change_only_the_calibration(planner: Planner, split_data: Path) -> None:
    before = planner(CLASSIFIER + CALIBRATED)
    (split_data / "calibration.fr").write_text("un\ndeux\ntrois\n")
    after = planner(CLASSIFIER + CALIBRATED)
    assert {cell.kind for name, cell in before.items() if cell.cell_id != after[name].cell_id} == {"calibration"}


@pytest.mark.parametrize(
    ("only", "kinds", "kept"),
    [
        ("*threshold=0.3/quality", None, ["full/quality", "fit", "threshold=0.3/quality"]),
        (
            "*threshold=0.3*",
            ("replay",),
            ["full/quality", "fit", "full/probe", "scores", "threshold=0.3/replay"],
        ),
        (None, ("fit",), ["fit"]),
        (None, ("calibration",), ["fit", "hoeffding-bentkus,levels=0.9;0.5,documents=100/calibration"]),
    ],
)
def test_selection_keeps_required_fits_and_scores(
    drafted: Callable[..., list[CellTemplate]], only: str | None, kinds: tuple[Kind, ...] | None, kept: list[str]
) -> None:
    result = names(select(drafted(CLASSIFIER, CALIBRATED), only, kinds))
    assert len(result) == len(kept)
    assert all(name.endswith(end) for name, end in zip(result, kept, strict=True))


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        (CLASSIFIER, "method 'calm-classifier', which is fitted on the train split, needs train_files"),
        (MARGIN + CALIBRATED.replace("calm-classifier", "calm-softmax"), "a calibration needs calibration_files"),
    ],
)
def test_local_data_without_files_for_a_split_is_named_with_task_and_key(
    write_suite: Writer, text: str, needs: str
) -> None:
    path = write_suite(text)
    with pytest.raises(UserError) as caught:
        expand(load_suite(path))
    assert str(caught.value) == f"{path}:10: [tasks.lines]: {needs}, in the form of 'files'."


@pytest.mark.parametrize("kind", ["replay", "scores"])
def test_self_speculation_cannot_be_replayed_and_free_can(
    drafted: Callable[..., list[CellTemplate]], kind: str
) -> None:
    with pytest.raises(UserError, match=rf"'self-speculation' verifies .* a {kind} .* allowed kinds: quality, timing"):
        drafted(f'[[sweep]]\nmethod = "self-speculation"\nkinds = ["{kind}"]\n')
    unverified = '[[sweep]]\nmethod = "free"\nkinds = ["replay"]\n'
    assert names(drafted(unverified)) == ["full/quality", "full/probe", "free/replay"]


def test_fit_and_calibration_document_limits_come_from_the_suite(drafted: Callable[..., list[CellTemplate]]) -> None:
    limits = {
        draft.kind: draft.data.limit
        for draft in drafted(CLASSIFIER, CALIBRATED, "documents = 7\n[fit]\ndocuments = 9\n")
    }
    assert (limits["fit"], limits["calibration"], limits["quality"]) == (9, 7, None)


def test_limit_option_applies_to_measured_but_not_fitting_documents(whole_suite: Writer) -> None:
    limits: dict[str, Any] = {d.kind: d.data.limit for d in expand(load_suite(whole_suite(CLASSIFIER)), limit=2)}
    assert (limits["fit"], limits["quality"], limits["scores"]) == (256, 2, 2)
