"""Suites over tasks of lm-eval: full depth gives exactly lm-eval's own numbers, and all choices are in the database."""

from __future__ import annotations

import functools
import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval_toys import POSITIONS, TASKS, gpt2, save_models, write_tasks
from suite_runs import plan_suite, worker_spec

from exitbench.errors import UserError
from exitbench.harness.running import worker
from exitbench.harness.service.outcome import print_left_out
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest
from exitbench.results.spool.attempts import latest_status

SUITE = """
schema = 1
name = "toys"
seed = 3
[defaults]
batch_size = {batch_size}
dtype = "{dtype}"
[models.m]
path = "{model}"
random_weights = true
[timing]
documents = 3
max_rounds = 1
warm_up = 1
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_models(tmp_path_factory.mktemp("models"), gpt2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("data"), documents=11, new_tokens=20)


def planned(
    root: Path, model: Path, data: Path, tasks: str, sweeps: str, batch_size: int = 1, dtype: str = "float32"
) -> Any:
    root.mkdir(exist_ok=True)
    head = SUITE.format(model=model, batch_size=batch_size, dtype=dtype)
    return plan_suite(root, head + tasks.replace("OURS", str(data / "ours")) + sweeps, data)


def entry(name: str, more: str = "") -> str:
    return f'[tasks.{name}]\ntask = "lm-eval:toy_{name}"\ninclude = "OURS"\n{more}\n'


def run(
    root: Path,
    model: Path,
    data: Path,
    tasks: str,
    sweeps: str,
    batch_size: int = 1,
    shares: bool = True,
    dtype: str = "float32",
) -> dict[str, Path]:
    """Run a suite; return the folder of each cell's attempt, by the cell's label without the model."""
    (group,) = planned(root, model, data, tasks, sweeps, batch_size, dtype).groups
    spec = replace(worker_spec(group, root / "spool", data), shares=shares)
    assert worker.run(spec, lambda event: None) == 0
    ended = latest_status(root / "spool")
    return {item.label.partition("/")[2]: ended[item.cell.cell_id].path for item in spec.cells}


def status(attempt: Path) -> tuple[str, str]:
    record = json.loads((attempt / "status.json").read_text())
    log = attempt / "log.txt"
    return record["status"], log.read_text() if log.exists() else str(record["reason"])


def rows(attempt: Path, table: str) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = pq.read_table(attempt / f"{table}.parquet").to_pylist()
    return result


STATIC = '[[sweep]]\nmethod = "static"\ngrid = { exit_layer = [2] }\nkinds = ["quality"]\n'
GATED = """
[[sweep]]
method = "calm-softmax"
grid = { threshold = [0.02, 0.2], decay = ["none"], min_exit = [1] }
kinds = ["quality", "probe", "replay"]
"""


@pytest.fixture(scope="module")
def theirs(models: dict[str, Path], data: Path) -> Callable[[str, str], dict[str, Any]]:
    """Return a function that returns the results of lm-eval's own backend on a task."""

    @functools.cache
    def backend(kind: str) -> HFLM:
        return HFLM(pretrained=str(models[kind]), device="cpu", dtype="float32", batch_size=1)

    @functools.cache
    def ask(kind: str, task: str) -> dict[str, Any]:
        manager = TaskManager(include_path=str(data / "theirs"), include_defaults=False)
        result: dict[str, Any] = simple_evaluate(
            model=backend(kind), tasks=[task], task_manager=manager, bootstrap_iters=0, log_samples=True
        )
        return result

    return ask


KINDS = {"causal": ("text", "choice", "letter", "rolling"), "seq2seq": ("text", "choice", "letter")}


@pytest.fixture(scope="module")
def runs(models: dict[str, Path], data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    """Run full depth, a static depth and a gate on every task with both models; return attempts by kind and label."""
    results = {}
    for kind, names in KINDS.items():
        tasks, root = "".join(map(entry, names)), tmp_path_factory.mktemp(kind) / "run"
        results[kind] = run(root, models[kind], data, tasks, STATIC + GATED)
    return results


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in KINDS.items() for name in names])
def test_full_depth_equals_lm_evals_hf_backend(
    runs: dict[str, dict[str, Path]], theirs: Callable[[str, str], dict[str, Any]], kind: str, name: str
) -> None:
    attempt = runs[kind][f"{name}/full/quality"]
    assert status(attempt)[0] == "ok", status(attempt)
    expected = theirs(kind, f"toy_{name}")
    ours = {row["metric"]: row["value"] for row in rows(attempt, "metrics")}
    told = expected["results"][f"toy_{name}"]
    compared = 0
    for key, value in told.items():
        metric = key.removesuffix(",none")
        if metric in ours and isinstance(value, float):
            scale = 100 if metric in ("acc", "acc_norm", "exact_match") else 1
            assert ours[metric] == pytest.approx(scale * value, rel=1e-9 if name != "rolling" else 1e-6), metric
            compared += 1
    assert compared == len(TASKS[f"toy_{name}"]["metric_list"])
    samples = sorted(expected["samples"][f"toy_{name}"], key=lambda sample: sample["doc_id"])
    if name == "text":
        texts = [row["output_text"] for row in rows(attempt, "samples")]
        assert texts == [sample["resps"][0][0] for sample in samples]
        assert len(set(texts)) > 1
        # Answers that nothing ends are longer there, of an encoder-decoder: by as many tokens as the prompt has.
        assert kind == "causal" or {row["stop_reason"] for row in rows(attempt, "samples")} == {"stop_string"}
        return
    by_document: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows(attempt, "choices"):
        by_document[row["doc_key"]].append(row)
    for own, sample in zip(by_document.values(), samples, strict=True):
        asked = [resp[0] for resp in sample["resps"]]
        if name == "rolling":
            assert own[0]["logprob"] == pytest.approx(asked[0], rel=1e-6)
        else:
            assert [row["logprob"] for row in own] == pytest.approx([one[0] for one in asked], rel=1e-4)
            assert [row["is_greedy"] for row in own] == [one[1] for one in asked]
            assert [row["is_right"] for row in own] == [place == sample["doc"]["right"] for place in range(len(own))]


def test_choices_store_log_probabilities_at_the_exit_and_at_full_depth(runs: dict[str, dict[str, Path]]) -> None:
    full = {(r["doc_key"], r["choice"]): r for r in rows(runs["causal"]["choice/full/quality"], "choices")}
    attempt = runs["causal"]["choice/static:exit_layer=2/quality"]
    own, tokens = rows(attempt, "choices"), rows(attempt, "tokens")
    assert {row["exit_layer"] for row in tokens} == {2}
    for row in own:
        whole = full[row["doc_key"], row["choice"]]
        assert (row["full_logprob"], row["full_is_chosen"]) == (whole["logprob"], whole["is_chosen"])
        of_choice = [one for one in tokens if (one["doc_key"], one["choice"]) == (row["doc_key"], row["choice"])]
        assert [one["position"] for one in of_choice] == list(range(1, row["n_tokens"] + 1))
        assert row["logprob"] == pytest.approx(sum(one["logprob"] for one in of_choice), rel=1e-5)
        assert row["full_logprob"] == pytest.approx(sum(one["full_logprob"] for one in of_choice), rel=1e-5)
    by_document: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in own:
        by_document[row["doc_key"]].append(row)
    for choices in by_document.values():
        best = max(row["logprob"] for row in choices)
        assert [row["is_chosen"] for row in choices] == [row["logprob"] == best for row in choices]
    metrics = {row["metric"]: row["value"] for row in rows(attempt, "metrics")}
    chosen = [row for row in own if row["is_chosen"]]
    assert metrics["acc"] == pytest.approx(100 * np.mean([row["is_right"] for row in chosen]))
    assert metrics["choice_match"] == pytest.approx(np.mean([row["full_is_chosen"] for row in chosen]))
    assert 0 < metrics["choice_match"] < 1, "or nothing is told apart"
    assert metrics["mean_exit_layer"] == 2


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
@pytest.mark.sampled(2)
def test_format_metrics_equal_the_gaps_to_lm_evals_float32_choices(
    models: dict[str, Path],
    data: Path,
    theirs: Callable[[str, str], dict[str, Any]],
    runs: dict[str, dict[str, Path]],
    tmp_path: Path,
    kind: str,
    dtype: str,
) -> None:
    names = [name for name in KINDS[kind] if name != "text"]
    attempts = run(tmp_path / "run", models[kind], data, "".join(map(entry, names)), STATIC, dtype=dtype)
    for name in names:
        attempt = attempts[f"{name}/full/quality"]
        told = {row["metric"]: row["value"] for row in rows(attempt, "metrics") if row["role"] == "format"}
        if name == "rolling":
            pairs = zip(rows(attempt, "tokens"), rows(runs[kind][f"{name}/full/quality"], "tokens"), strict=True)
            tokens = [(abs(a["logprob"] - b["logprob"]), a["is_greedy"] == b["is_greedy"]) for a, b in pairs]
            gaps, same = zip(*tokens, strict=True)
            assert told == pytest.approx(
                {"format_logprob_gap": np.mean(gaps), "format_token_match": np.mean(same)}, rel=1e-3
            )
            continue
        by_document: dict[str, list[float]] = defaultdict(list)
        for row in rows(attempt, "choices"):
            by_document[row["doc_key"]].append(row["logprob"])
        samples = sorted(theirs(kind, f"toy_{name}")["samples"][f"toy_{name}"], key=lambda sample: sample["doc_id"])
        moved, apart, equal = [], [], []
        for own, sample in zip(by_document.values(), samples, strict=True):
            other = [resp[0][0] for resp in sample["resps"]]
            away = np.subtract(own, other)
            moved += list(abs(away))
            apart += [abs(away[0] - away[1]), abs(away[0] - away[2]), abs(away[1] - away[2])]
            equal.append(np.argmax(own) == np.argmax(other))
        assert np.mean(moved) > 1e-3, "or there is nothing to measure"
        assert told == pytest.approx(
            {
                "format_logprob_gap": np.mean(moved),
                "format_choice_gap": np.mean(apart),
                "format_choice_match": np.mean(equal),
            },
            rel=0.01,
        )
    static = rows(attempts[f"{names[0]}/static:exit_layer=2/quality"], "metrics")
    assert "format" not in {row["role"] for row in static}


@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
@pytest.mark.parametrize("threshold", ["0.02", "0.2"])
def test_replay_equals_decoding_for_single_token_choices(
    runs: dict[str, dict[str, Path]], kind: str, threshold: str
) -> None:
    """If every choice is a single token, an exit cannot affect later tokens, so the replay equals the real run."""
    label = f"letter/calm-softmax:threshold={threshold},decay=none"
    real, replayed = (
        next(attempt for name, attempt in runs[kind].items() if name.startswith(label) and name.endswith(f"/{cell}"))
        for cell in ("quality", "replay")
    )
    assert status(real)[0] == "ok" and status(replayed)[0] == "ok", (status(real), status(replayed))
    assert {row["n_tokens"] for row in rows(real, "choices")} == {1}
    layers = {row["exit_layer"] for row in rows(real, "tokens")}
    assert threshold != "0.02" or len(layers) > 1, "or nothing leaves early"
    for table in ("choices", "tokens"):
        for one, other in zip(rows(real, table), rows(replayed, table), strict=True):
            for name in ("choice", "exit_layer", "logprob", "full_logprob", "is_chosen", "is_greedy"):
                if name in one:
                    assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-5), name
    accuracy = [
        next(r["value"] for r in rows(attempt, "metrics") if r["metric"] == "acc") for attempt in (real, replayed)
    ]
    assert accuracy[0] == accuracy[1]


def test_batched_scoring_equals_single_row_scoring(
    runs: dict[str, dict[str, Path]], models: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    batched = run(tmp_path / "run", models["causal"], data, entry("choice") + entry("rolling"), STATIC + GATED, 4)
    for label in ("choice/full/quality", "rolling/full/quality", "choice/static:exit_layer=2/quality"):
        for one, other in zip(rows(runs["causal"][label], "choices"), rows(batched[label], "choices"), strict=True):
            assert one["logprob"] == pytest.approx(other["logprob"], rel=1e-4)


def test_choices_can_be_queried_in_the_database(models: dict[str, Path], data: Path, tmp_path: Path) -> None:
    timed = STATIC.replace('["quality"]', '["quality", "timing"]')
    attempts = run(
        tmp_path / "run", models["causal"], data, entry("choice", "limit = 5") + entry("text"), timed + GATED
    )
    assert {status(attempt)[0] for attempt in attempts.values()} == {"ok"}, list(map(status, attempts.values()))
    database = tmp_path / "exitbench.duckdb"
    assert ingest(tmp_path / "run" / "spool", database).quarantined == ()
    with open_database(database) as opened:

        def ask(sql: str) -> list[dict[str, Any]]:
            result: list[dict[str, Any]] = opened.query(sql).to_pylist()
            return result

        counted = "SELECT method, count(DISTINCT attempt_id) AS n FROM token_trace WHERE choice IS NOT NULL"
        runs_of = ask(f"{counted} GROUP BY ALL ORDER BY ALL")
        assert runs_of == [{"method": "calm-softmax", "n": 4}, {"method": "full", "n": 1}, {"method": "static", "n": 1}]
        trace = rows(attempts["choice/static:exit_layer=2/quality"], "tokens")
        of_static = "method = 'static' AND choice IS NOT NULL"
        result = ask(f"FROM token_trace WHERE {of_static} ORDER BY doc_key, choice, position")
        expected = sorted(trace, key=lambda row: (row["doc_key"], row["choice"], row["position"]))
        assert [{name: row[name] for name in expected[0]} for row in result] == expected
        assert ask("SELECT * FROM qc WHERE severity = 3") == []
        probed = ask("SELECT count(*) AS n, count(logprob) AS told FROM probe_trace WHERE choice IS NOT NULL")
        assert probed == [{"n": len(trace), "told": len(trace)}]
        assert ask("SELECT DISTINCT choice IS NULL AS of_answers FROM probe_trace WHERE task_label = 'text'") == [
            {"of_answers": True}
        ]
        (static,) = ask("FROM frontier WHERE method = 'static' AND task_label = 'choice'")
        assert static["metric"] == "acc" and static["speed_status"] != "not timed"
        assert static["mean_exit_layer"] == 2


TEMPLATE = "{% for turn in messages %}<{{ turn.role[0] }}> {{ turn.content }}\n{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<a>{% endif %}"


@pytest.mark.parametrize("name", ["choice", "text"])
def test_chat_runs_equal_lm_evals_hf_backend(models: dict[str, Path], data: Path, tmp_path: Path, name: str) -> None:
    model = tmp_path / "chatty"
    shutil.copytree(models["causal"], model)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    chat = 'num_fewshot = 1\nchat_template = true\nsystem = "sees"\nfewshot_as_multiturn = true'
    attempts = run(tmp_path / "run", model, data, entry(name, chat), STATIC)
    manager = TaskManager(include_path=str(data / "theirs"), include_defaults=False)
    asked = {"apply_chat_template": True, "system_instruction": "sees", "fewshot_as_multiturn": True, "num_fewshot": 1}
    backend = HFLM(pretrained=str(model), device="cpu", dtype="float32", batch_size=1)
    expected = simple_evaluate(
        model=backend, tasks=[f"toy_{name}"], task_manager=manager, bootstrap_iters=0, log_samples=True, **asked
    )
    samples = sorted(expected["samples"][f"toy_{name}"], key=lambda sample: sample["doc_id"])
    assert "<s> sees" in samples[0]["arguments"][0][0] and "<a>" in samples[0]["arguments"][0][0]
    attempt = attempts[f"{name}/full/quality"]
    assert status(attempt)[0] == "ok", status(attempt)
    if name == "text":
        assert [row["output_text"] for row in rows(attempt, "samples")] == [one["resps"][0][0] for one in samples]
    else:
        theirs = [resp[0][0] for sample in samples for resp in sample["resps"]]
        assert [row["logprob"] for row in rows(attempt, "choices")] == pytest.approx(theirs, rel=1e-4)


def test_scoring_runs_store_ideal_speedups_over_full_depth(runs: dict[str, dict[str, Path]]) -> None:
    """Work is stored as ideal speed-ups over full depth; `harness/engine/test_scoring_cost.py` tests its amounts."""
    names = ("ideal_speedup_bytes", "ideal_speedup_flops")

    def work(kind: str, label: str) -> list[float | None]:
        told = {row["metric"]: row["value"] for row in rows(runs[kind][label], "metrics")}
        return [told.get(name) for name in names]

    for name in ("choice", "letter", "rolling"):
        assert work("causal", f"{name}/full/quality") == [1, 1]
        read, flops = work("causal", f"{name}/static:exit_layer=2/quality")
        # Half the blocks are saved, and nothing of the read-out.
        assert read is not None and flops is not None and 1 < read < 2 and 1 < flops < 2, name
        gated = next(own for own in runs["causal"] if own.startswith(f"{name}/calm") and own.endswith("/quality"))
        read, flops = work("causal", gated)
        assert read is not None and flops is not None and read < 1 < flops, "weights are read by token"
        if name != "rolling":
            assert work("causal", gated.replace("/quality", "/replay")) == [None, None]
    assert work("seq2seq", "choice/static:exit_layer=2/quality") == [None, None]


def test_context_scope_uses_one_exit_layer_per_document(models: dict[str, Path], data: Path, tmp_path: Path) -> None:
    gated = GATED.replace('["quality", "probe", "replay"]', '["quality", "replay"]')
    attempts = run(tmp_path / "run", models["causal"], data, entry("choice", 'scope = "context"'), gated)
    told = {label: status(attempt) for label, attempt in attempts.items()}
    depths: dict[str, dict[str, set[int]]] = {}
    for label, attempt in attempts.items():
        if label.endswith("/quality"):
            for row in rows(attempt, "tokens"):
                depths.setdefault(label, defaultdict(set))[row["doc_key"]].add(row["exit_layer"])
        elif label.endswith("/replay"):
            assert told[label][0] == "skipped", told[label]
    for own in depths.values():
        assert all(len(layers) == 1 for layers in own.values())
    assert any(len(set.union(*own.values())) > 1 for own in depths.values()), "or nothing was decided"


def test_hosted_and_lean_engine_scores_are_equal(
    runs: dict[str, dict[str, Path]],
    models: dict[str, Path],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "SUITE", SUITE.replace("random_weights", 'engine = "hosted"\nrandom_weights'))
    attempts = run(tmp_path / "run", models["causal"], data, entry("choice") + entry("rolling"), STATIC)
    for label in ("choice/full/quality", "choice/static:exit_layer=2/quality", "rolling/full/quality"):
        assert json.loads((attempts[label] / "cell.json").read_text())["engine"] == "hosted"
        for one, other in zip(rows(attempts[label], "choices"), rows(runs["causal"][label], "choices"), strict=True):
            assert one["logprob"] == pytest.approx(other["logprob"], rel=1e-4)


def test_calibration_loss_on_choices_is_the_share_of_changed_choices(
    models: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    calibration = """
[[calibration]]
method = "calm-softmax"
grid = { decay = ["none"] }
levels = [1.0, 0.2, 0.0]
delta = 0.9
epsilon = 0.5
consistency = "textual"
documents = 6
"""
    attempts = run(
        tmp_path / "run", models["causal"], data, entry("choice", 'calibration_split = "train"'), calibration
    )
    (attempt,) = (attempt for label, attempt in attempts.items() if label.endswith("/calibration"))
    assert status(attempt)[0] == "ok", status(attempt)
    steps = rows(attempt, "calibration")
    assert steps[0]["mean_loss"] == 0 and steps[0]["n"] == 6
    assert all(row["mean_loss"] * 6 == pytest.approx(round(row["mean_loss"] * 6)) for row in steps)
    assert {row["metric"] for row in rows(attempt, "metrics")} >= {"held_out_loss", "held_out_mean_exit_layer"}


def test_fitted_method_runs_on_choice_and_text_tasks(models: dict[str, Path], data: Path, tmp_path: Path) -> None:
    sweep = '[[sweep]]\nmethod = "calm-classifier"\ngrid = { epochs = [1] }\nkinds = ["quality", "replay"]\n'
    tasks = entry("choice") + entry("text")
    attempts = run(tmp_path / "run", models["causal"], data, tasks, f"[fit]\ndocuments = 6\n{sweep}")
    assert {status(attempt)[0] for attempt in attempts.values()} == {"ok"}, list(map(status, attempts.values()))
    assert sum(label.endswith("/fit") for label in attempts) == 2


def test_shared_replays_of_choices_equal_separate_replays(models: dict[str, Path], data: Path, tmp_path: Path) -> None:
    sweep = GATED.replace('["quality", "probe", "replay"]', '["replay"]')
    together, alone = (
        run(tmp_path / str(shares), models["causal"], data, entry("choice"), sweep, shares=shares)
        for shares in (True, False)
    )
    replays = [label for label in together if label.endswith("/replay")]
    for label in replays:
        for table in ("choices", "tokens", "metrics"):
            assert rows(together[label], table) == rows(alone[label], table), (label, table)
    told = [
        json.loads((own[label] / "status.json").read_text())["pass_cells"]
        for own in (together, alone)
        for label in replays
    ]
    assert told == [2, 2, None, None]


@pytest.mark.parametrize(
    ("method", "kinds", "words"),
    [
        ("self-speculation", "quality", "verifies its drafts"),
        ("oracle", "timing", "an oracle reads all blocks"),
    ],
)
def test_cells_not_possible_on_choice_tasks_are_skipped_with_a_reason(
    models: dict[str, Path], data: Path, tmp_path: Path, method: str, kinds: str, words: str
) -> None:
    sweep = f'[[sweep]]\nmethod = "{method}"\nkinds = ["{kinds}"]\n'
    attempts = run(tmp_path / "run", models["causal"], data, entry("choice"), sweep)
    (attempt,) = (attempt for label, attempt in attempts.items() if f"/{method}" in label)
    record = json.loads((attempt / "status.json").read_text())
    assert record["status"] == "skipped" and words in record["reason"]


def test_prompts_longer_than_the_model_are_truncated_and_counted(
    models: dict[str, Path], data: Path, tmp_path: Path, theirs: Callable[[str, str], dict[str, Any]]
) -> None:
    attempts = run(tmp_path / "run", models["causal"], data, entry("choice", "num_fewshot = 6"), STATIC)
    own = rows(attempts["choice/full/quality"], "choices")
    cut = {row["doc_key"] for row in own if row["n_cut"]}
    assert cut, "or nothing is cut"
    assert all(row["n_context"] + row["n_tokens"] == POSITIONS + 1 for row in own if row["n_cut"])
    metrics = {row["metric"]: row["value"] for row in rows(attempts["choice/full/quality"], "metrics")}
    assert metrics["prompts_truncated"] == len(cut)


EVERY_KIND = f"""{GATED}
[[sweep]]
method = "calm-classifier"
grid = {{ epochs = [1] }}
kinds = ["quality", "timing"]
[[calibration]]
method = "calm-softmax"
grid = {{ decay = ["none"] }}
levels = [1.0, 0.0]
delta = 0.9
epsilon = 0.5
rule = "naive"
documents = 6
[fit]
documents = 6
"""


@pytest.fixture
def unscorable(data: Path, tmp_path: Path) -> Path:
    """Return a copy of the data in which one document of each file has an empty text and an empty choice."""
    folder = Path(shutil.copytree(data, tmp_path / "data"))
    for split in ("test", "train"):
        path = folder / f"{split}.jsonl"
        first, *others = map(json.loads, path.read_text().splitlines())
        first |= {"answers": ["a dog", "", "a cat"], "text": ""}
        path.write_text("".join(json.dumps(record) + "\n" for record in (*others, first)))
    for name in ("choice", "rolling"):
        path = folder / "ours" / f"toy_{name}.yaml"
        path.write_text(path.read_text() + "target_delimiter: ''\n")
    return folder


def test_unscorable_document_is_omitted_from_every_kind_of_cell(
    models: dict[str, Path], unscorable: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tasks = entry("choice", 'calibration_split = "train"\nnum_fewshot = 0')
    attempts = run(tmp_path / "run", models["causal"], unscorable, tasks, EVERY_KIND)
    kinds = {label.rpartition("/")[2] for label in attempts}
    assert kinds == {"quality", "probe", "scores", "replay", "timing", "fit", "calibration"}
    assert {label: status(attempt)[0] for label, attempt in attempts.items()} == dict.fromkeys(attempts, "ok")
    answered = {
        label: {row["doc_key"] for row in rows(attempt, "samples")}
        for label, attempt in attempts.items()
        if label.endswith("/quality")
    }
    assert {len(keys) for keys in answered.values()} == {10}
    assert len(set(map(frozenset, answered.values()))) == 1, "full depth and every method answer the same"
    counts = {
        label.rpartition("/")[2]: {row["metric"]: (row["value"], row["n"]) for row in rows(attempt, "metrics")}
        for label, attempt in attempts.items()
    }
    assert {kind: own["documents_unscorable"] for kind, own in counts.items()} == {
        **dict.fromkeys(("quality", "probe", "scores", "replay", "timing"), (1, 11)),
        "fit": (1, 6),
        "calibration": (2, 17),
    }
    assert "Left out: document " in (messages := capfd.readouterr().err)
    assert ": no token is left to score of ''; the tokenizer may have merged it with its context." in messages
    ingest(tmp_path / "run" / "spool", tmp_path / "x.duckdb")
    with open_database(tmp_path / "x.duckdb") as database:
        query = "SELECT DISTINCT severity, message FROM qc WHERE kind = 'quality' AND rule = 'documents_unscorable'"
        (result,) = database.query(query).to_pylist()
    assert (result["severity"], result["message"]) == (
        2,
        "1 of 11 documents are excluded: one of their texts has no token to score, or more than the model can read",
    )
    print_left_out(tmp_path / "x.duckdb", "toys")
    assert "m on choice: 1 of 11 documents left out, whose texts cannot be scored" in capfd.readouterr().out


def test_empty_text_is_omitted(models: dict[str, Path], unscorable: Path, tmp_path: Path) -> None:
    attempts = run(tmp_path / "run", models["causal"], unscorable, entry("rolling"), STATIC)
    assert {len(rows(attempt, "samples")) for attempt in attempts.values()} == {10}


def test_task_with_only_unscorable_documents_fails(models: dict[str, Path], unscorable: Path, tmp_path: Path) -> None:
    path = unscorable / "test.jsonl"
    path.write_text(path.read_text().splitlines()[-1] + "\n")
    attempts = run(tmp_path / "run", models["causal"], unscorable, entry("rolling"), STATIC)
    told, reason = status(attempts["rolling/full/quality"])
    assert told == "failed" and "none of the 1 documents can be scored; the first: document " in reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (entry("letter", 'scope = "both"'), "unknown scope 'both'"),
        (entry("text", 'scope = "context"'), "unknown scope 'context'. Allowed: answer, token."),
        (entry("letter", 'scope = "context"\nfirst_token = "full"'), "keeps the depth of the first token"),
        (entry("letter", "gen_kwargs = { max_gen_toks = 3 }"), "goes with tasks that generate text"),
        (entry("text", "gen_kwargs = { do_sample = true }"), "requires sampling"),
        (entry("text", "gen_kwargs = { num_beams = 4 }"), "requires num_beams = 4"),
        (entry("text", "max_new_tokens = 3"), "does not go with a task of lm-eval"),
        (entry("text", "level = 2"), "goes with generated data"),
        (entry("text", "fewshot_as_multiturn = true"), "goes with chat_template = true"),
        (entry("letters"), "toy_letter"),
        ("[tasks.sst2]\nnum_fewshot = 3\n", "goes with tasks that have prompt styles"),
        (entry("letter", "num_fewshot = -1"), "must be from 0"),
    ],
)
def test_settings_invalid_for_an_lm_eval_task_are_refused(
    models: dict[str, Path], data: Path, tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(UserError) as caught:
        planned(tmp_path / "run", models["causal"], data, text, STATIC)
    assert words in str(caught.value) and "suite.toml:" in str(caught.value)


def test_task_whose_yaml_requires_sampling_is_refused_unless_overridden(
    models: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    config = {**yaml.safe_load((data / "ours" / "toy_text.yaml").read_text()), "task": "toy_sampled"}
    config["generation_kwargs"] = {**config.get("generation_kwargs", {}), "do_sample": True, "temperature": 0.7}
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "toy_sampled.yaml").write_text(yaml.safe_dump(config))
    task = f'[tasks.sampled]\ntask = "lm-eval:toy_sampled"\ninclude = "{tmp_path / "own"}"\n'
    with pytest.raises(UserError, match=r"suite\.toml.*requires sampling.*gen_kwargs = \{ do_sample = false \}"):
        planned(tmp_path / "run", models["causal"], data, task, STATIC)
    planned(tmp_path / "run", models["causal"], data, f"{task}gen_kwargs = {{ do_sample = false }}\n", STATIC)


def test_rolling_likelihood_is_refused_for_an_encoder_decoder(
    models: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"suite\.toml.*loglikelihood_rolling.*is an encoder-decoder"):
        planned(tmp_path / "run", models["seq2seq"], data, entry("rolling"), STATIC)


def test_lm_eval_task_settings_change_ids_and_the_yaml_path_does_not(
    models: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    def ids(root: str, more: str, folder: Path = data) -> set[str]:
        (group,) = planned(tmp_path / root, models["causal"], folder, entry("letter", more), STATIC).groups
        return {cell.item.cell.cell_id for cell in group.cells}

    plain = ids("a", "")
    shutil.copytree(data, tmp_path / "elsewhere")
    assert plain == ids("b", 'scope = "token"') == ids("d", "", tmp_path / "elsewhere")
    for number, more in enumerate(("num_fewshot = 1", 'scope = "context"', 'first_token = "full"', "limit = 4")):
        # A task that says 0 examples keeps 0, as in lm-eval; that they were asked for counts all the same.
        assert plain.isdisjoint(ids(f"c{number}", more)), more
