"""ExitBench's lm-eval model: results equal those of lm-eval's Hugging Face backend; wrong arguments are rejected."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

import exitbench
from exitbench.errors import UserError
from exitbench.harness.api.lm_eval_model import ExitBenchLM, available_device, read_arguments
from exitbench.harness.planning.plan import gpu_names

TEXTS = {"causal": ("toy_text", "toy_choice", "toy_rolling"), "seq2seq": ("toy_text", "toy_choice")}
PAIRS = [(kind, task) for kind, tasks in TEXTS.items() for task in tasks]


@pytest.fixture(scope="module")
def manager(toy_tasks: Path) -> TaskManager:
    return TaskManager(include_path=str(toy_tasks), include_defaults=False)


@pytest.fixture(scope="module")
def theirs(toy_models: dict[str, Path]) -> dict[str, HFLM]:
    return {kind: HFLM(pretrained=str(path), device="cpu", dtype="float32") for kind, path in toy_models.items()}


@pytest.fixture(scope="module")
def ours(toy_models: dict[str, Path]) -> dict[str, ExitBenchLM]:
    return {kind: ExitBenchLM(pretrained=str(path), device="cpu", batch_size=4) for kind, path in toy_models.items()}


BUDGET = {"max_length": 7}
"""lm-eval's backend lets an encoder-decoder write as many tokens as its context has, and max_gen_toks more; by this
name it takes our budget: 6, and the token that decoders start with."""


def instances(manager: TaskManager, name: str, **gen_kwargs: Any) -> list[Instance]:
    (task,) = manager.load([name])["tasks"].values()
    task.set_config("num_fewshot", 0)  # examples would differ from call to call
    if gen_kwargs:
        task.set_config("generation_kwargs", gen_kwargs, update=True)
    task.build_all_requests(rank=0, world_size=1)
    result: list[Instance] = task.instances
    return result


# ------------------------------------------------- lm-eval's tests/models/test_huggingface.py, on models of this folder


@pytest.mark.parametrize("kind", TEXTS)
def test_loglikelihood_equals_lm_evals_hf_backend(ours: Any, theirs: Any, manager: TaskManager, kind: str) -> None:
    requests = instances(manager, "toy_choice")
    own, expected = ours[kind].loglikelihood(requests), theirs[kind].loglikelihood(requests, disable_tqdm=True)
    assert np.allclose([one[0] for one in own], [one[0] for one in expected], atol=1e-4)
    assert [one[1] for one in own] == [one[1] for one in expected]
    assert np.ptp([one[0] for one in own]) > 1


@pytest.mark.parametrize("kind", TEXTS)
def test_generate_until_equals_lm_evals_hf_backend(ours: Any, theirs: Any, manager: TaskManager, kind: str) -> None:
    own = ours[kind].generate_until(instances(manager, "toy_text"), disable_tqdm=True)
    budget = BUDGET if kind == "seq2seq" else {}
    assert own == theirs[kind].generate_until(instances(manager, "toy_text", **budget), disable_tqdm=True)
    assert len(set(own)) > 1


def test_loglikelihood_rolling_equals_lm_evals_hf_backend(ours: Any, theirs: Any, manager: TaskManager) -> None:
    requests = instances(manager, "toy_rolling")
    own = ours["causal"].loglikelihood_rolling(requests)
    assert np.allclose(own, theirs["causal"].loglikelihood_rolling(requests, disable_tqdm=True), atol=1e-3)


def test_loglikelihood_rolling_is_refused_for_encoder_decoders(ours: Any, manager: TaskManager) -> None:
    with pytest.raises(UserError, match="decoder-only"):
        ours["seq2seq"].loglikelihood_rolling(instances(manager, "toy_rolling"))


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("text", ["the old dog", "<s>the old dog", ""])
def test_tok_encode_and_tok_decode_equal_lm_evals_hf_backend(ours: Any, theirs: Any, kind: str, text: str) -> None:
    ids = ours[kind].tok_encode(text)
    assert ids == theirs[kind].tok_encode(text)
    assert ours[kind].tok_decode(ids) == theirs[kind].tok_decode(ids)


def test_chat_template_is_applied_and_tokenizer_name_has_no_slash(ours: Any) -> None:
    lm = ours["causal"]
    turns = [{"role": "user", "content": "the old dog"}]
    lm.tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    try:
        assert lm.apply_chat_template(turns) == "[user] the old dog"
        assert lm.chat_template(True) == lm.tokenizer.chat_template
    finally:
        lm.tokenizer.chat_template = None
    assert "/" not in lm.tokenizer_name and lm.tokenizer_name.endswith("causal")


# --------------------------------------------------------------------------------------------------------- evaluations


def test_requests_without_a_document_are_answered_separately(ours: Any, theirs: Any) -> None:
    pairs = [("the dog", " runs"), ("the dog", " sings two"), ("a man", " reads")]
    requests = [Instance("loglikelihood", {}, pair, 0) for pair in pairs]
    expected = theirs["causal"].loglikelihood(requests, disable_tqdm=True)
    assert np.allclose(
        [one[0] for one in ours["causal"].loglikelihood(requests)], [one[0] for one in expected], atol=1e-4
    )


def test_repeated_requests_get_the_same_answer(ours: Any, manager: TaskManager) -> None:
    request = instances(manager, "toy_text")[0]
    first, second = ours["causal"].generate_until([request, request], disable_tqdm=True)
    assert first == second


@pytest.mark.parametrize(("kind", "task"), PAIRS)
def test_simple_evaluate_equals_lm_evals_hf_backend(
    toy_models: dict[str, Path], theirs: Any, manager: TaskManager, kind: str, task: str
) -> None:
    asked: dict[str, Any] = {"tasks": [task], "task_manager": manager, "bootstrap_iters": 0, "num_fewshot": 2}
    arguments = {"pretrained": str(toy_models[kind]), "dtype": "float32"}
    own = simple_evaluate(model="exitbench", model_args=arguments, device="cpu", batch_size=4, **asked)
    asked |= {"gen_kwargs": BUDGET} if (kind, task) == ("seq2seq", "toy_text") else {}
    expected = simple_evaluate(model=theirs[kind], **asked)
    metrics = {name: value for name, value in expected["results"][task].items() if isinstance(value, float)}
    assert metrics
    for name, value in metrics.items():
        assert own["results"][task][name] == pytest.approx(value, rel=1e-6), name
    told = own["config"]["exitbench"]
    assert (told["method"], told["n_blocks"], told["mean_exit_layer"]) == ("full", 4, 4.0)
    assert told["tokens"] > 7


def test_model_args_string_sets_the_exit_method_and_its_parameters(
    toy_models: dict[str, Path], manager: TaskManager
) -> None:
    arguments = f"pretrained={toy_models['causal']},method=static,exit_layer=2,device=cpu"
    result = simple_evaluate(
        model="exitbench", model_args=arguments, tasks=["toy_choice"], task_manager=manager, bootstrap_iters=0
    )
    told = result["config"]["exitbench"]
    assert (told["method"], told["params"]["exit_layer"], told["mean_exit_layer"]) == ("static", 2, 2.0)


def test_lm_eval_is_restored_after_the_last_model_is_deleted(
    toy_models: dict[str, Path], snippets: ModuleType, tmp_path: Path
) -> None:
    script = f"""
import gc, logging, sys
logging.getLogger("lm_eval").setLevel(logging.WARNING)
import exitbench
import lm_eval.evaluator
own = lm_eval.evaluator.evaluate
from lm_eval.api.registry import get_model
import lm_eval.models
assert not [f for f in sys.meta_path if "exitbench" in type(f).__module__], "none waits any more"
made = [get_model("exitbench")(pretrained={str(toy_models["causal"])!r}, device="cpu") for _ in range(2)]
assert lm_eval.evaluator.evaluate.watches is own, "watched once"
made.pop()
gc.collect()
assert lm_eval.evaluator.evaluate.watches is own
made.pop()
gc.collect()
assert lm_eval.evaluator.evaluate is own
assert logging.getLogger("lm_eval").level == logging.WARNING
"""
    python = snippets.Python(tmp_path)
    try:
        python.output_of(snippets.Block("script", "python", None, script))
    finally:
        python.end()


def test_results_list_non_default_matrix_product_forms(
    toy_models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results list no matrix products if all of them use the default form."""

    def told() -> dict[str, Any]:
        return ExitBenchLM(pretrained=str(toy_models["seq2seq"]), device="cpu", dtype="bfloat16").get_model_info()

    assert "products" not in told()["exitbench"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("EXITBENCH_PRODUCTS", "measured")
    info = told()
    assert info["model_dtype"] == "torch.bfloat16"
    assert any(place.startswith("block ") for place in info["exitbench"]["products"])


def test_first_token_exits_early_by_default_in_likelihoods_but_not_in_generation(
    toy_models: dict[str, Path], manager: TaskManager
) -> None:
    def layers(**more: Any) -> tuple[set[int], set[int]]:
        lm = ExitBenchLM(pretrained=str(toy_models["causal"]), device="cpu", method="static", exit_layer=1, **more)
        lm.generate_until(instances(manager, "toy_text"), disable_tqdm=True)
        lm.loglikelihood(instances(manager, "toy_choice"))
        scored = {text.exit_layers[0] for texts in lm.scored.values() for text in texts}
        return {answer.generation.exit_layers[0] for answer in lm.answers.values()}, scored

    assert layers() == ({4}, {1})
    assert layers(first_token="gated") == ({1}, {1})
    assert layers(first_token="full") == ({4}, {4})


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "pretrained is missing"),
        ({"pretrained": "m", "methd": "full"}, "unknown argument 'methd' of method 'full'. Did you mean 'method'?"),
        (
            {"pretrained": "m", "method": "calm-softmaks"},
            "unknown method 'calm-softmaks'. Did you mean 'calm-softmax'?",
        ),
        ({"pretrained": "m", "method": "calm-softmax", "treshold": 1}, "Did you mean 'threshold'?"),
        ({"pretrained": "m", "method": "calm-softmax", "threshold": "high"}, "threshold"),
        ({"pretrained": "m", "dtype": "float23"}, "dtype is 'float23'. Did you mean 'float32'?"),
        ({"pretrained": "m", "scope": "tokens"}, "scope is 'tokens'. Did you mean 'token'?"),
        ({"pretrained": "m", "batch_size": "many"}, "batch_size is 'many'; it must be a whole number"),
        ({"pretrained": "m", "batch_size": "auto", "max_batch_size": 0}, "max_batch_size is 0"),
        ({"pretrained": "m", "hub": "yes"}, "hub is 'yes'; it must be True or False"),
        ({"pretrained": "m", "max_length": 1.5}, "max_length is 1.5; it must be a whole number"),
        ({"pretrained": "m", "max_length": 1}, "max_length is 1"),
        ({"pretrained": "m", "trust_remote_code": True}, "trust_remote_code is never true"),
        ({"pretrained": "m", "method": "mee-lstm"}, "must be fitted first"),
    ],
)
def test_invalid_model_args_raise_user_errors(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        read_arguments(given)
    assert str(caught.value).startswith("--model exitbench") and message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        ({}, 1),
        ({"batch_size": "8"}, 8),
        ({"batch_size": "auto"}, 64),
        ({"batch_size": "auto:4", "max_batch_size": 2}, 2),
    ],
)
def test_lm_eval_batch_size_sets_the_number_of_rows(given: dict[str, Any], rows: int) -> None:
    assert read_arguments({"pretrained": "m", **given}).rows == rows


def test_numeric_path_arguments_are_read_as_strings() -> None:
    assert read_arguments({"pretrained": 7, "trace": 2026}).trace == "2026"


def test_missing_gpu_falls_back_to_the_first_one_or_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = ("cuda:1", "cuda:2", "cuda", "auto", "cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # the driver is too old
    assert [available_device(device) for device in devices] == ["cpu"] * 5
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert gpu_names() == ("cuda", "cuda:0", "cuda:1")
    assert [available_device(device) for device in devices] == ["cuda:1", "cuda", "cuda", "cuda", "cpu"]
    with pytest.raises(UserError, match="device is 'tpu'"):
        available_device("tpu")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [({"do_sample": True, "temperature": 0.7}, "sampling"), ({"num_beams": 3}, "num_beams = 3")],
)
def test_sampling_and_beams_are_refused(ours: Any, kwargs: dict[str, Any], message: str) -> None:
    request = Instance("generate_until", {}, ("the dog", {"until": ["\n"], "max_gen_toks": 3, **kwargs}), 0)
    with pytest.raises(UserError, match=message):
        ours["causal"].generate_until([request])


def test_method_without_log_likelihoods_is_refused(toy_models: dict[str, Path], manager: TaskManager) -> None:
    lm = ExitBenchLM(pretrained=str(toy_models["causal"]), device="cpu", method="self-speculation")
    with pytest.raises(UserError, match="method 'self-speculation' does not provide log-likelihoods"):
        lm.loglikelihood(instances(manager, "toy_choice"))


# --------------------------------------------------------------------------------------------------------- registration


def test_lm_eval_registry_has_exitbench_and_hf_models() -> None:
    assert exitbench.__version__
    assert get_model("exitbench") is ExitBenchLM
    assert get_model("hf") is HFLM


@pytest.mark.parametrize(
    "first", ["import exitbench; import lm_eval.models", "import lm_eval.models; import exitbench"]
)
def test_registration_imports_no_torch_in_either_import_order(first: str) -> None:
    code = (
        f"import sys; {first}\n"
        "from lm_eval.api.registry import model_registry\n"
        "assert {'exitbench', 'hf'} <= set(model_registry.keys())\n"
        "assert not {'torch', 'exitbench.harness'} & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_importing_exitbench_does_not_import_lm_eval() -> None:
    code = "import sys, exitbench; sys.exit('lm_eval' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
