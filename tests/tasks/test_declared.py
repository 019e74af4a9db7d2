"""Tasks in TOML files: reading, inputs of models, scores of outputs, and refused files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exitbench.errors import UserError
from exitbench.harness.cells.job import DataRequest
from exitbench.harness.planning.entries.declared_task import read_declaration
from exitbench.tasks.base import Source
from exitbench.tasks.declared import Declaration, DeclaredTask
from exitbench.tasks.document import Document
from exitbench.tasks.registry import aggregation, get_task

Write = Callable[[str, object], Path]
Load = Callable[..., list[Document]]
TOML = """\
schema = 1
name = "replies"
prompt = "reply to {who}: {{{text}}}"
causal_prompt = "{text}\\nReply:"
target = "answer"
metrics = ["f1", "em"]

[fields]
who = "from"
text = "message.body"
answer = "reply"
"""
RECORDS = [
    {"from": "Ada", "message": {"body": "where {who} is"}, "reply": ["in London", "London"]},
    {"from": "Ben", "message": {"body": "two\nlines"}, "reply": "no"},
]


@pytest.fixture
def replies(write: Write) -> Declaration:
    return read_declaration(write("replies.toml", TOML))


# ------------------------------------------------------------------------------------------------------------- prompts


def test_each_model_kind_uses_its_template_with_verbatim_fields(replies: Declaration, write: Write, load: Load) -> None:
    write("data.json", RECORDS)
    task = DeclaredTask(replies)
    first, second = load(task, data="data.json")
    assert task.prompt_for(first, "seq2seq") == "reply to Ada: {where {who} is}"
    assert task.prompt_for(second, "causal") == "two\nlines\nReply:"
    assert task.target(first) == "in London" and task.target(second) == "no"
    assert (task.name, task.headline, task.default_max_new_tokens) == ("toml:replies", "f1", 64)


def test_decoder_only_prompt_defaults_to_the_seq2seq_template(write: Write, load: Load) -> None:
    write("data.json", RECORDS)
    text = "".join(line for line in TOML.splitlines(keepends=True) if not line.startswith("causal"))
    task = DeclaredTask(read_declaration(write("one.toml", text)))
    (first, _) = load(task, data="data.json")
    assert task.prompt_for(first, "causal") == task.prompt_for(first, "seq2seq")


@pytest.mark.parametrize(
    "template",
    ["{who.__class__}", "{who[0]}", "{who!r}", "{who:>9}", "{0}", "{}", "{who:{text}}", "{whom}", "{who", "who}"],
)
def test_template_with_anything_but_field_names_is_refused(write: Write, template: str) -> None:
    text = TOML.replace("reply to {who}: {{{text}}}", template)
    with pytest.raises(UserError, match=r"bad\.toml:3: prompt: ") as error:
        read_declaration(write("bad.toml", text))
    assert "llowed: " in str(error.value)


# ------------------------------------------------------------------------------------------------------------- records


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("d.json", json.dumps([{"a": "x, y", "b": "1"}, {"a": 'say "no"', "b": 2}])),
        ("d.jsonl", '{"a": "x, y", "b": "1"}\n\n{"a": "say \\"no\\"", "b": 2}\n'),
        ("d.csv", 'a,b\n"x, y",1\n"say ""no""",2\n'),
        ("d.tsv", 'a\tb\nx, y\t1\n"say ""no"""\t2\n'),
        ("d.csv.gz", 'a,b\r\n"x, y",1\r\n"say ""no""",2\r\n'),
    ],
)
def test_record_format_follows_the_file_extension(write: Write, load: Load, name: str, content: str) -> None:
    task = DeclaredTask(Declaration("t", (("a", "a"), ("b", "b")), "{a}", "b", ("exact_match",)))
    write(name, content)
    result = load(task, data=name)
    assert [(document.fields["a"], document.fields["b"]) for document in result] == [("x, y", "1"), ('say "no"', "2")]
    assert [document.fields["id"] for document in result] == ["1", "2"]


def test_csv_fields_may_contain_line_breaks(write: Write, load: Load) -> None:
    task = DeclaredTask(Declaration("t", (("a", "a"), ("b", "b")), "{a}", "b", ("exact_match",)))
    write("d.csv", 'a,b\n"two\nlines",1\n')
    assert load(task, data="d.csv")[0].fields["a"] == "two\nlines"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.txt", "x", "d.txt: its name ends in .txt. Allowed: .json"),
        ("d.json", '{"a": 1}', "d.json: is an object. Needed: a list"),
        ("d.json", "[1]", "d.json, [0]: is a whole number. Needed: an object"),
        ("d.jsonl", '{"a": "x", "b": "y"}\n{', "d.jsonl, line 2: not JSON"),
        ("d.csv", "a,b\n1,2,3\n", "d.csv, record 1: has other columns"),
        ("d.csv", 'a,b\n"1,2\n', "d.csv, line 1: not CSV: unexpected end of data"),
        ("d.json", '[{"a": "x"}]', "d.json, record 1: no column 'b'. Allowed: a"),
        ("d.json", '[{"a": ["x"], "b": "y"}]', "record 1, column 'a': is list. Needed: a text or a number"),
        ("d.json", '[{"a": null, "b": "y"}]', "record 1, column 'a': is null"),
        ("d.json", '[{"a": true, "b": "y"}]', "record 1, column 'a': is bool"),
        ("d.json", '[{"a": "x", "b": []}]', "record 1, column 'b': has no reference"),
        ("d.json", '[{"a": "x", "b": ["y", "z"]}]', "has 2 references, but bleu take"),
        ("d.json", '[{"a": "\\ud800", "b": "y"}]', "half of a surrogate pair"),
    ],
)
def test_invalid_record_error_names_the_record(write: Write, load: Load, name: str, content: str, message: str) -> None:
    task = DeclaredTask(Declaration("t", (("a", "a"), ("b", "b")), "{a}", "b", ("exact_match", "bleu")))
    write(name, content)
    with pytest.raises(UserError) as error:
        load(task, data=name)
    assert message in str(error.value)


def test_list_valued_column_in_a_prompt_is_refused(write: Write, load: Load) -> None:
    task = DeclaredTask(Declaration("t", (("a", "a"), ("b", "b")), "{a} {b}", "b", ("em",)))
    write("d.json", [{"a": "x", "b": ["y"]}])
    with pytest.raises(UserError, match="column 'b': is a list, but stands in a prompt"):
        load(task, data="d.json")


def test_hub_sources_and_files_outside_the_data_folder_are_refused(replies: Declaration, load: Load) -> None:
    with pytest.raises(UserError, match='toml:replies: source is "hub"'):
        DeclaredTask(replies).load(Source("hub"), "test", None)
    with pytest.raises(UserError, match="leads out of --data-dir"):
        load(DeclaredTask(replies), data="../data.json")


# -------------------------------------------------------------------------------------------------------------- scores


@pytest.mark.parametrize(
    ("builtin_name", "fields", "target"),
    [("squad", {"id", "answers"}, None), ("samsum", {"id", "summary"}, "summary"), ("wmt-en-fr", {"id", "fr"}, "fr")],
)
def test_declared_metrics_equal_those_of_bundled_tasks(builtin_name: str, fields: set[str], target: str | None) -> None:
    from exitbench.tasks import builtin

    builtin_task = get_task(builtin_name)
    declared = DeclaredTask(Declaration("t", (("x", "x"), ("y", "y")), "{x}", "y", builtin_task.metrics))
    builtin_documents = builtin.documents(builtin_name, "test", 6)
    outputs = [
        builtin_task.target(builtin_documents[(number + 1) % 6]) + " " + builtin_task.target(reference)
        for number, reference in enumerate(builtin_documents)
    ]
    pairs = []
    for document, output in zip(builtin_documents, outputs, strict=True):
        references = document.fields["answers"]["text"] if target is None else [builtin_task.target(document)]
        scored = declared.score(Document.from_fields({"x": "", "y": references}), output)
        assert scored == builtin_task.score(document, output)
        pairs.append(scored)
    assert len({tuple(scored.values.values()) for scored in pairs}) > 1
    for metric in builtin_task.metrics:
        total = np.array([scored.summands(metric) for scored in pairs]).sum(axis=0)
        n = np.asarray(6.0)
        assert declared.aggregate(metric, total, n) == builtin_task.aggregate(metric, total, n)
        assert aggregation("toml:t", metric)(total, n) == builtin_task.aggregate(metric, total, n)


@pytest.mark.parametrize("metric", ["f1", "em", "rouge1", "rouge2", "rougeL"])
def test_best_of_several_references_is_scored(metric: str) -> None:
    task = DeclaredTask(Declaration("t", (("x", "x"), ("y", "y")), "{x}", "y", (metric,)))
    document = Document.from_fields({"x": "", "y": ["the red house", "small dog runs"]})
    assert task.score(document, "small dog runs").values == {metric: 100.0}


@pytest.mark.parametrize(("output", "value"), [(" London\n", 100.0), ("in London", 100.0), ("london", 0.0), ("", 0.0)])
def test_exact_match_compares_stripped_text_case_sensitively(output: str, value: float) -> None:
    task = DeclaredTask(Declaration("t", (("x", "x"), ("y", "y")), "{x}", "y", ("exact_match",)))
    document = Document.from_fields({"x": "", "y": ["London", "in London"]})
    assert task.score(document, output).values == {"exact_match": value}
    assert task.score(task.with_reference(document, output), output).values == {"exact_match": 100.0}


# --------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema = 1", "schema = 2", "bad.toml:1: schema: is 2; this version reads schema 1"),
        ('name = "replies"', 'name = "my replies"', "bad.toml:2: name: 'my replies' cannot be a name"),
        ('target = "answer"', 'target = "anser"', "bad.toml:5: target: unknown field 'anser'. Did you mean 'answer'?"),
        ('"f1", "em"', '"f1", "emm"', "bad.toml:6: metrics: unknown metric 'emm'. Did you mean 'em'?"),
        ('"f1", "em"', "", "bad.toml:6: metrics: [] are not one or more"),
        ('"f1", "em"', '"f1", "f1"', "bad.toml:6: metrics: names something twice"),
        ('who = "from"', 'who-is = "from"', "'who-is' is no name"),
        ('metrics = ["f1", "em"]', 'metrics = ["f1", "em"]\nmodule = "os"', "bad.toml:7: module: unknown key"),
        ('who = "from"', "who = 1", "[fields] who: is 1; it must be a string"),
        ("prompt = ", "max_new_tokens = 0\nprompt = ", "max_new_tokens: is 0"),
        ('"em"]', '"em"]\nbleu_tokenize = "zh"', 'bad.toml:7: bleu_tokenize: goes with the metric "bleu"'),
        ('"em"]', '"bleu"]\nbleu_tokenize = "zhh"', "bleu_tokenize: unknown tokenizer 'zhh'. Did you mean 'zh'?"),
        ('"em"]', '"bleu"]\nbleu_tokenize = "spm"', "bleu_tokenize: unknown tokenizer 'spm'. "),
        ('"em"]', '"bleu"]\nbleu_tokenize = 13', "bleu_tokenize: is 13; it must be a string"),
    ],
)
def test_invalid_declaration_error_names_the_line(write: Write, old: str, new: str, message: str) -> None:
    assert old in TOML
    with pytest.raises(UserError) as error:
        read_declaration(write("bad.toml", TOML.replace(old, new, 1)))
    assert message in str(error.value)


def test_data_request_round_trips_its_declaration_through_json(
    replies: Declaration, write: Write, tmp_path: Path
) -> None:
    write("data.json", RECORDS)
    request = DataRequest("toml:replies", "local", "test", (("data", "data.json"),), declaration=replies)
    copy: dict[str, Any] = json.loads(json.dumps({**vars(request), "declaration": replies.to_json()}))
    rebuilt = DataRequest.from_json(copy)
    assert rebuilt == request and hash(rebuilt) == hash(request)
    assert [document.key for document in rebuilt.load(tmp_path)] == [
        document.key for document in request.load(tmp_path)
    ]


def test_metric_version_depends_on_target_and_metrics_only(replies: Declaration) -> None:
    def version(**changes: Any) -> str:
        return DeclaredTask(Declaration(**{**vars(replies), **changes})).metric_version

    assert len({version(), version(target="text"), version(metrics=("f1",)), version(metrics=("em", "rouge1"))}) == 4
    assert version() == version(prompt="{who}", max_new_tokens=9)  # prompts have digests of their own


def test_bleu_uses_the_declared_tokenizer(write: Write) -> None:
    text = TOML.replace('"em"]', '"bleu"]\nbleu_tokenize = "char"')
    declaration = read_declaration(write("char.toml", text))
    task, default = DeclaredTask(declaration), DeclaredTask(Declaration(**{**vars(declaration), "bleu_tokenize": None}))
    answer = "東京は日本の首都です。"
    document = Document.from_fields({"who": "", "text": "", "answer": answer})
    scores = [metric_task.score(document, answer).summands("bleu") for metric_task in (task, default)]
    of_char, of_13a = (float(task.aggregate("bleu", np.array(score), np.ones(()))) for score in scores)
    assert (round(of_char), of_13a) == (100, 0)
    assert "tok:char" in task.metric_version and "tok:13a" in default.metric_version
    assert Declaration.from_json(declaration.to_json()) == declaration
    assert "bleu_tokenize" not in default.declaration.to_json(), "requests of before keep their digests"


@pytest.mark.parametrize("name", ["ja-mecab", "ko-mecab"])
def test_tokenizer_with_a_missing_package_is_refused(write: Write, monkeypatch: Any, name: str) -> None:
    def missing(_: str) -> None:
        raise RuntimeError("\nTokenization requires extra dependencies.\n\n    pip install sacrebleu[x]\n")

    monkeypatch.setattr("exitbench.tasks.declared.bleu_by", missing)
    text = TOML.replace('"em"]', f'"bleu"]\nbleu_tokenize = "{name}"')
    with pytest.raises(UserError, match=rf"'{name}' cannot be used: Tokenization .* pip install sacrebleu\[x\]"):
        read_declaration(write("bad.toml", text))
