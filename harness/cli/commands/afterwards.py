"""``exitbench annotate`` and ``rescore``: tag stored answers with parts of speech, or score them again."""

from argparse import Namespace

from exitbench.errors import UserError
from exitbench.harness.afterwards.annotating import annotate
from exitbench.harness.afterwards.rescoring import rescore
from exitbench.harness.afterwards.taggers import load_tagger
from exitbench.harness.service.folders import existing_runs, ingest_spool
from exitbench.progress import counting
from exitbench.results.database.connection import open_database
from exitbench.terminal import number_of, print_escaped


def annotate_runs(arguments: Namespace) -> int:
    """Tag the words of stored answers with parts of speech, and ingest the tags; skip runs that the tagger has tagged.

    Returns:
        1 if a run could not be tagged or ingested, else 0.

    Raises:
        UserError: No tagger is installed, a name matches no run, or no run could be tagged.
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
        print_escaped(f"not tagged: {why}")
    left_out = ingest_spool(runs.spool, path)
    tagged, missed = number_of(report.tagged, "run"), len(report.unspelled)
    print(f"{tagged} tagged by {tagger.name}, {report.current} were, {missed} left.")
    return 1 if report.unspelled or left_out else 0


def rescore_runs(arguments: Namespace) -> int:
    """Score stored answers that have no scores of the current metric version, and ingest the scores.

    Returns:
        1 if a run could not be scored or ingested, else 0.

    Raises:
        UserError: A name matches no run, or no run could be scored.
    """
    runs = existing_runs(arguments.runs)
    with counting("rescore") as on_run:
        report = rescore(runs.spool, arguments.names, arguments.data_dir, on_run, arguments.confirm_run_unsafe_code)
    problems = [
        f"{number_of(len(attempts), 'run')}, such as {attempts[0]}: {why}" for why, attempts in report.problems.items()
    ]
    if problems and not report.rescored + report.current:
        raise UserError("nothing could be scored.\n" + "\n".join(problems))
    for problem in problems:
        print_escaped(f"not rescored: {problem}")
    left_out = ingest_spool(runs.spool, arguments.database or runs.database)
    failed = sum(map(len, report.problems.values()))
    print(
        f"{number_of(report.rescored, 'run')} rescored, {report.current} had the current metric version, {failed} left."
    )
    return 1 if failed or left_out else 0
