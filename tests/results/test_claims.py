"""Every claim of a paper is data with a query that runs; its verdict follows from the evidence and the bound."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exitbench.errors import UserError
from exitbench.results import published
from exitbench.results.claims import Verdict, check_claims
from exitbench.results.database import Database, open_database

CLAIMS = tomllib.loads((Path(published.__file__).parent / "claims.toml").read_text())["claim"]
IDS = [claim["claim_id"] for claim in CLAIMS]
SUITES = Path(__file__).parents[2] / "harness" / "suites"


@pytest.fixture(scope="module")
def database(example_database: Path) -> Iterator[Database]:
    with open_database(example_database) as opened:
        yield opened


@pytest.fixture(scope="module")
def verdicts(database: Database) -> dict[str, Verdict]:
    return {verdict.claim.claim_id: verdict for verdict in check_claims(database)}


def test_claims_are_in_the_database_as_the_file_has_them(database: Database) -> None:
    rows = database.query("FROM claims").to_pylist()
    assert [{k: v for k, v in row.items() if v is not None} for row in rows] == CLAIMS
    assert len(set(IDS)) == len(IDS) >= 12


@pytest.mark.parametrize("claim", CLAIMS, ids=IDS)
def test_a_claim_is_complete(claim: dict[str, Any]) -> None:
    assert claim["direction"] in ("at_least", "at_most")
    assert claim["tolerance"] >= 0
    assert (SUITES / f"{claim['suite']}.toml").exists()
    assert claim["text"].endswith(".") and claim["caveat"].endswith(".")


@pytest.mark.parametrize("claim_id", IDS)
def test_every_claims_query_runs_and_has_a_verdict(verdicts: dict[str, Verdict], claim_id: str) -> None:
    verdict = verdicts[claim_id]
    assert verdict.verdict in ("holds", "does not hold", "not measured")
    assert (verdict.value is None) == (verdict.verdict == "not measured") == (verdict.n == 0)


def test_of_the_claims_the_example_measures_the_calibrations_only(
    verdicts: dict[str, Verdict], database: Database
) -> None:
    measured = {name: (verdict.value, verdict.n) for name, verdict in verdicts.items() if verdict.n}
    assert set(measured) == {"calm-calibration-keeps-its-promise"}
    # All held-out losses of the example are 0.1 of the 0.35 tolerated, with a promise of 1 - 0.3.
    value, n = measured["calm-calibration-keeps-its-promise"]
    chosen = database.query("SELECT count(DISTINCT attempt_id) AS n FROM calibrations WHERE chosen").to_pylist()
    assert value == pytest.approx(0.3) and chosen == [{"n": n}]


# ------------------------------------------------------------------------------------------ evidence and verdict


@pytest.mark.parametrize(
    ("direction", "evidence", "verdict"),
    [
        ("at_least", "0.9", "holds"),
        ("at_least", "0.89", "does not hold"),
        ("at_most", "1.1", "holds"),
        ("at_most", "1.11", "does not hold"),
        ("at_least", "NULL", "not measured"),
    ],
)
def test_the_bound_may_be_missed_by_the_tolerance_and_no_more(
    tmp_path: Path, direction: str, evidence: str, verdict: str
) -> None:
    (checked,) = _check(tmp_path, f"SELECT {evidence}::DOUBLE AS value, 3 AS n", direction)
    assert checked.verdict == verdict


def test_evidence_of_nothing_is_not_measured(tmp_path: Path) -> None:
    (checked,) = _check(tmp_path, "SELECT 1.0 AS value, 0 AS n")
    assert (checked.verdict, checked.value, checked.n) == ("not measured", None, 0)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT 1 AS value", "one row of value and n"),
        ("SELECT 1 AS value, 1 AS n WHERE false", "one row of value and n"),
        ("FROM nonsense", "nonsense"),
        ("DELETE FROM cell RETURNING 1 AS value, 1 AS n", "read-only"),
    ],
)
def test_a_claim_whose_query_does_not_answer_is_named(tmp_path: Path, query: str, says: str) -> None:
    with pytest.raises(UserError, match=rf"(?s)Claim only: .*{says}"):
        _check(tmp_path, query)


def _check(folder: Path, query: str, direction: str = "at_least") -> list[Verdict]:
    """Verdicts of a database whose only claim has this query, a bound of 1 and a tolerance of 0.1."""
    path = folder / "exitbench.duckdb"
    with open_database(path, read_only=False) as opened, opened.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM claim")
        connection.exec_driver_sql(
            "INSERT INTO claim VALUES ('only', 1, 'p', 's', 't.', $1, 'u', $2, 1.0, 0.1, NULL, 'builtin', NULL)",
            (query, direction),
        )
    with open_database(path) as opened:
        return check_claims(opened)
