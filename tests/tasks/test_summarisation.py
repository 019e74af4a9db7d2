"""Summaries: forms of files, the prompt, and ROUGE F-measures with stemming."""

import gzip
import io
import tarfile

import pytest

from exitbench.errors import UserError
from exitbench.tasks import sources
from exitbench.tasks.document import Document
from exitbench.tasks.registry import get_task
from exitbench.tasks.summarisation import Summarisation


def document(summary: str) -> Document:
    return Document.from_fields({"id": "1", "dialogue": "A: hi\r\nB: hello", "summary": summary})


@pytest.mark.parametrize(
    ("output", "summary", "rouge1", "rouge2", "rouge_l"),
    [
        ("tom bought bread", "tom bought bread", 100.0, 100.0, 100.0),
        ("tom bought", "tom bought bread", 80.0, 200 / 3, 80.0),
        ("bread bought tom", "tom bought bread", 100.0, 0.0, 100 / 3),
        ("Dogs running", "dog run", 100.0, 100.0, 100.0),
        ("", "dog run", 0.0, 0.0, 0.0),
    ],
)
def test_scores_are_f_measures_with_stemming_on_a_scale_of_100(output, summary, rouge1, rouge2, rouge_l):
    values = Summarisation("samsum").score(document(summary), output).values
    assert values == pytest.approx({"rougeL": rouge_l, "rouge1": rouge1, "rouge2": rouge2})


def test_prompt_and_target_use_the_verbatim_texts():
    assert Summarisation("samsum").prompt(document("They greet.")) == "summarize: A: hi\r\nB: hello"
    assert Summarisation("samsum").target(document("They greet.")) == "They greet."


def test_repeated_dialogues_keep_distinct_keys_by_id(load, write):
    record = {"dialogue": "A: hi", "summary": "A says hi."}
    write("val.json", [{"id": "1", **record}, {"id": "2", **record}])
    first, second = load(Summarisation("samsum"), data="val.json")
    assert first.key != second.key


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"id": "1"}, r"val\.json: is an object\. Needed: a list"),
        ([{"id": "1", "dialogue": "", "summary": ""}, {"id": "2", "dialogue": ""}], r"\[1\]: key 'summary' is missing"),
        ([{"id": 1, "dialogue": "", "summary": ""}], r"\[0\], key 'id': is a whole number\. Needed: a string"),
        (["text"], r"\[0\]: is a string\. Needed: an object"),
    ],
)
def test_malformed_file_error_names_the_record_and_the_key(load, write, content, complaint):
    write("val.json", content)
    with pytest.raises(UserError, match=complaint):
        load(Summarisation("samsum"), data="val.json")


ARTICLES = 'article,highlights,id\n"Rain fell, ""much"".\nIt stopped.","Rain.\nNo rain.",a1\n'
LINES = '{"fname": "d1", "dialogue": "#Person1#: Hi", "summary": "They greet."}\n'
TEST_LINES = '{"fname": "d2", "dialogue": "#Person1#: Hi", "summary1": "One.", "summary2": "Two.", "summary3": "3."}\n'
PATENTS = '{"publication_number": "US1", "abstract": "Wheel.", "application_number": "2", "description": "A wheel."}\n'


def packed(**members: bytes) -> bytes:
    """Return a compressed tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name.replace("__", "."))
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("task", "file", "content", "fields"),
    [
        ("cnn-dailymail", "v.csv.gz", ARTICLES, ("a1", 'Rain fell, "much".\nIt stopped.', "Rain.\nNo rain.")),
        ("dialogsum", "d.jsonl", LINES, ("d1", "#Person1#: Hi", "They greet.")),
        ("dialogsum", "d.jsonl", TEST_LINES, ("d2", "#Person1#: Hi", "One.")),
        ("dialogsum", "d.csv", "id,dialogue,summary,topic\nt_0,Hi,Greet.,x\n", ("t_0", "Hi", "Greet.")),
        ("bigpatent", "p.jsonl.gz", PATENTS, ("US1", "A wheel.", "Wheel.")),
        ("bigpatent", "p.tar.gz", packed(data_0__gz=gzip.compress(PATENTS.encode())), ("US1", "A wheel.", "Wheel.")),
    ],
)
def test_original_files_become_documents_with_the_hubs_fields(task, file, content, fields, load, write):
    if file == "p.tar.gz":
        (write("x", "").parent / file).write_bytes(content)
    else:
        write(file, content)
    registered_task = get_task(task)
    (document,) = load(registered_task, data=file)
    assert tuple(document.fields[name] for name in registered_task.corpus.fields) == fields
    assert (registered_task.prompt(document), registered_task.target(document)) == (
        f"summarize: {fields[1]}",
        fields[2],
    )


def test_a_record_without_a_summary_is_named(load, write):
    write("d.jsonl", LINES + '{"fname": "d1", "dialogue": "Hi"}\n')
    with pytest.raises(UserError, match=r"d\.jsonl, record 2: key 'summary' is missing\. Present: dialogue, fname"):
        load(get_task("dialogsum"), data="d.jsonl")


def test_oversized_unpacked_archive_is_refused(load, write, monkeypatch):
    monkeypatch.setattr(sources, "MAX_BYTES", 20_000)
    path = write("x", "").parent / "p.tar.gz"
    path.write_bytes(packed(a__gz=gzip.compress(b" " * 30_000)))
    with pytest.raises(UserError, match=r"p\.tar\.gz: holds more than 20000 bytes unpacked"):
        load(get_task("bigpatent"), data="p.tar.gz")
