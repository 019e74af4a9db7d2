"""Tasks of lm-eval as ours: documents, requests and scores are those of lm-eval's own run over the same files."""

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


def number(text: str) -> float:
    """A number in 0..1 that a text always has."""
    return zlib.crc32(text.encode()) / 2**32


class Numbers(TemplateLM):
    """Answers every request by a number made of its words, and keeps what it was asked."""

    eot_token_id = 0
    tokenizer_name = "numbers"

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Any, ...]] = []

    def loglikelihood(self, requests, disable_tqdm=False):
        self.asked += [request.args for request in requests]
        return [(-10 * number("".join(one.args)), number("".join(one.args)) > 0.5) for one in requests]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        self.asked += [request.args for request in requests]
        return [-10 * number(request.args[0]) for request in requests]

    def generate_until(self, requests, disable_tqdm=False):
        self.asked += [copy.deepcopy(request.args) for request in requests]
        words = ["yes", "no", "maybe so we say"]
        # Repeats are asked with the same request; their texts differ by their place.
        return [words[int(3 * number(f"{one.args[0]}{i % 3}"))] for i, one in enumerate(requests)]

    def apply_chat_template(self, messages, add_generation_prompt=True):
        return "".join(f"<{one['role']}>{one['content']}" for one in messages) + "<end>" * add_generation_prompt

    def tok_encode(self, string, add_special_tokens=None, **kwargs):
        raise AssertionError("texts are all that is asked")

    def _loglikelihood_tokens(self, requests, **kwargs):
        raise AssertionError("texts are all that is asked")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Below it: `data`, records; `yaml`, tasks for us; `whole`, the same for lm-eval, with whole paths."""
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
    whole = {split: str(root / "data" / name) for split, name in FILES.items()}
    for config in TASKS:
        (root / "yaml" / f"{config['task']}.yaml").write_text(yaml.safe_dump(config))
        own = {**config, "dataset_kwargs": {"data_files": whole}}
        (root / "whole" / f"{config['task']}.yaml").write_text(yaml.safe_dump(own))
    for name in ("yaml", "whole"):
        (root / name / "pair.yaml").write_text(yaml.safe_dump(GROUP))
    return root


@pytest.fixture
def task(folder: Path) -> Callable[..., LmEvalTask]:
    def get(name: str, **settings: Any) -> LmEvalTask:
        found = get_task(f"lm-eval:{name}", LmEvalSettings(include=str(folder / "yaml"), **settings))
        assert isinstance(found, LmEvalTask)
        return found

    return get


@pytest.fixture
def source(folder: Path) -> Source:
    return Source("local", folder / "data")


def lm_evals(folder: Path, name: str, **asked: Any) -> tuple[dict[str, Any], Numbers]:
    """What lm-eval's own run gives, and what it asked."""
    manager, model = TaskManager(include_path=str(folder / "whole"), include_defaults=False), Numbers()
    asked = {"fewshot_as_multiturn": False, **asked}
    return simple_evaluate(model, tasks=[name], task_manager=manager, bootstrap_iters=0, **asked), model


@pytest.mark.parametrize("name", [*(config["task"] for config in TASKS), "pair"])
def test_requests_and_metrics_are_those_of_lm_evals_own_run(name, folder, task, source):
    ours, model = task(name), Numbers()
    documents = ours.load(source, "test", None)
    _, values = ours.evaluate(model, documents)
    results, reference = lm_evals(folder, name)
    assert model.asked == reference.asked
    expected = (results["groups"] if name == "pair" else results["results"])[name]
    for metric, value in values.items():
        base, _, kind = metric.partition(",")
        scale = 100 if base in ("acc", "acc_norm", "exact_match") else 1
        assert value == scale * expected[f"{base},{kind or 'none'}"]
    assert set(ours.metrics) - set(values) <= {"loglikelihood_per_byte"}


@pytest.mark.parametrize("name", [*(config["task"] for config in TASKS), "pair"])
def test_summed_statistics_give_lm_evals_aggregation(name, task, source):
    ours = task(name)
    scores, values = ours.evaluate(Numbers(), ours.load(source, "test", None))
    for metric, value in values.items():
        rows = np.array([score.summands(metric) for score in scores.values()])
        total = ours.aggregate(metric, rows.sum(axis=0), np.asarray(float(len(rows))))
        assert float(total) == pytest.approx(value, rel=1e-12)


def test_a_rolling_tasks_headline_is_nats_a_byte(task, source):
    ours = task("rolling")
    scores, values = ours.evaluate(Numbers(), ours.load(source, "test", None))
    rows = np.array([score.summands("loglikelihood_per_byte") for score in scores.values()])
    per_byte = ours.aggregate("loglikelihood_per_byte", rows.sum(axis=0), np.asarray(float(len(rows))))
    assert ours.headline == "loglikelihood_per_byte"
    assert float(per_byte) == pytest.approx(-values["bits_per_byte"] * np.log(2), rel=1e-12)
    assert ours.lower_is_better == {"word_perplexity", "byte_perplexity", "bits_per_byte"}


@pytest.mark.parametrize("name", [config["task"] for config in TASKS])
def test_responses_that_are_there_score_the_same(name, task, source):
    ours, model = task(name), Numbers()
    documents = ours.load(source, "test", None)
    scores, _ = ours.evaluate(model, documents)
    asked = ours.instances(documents)
    ways = {"generate_until": model.generate_until, "loglikelihood_rolling": model.loglikelihood_rolling}
    responses: dict[str, list[Any]] = {document.key: [] for document in documents}
    repeated = [(key, one) for key, instances in asked.items() for one in instances for _ in range(one.repeats)]
    answers = ways.get(ours.output_type, model.loglikelihood)([one for _, one in repeated])
    for (key, instance), answer in zip(repeated, answers, strict=True):
        if instance.repeats > 1:
            if len(responses[key]) <= instance.idx:
                responses[key].append([])
            responses[key][instance.idx].append(answer)
        else:
            responses[key].append(answer)
    assert ours.score_responses(documents, responses) == scores


@pytest.mark.parametrize("name", ["choice", "generate"])
def test_a_prompt_does_not_depend_on_which_other_documents_are_asked(name, task, source):
    ours = task(name)
    documents = ours.load(source, "test", None)
    whole = ours.instances(documents)
    some = ours.load(source, "test", 4)
    assert len(some) == 4
    assert {key: [one.args for one in asked] for key, asked in ours.instances(some).items()} == {
        document.key: [one.args for one in whole[document.key]] for document in some
    }
    assert ours.prompt(some[0]) == whole[some[0].key][0].args[0]


def test_settings_are_those_of_lm_evals_command_line(folder, task, source):
    given = {"num_fewshot": 3, "fewshot_seed": 7, "gen_kwargs": (("until", ("?",)), ("max_gen_toks", 3))}
    ours, model = task("generate", **given), Numbers()
    ours.evaluate(model, ours.load(source, "test", None))
    wanted = {"num_fewshot": 3, "fewshot_random_seed": 7, "gen_kwargs": {"until": ["?"], "max_gen_toks": 3}}
    _, reference = lm_evals(folder, "generate", **wanted)
    assert model.asked == reference.asked
    assert (ours.default_max_new_tokens, task("generate").default_max_new_tokens) == (3, 7)
    assert ours.metric_version != task("generate").metric_version


@pytest.mark.parametrize("multiturn", [True, False])
@pytest.mark.parametrize("name", ["choice", "generate"])
def test_prompts_go_through_a_chat_template_as_lm_evals_do(name, multiturn, folder, task, source):
    ours, model = task(name, fewshot_as_multiturn=multiturn), Numbers()
    ours.evaluate(model, ours.load(source, "test", None), ("Be brief.", model.apply_chat_template))
    chat = {"system_instruction": "Be brief.", "apply_chat_template": True, "fewshot_as_multiturn": multiturn}
    _, reference = lm_evals(folder, name, **chat)
    assert model.asked == reference.asked


def test_a_task_that_says_no_examples_keeps_none(task):
    assert task("other", num_fewshot=5).metric_version == task("other").metric_version


def test_choices_and_which_is_right(task, source):
    ours = task("choice")
    documents = ours.load(source, "test", None)
    assert [ours.choices(document) for document in documents[:2]] == [["yes", "no"], ["yes", "no", "maybe so"]]
    assert [ours.right_choices(document) for document in documents[:2]] == [{0}, {1}]
    assert ours.target(documents[1]) == "no"


def test_documents_say_their_task_and_number_and_train_is_another_split(task, source):
    ours = task("pair")
    documents = ours.load(source, "test", None)
    assert [(one.fields["task"], one.fields["doc_id"]) for one in documents[11:13]] == [("choice", 11), ("other", 0)]
    train = task("choice").load(source, "train", None)
    assert [one.fields["doc"]["question"] for one in train] == [f"train {i}?" for i in range(7)]
    half = task("choice").load(source, "train[50%:]", None)
    assert half == train[4:]


def test_a_training_document_is_not_its_own_example(task, source):
    ours = task("choice", num_fewshot=6)
    for document, asked in ours.instances(train := ours.load(source, "train", None)).items():
        (question,) = (one.fields["doc"]["question"] for one in train if one.key == document)
        assert asked[0].args[0].count(question) == 1


def test_a_given_reference_is_judged_by_what_the_filters_make_of_it(task, source):
    ours = task("generate")
    document = ours.with_reference(ours.load(source, "test", 1)[0], "maybe")
    assert ours.score(document, "maybe").values == {"exact_match,first": 100.0, "exact_match,vote": 100.0}
    assert ours.score(document, "Maybe").values == {"exact_match,first": 0.0, "exact_match,vote": 100.0}
    assert ours.score(document, "yes").values == {"exact_match,first": 0.0, "exact_match,vote": 0.0}


def test_a_given_reference_is_0_errors_away_from_itself(tmp_path, source):
    edits = {**TRANSLATE, "task": "edits", "metric_list": [{"metric": "ter"}]}
    (tmp_path / "edits.yaml").write_text(yaml.safe_dump(edits))
    ours = get_task("lm-eval:edits", LmEvalSettings(include=str(tmp_path)))
    document = ours.with_reference(ours.load(source, "test", 1)[0], "maybe")
    assert ours.lower_is_better == {"ter"}
    assert (ours.score(document, "maybe").values, ours.score(document, "yes").values) == ({"ter": 0.0}, {"ter": 100.0})


def test_a_tag_of_unlike_tasks_is_refused_with_their_names(folder, tmp_path):
    for name, extra in (("one", {}), ("two", {"metric_list": [{"metric": "acc_norm", **MEAN}]})):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**CHOICE, "task": name, "tag": "unlike", **extra}))
    with pytest.raises(UserError, match=r"'unlike' is no single task: .*their metrics\. .*singly: one, two"):
        get_task("lm-eval:unlike", LmEvalSettings(include=str(tmp_path)))


def test_an_unknown_name_is_refused_with_one_that_is_close():
    with pytest.raises(UserError, match=r"no task, group or tag 'helaswag'\. Did you mean 'hellaswag'\?"):
        get_task("lm-eval:helaswag")


def test_settings_survive_json():
    settings = LmEvalSettings("x", 2, 3, True, (("until", ("a", "b")), ("max_gen_toks", 4)))
    assert LmEvalSettings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_names_of_lm_evals_tasks_are_kept_until_its_files_change(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(lm_eval.tasks, "__file__", str(tmp_path / "tasks" / "__init__.py"))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "one.yaml").write_text("task: one\ntag: ones\n")
    read = configs._installed.__wrapped__
    built = read()
    with monkeypatch.context() as patch:
        patch.setattr(TaskIndex, "build", lambda paths: pytest.fail("read again"))
        kept = read()
    assert built.keys() == kept.keys() == {"one", "ones"}
    assert [(one.kind, one.yaml_path, one.tags) for one in kept.values()] == [
        (one.kind, one.yaml_path, one.tags) for one in built.values()
    ]
    (tmp_path / "tasks" / "two.yaml").write_text("task: two\n")
    assert read().keys() == {"one", "ones", "two"}


def test_a_task_that_ends_the_program_is_refused_instead(monkeypatch):
    def give_up(self, entry, overrides=None):
        raise SystemExit(1)

    monkeypatch.setattr("lm_eval.tasks._factory.TaskFactory._load_full_config", give_up)
    with pytest.raises(UserError, match=r"'piqa' cannot be had here: its own code gave up"):
        get_task("lm-eval:piqa")
