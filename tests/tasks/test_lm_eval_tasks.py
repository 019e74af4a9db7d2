"""Tasks of lm-eval in ExitBench: documents, requests and scores equal those of lm-eval's own run on the same files."""

import copy
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval.tasks
import numpy as np
import pytest
import yaml
from lm_eval.api.model import TemplateLM
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import TaskIndex

from exitbench.errors import UserError
from exitbench.tasks.base import Source
from exitbench.tasks.lm_eval import configs
from exitbench.tasks.lm_eval.settings import LmEvalSettings
from exitbench.tasks.lm_eval.task import LmEvalTask
from exitbench.tasks.registry import get_task

FILES = {"train": "train.jsonl", "test": "test.jsonl"}
BASE = {
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": FILES},
    "training_split": "train",
    "test_split": "test",
    "doc_to_text": "Q: {{question}}\nA:",
    "metadata": {"version": 2.0},
}
MEAN = {"aggregation": "mean", "higher_is_better": True}
CHOICE = {
    **BASE,
    "task": "choice",
    "tag": "both",
    "output_type": "multiple_choice",
    "doc_to_choice": "choices",
    "doc_to_target": "answer",
    "num_fewshot": 2,
    "metric_list": [{"metric": "acc", **MEAN}, {"metric": "acc_norm", **MEAN}],
}
OTHER = {**CHOICE, "task": "other", "doc_to_text": "{{question}}", "num_fewshot": 0}
GENERATE = {
    **BASE,
    "task": "generate",
    "output_type": "generate_until",
    "doc_to_target": "{{text}}",
    "num_fewshot": 1,
    "repeats": 3,
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 7},
    "metric_list": [{"metric": "exact_match", **MEAN}],
    "filter_list": [
        {"name": "first", "filter": [{"function": "take_first"}]},
        {"name": "vote", "filter": [{"function": name} for name in ("lowercase", "majority_vote", "take_first")]},
    ],
}
TRANSLATE = {
    **BASE,
    "task": "translate",
    "output_type": "generate_until",
    "doc_to_target": "{{text}}",
    "metric_list": [{"metric": metric} for metric in ("ter", "bleu", "chrf")],
}
LIKELY = {
    **BASE,
    "task": "likely",
    "output_type": "loglikelihood",
    "doc_to_target": " {{text}}",
    "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
}
ROLLING = {
    **BASE,
    "task": "rolling",
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{question}} {{text}}",
    "metric_list": [{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
}
TASKS = (CHOICE, OTHER, GENERATE, TRANSLATE, LIKELY, ROLLING)
GROUP = {
    "group": "pair",
    "task": ["choice", "other"],
    "aggregate_metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}


def hash_to_unit(text: str) -> float:
    """Return a number in 0..1 that depends only on the text."""
    return zlib.crc32(text.encode()) / 2**32


class HashModel(TemplateLM):
    """Model whose answer to a request is computed from the request's text; it stores all requests."""

    eot_token_id = 0
    tokenizer_name = "numbers"

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Any, ...]] = []

    def loglikelihood(self, requests, disable_tqdm=False):
        self.asked += [request.args for request in requests]
        return [(-10 * hash_to_unit("".join(item.args)), hash_to_unit("".join(item.args)) > 0.5) for item in requests]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        self.asked += [request.args for request in requests]
        return [-10 * hash_to_unit(request.args[0]) for request in requests]

    def generate_until(self, requests, disable_tqdm=False):
        self.asked += [copy.deepcopy(request.args) for request in requests]
        words = ["yes", "no", "maybe so we say"]
        # Repeats are asked with the same request; their texts differ by their place.
        return [words[int(3 * hash_to_unit(f"{item.args[0]}{i % 3}"))] for i, item in enumerate(requests)]

    def apply_chat_template(self, messages, add_generation_prompt=True):
        return (
            "".join(f"<{message['role']}>{message['content']}" for message in messages)
            + "<end>" * add_generation_prompt
        )

    def tok_encode(self, string, add_special_tokens=None, **kwargs):
        raise AssertionError("texts are all that is asked")

    def _loglikelihood_tokens(self, requests, **kwargs):
        raise AssertionError("texts are all that is asked")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `data` (records), `yaml` (tasks for ExitBench) and `whole` (the same for lm-eval, with
    full paths).
    """
    root = tmp_path_factory.mktemp("lm-eval")
    for name in ("data", "yaml", "whole"):
        (root / name).mkdir()
    for split, count in (("train", 7), ("test", 12)):
        rows = [
            {
                "question": f"{split} {i}?",
                "text": ["yes", "no", "maybe so we say"][i % 3],
                "choices": ["yes", "no", "maybe so"][: 2 + i % 2],
                "answer": i % 2,
            }
            for i in range(count)
        ]
        (root / "data" / FILES[split]).write_text("".join(json.dumps(row) + "\n" for row in rows))
    data_files = {split: str(root / "data" / name) for split, name in FILES.items()}
    for config in TASKS:
        (root / "yaml" / f"{config['task']}.yaml").write_text(yaml.safe_dump(config))
        local_config = {**config, "dataset_kwargs": {"data_files": data_files}}
        (root / "whole" / f"{config['task']}.yaml").write_text(yaml.safe_dump(local_config))
    for name in ("yaml", "whole"):
        (root / name / "pair.yaml").write_text(yaml.safe_dump(GROUP))
    return root


@pytest.fixture
def task(folder: Path) -> Callable[..., LmEvalTask]:
    def get(name: str, **settings: Any) -> LmEvalTask:
        local_task = get_task(f"lm-eval:{name}", LmEvalSettings(include=str(folder / "yaml"), **settings))
        assert isinstance(local_task, LmEvalTask)
        return local_task

    return get


@pytest.fixture
def source(folder: Path) -> Source:
    return Source("local", folder / "data")


def lm_evals(folder: Path, name: str, **options: Any) -> tuple[dict[str, Any], HashModel]:
    """Return the results of lm-eval's own run, and the model, which has stored the requests."""
    manager, model = TaskManager(include_path=str(folder / "whole"), include_defaults=False), HashModel()
    options = {"fewshot_as_multiturn": False, **options}
    return simple_evaluate(model, tasks=[name], task_manager=manager, bootstrap_iters=0, **options), model


@pytest.mark.parametrize("name", [*(config["task"] for config in TASKS), "pair"])
def test_requests_and_metrics_equal_lm_evals_run(name, folder, task, source):
    local, model = task(name), HashModel()
    documents = local.load(source, "test", None)
    _, values = local.evaluate(model, documents)
    results, reference = lm_evals(folder, name)
    assert model.asked == reference.asked
    expected = (results["groups"] if name == "pair" else results["results"])[name]
    for metric, value in values.items():
        base, _, kind = metric.partition(",")
        scale = 100 if base in ("acc", "acc_norm", "exact_match") else 1
        assert value == scale * expected[f"{base},{kind or 'none'}"]
    assert set(local.metrics) - set(values) <= {"loglikelihood_per_byte"}


@pytest.mark.parametrize("name", [*(config["task"] for config in TASKS), "pair"])
def test_summed_statistics_give_lm_evals_aggregation(name, task, source):
    local = task(name)
    scores, values = local.evaluate(HashModel(), local.load(source, "test", None))
    for metric, value in values.items():
        rows = np.array([score.summands(metric) for score in scores.values()])
        total = local.aggregate(metric, rows.sum(axis=0), np.asarray(float(len(rows))))
        assert float(total) == pytest.approx(value, rel=1e-12)


def test_rolling_task_headline_is_nats_per_byte(task, source):
    local = task("rolling")
    scores, values = local.evaluate(HashModel(), local.load(source, "test", None))
    rows = np.array([score.summands("loglikelihood_per_byte") for score in scores.values()])
    per_byte = local.aggregate("loglikelihood_per_byte", rows.sum(axis=0), np.asarray(float(len(rows))))
    assert local.headline == "loglikelihood_per_byte"
    assert float(per_byte) == pytest.approx(-values["bits_per_byte"] * np.log(2), rel=1e-12)
    assert local.lower_is_better == {"word_perplexity", "byte_perplexity", "bits_per_byte"}


@pytest.mark.parametrize("name", [config["task"] for config in TASKS])
def test_stored_responses_get_the_same_scores(name, task, source):
    local, model = task(name), HashModel()
    documents = local.load(source, "test", None)
    scores, _ = local.evaluate(model, documents)
    by_key = local.instances(documents)
    ways = {"generate_until": model.generate_until, "loglikelihood_rolling": model.loglikelihood_rolling}
    responses: dict[str, list[Any]] = {document.key: [] for document in documents}
    repeated = [
        (key, repeated_instance)
        for key, instances in by_key.items()
        for repeated_instance in instances
        for _ in range(repeated_instance.repeats)
    ]
    answers = ways.get(local.output_type, model.loglikelihood)([repeated_instance for _, repeated_instance in repeated])
    for (key, instance), answer in zip(repeated, answers, strict=True):
        if instance.repeats > 1:
            if len(responses[key]) <= instance.idx:
                responses[key].append([])
            responses[key][instance.idx].append(answer)
        else:
            responses[key].append(answer)
    assert local.score_responses(documents, responses) == scores


@pytest.mark.parametrize("name", ["choice", "generate"])
def test_prompt_does_not_depend_on_other_requested_documents(name, task, source):
    local = task(name)
    documents = local.load(source, "test", None)
    all_instances = local.instances(documents)
    some = local.load(source, "test", 4)
    assert len(some) == 4
    assert {key: [instance.args for instance in requests] for key, requests in local.instances(some).items()} == {
        document.key: [instance.args for instance in all_instances[document.key]] for document in some
    }
    assert local.prompt(some[0]) == all_instances[some[0].key][0].args[0]


def test_few_shot_and_generation_settings_equal_lm_evals(folder, task, source):
    settings = {"num_fewshot": 3, "fewshot_seed": 7, "gen_kwargs": (("until", ("?",)), ("max_gen_toks", 3))}
    local, model = task("generate", **settings), HashModel()
    local.evaluate(model, local.load(source, "test", None))
    wanted = {"num_fewshot": 3, "fewshot_random_seed": 7, "gen_kwargs": {"until": ["?"], "max_gen_toks": 3}}
    _, reference = lm_evals(folder, "generate", **wanted)
    assert model.asked == reference.asked
    assert (local.default_max_new_tokens, task("generate").default_max_new_tokens) == (3, 7)
    assert local.metric_version != task("generate").metric_version


@pytest.mark.parametrize("multiturn", [True, False])
@pytest.mark.parametrize("name", ["choice", "generate"])
def test_chat_prompts_equal_lm_evals(name, multiturn, folder, task, source):
    local, model = task(name, fewshot_as_multiturn=multiturn), HashModel()
    local.evaluate(model, local.load(source, "test", None), ("Be brief.", model.apply_chat_template))
    chat = {"system_instruction": "Be brief.", "apply_chat_template": True, "fewshot_as_multiturn": multiturn}
    _, reference = lm_evals(folder, name, **chat)
    assert model.asked == reference.asked


def test_zero_shot_task_ignores_num_fewshot(task):
    assert task("other", num_fewshot=5).metric_version == task("other").metric_version


def test_choices_and_correct_choice_are_read_from_the_task(task, source):
    local = task("choice")
    documents = local.load(source, "test", None)
    assert [local.choices(document) for document in documents[:2]] == [["yes", "no"], ["yes", "no", "maybe so"]]
    assert [local.right_choices(document) for document in documents[:2]] == [{0}, {1}]
    assert local.target(documents[1]) == "no"


def test_documents_record_task_and_number_and_splits_are_selectable(task, source):
    local = task("pair")
    documents = local.load(source, "test", None)
    assert [(document.fields["task"], document.fields["doc_id"]) for document in documents[11:13]] == [
        ("choice", 11),
        ("other", 0),
    ]
    train = task("choice").load(source, "train", None)
    assert [document.fields["doc"]["question"] for document in train] == [f"train {i}?" for i in range(7)]
    half = task("choice").load(source, "train[50%:]", None)
    assert half == train[4:]


def test_training_document_is_not_its_own_few_shot_example(task, source):
    local = task("choice", num_fewshot=6)
    for document, requests in local.instances(train := local.load(source, "train", None)).items():
        (question,) = (candidate.fields["doc"]["question"] for candidate in train if candidate.key == document)
        assert requests[0].args[0].count(question) == 1


def test_replaced_reference_is_compared_after_filters(task, source):
    local = task("generate")
    document = local.with_reference(local.load(source, "test", 1)[0], "maybe")
    assert local.score(document, "maybe").values == {"exact_match,first": 100.0, "exact_match,vote": 100.0}
    assert local.score(document, "Maybe").values == {"exact_match,first": 0.0, "exact_match,vote": 100.0}
    assert local.score(document, "yes").values == {"exact_match,first": 0.0, "exact_match,vote": 0.0}


def test_replaced_reference_has_ter_0_against_itself(tmp_path, source):
    edits = {**TRANSLATE, "task": "edits", "metric_list": [{"metric": "ter"}]}
    (tmp_path / "edits.yaml").write_text(yaml.safe_dump(edits))
    local = get_task("lm-eval:edits", LmEvalSettings(include=str(tmp_path)))
    document = local.with_reference(local.load(source, "test", 1)[0], "maybe")
    assert local.lower_is_better == {"ter"}
    assert (local.score(document, "maybe").values, local.score(document, "yes").values) == (
        {"ter": 0.0},
        {"ter": 100.0},
    )


def test_tag_of_incompatible_tasks_is_refused_with_their_names(folder, tmp_path):
    for name, extra in (("one", {}), ("two", {"metric_list": [{"metric": "acc_norm", **MEAN}]})):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**CHOICE, "task": name, "tag": "unlike", **extra}))
    with pytest.raises(UserError, match=r"'unlike' is no single task: .*their metrics\. .*singly: one, two"):
        get_task("lm-eval:unlike", LmEvalSettings(include=str(tmp_path)))


def test_unknown_task_error_suggests_a_similar_name():
    with pytest.raises(UserError, match=r"no task, group or tag 'helaswag'\. Did you mean 'hellaswag'\?"):
        get_task("lm-eval:helaswag")


def test_settings_round_trip_through_json():
    settings = LmEvalSettings("x", 2, 3, True, (("until", ("a", "b")), ("max_gen_toks", 4)))
    assert LmEvalSettings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_lm_eval_task_index_is_cached_until_its_files_change(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(lm_eval.tasks, "__file__", str(tmp_path / "tasks" / "__init__.py"))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "one.yaml").write_text("task: one\ntag: ones\n")
    read = configs._installed.__wrapped__
    built = read()
    with monkeypatch.context() as patch:
        patch.setattr(TaskIndex, "build", lambda paths: pytest.fail("read again"))
        stored = read()
    assert built.keys() == stored.keys() == {"one", "ones"}
    assert [(entry.kind, entry.yaml_path, entry.tags) for entry in stored.values()] == [
        (entry.kind, entry.yaml_path, entry.tags) for entry in built.values()
    ]
    (tmp_path / "tasks" / "two.yaml").write_text("task: two\n")
    assert read().keys() == {"one", "ones", "two"}


def test_task_that_calls_sys_exit_is_refused(monkeypatch):
    def give_up(self, entry, overrides=None):
        raise SystemExit(1)

    monkeypatch.setattr("lm_eval.tasks._factory.TaskFactory._load_full_config", give_up)
    with pytest.raises(UserError, match=r"'piqa' is not available here: its own code failed"):
        get_task("lm-eval:piqa")
