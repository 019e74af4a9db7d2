"""``exitbench claims``: what papers claim and print, what we ask, and what the runs of a database say about it."""

import shutil
from argparse import Namespace
from typing import Final

from exitbench.errors import UserError, suggestion
from exitbench.harness.cli.commands.database import existing_database
from exitbench.harness.cli.commands.rows import FORMATS
from exitbench.reports.claims import COLUMNS, VERDICTS, Verdict, as_row, check_claims, counted, in_full, markdown, table
from exitbench.reports.claims.claim import KINDS, LEDGERS, Claim, read_claims
from exitbench.results.database.connection import open_database

_PIPE: Final = (120, 24)
"""Size of what is no terminal."""


def claims(arguments: Namespace) -> int:
    """Print a verdict on every entry of the ledger that is chosen, or one in full.

    Raises:
        UserError: There is no such entry, paper, kind or verdict, or a query fails.
    """
    chosen = _chosen(arguments)
    wanted = _wanted(arguments.verdict)
    with open_database(existing_database(arguments)) as database:
        verdicts = check_claims(database, chosen)
    _print([it for it in verdicts if wanted in (None, it.verdict)], arguments)
    return 0


def _chosen(arguments: Namespace) -> tuple[Claim, ...]:
    known = read_claims()
    if arguments.claim is not None:
        if not {arguments.paper, arguments.kind, arguments.verdict} == {None}:
            raise UserError("--paper, --kind and --verdict choose among all; leave them out, or leave out the claim.")
        by_id = {claim.claim_id: claim for claim in known}
        if arguments.claim not in by_id:
            raise UserError(f"There is no claim {arguments.claim!r}.{suggestion(arguments.claim, by_id)}")
        return (by_id[arguments.claim],)
    paper, kind = arguments.paper and arguments.paper.lower(), arguments.kind
    if paper not in (None, *LEDGERS):
        raise UserError(f"--paper {arguments.paper}: there is no such paper.{suggestion(paper, LEDGERS)}")
    if kind not in (None, *KINDS):
        raise UserError(f"--kind {kind}: there is no such kind.{suggestion(kind, KINDS)}")
    return tuple(claim for claim in known if paper in (None, claim.ledger) and kind in (None, claim.kind))


def _wanted(verdict: str | None) -> str | None:
    if verdict is None:
        return None
    words = verdict.replace("-", " ")
    if words not in VERDICTS:
        raise UserError(f"--verdict {verdict}: there is no such verdict.{suggestion(words, VERDICTS)}")
    return words


def _print(verdicts: list[Verdict], arguments: Namespace) -> None:
    width = shutil.get_terminal_size(_PIPE).columns
    if arguments.format in ("csv", "json"):
        FORMATS[arguments.format](COLUMNS, [as_row(verdict) for verdict in verdicts])
    elif arguments.format == "md":
        print(markdown(verdicts))
    elif arguments.claim is not None:
        print(in_full(verdicts[0], width))
    else:
        print(f"{table(verdicts, width)}\n\n{counted(verdicts)}")
