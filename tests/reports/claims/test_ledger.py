"""Files of the ledger of claims: every claim quotes its authors, and errors in a file are named with claim and key."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from exitbench.errors import UserError
from exitbench.reports import figures, tables
from exitbench.reports.claims.claim import (
    CLAIM,
    CONSISTENCY,
    DIRECTIONS,
    KINDS,
    LEDGERS,
    MOST_WORDS,
    read_claims,
    read_file,
)
from exitbench.reports.registry import discover

SUITES = Path(__file__).parents[3] / "harness" / "suites"
FIVE = {"mee", "prune", "natcap", "heads"}


# ------------------------------------------------------------------------------------------ the ledger


def test_ledger_has_forty_claims_of_the_five_documents_and_some_in_every_file() -> None:
    claims = read_claims()
    assert sum(claim.ledger in FIVE for claim in claims) >= 40
    assert {claim.kind for claim in claims} == set(KINDS)
    assert [*dict.fromkeys(claim.ledger for claim in claims)] == list(LEDGERS)
    assert {claim.paper for claim in claims} > {"MEE", "MEEBLOG", "PRUNE", "NATCAP", "HEADS"}


def test_only_authors_claims_have_a_quotation_and_it_is_short_and_located() -> None:
    for claim in read_claims():
        assert claim.place, claim.claim_id
        assert ((claim.quotation or claim.unquoted) is not None) is (claim.kind == CLAIM), claim.claim_id
        assert claim.quotation is None or claim.unquoted is None, claim.claim_id
        assert claim.quotation is None or 3 <= len(claim.quotation.split()) <= MOST_WORDS, claim.claim_id


def test_claims_are_not_misattributed_to_their_authors() -> None:
    claims = {claim.claim_id: claim for claim in read_claims()}
    slower = claims["mee-measures-are-slower-than-full-depth"]
    assert slower.quotation == "they also exhibit high latency, mostly even slower than no early exiting"
    assert (slower.direction, slower.bound) == ("at_most", 1.0)
    assert claims["mee-measures-are-slower-in-their-logs"].direction == "at_most"
    # not less often, rather than more often
    penalty = claims["heads-strong-entropy-reward-keeps-agreement"]
    assert (penalty.quotation, penalty.tolerance) == ("a strong penalty does not adversely affect accuracy", 0.02)
    assert "drop" in claims["heads-keep-mmlu-and-lose-hellaswag-and-winogrande"].text
    invented = ("calm-largest", "mee-points", "mee-translation", "prune-s", "prune-table-1", "natcap-tables")
    assert {c.kind for name, c in claims.items() if name.startswith(invented) and not c.suite} == {CONSISTENCY}


def test_quotations_are_verbatim_and_unquoted_claims_are_listed() -> None:
    claims = {claim.claim_id: claim for claim in read_claims()}
    unquoted = {name for name, claim in claims.items() if claim.unquoted}
    assert unquoted == {
        "natcap-few-tokens-need-the-last-block",
        "natcap-suffixes-exit-earlier",
        "natcap-nouns-exit-before-punctuation",
    }
    for name, words in (
        (
            "mee-measures-score-above-calms",
            "our proposed confidence measures exhibit much better performance than CALM's confidence",
        ),
        (
            "prune-saves-the-head-work-that-it-counts",
            "reducing it by almost 100 times on SQuAD and 10 on SamSum between JSD baseline and JSD with adaptive "
            "pruning",
        ),
        (
            "prune-score-follows-confidence",
            "after few blocks, the confidence and the F1 score of each layer are highly correlated",
        ),
    ):
        assert claims[name].quotation == words


def test_every_claim_states_conditions_and_caveat_and_names_an_existing_suite() -> None:
    for claim in read_claims():
        assert claim.text.endswith(".") and claim.conditions.endswith("."), claim.claim_id
        assert (claim.reason or claim.caveat or "").endswith("."), claim.claim_id
        assert claim.suite is None or (SUITES / f"{claim.suite}.toml").exists(), claim.claim_id
        assert (claim.kind == CONSISTENCY) is ("FROM published" in (claim.evidence_sql or "")), claim.claim_id
        assert (claim.kind == CONSISTENCY) is (claim.suite is None and claim.reason is None), claim.claim_id


def test_claims_refer_to_existing_figures_or_tables() -> None:
    names = {source.name for package in (figures, tables) for source in discover(package)}
    shown_in = {claim.claim_id: claim.shown_in for claim in read_claims() if claim.shown_in}
    assert set(shown_in.values()) <= names and len(shown_in) > 60


def test_evidence_excludes_random_weights_and_marks_simulated_results() -> None:
    for claim in read_claims():
        query = claim.evidence_sql or ""
        if claim.suite is not None and "FROM training_curves" not in query:
            assert "random_weights" in query, claim.claim_id
        if "FROM frontier" in query:
            assert "execution = 'real'" in query, claim.claim_id
        assert claim.simulated == ("probe_trace" in query or "'simulated'" in query), claim.claim_id


def test_only_consistency_claims_and_layerskip_equality_are_exact() -> None:
    exact = {claim.claim_id for claim in read_claims() if claim.exact and claim.kind != CONSISTENCY}
    assert exact == {"layerskip-answers-are-full-depths"}
    assert all(claim.exact for claim in read_claims() if claim.kind == CONSISTENCY)


def test_shares_have_limits_and_token_shares_are_grouped_by_document() -> None:
    for claim in read_claims():
        if claim.limits is not None:
            assert claim.n_of in ("documents", "tokens"), claim.claim_id
            assert (claim.n_of == "tokens") is ("AS rows" in (claim.evidence_sql or "")), claim.claim_id
        elif claim.suite is not None and claim.n_of in ("documents", "tokens"):
            assert "share" not in claim.unit, claim.claim_id


def test_caveats_mention_training_variation_and_selection_on_scored_documents() -> None:
    for claim in read_claims():
        query = claim.evidence_sql or ""
        if re.search(r"[vf]\.loss = '(last|shallow-deep)'\n$|\bh\.weight = |c\.is_copy", query):
            assert "the interval does not include variation between trainings" in (claim.caveat or ""), claim.claim_id
        if any(
            best in query
            for best in ("min(mean_exit_layer /", "max(f.speedup)", "max(f.value /", "j.value > s.value - 2")
        ):
            assert "not account for that choice" in (claim.caveat or ""), claim.claim_id


def test_every_claim_can_hold_and_fail() -> None:
    for claim in read_claims():
        if claim.reason is not None:
            continue
        beyond = claim.tolerance + 1
        assert claim.admits(claim.bound)
        missed = claim.bound + (beyond if claim.direction == "at_most" else -beyond)
        assert claim.excludes(missed, missed), claim.claim_id


# ------------------------------------------------------------------------------------------ files


ENTRY = """
[[claim]]
claim_id = "one"
kind = "claim"
paper = "P"
place = "p"
quotation = "q."
text = "t."
conditions = "c."
unit = "u"
direction = "at_least"
bound = 1.0
n_of = "runs"
suite = "builtin"
caveat = "c."
evidence_sql = "SELECT 1"
"""


def changed(*pairs: tuple[str, str]) -> Callable[[str], str]:
    def change(text: str) -> str:
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        return text

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text + "[", r"bad\.toml: not TOML"),
        (lambda text: "version = 1\n" + text, r"bad\.toml: must consist of .*claim.*Found: version"),
        (lambda text: "", r"bad\.toml: must consist of"),
        (lambda text: text.replace('unit = "u"\n', ""), r"bad\.toml, claim one: the key 'unit' is missing"),
        (lambda text: text.replace("bound", "bount"), r"claim one: unknown key 'bount'.* Did you mean 'bound'"),
        (lambda text: text.replace("1.0", '"1"'), r"claim one: bound must be a number with a point, not '1'"),
        (lambda text: text.replace("at_least", "at_last"), r"direction is 'at_last'\. Did you mean 'at_least'"),
        (lambda text: text + "tolerance = -1.0\n", r"claim one: tolerance is -1\.0; it must be 0 or more"),
        (lambda text: text.replace('claim_id = "one"\n', ""), r"claim 1: the key 'claim_id' is missing"),
        (lambda text: text + 'reason = "r."\n', r"claim one: unknown key 'unit'"),
        (changed(('kind = "claim"\n', "")), r"bad\.toml, claim one: the key 'kind' is missing.*consistency.*question"),
        (changed(('"claim"', '"claims"')), r"claim one: kind is 'claims'\. Did you mean 'claim'"),
        (changed(('quotation = "q."\n', "")), r"claim one: the key 'quotation' is missing: a claim quotes its authors"),
        (changed(('"q."', '""')), r"claim one: quotation must be a text, not ''"),
        (lambda text: text + 'unquoted = "w."\n', r"claim one: unknown key 'quotation'"),
        (changed(('"q."', f'"{26 * "w "}"')), r"claim one: quotation has 26 words; at most 25"),
        (changed(('place = "p"\n', "")), r"claim one: the key 'place' is missing"),
        (
            changed(('"claim"', '"question"')),
            r"claim one: unknown key 'quotation': a question is this project's: it has no quotation",
        ),
        (
            changed(('"claim"', '"consistency"'), ('quotation = "q."\n', "")),
            r"claim one: unknown key 'suite': a consistency check compares printed numbers with each other",
        ),
        (changed(('suite = "builtin"\n', "")), r"claim one: the key 'suite' is missing: a claim quotes .* is measured"),
        (lambda text: text + "limits = [1.0, 0.0]\n", r"claim one: limits must be two numbers with a point"),
        (lambda text: text + "limits = [0, 1]\n", r"claim one: limits must be two numbers with a point"),
        (lambda text: text + text, r"bad\.toml: claim one is already in bad"),
    ],
)
def test_invalid_ledger_file_is_reported_with_claim_and_key(
    tmp_path: Path, change: Callable[[str], str], says: str
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(change(ENTRY), "utf-8")
    with pytest.raises(UserError, match=says):
        read_file(path)


def test_valid_ledger_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "good.toml"
    path.write_text(ENTRY.replace('"q."', f'"{25 * "w "}"') + "limits = [0.0, 1.0]\n", "utf-8")
    (claim,) = read_file(path)
    assert (claim.ledger, claim.kind, claim.tolerance, claim.published) == ("good", CLAIM, 0.0, None)
    assert (claim.limits, claim.suite, claim.exact) == ((0.0, 1.0), "builtin", False)
    assert claim.criterion == "at least 1 u" and claim.direction in DIRECTIONS
