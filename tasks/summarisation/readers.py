"""Original forms of data sets of summaries."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exitbench.tasks.archives import read_members
from exitbench.tasks.sources import member, read_json, require
from exitbench.tasks.tables import parse_json_lines, read_csv, read_json_lines


def read_dialogues(path: Path) -> list[dict[str, Any]]:
    """Read SAMSum's original form, a JSON list of objects with id, dialogue and summary.

    Raises:
        UserError: If a record has another form, naming the record and the key.
    """
    records = []
    for position, entry in enumerate(require(read_json(path), list, str(path))):
        where = f"{path}, [{position}]"
        record = require(entry, dict, where)
        records.append({name: member(record, name, str, where) for name in ("id", "dialogue", "summary")})
    return records


def read_dialogues_of_lines(path: Path) -> list[dict[str, Any]]:
    """Read DialogSum's original form: JSON lines of fname, dialogue, and summary, or summary1 (of three) in its test.

    Also the hub's CSV, with id, dialogue, summary, topic.

    Raises:
        UserError: If a record has another form, naming the record and the key.
    """
    if path.name.removesuffix(".gz").endswith(".csv"):
        rows, name = read_csv(path), "id"
    else:
        rows, name = read_json_lines(path), "fname"
    records = []
    for number, row in enumerate(rows, start=1):
        where = f"{path}, record {number}"
        summary = member(row, "summary1" if "summary1" in row else "summary", str, where)
        records.append({"id": member(row, name, str, where), "dialogue": member(row, "dialogue", str, where)})
        records[-1]["summary"] = summary
    return records


def read_articles(path: Path) -> list[dict[str, Any]]:
    """Read CNN/DailyMail as CSV with the columns article, highlights and id.

    Raises:
        UserError: If a column is missing.
    """
    fields = ("id", "article", "highlights")
    return [
        {name: member(row, name, str, f"{path}, record {number}") for name in fields}
        for number, row in enumerate(read_csv(path), start=1)
    ]


def read_patents(path: Path) -> list[dict[str, Any]]:
    """Read BigPatent's original form: JSON lines of publication_number, description and abstract, or a tar of such.

    Raises:
        UserError: If a record has another form, naming the record and the key.
    """
    return [
        {
            "id": member(row, "publication_number", str, where),
            "description": member(row, "description", str, where),
            "abstract": member(row, "abstract", str, where),
        }
        for row, where in _patents(path)
    ]


def _patents(path: Path) -> Iterator[tuple[Any, str]]:
    if not path.name.endswith((".tar", ".tar.gz", ".tgz")):
        yield from ((row, f"{path}, record {number}") for number, row in enumerate(read_json_lines(path), start=1))
        return
    for name, text in read_members(path, (".jsonl", ".json", ".gz")):
        where = f"{path}, {name}"
        rows = parse_json_lines(text, where)
        yield from ((row, f"{where}, record {number}") for number, row in enumerate(rows, start=1))
