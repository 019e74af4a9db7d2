"""The ledger of claims: each can be checked, its verdict follows from interval and bound, evidence can go both ways."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exitbench.errors import UserError
from exitbench.reports.claims import VERDICTS, Verdict, check_claim, check_claims
from exitbench.reports.claims.claim import DIRECTIONS, MEASURED, NONE, PRINTED, Claim
from exitbench.reports.claims.ledger import LEDGERS, read_claims, read_file
from exitbench.reports.claims.words import COLUMNS, as_row, counted, in_full, markdown, table
from exitbench.results.database import Database, open_database

SUITES = Path(__file__).parents[2] / "harness" / "suites"
FIVE = {"mee", "prune", "natcap", "heads"}
CLAIM = Claim(
    claim_id="made-up", ledger="mee", paper="MEE", place="nowhere", text="A claim.", conditions="None.",
    kind_of_evidence=MEASURED, unit="points", direction="at_least", bound=1.0, tolerance=0.1, published=2.0,
    n_of="runs", simulated=False, exact=False, suite="builtin", caveat="None.", reason=None, evidence_sql="SELECT 1",
)  # fmt: skip


@pytest.fixture(scope="module")
def database(small_database: Path) -> Iterator[Database]:
    with open_database(small_database) as opened:
        yield opened


@pytest.fixture(scope="module")
def verdicts(database: Database) -> tuple[Verdict, ...]:
    return check_claims(database)


# ------------------------------------------------------------------------------------------ the ledger


def test_the_five_documents_have_at_least_forty_claims_and_every_file_some() -> None:
    claims = read_claims()
    assert sum(claim.ledger in FIVE for claim in claims) >= 40
    assert [*dict.fromkeys(claim.ledger for claim in claims)] == list(LEDGERS)
    assert {claim.paper for claim in claims} > {"MEE", "MEEBLOG", "PRUNE", "NATCAP", "HEADS"}


def test_every_claim_says_what_it_is_of_and_how_ours_differs() -> None:
    for claim in read_claims():
        assert claim.text.endswith(".") and claim.conditions.endswith("."), claim.claim_id
        assert (claim.reason or claim.caveat or "").endswith("."), claim.claim_id
        assert claim.suite is None or (SUITES / f"{claim.suite}.toml").exists(), claim.claim_id
        assert claim.kind_of_evidence != PRINTED or "FROM published" in (claim.evidence_sql or ""), claim.claim_id


def test_random_weights_are_never_evidence_and_what_was_not_decoded_is_called_simulated() -> None:
    for claim in read_claims():
        query = claim.evidence_sql or ""
        if claim.kind_of_evidence == MEASURED and "FROM training_curves" not in query:
            assert "random_weights" in query, claim.claim_id
        if "FROM frontier" in query:
            assert "execution = 'real'" in query, claim.claim_id
        assert claim.simulated == ("probe_trace" in query or "'simulated'" in query), claim.claim_id


def test_only_printed_numbers_and_what_is_so_in_every_run_are_exact() -> None:
    exact = {claim.claim_id for claim in read_claims() if claim.exact and claim.kind_of_evidence == MEASURED}
    assert exact == {"layerskip-answers-are-full-depths"}
    assert all(claim.exact for claim in read_claims() if claim.kind_of_evidence == PRINTED)


def test_comparisons_of_trainings_and_choices_on_the_scored_documents_are_told() -> None:
    for claim in read_claims():
        query = claim.evidence_sql or ""
        if re.search(r"[vf]\.loss = '(last|shallow-deep)'\n$|\bh\.weight = |c\.is_copy", query):
            assert "variation between trainings is outside the interval" in (claim.caveat or ""), claim.claim_id
        if any(
            best in query
            for best in ("min(mean_exit_layer /", "max(f.speedup)", "max(f.value /", "j.value > s.value - 2")
        ):
            assert "not widened for that choice" in (claim.caveat or ""), claim.claim_id


def test_every_claim_can_hold_and_fail() -> None:
    for claim in read_claims():
        if claim.kind_of_evidence == NONE:
            continue
        beyond = claim.tolerance + 1
        assert claim.admits(claim.bound)
        missed = claim.bound + (beyond if claim.direction == "at_most" else -beyond)
        assert claim.excludes(missed, missed), claim.claim_id


# ------------------------------------------------------------------------------------------ verdicts


@pytest.mark.parametrize(
    ("direction", "value", "low", "high", "verdict"),
    [
        ("at_least", 9.0, None, None, "undecided"),
        ("at_least", 9.0, 9.0, 9.0, "undecided"),
        ("at_least", 0.3, 0.1 + 0.2, 0.3, "undecided"),
        ("at_least", 2.0, 0.9, 3.1, "holds"),
        ("at_least", 2.0, 0.8, 3.2, "undecided"),
        ("at_least", 0.5, 0.2, 0.8, "does not hold"),
        ("at_most", 1.0, 0.8, 1.2, "undecided"),
        ("at_most", 2.0, 1.2, 2.8, "does not hold"),
        ("within", 1.0, 0.95, 1.05, "holds"),
        ("within", 1.0, 0.5, 1.5, "undecided"),
        ("within", 1.5, 1.2, 1.8, "does not hold"),
        ("at_least", None, None, None, "not measured"),
    ],
)
def test_the_whole_interval_decides(
    database: Database, direction: str, value: float | None, low: float | None, high: float | None, verdict: str
) -> None:
    ends = ", ".join("NULL" if it is None else str(it) for it in (value, low, high))
    query = f"SELECT * FROM (VALUES ({ends}, 3)) AS t(value, low, high, n)"
    assert check_claim(database, replace(CLAIM, direction=direction, evidence_sql=query)).verdict == verdict


@pytest.mark.parametrize(
    ("direction", "value", "verdict"),
    [
        ("at_least", 0.9, "holds"),
        ("at_least", 0.89, "does not hold"),
        ("at_most", 1.1, "holds"),
        ("at_most", 1.11, "does not hold"),
        ("within", 1.1, "holds"),
        ("within", 0.8, "does not hold"),
    ],
)
@pytest.mark.parametrize("interval", ["NULL AS low, NULL AS high", "{0} AS low, {0} AS high"])
def test_without_an_interval_only_what_is_exact_is_decided(
    database: Database, direction: str, value: float, verdict: str, interval: str
) -> None:
    query = f"SELECT {value} AS value, {interval.format(value)}, 3 AS n"
    claim = replace(CLAIM, direction=direction, evidence_sql=query)
    assert check_claim(database, replace(claim, exact=True)).verdict == verdict
    assert check_claim(database, claim).verdict == "undecided"


def test_each_kind_of_verdict_comes_from_real_queries_and_says_its_evidence(database: Database) -> None:
    query = """
        SELECT mean AS value, mean - half AS low, mean + half AS high, n
        FROM (
            SELECT avg(mean_exit_layer) AS mean, mean_half_width(mean_exit_layer) AS half, count(*) AS n
            FROM frontier WHERE model = 'world-gpt' AND method = '{}' AND execution = 'real'
        )
    """
    deep = replace(CLAIM, evidence_sql=query.format("calm-softmax"))
    found = [
        check_claim(database, claim)
        for claim in (
            replace(deep, bound=0.0),
            replace(deep, bound=9.0),
            replace(deep, bound=2.5),
            replace(CLAIM, reason="It cannot be.", evidence_sql=None),
            replace(deep, evidence_sql=query.format("nothing")),
        )
    ]
    assert tuple(it.verdict for it in found) == VERDICTS
    # Exits of 1.6, 2.45 and 3.7 blocks: Student's interval of three runs reaches from below 0 to above 5.
    assert found[2].evidence == "2.583 [-0.04095, 5.208] points, n = 3 runs"
    assert found[3].evidence == "It cannot be." and "exitbench run builtin" in found[4].evidence
    assert "(simulated)" in replace(found[0], claim=replace(deep, simulated=True)).evidence


def test_evidence_of_nothing_is_not_measured(database: Database) -> None:
    found = check_claim(database, replace(CLAIM, evidence_sql="SELECT 1.0 AS value, 0.9 AS low, 1.1 AS high, 0 AS n"))
    assert (found.verdict, found.value, found.n) == ("not measured", None, 0)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT 1 AS value, 1 AS n", "one row of value, low, high and n"),
        ("SELECT 1 AS value, 1 AS low, 1 AS high, 1 AS n WHERE false", "one row of value, low, high and n"),
        ("FROM nonsense", "nonsense"),
        ("DELETE FROM cell RETURNING 1 AS value, 1 AS low, 1 AS high, 1 AS n", "read-only"),
    ],
)
def test_a_claim_whose_query_does_not_answer_is_named(database: Database, query: str, says: str) -> None:
    with pytest.raises(UserError, match=rf"(?s)Claim made-up: .*{says}"):
        check_claims(database, [replace(CLAIM, evidence_sql=query)])
    # Nothing is left of what was computed for it.
    assert database.query("FROM duckdb_tables() WHERE temporary").num_rows == 0


# ------------------------------------------------------------------------------------------ evidence


def test_without_runs_only_the_printed_numbers_decide(empty_database: Path) -> None:
    with open_database(empty_database) as opened:
        for found in check_claims(opened):
            kind = found.claim.kind_of_evidence
            expected = {MEASURED: {"not measured"}, NONE: {"not comparable"}}.get(kind, set(VERDICTS[:3]))
            assert found.verdict in expected, found.claim.claim_id


def test_what_the_papers_print_contradicts_them_where_it_is_known_to(verdicts: tuple[Verdict, ...]) -> None:
    known = {
        "mee-weighted-most-monotone-in-their-figure": -0.16,
        "prune-squad-gain-is-no-average": 0.99,
        "prune-samsum-gain-is-no-average": 1.69,
        "prune-table-1-is-the-mean-of-its-figure": 1.24,
        "natcap-few-tokens-need-the-last-block-in-table-1": 35.55,
        "natcap-tables-3-and-10-agree": 0.74,
        "natcap-punctuation-is-lowest-and-rare": 26.77 - 19.11,
        "heads-thresholds-grow-with-epsilon": 3.1871 - 3.3787,
        "calm-largest-threshold-is-full-depth": 14.876,
    }
    found = {it.claim.claim_id: it for it in verdicts if it.claim.claim_id in known}
    assert {name: it.value for name, it in found.items()} == {n: pytest.approx(v, abs=0.006) for n, v in known.items()}
    assert {it.verdict for it in found.values()} == {"does not hold"}


def test_exchanging_the_models_trainings_turns_the_evidence_round(small_database: Path, tmp_path: Path) -> None:
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
    for one, other in zip(*either, strict=True):
        assert one.value is not None and one.n == other.n == 8
        assert other.value is not None and other.low is not None and other.high is not None
        assert (one.value, one.low, one.high) == pytest.approx((-other.value, -other.high, -other.low))
    assert any(one.value for one in either[0])


HEADS = (
    ("contrastive-jsd", "full"),
    ("calm-softmax", "pruned-fixed"),
    ("calm-softmax", "pruned-decaying"),
    ("contrastive-jsd", "pruned-fixed"),
)
FULL_SOFTMAX = "kind = 'quality' AND method = 'calm-softmax' AND (params ->> 'head') = 'full'"


def _copy_runs(opened: Database, suffix: str, runs: str, changed: str, shift: float) -> None:
    """Add once more the runs whose cells a condition chooses, with columns changed and metrics moved by `shift`."""
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
    """Two models trained for their last block, each with softmax and contrastive gates over full and pruned heads."""
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


@pytest.mark.parametrize(
    ("runs", "shift"),
    [
        pytest.param("kind IN ('quality', 'probe')", 0.0, id="every run, the same results"),
        pytest.param(
            f"kind = 'quality' AND method = 'full' OR {FULL_SOFTMAX}", -0.3, id="one side of each pair, other results"
        ),
    ],
)
def test_a_second_batch_size_changes_no_verdict(pairs_database: Path, tmp_path: Path, runs: str, shift: float) -> None:
    queries = {claim: claim.evidence_sql or "" for claim in read_claims()}
    compared = [claim for claim, sql in queries.items() if claim.ledger == "prune" and "USING (setting_id" in sql]
    probed = [claim for claim, sql in queries.items() if "FROM probe_trace" in sql and claim not in compared]
    claims = compared + probed
    with open_database(pairs_database) as opened:
        before = check_claims(opened, claims)
    assert sum(it.n > 1 and it.low is not None for it in before if it.claim in compared) >= 4, counted(before)
    assert sum(it.n > 1 and it.low is not None for it in before if it.claim in probed) >= 2, counted(before)
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
    for one, two in zip(before, after, strict=True):
        assert (one.verdict, one.n) == (two.verdict, two.n), one.claim.claim_id
        assert (one.value, one.low, one.high) == pytest.approx((two.value, two.low, two.high)), one.claim.claim_id


# ------------------------------------------------------------------------------------------ files


ENTRY = """
[[claim]]
claim_id = "one"
paper = "P"
place = "p"
text = "t."
conditions = "c."
unit = "u"
direction = "at_least"
bound = 1.0
n_of = "runs"
caveat = "c."
evidence_sql = "SELECT 1"
"""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text + "[", r"bad\.toml: not TOML"),
        (lambda text: "version = 1\n" + text, r"bad\.toml: must consist of .*claim.*Found: version"),
        (lambda text: "", r"bad\.toml: must consist of"),
        (lambda text: text.replace('unit = "u"\n', ""), r"bad\.toml, claim one: the key 'unit' is missing"),
        (lambda text: text.replace("bound", "bount"), r"claim one: unknown key 'bount'\. Did you mean 'bound'"),
        (lambda text: text.replace("1.0", '"1"'), r"claim one: bound must be a number with a point, not '1'"),
        (lambda text: text.replace("at_least", "at_last"), r"direction is 'at_last'\. Did you mean 'at_least'"),
        (lambda text: text + "tolerance = -1.0\n", r"claim one: tolerance is -1\.0; it must be 0 or more"),
        (lambda text: text.replace('claim_id = "one"\n', ""), r"claim 1: the key 'claim_id' is missing"),
        (lambda text: text + 'reason = "r."\n', r"claim one: unknown key 'unit'"),
        (lambda text: text + text, r"bad\.toml: claim one is already in bad"),
    ],
)
def test_a_bad_file_is_told_with_its_claim_and_key(tmp_path: Path, change: Callable[[str], str], says: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(change(ENTRY), "utf-8")
    with pytest.raises(UserError, match=says):
        read_file(path)


def test_a_good_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "good.toml"
    path.write_text(ENTRY + 'suite = "builtin"\n', "utf-8")
    (claim,) = read_file(path)
    assert (claim.ledger, claim.kind_of_evidence, claim.tolerance, claim.published) == ("good", MEASURED, 0.0, None)
    assert claim.criterion == "at least 1 u" and claim.direction in DIRECTIONS


# ------------------------------------------------------------------------------------------ words


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_fit_the_width_and_have_every_claim(verdicts: tuple[Verdict, ...], width: int) -> None:
    lines = table(verdicts, width).split("\n")
    assert max(map(len, lines)) <= width
    unwrapped = "".join("".join(lines).split())
    assert all(it.claim.claim_id in unwrapped for it in verdicts) or width == 80
    assert counted(verdicts).startswith(f"{len(verdicts)} claims: ") and counted(()) == "no claims"


def test_markdown_and_rows_have_every_claim(verdicts: tuple[Verdict, ...]) -> None:
    lines = markdown(verdicts).split("\n")
    assert len(lines) == len(verdicts) + 2 and {line.replace("\\|", "").count("|") for line in lines} == {7}
    rows = [dict(zip(COLUMNS, as_row(it), strict=True)) for it in verdicts]
    assert [(row["claim_id"], row["verdict"], row["n"]) for row in rows] == [
        (it.claim.claim_id, it.verdict, it.n) for it in verdicts
    ]


def test_one_claim_in_full_has_source_caveat_and_query(verdicts: tuple[Verdict, ...]) -> None:
    (one,) = [it for it in verdicts if it.claim.claim_id == "mee-measures-save-time"]
    text = in_full(one, 100)
    assert "MEEBLOG, scatters" in text and "exitbench run mee" in text and "at least 1 speed-up" in text
    assert text.endswith((one.claim.evidence_sql or "").strip())
