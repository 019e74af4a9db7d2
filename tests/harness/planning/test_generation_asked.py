"""Generation settings of tasks: reading, plan and identity, and settings of checkpoints that are ignored."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2LMHeadModel

from exitbench.errors import UserError
from exitbench.harness.cells.cell import GenerationSettings
from exitbench.harness.cli.commands.run import plan as plan_command
from exitbench.harness.engine.checkpoints.generation_config import not_applied
from exitbench.harness.planning.plan import Plan, make_plan
from exitbench.harness.planning.suite import load_suite

TEMPLATE = "{% for message in messages %}context : {{ message.content }}\n{% endfor %}French :"
QUALITY = '[[sweep]]\nmethod = "static"\ngrid = { exit_layer = [1] }\nkinds = ["quality"]\n'


@pytest.fixture
def model(causal_model: Path, tmp_path: Path) -> Path:
    """Return the folder of a causal model, which a test may change."""
    return Path(shutil.copytree(causal_model, tmp_path / "model"))


@pytest.fixture
def suite(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a suite of one model and one task, with the given lines in the task's table."""

    def write(model: Path, *lines: str, sweep: str = QUALITY) -> Path:
        path = tmp_path / "asked.toml"
        head = f'schema = 1\nname = "asked"\nseed = 3\n[models.small]\npath = "{model}"\n'
        task = "\n".join(["[tasks.squad]", "limit = 4", *lines])
        path.write_text(f"{head}{task}\n{sweep}")
        return path

    return write


def planned(path: Path) -> Plan:
    return make_plan(load_suite(path), path.parent / "spool", path.parent / "models", None)


def complaint(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        planned(path)
    return str(caught.value)


def line_of(path: Path, text: str) -> int:
    return next(n for n, line in enumerate(path.read_text().splitlines(), start=1) if text in line)


# ------------------------------------------------------------------------------------------ the suite's text


def test_generation_keys_are_read_from_the_suite(suite: Callable[..., Path], model: Path) -> None:
    lines = ("repetition_penalty = 1.3", "no_repeat_ngram_size = 3", "min_length = 2", "forced_bos_token_id = 0")
    bound = ("max_prompt_tokens = 30", 'truncate = "left"', "max_new_tokens = 5", 'stop = ["\\n"]')
    entry = load_suite(suite(model, *lines, *bound)).task("squad")
    assert entry.generation == GenerationSettings(5, ("\n",), 1.3, 3, 2, 0, None, None, 30, "left")
    assert entry.generation.to_json() == {
        "max_new_tokens": 5,
        "stop": ["\n"],
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 3,
        "min_length": 2,
        "forced_bos_token_id": 0,
        "max_prompt_tokens": 30,
        "truncate": "left",
    }


def test_repetition_penalty_of_1_adds_no_logit_rule(suite: Callable[..., Path], model: Path) -> None:
    assert load_suite(suite(model, "repetition_penalty = 1")).task("squad").generation.logit_rules == {}


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["repetition_penalty = 0"], "repetition_penalty: is 0.0; it must be above 0 (1 changes nothing)."),
        (["repetition_penalty = -1.0"], "repetition_penalty: is -1.0; it must be above 0"),
        (["repetition_penalty = nan"], "repetition_penalty: is nan; it must be a finite number"),
        (["repetition_penalty = inf"], "repetition_penalty: is inf; it must be a finite number"),
        (['repetition_penalty = "high"'], "repetition_penalty: is 'high'; it must be a number."),
        (["repetition_penalti = 1.2"], "repetition_penalti: unknown key. Did you mean 'repetition_penalty'?"),
        (["no_repeat_ngram_size = 0"], "no_repeat_ngram_size: is 0; it must be 1 or more."),
        (["no_repeat_ngram_size = 2.5"], "no_repeat_ngram_size: is 2.5; it must be a whole number."),
        (["min_length = 0"], "min_length: is 0; it must be 1 or more."),
        (["forced_bos_token_id = -1"], "forced_bos_token_id: is -1; it must be 0 or more."),
        (['first_token = "fulll"'], "first_token: unknown way to the first token 'fulll'. Did you mean 'full'"),
        (['scope = "context"'], "scope: unknown scope 'context'."),
        (["chat_template = 1"], "chat_template: is 1; it must be true or false."),
        (
            ['prompt_style = "completion"', 'system = "be brief"'],
            "system: goes with a chat, which puts it before the prompt: chat_template = true.",
        ),
        (["max_prompt_tokens = 9"], 'max_prompt_tokens: goes with truncate; allowed: "left", "right", "drop".'),
        (['truncate = "drop"'], "truncate: goes with max_prompt_tokens; allowed: a whole number."),
        (["max_prompt_tokens = 0", 'truncate = "drop"'], "max_prompt_tokens: is 0; it must be 1 or more."),
        (['truncate = "lefd"', "max_prompt_tokens = 9"], "truncate: unknown way to shorten prompts 'lefd'."),
        (
            ['prompt_style = "t5"', "chat_template = true", "max_prompt_tokens = 9", 'truncate = "left"'],
            'truncate: would cut into the chat template; allowed with chat_template: "drop".',
        ),
    ],
)
def test_invalid_generation_settings_are_reported_with_their_line(
    suite: Callable[..., Path], model: Path, lines: list[str], says: str
) -> None:
    path = suite(model, *lines)
    with pytest.raises(UserError) as caught:
        load_suite(path)
    key = says.split(":")[0]
    assert str(caught.value).startswith(f"{path}:{line_of(path, key + ' ')}: [tasks.squad] {says}")


# ------------------------------------------------------------------------------------------ the plan


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            ['prompt_style = "t5"', "chat_template = true"],
            "chat_template: {model}: the tokenizer has no chat template.",
        ),
        (
            ["max_prompt_tokens = 50", 'truncate = "left"', "max_new_tokens = 9"],
            "max_prompt_tokens: prompts of 50 tokens and 9 new ones do not fit the 58 positions of model 'small'; "
            "allowed: up to 49.",
        ),
        (["max_prompt_tokens = 1", 'truncate = "right"'], "max_prompt_tokens: max_prompt_tokens = 1 leaves no room"),
        (['scope = "answer"'], 'scope: keeps the depth of the first token; it goes with first_token = "gated".'),
        (["forced_bos_token_id = 5"], "forced_bos_token_id: model 'small' is decoder-only: its answers go on from"),
    ],
)
def test_settings_not_supported_by_the_model_are_refused_at_planning(
    suite: Callable[..., Path], model: Path, lines: list[str], says: str
) -> None:
    path = suite(model, *lines)
    where = f"{path}:{line_of(path, '[tasks.squad]')}: [tasks.squad] "
    assert complaint(path).startswith(where + says.format(model=model))


def test_settings_not_supported_by_an_encoder_decoder_are_refused(
    suite: Callable[..., Path], worded_model: Path
) -> None:
    assert "model 'small' is an encoder-decoder; chat templates go with decoder-only models" in complaint(
        suite(worded_model, "chat_template = true")
    )
    assert "forced_bos_token_id: is 311; the vocabulary of model 'small' has tokens 0 to 310" in complaint(
        suite(worded_model, "forced_bos_token_id = 311")
    )
    assert planned(suite(worded_model, "forced_bos_token_id = 310", "max_prompt_tokens = 9999", 'truncate = "drop"'))


def test_failing_chat_template_is_reported_at_planning(suite: Callable[..., Path], model: Path) -> None:
    (model / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    assert "[tasks.squad] chat_template: " in complaint(suite(model, "chat_template = true"))


SWEEPS = {
    "probe": ('[[sweep]]\nmethod = "full"\nkinds = ["probe"]\n', "a probe records the choices of the heads themselves"),
    "record": (
        '[[sweep]]\nmethod = "full"\nkinds = ["probe"]\nrecord = ["sublayers"]\n',
        "a probe records the choices of the heads themselves",
    ),
    "replay": (
        '[[sweep]]\nmethod = "calm-softmax"\nkinds = ["replay"]\n',
        "a replay records the choices of the heads themselves",
    ),
    "scores": (
        '[[sweep]]\nmethod = "calm-softmax"\nkinds = ["scores"]\n',
        "a scores records the choices of the heads themselves",
    ),
    "oracle": (
        '[[sweep]]\nmethod = "oracle"\nkinds = ["quality"]\n',
        "'oracle' compares the head's own choices, block by block",
    ),
    "speculation": (
        '[[sweep]]\nmethod = "self-speculation"\nkinds = ["timing"]\n',
        "'self-speculation' verifies its drafts by the head's own choices",
    ),
    "contrast": (
        '[[sweep]]\nmethod = "contrastive"\nkinds = ["quality"]\n',
        "'contrastive' chooses its tokens from something else than the head's logits",
    ),
    "pruned head": (
        '[[sweep]]\nmethod = "calm-softmax"\ngrid = { head = ["pruned-fixed"] }\nkinds = ["quality"]\n',
        "'calm-softmax' reads only a part of the vocabulary",
    ),
    "calibration": (
        '[[calibration]]\nmethod = "calm-softmax"\ngrid = { head = ["pruned-fixed"] }\nlevels = [0.5]\ndelta = 0.1\n'
        "epsilon = 0.1\n",
        "'calm-softmax' reads only a part of the vocabulary",
    ),
}


@pytest.mark.parametrize("what", SWEEPS)
def test_sweeps_incompatible_with_logit_rules_are_refused(suite: Callable[..., Path], model: Path, what: str) -> None:
    sweep, says = SWEEPS[what]
    assert planned(suite(model, sweep=sweep)), "without a rule it can be run"
    path = suite(model, "repetition_penalty = 1.3", "min_length = 3", sweep=sweep)
    message = complaint(path)
    assert message.startswith(f"{path}:{line_of(path, 'method = ')}: [[")
    assert says in message
    assert "repetition_penalty, min_length of [tasks.squad]" in message


@pytest.mark.parametrize("what", ["replay", "scores", "oracle", "speculation"])
def test_token_level_methods_are_refused_with_answer_scope(suite: Callable[..., Path], model: Path, what: str) -> None:
    message = complaint(suite(model, 'first_token = "gated"', 'scope = "answer"', sweep=SWEEPS[what][0]))
    assert 'scope = "answer" of [tasks.squad]' in message


def test_only_non_default_generation_settings_are_part_of_the_identity(suite: Callable[..., Path], model: Path) -> None:
    (model / "chat_template.jinja").write_text(TEMPLATE)

    def first(*lines: str) -> Any:
        return planned(suite(model, 'prompt_style = "t5"', *lines)).groups[0].cells[0].item.cell

    plain = first()
    assert plain.identity["generation"] == {"max_new_tokens": 32, "stop": []}
    assert first("repetition_penalty = 1.0").cell_id == plain.cell_id
    assert first('first_token = "full"').cell_id == plain.cell_id
    asked = [
        ("repetition_penalty = 1.5",),
        ("no_repeat_ngram_size = 2",),
        ("min_length = 2",),
        ("max_prompt_tokens = 20", 'truncate = "left"'),
        ("max_prompt_tokens = 20", 'truncate = "right"'),
        ('first_token = "gated"',),
        ('first_token = "gated"', 'scope = "answer"'),
        ("chat_template = true",),
        ("chat_template = true", 'system = "be brief"'),
    ]
    cells = [first(*lines) for lines in asked]
    assert len({plain.cell_id, *(cell.cell_id for cell in cells)}) == len(asked) + 1
    assert {cell.task.prompts_sha256 for cell in cells} == {plain.task.prompts_sha256}
    (model / "chat_template.jinja").write_text(TEMPLATE + " ")
    assert first("chat_template = true").cell_id != cells[-2].cell_id
    assert first().cell_id == plain.cell_id, "what is not used changes nothing"


# ------------------------------------------------------------------------------------------ what checkpoints ask


def ask(model: Path, **settings: Any) -> None:
    path = model / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def test_checkpoint_settings_that_are_not_applied_are_noted_in_the_plan(
    suite: Callable[..., Path], model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(model, repetition_penalty=1.3, num_beams=4, do_sample=True, temperature=0.7, top_p=1.0, max_length=99)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    expected = (
        "not applied: do_sample = true, num_beams = 4, repetition_penalty = 1.3, temperature = 0.7 "
        "(generation_config.json)",
        'has a chat template, which is not used: prompt_style = "chat" in [tasks.LABEL] uses it',
    )
    path = suite(model, 'prompt_style = "t5"')
    assert planned(path).groups[0].remarks == expected
    from argparse import Namespace

    arguments = {"only": None, "limit": None, "kinds": None, "retry": "stale"}
    plan_command(Namespace(suite=path, runs=path.parent / "runs", data_dir=None, shard=[], **arguments))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.removeprefix("  ") in expected] == [f"  {line}" for line in expected]


def test_checkpoint_settings_repeated_in_the_suite_are_not_noted(suite: Callable[..., Path], model: Path) -> None:
    ask(model, repetition_penalty=1.3)
    (model / "chat_template.jinja").write_text(TEMPLATE)
    chat = "prompts: chat, an instruction in the model's own template"
    assert planned(suite(model, "repetition_penalty = 1.3")).groups[0].remarks == (chat,)
    other = planned(suite(model, "repetition_penalty = 1.2")).groups[0].remarks
    assert other == ("not applied: repetition_penalty = 1.3 (generation_config.json)", chat)


def test_notes_about_some_tasks_name_the_tasks(suite: Callable[..., Path], model: Path) -> None:
    ask(model, repetition_penalty=1.3)
    more = "[tasks.samsum]\nlimit = 4\nmax_new_tokens = 8\nrepetition_penalty = 1.3\n"
    (remark,) = planned(suite(model, sweep=more + QUALITY)).groups[0].remarks
    assert remark == "not applied: repetition_penalty = 1.3 (generation_config.json); of squad"


SILENT = {"do_sample": False, "num_beams": 1, "repetition_penalty": 1.0, "min_length": 0, "suppress_tokens": []}
TOLD: dict[str, Any] = {
    "no_repeat_ngram_size": 3,
    "encoder_no_repeat_ngram_size": 2,
    "encoder_repetition_penalty": 1.5,
    "forced_bos_token_id": 0,
    "forced_eos_token_id": 1,
    "bad_words_ids": [[3, 4]],
    "suppress_tokens": [3],
    "begin_suppress_tokens": [3],
    "min_length": 4,
    "min_new_tokens": 4,
    "sequence_bias": [[[3], 1.5]],
    "stop_strings": "!",
    "exponential_decay_length_penalty": [4, 1.1],
}


@pytest.mark.parametrize("name", TOLD)
def test_every_setting_that_changes_greedy_decoding_is_reported(model: Path, name: str) -> None:
    ask(model, **SILENT)
    assert not_applied(model, GenerationSettings(4)).settings == {}
    ask(model, **{name: TOLD[name]})
    assert not_applied(model, GenerationSettings(4)).settings == {name: TOLD[name]}


def test_nan_settings_are_stored_as_text(model: Path) -> None:
    ask(model, repetition_penalty=float("nan"))
    result = not_applied(model, GenerationSettings(4))
    assert result.settings == {"repetition_penalty": "nan"}


def test_long_setting_values_are_abbreviated_only_in_print(model: Path) -> None:
    ask(model, suppress_tokens=list(range(1000)))
    result = not_applied(model, GenerationSettings(4))
    assert len(str(result)) < 140
    assert result.settings["suppress_tokens"] == list(range(1000))


def test_config_json_settings_count_only_without_a_generation_config(model: Path) -> None:
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "repetition_penalty": 1.3}))
    assert GPT2LMHeadModel.from_pretrained(model).generation_config.repetition_penalty is None
    assert not_applied(model, GenerationSettings(4)).settings == {}
    (model / "generation_config.json").unlink()
    assert GPT2LMHeadModel.from_pretrained(model).generation_config.repetition_penalty == 1.3
    assert str(not_applied(model, GenerationSettings(4))) == "not applied: repetition_penalty = 1.3 (config.json)"


def test_example_in_the_prompts_guide_can_be_loaded(tmp_path: Path, model: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "prompts.md").read_text()
    block = next(part.split("```")[0] for part in text.split("```toml\n")[1:] if part.startswith("[tasks."))
    path = tmp_path / "example.toml"
    path.write_text(f'schema = 1\nname = "example"\nseed = 1\n[models.m]\npath = "{model}"\n{block}\n{QUALITY}')
    tasks = {entry.label: entry for entry in load_suite(path).tasks}
    assert tasks["squad"].generation.truncate == "left"
    assert tasks["samsum"].chat_template
    assert tasks["wmt-en-fr"].generation.logit_rules == {"forced_bos_token_id": 9}
