"""Document browser's data for an encoder: texts, true labels, predictions by block, and the runs that evaluated a
block.
"""

import base64
import gzip
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from exitbench.reports.answers.answer import find_answers
from exitbench.reports.answers.documents import documents_payload
from exitbench.reports.answers.packing import none_of
from exitbench.reports.material import read_material
from exitbench.reports.page import page
from exitbench.reports.tables.columns import fill
from exitbench.results.database.connection import open_database

HOSTILE = ("</script><script>alert(1)</script>", "\u202eevil\u0000\u001b[31m", "{{ 7 * 7 }}", "'\" onload=alert(1) x=")


def unpacked(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, np.ndarray]]:
    """Return the index entry, the header and the columns of the only group of answers."""
    with open_database(path) as database:
        payload = documents_payload(database)
        assert payload is not None and documents_payload(database) == payload
    end = 4 + int.from_bytes(payload[:4], "little")
    (entry,) = json.loads(gzip.decompress(payload[4:end]))["groups"]
    plain = gzip.decompress(payload[end:])
    end = 4 + int.from_bytes(plain[:4], "little")
    header = json.loads(plain[4:end])
    columns = {}
    for name, (offset, count, planes) in header.pop("columns").items():
        stored = np.frombuffer(plain, np.uint8, planes * count, end + offset).reshape(planes, count).astype(np.uint32)
        columns[name] = sum((stored[plane] << (8 * plane) for plane in range(planes)), np.zeros(count, np.uint32))
    return entry, header, columns


@pytest.fixture(scope="module")
def classified(classified_example: ModuleType, example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a read-only database of classified texts."""
    return Path(classified_example.classified_database(example, tmp_path_factory.mktemp("classified")))


@pytest.fixture(scope="module")
def payload(classified: Path) -> Any:
    return unpacked(classified)


def test_texts_and_true_labels_are_packed_by_document(payload: Any, classified_example: ModuleType) -> None:
    entry, header, _ = payload
    texts, labels = classified_example.TEXTS, classified_example.LABELS
    assert entry["classifies"] and [key for _, key in entry["documents"]] == list(map(classified_example.key, range(8)))
    assert header["inputs"] == list(texts) and header["texts"] == list(labels) and not header["is_number"]
    assert header["golds"] == [labels[classified_example.gold(n, texts, labels)] for n in range(8)]


def test_predictions_are_packed_for_blocks_evaluated_by_any_run(payload: Any, classified_example: ModuleType) -> None:
    """Runs with a threshold evaluate the gate at blocks 1 and 2, full depth reads block 4, and no run evaluates
    block 3.
    """
    entry, header, columns = payload
    labels, values = (columns[name].reshape(8, 4) for name in ("label", "value"))
    low, high = header["value_range"]
    for n in range(8):
        for block in (1, 2, 4):
            assert labels[n, block - 1] == classified_example.reported_value(n, block, classified_example.LABELS)
            step = values[n, block - 1] / (none_of(2) - 1)
            assert low + step * (high - low) == pytest.approx((block + 4) / 8, abs=1e-5)
        assert labels[n, 2] == none_of(1) and values[n, 2] == none_of(2)
    evaluated = columns["asked"].reshape(len(entry["runs"]), 8, 4)
    for run, named in enumerate(entry["runs"]):
        level = None if named["full"] else named["threshold"][0]
        wanted = {None: [0, 0, 0, 2], 0.6: [2, 0, 0, 0], 0.7: [1, 2, 0, 0]}[level]
        assert evaluated[run].tolist() == [wanted] * 8
        scores = columns["score"].reshape(len(entry["runs"]), 8, 4)[run] != none_of(2)
        assert scores.tolist() == [[block > 0 and level is not None for block in wanted]] * 8
        answers = columns["token"].reshape(len(entry["runs"]), 8)[run]
        exit_layer = classified_example.EXITS[level]
        assert columns["exit"].reshape(-1, 8)[run].tolist() == [exit_layer] * 8
        assert answers.tolist() == [classified_example.reported_value(n, exit_layer, header["texts"]) for n in range(8)]


def test_regression_predictions_are_numbers_without_labels(
    classified_example: ModuleType, example: ModuleType, tmp_path: Path
) -> None:
    entry, header, columns = unpacked(classified_example.classified_database(example, tmp_path, labels=None))
    assert header["is_number"] and (columns["label"] == none_of(1)).all()
    full = next(n for n, run in enumerate(entry["runs"]) if run["full"])
    texts = [header["texts"][place] for place in columns["token"].reshape(-1, 8)[full]]
    assert texts == [str(n % 5) for n in range(8)] and header["golds"][0] == "0"
    low, high = header["value_range"]
    first = low + columns["value"].reshape(8, 4)[0, 0] / (none_of(2) - 1) * (high - low)
    assert first == pytest.approx(0.3, abs=1e-4)


def test_hostile_texts_are_not_rendered_as_markup(
    classified_example: ModuleType, example: ModuleType, tmp_path: Path
) -> None:
    path = classified_example.classified_database(example, tmp_path, HOSTILE, HOSTILE[:3])
    _, header, _ = unpacked(path)
    assert header["inputs"] == list(HOSTILE) and header["texts"] == list(HOSTILE[:3])
    material = read_material(path)
    html = page(material, (), [fill(source, frame) for source, frame in material.tables])
    assert not any(text in html for text in HOSTILE)
    (packed,) = re.findall('id="documents-data">(.+?)</script>', html)
    assert base64.b64decode(packed, validate=True)


def test_terminal_answers_show_labels_instead_of_tokens(classified: Path) -> None:
    with open_database(classified) as database:
        (answer,) = find_answers(database, ["*threshold=0.6*"], "4")
    assert answer.texts[answer.ids[0]] == "positive" and answer.full_text(0) == "negative" and answer.differs(0)
