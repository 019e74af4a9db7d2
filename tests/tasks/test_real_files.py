"""Real files are read completely: every record, each with a different key.

The data sets' licences keep them out of the repository. If they are not available next to it, the test writes a file of
the same form and size, so that it always has a file to read.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from exitbench.tasks.base import Source
from exitbench.tasks.registry import get_task

CNN = "cnn_dailymail/cnn_dailymail_validation_subset"
IWSLT = "iwslt14.de-en/test.first5000"
NEWS = "wmt/en-de"
WMT22 = "wmt22/generaltest2022.de-en"
REAL = Path(__file__).parents[2].parent / "shared" / "data"


def squad(count: int) -> str:
    answers = [{"text": "Ada", "answer_start": 0}]
    questions = [{"id": f"q{i}", "question": "Who?", "answers": answers} for i in range(count)]
    return json.dumps({"data": [{"title": "Ada", "paragraphs": [{"context": "Ada.", "qas": questions}]}]})


def samsum(count: int) -> str:
    return json.dumps([{"id": str(i), "dialogue": "A: hi", "summary": "A says hi."} for i in range(count)])


def articles(count: int) -> str:
    return "article,highlights,id\n" + "".join(f'"Rain, ""{i}"".",Rain.,{i}\n' for i in range(count))


def lines(count: int) -> str:
    return "".join(f"{i % 7}\u2028\n" for i in range(count))


def pairs(count: int) -> str:
    return "Yes.\tOui.\n" * count


def columns(header: str, row: str) -> Callable[[int], str]:
    return lambda count: header + "".join(row.format(i) for i in range(count))


GLUE = {
    "cola": ("CoLA/val", 1301, columns("", "gj04\t1\t\tIt rained {}.\n")),
    "sst2": ("SST-2/dev", 6735, columns("sentence\tlabel\n", "fine {}\t1\n")),
    "mrpc": ("MRPC/dev", 408, columns("Quality\t#1 String\t#2 String\n", "1\tOne {}.\tOne.\n")),
    "stsb": ("STS-B/dev", 1500, columns("sentence1\tsentence2\tscore\n", "One {}.\tOne.\t5.000\n")),
    "qnli": ("QNLI/dev.first4000", 4000, columns("question\tsentence\tlabel\n", "Who {}?\tAda.\tentailment\n")),
    "rte": ("RTE/dev", 277, columns("sentence1\tsentence2\tlabel\n", "One {}.\tTwo.\tnot_entailment\n")),
}


@pytest.mark.parametrize(
    ("name", "files", "count", "form"),
    [
        ("squad", {"data": "squad/dev-v1.1.json.gz"}, 10570, squad),
        ("squad", {"data": "policyqa/dev.json.gz"}, 3809, squad),
        ("samsum", {"data": "samsum/val.json.gz"}, 818, samsum),
        (
            "wmt-en-fr",
            {"en": "multi30k/test_2016_flickr.en.gz", "fr": "multi30k/test_2016_flickr.fr.gz"},
            1000,
            lines,
        ),
        ("wmt-en-fr", {"en": "wmt/en-fr/newstest2014.en.gz", "fr": "wmt/en-fr/newstest2014.fr.gz"}, 3003, lines),
        ("wmt-en-fr", {"pairs": "tatoeba_manythings/fra.txt.gz"}, 142787, pairs),
        ("cnn-dailymail", {"data": f"{CNN}.first800.csv.gz"}, 800, articles),
        ("iwslt14-de-en", {"de": "iwslt14.de-en/test.first5000.de.gz", "en": f"{IWSLT}.en.gz"}, 5000, lines),
        ("wmt16-en-de", {"en": f"{NEWS}/newstest2016.en.gz", "de": f"{NEWS}/newstest2016.de.gz"}, 2999, lines),
        ("wmt15-de-en", {"en": f"{NEWS}/newstest2015.en.gz", "de": f"{NEWS}/newstest2015.de.gz"}, 2169, lines),
        ("wmt22-de-en", {"de": f"{WMT22}.src.de.gz", "en": f"{WMT22}.ref.A.en.gz"}, 1984, lines),
        *((name, {"data": f"glue/{path}.tsv.gz"}, count, form) for name, (path, count, form) in GLUE.items()),
    ],
    ids=[
        *("squad", "policyqa", "samsum", "multi30k", "newstest2014", "tatoeba"),
        *("cnn-dailymail", "iwslt14", "newstest2016", "newstest2015", "wmt22", *GLUE),
    ],
)
def test_every_record_becomes_a_document_with_a_distinct_key(
    name: str, files: dict[str, str], count: int, form: Callable[[int], str], tmp_path: Path
) -> None:
    data_dir = REAL
    if not REAL.is_dir():
        data_dir = tmp_path
        for path in files.values():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(gzip.compress(form(count).encode(), 1))
    task = get_task(name)
    documents = task.load(Source("local", data_dir, tuple(files.items())), "test", None)
    assert len(documents) == len({document.key for document in documents}) == count
    assert all(task.score(document, task.target(document)).values[task.metrics[0]] > 0 for document in documents[:20])
