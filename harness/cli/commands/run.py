"""``exitbench plan``, ``run``, ``train`` and ``tune``: plan and run suites."""

import json
import sys
from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from exitbench.errors import UserError, suggestion
from exitbench.harness.cli.commands.common import data_size, duration, run_options
from exitbench.harness.planning.contracts import conformance_lines
from exitbench.harness.planning.estimate import estimate_plan, of_group
from exitbench.harness.planning.first_run import BASIS as BYTES_PER_TOKEN
from exitbench.harness.planning.memory import shortages
from exitbench.harness.planning.passes import passes
from exitbench.harness.planning.plan import ModelGroup, Plan
from exitbench.harness.planning.retry import Retry
from exitbench.harness.planning.suite import load_suite, suite_names
from exitbench.harness.reading.toml import TomlTable
from exitbench.harness.running.environment import available_cores
from exitbench.harness.service.folders import Runs, ingest_spool
from exitbench.harness.service.outcome import print_outcome
from exitbench.harness.service.running import plan_suite, run_suite
from exitbench.harness.service.tuning import TuneOptions
from exitbench.harness.service.tuning import tune as tune_setting
from exitbench.harness.training import Recipe, ensure_all_trained, load_recipe, recipe_names
from exitbench.harness.training.store import SHIPPED
from exitbench.results.analysis.status import Estimate, total
from exitbench.results.side_records.trainings import record_training
from exitbench.results.spool.schema import CARD_FILE
from exitbench.terminal import number_of, print_escaped


def plan(arguments: Namespace) -> int:
    """Print each cell of a suite with its state (new, done, ...), and the estimated time and disk space of a run."""
    options = run_options(arguments)
    suite_plan, retry = plan_suite(options), options.retry
    estimates = estimate_plan(suite_plan, Runs(options.runs).spool, retry)
    print_escaped("\n".join(_lines(suite_plan, retry, estimates)), sys.stdout)
    for line in shortages(suite_plan, retry):
        print_escaped(f"On this machine: {line}", sys.stdout)
    for line in conformance_lines(suite_plan, retry, options.runs):
        print_escaped(f"Contracts: {line}", sys.stdout)
    return 0


def _lines(plan: Plan, retry: Retry, estimates: dict[str, Estimate]) -> Iterator[str]:
    yield from plan.remarks
    together = [passes(group.to_run(retry)) for group in plan.groups]
    for group, own_passes in zip(plan.groups, together, strict=True):
        yield f"{group.model.name}: {_origin(group)}"
        yield from (f"  {remark}" for remark in group.remarks)
        if group.folder is None:
            yield from (f"  new     {label}" for label in group.labels)
        yield from _cell_lines(
            group, {cells_of_pass[0].cell.cell_id: len(cells_of_pass) for cells_of_pass in own_passes}
        )
        if group_estimates := of_group(group, estimates):
            yield f"  to run: {_cost(group_estimates, len(own_passes))}"
    states = plan.states()
    counted = ", ".join(f"{count} {state}" for state, count in sorted(states.items()) if count)
    yield f"\n{number_of(states.total(), 'cell')}: {counted}. Runs with --retry {retry}: {plan.to_run_count(retry)}."
    if estimates:
        cost = _cost(list(estimates.values()), sum(map(len, together)))
        yield f"{_basis(estimates.values())}, one after the other: {cost}."


def _basis(estimates: Collection[Estimate]) -> str:
    first = sum(estimate.basis == BYTES_PER_TOKEN for estimate in estimates)
    if not first:
        return "By earlier attempts"
    if first == len(estimates):
        return "By the model's bytes per token, since nothing like it has run here"
    return f"By earlier attempts, and by bytes per token for {number_of(first, 'cell')}"


def _cell_lines(group: ModelGroup, pass_cells: Mapping[str, int]) -> Iterator[str]:
    """Yield one line per cell of a group; the first cell of a pass says how many cells share it.

    A pass is a run of the model whose results belong to several cells. `pass_cells` has its number of cells, by the id
    of its first cell.
    """
    for cell in group.cells:
        cells = pass_cells.get(cell.item.cell.cell_id, 1)
        notes = [note for note in (cell.why, f"one pass for {cells} cells" if cells > 1 else "") if note]
        yield f"  {cell.state:7} {cell.item.label}" + (f"  ({'; '.join(notes)})" if notes else "")


def _cost(estimates: list[Estimate], n_passes: int) -> str:
    seconds, size_bytes, unknown = total(estimates)
    at_most = "at most " if any(estimate.at_most for estimate in estimates) else ""
    time_and_size = f"{at_most}{duration(seconds)}, {data_size(size_bytes)}"
    phrases = [
        f"{len(estimates)} cells in {n_passes} pass{'es' if n_passes > 1 else ''}" if n_passes < len(estimates) else "",
        time_and_size if unknown < len(estimates) else "time and size unknown",
        f"unknown for {unknown} of {len(estimates)} cells" if 0 < unknown < len(estimates) else "",
    ]
    return "; ".join(filter(None, phrases))


def _origin(group: ModelGroup) -> str:
    if group.model.hub is not None:
        location = "not on this machine (`run --hub` fetches it)" if group.folder is None else f"in {group.folder}"
        return f"checkpoint {group.model.hub}, {location}"
    if group.recipe is None:
        return f"checkpoint {group.folder}"
    if group.folder is None:
        files = " --data-dir DIR" if any(source.source == "local" for source in group.recipe.train) else ""
        command = f"exitbench train {group.recipe.name}{files}"
        return f"recipe {group.recipe.name}, not trained yet (`{command}`; a run does it first)"
    how = "shipped" if group.folder.is_relative_to(SHIPPED) else "trained"
    return f"recipe {group.recipe.name}, {how} in {group.folder}"


def run(arguments: Namespace) -> int:
    """Run a suite; return 0 if every cell that ran succeeded and is in the database, else 1.

    Raises:
        UserError: A problem was found before any work began, or data are damaged.
        KeyboardInterrupt: The user interrupted; finished cells are in the spool and in the database.
    """
    options = run_options(arguments)
    finished_run = run_suite(options)
    print_outcome(finished_run, options, every_setting=arguments.table, report=not arguments.no_report)
    return 0 if finished_run.ok else 1


def train(arguments: Namespace) -> int:
    """Train every recipe of a suite, or one recipe; models that are already trained are kept.

    Returns:
        1 if an attempt could not be ingested, else 0.

    Raises:
        UserError: The suite or recipe is unknown, data are missing, or a folder cannot be written.
        KeyboardInterrupt: The user interrupted; the same command resumes from the latest saved states of the trainings.
    """
    from exitbench.harness.engine.checkpoints.digest import describe_checkpoint

    recipes = named_recipes(arguments.what)
    runs = Runs(arguments.runs)
    runs.require_writable()
    models_dir = arguments.models_dir or runs.models
    threads = arguments.threads or available_cores()
    folders = ensure_all_trained(recipes, models_dir, arguments.data_dir, threads, arguments.start)
    for recipe, folder in zip(recipes, folders, strict=True):
        record_training(runs.spool, describe_checkpoint(recipe.name, folder).weights_sha256, folder)
        print(_summary(recipe, folder))
    return 1 if ingest_spool(runs.spool, runs.database) else 0


def named_recipes(what: str) -> list[Recipe]:
    """Return the recipes of the suite, or the one recipe, with this name or file.

    Raises:
        UserError: There is no such suite or recipe.
    """
    path = Path(what)
    if path.is_file() and "models" not in TomlTable.read(path).values:
        return [load_recipe(path)]
    if what.partition("@")[0] in recipe_names() and what not in suite_names():
        return [load_recipe(what)]
    if not path.is_file() and what not in suite_names():
        raise UserError(f"no suite or recipe {what!r}.{suggestion(path.stem, {*suite_names(), *recipe_names()})}")
    return [load_recipe(entry.recipe) for entry in load_suite(what).models if entry.recipe]


def _summary(recipe: Recipe, folder: Path) -> str:
    card = json.loads((folder / CARD_FILE).read_text(encoding="utf-8"))
    validation = card["validation"]
    what = f"{validation['metric']} {{:.1f}}" if "metric" in validation else "token accuracy {:.3f}"
    by_block = validation["score" if "metric" in validation else "token_accuracy"]
    accuracies = (
        f"{what.format(by_block[0])} after block 1, {what.format(by_block[-1]).split()[-1]} after block {len(by_block)}"
    )
    minutes = card["wall_seconds"] / 60
    lines = [f"{recipe.name}: loss {card['final_loss_nats']:.3f}, {accuracies}, {minutes:.1f} min"]
    if recipe.optimisation.precision != card.get("computed_precision", recipe.optimisation.precision):
        lines.append("  computed in fp32: this processor has no fast bfloat16 products")
    if heads := validation.get("exit_heads"):
        lines.append(f"  most probable token as after the last block, {heads['tokens']:,} tokens:")
        by_block = zip(heads["blocks"], heads["own_agreement"], heads["agreement"], strict=True)
        lines += [f"    block {block}: own read-out {own:.3f}, exit head {head:.3f}" for block, own, head in by_block]
    return "\n".join([*lines, f"  {folder}"])


def tune(arguments: Namespace) -> int:
    """Recommend a method and threshold for a model and a task; return 1 if cells failed, else 0.

    The recommendation may be full depth.

    Raises:
        UserError: The names, methods or documents cannot be used; nothing has been measured.
        KeyboardInterrupt: Interrupted by the user. Finished cells are kept, and the same command resumes.
    """
    options = TuneOptions(
        model=arguments.model,
        task=arguments.task,
        run=run_options(arguments),
        max_loss=arguments.max_loss,
        methods=arguments.methods,
        documents=arguments.documents,
        finalists=arguments.finalists,
        guarantee=arguments.guarantee,
        out=arguments.out,
    )
    return 0 if tune_setting(options) else 1
