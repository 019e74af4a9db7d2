"""Prompt styles in suites and plans: the default of each kind of model, examples, stops, identity and bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exitbench.errors import UserError
from exitbench.harness.cells.cell import Cell
from exitbench.harness.cells.job import CellJob
from exitbench.harness.cli.main import main
from exitbench.harness.planning.plan import Plan, make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.results.spool.schema import CARD_FILE
from exitbench.tasks.base import part_of

TEMPLATE = "{% for m in messages %}{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}answer :{% endif %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TEMPLATE
SWEEP = '[[sweep]]\nmethod = "full"\nkinds = ["quality"]\n'
LOCAL = ('source = "local"', 'files = { data = "test.json" }')


def squad_file(path: Path, first: int, number: int) -> None:
    """Write a SQuAD file of articles with one paragraph and two questions each."""
    paragraphs = [
        {
            "context": f"passage {paragraph}",
            "qas": [
                {
                    "id": f"{paragraph}-{question}",
                    "question": f"question {question}",
                    "answers": [{"text": f"answer {paragraph}", "answer_start": 0}],
                }
                for question in range(2)
            ],
        }
        for paragraph in range(first, first + number)
    ]
    articles = [{"title": f"T {paragraph['context']}", "paragraphs": [paragraph]} for paragraph in paragraphs]
    path.write_text(json.dumps({"data": articles}))


@pytest.fixture
def model(causal_model: Path, tmp_path: Path) -> Path:
    """Return the folder of a causal model, which a test may change."""
    return Path(shutil.copytree(causal_model, tmp_path / "model"))


@pytest.fixture
def suite(tmp_path: Path) -> Callable[..., Path]:
    """Write SQuAD files; return a function that writes a suite of one model, with given lines in the task's table."""
    squad_file(tmp_path / "test.json", 0, 30)
    squad_file(tmp_path / "train.json", 20, 30)

    def write(model: Path, *lines: str) -> Path:
        path = tmp_path / "styles.toml"
        task = "\n".join(["[tasks.squad]", "limit = 4", *lines])
        path.write_text(f'schema = 1\nname = "styles"\nseed = 3\n[models.small]\npath = "{model}"\n{task}\n{SWEEP}')
        return path

    return write


def planned(path: Path) -> Plan:
    return make_plan(load_suite(path), path.parent / "spool", path.parent / "models", path.parent)


def item_of(path: Path) -> CellJob:
    return planned(path).groups[0].cells[0].item


def cell_of(path: Path) -> Cell:
    return item_of(path).cell


def prompt_of(path: Path, kind: Any = "causal") -> str:
    data = item_of(path).data
    return data.task_object.prompts(data.load(path.parent)[:1], kind)[0]


# ------------------------------------------------------------------------------------------ the default


def test_instruct_model_gets_chat_prompts(suite: Callable[..., Path], model: Path) -> None:
    (model / "chat_template.jinja").write_text(TEMPLATE)
    path = suite(model, *LOCAL)
    generation = cell_of(path).generation
    assert (generation.prompt_style, generation.stop, generation.num_fewshot) == ("chat", ("</s>",), None)
    assert generation.chat_template_sha256 is not None
    assert prompt_of(path).startswith("Answer the question with the shortest span of the passage. Write only this span")
    (remark,) = planned(path).groups[0].remarks
    assert remark == "prompts: chat, an instruction in the model's own template, answers end at '</s>'"


def test_base_decoder_gets_few_shot_completion_prompts(suite: Callable[..., Path], model: Path) -> None:
    path = suite(model, *LOCAL)
    generation = cell_of(path).generation
    assert (generation.prompt_style, generation.stop, generation.num_fewshot) == ("completion", ("\n",), 3)
    assert prompt_of(path).count("Answer:") == 4
    assert prompt_of(path).endswith("Answer:")
    (remark,) = planned(path).groups[0].remarks
    assert remark == "prompts: completion, an instruction and 3 examples, answers end at '\\n'"


def test_encoder_decoder_gets_t5_prompts(suite: Callable[..., Path], worded_model: Path) -> None:
    path = suite(worded_model, *LOCAL)
    assert cell_of(path).identity["generation"] == {"max_new_tokens": 32, "stop": []}
    assert prompt_of(path, "seq2seq").startswith("question: question ")
    assert "prompting" not in json.dumps(item_of(path).to_json())
    assert planned(path).groups[0].remarks == ()


def test_builtin_data_and_trained_models_keep_the_t5_prompt_format(suite: Callable[..., Path], model: Path) -> None:
    plain = cell_of(suite(model, 'prompt_style = "t5"'))
    assert plain.identity["generation"] == {"max_new_tokens": 32, "stop": []}
    assert cell_of(suite(model)).cell_id == plain.cell_id
    assert cell_of(suite(model, "num_fewshot = 0")).generation.prompt_style == "completion"
    (model / CARD_FILE).write_text("{}")
    assert cell_of(suite(model, *LOCAL)).generation.prompt_style is None


@pytest.mark.parametrize(
    ("lines", "style"),
    [
        (["chat_template = true"], "chat"),
        (["chat_template = false"], "completion"),
        (['prompt_style = "completion"'], "completion"),
        (['prompt_style = "t5"'], None),
    ],
)
def test_suite_overrides_the_prompt_style_of_an_instruct_model(
    suite: Callable[..., Path], model: Path, lines: list[str], style: str | None
) -> None:
    (model / "chat_template.jinja").write_text(TEMPLATE)
    generation = cell_of(suite(model, *LOCAL, *lines)).generation
    assert generation.prompt_style == style
    assert (generation.chat_template_sha256 is None) == (style != "chat")


# ------------------------------------------------------------------------------------------ examples


TRAIN = 'train_files = { data = "train.json" }'


@pytest.mark.parametrize("lines", [LOCAL, (*LOCAL, TRAIN)], ids=["held out", "train"])
@pytest.mark.parametrize("limit", [4, 1000])
def test_few_shot_examples_are_never_evaluated(
    suite: Callable[..., Path], model: Path, lines: tuple[str, ...], limit: int
) -> None:
    path = suite(model, *lines)
    path.write_text(path.read_text().replace("limit = 4", f"limit = {limit}"))
    item = item_of(path)
    assert item.data.prompting is not None
    examples = item.data.prompting.examples
    documents = item.data.load(path.parent)
    assert len(examples) == 3
    assert len(documents) == min(limit, 60 if TRAIN in lines else 54)
    assert len(documents) == item.cell.task.documents
    for document in documents:
        assert not any(f"Passage: {document.fields['context']}\n" in example for example in examples)
    if TRAIN in lines:  # of its passages 20 to 49, the first ten are those of evaluated documents
        assert all(int(example.split("\n")[0].removeprefix("Passage: passage ")) >= 30 for example in examples)


def test_few_shot_examples_and_fits_use_documents_outside_the_evaluated_part(
    suite: Callable[..., Path], model: Path
) -> None:
    path = suite(model, *LOCAL, 'part = "test"')
    item = item_of(path)
    assert item.data.prompting is not None
    evaluated = item.data.load(path.parent)
    assert {part_of(document.fields["title"]) for document in evaluated} == {"test"}
    (entry,) = load_suite(path).tasks
    fitted_on = entry.other_split("train", 1000, "a fit")
    assert fitted_on.part == "train"
    rest = {document.fields["context"] for document in fitted_on.load(path.parent)}
    assert {example.split("\n")[0].removeprefix("Passage: ") for example in item.data.prompting.examples} <= rest
    assert not rest & {document.fields["context"] for document in evaluated}
    assert len(rest) + len({d.fields["context"] for d in replace(item.data, limit=None).load(path.parent)}) == 30


def test_part_key_is_refused_without_local_files(suite: Callable[..., Path], model: Path) -> None:
    with pytest.raises(UserError, match=r"styles\.toml:8: .*part: goes with source = \"local\" or \"auto\" only"):
        load_suite(suite(model, 'part = "test"'))
    with pytest.raises(UserError, match=r"part: .*Did you mean 'test'\?"):
        load_suite(suite(model, *LOCAL, 'part = "tset"'))


def test_few_shot_examples_depend_only_on_their_seed_and_number(suite: Callable[..., Path], model: Path) -> None:
    def of(*lines: str) -> tuple[str, str]:
        cell = cell_of(suite(model, *LOCAL, TRAIN, *lines))
        return cell.cell_id, cell.task.prompts_sha256

    assert of() == of() == of("num_fewshot = 3") == of("fewshot_seed = 1234")
    others = [of("fewshot_seed = 1"), of("num_fewshot = 2"), of("num_fewshot = 0")]
    assert len({of(), *others}) == 4
    assert len({digest for _, digest in (of(), *others)}) == 4
    path = suite(model, *LOCAL, TRAIN)
    examples = item_of(path).data.prompting
    path.write_text(path.read_text().replace("limit = 4", "limit = 40"))
    assert item_of(path).data.prompting == examples, "a limit does not change them"


def test_cell_job_with_prompting_round_trips_through_json(suite: Callable[..., Path], model: Path) -> None:
    item = item_of(suite(model, *LOCAL))
    assert CellJob.from_json(json.loads(json.dumps(item.to_json()))) == item


def test_more_few_shot_examples_than_available_are_refused(suite: Callable[..., Path], model: Path) -> None:
    path = suite(model, *LOCAL, "num_fewshot = 9")
    with pytest.raises(UserError, match=r"num_fewshot: is 9, but the last tenth of test\.json has [1-6] documents"):
        planned(path)


# ------------------------------------------------------------------------------------------ texts and stops


def test_suite_overrides_the_prompts_of_builtin_tasks(
    suite: Callable[..., Path], model: Path, worded_model: Path
) -> None:
    both = ('prompt = "Q {question}"', 'causal_prompt = "{context} Q {question} A"', 'stop = ["."]')
    few = (*LOCAL, *both, "num_fewshot = 1")
    assert prompt_of(suite(model, *few)).endswith("Q question 0 A") or prompt_of(suite(model, *few)).endswith("1 A")
    assert prompt_of(suite(model, *few)).startswith("passage ")
    assert cell_of(suite(model, *few)).generation.stop == (".",)
    (remark,) = planned(suite(model, *few)).groups[0].remarks
    assert remark == "prompts: completion, the suite's text and 1 example, answers end at '.'"
    path = suite(worded_model, *LOCAL, *both)
    assert prompt_of(path, "seq2seq") in ("Q question 0", "Q question 1")
    assert cell_of(path).generation.prompt_style is None
    assert cell_of(path).task.prompts_sha256 != cell_of(suite(worded_model, *LOCAL)).task.prompts_sha256


def test_chat_prompts_also_use_the_suites_stop_strings(suite: Callable[..., Path], model: Path) -> None:
    (model / "chat_template.jinja").write_text(TEMPLATE)
    assert cell_of(suite(model, *LOCAL, 'stop = ["."]')).generation.stop == (".", "</s>")


# ------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (['prompt_style = "chatt"'], "prompt_style: unknown prompt style 'chatt'. Did you mean 'chat'"),
        (['prompt = "{answers}"'], "prompt: unknown field 'answers'."),
        (['causal_prompt = "{question"'], "causal_prompt: expected '}' before end of string."),
        (["num_fewshot = -1"], "num_fewshot: is -1; it must be from 0 to 1000."),
        (['prompt_style = "chat"', "num_fewshot = 1"], 'num_fewshot: goes with prompt_style = "completion"'),
        (['prompt_style = "chat"', "chat_template = false"], "chat_template: is false, and"),
        (['prompt_style = "completion"', "chat_template = true"], "chat_template: does not go with prompt_style ="),
        (['task = "sst2"', 'prompt_style = "chat"'], "prompt_style: goes with tasks that have prompt styles; 'sst2'"),
        (['task = "lm-eval:hellaswag"', 'prompt = "a"'], "prompt: goes with this project's tasks; lm-eval:hellaswag"),
    ],
)
def test_invalid_prompt_key_is_reported_with_its_task(
    suite: Callable[..., Path], model: Path, lines: list[str], says: str
) -> None:
    with pytest.raises(UserError) as caught:
        load_suite(suite(model, *lines))
    assert f"[tasks.squad] {says}" in str(caught.value)


@pytest.mark.parametrize(
    ("template", "lines", "says"),
    [
        (None, ['prompt_style = "chat"'], "prompt_style: model 'small' has no chat template, so it is a base model"),
        (None, ["chat_template = true"], "chat_template: model 'small' has no chat template, so it is a base model"),
        (None, ['system = "be brief"'], "system: goes with a chat, which puts it before the prompt, and model 'small'"),
        (NO_SYSTEM, ['system = "be brief"'], "the chat template fails: TemplateError: no system role"),
        (TEMPLATE, ["num_fewshot = 2"], 'num_fewshot: goes with prompt_style = "completion", and model'),
        (TEMPLATE, ["max_prompt_tokens = 9", 'truncate = "left"'], "truncate: would cut into the chat template"),
    ],
)
def test_prompt_style_not_supported_by_the_model_is_one_plan_error(
    suite: Callable[..., Path],
    model: Path,
    template: str | None,
    lines: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if template is not None:
        (model / "chat_template.jinja").write_text(template)
    path = suite(model, *LOCAL, *lines)
    assert main(["plan", str(path), "--data-dir", str(path.parent), "--runs", str(path.parent / "runs")]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "[tasks.squad]" in error
    assert len(error.strip().splitlines()) == 1


def test_chat_template_without_a_system_role_is_accepted(suite: Callable[..., Path], model: Path) -> None:
    (model / "chat_template.jinja").write_text(NO_SYSTEM)
    assert cell_of(suite(model, *LOCAL)).generation.prompt_style == "chat"


# ------------------------------------------------------------------------------------------ show-prompts --model


@pytest.mark.parametrize("has_template", [True, False])
def test_show_prompts_prints_exactly_what_a_model_reads(
    suite: Callable[..., Path], model: Path, capsys: pytest.CaptureFixture[str], has_template: bool
) -> None:
    if has_template:
        (model / "chat_template.jinja").write_text(TEMPLATE)
    path = suite(model, *LOCAL)
    words = ["show-prompts", "squad", "--suite", str(path), "--model", str(model), "--data-dir", str(path.parent)]
    assert main([*words, "-n", "1"]) == 0
    printed = capsys.readouterr().out
    expected = prompt_of(path)
    if has_template:
        expected = f"{expected}</s>answer :"
    shown = printed.split("  the model reads:\n")[1].split("  target:\n")[0]
    assert "\n".join(line.removeprefix("    ") for line in shown.splitlines()) == expected
    assert f"prompt style: {'chat' if has_template else 'completion'}" in printed
