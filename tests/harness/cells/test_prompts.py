"""Prompts with chat templates, truncated prompts, and prompts left out, as transformers' tokenizers treat them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from exitbench.errors import UserError
from exitbench.harness.cells.cell import GenerationSettings, Truncate
from exitbench.harness.cells.prompts import Prompts, check_chat_template, render_chat, template_sha256
from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer
from exitbench.tasks.builtin.corpus import build_tokenizer
from exitbench.tasks.document import Document

TEXT = "the small dog sees the old house . the cat sees the dog ."
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'system' %}context : {{ message.content }}\n"
    "{% else %}question : {{ message.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}French :{% endif %}"
)
ENDS: dict[str, str] = {"end": "$A </s>", "beginning": "<pad> $A", "both": "<pad> $A </s>", "neither": "$A"}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that loads a tokenizer with special tokens at one end and an optional chat template."""

    def make(ends: str = "end", template: str | None = None) -> Any:
        result = build_tokenizer()
        tokens = [(token, result.token_to_id(token)) for token in ("<pad>", "</s>")]
        result.post_processor = processors.TemplateProcessing(single=ENDS[ends], special_tokens=tokens)
        saved = PreTrainedTokenizerFast(tokenizer_object=result, bos_token="<pad>", eos_token="</s>", unk_token="<unk>")
        saved.chat_template = template
        saved.save_pretrained(tmp_path / "tokenizer")
        return load_tokenizer(tmp_path / "tokenizer")

    return make


def chat(tokenizer: Any, system: str | None = None, **bounds: Any) -> Prompts:
    return Prompts(
        tokenizer, GenerationSettings(4, chat_template_sha256=template_sha256(tokenizer), system=system, **bounds)
    )


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("longest", [3, 5, 13, 14, 15, 16, 40])
def test_prompt_truncation_equals_transformers(
    tokenizer: Callable[..., Any], ends: str, side: Truncate, longest: int
) -> None:
    loaded = tokenizer(ends)
    prompt = Prompts(loaded, GenerationSettings(4, max_prompt_tokens=longest, truncate=side))(TEXT)
    whole = loaded(TEXT)["input_ids"]
    loaded.truncation_side = side
    assert prompt.ids == loaded(TEXT, truncation=True, max_length=longest)["input_ids"]
    assert prompt.n_cut == max(0, len(whole) - longest)


def test_special_tokens_spelled_out_in_a_text_are_not_special(tokenizer: Callable[..., Any]) -> None:
    prompts = Prompts(tokenizer("both"), GenerationSettings(4, max_prompt_tokens=4, truncate="right"))
    assert prompts("</s> the cat sees").ids == [0, 1, prompts.tokenizer.convert_tokens_to_ids("the"), 1]


def test_max_prompt_tokens_without_room_for_text_is_refused(tokenizer: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match="max_prompt_tokens = 2 leaves no room: 2 special tokens belong to every"):
        Prompts(tokenizer("both"), GenerationSettings(4, max_prompt_tokens=2, truncate="left"))


def documents(*texts: str) -> list[tuple[Document, str]]:
    return [(Document.from_fields({"text": text}), text) for text in texts]


@pytest.mark.parametrize(
    ("positions", "asked", "kept"),
    [
        (None, {}, [0, 1, 2]),
        (9, {}, [0, 1]),  # 5 fit next to 4 new ones
        (8, {}, [0]),
        (9, {"max_prompt_tokens": 2, "truncate": "drop"}, [0]),
        (None, {"max_prompt_tokens": 5, "truncate": "drop"}, [0, 1]),
        (9, {"max_prompt_tokens": 4, "truncate": "left"}, [0, 1, 2]),
    ],
)
def test_prompts_that_do_not_fit_are_dropped_or_truncated(
    tokenizer: Callable[..., Any], positions: int | None, asked: dict[str, Any], kept: list[int]
) -> None:
    given = documents("cat", "the cat sees .", TEXT)  # 2, 5 and 15 tokens
    result = Prompts(tokenizer(), GenerationSettings(4, **asked), positions).fitting(given)
    assert result.documents == tuple(given[index][0] for index in kept)
    assert result.dropped == len(given) - len(kept)
    assert result.truncated == (2 if asked.get("truncate") == "left" else 0)


def test_no_prompt_that_fits_is_an_error(tokenizer: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match="none of the 1 prompts fits: the shortest has 15 tokens, 5 fit next to 4"):
        Prompts(tokenizer(), GenerationSettings(4), 9).fitting(documents(TEXT))


# ------------------------------------------------------------------------------------------ chat templates


@pytest.mark.parametrize("system", [None, "the house is old"])
@pytest.mark.parametrize("ends", ENDS)
def test_chat_prompts_equal_apply_chat_template(tokenizer: Callable[..., Any], ends: str, system: str | None) -> None:
    loaded = tokenizer(ends, TEMPLATE)
    messages = [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": TEXT}]
    prompt = chat(loaded, system)(TEXT)
    theirs = loaded.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)
    assert prompt.ids == theirs["input_ids"]
    assert prompt.ids.count(loaded.bos_token_id) == 1, "the template writes it"
    assert check_chat_template(loaded, system) == hashlib.sha256(TEMPLATE.encode()).hexdigest()


def test_too_long_chats_can_be_dropped(tokenizer: Callable[..., Any]) -> None:
    loaded = tokenizer("both", TEMPLATE)
    longest = len(chat(loaded)("the cat").ids)
    result = chat(loaded, max_prompt_tokens=longest, truncate="drop").fitting(documents("the cat", TEXT))
    assert [document.fields["text"] for document in result.documents] == ["the cat"]


def test_chat_template_changed_since_planning_is_refused(tokenizer: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match="the chat template has changed since the run was planned"):
        Prompts(tokenizer("end", TEMPLATE), GenerationSettings(4, chat_template_sha256="0" * 64))


def test_tokenizer_without_a_chat_template_is_refused(tokenizer: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match="the tokenizer has no chat template"):
        check_chat_template(tokenizer(), None)


@pytest.mark.parametrize(
    ("template", "system", "says"),
    [
        ("hello", None, "leaves out the prompt"),
        ("{{ messages[-1].content }}", "be brief", "leaves out the system message"),
        ("{{ raise_exception('no system role') }}", None, "fails: TemplateError: no system role"),
        ("{% for %}", None, "fails: TemplateSyntaxError"),
        ("{{ messages[7].content }}", None, "fails: UndefinedError"),
        ("{{ 1 / 0 }}", None, "fails: ZeroDivisionError"),
    ],
)
def test_unusable_chat_template_raises_a_one_line_error(
    tokenizer: Callable[..., Any], template: str, system: str | None, says: str
) -> None:
    with pytest.raises(UserError) as caught:
        check_chat_template(tokenizer("end", template), system)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


ESCAPES = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('touch PROOF') }}",
    "{{ raise_exception.__globals__['__builtins__']['open']('PROOF', 'w') }}",
    "{{ self._TemplateReference__context.environment.globals.__class__.__base__.__subclasses__() }}",
    "{{ messages.__init__.__globals__ }}",
    "{% set x = messages[0].update({'content': ''.__class__}) %}{{ x }}",
    "{{ ('{0.__class__.__init__.__globals__}').format(raise_exception) }}",
    "{% for n in range(10 ** 9) %}{% endfor %}{{ messages }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.system('touch PROOF') }}",
)


@pytest.mark.parametrize("template", ESCAPES)
def test_chat_template_that_escapes_the_sandbox_or_never_ends_is_refused(
    tokenizer: Callable[..., Any], template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = tokenizer("end", template)
    with pytest.raises(UserError, match=r"the chat template (fails|leaves out)"):
        check_chat_template(loaded, None)
    assert not (tmp_path / "PROOF").exists()


def test_template_syntax_in_user_text_is_not_evaluated(tokenizer: Callable[..., Any]) -> None:
    assert "question : {{ 7 * 7 }}" in render_chat(tokenizer("end", TEMPLATE), None, "{{ 7 * 7 }}")
