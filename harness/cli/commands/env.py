"""``exitbench env``: software and machine of an attempt, and what differs between two."""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from exitbench.errors import UserError
from exitbench.harness.cli.commands.database import existing_database
from exitbench.harness.service.folders import Runs
from exitbench.results.analysis.environments import Described, Difference, differences, find
from exitbench.terminal import number_of, tell

NOW = "now"


def env(arguments: Namespace) -> int:
    """Show one, or compare two; like ``diff``, returns 1 if they differ.

    Raises:
        UserError: The ids are not those of one thing each.
    """
    wanted = {"show": 1, "diff": 2}[arguments.action]
    if len(arguments.of) != wanted:
        raise UserError(f"env {arguments.action} takes {wanted} of attempt, cell, environment or machine, or 'now'.")
    found = [_described(name, arguments) for name in arguments.of]
    if arguments.action == "show":
        fields = "\n".join(f"  {name}: {said(value)}" for name, value in found[0].fields.items())
        tell(f"{found[0].name}\n{fields}", sys.stdout)
        if arguments.of == [NOW]:
            from exitbench.harness.running.energy.meter import energy_told

            tell(f"  energy: {energy_told()}", sys.stdout)
        return 0
    changed = differences(*found)
    tell(f"A: {found[0].name}\nB: {found[1].name}", sys.stdout)
    tell("\n".join(difference_lines(changed)) if changed else "  equal", sys.stdout)
    return 1 if changed else 0


def difference_lines(changed: Sequence[Difference]) -> list[str]:
    """Return one line a field: ``name: value in A -> value in B``."""
    return [f"  {change.field}: {said(change.a)} -> {said(change.b)}" for change in changed]


def said(value: Any) -> str:
    """Return a value as people read it."""
    return "absent" if value is None else value if isinstance(value, str) else json.dumps(value)


def this_machine(threads: int) -> Described:
    """Return what an attempt would say here, now.

    Args:
        threads: Of torch, as in an attempt's hardware.
    """
    from exitbench.harness.running.environment import environment_and_hardware

    return Described("this machine, now", environment_and_hardware(threads))


def _described(name: str, arguments: Namespace) -> Described:
    if name != NOW:
        return find(name, Runs(arguments.runs).spool, existing_database(arguments))
    from exitbench.harness.running.environment import available_cores

    found = this_machine(available_cores())
    return replace(found, sections={**found.sections, **_products()}) if arguments.action == "show" else found


def _products() -> dict[str, dict[str, Any]]:
    """Forms of products that were measured here, by threads, number format and file."""
    from exitbench.harness.engine.products.kept import all_kept
    from exitbench.harness.engine.products.kept import this_machine as machine

    own = {key: value for key, value in machine(threads=0).items() if key != "threads"}
    found = {
        f"{number_of(asked['threads'], 'thread')}, {asked['dtype']} ({name})": chosen
        for name, asked, chosen in all_kept(own)
    }
    return {"products": found} if found else {}
