"""Data of the document browser: equal to the database, limited in size, reproducible, and safe for any text."""

import base64
import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from exitbench.reports.answers import document_choice
from exitbench.reports.answers.document_choice import choose
from exitbench.reports.answers.documents import documents_payload
from exitbench.reports.answers.packing import none_of, pack, planes_for, probabilities, quantised
from exitbench.reports.plotting.exit_colours import contrast, shades
from exitbench.results.analysis.traces import read_once, tokens, traced_runs
from exitbench.results.database.connection import Database, open_database
from exitbench.results.side_records.vocabularies import record_vocabulary

HOSTILE = ("</script><script>alert(1)</script>", "w" * 10_000, "\u202eevil\u0000\u001b[31m", "\U0001f525שלום")


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the header and the columns from which `pack` made `data`."""
    plain = gzip.decompress(data)
    end = 4 + int.from_bytes(plain[:4], "little")
    header = json.loads(plain[4:end])
    columns = {}
    for name, (offset, count, planes) in header.pop("columns").items():
        stored = np.frombuffer(plain, np.uint8, planes * count, end + offset).reshape(planes, count).astype(np.uint32)
        columns[name] = sum((stored[plane] << (8 * plane) for plane in range(planes)), np.zeros(count, np.uint32))
    return header, columns


def opened(payload: bytes) -> tuple[list[dict[str, Any]], list[tuple[dict[str, Any], dict[str, np.ndarray]]]]:
    """Return the groups listed in the payload's index, and the unpacked header and columns of each."""
    end = 4 + int.from_bytes(payload[:4], "little")
    groups = json.loads(gzip.decompress(payload[4:end]))["groups"]
    packs = [payload[end + group["offset"] : end + group["offset"] + group["length"]] for group in groups]
    return groups, [unpack(pack) for pack in packs]


@pytest.fixture(scope="module")
def payload(small_database: Path) -> bytes:
    with open_database(small_database) as database:
        built_payload = documents_payload(database)
        assert built_payload is not None
        assert documents_payload(database) == built_payload
    return built_payload


def test_read_once_caches_exactly_the_requested_tokens(small_database: Path) -> None:
    with open_database(small_database) as database:
        run, *other_runs = traced_runs(database)
        documents = database.rows("SELECT DISTINCT doc_key FROM token_exit ORDER BY 1")[1]
        (first,), (second,) = documents[:2]
        expected = tokens(database, [run.attempt_id], [first])
        with read_once(database, [run.attempt_id], [first]):
            assert tokens(database, [run.attempt_id], [first]).equals(expected)
            assert not tokens(database, [other_runs[0].attempt_id], [first]).num_rows
            assert not tokens(database, [run.attempt_id], [second]).num_rows
        assert tokens(database, [run.attempt_id], [second]).num_rows


def test_packed_tokens_equal_the_database(payload: bytes, small_database: Path) -> None:
    with open_database(small_database) as database:
        groups, packs = opened(payload)
        assert [(group["model"], group["task"]) for group in groups] == [("world-gpt", "squad"), ("world-t5", "squad")]
        for group, (header, columns) in zip(groups, packs, strict=True):
            packed, stored = _packed_tokens(group, header, columns), _stored_tokens(database, group)
            assert [row[:-1] for row in packed] == [row[:-1] for row in stored]
            assert [row[-1] for row in packed] == pytest.approx([row[-1] for row in stored], abs=1e-5, nan_ok=True)


def _packed_tokens(group: dict[str, Any], header: dict[str, Any], columns: dict[str, np.ndarray]) -> list[tuple]:
    place, token_rows = iter(range(len(columns["token"]))), []
    lengths = columns["length"].reshape(len(group["runs"]), len(group["documents"]))
    for run, named in enumerate(group["runs"]):
        for document, (_, key) in enumerate(group["documents"]):
            for position in range(1, lengths[run, document] + 1):
                n = next(place)
                text, reason = header["texts"][columns["token"][n]], header["reasons"][columns["reason"][n]]
                score = _unscaled(columns["score"][n], 2, header["score_range"][run])
                token_rows.append((named["cell"], key, position, text, int(columns["exit"][n]), reason, score))
    return sorted(token_rows, key=lambda row: row[:3])


def _unscaled(step: int, planes: int, ends: list[float]) -> float:
    none = none_of(planes)
    return np.nan if step == none else ends[0] + step / (none - 1) * (ends[1] - ends[0])


def _stored_tokens(database: Database, group: dict[str, Any]) -> list[tuple]:
    sql = """
        SELECT runs.cell_id, doc_key, position, token_id, exit_layer, reason, score
        FROM token_trace JOIN runs USING (attempt_id) WHERE kind = 'quality' AND runs.model = $model ORDER BY ALL
    """
    return [
        (
            *(
                row["cell_id"],
                row["doc_key"],
                row["position"],
                f" #{row['token_id']}",
                row["exit_layer"],
                row["reason"],
            ),
            np.nan if row["score"] is None else row["score"],
        )
        for row in database.query(sql, {"model": group["model"]}).to_pylist()
    ]


def test_packed_block_predictions_equal_the_probe(payload: bytes, small_database: Path) -> None:
    sql = "SELECT * FROM probe_trace WHERE model = 'world-t5' ORDER BY doc_key, position"
    with open_database(small_database) as database:
        rows = database.query(sql).to_pylist()
    groups, packs = opened(payload)
    header, columns = next(pack for group, pack in zip(groups, packs, strict=True) if group["model"] == "world-t5")
    blocks = groups[1]["blocks"]
    assert columns["first_match"].tolist() == [row["first_match"] for row in rows]
    for name in ("top1_id", "top2_id", "top3_id"):
        texts = [[header["texts"][place] for place in places] for places in columns[name].reshape(-1, blocks)]
        assert texts == [[f" #{token_id}" for token_id in row[name]] for row in rows]
    assert columns["rank_final"].reshape(-1, blocks).tolist() == [row["rank_final"] for row in rows]
    for name in ("p1", "p2", "p3", "p_final"):
        error = columns[name].reshape(-1, blocks) / 255 - np.array([row[name] for row in rows])
        assert np.abs(error).max() <= 1 / 510 + 1e-6


def test_recorded_gate_scores_are_packed(payload: bytes, small_database: Path) -> None:
    with open_database(small_database) as database:
        rows = database.query("SELECT score FROM score_trace WHERE model = 'world-t5' ORDER BY doc_key, position")
    stored = np.array(rows["score"].to_pylist())
    groups, packs = opened(payload)
    labels_with_gate = [
        run["label"] for run, gate in zip(groups[1]["runs"], packs[1][0]["gate"], strict=True) if gate is not None
    ]
    assert labels_with_gate == ["calm-softmax threshold=0.3"]
    (low, high), steps = packs[1][0]["gate_range"][0], packs[1][1]["gate0"].reshape(stored.shape)
    assert ((steps == 255) == np.isnan(stored)).all()
    error = np.where(steps == 255, 0, low + steps / 254 * (high - low) - np.nan_to_num(stored))
    assert np.abs(error).max() <= (high - low) / 254 / 2 + 1e-6


def test_documents_have_the_score_of_the_tasks_first_metric(payload: bytes, small_database: Path) -> None:
    groups, packs = opened(payload)
    with open_database(small_database) as database:
        rows = database.query("SELECT cell_id, doc_key, scores FROM sample JOIN attempt USING (attempt_id)")
    stored = {(row["cell_id"], row["doc_key"]): json.loads(row["scores"])["f1"] for row in rows.to_pylist()}
    for group, (header, columns) in zip(groups, packs, strict=True):
        assert header["metric"] == "f1"
        scores = columns["document_score"].reshape(len(group["runs"]), -1) / 100
        for run, named in enumerate(group["runs"]):
            for document, (_, key) in enumerate(group["documents"]):
                assert scores[run, document] == pytest.approx(stored[named["cell"], key], abs=0.005)


@pytest.fixture
def answers(world: Any) -> Any:
    """Return settings of synthetic data with quality and probe cells only."""
    omitted = {"timing", "replay", "failures", "scores", "fit", "calibration"}
    return replace(world, n_boot=2, omitted_kinds=frozenset(omitted))


def large(answers: Any, example: ModuleType) -> Any:
    """Return settings of synthetic data: 200 documents of 40 tokens by 10 methods."""
    levels = (0.2, 0.3, 0.4, 0.6, 0.8, 0.9)
    usual = {"min_exit": 1, "decay": "none"}
    return replace(
        answers,
        documents=200,
        tokens=40,
        vocabulary=32_000,
        kinds=answers.kinds * 8,
        models=(example.Model("deep", "causal", 24, 0),),
        swept=tuple(example.Method("calm-softmax", {"threshold": level, **usual}) for level in levels),
    )


def test_two_hundred_documents_by_ten_methods_fit_into_three_megabytes(
    example: ModuleType, answers: Any, make_database: Callable[[Any], Path]
) -> None:
    with open_database(make_database(large(answers, example))) as database:
        payload = documents_payload(database)
        assert payload is not None
        ((group,), _) = opened(payload)
        assert (len(group["documents"]), len(group["runs"])) == (200, 10)
        assert len(base64.b64encode(payload)) <= 3_000_000
        _fewer(database, group)


def _fewer(database: Database, everything: dict[str, Any]) -> None:
    """Check a smaller budget: fewer documents, spread over all exit depths, and full depth is kept."""
    payload = documents_payload(database, budget_bytes=200_000)
    assert payload is not None and len(payload) <= 200_000
    ((group,), _) = opened(payload)
    assert 5 <= len(group["documents"]) < 50 and group["of_documents"] == 200
    assert group["runs"][0]["full"] and group["of_runs"] == 10
    sql = "SELECT doc_key FROM token_exit GROUP BY ALL ORDER BY avg(exit_layer), doc_key"
    ranked = database.query(sql)["doc_key"].to_pylist()
    places = sorted(ranked.index(key) for _, key in group["documents"])
    assert places[0] == 0 and places[-1] == 199
    assert max(np.diff(places)) <= 2 * 199 / (len(places) - 1)
    assert all([ordinal, key] in everything["documents"] for ordinal, key in group["documents"])


def test_bundled_documents_span_the_depth_range_of_their_group(small_database: Path) -> None:
    sql = """
        SELECT doc_key FROM token_exit WHERE list_contains($attempts, attempt_id)
        GROUP BY ALL ORDER BY avg(exit_layer), doc_key
    """
    with open_database(small_database) as database:
        groups, ends = choose(database, budget_bytes=4_000), []
        for group in groups:
            ranked = database.query(sql, {"attempts": [run.attempt_id for run in group.runs]})["doc_key"].to_pylist()
            assert 2 <= len(group.bundled) < len(group.keys) == len(ranked)
            ends.append((ranked[0], ranked[-1]))
            assert set(ends[-1]) <= set(group.bundled_keys)
    assert len(set(ends)) == len(groups) == 2


def test_group_opens_on_its_recommended_run(small_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_database(small_database) as database:
        for place, group in enumerate(choose(database)):
            assert group.recommended is None  # few documents show nothing
            for best in group.runs[1:]:
                monkeypatch.setattr(document_choice, "recommended", lambda _, best=best: ["elsewhere", best.attempt_id])
                opened = choose(database)[place]
                assert opened.recommended == opened.runs[1] == best


def test_bundled_runs_do_not_depend_on_metric_direction(
    small_database: Path, as_errors: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_choice, "recommended", lambda _: [])
    retained = []
    for path in (small_database, as_errors(small_database)):
        with open_database(path) as database:
            retained.append([[run.cell_id for run in group.runs] for group in choose(database)])
    assert retained[0] == retained[1]


def test_token_texts_are_preserved_and_cannot_inject_markup(
    example: ModuleType, answers: Any, make_database: Callable[[Any], Path], tmp_path: Path
) -> None:
    texts = [HOSTILE[n % len(HOSTILE)] + str(n) for n in range(answers.vocabulary)]
    full = answers.cell(answers.models[0], answers.tasks[0], example.FULL, "quality")
    tokenizer = full["model"]["tokenizer_sha256"]
    record_vocabulary(tmp_path / "spool", tokenizer, texts, ())
    with open_database(make_database(answers)) as database:
        payload = documents_payload(database)
    assert payload is not None
    ((header, _),) = opened(payload)[1]
    assert set(header["texts"]) <= {f" {text}" for text in texts} and len(header["texts"]) > 50
    assert b"<" not in base64.b64encode(payload)


def test_empty_database_has_no_documents_payload(empty_database: Path) -> None:
    with open_database(empty_database) as database:
        assert documents_payload(database) is None


@pytest.mark.parametrize("blocks", [1, 2, 8, 24, 80])
def test_exit_layer_shades_are_readable_and_distinguishable(blocks: int) -> None:
    for dark in (False, True):
        colours = shades(blocks, dark=dark)
        assert len({shade.background for shade in colours}) == len(colours) == blocks
        assert all(contrast(shade.background, shade.text_colour) >= 4.5 for shade in colours)
        lightness = [contrast(shade.background, "#000000") for shade in colours]
        assert lightness == sorted(lightness, reverse=not dark)


def test_pack_round_trips_header_and_columns() -> None:
    columns = {"a": ([[0, 255], [256, 70_000]], 3), "none": ([], 2)}
    header, columns_read = unpack(pack({"text": "\ud800</script>"}, columns))
    assert header == {"text": "\ud800</script>"}
    assert columns_read["a"].tolist() == [0, 255, 256, 70_000] and columns_read["none"].tolist() == []
    assert [planes_for(n) for n in (0, 253, 254, 255, 65_534, 65_535)] == [1, 1, 1, 2, 2, 3]


def test_quantization_handles_non_finite_numbers() -> None:
    steps, ends = quantised([0.5, np.nan, -np.inf, 2.5], 1)
    assert (steps.tolist(), ends) == ([0, 255, 255, 254], [0.5, 2.5])
    assert quantised([np.nan], 1)[0].tolist() == [255] and quantised([7.0, 7.0], 1)[0].tolist() == [0, 0]
    assert probabilities([0, 1, 0.5, np.nan]).tolist() == [0, 255, 128, 0]
