"""Planning: the cells of a suite, and their states according to the spool."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exitbench.errors import UserError
from exitbench.harness.cells.cell import Kind
from exitbench.harness.cells.job import CellJob, WorkerSpec
from exitbench.harness.engine.checkpoints import digest as artifact
from exitbench.harness.engine.checkpoints.digest import describe_checkpoint
from exitbench.harness.planning.plan import Plan, PlannedCell, make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.running.environment import environment_and_hardware
from exitbench.results.spool.attempts import AttemptWriter

Writer = Callable[..., Path]
Planner = Callable[..., Plan]

SWEEPS = """\
[[sweep]]
method = "static"
grid = { exit_layer = [1, 2] }
kinds = ["timing", "quality"]

[[sweep]]
method = "oracle"
grid = { match = ["stable"] }
kinds = ["replay"]
"""


@pytest.fixture
def planner(write_suite: Writer, data_dir: Path, tmp_path: Path) -> Planner:
    """Return a function that plans a suite of the tiny checkpoint, given its sweeps."""

    def plan(sweeps: str = SWEEPS, **selection: Any) -> Plan:
        suite = load_suite(write_suite(sweeps))
        return make_plan(suite, tmp_path / "spool", tmp_path / "models", data_dir, **selection)

    return plan


def cells(plan: Plan) -> list[PlannedCell]:
    (group,) = plan.groups
    return list(group.cells)


def test_timing_on_few_documents_is_noted_in_the_plan(planner: Planner) -> None:
    few = planner('[[sweep]]\nmethod = "full"\nkinds = ["quality", "timing"]\n\n[timing]\ndocuments = 2\n')
    remark = few.remarks[-1]
    assert remark.startswith("Speed is timed on as few as 2 documents:")
    untimed = planner('[[sweep]]\nmethod = "full"\nkinds = ["quality"]\n\n[timing]\ndocuments = 2\n')
    assert untimed.remarks == few.remarks[:-1]


@pytest.mark.parametrize(("limit", "count"), [(None, "3 of 3 references"), (2, "2 of 2 references")])
def test_metrics_that_score_references_with_0_are_noted_in_the_plan(
    data_dir: Path, tmp_path: Path, checkpoint: Path, limit: int | None, count: str
) -> None:
    """A second plan, for which the documents are already described, repeats the remark."""
    (tmp_path / "t.toml").write_text(
        'schema = 1\nname = "t"\nprompt = "{q}"\ntarget = "a"\nmetrics = ["rougeL"]\n[fields]\nq = "q"\na = "a"\n'
    )
    (data_dir / "d.csv").write_text("q,a\n1,Москва\n2,東京\n3,Київ\n", encoding="utf-8")
    path = tmp_path / "suite.toml"
    path.write_text(
        f'schema = 1\nname = "s"\nseed = 1\n[models.m]\npath = "{checkpoint}"\n[tasks.own]\ntask = "t.toml"\n'
        'files = { data = "d.csv" }\n[[sweep]]\nmethod = "full"\nkinds = ["quality"]\n'
    )
    for _ in range(2):
        plan = make_plan(load_suite(path), tmp_path / "spool", tmp_path / "models", data_dir, limit=limit)
        (remark,) = plan.remarks
        assert remark == (
            f"Task 'own': rougeL of {count} is 0 even for the reference itself: rouge-score keeps only the letters a "
            "to z and the digits 0 to 9."
        )


def labels(plan: Plan) -> list[str]:
    return [planned.item.label for planned in cells(plan)]


def attempt(spool: Path, item: CellJob, status: str, reason: str | None = None) -> None:
    """Write the attempt that a worker would have written."""
    with AttemptWriter(spool, item.cell.to_json(), environment_and_hardware(1)) as writer:
        writer.finish(status, reason)


def test_full_depth_and_probe_cells_are_added_before_their_dependents(planner: Planner) -> None:
    plan = planner()
    assert labels(plan) == [
        "tiny/lines/full/quality",
        "tiny/lines/full/probe",
        "tiny/lines/static:exit_layer=1/quality",
        "tiny/lines/static:exit_layer=2/quality",
        "tiny/lines/oracle:match=stable/replay",
        "tiny/lines/static:exit_layer=1/timing",
        "tiny/lines/static:exit_layer=2/timing",
    ]
    full, probe, quality, _, replay, timing, _ = (planned.item.cell for planned in cells(plan))
    assert (full.full_depth_cell_id, full.depends_on) == (None, ())
    assert {c.full_depth_cell_id for c in (probe, quality, replay, timing)} == {full.cell_id}
    assert (quality.depends_on, replay.depends_on) == ((full.cell_id,), (probe.cell_id,))
    assert (probe.timing, timing.timing is None) == (None, False)


def test_cell_records_suite_method_model_task_and_generation(planner: Planner) -> None:
    cell = cells(planner())[2].item.cell
    assert (cell.suite, cell.method.params, cell.random_weights, cell.limited) == (
        "small",
        {"exit_layer": 1, "kv_policy": "state-copy"},
        True,
        False,
    )
    assert (cell.model.kind, cell.model.blocks, cell.model.encoder_blocks) == ("seq2seq", 2, 2)
    assert (cell.task.documents, cell.generation.max_new_tokens, cell.seed) == (4, 4, 7)


def test_explicit_default_parameter_does_not_change_the_ids(planner: Planner) -> None:
    stated = planner('[[sweep]]\nmethod = "static"\ngrid = { exit_layer = [1] }\nkinds = ["quality"]\n')
    implied = planner('[[sweep]]\nmethod = "static"\nkinds = ["quality"]\n')
    assert [c.item.cell.cell_id for c in cells(stated)] == [c.item.cell.cell_id for c in cells(implied)]


@pytest.mark.parametrize(
    ("only", "kinds", "kept"),
    [
        ("*static:exit_layer=2*", None, ["full/quality", "static:exit_layer=2/quality", "static:exit_layer=2/timing"]),
        ("*oracle*", None, ["full/quality", "full/probe", "oracle:match=stable/replay"]),
        (None, ("probe",), ["full/quality", "full/probe"]),
    ],
)
def test_selection_keeps_required_cells(
    planner: Planner, only: str | None, kinds: Sequence[Kind] | None, kept: list[str]
) -> None:
    assert labels(planner(only=only, kinds=kinds)) == [f"tiny/lines/{name}" for name in kept]


def test_selection_without_a_match_lists_existing_cells(planner: Planner) -> None:
    with pytest.raises(UserError, match=r"no cell matches --only 'nothing\*'.*\n  tiny/lines/full/quality"):
        planner(only="nothing*")


def test_limit_option_changes_ids_and_marks_cells_as_limited(planner: Planner) -> None:
    whole, limited = cells(planner())[0].item.cell, cells(planner(limit=3))[0].item.cell
    assert (limited.task.documents, limited.limited) == (3, True)
    assert limited.cell_id != whole.cell_id


def test_states_follow_the_latest_attempt(planner: Planner, tmp_path: Path) -> None:
    items = [planned.item for planned in cells(planner())]
    spool = tmp_path / "spool"
    attempt(spool, items[0], "failed", "first try")
    attempt(spool, items[0], "ok")
    attempt(spool, items[1], "oom", "no room")
    attempt(spool, items[2], "interrupted")
    plan = planner()
    assert [(c.state, c.why) for c in cells(plan)[:4]] == [
        ("done", ""),
        ("failed", "oom: no room"),
        ("new", "interrupted"),
        ("new", ""),
    ]
    assert {retry: len(plan.groups[0].to_run(retry)) for retry in ("none", "stale", "failed", "all")} == {
        "none": 5,
        "stale": 5,
        "failed": 6,
        "all": 7,
    }


def test_cell_with_changed_data_is_stale_with_the_reason(planner: Planner, tmp_path: Path, data_dir: Path) -> None:
    for planned in cells(planner()):
        attempt(tmp_path / "spool", planned.item, "ok")
    before = cells(planner())[0].item.cell.task.data_sha256
    (data_dir / "text.fr").write_text("un\ndeux\ntrois\nquatre\n")
    planned = cells(planner())[0]
    after = planned.item.cell.task.data_sha256
    assert planned.state == "stale"
    # The English side, and so every prompt, is what it was.
    assert planned.why == f"task.data_sha256: {before[:8]} -> {after[:8]}"


SEVERAL = """\
[[sweep]]
method = "calm-softmax"
grid = { threshold = [0.2, 0.4, 0.6, 0.8] }
kinds = ["quality"]
"""


def test_stale_reason_compares_each_setting_with_its_earlier_attempt(planner: Planner, tmp_path: Path) -> None:
    """This includes settings with list parameters (`levels`), which are tuples in a plan and lists in the spool."""
    for planned in cells(planner(SEVERAL)):
        attempt(tmp_path / "spool", planned.item, "ok")
    assert {planned.state for planned in cells(planner(SEVERAL))} == {"done"}
    suite = tmp_path / "small.toml"
    suite.write_text(suite.read_text().replace("seed = 7", "seed = 8"))
    plan = make_plan(load_suite(suite), tmp_path / "spool", tmp_path / "models", tmp_path / "data")
    assert [(planned.state, planned.why) for planned in cells(plan)] == [("stale", "seed: 7 -> 8")] * 5


def test_stale_reason_names_a_parameter_added_to_the_method(planner: Planner, tmp_path: Path) -> None:
    planned = cells(planner())[2]
    old = planned.item.cell
    params = {name: value for name, value in old.method.params.items() if name != "kv_policy"}
    before = replace(planned.item, cell=replace(old, method=replace(old.method, params=params)))
    attempt(tmp_path / "spool", before, "ok")
    again = cells(planner())[2]
    assert (again.state, again.why) == ("stale", "method.params.kv_policy: absent -> state-copy")


def test_another_parameter_value_is_new_and_not_stale(planner: Planner, tmp_path: Path) -> None:
    sweep = '[[sweep]]\nmethod = "static"\ngrid = {{ exit_layer = [{}] }}\nkinds = ["quality"]\n'
    attempt(tmp_path / "spool", cells(planner(sweep.format(1)))[1].item, "ok")
    assert cells(planner(sweep.format(2)))[1].state == "new"


def test_exit_layer_above_the_model_depth_is_refused_at_planning(planner: Planner, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"small\.toml:\d+: \[\[sweep\]\] method: static\.exit_layer = 4 .* between 1 and 2"
    ):
        planner('[[sweep]]\nmethod = "static"\ngrid = { exit_layer = [4] }\n')
    assert not (tmp_path / "spool").exists()


def test_missing_data_file_is_reported_with_the_suite_line(planner: Planner, data_dir: Path) -> None:
    (data_dir / "text.en").unlink()
    with pytest.raises(UserError, match=r"small\.toml:10: \[tasks\.lines\]: .*text\.en"):
        planner()


def test_untrained_recipe_is_planned_without_cell_ids(
    write_suite: Writer, checkpoint: Path, data_dir: Path, tmp_path: Path
) -> None:
    path = write_suite()
    path.write_text(path.read_text().replace(f'path = "{checkpoint}"', 'recipe = "multi30k-weighted"'))
    plan = make_plan(load_suite(path), tmp_path / "spool", tmp_path / "models", data_dir)
    (group,) = plan.groups
    assert (group.folder, group.cells, len(group.labels)) == (None, (), 3)
    assert [recipe.name for recipe in plan.untrained] == ["multi30k-weighted"]
    assert plan.states()["new"] == plan.to_run_count("none") == 3


def test_depth_is_checked_against_a_recipe_before_it_is_trained(
    write_suite: Writer, checkpoint: Path, data_dir: Path, tmp_path: Path
) -> None:
    path = write_suite('[[sweep]]\nmethod = "static"\ngrid = { exit_layer = [99] }\n')
    path.write_text(path.read_text().replace(f'path = "{checkpoint}"', 'recipe = "multi30k-weighted"'))
    with pytest.raises(UserError, match=r"static\.exit_layer = 99 is above the depth"):
        make_plan(load_suite(path), tmp_path / "spool", tmp_path / "models", data_dir)


def test_checkpoint_description_is_cached_until_a_file_changes(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint, folder)
    first = describe_checkpoint("a", folder)
    with monkeypatch.context() as unchanged:
        unchanged.setattr(artifact, "_inspect", None)  # not called
        assert describe_checkpoint("a", folder) == first
    weights = folder / "model.safetensors"
    status = weights.stat()
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))  # as before, as an archive may set them
    second = describe_checkpoint("a", folder)
    assert second.weights_sha256 != first.weights_sha256
    assert second.config_sha256 == first.config_sha256


@pytest.mark.parametrize(
    ("said", "changes"),
    [({"eos_token_id": 1}, False), ({"eos_token_id": [1, 5]}, True), ({"decoder_start_token_id": 3}, True)],
    ids=["the same", "another end", "another start"],
)
def test_only_start_and_end_token_ids_of_generation_config_change_its_digest(
    checkpoint: Path, tmp_path: Path, said: dict[str, Any], changes: bool
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint, folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    first = describe_checkpoint("a", folder)
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.5, **said}))
    second = describe_checkpoint("a", folder)
    assert (first.config_sha256 != second.config_sha256) == changes
    assert first.weights_sha256 == second.weights_sha256


@pytest.mark.parametrize("text", ["{", "[]"])
def test_invalid_generation_config_is_refused_by_name(checkpoint: Path, tmp_path: Path, text: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint, folder)
    (folder / "generation_config.json").write_text(text)
    with pytest.raises(UserError, match=r"generation_config\.json(, line 1)?: not"):
        describe_checkpoint("a", folder)


def test_worker_spec_round_trips_through_json(planner: Planner, tmp_path: Path) -> None:
    items = tuple(planned.item for planned in cells(planner(limit=2)))
    spec = WorkerSpec(items, tmp_path, None, tmp_path / "spool", "cpu", 2)
    assert WorkerSpec.from_json(spec.to_json()) == spec
    assert WorkerSpec.from_json(spec.to_json()).cells[0].data.files == (("en", "text.en"), ("fr", "text.fr"))


def test_a_checkpoint_without_a_tokenizer_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    for file in checkpoint.iterdir():
        if not file.name.startswith("tokenizer"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(UserError, match="no tokenizer files"):
        describe_checkpoint("a", tmp_path)


EVERY_KIND = """\
[[sweep]]
method = "full"
kinds = ["quality", "timing", "probe"]
record = ["sublayers"]

[[sweep]]
method = "calm-softmax"
grid = { head = ["pruned-fixed"], k_first = [8], k_min = [2] }
kinds = ["quality", "replay"]
"""


def ids_and_batch_rows(planner: Planner, defaults: str = "") -> dict[str, tuple[str, int | None]]:
    """Return the id and `batch_rows` of every cell, by its label without model and task."""
    plan = planner(f"{EVERY_KIND}\n[defaults]\n{defaults}\n")
    named = ((one.item.label.partition("/lines/")[2], one.item.cell) for one in cells(plan))
    return {label: (cell.cell_id, cell.batch_rows) for label, cell in named}


def test_batch_rows_apply_only_to_untimed_decoding_cells(planner: Planner) -> None:
    without, asked = ids_and_batch_rows(planner), ids_and_batch_rows(planner, "batch_rows = 8")
    assert {rows for _, rows in without.values()} == {None}
    assert {label.rpartition("/")[2] for label, (_, rows) in asked.items() if rows == 8} == {
        "quality",
        "probe",
        "scores",
    }
    unchanged = {label for label in asked if asked[label] == without[label]}
    assert unchanged == {"full/timing", "full:record=sublayers,documents=4/probe"}


def test_default_batch_rows_do_not_change_the_ids(planner: Planner) -> None:
    without = ids_and_batch_rows(planner)
    one, sixteen = ids_and_batch_rows(planner, "batch_rows = 1"), ids_and_batch_rows(planner, "batch_rows = 16")
    assert {label for label in one if one[label] == without[label]} >= {"full/quality", "full/timing"}
    assert one["full/probe"] != without["full/probe"] and sixteen["full/probe"] == without["full/probe"]


def test_task_batch_rows_override_the_default(write_suite: Writer, data_dir: Path, tmp_path: Path) -> None:
    path = write_suite(EVERY_KIND + "\n[defaults]\nbatch_rows = 8\n")
    path.write_text(path.read_text().replace("max_new_tokens = 4", "max_new_tokens = 4, batch_rows = 2"))
    plan = make_plan(load_suite(path), tmp_path / "spool", tmp_path / "models", data_dir)
    assert {one.item.cell.rows for one in cells(plan) if one.item.cell.kind == "quality"} == {2}
