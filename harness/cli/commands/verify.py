"""``exitbench verify`` and ``env``: repeat a stored cell, or compare software and machine of runs."""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from exitbench.errors import UserError
from exitbench.harness.cli.commands.common import existing_database
from exitbench.harness.service.folders import Runs, existing_runs
from exitbench.results.analysis.repeats import (
    EnvironmentDescription,
    FieldDifference,
    FileComparison,
    differences,
    find,
)
from exitbench.terminal import number_of, print_escaped

if TYPE_CHECKING:
    from exitbench.harness.afterwards.rerun import RerunResult

NOW = "now"


def env(arguments: Namespace) -> int:
    """Print the software and machine of one run, or their differences between two runs; return 1 if they differ.

    Raises:
        UserError: An id does not match exactly one attempt, cell, environment or machine.
    """
    wanted = {"show": 1, "diff": 2}[arguments.action]
    if len(arguments.of) != wanted:
        raise UserError(f"env {arguments.action} takes {wanted} of attempt, cell, environment or machine, or 'now'.")
    described = [_described(name, arguments) for name in arguments.of]
    if arguments.action == "show":
        fields = "\n".join(f"  {name}: {shown_value(value)}" for name, value in described[0].fields.items())
        print_escaped(f"{described[0].name}\n{fields}", sys.stdout)
        if arguments.of == [NOW]:
            from exitbench.harness.running.energy.meter import energy_summary

            print_escaped(f"  energy: {energy_summary()}", sys.stdout)
        return 0
    changed = differences(*described)
    print_escaped(f"A: {described[0].name}\nB: {described[1].name}", sys.stdout)
    print_escaped("\n".join(difference_lines(changed)) if changed else "  equal", sys.stdout)
    return 1 if changed else 0


def difference_lines(changed: Sequence[FieldDifference]) -> list[str]:
    """Return one line per differing field: ``name: value in A -> value in B``."""
    return [f"  {change.field}: {shown_value(change.a)} -> {shown_value(change.b)}" for change in changed]


def shown_value(value: Any) -> str:
    """Return the value of an environment's field as text for display; `absent` for None."""
    return "absent" if value is None else value if isinstance(value, str) else json.dumps(value)


def this_machine(threads: int) -> EnvironmentDescription:
    """Return the software and hardware of this machine, as an attempt with `threads` threads would record them now."""
    from exitbench.harness.running.environment import environment_and_hardware

    return EnvironmentDescription("this machine, now", environment_and_hardware(threads))


def _described(name: str, arguments: Namespace) -> EnvironmentDescription:
    if name != NOW:
        return find(name, Runs(arguments.runs).spool, existing_database(arguments))
    from exitbench.harness.running.environment import available_cores

    described = this_machine(available_cores())
    return (
        replace(described, sections={**described.sections, **_fastest_products()})
        if arguments.action == "show"
        else described
    )


def _fastest_products() -> dict[str, dict[str, Any]]:
    """Return the implementations of matrix products that were measured to be fastest on this machine.

    The only key is ``products``, with one entry per number of threads, number format and cache file. The result is
    empty if nothing was measured.
    """
    from exitbench.harness.engine.products.choice_store import list_choices
    from exitbench.harness.engine.products.choice_store import this_machine as machine

    machine_key = {key: value for key, value in machine(threads=0).items() if key != "threads"}
    forms = {
        f"{number_of(conditions['threads'], 'thread')}, {conditions['dtype']} ({name})": chosen
        for name, conditions, chosen in list_choices(machine_key)
    }
    return {"products": forms} if forms else {}


def verify_run(arguments: Namespace) -> int:
    """Run a stored cell again and compare the results with the stored ones; return 0 if they are equal, else 1.

    Raises:
        UserError: The run, its model or its documents are not found, or have changed.
    """
    from exitbench.harness.afterwards.rerun import find_checkpoint, find_stored, verify  # loads torch

    runs = existing_runs(arguments.runs)
    if not runs.spool.exists():
        raise UserError(f"There is no spool at {runs.spool}: what is not there cannot be repeated.")
    stored = find_stored(runs.spool, arguments.run)
    threads = arguments.threads or int(stored.env["hardware"]["threads"])
    folder = arguments.model or find_checkpoint(stored, runs.models, runs.logs)
    print_escaped(f"repeating attempt {stored.attempt.attempt_id} on {folder}, {number_of(threads, 'thread')}")
    verdict = verify(
        stored,
        runs.spool,
        runs.repetitions,
        folder,
        arguments.data_dir,
        threads,
        confirm_run_unsafe_code=arguments.confirm_run_unsafe_code,
    )
    for line in _lines(verdict):
        print_escaped(line, sys.stdout)
    then = EnvironmentDescription(f"attempt {stored.attempt.attempt_id}", stored.env)
    changed = difference_lines(differences(then, this_machine(threads)))
    print("software and machine: " + ("the same" if not changed else "they differ, then -> now"))
    for line in changed:
        print_escaped(line, sys.stdout)
    return 0 if verdict.equal else 1


def _lines(verdict: "RerunResult") -> list[str]:
    if verdict.status != "ok":
        return [f"not repeated: the new attempt ended as {verdict.status}: {verdict.reason or 'no reason given'}"]
    lines = [_line(compared) for compared in verdict.compared]
    lines += ["equal" if verdict.equal else "differs", f"the repetition is {verdict.repeated}"]
    return lines


def _line(compared: FileComparison) -> str:
    if compared.first is None:
        return f"{compared.file}: equal" + ("" if compared.rows is None else f", {number_of(compared.rows, 'row')}")
    if compared.rows is None:
        return f"{compared.file}: {compared.first}"
    return (
        f"{compared.file}: {compared.differing_rows} of {compared.rows} rows differ, in {compared.differing_documents} "
        f"documents or steps; first {compared.first}"
    )
