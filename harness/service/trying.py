"""Find out in a given time whether early exit is worth it for a model: `exitbench try`.

The stages are those of a tuning (`harness/afterwards/tuning.py`), with numbers of documents that fit the time. Gates
that cost more than they can save are left out. The printed answer includes a suggestion for the next step.
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
from exitbench.harness.afterwards.candidates import Candidate, DecoderCosts, find_candidates, unsearched_candidates
from exitbench.harness.afterwards.tuning import Tuning, choose, tunable_methods
from exitbench.harness.cells.cell import TimingSettings
from exitbench.harness.engine.checkpoints.encoder_loading import is_encoder
from exitbench.harness.engine.checkpoints.gguf_origin import name_in_results
from exitbench.harness.inspecting.encoders import inspect_classifier
from exitbench.harness.inspecting.inspection import TokenCost, inspect_folder
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
from exitbench.terminal import number_of, print_escaped, visible

FEWEST_DOCUMENTS: Final = 8
MOST_DOCUMENTS: Final = 400
BATCH_ROWS: Final = 8
"""Rows that are decoded together where nothing is timed."""
_SHORT_PILOT_S: Final = 3.0
_SHARES: Final = (2.0, 0.5)
"""Multiples of the allowed loss for candidates, fewer than a tuning's."""
_CANDIDATES: Final = 8
"""Candidates that the plan reckons with; more are decoded if the time allows."""
_PROBE_DECODES: Final = 3
"""Full depth and its probe, in units of decoding at full depth."""
_FINALISTS: Final = 3
_CHOOSING, _REPORTING, _TIMING = 0.45, 0.25, 0.25
"""Shares of the time; the rest is for loading the model."""
_ARMS: Final = 3
_STAGES: Final = 4
"""Stages after the pilot: probe, candidates, confirmation, timing."""
_PREDICTS_EARLY: Final = 0.9
"""Agreement at three quarters of the depth from which training exit heads is not the first thing to suggest."""

_CELL_SECONDS: Final = """
    SELECT epoch(max(a.ended_at - a.started_at)) AS seconds
    FROM attempt AS a WHERE list_contains(?, a.cell_id) AND a.status = 'ok'
"""
_NEAR_FLOOR: Final = """
    SELECT min(message) AS message FROM qc WHERE rule = 'near_floor' AND list_contains(?, cell_id)
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
        model: Key and value in ``[models.LABEL]``: ``path`` or ``recipe``.
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
        together_s: Seconds per document in batches of `BATCH_ROWS` documents.
        alone_s: Seconds per document in batches of one document, as in timing.
        stage_s: Seconds of a stage beyond its documents: planning, starting a process, loading the model.
        pilot_s: Seconds that the trial has taken so far.
        minutes: Time that the trial may take.
    """

    together_s: float
    alone_s: float
    stage_s: float
    pilot_s: float
    minutes: float

    def n_search_documents(self, decodes: int) -> int:
        """Return the number of documents for choosing a setting, if each is decoded `decodes` times.

        Every decode is assumed to take as long as full depth.
        """
        return int(_CHOOSING * self._seconds / (self.together_s * decodes))

    @property
    def n_report_documents(self) -> int:
        """Number of documents to report on, decoded by full depth, a static depth and the finalists (best settings)."""
        return int(_REPORTING * self._seconds / (self.together_s * (_FINALISTS + 2)))

    def timing(self, settings: int) -> TimingSettings:
        """Return how to time `settings` settings: the default, or fewer documents and rounds if there is less time."""
        usual = TimingSettings()
        decodes = int(_TIMING * self._seconds / (settings * _ARMS * 2 * self.alone_s))
        if decodes >= usual.documents * usual.least_rounds:
            return usual
        rounds = max(2, min(usual.least_rounds, decodes // FEWEST_DOCUMENTS))
        return replace(usual, documents=max(4, min(usual.documents, decodes // rounds)), max_rounds=rounds)

    def candidates(self, documents: int) -> int:
        """Return how many candidate settings there is time to decode on `documents` documents; at least three.

        The time for full depth and its probe is subtracted.
        """
        return max(3, int(_CHOOSING * self._seconds / (documents * self.together_s)) - _PROBE_DECODES)

    @property
    def _seconds(self) -> float:
        return max(60 * self.minutes - self.pilot_s - _STAGES * self.stage_s, 1.0)

    def require_enough(self, decodes: int) -> None:
        """Check that there is time for `FEWEST_DOCUMENTS` documents to choose a setting on, and as many to report on.

        Args:
            decodes: Number of times that a document to choose on is decoded.

        Raises:
            UserError: There is time for fewer; the message says how many minutes are needed.
        """
        fewest = min(self.n_search_documents(decodes), self.n_report_documents)
        if fewest < FEWEST_DOCUMENTS:
            per_choice = self.together_s * decodes / _CHOOSING
            needed = math.ceil((FEWEST_DOCUMENTS * per_choice + self.pilot_s + _STAGES * self.stage_s) / 60)
            raise UserError(
                f"--minutes {self.minutes:g}: the pilot took {self.pilot_s:.0f} s. A document takes "
                f"{self.together_s:.2g} s at full depth, and the start of each of {_STAGES} stages "
                f"{self.stage_s:.0f} s, so there is time for {fewest} documents to choose or "
                f"report on. Needed: {FEWEST_DOCUMENTS}, about --minutes {needed}."
            )


def try_model(options: TryOptions) -> bool:
    """Measure whether early exit is worth it for a model and a task; print a recommended setting and the next step.

    Returns:
        True if there is an answer; False if cells failed.

    Raises:
        UserError: The model cannot run, there are too few documents, or the time is too short.
        KeyboardInterrupt: Interrupted; finished cells are kept and the same command resumes.
    """
    subject = _classifier(options) if is_encoder(options.folder) else _decoder(options)
    for reason in subject.refused:
        print_escaped(f"  left out: {reason}")
    try:
        _try(options, subject)
    except StageFailed:
        return False
    return True


@dataclass(frozen=True)
class SearchResult:
    """Candidate settings to decode, and what the search for them says about the model.

    Attributes:
        candidates: Candidates, the most promising first.
        omissions: Why methods have no candidate, one sentence each.
        agreement: How well early blocks predict full depth's token, one sentence; None if it was not measured.
        floor: A warning if full depth itself hardly does the task; None otherwise.
        is_trainable: Whether to suggest training read-outs of early blocks first, if no setting is faster.
    """

    candidates: tuple[Candidate, ...]
    omissions: tuple[str, ...] = ()
    agreement: str | None = None
    floor: str | None = None
    is_trainable: bool = False


@dataclass(frozen=True)
class _Decoder:
    """Model that generates text, in a trial. Thresholds are searched by replay.

    A replay recomputes exits from a probe, the stored predictions of every block at full depth.
    """

    n_blocks: int
    methods: tuple[str, ...]
    refused: tuple[str, ...]
    costs: DecoderCosts
    has_exit_heads: bool
    decodes: int = _PROBE_DECODES + _CANDIDATES
    training: str = (
        "train exit heads on the frozen model, with which early blocks predict better, and try the result. "
        "docs/guide/own-model.md, section 5, has recipes; for a large vocabulary: `exitbench train smollm2-tuned-lens "
        "--start FOLDER --data-dir DIR`"
    )

    def search(self, tuning: Tuning, runs: Runs, run: RunOptions, most: int) -> SearchResult:
        """Run full depth and store every block's predictions (a probe); return up to `most` candidate settings.

        Every method's thresholds are searched by replay, which recomputes exits from the probe.
        """
        print_stage(f"2. Probing full depth on {number_of(tuning.documents, 'document')}")
        cells = run_stage(tuning.search(), runs, run)
        with open_database(runs.database) as database:
            place = f"{name_in_results(tuning.model.name, tuning.model.path)}/{tuning.searched.label}"
            search = find_candidates(database, place, self.methods, tuning.max_loss_percent, self.costs, _SHARES)
            agreement = _agreement(database, cells, self.n_blocks)
            floor = _floor(database, cells)
        allowed_match = 1 - tuning.max_loss_percent / 100
        ranked = sorted(search.candidates, key=lambda each: (each.token_match < allowed_match, each.token_blocks))
        return SearchResult(
            tuple(ranked[:most]),
            search.omissions,
            _agreement_sentence(agreement, self.n_blocks),
            floor,
            is_trainable=not self.has_exit_heads and max(agreement.values()) < _PREDICTS_EARLY,
        )


@dataclass(frozen=True)
class _Classifier:
    """Encoder that classifies texts, in a trial. A grid of thresholds is run without a search: texts are cheap."""

    n_blocks: int
    methods: tuple[str, ...]
    has_off_ramps: bool
    refused: tuple[str, ...] = ()
    training: str = (
        "train off-ramps, with which early blocks predict better, and try the result: `exitbench train minilm-mrpc "
        "--start FOLDER --data-dir DIR` does so for one task; docs/training.md has the others"
    )

    @property
    def decodes(self) -> int:
        """Number of times that each document for choosing a setting is run: at full depth and with every candidate."""
        return 1 + len(unsearched_candidates(self.methods, self.n_blocks))

    def search(self, tuning: Tuning, runs: Runs, run: RunOptions, most: int) -> SearchResult:
        """Return all settings of the grid as candidates. Nothing is run, and the arguments are not used."""
        candidates = unsearched_candidates(self.methods, self.n_blocks)
        print_stage(f"2. Candidates: every static depth, and a grid for each method, {len(candidates)} in all")
        return SearchResult(candidates, is_trainable=not self.has_off_ramps)


def _decoder(options: TryOptions) -> _Decoder:
    inspection = inspect_folder(options.folder)
    if inspection.lacks or inspection.work is None or inspection.shape is None:
        raise UserError("\n".join([f"{options.folder}: cannot be run.", *inspection.lacks]))
    costs, methods, refused = _costs(inspection.work)
    n_blocks = inspection.shape.decoder_blocks
    print_escaped(
        f"{number_of(n_blocks, 'block')}; reading the LM head costs as much as {costs.lm_head_blocks:.1f} blocks, so a "
        f"token that exits after half of them is {costs.speedup(n_blocks, n_blocks / 2):.2f}x as fast by bytes."
    )
    return _Decoder(n_blocks, methods, refused, costs, inspection.exit_heads is not None)


def _classifier(options: TryOptions) -> _Classifier:
    inspection = inspect_classifier(options.folder)
    if inspection.lacks or inspection.shape is None:
        raise UserError("\n".join([f"{options.folder}: cannot be run.", *inspection.lacks]))
    runnable = tuple(each.method for each in inspection.methods if each.why_not is None and not each.is_fitted)
    labels = inspection.shape.labels
    answers = "a number" if len(labels) == 1 else f"one of {', '.join(map(visible, labels))}"
    print_escaped(f"{number_of(inspection.shape.blocks, 'block')}; a classifier that answers {answers}.")
    return _Classifier(inspection.shape.blocks, runnable, inspection.shape.off_ramps is not None)


def _costs(work: TokenCost) -> tuple[DecoderCosts, tuple[str, ...], tuple[str, ...]]:
    """Return the costs of a model's gates, the names of methods to try, and a reason per method that cannot run."""
    by_name = {cost.method: cost for cost in work.methods}
    tunable = [name for name in tunable_methods() if name in by_name]
    usable = tuple(name for name in tunable if by_name[name].why_not is None)
    refused = tuple(f"{name}: {by_name[name].why_not}" for name in tunable if by_name[name].why_not is not None)
    gates = {name: by_name[name].bytes_share or 0.0 for name in usable}
    return DecoderCosts(work.head_weights / work.block_weights, gates), usable, refused


def _try(options: TryOptions, subject: _Decoder | _Classifier) -> None:
    began_s = time.monotonic()
    runs, methods = Runs(options.runs), subject.methods
    most = _available_documents(_tuning(options, methods, 1, 2 * MOST_DOCUMENTS), options.run.get("data_dir"))
    print_stage("1. Pilot: how long a document takes")
    pace = _pace(options, _tuning(options, methods, *most), runs, began_s)
    pace.require_enough(subject.decodes)
    planned = pace.n_search_documents(subject.decodes), pace.n_report_documents
    n_search_documents, n_report_documents = (min(pair) for pair in zip(planned, most, strict=True))
    tuning = _tuning(options, methods, n_search_documents, n_report_documents)
    run = _run_options(options, tuning)
    print_escaped(
        f"{number_of(n_search_documents, 'document')} to choose on, {n_report_documents} others to report on: at most "
        f"about {options.minutes:g} minutes."
    )
    result = subject.search(tuning, runs, run, pace.candidates(n_search_documents))
    candidates = result.candidates
    for reason in result.omissions:
        print_escaped(f"  left out: {reason}")
    agreement = result.agreement or ""
    if not candidates:
        print(f"\nUse full depth: no setting can be faster at a loss of {options.max_loss:g} %. {agreement}")
        _print_end(result.floor, _next_step(subject, result, None))
        return
    print_stage(f"3. Decoding {number_of(len(candidates), 'candidate')}")
    confirmed = decode_candidates(tuning.confirm(candidates), candidates, runs, run)
    choice = choose(tuning, confirmed)
    print_confirmed(tuning, choice)
    timed = [*choice.finalists, *([choice.depth] if choice.depth is not None else [])]
    if not timed:
        print(f"\nUse full depth: no candidate keeps the loss within {options.max_loss:g} %. {agreement}")
        _print_end(result.floor, _next_step(subject, result, None))
        return
    print_stage(f"4. Timing {number_of(len(timed), 'setting')} on {number_of(n_report_documents, 'other document')}")
    cells = run_stage(tuning.final(timed, pace.timing(len(timed))), runs, run)
    with open_database(runs.database) as database:
        text, cell_id = conclusion(database, cells, options.max_loss)
    print(f"\n{text}")
    if cell_id is None and agreement:
        print(agreement)
    _print_end(result.floor, _next_step(subject, result, cell_id))
    if cell_id is not None:
        write_suite(tuning, cell_id, runs, None)


def _tuning(options: TryOptions, methods: Sequence[str], n_search_documents: int, n_report_documents: int) -> Tuning:
    """Write the suite file of the trial, and return the tuning (search for the best setting) of its model and task.

    A setting is chosen on `n_search_documents`, and its results are reported on `n_report_documents` others.
    """
    path = options.runs / "tried" / f"{options.label}-{options.task_label}.toml"
    lines = [
        "schema = 1",
        f"name = {toml_value(f'try-{options.label}-{options.task_label}')}",
        "seed = 1",
        *toml_table("[defaults]", {"device": "auto", "batch_rows": BATCH_ROWS, "kinds": ["quality"]}),
        *toml_table(f"[models.{options.label}]", options.model),
        *toml_table(f"[tasks.{options.task_label}]", {**options.task, "limit": n_report_documents}),
        *toml_table("[[sweep]]", {"method": baseline_method().name}),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole_file(path, "\n".join(lines) + "\n")
    suite = load_suite(path)
    (model,), (task,) = suite.models, suite.tasks
    if task.data.task_object.output_type not in ("generate_until", "classification"):
        raise UserError(
            f"{task.location}: {options.task_label!r} scores given texts; `try` needs generated answers or labels."
        )
    return Tuning(suite, model, task, tuple(methods), options.max_loss, n_search_documents, _FINALISTS)


def _run_options(options: TryOptions, tuning: Tuning) -> RunOptions:
    return RunOptions(tuning.suite, options.runs, **options.run)


def _available_documents(trial: Tuning, data_dir: Path | None) -> tuple[int, int]:
    """Return the numbers of documents available to choose a setting on and to report on, up to `MOST_DOCUMENTS` each.

    Raises:
        UserError: There are too few documents.
    """
    n_documents = len(trial.task.data.load(data_dir))
    if trial.task.has_calibration_split:
        n_search_documents = len(
            trial.task.other_split("calibration", MOST_DOCUMENTS, "choosing a threshold").load(data_dir)
        )
        available = n_search_documents, min(n_documents, MOST_DOCUMENTS)
    else:
        available = n_documents // 2, n_documents // 2
    if min(available) < FEWEST_DOCUMENTS:
        raise UserError(
            f"{trial.task.data.origin}: {number_of(n_documents, 'document')}; at least {2 * FEWEST_DOCUMENTS} are "
            "needed: one half to choose a setting on, the other to report on."
        )
    return available


def _pace(options: TryOptions, pilot: Tuning, runs: Runs, began_s: float) -> Pace:
    """Return the speed of full depth, measured by a pilot or read from an earlier trial with the same time limit.

    The numbers of documents follow from the speed, so a trial that resumes must not measure it again. `began_s` is the
    trial's start by `time.monotonic`.
    """
    path = options.runs / "tried" / f"{options.label}-{options.task_label}.pace.json"
    if (earlier_pace := _kept_pace(path)) is not None and earlier_pace.minutes == options.minutes:
        return earlier_pace
    run = _run_options(options, pilot)
    documents = 2
    cell_s = _pilot_seconds(pilot, runs, run, documents, batch_rows=1, remarks=True)
    while cell_s < _SHORT_PILOT_S and documents < pilot.documents:  # a short cell consists mostly of its start
        documents = min(pilot.documents, math.ceil(documents * min(2 * _SHORT_PILOT_S / cell_s, 60)))
        cell_s = _pilot_seconds(pilot, runs, run, documents, batch_rows=1)
    alone_s = cell_s / documents
    documents = min(pilot.documents, max(documents, BATCH_ROWS))
    stage_began_s = time.monotonic()
    cell_s = _pilot_seconds(pilot, runs, run, documents, BATCH_ROWS)
    now_s = time.monotonic()
    pace = Pace(cell_s / documents, alone_s, now_s - stage_began_s - cell_s, now_s - began_s, options.minutes)
    write_whole_file(path, json.dumps(asdict(pace)) + "\n")
    return pace


def _pilot_seconds(
    pilot: Tuning, runs: Runs, run: RunOptions, documents: int, batch_rows: int, *, remarks: bool = False
) -> float:
    """Return the seconds of a full-depth cell with `documents` documents, in batches of `batch_rows`."""
    cells = run_stage(pilot.pilot(documents, batch_rows), runs, run, remarks=remarks)
    with open_database(runs.database) as database:
        (row,) = database.query(_CELL_SECONDS, [list(cells)]).to_pylist()
    return max(float(row["seconds"]), 1e-3)


def _kept_pace(path: Path) -> Pace | None:
    try:
        return Pace(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _floor(database: Database, cells: Mapping[str, str]) -> str | None:
    """Return a warning if no loss of quality can be detected in one of the cells, else None."""
    message: str | None = database.query(_NEAR_FLOOR, [list(cells)])["message"][0].as_py()
    if message is None:
        return None
    return f"{message[0].upper()}{message[1:]}. So nothing here says what early exit is worth."


def _agreement(database: Database, cells: Mapping[str, str], n_blocks: int) -> dict[int, float]:
    """Return the share of tokens for which a block predicts the token that full depth predicts, by block number.

    The blocks are those at half and three quarters of the depth.
    """
    blocks = sorted({max(1, n_blocks // 2), max(1, 3 * n_blocks // 4)})
    query = {block: {"block": block, "cells": list(cells)} for block in blocks}
    return {block: float(database.query(_AGREEMENT, query[block])["share"][0].as_py()) for block in blocks}


def _agreement_sentence(agreement: Mapping[int, float], n_blocks: int) -> str:
    shares = " and ".join(f"{share:.0%} after block {block}" for block, share in agreement.items())
    return f"The model's own LM head predicts full depth's token for {shares} of {n_blocks}."


def _print_end(floor: str | None, next_step: str) -> None:
    print("\n".join(filter(None, (floor, next_step))))


def _next_step(subject: _Decoder | _Classifier, result: SearchResult, cell_id: str | None) -> str:
    """Return a sentence that suggests what to do after the trial; `cell_id` is the recommended cell, if any."""
    if cell_id is not None:
        return "Next: run the suite below on all your documents."
    if result.is_trainable:
        return f"Next: {subject.training}."
    return "Next: allow more loss (--max-loss), or give it more time (--minutes)."
