"""Tasks of lm-eval from local files: file formats, and real data sets if they are available.

Otherwise files of the same form and size are written, as in `test_real_files`.
"""

import gzip
import io
import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from exitbench.errors import UserError
from exitbench.tasks.base import Source
from exitbench.tasks.lm_eval.settings import LmEvalSettings
from exitbench.tasks.lm_eval.task import LmEvalTask
from exitbench.tasks.registry import get_task

REAL = Path(__file__).parents[2].parent / "shared" / "data"
QUESTION = '"Which, of these?",one,two,three,four,'


def lm_eval(name: str, **settings: object) -> LmEvalTask:
    task = get_task(f"lm-eval:{name}", LmEvalSettings(**settings))
    assert isinstance(task, LmEvalTask)
    return task


def gsm8k(count: int) -> str:
    return "".join(json.dumps({"question": f"{i}?", "answer": f"So.\n#### {i}"}) + "\n" for i in range(count))


def winogrande(count: int) -> str:
    row = {"sentence": "Ann met Bea and _ smiled.", "option1": "Ann", "option2": "Bea", "answer": "2"}
    return "".join(json.dumps({"qID": str(i), **row}) + "\n" for i in range(count))


def hellaswag(count: int) -> str:
    return "Roofs: A man sits on a roof. he\n3\nis a roof.\nis a ski.\nis a cube.\nstarts to pull.\n" * count


def strategyqa(count: int) -> str:
    row = {"term": "x", "description": "y", "facts": [], "answer": True, "question": "Is it?", "decomposition": []}
    return json.dumps([{"qid": str(i), **row} for i in range(count)])


def narrativeqa(count: int) -> str:
    pairs = [{"question": f"{i}?", "answer": "A job."} for i in range(5)]
    return json.dumps([{"context": f" Story {i}.", "qas": pairs} for i in range(count // 5)])


def mbpp(count: int) -> str:
    row = {"text": "Add.", "code": "def f():\r\n  return 1", "test_list": ["assert f() == 1"] * 3}
    return "".join(json.dumps({**row, "task_id": i + 1}) + "\n" for i in range(count))


def mmlu(
    subjects: int, each: int, mark: str, header: str = "question,choice0,choice1,choice2,choice3,answer\n"
) -> bytes:
    buffer = io.BytesIO()
    names = ["abstract_algebra", "astronomy", *(f"subject_{i}" for i in range(2, subjects))]
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in names[:subjects]:
            data = (header + (QUESTION + ("2\n" if header else "C\n")) * each).encode()
            entry = tarfile.TarInfo(f"{mark}/{name}_{mark}.csv")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "files", "count", "form", "written"),
    [
        ("gsm8k", {"test": "gsm8k/test.first659.jsonl.gz", "train": "gsm8k/train.jsonl.gz"}, 659, gsm8k, 659),
        ("winogrande", {"validation": "winogrande/dev.jsonl.gz"}, 1267, winogrande, 1267),
        ("hellaswag", {"validation": "hellaswag/hellaswag_val.first8042.txt.gz"}, 8042, hellaswag, 8042),
        ("strategyqa", {"test": "strategyqa/strategyqa_train.json.gz"}, 2290, strategyqa, 2290),
        ("strategyqa_generate", {"test": "strategyqa/strategyqa_train.json.gz"}, 2290, strategyqa, 2290),
        ("narrativeqa", {"validation": "narrativeqa_derived/valid.json.gz"}, 500, narrativeqa, 500),
        ("mbpp", {"test": "mbpp/mbpp.jsonl.gz"}, 500, mbpp, 974),
    ],
    ids=["gsm8k", "winogrande", "hellaswag", "strategyqa", "strategyqa_generate", "narrativeqa", "mbpp"],
)
def test_every_record_becomes_a_document_with_requests(
    name: str, files: dict[str, str], count: int, form: Callable[[int], str], written: int, tmp_path: Path
) -> None:
    data_dir = REAL
    if not REAL.is_dir():
        data_dir = tmp_path
        for path in files.values():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(gzip.compress(form(written).encode(), 1))
    task = lm_eval(name)
    documents = task.load(Source("local", data_dir, tuple(files.items())), "test", None)
    assert len(documents) == len({document.key for document in documents}) == count
    some = documents[:20]
    instances = task.instances(some)
    if task.output_type == "multiple_choice":
        assert all(len(task.right_choices(document)) == 1 for document in some)
        assert all(len(instances[document.key]) == len(task.choices(document)) for document in some)
    elif name != "mbpp":  # whose references are tests, not programs
        scores = [task.score(document, task.target(document)) for document in some]
        assert all(score.values[task.headline] == 100 for score in scores)


@pytest.mark.parametrize("header", ["question,choice0,choice1,choice2,choice3,answer\n", ""])
def test_mmlu_loads_the_subjects_of_an_archive(header: str, tmp_path: Path) -> None:
    (tmp_path / "dev.tar.gz").write_bytes(mmlu(2, 5, "dev", header))
    (tmp_path / "test.tar.gz").write_bytes(mmlu(1, 3, "test", header))
    source = Source("local", tmp_path, (("test", "test.tar.gz"), ("dev", "dev.tar.gz")))
    task = lm_eval("mmlu_stem", num_fewshot=5)
    documents = task.load(source, "test", None)
    assert [document.fields["task"] for document in documents] == ["mmlu_abstract_algebra"] * 3
    assert task.instances(documents)[documents[0].key][0].args == (
        "The following are multiple choice questions (with answers) about abstract algebra.\n\n"
        + "Which, of these?\nA. one\nB. two\nC. three\nD. four\nAnswer: C\n\n" * 5
        + "Which, of these?\nA. one\nB. two\nC. three\nD. four\nAnswer:",
        " A",
    )
    assert task.right_choices(documents[0]) == {2}
    with pytest.raises(UserError, match=r"'mmlu_virology': test\.tar\.gz, dev\.tar\.gz holds nothing of mmlu_virology"):
        lm_eval("mmlu_virology").load(source, "test", None)


def test_hellaswag_second_context_part_is_capitalized(write: Callable[[str, object], Path], tmp_path: Path) -> None:
    write("v.txt", hellaswag(1))
    task = lm_eval("hellaswag")
    (document,) = task.load(Source("local", tmp_path, (("validation", "v.txt"),)), "test", None)
    assert task.prompt(document) == "Roofs: A man sits on a roof. He"
    assert [instance.args[1] for instance in task.instances([document])[document.key]][3] == " starts to pull."


@pytest.mark.parametrize(
    ("name", "file", "content", "says"),
    [
        ("hellaswag", "v.txt", "A: b\n3\n1\n2\n3\n", "5 lines are no whole number of tasks of 6 lines"),
        ("hellaswag", "v.txt", "A: b\n4\n1\n2\n3\n4\n", r"line 2: the label is '4'\. Allowed: 0 to 3"),
        ("hellaswag", "v.txt", "b\n3\n1\n2\n3\n4\n", "line 1: no activity and colon"),
        ("winogrande", "v.jsonl", '{"a": 1}\n[]\n', r"v\.jsonl, line 2: is a list\. Needed: an object"),
        ("winogrande", "v.xml", "", r"its name ends in \.xml\. Allowed: \.json"),
    ],
)
def test_malformed_files_are_refused(name, file, content, says, write, tmp_path):
    write(file, content)
    with pytest.raises(UserError, match=says):
        lm_eval(name).load(Source("local", tmp_path, (("validation", file),)), "test", None)


def test_unknown_split_and_missing_few_shot_split_are_refused(write, tmp_path):
    write("v.jsonl", gsm8k(2))
    with pytest.raises(UserError, match=r"gsm8k: files: unknown split 'validation'\. Allowed: test, train"):
        lm_eval("gsm8k").load(Source("local", tmp_path, (("validation", "v.jsonl"),)), "test", None)
    with pytest.raises(UserError, match=r"its 5 examples are from split 'train', of which files has nothing\."):
        lm_eval("gsm8k").load(Source("local", tmp_path, (("test", "v.jsonl"),)), "test", None)
    fewer = lm_eval("gsm8k", num_fewshot=0)
    assert len(fewer.load(Source("local", tmp_path, (("test", "v.jsonl"),)), "test", None)) == 2


def test_builtin_source_is_refused():
    with pytest.raises(UserError, match=r"lm-eval has no generated data\. Allowed: source = \"local\""):
        lm_eval("gsm8k").load(Source(), "test", None)


def test_local_source_without_files_lists_the_needed_files(tmp_path):
    with pytest.raises(
        UserError, match=r"'openai/gsm8k' is one of the hub.*files = \{ test = \.\.\., train = \.\.\. \}"
    ):
        lm_eval("gsm8k").load(Source("local", tmp_path), "test", None)


def test_offline_error_names_the_data_set_and_remedies(monkeypatch, tmp_path):
    import datasets
    import huggingface_hub.constants

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    with pytest.raises(UserError, match=r"data set openai/gsm8k \(main\) is not in the hub's cache.*HF_HOME.*files = "):
        lm_eval("gsm8k").load(Source("hub"), "test", None)


def test_code_executing_task_is_refused_before_its_module_is_imported():
    with pytest.raises(
        UserError, match=r"'humaneval' runs what the model wrote, in the harness itself\. Allowed: mbpp"
    ):
        lm_eval("humaneval")
    assert "lm_eval.tasks.humaneval.utils" not in sys.modules


def test_metric_code_is_not_downloaded():
    with pytest.raises(UserError, match=r"'meqsum' cannot be read: .*'bleu' .*Code of metrics is not downloaded"):
        lm_eval("meqsum")


def test_one_file_can_be_split_into_two_halves(tmp_path: Path) -> None:
    (tmp_path / "dev.jsonl").write_text(winogrande(8))
    task, source = lm_eval("winogrande"), Source("local", tmp_path, (("validation", "dev.jsonl"),))
    everything, first, second = (
        [document.fields["doc_id"] for document in task.load(source, split, None)]
        for split in ("train", "test[:50%]", "test[50%:]")
    )
    assert sorted(everything) == list(range(8)), "a file is the split that it is given for"
    assert (sorted(first), sorted(second)) == ([0, 1, 2, 3], [4, 5, 6, 7])
