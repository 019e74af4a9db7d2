"""Tasks as lm-eval configurations: they run in lm-eval's own evaluate(), and its results equal this project's."""

import copy
import json
from collections.abc import Callable

import numpy as np
import pytest
from lm_eval.api.model import TemplateLM
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from exitbench.tasks import lm_eval_bridge
from exitbench.tasks.builtin import TEXT_TASKS
from exitbench.tasks.document import Document
from exitbench.tasks.registry import get_task

FRENCH = [
    "Le chat noir dort sur le vieux canapé.",
    "Il pleut depuis ce matin dans toute la ville.",
    "Elle est partie.",
    "Nous avons mangé du pain avec du fromage hier.",
]


def documents(name: str) -> list[Document]:
    """Return documents whose targets are the French sentences; one prompt ends in white space, one looks like a
    template.
    """
    sources = ["one \n", "{{doc_key}} {% raw %}", "123", "four"]
    fields = {
        "squad": lambda i, source, text: {
            "id": f"q{i}",
            "title": "t",
            "context": source,
            "question": "What?",
            "answers": {"text": [text, "x"], "answer_start": [0, 1]},
        },
        "samsum": lambda i, source, text: {"id": f"d{i}", "dialogue": source, "summary": text},
        "wmt-en-fr": lambda i, source, text: {"id": f"{i}", "en": source, "fr": text},
    }[name]
    return [Document.from_fields(fields(i, *pair)) for i, pair in enumerate(zip(sources, FRENCH, strict=True))]


class Answering(TemplateLM):
    """The smallest model lm-eval accepts: it answers a request with a function of its document."""

    backend = "seq2seq"
    eot_token_id = 0

    def __init__(self, answer: Callable[[dict], str]) -> None:
        super().__init__()
        self.answer = answer
        self.requests: list[tuple] = []

    def generate_until(self, requests, disable_tqdm=False):
        self.requests = [request.args for request in requests]
        return [self.answer(request.doc) for request in requests]

    def tok_encode(self, string, add_special_tokens=None, **kwargs):
        raise AssertionError("nothing is scored by likelihood")

    def _loglikelihood_tokens(self, requests, **kwargs):
        raise AssertionError("nothing is scored by likelihood")

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        raise AssertionError("nothing is scored by likelihood")


def run(
    name: str, answer: Callable[[dict], str], chosen_documents: list[Document] | None = None
) -> tuple[dict, Answering]:
    config = get_task(name).lm_eval_config(chosen_documents or documents(name), "seq2seq")
    tasks = TaskManager(include_defaults=False).load([config])
    model = Answering(answer)
    return evaluate(lm=model, task_dict=tasks, bootstrap_iters=0, log_samples=True), model


each_task = pytest.mark.parametrize("name", TEXT_TASKS)


@each_task
def test_the_gold_target_scores_100(name):
    results, _ = run(name, lambda doc: doc["target"])
    for metric in get_task(name).metrics:
        assert results["results"][name][f"{metric},none"] == pytest.approx(100.0)


@each_task
def test_wrong_answer_scores_0(name):
    results, _ = run(name, lambda doc: "zzzz")
    for metric in get_task(name).metrics:
        assert results["results"][name][f"{metric},none"] == 0.0


@each_task
def test_lm_eval_results_equal_the_tasks_aggregate(name):
    # Half right, so that a mean of sentence scores differs from the corpus score.
    results, _ = run(name, lambda doc: doc["target"][: len(doc["target"]) // 2])
    task = get_task(name)
    scores = [
        task.score(document, text[: len(text) // 2]) for document, text in zip(documents(name), FRENCH, strict=True)
    ]
    for metric in task.metrics:
        total = np.sum([score.summands(metric) for score in scores], axis=0)
        expected = task.aggregate(metric, total, np.float64(len(scores)))
        assert results["results"][name][f"{metric},none"] == pytest.approx(expected)
        assert [sample[metric] for sample in results["samples"][name]] == [score.values[metric] for score in scores]
    assert lm_eval_bridge.scores(task, results) == {
        document.key: score for document, score in zip(documents(name), scores, strict=True)
    }


@each_task
def test_requests_contain_the_verbatim_prompt_and_greedy_settings(name):
    _, model = run(name, lambda doc: "")
    task = get_task(name)
    settings = {"until": [], "max_gen_toks": task.default_max_new_tokens, "do_sample": False}
    assert model.requests == [(task.prompt(document), settings) for document in documents(name)]


def test_target_that_looks_like_a_list_stays_text():
    document = Document.from_fields({"id": "1", "dialogue": "A: hi", "summary": "[1, 2]"})
    results, _ = run("samsum", lambda doc: "", [document])
    assert results["samples"]["samsum"][0]["target"] == "[1, 2]"


@each_task
def test_samples_carry_the_keys_of_their_documents_and_are_plain_json(name):
    results, _ = run(name, lambda doc: "")
    samples = results["samples"][name]
    assert [sample["doc"]["doc_key"] for sample in samples] == [document.key for document in documents(name)]
    values = [{metric: sample[metric] for metric in get_task(name).metrics} for sample in samples]
    assert json.loads(json.dumps(values)) == values


@each_task
def test_logged_configuration_contains_no_data_text_and_no_memory_address(name):
    results, _ = run(name, lambda doc: "")
    logged = str(results["configs"][name])
    assert FRENCH[0] not in logged
    assert " at 0x" not in logged


@each_task
def test_the_logged_version_is_the_metric_version(name):
    results, _ = run(name, lambda doc: "")
    assert results["versions"][name] == get_task(name).metric_version


def test_lm_eval_config_states_whether_higher_is_better(monkeypatch):
    task = get_task("squad")
    monkeypatch.setattr(type(task), "lower_is_better", frozenset({"em"}))
    listed = task.lm_eval_config(documents("squad"), "seq2seq")["metric_list"]
    assert {entry["metric"]: entry["higher_is_better"] for entry in listed} == {"f1": True, "em": False}


def test_copying_a_configuration_shares_its_documents():
    # lm-eval deep-copies configurations; ten thousand documents must not be copied with them.
    config = get_task("squad").lm_eval_config(documents("squad"), "seq2seq")
    assert copy.deepcopy(config)["custom_dataset"].args[0] is config["custom_dataset"].args[0]
