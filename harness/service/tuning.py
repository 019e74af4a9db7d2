"""Tuning: recommend one method and threshold for a model and a task, and write a suite that repeats the measurement."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from exitbench.errors import UserError, suggestion
from exitbench.harness.afterwards.candidates import Candidate, find_candidates
from exitbench.harness.afterwards.tuning import (
    Choice,
    Row,
    Tuning,
    certified,
    choose,
    full_score,
    require_tunable,
    results_of,
    tunable_methods,
    why_not_certified,
)
from exitbench.harness.engine.checkpoints.gguf_origin import name_in_results
from exitbench.harness.planning.suite import Suite, load_suite
from exitbench.harness.service.folders import Runs
from exitbench.harness.service.options import RunOptions
from exitbench.harness.service.outcome import failure_lines
from exitbench.harness.service.running import run_suite
from exitbench.reports.tables.text import conclusion
from exitbench.results.database.connection import open_database
from exitbench.results.files.atomic import write_whole_file
from exitbench.terminal import number_of, print_escaped, visible

_MOST_LINES: Final = 40
"""Candidates that are printed one by one."""
_PROMISED: Final = "with probability {share:.0%} over draws of {documents}"


class StageFailed(Exception):
    """Exception raised if cells of a stage failed, after the reasons were printed."""


@dataclass(frozen=True)
class TuneOptions:
    """Options of a tuning run.

    Attributes:
        model: Name of a model of the suite.
        task: Label of a task of the suite.
        run: The suite and how to run its cells; ``limit`` applies to the documents that are timed at the end.
        max_loss: Maximum loss of quality, in percent of full depth's quality.
        methods: Candidate methods; empty for all methods that can be tuned without training.
        documents: Number of documents for choosing thresholds.
        finalists: Number of methods timed at the end.
        guarantee: Error probability of the bound on the loss, for which the finalists are calibrated; None for no
            calibration.
        out: File of the suite that reproduces the choice; None for a file in the runs folder.
    """

    model: str
    task: str
    run: RunOptions
    max_loss: float = 1.0
    methods: tuple[str, ...] = ()
    documents: int = 200
    finalists: int = 3
    guarantee: float | None = None
    out: Path | None = None


def tune(options: TuneOptions) -> bool:
    """Search thresholds by replay, confirm the best by decoding, time the finalists, and print one recommendation.

    A replay recomputes exits from the stored predictions of every block, without running the model.

    Returns:
        True if tuning finished, also if nothing is better than full depth; False if cells failed.

    Raises:
        UserError: Names, methods or documents cannot be used; nothing has been measured.
        KeyboardInterrupt: Interrupted by the user. Finished cells are kept, and the same command resumes.
    """
    tuning, runs = _tuning(options), Runs(options.run.runs)
    try:
        _tune(tuning, runs, options)
    except StageFailed:
        return False
    return True


def _tuning(options: TuneOptions) -> Tuning:
    loaded = options.run.suite if isinstance(options.run.suite, Suite) else load_suite(options.run.suite)
    suite = loaded.with_sources_resolved(options.run.data_dir, hub=options.run.hub)
    models, tasks = {model.name: model for model in suite.models}, {task.label: task for task in suite.tasks}
    for word, entries, what in ((options.model, models, "model"), (options.task, tasks, "task")):
        if word not in entries:
            raise UserError(f"suite {suite.name!r} has no {what} {word!r}.{suggestion(word, entries)}")
    task = tasks[options.task]
    task.require_source_resolved(options.run.data_dir)
    if not task.work.generates:
        raise UserError(f"{task.location}: {options.task!r} scores given texts; thresholds are tuned for answers only.")
    for name in options.methods:
        require_tunable(name)
    is_taken = options.out is not None and os.path.lexists(options.out)
    if options.out is not None and (is_taken or not options.out.parent.is_dir()):
        why = "is there already" if is_taken else "its folder is not there"
        raise UserError(f"--out {options.out}: {why}. Allowed: a new file in a folder that is there.")
    tuning = Tuning(
        suite=suite,
        model=replace(models[options.model], tasks=None),  # run on the requested task, whatever the suite lists
        task=task,
        methods=tuple(options.methods) or tunable_methods(),
        max_loss_percent=options.max_loss,
        documents=options.documents,
        finalists=options.finalists,
        epsilon=options.guarantee,
    )
    tuning.require_enough_documents()
    return tuning


def _tune(tuning: Tuning, runs: Runs, options: TuneOptions) -> None:
    print_stage(f"1. Probing full depth on {number_of(tuning.documents, 'document')} it is not reported on")
    run_stage(tuning.search(), runs, options.run, remarks=True)
    with open_database(runs.database) as database:
        place = f"{name_in_results(tuning.model.name, tuning.model.path)}/{tuning.searched.label}"
        candidates = find_candidates(database, place, tuning.methods, tuning.max_loss_percent).candidates
    print_stage(f"2. Decoding {number_of(len(candidates), 'candidate')} of {number_of(len(tuning.methods), 'method')}")
    choice = choose(tuning, decode_candidates(tuning.confirm(candidates), candidates, runs, options.run))
    print_confirmed(tuning, choice)
    if not choice.finalists:
        print(f"Nothing to recommend: no method loses as little as {tuning.max_loss_percent:g} % here.")
        return
    finalists, full_share = choice.finalists, 1.0
    if tuning.epsilon is not None:
        with open_database(runs.database) as database:
            confirmed = [row["cell_id"] for _, row in choice.rows]
            full_share = tuning.share_of(full_score(database, confirmed, tuning.certified_metric))
        tuning.require_enough_documents(full_share)
        print_stage("3. Calibrating the finalists on documents that nothing was chosen on")
        finalists = _certified(tuning, finalists, candidates, full_share, runs, options)
        if not finalists:
            print(
                "Nothing to recommend: no threshold passed its calibration. Try a larger --max-loss, or more "
                "--documents."
            )
            return
    timed = [*finalists, *([choice.depth] if choice.depth is not None else [])]
    print_stage(f"{4 if tuning.epsilon else 3}. Timing {number_of(len(timed), 'setting')} on the task's own documents")
    cells = run_stage(tuning.final(timed), runs, options.run, options.run.limit)
    with open_database(runs.database) as database:
        text, cell_id = conclusion(database, cells, tuning.max_loss_percent)
    print(f"\n{text}")
    if tuning.epsilon is not None:
        _say_bound(tuning, tuning.points_of(full_share))
    if cell_id is not None:
        write_suite(tuning, cell_id, runs, options.out)


def print_stage(text: str) -> None:
    """Print the heading of a stage."""
    print_escaped(f"\n{text}")


def run_stage(
    suite: Suite, runs: Runs, options: RunOptions, limit: int | None = None, *, remarks: bool = False
) -> dict[str, str]:
    """Run the cells of one stage of a tuning; return the label (MODEL/TASK/METHOD/KIND) of every cell, by cell id.

    Args:
        suite: Cells of the stage.
        runs: Folder of all run data.
        options: Options of the run, except its suite, which is `suite`.
        limit: Maximum number of documents.
        remarks: Whether to print the plan's remarks, which are the same in every stage.

    Raises:
        StageFailed: A cell failed.
    """
    measured = run_suite(replace(options, suite=suite, limit=limit), remarks=remarks)
    if not measured.ok:
        for line in failure_lines(runs.database, measured.failed):
            print_escaped(f"  {line}")
        raise StageFailed
    cells = [planned.item for group in measured.plan.groups for planned in group.cells]
    return {item.cell.cell_id: item.label for item in cells}


def decode_candidates(
    suite: Suite, candidates: Sequence[Candidate], runs: Runs, options: RunOptions
) -> list[tuple[Candidate, Row]]:
    """Run a stage's suite, which decodes the candidates; return each with its results (values by column name)."""
    (task,) = suite.tasks
    labels = {
        f"{suite.models[0].name}/{task.label}/{candidate.point.label}/quality": candidate for candidate in candidates
    }
    cells = run_stage(suite, runs, options)
    with open_database(runs.database) as database:
        return results_of(database, {cell: labels[label] for cell, label in cells.items() if label in labels})


def _certified(
    tuning: Tuning,
    finalists: Sequence[Candidate],
    candidates: Sequence[Candidate],
    full_share: float,
    runs: Runs,
    options: TuneOptions,
) -> tuple[Candidate, ...]:
    cells = run_stage(tuning.certify(finalists, candidates, full_share), runs, options.run)
    with open_database(runs.database) as database:
        thresholds = certified(database, list(cells))
        for line in why_not_certified(database, list(cells)):
            print_escaped(f"  {line}")
    return tuple(
        candidate
        for candidate in candidates
        if any(candidate.point.method.name == finalist.point.method.name for finalist in finalists)
        and dict(candidate.point.params)["threshold"] == thresholds.get(candidate.point.method.name)
    )


def print_confirmed(tuning: Tuning, choice: Choice) -> None:
    """Print one line per decoded candidate, with a star at those to be timed.

    If there are many candidates, only those with a star are printed.
    """
    is_long = len(choice.rows) > _MOST_LINES
    for candidate, row in choice.rows:
        if is_long and candidate not in (*choice.finalists, choice.depth):
            continue
        mark = "*" if candidate in (*choice.finalists, choice.depth) else " "
        bound = "" if row["loss_high_percent"] is None else f", may lose {row['loss_high_percent']:.1f} %"
        depth = f"{row['mean_blocks_run']:.2f} of {row['blocks']} blocks"
        print_escaped(f"  {mark} {candidate.point.label}: {depth}, {_delta(row)}{bound}")
    if is_long:
        print_escaped(f"    {len(choice.rows)} in all, in the database.")
    if choice.finalists and not choice.is_shown:
        print_escaped(
            f"  None is shown to lose at most {tuning.max_loss_percent:g} % by its interval on "
            f"{number_of(tuning.documents, 'document')}; * do on these. More --documents make intervals narrower."
        )


def _say_bound(tuning: Tuning, bound_points: float) -> None:
    assert tuning.epsilon is not None
    drawn = _PROMISED.format(share=1 - tuning.epsilon, documents=number_of(tuning.documents, "calibration document"))
    most = f"{bound_points:.2f} points of {tuning.certified_metric}"
    print(f"Thresholds lose at most {most} on average, {drawn} (Learn then Test).")


def _delta(row: Row) -> str:
    if row["delta"] is None:
        return "not compared"
    interval = "" if row["delta_low"] is None else f" [{row['delta_low']:+.1f}, {row['delta_high']:+.1f}]"
    return f"{row['delta']:+.1f}{interval} {visible(row['metric'])}"


def write_suite(tuning: Tuning, cell_id: str, runs: Runs, path_option: Path | None) -> None:
    """Write a suite that repeats the run of the recommended cell, and print its path and the database's.

    The file is `path_option`, or one in the runs folder if that is None.
    """
    from exitbench.reports.front.suite_toml import stored_suite

    with open_database(runs.database) as database:
        text = stored_suite(database, cell_id, f"tuned-{tuning.model.name}-{tuning.task.label}", tuning.model.path)
    if text is None:
        print_escaped("The database does not say which documents these were: there is no suite that repeats it.")
        return
    path = path_option or runs.root / "tuned" / f"{tuning.model.name}-{tuning.task.label}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)  # within RUNS, which is known to be writable
    write_whole_file(path, text)
    print(f"\nSuite     {path}\n          exitbench run {path} --runs {runs.root}")
    print(f"Database  {runs.database}")
