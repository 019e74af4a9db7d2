"""Find out in a given time whether early exit is worth it for a model: `exitbench try`.

The stages are those of a tuning (`harness/afterwards/tuning.py`), with numbers of documents that fit the time. Gates
that cost more than they can save are left out, and the answer ends with the next step.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.harness.afterwards.candidates import DecoderCosts, find_candidates
from exitbench.harness.afterwards.tuning import Tuning, choose, tunable_methods
from exitbench.harness.cells.cell import TimingSettings
from exitbench.harness.engine.checkpoints.gguf_origin import name_in_results
from exitbench.harness.inspecting.inspection import Inspection, TokenCost, inspect_folder
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.service.folders import Runs
from exitbench.harness.service.options import RunOptions
from exitbench.harness.service.tuning import (
    StageFailed,
    decode_candidates,
    print_confirmed,
    print_stage,
    run_stage,
    write_suite,
)
from exitbench.methods.registry import baseline_method
from exitbench.reports.tables.text import conclusion
from exitbench.results.database.connection import Database, open_database
from exitbench.results.files.atomic import write_whole_file
from exitbench.results.files.formats import toml_table, toml_value
from exitbench.terminal import number_of, tell, visible

FEWEST_DOCUMENTS: Final = 8
MOST_DOCUMENTS: Final = 400
BATCH_ROWS: Final = 8
"""Rows that are decoded together where nothing is timed."""
_SHORT_PILOT_S: Final = 3.0
_SHARES: Final = (2.0, 0.5)
"""Multiples of the allowed loss for candidates, fewer than a tuning's."""
_CANDIDATES: Final = 8
"""Candidates that the plan reckons with; more are decoded if the time allows."""
_FINALISTS: Final = 3
_CHOOSING, _REPORTING, _TIMING = 0.45, 0.25, 0.25
"""Shares of the time; the rest is for loading the model."""
_ARMS: Final = 3
_STAGES: Final = 6
"""Stages of a trial, with up to three of the pilot."""
_PREDICTS_EARLY: Final = 0.9
"""Agreement at three quarters of the depth from which training exit heads is not the first thing to suggest."""
_FLOOR_PERCENT: Final = 5.0
"""Below this share of its scale, full depth's quality says that the model does not do the task."""

_CELL_SECONDS: Final = """
    SELECT epoch(max(a.ended_at - a.started_at)) AS seconds
    FROM attempt AS a WHERE list_contains(?, a.cell_id) AND a.status = 'ok'
"""
_FULL_DEPTH: Final = """
    SELECT metric, value, n FROM frontier WHERE list_contains(?, cell_id) AND method = ? AND value IS NOT NULL
"""
_AGREEMENT: Final = """
    SELECT avg((top1_id[$block] = full_token_id)::INTEGER) AS share FROM probe_token
    WHERE attempt_id IN (SELECT attempt_id FROM attempt WHERE list_contains($cells, cell_id) AND status = 'ok')
"""


@dataclass(frozen=True)
class TryOptions:
    """Options of a trial.

    Attributes:
        label: Label of the model in results.
        model: The line of ``[models.LABEL]``: ``path`` or ``recipe``.
        folder: Folder of the checkpoint.
        task: Values of ``[tasks.LABEL]``; without ``limit``.
        task_label: Label of the task.
        minutes: Time that the trial may take.
        max_loss: Maximum loss of quality, in percent of full depth's.
        runs: Folder of all run data.
        run: Other options of a run (`RunOptions`): threads, hub, data_dir.
    """

    label: str
    model: Mapping[str, Any]
    folder: Path
    task: Mapping[str, Any]
    task_label: str
    minutes: float = 10.0
    max_loss: float = 5.0
    runs: Path = Path("runs")
    run: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pace:
    """Speed of full depth on this machine, and the time that a trial may take.

    Attributes:
        together_s: Seconds per document in batches of `BATCH_ROWS` rows.
        alone_s: Seconds per document one row at a time, as timed.
        stage_s: Seconds before the first document of a stage: starting a process and loading the model.
        minutes: Time that the trial may take.
    """

    together_s: float
    alone_s: float
    stage_s: float
    minutes: float

    @property
    def searched(self) -> int:
        """Documents to choose on: a probe costs about as much as two decodes, a candidate less than one."""
        return int(_CHOOSING * self._seconds / (self.together_s * (3 + _CANDIDATES)))

    @property
    def reported(self) -> int:
        """Documents to report on, decoded by the finalists, a static depth and full depth."""
        return int(_REPORTING * self._seconds / (self.together_s * (_FINALISTS + 2)))

    def timing(self, settings: int) -> TimingSettings:
        """Return how long to time each of `settings` settings: as usual, or with fewer documents and rounds."""
        usual = TimingSettings()
        decodes = int(_TIMING * self._seconds / (settings * _ARMS * 2 * self.alone_s))
        if decodes >= usual.documents * usual.least_rounds:
            return usual
        rounds = max(2, min(usual.least_rounds, decodes // FEWEST_DOCUMENTS))
        return replace(usual, documents=max(4, min(usual.documents, decodes // rounds)), max_rounds=rounds)

    def candidates(self, documents: int) -> int:
        """Return how many candidates can be decoded on these documents after a probe, at least three."""
        return max(3, int(_CHOOSING * self._seconds / (documents * self.together_s)) - 3)

    @property
    def _seconds(self) -> float:
        return max(60 * self.minutes - _STAGES * self.stage_s, 1.0)

    def require_enough(self) -> None:
        """Check that enough documents fit.

        Raises:
            UserError: Too few; says how many minutes are needed.
        """
        fewest = min(self.searched, self.reported)
        if fewest < FEWEST_DOCUMENTS:
            per_choice = self.together_s * (3 + _CANDIDATES) / _CHOOSING
            needed = math.ceil((FEWEST_DOCUMENTS * per_choice + _STAGES * self.stage_s) / 60)
            raise UserError(
                f"--minutes {self.minutes:g}: a document takes {self.together_s:.1f} s at full depth, so there is time "
                f"for {fewest} to choose or report on. Needed: {FEWEST_DOCUMENTS}, about --minutes {needed}."
            )


def try_model(options: TryOptions) -> bool:
    """Recommend a setting or full depth for a model and a task, with the reason and the next step.

    Returns:
        True if there is an answer; False if cells failed.

    Raises:
        UserError: The model cannot run, there are too few documents, or the time is too short.
        KeyboardInterrupt: Interrupted; finished cells are kept and the same command resumes.
    """
    inspection = inspect_folder(options.folder)
    if inspection.lacks or inspection.work is None or inspection.shape is None:
        raise UserError("\n".join([f"{options.folder}: cannot be run.", *inspection.lacks]))
    costs, methods, refused = _costs(inspection.work)
    _print_costs(inspection.shape.decoder_blocks, costs)
    for reason in refused:
        tell(f"  left out: {reason}")
    try:
        _try(options, inspection, costs, methods)
    except StageFailed:
        return False
    return True


def _costs(work: TokenCost) -> tuple[DecoderCosts, tuple[str, ...], list[str]]:
    """Return the costs of the model's gates, the methods to try, and why others cannot run."""
    by_name = {cost.method: cost for cost in work.methods}
    tunable = [name for name in tunable_methods() if name in by_name]
    usable = tuple(name for name in tunable if by_name[name].why_not is None)
    refused = [f"{name}: {by_name[name].why_not}" for name in tunable if by_name[name].why_not is not None]
    gates = {name: by_name[name].bytes_share or 0.0 for name in usable}
    return DecoderCosts(work.head_weights / work.block_weights, gates), usable, refused


def _print_costs(n_blocks: int, costs: DecoderCosts) -> None:
    tell(
        f"{number_of(n_blocks, 'block')}; reading the LM head costs as much as {costs.lm_head_blocks:.1f} blocks, so a "
        f"token that exits after half of them is {costs.speedup(n_blocks, n_blocks / 2):.2f}x as fast by bytes."
    )


def _try(options: TryOptions, inspection: Inspection, costs: DecoderCosts, methods: Sequence[str]) -> None:
    assert inspection.shape is not None
    n_blocks = inspection.shape.decoder_blocks
    runs = Runs(options.runs)
    most = _available_documents(_tuning(options, methods, 1, 2 * MOST_DOCUMENTS), options.run.get("data_dir"))
    print_stage("1. Pilot: how long a document takes")
    pace = _pace(options, _tuning(options, methods, *most), runs)
    pace.require_enough()
    searched, reported = (min(pair) for pair in zip((pace.searched, pace.reported), most, strict=True))
    tuning = _tuning(options, methods, searched, reported)
    run = _run_options(options, tuning)
    tell(
        f"{number_of(searched, 'document')} to choose on, {reported} others to report on: at most about "
        f"{options.minutes:g} minutes."
    )
    print_stage(f"2. Probing full depth on {number_of(searched, 'document')}")
    cells = run_stage(tuning.search(), runs, run)
    with open_database(runs.database) as database:
        place = f"{name_in_results(tuning.model.name, tuning.model.path)}/{tuning.searched.label}"
        search = find_candidates(database, place, methods, options.max_loss, costs, _SHARES)
        floor, agreement = _floor(database, cells, tuning), _agreement(database, cells, n_blocks)
    why = _agreement_sentence(agreement, n_blocks)
    can_train = inspection.exit_heads is None and max(agreement.values()) < _PREDICTS_EARLY
    allowed_match = 1 - options.max_loss / 100
    ranked = sorted(search.candidates, key=lambda setting: (setting.token_match < allowed_match, setting.token_blocks))
    candidates = ranked[: pace.candidates(searched)]
    for reason in search.omissions:
        tell(f"  left out: {reason}")
    if not candidates:
        print(f"\nUse full depth: no setting can be faster at a loss of {options.max_loss:g} %. {why}")
        _print_end(floor, _next_step(can_train, None))
        return
    print_stage(f"3. Decoding {number_of(len(candidates), 'candidate')}")
    choice = choose(tuning, decode_candidates(tuning.confirm(candidates), candidates, runs, run))
    print_confirmed(tuning, choice)
    timed = [*choice.finalists, *([choice.depth] if choice.depth is not None else [])]
    if not timed:
        print(f"\nUse full depth: no candidate keeps the loss within {options.max_loss:g} %. {why}")
        _print_end(floor, _next_step(can_train, None))
        return
    print_stage(f"4. Timing {number_of(len(timed), 'setting')} on {number_of(reported, 'other document')}")
    cells = run_stage(tuning.final(timed, pace.timing(len(timed))), runs, run)
    with open_database(runs.database) as database:
        text, cell_id = conclusion(database, cells, options.max_loss)
    print(f"\n{text}")
    if cell_id is None:
        print(why)
    _print_end(floor, _next_step(can_train, cell_id))
    if cell_id is not None:
        write_suite(tuning, cell_id, runs, None)


def _tuning(options: TryOptions, methods: Sequence[str], searched: int, reported: int) -> Tuning:
    """Write the suite of the trial, and return the tuning of its model and task."""
    path = options.runs / "tried" / f"{options.label}-{options.task_label}.toml"
    lines = [
        "schema = 1",
        f"name = {toml_value(f'try-{options.label}-{options.task_label}')}",
        "seed = 1",
        *toml_table("[defaults]", {"device": "auto", "batch_rows": BATCH_ROWS, "kinds": ["quality"]}),
        *toml_table(f"[models.{options.label}]", options.model),
        *toml_table(f"[tasks.{options.task_label}]", {**options.task, "limit": reported}),
        *toml_table("[[sweep]]", {"method": baseline_method().name}),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole_file(path, "\n".join(lines) + "\n")
    suite = load_suite(path)
    (model,), (task,) = suite.models, suite.tasks
    if not task.work.generates:
        raise UserError(f"{task.location}: {options.task_label!r} scores given texts; `try` needs generated answers.")
    return Tuning(suite, model, task, tuple(methods), options.max_loss, searched, _FINALISTS)


def _run_options(options: TryOptions, tuning: Tuning) -> RunOptions:
    return RunOptions(tuning.suite, options.runs, **options.run)


def _available_documents(trial: Tuning, data_dir: Path | None) -> tuple[int, int]:
    """Return how many documents there are to choose on and to report on, up to `MOST_DOCUMENTS` each.

    Raises:
        UserError: There are too few.
    """
    n_documents = len(trial.task.data.load(data_dir))
    if trial.task.has_other_split("calibration"):
        searched = len(trial.task.other_split("calibration", MOST_DOCUMENTS, "choosing a threshold").load(data_dir))
        available = searched, min(n_documents, MOST_DOCUMENTS)
    else:
        available = n_documents // 2, n_documents // 2
    if min(available) < FEWEST_DOCUMENTS:
        raise UserError(
            f"{trial.task.data.place}: {number_of(n_documents, 'document')}; at least {2 * FEWEST_DOCUMENTS} are "
            "needed: one half to choose a setting on, the other to report on."
        )
    return available


def _pace(options: TryOptions, pilot: Tuning, runs: Runs) -> Pace:
    """Return the speed measured by the pilot, or by the pilot of an earlier, interrupted trial of the same length.

    Numbers of documents follow from it, so a trial that goes on must not measure it again.
    """
    path = options.runs / "tried" / f"{options.label}-{options.task_label}.pace.json"
    if (earlier_pace := _kept_pace(path)) is not None and earlier_pace.minutes == options.minutes:
        return earlier_pace
    run = _run_options(options, pilot)
    began_s = time.monotonic()
    alone_s = _document_seconds(pilot, runs, run, documents=2, batch_rows=1)
    stage_s = max(0.0, time.monotonic() - began_s - 2 * alone_s)
    few = min(pilot.documents, 2 * BATCH_ROWS)
    together_s = _document_seconds(pilot, runs, run, documents=few, batch_rows=BATCH_ROWS)
    if few * together_s < _SHORT_PILOT_S and few < pilot.documents:  # mostly the start of a cell, so measure more
        documents = min(pilot.documents, 8 * few)
        together_s = _document_seconds(pilot, runs, run, documents, BATCH_ROWS)
    pace = Pace(together_s, alone_s, stage_s, options.minutes)
    write_whole_file(path, json.dumps(asdict(pace)) + "\n")
    return pace


def _document_seconds(pilot: Tuning, runs: Runs, run: RunOptions, documents: int, batch_rows: int) -> float:
    cells = run_stage(pilot.pilot(documents, batch_rows), runs, run)
    with open_database(runs.database) as database:
        (row,) = database.query(_CELL_SECONDS, [list(cells)]).to_pylist()
    return max(float(row["seconds"]), 1e-3) / documents


def _kept_pace(path: Path) -> Pace | None:
    try:
        return Pace(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _floor(database: Database, cells: Mapping[str, str], tuning: Tuning) -> str | None:
    """Return a warning if full depth itself hardly does the task."""
    rows = database.query(_FULL_DEPTH, [list(cells), baseline_method().name]).to_pylist()
    for row in rows:
        bounds = tuning.task.data.task_object.bounds(row["metric"])
        if bounds is not None and row["value"] < bounds[0] + _FLOOR_PERCENT / 100 * (bounds[1] - bounds[0]):
            return (
                f"Full depth itself reaches {row['value']:.1f} {visible(row['metric'])} on {row['n']} documents: the "
                "model does not do this task, so nothing here says what early exit is worth. Check the prompts with "
                f"`exitbench show-prompts {tuning.task.label} --suite {tuning.suite.path}`."
            )
    return None


def _agreement(database: Database, cells: Mapping[str, str], n_blocks: int) -> dict[int, float]:
    """Return the share of full depth's tokens that blocks at half and three quarters of the depth predict."""
    blocks = sorted({max(1, n_blocks // 2), max(1, 3 * n_blocks // 4)})
    query = {block: {"block": block, "cells": list(cells)} for block in blocks}
    return {block: float(database.query(_AGREEMENT, query[block])["share"][0].as_py()) for block in blocks}


def _agreement_sentence(agreement: Mapping[int, float], n_blocks: int) -> str:
    shares = " and ".join(f"{share:.0%} after block {block}" for block, share in agreement.items())
    return f"The model's own LM head predicts full depth's token for {shares} of {n_blocks}."


def _print_end(floor: str | None, next_step: str) -> None:
    print("\n".join(filter(None, (floor, next_step))))


def _next_step(can_train: bool, cell_id: str | None) -> str:
    """Return what to do after the trial."""
    if cell_id is not None:
        return "Next: run the suite below on all your documents."
    if not can_train:
        return "Next: allow more loss (--max-loss), or give it more time (--minutes)."
    return (
        "Next: train exit heads on the frozen model, with which early blocks predict better, and try the result. "
        "docs/guide/own-model.md, section 5, has recipes; for a large vocabulary: `exitbench train smollm2-tuned-lens "
        "--start FOLDER --data-dir DIR`."
    )
