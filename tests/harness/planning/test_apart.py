"""Methods are not fitted or calibrated on the documents that measure them: shared documents are refused or left out.

Hub data is read by the `datasets` library from local folders with the hub's layout.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import datasets
import pyarrow.parquet as pq
import pytest

from exitbench.errors import UserError
from exitbench.harness.cells.job import CellJob, DataRequest, WorkerSpec
from exitbench.harness.cli import main as cli
from exitbench.harness.planning.plan import make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.running import worker
from exitbench.results.spool.attempts import latest_status

Writer = Callable[..., Path]
Planner = Callable[..., dict[str, CellJob]]
WriteLines = Callable[[str, Sequence[str]], None]

FITTED = '[[sweep]]\nmethod = "calm-classifier"\nkinds = ["quality"]\n'
CALIBRATED = '[[calibration]]\nmethod = "{}"\nlevels = [0.9]\ndelta = 0.1\nepsilon = 0.05\n'
MARGIN, CLASSIFIER = (CALIBRATED.format(method) for method in ("calm-softmax", "calm-classifier"))
TASK = 'lines = { task = "wmt-en-fr", source = "local", files = { en = "text.en", fr = "text.fr" }, max_new_tokens = 4'


def local(train: str = "", calibration: str = "", *more: str) -> str:
    """Return the suite's line for its task, with local files for fitting and calibration."""
    named = [("train_files", train), ("calibration_files", calibration)]
    files = (f'{key} = {{ en = "{name}.en", fr = "{name}.fr" }}' for key, name in named if name)
    return ", ".join([TASK, *files, *more]) + " }"


def hub(*keys: str) -> str:
    return ", ".join(['lines = { task = "samsum", source = "hub", max_new_tokens = 4', *keys]) + " }"


@pytest.fixture
def suite(write_suite: Writer) -> Writer:
    """Return a function that writes a suite for the tiny checkpoint with the given task."""

    def write(task: str, *texts: str) -> Path:
        path = write_suite(*texts)
        before, after = path.read_text().split("[tasks]\n")
        path.write_text("\n".join([f"{before}[tasks]", task, *after.split("\n")[1:]]))
        return path

    return write


@pytest.fixture
def planner(suite: Writer, data_dir: Path, tmp_path: Path) -> Planner:
    """Return a function that plans a suite and returns one cell of each kind."""

    def plan(task: str, *texts: str, limit: int | None = None) -> dict[str, CellJob]:
        path = suite(task, *texts)
        planned = make_plan(load_suite(path), tmp_path / "spool", tmp_path / "models", data_dir, limit=limit)
        return {cell.item.cell.kind: cell.item for group in planned.groups for cell in group.cells}

    return plan


@pytest.fixture
def write_lines(data_dir: Path) -> WriteLines:
    """Return a function that writes lines of English and, as their French translation, the same lines in capitals."""

    def write(name: str, lines: Sequence[str]) -> None:
        (data_dir / f"{name}.en").write_text("".join(f"{line}\n" for line in lines))
        (data_dir / f"{name}.fr").write_text("".join(f"{line.upper()}\n" for line in lines))

    write("train", ["one", "two", "three"])
    write("calibration", ["four", "five"])
    return write


SHARING = ["an old man", "the girl reads", "a red car", "a blue car"]
"""Texts for fitting. The second and third are the third and fourth measured texts."""


@pytest.mark.parametrize(
    ("task", "sweeps", "says"),
    [
        (local("text"), FITTED, "4 of the 4 documents of text.en and text.fr, on which methods are fitted, "),
        (local("", "text"), MARGIN, "4 of the 4 documents of text.en and text.fr, on which methods are calibrated, "),
        (local("text", "text"), CLASSIFIER, "4 of the 4 documents of text.en and text.fr, on which methods are fitted"),
        (local("train", "train"), CLASSIFIER, "3 of the 3 documents of train.en and train.fr, on which methods are ca"),
        (
            'lines = { task = "wmt-en-fr", split = "calibration", limit = 300 }',
            MARGIN,
            "100 of the 100 documents of split 'calibration', on which methods are calibrated, have prompts of documen",
        ),
    ],
    ids=["fitted", "calibrated", "all three", "calibrated on what is fitted on", "generated"],
)
@pytest.mark.usefixtures("write_lines")
def test_documents_shared_between_fit_calibration_and_measurement_are_refused(
    planner: Planner, task: str, sweeps: str, says: str
) -> None:
    with pytest.raises(UserError) as caught:
        planner(task, sweeps)
    assert f"small.toml:10: [tasks.lines]: {says}" in str(caught.value)


def test_overlap_message_lists_the_shared_documents(
    suite: Writer,
    data_dir: Path,
    tmp_path: Path,
    write_lines: WriteLines,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Documents with the same prompt are shared, even if their line numbers, keys or references differ."""
    write_lines("calibration", SHARING)
    path = suite(local("", "calibration"), MARGIN)
    arguments = ["plan", str(path), "--data-dir", str(data_dir), "--runs", str(tmp_path / "runs")]
    assert cli.main(arguments) == 2
    documents = DataRequest("wmt-en-fr", "local", "", (("en", "calibration.en"), ("fr", "calibration.fr")))
    keys = [document.key for document in documents.load(data_dir)]
    assert capsys.readouterr().err.splitlines() == [
        f"exitbench: {path}:10: [tasks.lines]: 2 of the 4 documents of calibration.en and calibration.fr, on which "
        "methods are calibrated, have prompts of documents of text.en and text.fr, on which methods are measured:",
        f"  {keys[1]}  translate English to French: the girl reads",
        f"  {keys[2]}  translate English to French: a red car",
        "Choose another calibration_files, or say drop_shared = true, which leaves such documents out of what is "
        "fitted or calibrated on, and counts them.",
    ]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "task",
    [local("train", "calibration"), 'lines = { task = "wmt-en-fr" }'],
    ids=["files", "generated"],
)
@pytest.mark.usefixtures("write_lines")
def test_disjoint_documents_are_planned(planner: Planner, task: str) -> None:
    assert set(planner(task, FITTED, CLASSIFIER)) == {"quality", "fit", "calibration"}


def test_drop_shared_omits_and_counts_shared_documents(
    planner: Planner,
    write_lines: WriteLines,
    data_dir: Path,
    checkpoint: Path,
    tmp_path: Path,
) -> None:
    """Calibrations also leave out the documents that the method is fitted on."""
    write_lines("train", SHARING)
    write_lines("calibration", ["a blue car", "two men sing", "nobody", "somebody"])
    planned = planner(local("train", "calibration", "drop_shared = true"), FITTED, CLASSIFIER)
    left = {kind: [document.fields["en"] for document in planned[kind].data.load(data_dir)] for kind in planned}
    assert left["fit"] == ["an old man", "a blue car"]
    assert left["calibration"] == ["nobody", "somebody"]
    assert len(left["quality"]) == 4
    assert {kind: item.cell.task.documents for kind, item in planned.items()} == {
        kind: len(documents) for kind, documents in left.items()
    }
    items = tuple(planned[kind] for kind in ("fit", "calibration"))
    spec = WorkerSpec(items, checkpoint, data_dir, tmp_path / "spool", "cpu", 1)
    assert worker.run(WorkerSpec.from_json(spec.to_json()), lambda event: None) == 0
    statuses = latest_status(tmp_path / "spool")
    for item in items:
        rows = pq.read_table(statuses[item.cell.cell_id].path / "metrics.parquet").to_pylist()
        assert [row["value"] for row in rows if row["metric"] == "documents_shared"] == [2]


def test_drop_shared_keeps_the_document_limit_and_ids_without_overlap(
    planner: Planner, write_lines: WriteLines, data_dir: Path
) -> None:
    sweeps = (FITTED, "[fit]\ndocuments = 2\n")
    plain = planner(local("train"), *sweeps)
    dropping = planner(local("train", "", "drop_shared = true"), *sweeps)
    assert dropping["fit"].cell.cell_id == plain["fit"].cell.cell_id
    write_lines("train", [*SHARING, "one", "two"])
    shared = planner(local("train", "", "drop_shared = true"), *sweeps)
    assert shared["fit"].cell.task.documents == 2
    assert planner(local("train", "", "drop_shared = true"), *sweeps, limit=1)["fit"].cell == shared["fit"].cell


@pytest.mark.usefixtures("write_lines")
def test_drop_shared_that_leaves_no_document_is_refused(planner: Planner) -> None:
    with pytest.raises(UserError, match=r"\[tasks\.lines\]: wmt-en-fr: all 4 documents of text\.en and text\.fr have"):
        planner(local("text", "", "drop_shared = true"), FITTED)


@pytest.fixture
def hub_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set of the hub with two splits; one dialogue of `train` is in `validation`, too."""
    folder = tmp_path / "knkarthick" / "samsum"
    folder.mkdir(parents=True)
    for split, dialogues in (("train", ["A: a", "A: b", "A: c", "A: shared"]), ("validation", ["A: shared", "A: d"])):
        rows = [{"id": f"{split}{n}", "dialogue": text, "summary": text} for n, text in enumerate(dialogues)]
        datasets.Dataset.from_list(rows).to_parquet(folder / f"{split}.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


VALIDATION = 'split = "validation"'


@pytest.mark.parametrize(
    ("keys", "sweeps", "says"),
    [
        (
            (VALIDATION,),
            MARGIN,
            "a calibration needs calibration_split, since data sets of the hub have no split of th",
        ),
        (
            (VALIDATION, 'calibration_split = "dev"'),
            MARGIN,
            "split 'dev': Unknown split \"dev\". Should be one of ['tr",
        ),
        ((), FITTED, "split 'test': Unknown split \"test\". Should be one of ['train', 'validation']"),
        ((VALIDATION,), FITTED, "1 of the 4 documents of split 'train', on which methods are fitted, have prompts of"),
        ((VALIDATION, 'train_split = "train[3:]"'), FITTED, "1 of the 1 documents of split 'train[3:]', on which"),
        (
            (VALIDATION, 'train_split = "train[:2]"', 'calibration_split = "train[1:3]"'),
            CLASSIFIER,
            "1 of the 2 documents of split 'train[1:3]', on which methods are calibrated, have prompts of documents",
        ),
    ],
    ids=["none named", "unknown", "unknown test", "shared", "shared part", "shared with the fit"],
)
@pytest.mark.usefixtures("hub_data")
def test_missing_or_overlapping_hub_splits_are_refused(
    planner: Planner, keys: tuple[str, ...], sweeps: str, says: str
) -> None:
    with pytest.raises(UserError) as caught:
        planner(hub(*keys), sweeps)
    assert "small.toml:10: [tasks.lines]: " in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.usefixtures("hub_data")
def test_hub_splits_are_selected_by_name(planner: Planner) -> None:
    planned = planner(
        hub(VALIDATION, 'train_split = "train[:2]"', 'calibration_split = "train[2:3]"'), FITTED, CLASSIFIER
    )
    dialogues = {
        kind: [document.fields["dialogue"] for document in item.data.load(None)] for kind, item in planned.items()
    }
    assert dialogues == {"quality": ["A: shared", "A: d"], "fit": ["A: a", "A: b"], "calibration": ["A: c"]}
    assert planned["calibration"].cell.task.split == "train[2:3]"
    dropping = planner(hub(VALIDATION, 'calibration_split = "train"', "drop_shared = true"), FITTED, MARGIN)
    assert [dropping[kind].cell.task.documents for kind in ("fit", "calibration")] == [3, 3]


@pytest.mark.usefixtures("hub_data")
def test_auto_source_uses_local_files_or_else_the_hub(suite: Writer, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(exist_ok=True)

    def planned(source: str, *keys: str, hub: bool = False) -> tuple[str, str]:
        line = f'lines = {{ task = "samsum", source = "{source}", max_new_tokens = 4, {", ".join(keys)} }}'
        plan = make_plan(load_suite(suite(line)), tmp_path / "spool", tmp_path / "models", data, hub=hub)
        cell = plan.groups[0].cells[0].item.cell
        return cell.task.source, cell.cell_id

    files = 'files = { data = "val.json" }'
    with pytest.raises(UserError, match=r'source: "auto", but val\.json is not below --data-dir .*, or --hub\.'):
        planned("auto", VALIDATION, files)
    assert planned("auto", VALIDATION, files, hub=True) == planned("hub", VALIDATION)
    (data / "val.json").write_text(json.dumps([{"id": "1", "dialogue": "A: local", "summary": "local"}]))
    assert planned("auto", VALIDATION, files, hub=True) == planned("local", VALIDATION, files)


@pytest.mark.parametrize("key", ["train_split", "calibration_split"])
def test_split_names_are_refused_without_a_hub_source(suite: Writer, key: str) -> None:
    with pytest.raises(UserError, match=rf'small\.toml:10: .*{key}: goes with source = "hub" or "auto" only'):
        load_suite(suite(local("", "", f'{key} = "train"')))
