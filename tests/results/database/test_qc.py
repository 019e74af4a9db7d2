"""Findings about runs: each rule is violated once, and no rule reports a correct run."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from stored_rows import query_rows

from exitbench.results.database.connection import open_database
from exitbench.results.queries import saved_query
from exitbench.results.statistics.intervals import clopper_pearson

Json = dict[str, Any]
Rows = Mapping[str, list[Json]]
FindingsByRun = dict[str, list[tuple[Any, ...]]]

MS = 1_000_000


def timing(wall_ns: int, device_ns: int | None = None, *, cpu_ns: int | None = None, round_: int = 0) -> Json:
    return {
        "doc_key": "a",
        "round": round_,
        "position": 0,
        "arm": "full",
        "twin": False,
        "phase": "total",
        "n_tokens": 5,
        "wall_ns": wall_ns,
        "device_ns": device_ns,
        "cpu_ns": wall_ns if cpu_ns is None else cpu_ns,
    }


def rounds(*wall_ms: float, ran: float = 1.0) -> list[Json]:
    """Return timing readings of one document, one per round; `ran` is the CPU time divided by the wall time."""
    return [timing(int(ms * MS), cpu_ns=int(ms * ran * MS), round_=round_) for round_, ms in enumerate(wall_ms)]


def reading(round_: int = 0, moment: str = "end", **values: Any) -> Json:
    unknown = dict.fromkeys(("clock_mhz", "power_w", "temperature_c", "throttle", "load_average"))
    return {**unknown, "round": round_, "moment": moment, "device": "cuda", **values}


def sample(n_output: int, key: str = "a") -> Json:
    return {
        "doc_key": key,
        "output_text": "x",
        "output_ids": list(range(n_output)),
        "n_prompt": 3,
        "n_output": n_output,
        "stop_reason": "eos",
        "scores": "{}",
        "statistics": "{}",
    }


def token(position: int, token_id: int = 7, key: str = "a") -> Json:
    return {
        "doc_key": key,
        "position": position,
        "token_id": token_id,
        "token_kind": None,
        "exit_layer": 2,
        "blocks_run": 2,
        "head_rows": 100,
        "score": 0.5,
        "reason": "threshold",
        "rejected": None,
    }


def noise(low: float, high: float, metric: str = "aa_speedup") -> Json:
    return {
        "metric": metric,
        "metric_version": "1",
        "role": "speed",
        "value": (low + high) / 2,
        "ci_low": low,
        "ci_high": high,
        "ci_method": "bootstrap",
        "n": 8,
    }


def count(metric: str, value: int) -> Json:
    return {
        "metric": metric,
        "metric_version": "1",
        "role": "data",
        "value": value,
        "ci_low": None,
        "ci_high": None,
        "ci_method": None,
        "n": 20,
    }


ALONE: dict[str, tuple[str, Rows, Json]] = {}


def alone(what: str, rows: Rows, kind: str = "quality", **cell_keys: Any) -> str:
    """Add a run to those of `findings_by_run`, with these keys of its cell.json, and return its name there."""
    assert what not in ALONE
    ALONE[what] = (kind, rows, cell_keys)
    return what


@pytest.fixture
def findings(example: ModuleType, env: Json, tmp_path: Path) -> Callable[..., list[tuple[str, int, str]]]:
    """Return a function that writes attempts and returns the findings about them: rule, severity, message."""

    def write(
        *attempts: Rows,
        kind: str = "quality",
        envs: list[Json] | None = None,
        cells: bool = False,
        query: str | None = None,
        **cell_keys: Any,
    ) -> Any:
        def cell_of(number: int) -> Json:
            method = dataclasses.replace(example.FULL, params={"number": number})
            cell_json: Json = example.cell_json(example.MODELS[0], example.TASKS[0], method, kind)
            return cell_json

        cell = {**example.cell_json(example.MODELS[0], example.TASKS[0], example.FULL, kind), **cell_keys}
        for number, (rows, each) in enumerate(zip(attempts, envs or [env] * len(attempts), strict=True)):
            # Attempts at one cell, or each at one of its own.
            identity = {**cell, **cell_of(number)} if cells else cell
            example.write_attempt(tmp_path / "spool", identity, rows, env=each)
        with open_database(example.ingested(tmp_path)) as database:
            if query is not None:
                return query_rows(database, query)
            return database.rows("SELECT rule, severity, message FROM qc ORDER BY rule")[1]

    return write


def load(average: float) -> Json:
    return {**reading(load_average=average), "device": "cpu"}


FINE: dict[str, tuple[str, Rows] | tuple[str, Rows, int]] = {
    "clocks that agree": ("timing", {"timings": [timing(100 * MS, 99 * MS), timing(MS, MS - 190_000)]}),
    "no device clock": ("timing", {"timings": [timing(100 * MS, None)]}),
    "fine counters of energy": ("timing", {"metrics": [count("energy_updates", 10)]}),
    "noise around 1": ("timing", {"metrics": [noise(0.99, 1.01)]}),
    "a core of its own": ("timing", {"timings": rounds(*[10.0] * 28, 16.0, 200.0)}),
    "a load of its own": ("timing", {"device": [load(2), load(2.8)]}),
    "a load that held nothing up": ("timing", {"device": [load(30)], "timings": rounds(*[10.0] * 30)}, 1),
    "a wide interval": ("timing", {"metrics": [noise(0.9, 8.9)]}),
    "a wide interval of four documents": ("timing", {"metrics": [{**noise(0.1, 8.9), "n": 4}]}),
    "an idle GPU": ("timing", {"device": [reading(0, "start", throttle="none", clock_mhz=345.0), reading(0)]}),
    "a steady clock": ("timing", {"device": [reading(n, clock_mhz=1980.0 - 20 * n) for n in range(3)]}),
    "a whole trace": ("quality", {"samples": [sample(2)], "tokens": [token(1), token(2)]}),
    "a probe": ("probe", {"samples": [sample(2)]}),
}


@pytest.mark.parametrize("what", FINE)
def test_valid_run_has_no_findings(what: str, findings_by_run: FindingsByRun) -> None:
    assert findings_by_run[what] == []


BROKEN: dict[str, tuple[str, Rows, tuple[str, int, str]]] = {
    "clocks": (
        "timing",
        {"timings": [timing(100 * MS, 95 * MS), timing(100 * MS, 100 * MS)]},
        (
            "clocks_disagree",
            2,
            "wall clock and device clock differ by more than 2% and 0.2 ms in 1 of 2 timed phases, by up to 5.0%",
        ),
    ),
    "a little noise": (
        "timing",
        {"metrics": [noise(1.01, 1.03)]},
        ("noise_floor", 1, "full depth's time over its own is not 1: 1.0200, 95% interval 1.0100 to 1.0300"),
    ),
    "noise above": (
        "timing",
        {"metrics": [noise(1.05, 1.07)]},
        ("noise_floor", 2, "full depth's time over its own is not 1: 1.0600, 95% interval 1.0500 to 1.0700"),
    ),
    "noise below": (
        "timing",
        {"metrics": [noise(0.93, 0.95)]},
        ("noise_floor", 2, "full depth's time over its own is not 1: 0.9400, 95% interval 0.9300 to 0.9500"),
    ),
    "a load of others": (
        "timing",
        {"device": [load(4), load(6)]},
        ("busy_machine", 2, "the machine was busy; load 5.0 on 2 cores"),
    ),
    "a process that waits for its core": (
        "timing",
        {"device": [load(2)], "timings": rounds(*[10.0] * 30, ran=0.44)},
        (
            "busy_machine",
            2,
            "the machine was busy; load 2.0 on 2 cores; the process used the processor for 44% of the measured time",
        ),
    ),
    "readings that stall": (
        "timing",
        {"timings": rounds(*[10.0] * 26, *[40.0] * 4)},
        (
            "busy_machine",
            2,
            "the machine was busy; 13% of the readings took more than 1.5 times the median of their document",
        ),
    ),
    "a speed-up that nothing is known of": (
        "timing",
        {"metrics": [{**noise(0.73, 1.1e17, "speedup"), "n": 20}]},
        ("busy_machine", 2, "the machine was busy; speedup is not measurable now (0.73 to 1.1e+17)"),
    ),
    "counters of energy that move seldom": (
        "timing",
        {"metrics": [{**count("energy_updates", 0), "value": 9.96}]},
        (
            "coarse_energy",
            1,
            "energy counters change only 10.0 times in a timed decode: energy_ratio is less precise than times",
        ),
    ),
    "throttling": (
        "timing",
        {"device": [reading(0, throttle="none"), reading(1, "start", throttle="power cap, thermal slowdown")]},
        ("throttled", 3, "the clock was throttled at 1 readings: power cap, thermal slowdown"),
    ),
    "a slow round": (
        "timing",
        {"device": [reading(n, clock_mhz=clock) for n, clock in enumerate((1980.0, 1980.0, 1700.0))]},
        ("slow_clock", 2, "the clock was as low as 1700 MHz after 1 round(s); usual on this machine: 1980 MHz"),
    ),
    "a trace too short": (
        "quality",
        {"samples": [sample(2), sample(1, "b")], "tokens": [token(1), token(1, key="b")]},
        ("trace_incomplete", 3, "the number of traced tokens differs from the answer's in 1 document(s)"),
    ),
    "a trace with a gap": (
        "quality",
        {"samples": [sample(2)], "tokens": [token(1), token(3)]},
        ("trace_incomplete", 3, "the number of traced tokens differs from the answer's in 1 document(s)"),
    ),
    "a document that does not fit": (
        "probe",
        {"metrics": [count("documents_dropped", 3)]},
        (
            "documents_dropped",
            2,
            "3 of 20 documents are excluded: prompt and answer do not fit the model's positions",
        ),
    ),
    "prompts that are cut": (
        "probe",
        {"metrics": [count("prompts_truncated", 4)]},
        ("prompts_truncated", 1, "4 of 20 prompts are truncated to what the model can read"),
    ),
    "a document that cannot be scored": (
        "probe",
        {"metrics": [count("documents_unscorable", 1)]},
        (
            "documents_unscorable",
            2,
            "1 of 20 documents are excluded: one of their texts has no token to score, or more than the model can read",
        ),
    ),
    "no trace": (
        "quality",
        {"samples": [sample(2)]},
        ("trace_incomplete", 3, "the number of traced tokens differs from the answer's in 1 document(s)"),
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_each_violation_gives_exactly_its_finding(what: str, findings_by_run: FindingsByRun) -> None:
    assert findings_by_run[what] == [BROKEN[what][-1]]


def decoding(low: float, high: float, ideal: float) -> list[Json]:
    return [noise(low, high, "speedup_decode"), {**count("ideal_speedup_decode", 0), "value": ideal}]


ABOVE_IDEAL = alone("decoding above the ideal", {"metrics": decoding(1.6, 1.7, 1.5)}, "timing")
CLOSE_TO_IDEAL = alone("decoding close to the ideal", {"metrics": decoding(1.57, 5.0, 1.5)}, "timing")
BUSY = alone("a busy machine", {"metrics": [*decoding(4, 7, 1.5), noise(1.4, 1.6)], "device": [load(20)]}, "timing")


def test_speedup_interval_entirely_above_the_ideal_is_a_remark(findings_by_run: FindingsByRun) -> None:
    message = (
        "decoding is 1.65 times as fast [1.60, 1.70], 110% of what its work allows (1.50): "
        "the cost model leaves something out here"
    )
    assert findings_by_run[ABOVE_IDEAL] == [("realised_above_ideal", 1, message)]


def test_speedup_interval_reaching_close_to_the_ideal_has_no_finding(findings_by_run: FindingsByRun) -> None:
    assert findings_by_run[CLOSE_TO_IDEAL] == []


def test_busy_machine_finding_replaces_other_timing_findings(findings_by_run: FindingsByRun) -> None:
    assert [rule for rule, _, _ in findings_by_run[BUSY]] == ["busy_machine"]


def speed(documents: int) -> Json:
    return {**noise(1.4, 1.6), "metric": "speedup", "n": documents}


FEW_TIMED = alone("a speed-up of few documents", {"metrics": [speed(19)]}, "timing")
ENOUGH_TIMED = alone("a speed-up of enough documents", {"metrics": [speed(20)]}, "timing")


def test_a_speed_up_of_few_documents_is_a_remark(findings_by_run: FindingsByRun) -> None:
    message = "the speed-up is of 19 documents (or batches of them), fewer than 20"
    assert findings_by_run[FEW_TIMED] == [("few_timed_documents", 1, message)]


def test_a_speed_up_of_enough_documents_has_no_finding(findings_by_run: FindingsByRun) -> None:
    assert findings_by_run[ENOUGH_TIMED] == []


@pytest.mark.parametrize(
    ("sessions", "missed", "severity", "why"),
    [
        (1, 1, 1, "by chance one of 20 misses it"),
        (20, 3, 1, "by chance one of 20 misses it"),  # three or more: 7.5 %
        (20, 4, 1, "by chance one of 20 misses it"),  # 1.6 %
        (20, 5, 2, "more than by chance"),  # .26 %
    ],
)
def test_noise_floor_coverage_is_reported_once_with_counts(
    findings: Callable[..., Any], sessions: int, missed: int, severity: int, why: str
) -> None:
    rows = [{"metrics": [noise(1.001, 1.03) if number < missed else noise(0.99, 1.01)]} for number in range(sessions)]
    message = (
        f"of {sessions} intervals of full depth against itself in suite example on this machine, {missed} do not "
        f"contain 1: {why}"
    )
    assert findings(*rows, kind="timing", cells=True) == [("noise_floor_coverage", severity, message)]


def test_coverage_of_the_noise_floor_is_counted_with_its_exact_interval(findings: Callable[..., Any]) -> None:
    """A session on a busy machine is not counted."""
    rows: list[Rows] = [{"metrics": [noise(1.001, 1.03) if number < 5 else noise(0.99, 1.01)]} for number in range(20)]
    busy: Rows = {"metrics": [noise(1.4, 1.6)], "device": [load(20)]}
    (row,) = findings(*rows, busy, kind="timing", cells=True, query=saved_query("noise_floor_coverage").sql)
    assert (row["intervals"], row["missed"], row["share"], row["documents"]) == (20, 5, 0.25, "8 to 8")
    assert (row["low"], row["high"]) == pytest.approx(clopper_pearson(0.25, 20), abs=0.001)
    assert row["chance"] == pytest.approx(0.00257, abs=1e-5)


ONE: Rows = {"samples": [sample(1)], "tokens": [token(1)]}
OTHER: Rows = {"samples": [sample(1)], "tokens": [token(1, token_id=8)]}


def test_equal_attempts_at_one_cell_have_no_finding(findings: Callable[..., Any]) -> None:
    assert findings(ONE, ONE) == []


def test_differing_attempts_at_one_cell_are_not_repeatable(findings: Callable[..., Any]) -> None:
    message = "tokens.parquet differs from that of 1 other attempt(s) at the same cell on the same machine"
    assert findings(ONE, OTHER) == [("not_repeatable", 3, message)]


def test_difference_on_another_machine_is_only_a_remark(findings: Callable[..., Any], env: Json) -> None:
    other = copy.deepcopy(env)
    other["hardware"]["cpu"] = "another"
    message = "tokens.parquet differs from that of 1 other attempt(s) at the same cell on another machine"
    assert findings(ONE, OTHER, envs=[env, other]) == [("not_repeatable", 1, message)]


def test_files_written_by_another_pyarrow_version_are_not_compared(findings: Callable[..., Any], env: Json) -> None:
    other = copy.deepcopy(env)
    other["environment"]["packages"]["pyarrow"] = "99.0"
    assert findings(ONE, OTHER, envs=[env, other]) == []


def test_dirty_commit_limited_data_and_random_weights_are_remarks(findings: Callable[..., Any], env: Json) -> None:
    dirty = copy.deepcopy(env)
    dirty["environment"]["git_dirty"] = True
    rules = findings(ONE, envs=[dirty], random_weights=True, limited=True)
    assert [(rule, severity) for rule, severity, _ in rules] == [
        ("dirty_commit", 1),
        ("limited", 1),
        ("random_weights", 1),
    ]
    assert rules[0][2] == "tracked files differed from commit 0123456789ab"


SHORT_PROMPTS = {"max_new_tokens": 4, "stop": [], "max_prompt_tokens": 9}
DROPPED = alone(
    "documents dropped by the suite",
    {**ONE, "metrics": [count("documents_dropped", 3)]},
    generation={**SHORT_PROMPTS, "truncate": "drop"},
)
TRUNCATED = alone(
    "prompts truncated by the suite",
    {**ONE, "metrics": [count("prompts_truncated", 4)]},
    generation={**SHORT_PROMPTS, "truncate": "left"},
)


def test_documents_dropped_by_the_suite_are_a_remark(findings_by_run: FindingsByRun) -> None:
    message = "3 of 20 documents are excluded: their prompts are longer than max_prompt_tokens"
    assert findings_by_run[DROPPED] == [("documents_dropped", 1, message)]


def test_prompt_truncation_by_the_suite_is_a_remark(findings_by_run: FindingsByRun) -> None:
    message = "4 of 20 prompts are truncated to max_prompt_tokens"
    assert findings_by_run[TRUNCATED] == [("prompts_truncated", 1, message)]


def scored(value: float, low: float, high: float, method: str | None = "Korn-Graubard") -> Json:
    interval = {"value": value, "ci_low": low, "ci_high": high, "ci_method": method}
    return {**noise(1, 1), **interval, "metric": "own", "role": "headline"}


def answered(*scores: float) -> tuple[list[Json], list[Json]]:
    """Return samples of documents with these scores, and one token for each document."""
    keys = [f"d{number}" for number in range(len(scores))]
    samples = [{**sample(1, key), "scores": f'{{"own": {score}}}'} for key, score in zip(keys, scores, strict=True)]
    return samples, [token(1, key=key) for key in keys]


def generated(metric: Json) -> Rows:
    samples, tokens = answered(0, 4)
    return {"samples": samples, "tokens": tokens, "metrics": [metric]}


NEAR_FLOOR = alone("a score near the floor", generated(scored(4.9, 0.1, 30.0)))
NEAR_MAXIMUM = alone("an error near its maximum", generated({**scored(95.1, 70.0, 99.0), "lower_is_better": True}))


def test_full_depth_near_the_score_floor_is_reported_with_advice(findings_by_run: FindingsByRun) -> None:
    ((rule, severity, message),) = findings_by_run[NEAR_FLOOR]
    assert (rule, severity) == ("near_floor", 2)
    assert message.startswith("full depth scores 4.9 of 100 (own): this close to the floor, no loss can be detected")
    for word in ("exitbench show-prompts", "chat_template = true", "system", "num_fewshot", "max_new_tokens"):
        assert word in message


def test_error_near_its_maximum_is_reported_as_near_the_floor(findings_by_run: FindingsByRun) -> None:
    ((rule, severity, message),) = findings_by_run[NEAR_MAXIMUM]
    assert (rule, severity) == ("near_floor", 2)
    assert message.startswith("full depth scores 95.1 of 100 (own)")


NOT_NEAR_FLOOR: dict[str, tuple[Json, Json]] = {
    "a better score": (scored(5.1, 0.1, 30.0), {}),
    "few errors": ({**scored(4.9, 0.1, 30.0), "lower_is_better": True}, {}),
    "fewer errors than most": ({**scored(94.9, 70.0, 99.0), "lower_is_better": True}, {}),
    "no scale: a perplexity": (scored(1.2, 1.0, 1.4, "Student's t of the jackknife"), {}),
    "no interval": (scored(1.2, 1.2, 1.2, None), {}),
    "no score": ({**scored(0.0, 0.0, 3.0), "role": "agreement"}, {}),
    "an early exit": (scored(0.0, 0.0, 3.0), {"full_depth_cell_id": "f" * 64}),
    "random weights": (scored(0.0, 0.0, 3.0), {"random_weights": True}),
}


@pytest.mark.parametrize("what", NOT_NEAR_FLOOR)
def test_near_floor_is_not_reported_for_better_unscaled_or_irrelevant_scores(
    what: str, findings_by_run: FindingsByRun
) -> None:
    assert "near_floor" not in [rule for rule, *_ in findings_by_run[what]]


@pytest.fixture(scope="module")
def findings_by_run(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> FindingsByRun:
    """Return the findings about each run of `FINE`, `BROKEN`, `NOT_NEAR_FLOOR` and `ALONE`: rule, severity, message.

    They are in one database, each with a cell and a machine of its own, so that no finding depends on another run.
    """
    runs: dict[str, tuple[str, Rows, Json, Json]] = {}
    for what, (kind, rows, *threads) in FINE.items():
        runs[what] = (kind, rows, {"threads": threads[0]} if threads else {}, {})
    runs |= {what: (kind, rows, {}, {}) for what, (kind, rows, _) in BROKEN.items()}
    runs |= {what: ("quality", generated(metric), {}, cell) for what, (metric, cell) in NOT_NEAR_FLOOR.items()}
    runs |= {what: (kind, rows, {}, cell) for what, (kind, rows, cell) in ALONE.items()}
    assert len(runs) == len(FINE) + len(BROKEN) + len(NOT_NEAR_FLOOR) + len(ALONE)
    folder = tmp_path_factory.mktemp("findings")
    run_of = {}
    for what, (kind, rows, hardware, changes) in runs.items():
        method = dataclasses.replace(example.FULL, params={"run": what})
        cell = {**example.cell_json(example.MODELS[0], example.TASKS[0], method, kind), **changes}
        env = {**example.ENV, "hardware": {**example.ENV["hardware"], "cpu": what, **hardware}}
        run_of[example.write_attempt(folder / "spool", cell, rows, env=env)] = what
    found: FindingsByRun = {what: [] for what in runs}
    with open_database(example.ingested(folder)) as database:
        _, rows_found = database.rows("SELECT attempt_id, rule, severity, message FROM qc ORDER BY rule")
        for attempt_id, *finding in rows_found:
            found[run_of[attempt_id]].append(tuple(finding))
    return found


def multiple_choice_rows(scores: tuple[float, ...], low: float, right: int = 1) -> Rows:
    """Return the rows of a run over documents with four choices each, the first `right` of which are correct.

    The interval of its accuracy begins at `low`.
    """
    samples, _ = answered(*scores)
    choice = {
        "text": "x",
        "n_context": 3,
        "n_cut": None,
        "n_tokens": 1,
        "logprob": -1.0,
        "full_logprob": -1.0,
        "is_greedy": False,
        "full_is_greedy": False,
    }
    choices = [
        {**choice, "doc_key": sample["doc_key"], "choice": number, "is_right": number <= right}
        | {"is_chosen": number == 1, "full_is_chosen": number == 1}
        for sample in samples
        for number in range(1, 5)
    ]
    tokens = [
        {**token(1, key=sample["doc_key"]), "choice": number, "logprob": -1.0, "full_logprob": -1.0}
        | {"is_greedy": False, "full_is_greedy": False}
        for sample in samples
        for number in range(1, 5)
    ]
    mean = sum(scores) / len(scores)
    return {
        "samples": samples,
        "choices": choices,
        "tokens": tokens,
        "metrics": [scored(mean, low, min(100.0, 2 * mean - low))],
    }


GUESSED = {
    alone(f"{right} right choices, from {low}", multiple_choice_rows((100, 0, 100, 0), low, right)): (chance, low)
    for right, chance, low in ((1, "25.0", 24.9), (1, "25.0", 2.0), (2, "50.0", 49.0))
}
BETTER_THAN_CHANCE = alone("choices better than chance", multiple_choice_rows((100, 0, 100, 0), 25.1))
NO_ACCURACY = alone("a score that is no accuracy", multiple_choice_rows((90, 0, 90, 0), 1.0))


@pytest.mark.parametrize("what", GUESSED)
def test_choices_no_better_than_chance_are_reported(what: str, findings_by_run: FindingsByRun) -> None:
    chance, low = GUESSED[what]
    ((rule, severity, message),) = findings_by_run[what]
    assert (rule, severity) == ("near_floor", 2)
    assert message.startswith(f"full depth scores 50.0 (own), 95% interval {low:.1f} to ")
    assert f"choosing at random scores {chance}: it is not shown to be better than guessing" in message
    assert "num_fewshot" in message


def test_last_bits_of_log_probabilities_of_given_texts_may_differ(findings: Callable[..., Any]) -> None:
    rows = multiple_choice_rows((100, 0, 100, 0), 25.1)
    other = {**rows, "tokens": [{**token_row, "logprob": -1.0000001} for token_row in rows["tokens"]]}
    assert findings(rows, other) == []


def test_choices_better_than_chance_have_no_finding(findings_by_run: FindingsByRun) -> None:
    assert findings_by_run[BETTER_THAN_CHANCE] == []


def test_score_that_is_no_accuracy_is_not_compared_with_chance(findings_by_run: FindingsByRun) -> None:
    assert findings_by_run[NO_ACCURACY] == []


def label_rows(low: float) -> Rows:
    """Return the rows of a run over three documents with labels; the interval of its accuracy begins at `low`."""
    samples, tokens = answered(100, 0, 100)
    blocks = [
        {
            "doc_key": sample["doc_key"],
            "block": block,
            "label_id": 0,
            "prediction": 0.0,
            "probability": 0.6,
            "gold": gold,
            "score": None,
            "exited": block == 2,
        }
        for sample, gold in zip(samples, (0.0, 1.0, 0.0), strict=True)
        for block in (1, 2)
    ]
    metric = scored(200 / 3, low, 90.0)
    return {"samples": samples, "tokens": tokens, "sequence_trace": blocks, "metrics": [metric]}


LABELS = {alone(f"labels, from {low}", label_rows(low)): n for low, n in ((66.0, 1), (67.0, 0))}


@pytest.mark.parametrize("what", LABELS)
def test_label_accuracy_is_compared_with_the_most_frequent_label(what: str, findings_by_run: FindingsByRun) -> None:
    rules = findings_by_run[what]
    assert [(rule, severity) for rule, severity, _ in rules] == [("near_floor", 2)] * LABELS[what]
    assert all("always giving the most frequent label scores 66.7" in message for *_, message in rules)


def cut_rows(cut: int) -> Rows:
    """Return the rows of a run over documents of which all but one are cut at their length, `cut` of them."""
    keys = ["a", "b"] + ["c"] * (cut - 1)
    samples = [{**sample(1, key), "stop_reason": "eos" if key == "a" else "length"} for key in keys]
    return {"samples": samples, "tokens": [token(1, key=key) for key in keys]}


CUT = {alone(f"{cut} answers cut", cut_rows(cut)): n for cut, n in ((2, 1), (1, 0))}


@pytest.mark.parametrize("what", CUT)
def test_mostly_length_truncated_answers_are_reported(what: str, findings_by_run: FindingsByRun) -> None:
    rules = findings_by_run[what]
    assert [(rule, severity) for rule, severity, _ in rules] == [("cut_by_length", 2)] * CUT[what]
    for *_, message in rules:
        assert message.startswith("2 of 3 answers of full depth are cut at max_new_tokens = ")
        assert "chat_template = true" in message and "stop" in message


ALL_CUT: Rows = {"samples": [{**sample(1), "stop_reason": "length"}], "tokens": [token(1)]}
ALLOWED_CUTS = (
    alone("answers of an early exit cut", ALL_CUT, full_depth_cell_id="f" * 64),
    alone("answers of random weights cut", ALL_CUT, random_weights=True),
)


@pytest.mark.parametrize("what", ALLOWED_CUTS)
def test_truncated_answers_of_early_exit_or_random_weights_are_not_reported(
    what: str, findings_by_run: FindingsByRun
) -> None:
    assert "cut_by_length" not in [rule for rule, *_ in findings_by_run[what]]


IGNORED = {"repetition_penalty": 1.3, "$.[weird": [1]}
NOT_APPLIED = {
    alone("quality without settings", ONE, not_applied=IGNORED): 1,
    alone("timing without settings", {}, "timing", not_applied=IGNORED): 0,
}


@pytest.mark.parametrize("what", NOT_APPLIED)
def test_unapplied_generation_settings_are_reported_for_quality_runs_only(
    what: str, findings_by_run: FindingsByRun
) -> None:
    rules = findings_by_run[what]
    assert [(rule, severity) for rule, severity, _ in rules] == [("generation_not_applied", 2)] * NOT_APPLIED[what]
    assert all("repetition_penalty" in message and "1.3" in message for _, _, message in rules)
