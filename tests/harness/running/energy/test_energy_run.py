"""Energy from counters to views: a timing whose meter returns known joules, and a timing without counters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from suite_runs import plan_suite, run_plan

from exitbench.harness.running import passes
from exitbench.harness.running.energy.counters import Counter
from exitbench.harness.running.energy.meter import Idle, Moment
from exitbench.harness.running.timing import ORDER
from exitbench.results.database.connection import Database, open_database
from exitbench.results.ingest.ingest import ingest
from exitbench.results.spool.attempts import latest_status

SUITE = """
schema = 1
name = "energy"
seed = 3
[models.tiny]
path = "{model}"
[tasks]
wmt-en-fr = {{ limit = 4, max_new_tokens = 6 }}
[timing]
documents = 4
max_rounds = 2
target_half_width = 1e-9
warm_up = 0
[[sweep]]
method = "static"
query = {{ exit_layer = [1] }}
kinds = ["quality", "timing"]
"""
S = 1_000_000_000
JOULES = {"full": 3.0, "method": 2.0}
IDLE_W = 0.25
DOMAINS = {"package-0": 0.75, "package-0/dram": 0.25, "psys": 4.0}
"""Share of a decode's energy that each counter records."""


class KnownMeter:
    """Meter that returns a known energy for each decode, by whether full depth or the method is timed, within 1%.

    It relies on the order in which a timing decodes (ORDER).
    """

    def __init__(self) -> None:
        self.counters = tuple(Counter(name, name != "psys", 10**12, 1_000, lambda: 0) for name in DOMAINS)
        self._reads = itertools.count()
        self._uj = dict.fromkeys(DOMAINS, 0)

    def idle(self) -> tuple[Idle, ...]:
        return tuple(
            Idle(each.domain, each.is_counted, round(IDLE_W * 1e6 * DOMAINS[each.domain]), S, 1_000_000)
            for each in self.counters
        )

    def read(self) -> Moment:
        number = next(self._reads)
        decode, ends = divmod(number, 2)
        arm, _ = ORDER[decode % len(ORDER)]
        joules = JOULES[arm] * (1 + 0.01 * math.sin(decode**2)) if ends else 50.0
        self._uj = {name: uj + round(1e6 * joules * DOMAINS[name]) for name, uj in self._uj.items()}
        return Moment(number * S, tuple(self._uj.values()))


Query = Callable[[str], list[dict[str, Any]]]


def run_suite(folder: Path, model: Path) -> Path:
    """Run the suite in this process, so that it uses the replaced meter; return the database."""
    run_plan(plan_suite(folder, SUITE.format(model=model)), folder / "spool")
    assert ingest(folder / "spool", folder / "exitbench.duckdb").quarantined == ()
    return folder / "exitbench.duckdb"


@pytest.fixture(scope="module")
def measured(worded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(passes, "open_meter", lambda device: KnownMeter())
        return run_suite(tmp_path_factory.mktemp("measured"), worded_model)


@pytest.fixture
def query(measured: Path) -> Query:
    def ask(sql: str) -> list[dict[str, Any]]:
        with open_database(measured) as database:
            rows: list[dict[str, Any]] = database.query(sql).to_pylist()
        return rows

    return ask


def test_timings_view_has_joules_for_total_but_not_per_phase(query: Query) -> None:
    rows = query("FROM timings")
    assert {row["phase"] for row in rows} == {"prefill", "decode", "total"}
    for row in rows:
        energy = {name: row[name] for name in row if "joules" in name or name == "energy_ratio"}
        if row["phase"] != "total":
            assert set(energy.values()) == {None}
            continue
        joules = JOULES["method" if row["arm"] == "method" else "full"]
        assert energy == pytest.approx(
            {
                "joules": joules,
                "joules_per_token": joules / row["tokens"],
                "net_joules": joules - IDLE_W,  # a second passes between two readings
                "net_joules_per_token": (joules - IDLE_W) / row["tokens"],
                "full_joules": JOULES["full"],
                "energy_ratio": JOULES["full"] / joules,
            },
            rel=0.02,
        )


def test_frontier_has_joules_per_token_and_the_energy_ratio_with_its_interval(query: Query) -> None:
    (row,) = query("FROM frontier WHERE method = 'static'")
    tokens, full_tokens = row["tokens_per_request"], row["full_tokens_per_request"]
    assert row["joules_per_token"] == pytest.approx(JOULES["method"] / tokens, rel=0.01)
    assert row["net_joules_per_token"] == pytest.approx((JOULES["method"] - IDLE_W) / tokens, rel=0.01)
    assert row["full_joules_per_token"] == pytest.approx(JOULES["full"] / full_tokens, rel=0.01)
    assert row["full_net_joules_per_token"] == pytest.approx((JOULES["full"] - IDLE_W) / full_tokens, rel=0.01)
    assert row["energy_ratio_low"] < row["energy_ratio"] < row["energy_ratio_high"]
    assert row["energy_ratio"] == pytest.approx(1.5, rel=0.01)
    assert 0.98 < row["aa_energy_low"] < row["aa_energy_high"] < 1.02


def test_frontier_energy_equals_the_sum_over_timings(query: Query) -> None:
    (row,) = query(
        """SELECT sum(full_joules) / sum(joules) AS ratio, any_value(f.energy_ratio) AS told,
                sum(joules) / sum(tokens) AS joules, any_value(f.joules_per_token) AS told_joules,
                sum(t.net_joules) / sum(tokens) AS net, any_value(f.net_joules_per_token) AS told_net
           FROM timings AS t JOIN frontier AS f ON f.timing_attempt_id = t.attempt_id
           WHERE arm = 'method' AND phase = 'total'"""
    )
    assert row["ratio"] == pytest.approx(row["told"])
    assert row["joules"] == pytest.approx(row["told_joules"])
    assert row["net"] == pytest.approx(row["told_net"])


def test_energy_readings_store_every_counter_with_idle_power_and_update_interval(query: Query) -> None:
    rows = query("FROM energy_readings")
    assert len(rows) == 4 * 2 * len(ORDER) * len(DOMAINS)
    for row in rows:
        part = DOMAINS[row["domain"]]
        assert row["is_counted"] is (row["domain"] != "psys")
        assert row["joules"] == pytest.approx(part * JOULES["method" if row["arm"] == "method" else "full"], rel=0.011)
        assert row["power_w"] == pytest.approx(row["joules"])  # of a second
        assert (row["ms"], row["update_ms"]) == (1000, 1)
        assert row["idle_power_w"] == pytest.approx(IDLE_W * part)
        assert row["net_joules"] == pytest.approx(row["joules"] - IDLE_W * part)
    answer = {row["metric"]: row["value"] for row in query("FROM metric_values WHERE role = 'energy'")}
    assert (answer["idle_power_w"], answer["energy_counters"], answer["energy_updates"]) == (IDLE_W, 2, 1000)


def energy_logged(spool: Path) -> list[str]:
    logs = (log.read_text().splitlines() for log in spool.glob("*/*/*/log.txt"))
    return [line for lines in logs for line in lines if line.startswith("energy: ")]


def test_log_names_the_energy_counters(measured: Path) -> None:
    assert energy_logged(measured.parent / "spool") == ["energy: package-0, package-0/dram, psys"]


COLUMNS = """
    SELECT count(joules_per_token), count(net_joules_per_token), count(energy_ratio), count(aa_energy_low)
    FROM frontier
"""
ENERGY = "SELECT count(joules) + count(net_joules) + count(full_joules) + count(energy_ratio) AS n FROM timings"


def require_no_energy(database: Database) -> None:
    assert database.query("SELECT count(speedup) AS n FROM timings WHERE arm = 'method'")["n"].to_pylist() != [0]
    assert database.query(ENERGY)["n"].to_pylist() == [0]
    assert database.query("SELECT count(*) AS n FROM energy_readings")["n"].to_pylist() == [0]
    (counts,) = database.query(COLUMNS).to_pylist()
    assert set(counts.values()) == {0}


def test_energy_columns_are_null_without_counters(worded_model: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(passes, "open_meter", lambda device: "no counters here")
        path = run_suite(tmp_path, worded_model)
    with open_database(path) as database:
        require_no_energy(database)
    folders = [status.path for status in latest_status(tmp_path / "spool").values()]
    assert not [file.name for folder in folders for file in folder.glob("energy*")]
    assert energy_logged(tmp_path / "spool") == ["energy: no counters here"]
