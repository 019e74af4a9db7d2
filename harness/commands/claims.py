"""``exitbench claims``: what papers claim, and what the runs of a database say about it."""

import shutil
from argparse import Namespace
from typing import Final

from exitbench.errors import UserError, suggestion
from exitbench.harness.commands.folders import existing_database
from exitbench.harness.commands.rows import FORMATS
from exitbench.reports.claims import VERDICTS, Verdict, check_claims
from exitbench.reports.claims.claim import Claim
from exitbench.reports.claims.ledger import LEDGERS, read_claims
from exitbench.reports.claims.words import COLUMNS, as_row, counted, in_full, markdown, table
from exitbench.results.database import open_database

_PIPE: Final = (120, 24)
"""Size of what is no terminal."""


def claims(arguments: Namespace) -> int:
    """Print a verdict on every claim chosen, or one claim in full.

    Raises:
        UserError: There is no such claim, paper or verdict, or a claim's query fails.
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
        if arguments.paper is not None or arguments.verdict is not None:
            raise UserError("--paper and --verdict choose among all claims; leave them out, or leave out the claim.")
        by_id = {claim.claim_id: claim for claim in known}
        if arguments.claim not in by_id:
            raise UserError(f"There is no claim {arguments.claim!r}.{suggestion(arguments.claim, by_id)}")
        return (by_id[arguments.claim],)
    if arguments.paper is None:
        return known
    paper = arguments.paper.lower()
    if paper not in LEDGERS:
        raise UserError(f"--paper {arguments.paper}: there is no such paper.{suggestion(paper, LEDGERS)}")
    return tuple(claim for claim in known if claim.ledger == paper)


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
