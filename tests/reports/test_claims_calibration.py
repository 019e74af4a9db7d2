"""The verdict on calibrated thresholds: valid calibrations are hardly ever told to fail, invalid ones always are."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from exitbench.reports.claims import Verdict, check_claim
from exitbench.reports.claims.ledger import read_claims
from exitbench.results.arrow import driver_connection
from exitbench.results.database import Database, open_database

DELTA, EPSILON, CALIBRATIONS = 0.1, 0.05, 150
(PROMISE,) = [claim for claim in read_claims() if claim.claim_id == "calm-calibration-keeps-its-promise"]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    path = tmp_path_factory.mktemp("calibrations") / "exitbench.duckdb"
    open_database(path, read_only=False).close()
    with open_database(path) as opened:
        yield opened


def judge(
    database: Database, losses: np.ndarray, n: int, rule: str = "hoeffding-bentkus", chosen: bool = True
) -> Verdict:
    """The verdict on calibrations with these mean losses on `n` documents that they did not see."""
    ids = [f"a{number}" for number in range(len(losses))]
    same = {"delta": DELTA, "epsilon": EPSILON, "chosen": chosen, "rule": rule, "random_weights": False}
    tables = {
        "calibrations": [{"attempt_id": it, **same} for it in ids],
        "metric_values": [
            {"attempt_id": it, "metric": "held_out_loss", "value": float(loss), "n": n, "is_current": True}
            for it, loss in zip(ids, losses, strict=True)
        ],
    }
    with database.engine.connect() as connection:
        duck = driver_connection(connection)
        for name, rows in tables.items():
            duck.register("made", pa.Table.from_pylist(rows))
            duck.execute(f"CREATE TEMP TABLE {name} AS FROM made")
            duck.unregister("made")
        try:
            return check_claim(database, PROMISE)
        finally:
            for name in tables:
                duck.execute(f"DROP TABLE temp.{name}")


@pytest.mark.parametrize("n", [16, 40])
def test_a_valid_calibration_is_hardly_ever_told_to_fail(database: Database, n: int) -> None:
    rng = np.random.default_rng(n)
    verdicts = []
    for _ in range(12):
        # As bad as validity allows: a share epsilon loses three times delta, all others just delta.
        expected = np.where(rng.random(CALIBRATIONS) < EPSILON, 3 * DELTA, DELTA)
        verdicts.append(judge(database, rng.binomial(n, expected) / n, n))
    assert sum(it.verdict == "fails here" for it in verdicts) == 0
    assert sum(it.verdict == "holds here" for it in verdicts) >= 6
    assert {it.n for it in verdicts} == {CALIBRATIONS}


def test_an_invalid_calibration_is_told_to_fail(database: Database) -> None:
    rng = np.random.default_rng(5)
    worlds = [rng.binomial(40, 3 * DELTA, CALIBRATIONS) / 40 for _ in range(3)]
    assert {judge(database, losses, 40).verdict for losses in worlds} == {"fails here"}


def test_calibrations_that_chose_nothing_kept_it_and_rules_without_the_promise_do_not_count(database: Database) -> None:
    kept = judge(database, np.zeros(CALIBRATIONS), 16, chosen=False)
    assert (kept.verdict, kept.value, kept.n) == ("holds here", pytest.approx(-EPSILON - 0.05), CALIBRATIONS)
    assert judge(database, np.ones(CALIBRATIONS), 16, rule="naive").verdict == "not measured"


@pytest.mark.parametrize(
    ("loss", "n", "breaks"), [(0.25, 16, 0), (0.5, 16, 1), (1.0, 16, 1), (0.0, 16, 0), (0.2, 40, 0)]
)
def test_one_calibration_breaks_it_where_its_losses_reject_delta(
    database: Database, loss: float, n: int, breaks: int
) -> None:
    # Of 16 documents P[Bin(16, 0.1) >= 4] is 0.068 and P[Bin(16, 0.1) >= 8] is 0.00006; e times that is the bound.
    found = judge(database, np.array([loss]), n)
    assert found.value == pytest.approx(breaks - EPSILON - 0.05)
