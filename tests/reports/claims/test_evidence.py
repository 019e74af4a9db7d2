"""Evidence for single claims: their queries, on hand-written rows for which the right verdict is known."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from exitbench.reports.claims import Verdict, check_claim
from exitbench.reports.claims.claim import read_claims
from exitbench.results.database.connection import Database, open_database
from exitbench.results.files.arrow import driver_connection
from exitbench.results.statistics.stability import stability

DELTA, EPSILON, CALIBRATIONS = 0.1, 0.05, 150
CLAIMS = {claim.claim_id: claim for claim in read_claims()}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    path = tmp_path_factory.mktemp("calibrations") / "exitbench.duckdb"
    open_database(path, read_only=False).close()
    with open_database(path) as opened:
        yield opened


@contextmanager
def shadowed(database: Database, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[None]:
    """Replace views by temporary tables of the same names within the context."""
    with database.engine.connect() as connection:
        duck = driver_connection(connection)
        try:
            for name, rows in tables.items():
                duck.register("made", pa.Table.from_pylist([dict(row) for row in rows]))
                duck.execute(f"CREATE TEMP TABLE {name} AS FROM made")
                duck.unregister("made")
            yield
        finally:
            for name in tables:
                duck.execute(f"DROP TABLE IF EXISTS temp.{name}")


# ------------------------------------------------------------------------------------------ calibrated thresholds


def judge(database: Database, losses: np.ndarray, n: int, rule: str = "binomial", chosen: bool = True) -> Verdict:
    """Return the verdict on the calibration claim, given each calibration's mean loss on `n` held-out documents."""
    ids = [f"a{number}" for number in range(len(losses))]
    same = {"delta": DELTA, "epsilon": EPSILON, "chosen": chosen, "rule": rule, "random_weights": False}
    metric_row = {"metric": "held_out_loss", "n": n, "is_current": True}
    tables = {
        "calibrations": [{"attempt_id": it, **same} for it in ids],
        "metric_values": [
            {"attempt_id": it, "value": float(loss), **metric_row} for it, loss in zip(ids, losses, strict=True)
        ],
    }
    with shadowed(database, tables):
        return check_claim(database, CLAIMS["calm-calibration-keeps-its-promise"])


@pytest.mark.parametrize("n", [16, 40])
def test_valid_calibrations_are_not_judged_as_failing(database: Database, n: int) -> None:
    rng = np.random.default_rng(n)
    verdicts = []
    for _ in range(12):
        # As bad as validity allows: a share epsilon loses three times delta, all others just delta.
        expected = np.where(rng.random(CALIBRATIONS) < EPSILON, 3 * DELTA, DELTA)
        verdicts.append(judge(database, rng.binomial(n, expected) / n, n))
    assert sum(it.verdict == "fails here" for it in verdicts) == 0
    assert sum(it.verdict == "holds here" for it in verdicts) >= 3
    assert {it.n for it in verdicts} == {CALIBRATIONS}


def test_invalid_calibrations_are_judged_as_failing(database: Database) -> None:
    rng = np.random.default_rng(5)
    worlds = [rng.binomial(40, 3 * DELTA, CALIBRATIONS) / 40 for _ in range(3)]
    assert {judge(database, losses, 40).verdict for losses in worlds} == {"fails here"}


def test_calibration_without_a_choice_keeps_its_guarantee_and_naive_rule_is_excluded(database: Database) -> None:
    kept_verdict = judge(database, np.zeros(CALIBRATIONS), 16, chosen=False)
    assert (kept_verdict.verdict, kept_verdict.value, kept_verdict.n) == (
        "holds here",
        pytest.approx(-EPSILON - 0.05),
        CALIBRATIONS,
    )
    assert judge(database, np.ones(CALIBRATIONS), 16, rule="naive").verdict == "not measured"


@pytest.mark.parametrize(
    ("loss", "n", "breaks"), [(0.25, 16, 0), (0.5, 16, 1), (1.0, 16, 1), (0.0, 16, 0), (0.2, 40, 0)]
)
def test_calibration_counts_as_broken_only_if_its_losses_reject_delta(
    database: Database, loss: float, n: int, breaks: int
) -> None:
    # Of 16 documents P[Bin(16, 0.1) >= 4] is 0.068 and P[Bin(16, 0.1) >= 8] is 0.00006; e times that is the bound.
    verdict = judge(database, np.array([loss]), n)
    assert verdict.value == pytest.approx(breaks - EPSILON - 0.05)


# ------------------------------------------------------------------------------------------ exits and blocks


def test_epsilon_claim_counts_exits_up_to_the_first_divergence(database: Database) -> None:
    run = {
        "model": "m",
        "task_label": "t",
        "method": "heads",
        "execution": "real",
        "random_weights": False,
        "blocks": 8,
    }
    frontier = [
        {"attempt_id": f"a{epsilon}", "params": json.dumps({"rule": "epsilon", "epsilon": epsilon}), **run}
        for epsilon in (0.5, 0.9)
    ]
    # exit layer, token, full depth's: of the exits (layer 2) before anything differs two of three agree; the token
    # behind the first that differs, and those of full depth, say nothing of the heads.
    answers = {"d": [(8, 1, 1), (2, 5, 5), (2, 6, 7), (2, 9, 9)], "e": [(2, 4, 4), (8, 3, 3)]}
    tokens = [
        {"attempt_id": it["attempt_id"], "doc_key": key, "position": place, "exit_layer": layer, "token_id": token,
         "full_token_id": full}
        for it in frontier
        for key, answer in answers.items()
        for place, (layer, token, full) in enumerate(answer, 1)
    ]  # fmt: skip
    with shadowed(database, {"frontier": frontier, "token_exit": tokens}):
        verdict = check_claim(database, CLAIMS["heads-epsilon-is-kept"])
    assert (verdict.value, verdict.n) == (pytest.approx(2 / 3 - 0.7), 1)


def test_mmlu_accuracy_kept_is_compared_with_hellaswag_and_winogrande_losses(database: Database) -> None:
    run = {"model": "m", "method": "heads", "execution": "real", "random_weights": False}
    # Right choices of four documents, at the largest epsilon and at the smallest.
    right = {
        "lm-eval:mmlu": ([1, 1, 0, 1], [1, 1, 0, 0]),
        "lm-eval:hellaswag": ([1, 1, 1, 0], [0, 0, 0, 0]),
        "lm-eval:winogrande_debiased": ([1, 0, 1, 1], [1, 0, 0, 0]),
        "lm-eval:arc_easy": ([1, 1, 1, 1], [0, 0, 0, 0]),
    }
    frontier, answers = [], []
    for task, ends in right.items():
        for epsilon, hits in zip((0.95, 0.5), ends, strict=True):
            params = {"rule": "epsilon", "epsilon": epsilon, "confidence": "breaking-ties"}
            frontier.append({"attempt_id": f"{task} {epsilon}", "task": task, "params": json.dumps(params), **run})
            answers += [
                {
                    "attempt_id": f"{task} {epsilon}",
                    "doc_key": f"{place}",
                    "is_chosen": chosen,
                    "is_right": chosen == hit,
                }
                for place, hit in enumerate(hits)
                for chosen in (True, False)
            ]
    with shadowed(database, {"frontier": frontier, "choice_answers": answers}):
        checked = check_claim(database, CLAIMS["heads-keep-mmlu-and-lose-hellaswag-and-winogrande"])
        alone = [row for row in frontier if row["task"] != "lm-eval:mmlu"]
    # 3 and 2 of 8 others lost, 1 of 4 of MMLU's.
    assert (checked.value, checked.n) == (pytest.approx(100 * (5 / 8 - 1 / 4)), 12)
    lost = [np.array([100.0, 100, 100, 0, 0, 0, 100, 100]), np.array([0, 0, 0, 100.0])]
    t = (2.3646, 3.1824)
    half = np.sqrt(sum((q * each.std(ddof=1) / np.sqrt(len(each))) ** 2 for q, each in zip(t, lost, strict=True)))
    assert (checked.low, checked.high) == pytest.approx((checked.value - half, checked.value + half), rel=1e-3)
    with shadowed(database, {"frontier": alone, "choice_answers": answers}):
        verdict = check_claim(database, CLAIMS["heads-keep-mmlu-and-lose-hellaswag-and-winogrande"]).verdict
    assert verdict == "not measured", "nothing to hold it against"


def test_trainings_of_exit_heads_are_compared_within_a_frozen_model_and_a_kind_of_head(database: Database) -> None:
    # start, kind, initialization, entropy weight, agreement (and entropy) of two heads at every step
    trainings = {
        "large reward": ("m", "linear", "scratch", 0.95, (0.4, 0.6)),
        "small reward": ("m", "linear", "scratch", 0.1, (0.5, 0.6)),
        "copied": ("m", "linear", "copy", 0.95, (0.7, 0.9)),
        "lens": ("m", "lens", "scratch", 0.95, (0.0, 0.0)),  # its loss has no entropy, and its head is the model's own
        "of another model": ("other", "linear", "scratch", 0.1, (0.0, 0.0)),
        "of another kind": ("m", "mlp", "scratch", 0.1, (0.0, 0.0)),
    }
    cards, curves = [], []
    for name, (start, kind, init, weight, heights) in trainings.items():
        heads = {"kind": kind, "init": init, "entropy_weight": weight}
        card = {"recipe": {"start": {"checkpoint": start}, "exit_heads": heads}}
        cards.append({"weights_sha256": name, "model": name, "steps": 10, "card": json.dumps(card)})
        curves += [
            {"weights_sha256": name, "metric": metric, "step": step, "block": block, "value": height}
            for metric in ("exit_head_accuracy", "exit_head_entropy_nats")
            for step in range(1, 11)
            for block, height in zip((2, 4), heights, strict=True)
        ]
    runs = [{"attempt_id": name, "model": name} for name in trainings]
    with shadowed(database, {"trainings": cards, "training_curves": curves, "runs": runs}):
        found = {
            claim_id: database.rows(CLAIMS[claim_id].evidence_sql or "")[1][0]
            for claim_id in (
                "heads-strong-entropy-reward-keeps-agreement",
                "heads-entropy-reward-raises-entropy",
                "heads-copies-start-ahead",
            )
        }
    (penalty, entropy, copies) = found.values()
    assert (penalty[0], penalty[3]) == (entropy[0], entropy[3]) == (pytest.approx(-0.05), 2)
    assert (copies[0], copies[3]) == (pytest.approx((0.7 + 0.9) / 2 - (0.4 + 0.5 + 0.6 + 0.6) / 4), 2)
    assert set(penalty[4]) == {"large reward", "small reward", "of another model", "of another kind"}


def test_first_head_is_that_of_the_weights_and_not_of_models_with_the_same_name(database: Database) -> None:
    same = {"model": "m", "method": "heads", "execution": "real", "random_weights": False}
    shallow, deep = {"a": 2, "b": 4}, {"c": 6, "d": 8}  # tasks, with the first block at which their tokens exit
    histogram, runs, cells = [], [], []
    for model_id, first in (("shallow", shallow), ("deep", deep)):
        for task, block in first.items():
            for epsilon, share in ((0.5, 0.6), (0.9, 0.1)):
                name = f"{task} {epsilon}"
                params = {"rule": "epsilon", "epsilon": epsilon, "confidence": "breaking-ties"}
                row = {"attempt_id": name, "cell_id": name, "task_label": task, "params": json.dumps(params), **same}
                histogram += [
                    {**row, "exit_layer": block, "share": share},
                    {**row, "exit_layer": 9, "share": 1 - share},
                ]
                runs.append({"attempt_id": name, "setting_id": task})
                cells.append({"cell_id": name, "model_id": model_id})
    with shadowed(database, {"exit_histogram": histogram, "runs": runs, "cell": cells}):
        found = database.rows(CLAIMS["heads-depth-grows-with-epsilon"].evidence_sql or "")[1][0]
    on_one_task = [row | {"model": row["task_label"], "task_label": "a"} for row in histogram]
    with shadowed(database, {"exit_histogram": on_one_task, "runs": runs, "cell": cells}):
        together = database.rows(CLAIMS["heads-depth-grows-with-epsilon"].evidence_sql or "")[1][0]
    # Tokens of tasks b and d exit, but not at their model's first head.
    assert (found[0], found[3]) == (pytest.approx((0.5 + 0 + 0.5 + 0) / 4), 4)
    assert together[3] == 1, "trainings on one task count once"


def test_early_first_token_of_a_causal_ideal_exit_is_not_compared_with_gates(database: Database) -> None:
    run = {"model": "m", "task_label": "t", "random_weights": False, "blocks": 8, "lower_is_better": False}
    run |= {"value": 50.0, "full_value": 50.0, "setting_id": "s"}
    gate = {"method": "max-prob", "params": "{}", "execution": "real", "mean_exit_layer": 6.0}
    ideal = {"method": "oracle", "params": '{"match": "first"}', "execution": "simulated", "mean_exit_layer": 2.0}
    frontier = [{"attempt_id": "gate", **gate, **run}, {"attempt_id": "ideal", **ideal, **run}]
    verdicts = {}
    for kind, first in (("seq2seq", 2), ("causal", 2), ("causal", 8)):
        runs = [{"attempt_id": it["attempt_id"], "model_kind": kind, "blocks": 8} for it in frontier]
        tokens = [
            {
                "attempt_id": "ideal",
                "method": "oracle",
                "execution": "simulated",
                "choice": None,
                "position": 1,
                "exit_layer": first,
            }
        ]
        with shadowed(database, {"frontier": frontier, "runs": runs, "token_trace": tokens}):
            verdicts[kind, first] = check_claim(database, CLAIMS["natcap-gates-exit-later-than-ideal"]).value
    assert verdicts == {("seq2seq", 2): 0.5, ("causal", 2): None, ("causal", 8): 0.5}


def test_rounding_does_not_reduce_monotonicity_and_a_sixth_of_eight_blocks_is_one(database: Database) -> None:
    share = [0.2, 0.9, 0.9995, 0.9994, 0.9995, 0.9994, 0.9995, 0.9994]  # of a model trained on every block
    falls = [0.2, 0.5, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    probed, probes, objectives = [], [], []
    for model, loss, p_final in (("w", "weighted", share), ("v", "last", falls)):
        columns = {name: int(values[0]) for name, values in stability(np.array([p_final]), np.ones((1, 8))).items()}
        objectives.append({"model": model, "loss": loss, "trained_blocks": None})
        probes.append({"attempt_id": model, "model": model, "random_weights": False, "is_largest": True, "blocks": 8})
        for key in "abcd":
            row = {"attempt_id": model, "model": model, "task_label": "t", "doc_key": key, "choice": None}
            row |= {"position": 1}
            ranks = {"rank_final": [2, 1, 1, 1, 1, 1, 1, 1]}
            probed.append(row | {"p1": p_final, "random_weights": False} | ranks | columns)
    with shadowed(database, {"probe_trace": probed, "plain_probes": probes, "objectives": objectives}):
        monotone = check_claim(database, CLAIMS["mee-weighted-confidence-most-monotone"])
        settled = check_claim(database, CLAIMS["mee-three-quarters-after-a-sixth"])
    assert (monotone.value, monotone.n) == (1.0, 4)
    # all settle at block 2, a quarter of the depth
    assert (settled.value, settled.n) == (0.0, 4)


def test_predictions_of_a_model_trained_on_some_blocks_settle_and_grow_at_these(database: Database) -> None:
    """One document settles at the first trained block, though untrained blocks then predict something else."""
    run = {"attempt_id": "a", "model": "m", "task_label": "t", "choice": None, "position": 1, "random_weights": False}
    shared = {"p1": [0.5] * 6, "p_final": [0.3, 0.4, 0.1, 0.5, 0.1, 0.9]}
    probed = [
        run | shared | {"doc_key": "early", "rank_final": [1, 7, 1, 7, 1, 1]},
        run | shared | {"doc_key": "late", "rank_final": [7, 7, 7, 7, 1, 1]},
    ]
    probes = [{"attempt_id": "a", "model": "m", "random_weights": False, "is_largest": True, "blocks": 6}]
    shares = {}
    for trained in (None, [1, 3, 5, 6], [2, 4, 6]):
        objectives = [{"model": "m", "loss": "weighted of some blocks", "trained_blocks": trained}]
        with shadowed(database, {"probe_trace": probed, "plain_probes": probes, "objectives": objectives}):
            settled = check_claim(database, CLAIMS["mee-three-quarters-after-a-sixth"])
            growth = check_claim(database, CLAIMS["mee-final-confidence-grows-at-every-block"])
        shares[str(trained)] = (settled.value, growth.value)
    assert shares == {
        "None": (0.0, pytest.approx(-0.4)),
        "[1, 3, 5, 6]": (0.5, pytest.approx(-0.2)),
        "[2, 4, 6]": (None, pytest.approx(0.1)),  # no trained block up to a sixth of the depth
    }


def test_encoders_whose_ideal_exits_repeat_full_depth_do_not_count_for_the_oracle(database: Database) -> None:
    run = {"method": "oracle", "params": '{"match": "first"}', "kv_policy": "state-copy", "execution": "real"}
    run |= {"random_weights": False, "lower_is_better": False, "full_value": 50.0, "mean_exit_layer": 2.0, "blocks": 6}
    frontier = [
        {"attempt_id": kind, "model": kind, "model_kind": kind, "task_label": "t", "delta": delta, **run}
        for kind, delta in (("causal", -5.0), ("encoder", 0.0))
    ]
    objectives = [{"model": kind, "loss": "weighted"} for kind in ("causal", "encoder")]
    with shadowed(database, {"frontier": frontier, "objectives": objectives}):
        checked = check_claim(database, CLAIMS["calm-oracle-keeps-the-score"])
    assert (checked.value, checked.n) == (-5.0, 1)
