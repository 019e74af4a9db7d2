"""``exitbench annotate``: what can be said of stored answers later on."""

from argparse import Namespace

from exitbench.errors import UserError
from exitbench.harness.afterwards.annotating import annotate
from exitbench.harness.afterwards.taggers import load_tagger
from exitbench.harness.service.folders import existing_runs
from exitbench.progress import counting
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest
from exitbench.terminal import number_of, tell


def annotate_runs(arguments: Namespace) -> int:
    """Tag what this tagger has not tagged, then fill the database; returns 1 if something was left.

    Raises:
        UserError: No tagger is installed, a name fits nothing, or none of the runs could be tagged.
    """
    runs = existing_runs(arguments.runs)
    path = arguments.database or runs.database
    tagger = load_tagger(arguments.tagger, arguments.model)
    with open_database(path) as database, counting("annotate") as on_run:
        report = annotate(database, runs.spool, arguments.names, tagger, on_run)
    if report.unspelled:
        why = (
            f"{number_of(len(report.unspelled), 'run')}, such as {report.unspelled[0]}: nothing spells their token ids."
        )
        if not report.tagged + report.current:
            raise UserError(f"nothing could be tagged.\n{why}")
        tell(f"not tagged: {why}")
    left_out = ingest(runs.spool, path).quarantined
    for problem in left_out:
        tell(f"left out of the database: {problem}")
    tagged, left = number_of(report.tagged, "run"), len(report.unspelled)
    print(f"{tagged} tagged by {tagger.name}, {report.current} were, {left} left.")
    return 1 if report.unspelled or left_out else 0
