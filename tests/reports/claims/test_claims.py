"""Verdicts on claims follow from interval and bound, name their models and data, and can have either outcome."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exitbench.errors import UserError
from exitbench.reports.claims import (
    COLUMNS,
    HEADINGS,
    VERDICTS,
    Verdict,
    as_row,
    by_kind,
    check_claim,
    check_claims,
    counted,
    full_entry,
    markdown,
    table,
)
from exitbench.reports.claims.claim import CLAIM, CONSISTENCY, KINDS, Claim, Scope, read_claims, scope_of
from exitbench.results.database.connection import Database, open_database

MADE_UP = Claim(
    claim_id="made-up", ledger="mee", kind=CLAIM, paper="MEE", place="nowhere", shown_in=None, quotation="It is so.",
    unquoted=None, text="A claim.", conditions="None.", unit="points", direction="at_least", bound=1.0, tolerance=0.1,
    published=2.0, n_of="runs", limits=None, simulated=False, exact=False, suite="builtin",
    follow_up_command=None, caveat="None.", reason=None,
    evidence_sql="SELECT 1",
)  # fmt: skip
PRINTED = replace(MADE_UP, kind=CONSISTENCY, quotation=None, suite=None, exact=True)
NO_RUNS = "NULL::VARCHAR[] AS attempts"


@pytest.fixture(scope="module")
def database(small_database: Path) -> Iterator[Database]:
    with open_database(small_database) as opened:
        yield opened


@pytest.fixture(scope="module")
def verdicts(database: Database) -> tuple[Verdict, ...]:
    return check_claims(database)


# ------------------------------------------------------------------------------------------ verdicts


@pytest.mark.parametrize(
    ("direction", "value", "low", "high", "verdict"),
    [
        ("at_least", 9.0, None, None, "undecided"),
        ("at_least", 9.0, 9.0, 9.0, "undecided"),
        ("at_least", 0.3, 0.1 + 0.2, 0.3, "undecided"),
        ("at_least", 2.0, 0.9, 3.1, "holds here"),
        ("at_least", 2.0, 0.8, 3.2, "undecided"),
        ("at_least", 0.5, 0.2, 0.8, "fails here"),
        ("at_most", 1.0, 0.8, 1.2, "undecided"),
        ("at_most", 2.0, 1.2, 2.8, "fails here"),
        ("within", 1.0, 0.95, 1.05, "holds here"),
        ("within", 1.0, 0.5, 1.5, "undecided"),
        ("within", 1.5, 1.2, 1.8, "fails here"),
        ("at_least", None, None, None, "not measured"),
    ],
)
def test_verdict_depends_on_the_whole_interval(
    database: Database, direction: str, value: float | None, low: float | None, high: float | None, verdict: str
) -> None:
    ends = ", ".join("NULL" if it is None else str(it) for it in (value, low, high))
    query = f"SELECT *, {NO_RUNS} FROM (VALUES ({ends}, 3)) AS t(value, low, high, n)"
    assert check_claim(database, replace(MADE_UP, direction=direction, evidence_sql=query)).verdict == verdict


@pytest.mark.parametrize(
    ("direction", "value", "verdict"),
    [
        ("at_least", 0.9, "holds here"),
        ("at_least", 0.89, "fails here"),
        ("at_most", 1.1, "holds here"),
        ("at_most", 1.11, "fails here"),
        ("within", 1.1, "holds here"),
        ("within", 0.8, "fails here"),
    ],
)
@pytest.mark.parametrize("interval", ["NULL AS low, NULL AS high", "{0} AS low, {0} AS high"])
def test_only_exact_claims_are_decided_without_an_interval(
    database: Database, direction: str, value: float, verdict: str, interval: str
) -> None:
    query = f"SELECT {value} AS value, {interval.format(value)}, 3 AS n"
    claim = replace(MADE_UP, direction=direction, evidence_sql=f"{query}, {NO_RUNS}")
    assert check_claim(database, replace(claim, exact=True)).verdict == verdict
    assert check_claim(database, claim).verdict == "undecided"
    printed = replace(PRINTED, direction=direction, evidence_sql=query)
    assert check_claim(database, printed).verdict == {"holds here": "consistent", "fails here": "inconsistent"}[verdict]


@pytest.mark.parametrize(
    ("n", "n_of", "verdict"),
    [(2, "models and tasks", "undecided"), (3, "models and tasks", "holds here"), (2, "runs", "holds here")],
)
def test_one_or_two_models_and_tasks_decide_nothing(database: Database, n: int, n_of: str, verdict: str) -> None:
    claim = replace(
        MADE_UP,
        n_of=n_of,
        direction="at_least",
        evidence_sql=f"SELECT 9 AS value, 8 AS low, 10 AS high, {n} AS n, {NO_RUNS}",
    )
    assert check_claim(database, claim).verdict == verdict


@pytest.mark.parametrize(
    ("value", "bound", "rows", "verdict", "low", "high"),
    [
        (1.0, 0.78, 86, "holds here", 0.025 ** (1 / 86), 1.0),
        (1.0, 0.78, 4, "undecided", 0.025 ** (1 / 4), 1.0),
        (0.0, 0.2, 60, "fails here", 0.0, 1 - 0.025 ** (1 / 60)),
        (0.5, 0.52, 10, "undecided", 0.5 * 0.025 ** (1 / 10), 1 - 0.5 * 0.025 ** (1 / 10)),
        (1.0, 0.78, 1, "undecided", 0.025, 1.0),
    ],
)
def test_equal_rows_are_decided_by_the_exact_interval_for_their_count(
    database: Database, value: float, bound: float, rows: int, verdict: str, low: float, high: float
) -> None:
    equal = f"FROM (SELECT {value} AS share FROM range({rows}))"
    interval = "value - mean_half_width(share) AS low, value + mean_half_width(share) AS high"
    query = f"SELECT avg(share) AS value, {interval}, 638 AS n, count(*) AS rows, {NO_RUNS} {equal}"
    claim = replace(MADE_UP, bound=bound, tolerance=0.0, limits=(0.0, 1.0), evidence_sql=query)
    checked = check_claim(database, claim)
    assert (checked.verdict, checked.low, checked.high) == (verdict, pytest.approx(low), pytest.approx(high))
    # of no limits nothing follows
    without_limits = check_claim(database, replace(claim, limits=None))
    assert without_limits.verdict == "undecided"


def test_real_queries_give_each_verdict_with_its_evidence(database: Database) -> None:
    query = """
        SELECT mean AS value, mean - half AS low, mean + half AS high, n{}
        FROM (
            SELECT
                avg(mean_exit_layer) AS mean, mean_half_width(mean_exit_layer) AS half, count(*) AS n,
                list(attempt_id) AS attempts
            FROM frontier WHERE model = 'world-gpt' AND method = '{}' AND execution = 'real'
        )
    """
    deep = replace(MADE_UP, evidence_sql=query.format(", attempts", "calm-softmax"))
    printed = replace(PRINTED, evidence_sql=query.format("", "calm-softmax"))
    verdicts = [
        check_claim(database, claim)
        for claim in (
            replace(deep, bound=0.0),
            replace(deep, bound=9.0),
            replace(printed, bound=0.0),
            replace(printed, bound=9.0),
            replace(deep, bound=2.5),
            replace(MADE_UP, reason="It cannot be.", evidence_sql=None),
            replace(deep, evidence_sql=query.format(", attempts", "nothing")),
        )
    ]
    assert tuple(it.verdict for it in verdicts) == VERDICTS
    # Exits of 1.6, 2.45 and 3.7 blocks: Student's interval of three runs reaches from below 0 to above 5.
    interval = "2.583 [-0.04095, 5.208] points, n = 3 runs"
    (model,) = database.query("SELECT DISTINCT parameters, blocks FROM runs WHERE model = 'world-gpt'").to_pylist()
    assert verdicts[4].scope == Scope(*[model["parameters"]] * 2, *[model["blocks"]] * 2, data="generated")
    assert verdicts[4].evidence == f"{interval}; {verdicts[4].scope}" and verdicts[2].evidence == interval
    assert verdicts[5].evidence == "It cannot be." and "exitbench run builtin" in verdicts[6].evidence
    assert "(simulated)" in replace(verdicts[0], claim=replace(deep, simulated=True)).evidence
    row = dict(zip(COLUMNS, as_row(verdicts[4]), strict=True))
    assert (row["parameters_high"], row["blocks_low"], row["data"]) == (
        model["parameters"],
        model["blocks"],
        "generated",
    )
    assert dict(zip(COLUMNS, as_row(verdicts[2]), strict=True))["data"] is None


@pytest.mark.parametrize(
    ("sizes", "data", "says"),
    [
        ((930_000, 930_000, 8, 8), "generated", "930k parameters, 8 blocks, generated data"),
        (
            (930_000, 8_030_261_248, 8, 32),
            "generated and real",
            "930k to 8B parameters, 8 to 32 blocks, generated and real data",
        ),
        ((1_540_000, 60_000_000, 6, 6), "real", "1.5M to 60M parameters, 6 blocks, real data"),
    ],
)
def test_scope_is_described_in_few_words(sizes: tuple[int, int, int, int], data: str, says: str) -> None:
    assert str(Scope(*sizes, data)) == says


def test_scope_distinguishes_real_and_generated_data(example: Any, tmp_path: Path) -> None:
    attempts = []
    for source in ("builtin", "huggingface"):
        cell = example.cell_json(example.MODELS[0], example.TASKS[0], example.FULL, "quality")
        cell |= {
            "cell_id": hashlib.sha256(source.encode()).hexdigest(),
            "task": {**cell["task"], "source": source, "data_sha256": source},
        }
        attempts.append(example.write_attempt(tmp_path / "spool", cell, {}))
    with open_database(example.ingested(tmp_path)) as opened:
        scopes = [scope_of(opened, some) for some in (attempts[:1], attempts[1:], attempts, ())]
    assert [it and it.data for it in scopes] == ["generated", "real", "generated and real", None]


def test_evidence_with_n_of_zero_is_not_measured(database: Database) -> None:
    query = f"SELECT 1.0 AS value, 0.9 AS low, 1.1 AS high, 0 AS n, {NO_RUNS}"
    verdict = check_claim(database, replace(MADE_UP, evidence_sql=query))
    assert (verdict.verdict, verdict.value, verdict.n) == ("not measured", None, 0)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT 1 AS value, 1 AS n", "one row of attempts, high, low, n, value"),
        ("SELECT 1 AS value, 1 AS low, 1 AS high, 1 AS n", "one row of attempts, high, low, n, value"),
        (f"SELECT 1 AS value, 1 AS low, 1 AS high, 1 AS n, {NO_RUNS} WHERE false", "one row of attempts"),
        ("FROM nonsense", "nonsense"),
        ("DELETE FROM cell RETURNING 1 AS value, 1 AS low, 1 AS high, 1 AS n", "read-only"),
    ],
)
def test_claim_with_a_failing_query_is_named(database: Database, query: str, says: str) -> None:
    with pytest.raises(UserError, match=rf"(?s)Claim made-up: .*{says}"):
        check_claims(database, [replace(MADE_UP, evidence_sql=query)])
    # Nothing is left of what was computed for it.
    assert database.query("FROM duckdb_tables() WHERE temporary").num_rows == 0


# ------------------------------------------------------------------------------------------ evidence


def test_without_runs_only_claims_about_printed_numbers_are_decided(empty_database: Path) -> None:
    with open_database(empty_database) as opened:
        for verdict in check_claims(opened):
            measured = "not comparable" if verdict.claim.reason else "not measured"
            printed = {"consistent", "inconsistent", "undecided"}
            assert verdict.verdict in (printed if verdict.claim.kind == CONSISTENCY else {measured}), (
                verdict.claim.claim_id
            )


KNOWN = {
    "inconsistent": {
        "mee-weighted-most-monotone-in-their-figure": -0.16,
        "prune-table-1-is-the-mean-of-its-figure": 1.24,
        "natcap-few-tokens-need-the-last-block-in-table-1": 35.55,
        "natcap-tables-3-and-10-agree": 0.74,
        "prune-saves-what-its-figure-shows": 50.77,
        "natcap-punctuation-is-lowest-and-rare": 26.77 - 19.11,
        "heads-thresholds-grow-with-epsilon": 3.1871 - 3.3787,
        "calm-largest-threshold-is-full-depth": 14.876,
    },
    "consistent": {
        "prune-squad-gain-is-the-average-of-its-figure": 2.46,
        "prune-samsum-gain-is-the-average-of-its-figure": 2.89,
        "mee-measures-are-slower-in-their-logs": 0.742,
        "natcap-joint-optimisation-speeds-up-in-table-4": 1.305,
    },
}
"""Differences within the papers' printed numbers, by the verdict on them and by claim."""


@pytest.mark.parametrize("verdict", KNOWN)
def test_known_consistencies_and_inconsistencies_of_the_papers_are_found(
    verdict: str, verdicts: tuple[Verdict, ...]
) -> None:
    by_claim = {it.claim.claim_id: it for it in verdicts if it.claim.claim_id in KNOWN[verdict]}
    assert {name: it.value for name, it in by_claim.items()} == pytest.approx(KNOWN[verdict], abs=0.006)
    assert {it.verdict for it in by_claim.values()} == {verdict}


def test_unmeasured_claim_names_the_commands_that_measure_it() -> None:
    def evidence(**changed: object) -> str:
        return Verdict(replace(MADE_UP, **changed), "not measured").evidence

    assert evidence() == "measured by `exitbench run builtin`"
    assert evidence(follow_up_command="exitbench annotate upos") == (
        "measured by `exitbench run builtin`, then `exitbench annotate upos`"
    )
    assert evidence(suite=None) == "no such number is printed"


def test_comparisons_of_trained_exit_heads_name_the_suite_that_trains_all_of_them() -> None:
    """The suite of the papers' figures trains one kind of exit heads; the suite of settings trains the other kinds."""
    compares = {
        claim.claim_id: claim.suite for claim in read_claims() if "entropy_weight" in (claim.evidence_sql or "")
    }
    assert compares and set(compares.values()) == {"heads-settings"}


def test_swapping_the_training_losses_reverses_the_evidence(small_database: Path, tmp_path: Path) -> None:
    queries = {claim: claim.evidence_sql or "" for claim in read_claims()}
    compared = [it for it, sql in queries.items() if "v.loss = 'last'" in sql and "FROM probe_trace" in sql]
    assert len(compared) >= 4
    either = []
    for losses in (("weighted", "last"), ("last", "weighted")):
        path = tmp_path / f"{losses[0]}.duckdb"
        shutil.copy(small_database, path)
        with open_database(path, read_only=False) as opened, opened.engine.begin() as connection:
            for model, loss in zip(("world-t5", "world-gpt"), losses, strict=True):
                card = json.dumps({"recipe": {"objective": {"loss": loss}}})
                trained = "SELECT weights_sha256, name, $1::JSON FROM model_artifact WHERE name = $2"
                connection.exec_driver_sql(f"INSERT INTO training_run {trained}", (card, model))
        with open_database(path) as opened:
            either.append(check_claims(opened, compared))
    for before, other in zip(*either, strict=True):
        assert before.value is not None and before.n == other.n == 8
        assert other.value is not None and other.low is not None and other.high is not None
        assert (before.value, before.low, before.high) == pytest.approx((-other.value, -other.high, -other.low))
    assert any(before.value for before in either[0])


HEADS = (
    ("contrastive-jsd", "full"),
    ("calm-softmax", "pruned-fixed"),
    ("calm-softmax", "pruned-decaying"),
    ("contrastive-jsd", "pruned-fixed"),
)
FULL_SOFTMAX = "kind = 'quality' AND method = 'calm-softmax' AND (params ->> 'head') = 'full'"


def _copy_runs(opened: Database, suffix: str, runs: str, changed: str, shift: float) -> None:
    """Copy runs under new ids: `runs` is the condition that selects cells, `changed` the new columns, `shift` is added
    to metrics.
    """
    cells = f"WHERE cell_id IN (SELECT cell_id FROM cell WHERE {runs})"
    attempts = f"WHERE attempt_id IN (SELECT attempt_id FROM attempt {cells})"
    cell, attempt = f"cell_id || '{suffix}' AS cell_id", f"attempt_id || '{suffix}' AS attempt_id"
    statements = (
        f"INSERT INTO probe_token SELECT * REPLACE ({attempt}) FROM probe_token {attempts}",
        f"INSERT INTO token_exit SELECT * REPLACE ({attempt}) FROM token_exit {attempts}",
        f"INSERT INTO metric SELECT * REPLACE ({attempt}, value + {shift} AS value) FROM metric {attempts}",
        f"INSERT INTO attempt SELECT * REPLACE ({attempt}, {cell}) FROM attempt {cells}",
        f"INSERT INTO cell SELECT * REPLACE ({cell}, {changed}) FROM cell {cells}",
    )
    with opened.engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


@pytest.fixture(scope="module")
def pairs_database(small_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database of two models trained for their last block, each with two gates over full and pruned heads."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.duckdb"
    shutil.copy(small_database, path)
    card = json.dumps({"recipe": {"objective": {"loss": "last"}}})
    with open_database(path, read_only=False) as opened:
        with opened.engine.begin() as connection:
            trained = "SELECT weights_sha256, name, $1::JSON FROM model_artifact"
            connection.exec_driver_sql(f"INSERT INTO training_run {trained}", (card,))
            full = """json_merge_patch(params, '{"head": "full", "rule": "constant"}')"""
            connection.exec_driver_sql(f"UPDATE cell SET params = {full} WHERE method = 'calm-softmax'")
        for number, (method, head) in enumerate(HEADS):
            changed = f"""json_merge_patch(params, '{{"head": "{head}"}}') AS params, '{method}' AS method"""
            _copy_runs(opened, f"-{number}", FULL_SOFTMAX, changed, -0.2 - number / 7)
    return path


def test_claims_about_scores_exclude_error_metrics(pairs_database: Path, as_errors: Callable[[Path], Path]) -> None:
    values = []
    for path in (pairs_database, as_errors(pairs_database)):
        with open_database(path) as opened:
            values.append([verdict.value for verdict in check_claims(opened)])
    changed_scores = [errors for scores, errors in zip(*values, strict=True) if errors != scores]
    assert changed_scores and set(changed_scores) == {None}


@pytest.fixture(scope="module")
def of_one_batch_size(pairs_database: Path) -> tuple[list[Claim], tuple[Verdict, ...]]:
    """Return claims that compare settings or read probes, and the verdicts on them."""
    queries = {claim: claim.evidence_sql or "" for claim in read_claims()}
    compared = [claim for claim, sql in queries.items() if claim.ledger == "prune" and "USING (setting_id" in sql]
    probed = [claim for claim, sql in queries.items() if "FROM probe_trace" in sql and claim not in compared]
    with open_database(pairs_database) as opened:
        verdicts = check_claims(opened, compared + probed)
    assert sum(it.n > 1 and it.low is not None for it in verdicts if it.claim in compared) >= 4, counted(verdicts)
    assert sum(it.n > 1 and it.low is not None for it in verdicts if it.claim in probed) >= 2, counted(verdicts)
    return compared + probed, verdicts


@pytest.mark.parametrize(
    ("runs", "shift"),
    [
        pytest.param("kind IN ('quality', 'probe')", 0.0, id="every run, the same results"),
        pytest.param(
            f"kind = 'quality' AND method = 'full' OR {FULL_SOFTMAX}", -0.3, id="one side of each pair, other results"
        ),
    ],
)
def test_a_second_batch_size_changes_no_verdict(
    pairs_database: Path,
    of_one_batch_size: tuple[list[Claim], tuple[Verdict, ...]],
    tmp_path: Path,
    runs: str,
    shift: float,
) -> None:
    claims, before = of_one_batch_size
    path = tmp_path / "second.duckdb"
    shutil.copy(pairs_database, path)
    other = (
        "2 AS batch_size, setting_id || '-batch-2' AS setting_id, "
        "full_depth_cell_id || '-batch-2' AS full_depth_cell_id"
    )
    with open_database(path, read_only=False) as opened:
        _copy_runs(opened, "-batch-2", runs, other, shift)
    with open_database(path) as opened:
        after = check_claims(opened, claims)
    for old, new in zip(before, after, strict=True):
        assert (old.verdict, old.n) == (new.verdict, new.n), old.claim.claim_id
        assert (old.value, old.low, old.high) == pytest.approx((new.value, new.low, new.high)), old.claim.claim_id


@pytest.mark.parametrize(
    ("published", "value", "low", "high", "difference"),
    [
        (0.5, 0.75, 0.5, 1.0, "+0.25 [+0, +0.5]"),
        (2.0, 1.0, None, None, "-1"),
        (None, 1.0, 0.5, 1.5, ""),
        (2.0, None, None, None, ""),
    ],
)
def test_difference_from_the_published_value_respects_the_interval(
    published: float | None, value: float | None, low: float | None, high: float | None, difference: str
) -> None:
    it = Verdict(replace(MADE_UP, published=published), "undecided", value, low, high, n=3)
    assert it.difference == difference
    assert it.evidence == (f"{it.measured} points, n = 3 runs" if value else "measured by `exitbench run builtin`")


# ------------------------------------------------------------------------------------------ words


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_fit_the_width_and_have_every_claim(verdicts: tuple[Verdict, ...], width: int) -> None:
    lines = table(verdicts, width).split("\n")
    assert max(map(len, lines)) <= width
    header = next((line for line in lines if line.startswith("verdict ")), None)
    if header is not None:  # long ids are broken within their column
        lines_of_ids = [line[header.index("claim") : header.index("evidence")] for line in lines]
    unwrapped = "".join("".join(lines if header is None else lines_of_ids).split())
    assert all(it.claim.claim_id in unwrapped for it in verdicts)
    assert [line.capitalize() for line in lines if line.lower() in HEADINGS.values()] == [
        heading.capitalize() for heading in HEADINGS.values()
    ]


def test_verdicts_are_counted_separately_per_kind_of_claim(
    verdicts: tuple[Verdict, ...],
) -> None:
    lines = counted(verdicts).split("\n")
    by_verdict = by_kind(verdicts)
    assert list(by_verdict) == list(KINDS) and counted(()) == "no claims"
    for line, (kind, some) in zip(lines, by_verdict.items(), strict=True):
        assert line.startswith(f"{len(some)} {HEADINGS[kind]}: ")
        total = sum(int(part.split()[0]) for part in line.split(": ")[1].split(", "))
        assert total == len(some)
        printed, measured = {"consistent", "inconsistent"}, {"holds here", "fails here"}
        assert not {it.verdict for it in some} & (measured if kind == CONSISTENCY else printed)


def test_markdown_and_rows_have_every_claim(verdicts: tuple[Verdict, ...]) -> None:
    lines = markdown(verdicts).split("\n")
    tables = [line for line in lines if line.startswith("|")]
    assert len(tables) == len(verdicts) + 2 * len(KINDS) and {t.replace("\\|", "").count("|") for t in tables} == {8}
    assert [line[4:].lower() for line in lines if line.startswith("###")] == list(HEADINGS.values())
    rows = [dict(zip(COLUMNS, as_row(it), strict=True)) for it in verdicts]
    assert [(row["claim_id"], row["verdict"], row["n"]) for row in rows] == [
        (it.claim.claim_id, it.verdict, it.n) for it in verdicts
    ]


def test_full_claim_entry_has_source_quotation_criterion_and_query(verdicts: tuple[Verdict, ...]) -> None:
    (verdict,) = [it for it in verdicts if it.claim.claim_id == "mee-measures-are-slower-than-full-depth"]
    text = full_entry(verdict, 100)
    assert "MEEBLOG, section 3" in text and "exitbench run mee" in text and "at most 1 speed-up" in text
    assert "“they also exhibit high latency" in text
    assert text.endswith((verdict.claim.evidence_sql or "").strip())
