"""Planning of a run."""

from exitbench.harness.planning.plan import Plan, make_plan
from exitbench.harness.planning.suite import Suite, load_suite
from exitbench.harness.running.shard import part, require_apart
from exitbench.harness.service.folders import Runs
from exitbench.harness.service.options import RunOptions


def plan_suite(options: RunOptions) -> Plan:
    """Return the plan of a run.

    Raises:
        UserError: The suite, its data or its models cannot be used.
    """
    runs = Runs(options.runs)
    require_apart(options.shard)
    plan = make_plan(
        options.suite if isinstance(options.suite, Suite) else load_suite(options.suite),
        runs.spool,
        runs.models,
        options.data_dir,
        only=options.only,
        limit=options.limit,
        kinds=options.kinds,
    )
    return part(plan, options.shard)
