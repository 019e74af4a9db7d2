"""`exitbench claims`: verdicts chosen by paper and verdict, one claim in full, in every format."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from exitbench.harness.cli.main import main
from exitbench.reports.claims.claim import KINDS, read_claims

Claims = Callable[..., tuple[int, str, str]]


@pytest.fixture
def claims(few_database: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Claims:
    """Return a function that runs `exitbench claims` on a part of the example, on a terminal of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["claims", "--database", str(few_database), *arguments])
        return code, *capsys.readouterr()

    return run


def test_claims_table_fits_the_terminal_and_counts_claims_per_kind(claims: Claims) -> None:
    code, stdout, _ = claims("--paper", "MEE")
    assert code == 0 and max(map(len, stdout.splitlines())) <= 100
    of_mee = [claim.kind for claim in read_claims() if claim.ledger == "mee"]
    assert [line.split()[0] for line in stdout.splitlines()[-3:]] == [str(of_mee.count(kind)) for kind in KINDS]
    assert "mee-measures-are-slower-than-full-depth" in stdout and "natcap" not in stdout


def test_claims_can_be_filtered_by_kind(claims: Claims) -> None:
    for kind in KINDS:
        rows = json.loads(claims("--kind", kind, "--format", "json")[1])
        assert {row["kind"] for row in rows} == {kind}
        # A claim without a quotation says why: the source's text is not at hand.
        assert all((row["quotation"] is None and row["unquoted"] is None) == (kind != "claim") for row in rows)


def test_claims_can_be_filtered_by_verdict_in_json_csv_and_markdown(claims: Claims) -> None:
    rows = json.loads(claims("--verdict", "inconsistent", "--format", "json")[1])
    assert {row["verdict"] for row in rows} == {"inconsistent"}
    assert {row["claim_id"] for row in rows} >= {"natcap-tables-3-and-10-agree", "calm-largest-threshold-is-full-depth"}
    of_natcap = ("--paper", "natcap", "--verdict", "inconsistent", "--format")
    some = [row["claim_id"] for row in rows if row["claim_id"].startswith("natcap-")]
    read = list(csv.DictReader(io.StringIO(claims(*of_natcap, "csv")[1])))
    assert [row["claim_id"] for row in read] == some
    assert claims(*of_natcap, "md")[1].count("\n|") == len(some) + 2
    unmeasured = json.loads(claims("--paper", "heads", "--verdict", "not-measured", "--format", "json")[1])
    assert {row["verdict"] for row in unmeasured} == {"not measured"}


def test_one_claim_is_shown_with_its_query(claims: Claims) -> None:
    code, stdout, _ = claims("natcap-tables-3-and-10-agree")
    assert code == 0 and "0.74" in stdout and "inconsistent" in stdout and "FROM published AS a" in stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["mee-top3-keeps-the-scor"], "Did you mean 'mee-top3-keeps-the-score'?"),
        (["--paper", "met"], "Did you mean 'mee'?"),
        (["--verdict", "holds-her"], "Did you mean 'holds here'?"),
        (["--kind", "claims"], "Did you mean 'claim'?"),
        (["mee-top3-keeps-the-score", "--kind", "question"], "leave out the claim"),
    ],
)
def test_unknown_names_are_refused_with_suggestions(claims: Claims, arguments: list[str], says: str) -> None:
    code, stdout, stderr = claims(*arguments)
    assert (code, stdout) == (2, "") and says in stderr
