"""Figures and tables of the natural-capability paper: queries compared with slow Python, and drawn marks."""

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import sqrt
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from intervals import T, half_of_share
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from print_rules import drawn

from exitbench.reports import figures, tables
from exitbench.reports.frame import NAMING_VIEWS, Frame, Row, computed_once
from exitbench.reports.plotting.style import MUTED
from exitbench.reports.registry import discover
from exitbench.results.database.connection import Database, open_database
from exitbench.results.files.formats import content_id
from exitbench.results.queries import saved_query

Rows = Callable[[Path, ModuleType, str], Frame]

VIEWS = (*NAMING_VIEWS, "metric_values", "objectives", "frontier", "published", "plain_probes")

LOSSES = {"world-t5": "last", "world-gpt": "weighted"}
SERIES = {"world-t5": "world-t5, last block", "world-gpt": "world-gpt, every block"}
TOKENS = 15  # more than a dozen: classes of positions are two wide
RECORDED = 3  # tokens of a document whose sub-layers are recorded
READ_OUTS = ("self-attention", "after-attention", "feed-forward", "block")
UNDRAWABLE = 7  # id of a token that the figures' font cannot spell
NO_TEXT = 5
TAGGED = 8  # tokens of an answer, the first
TAGS = ("NOUN", "PUNCT", "VERB")


def exits(method: Any, beliefs: Any) -> np.ndarray:
    """Return the exit layers under full depth, the oracle, and a gate whose score is the margin."""
    blocks = beliefs.margin.shape[1]
    leaves = {
        "full": np.zeros_like(beliefs.margin, bool),
        "oracle": beliefs.top1_id == beliefs.final_id[:, None],
        "max-prob": beliefs.margin >= method.params.get("threshold", 2),
    }[method.name]
    return np.where(leaves.any(axis=1), leaves.argmax(axis=1) + 1, blocks)


def swept(example: ModuleType) -> Any:
    """Return settings of synthetic data: a gate at three thresholds, each also replayed, and the oracle of first
    matches.
    """
    return replace(
        example.WORLD,
        tasks=example.TASKS[:1],
        tokens=TOKENS,
        kinds=example.KINDS * 3,
        methods=(example.FULL, example.Method("oracle", {"match": "first"})),
        swept=tuple(example.Method("max-prob", {"threshold": threshold}) for threshold in (0.4, 0.9, 0.999)),
        exit_rule=exits,
        omitted_kinds=frozenset({"scores", "fit", "calibration"}),
    )


def probed_again(example: ModuleType) -> Any:
    """Return the settings `swept` with a second probe by newer code, and a cell that recorded sublayers."""

    def write(world: Any, root: Path, model: Any, task: Any) -> None:
        full = world.cell(model, task, example.FULL, "quality")
        newer = world.cell(model, task, example.FULL, "probe", full["cell_id"], source="newer")
        world.write_probe(root, newer, world.beliefs(model, task))
        identity = {**newer["identity"], "record": {"what": ["sublayers"], "documents": 4}}
        recording = {**newer, "identity": identity, "cell_id": content_id(identity)}
        example.write_attempt(root, recording, {})

    return replace(swept(example), also=write)


@pytest.fixture(scope="module")
def database(example: ModuleType, database_of: Callable[[Any], Path]) -> Path:
    """Return a database of probes, gates and the oracle of two models, to which hand-written rows are added.

    These rows are about sublayers, pairs of blocks, spellings of tokens, and tags.
    """
    return completed(database_of(swept(example)))


@pytest.fixture(scope="module")
def probed_twice(example: ModuleType, database_of: Callable[[Any], Path]) -> Iterator[Database]:
    """Return the open database of `probed_again`; views that many queries read are computed once."""
    with open_database(completed(database_of(probed_again(example)))) as opened, computed_once(opened, VIEWS):
        yield opened


@pytest.fixture(scope="module")
def probed_once(database: Path) -> Iterator[Database]:
    """Return `database` opened; views that many queries read are computed once."""
    with open_database(database) as opened, computed_once(opened, VIEWS):
        yield opened


def completed(path: Path) -> Path:
    models = query_rows(
        path,
        "SELECT model AS name, attempt_id, tokenizer_sha256, blocks, full_depth_attempt_id FROM runs "
        "WHERE kind = 'probe' AND record IS NULL ORDER BY model, attempt_id",
    )
    documents = [row["doc_key"] for row in query_rows(path, "SELECT DISTINCT doc_key FROM probe_trace ORDER BY 1")]
    with duckdb.connect(path) as connection:

        def insert(table: str, rows: list[dict[str, Any]]) -> None:
            connection.register("given", pa.Table.from_pylist(rows))
            connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM given")

        for name, weights in connection.execute("SELECT name, weights_sha256 FROM model_artifact").fetchall():
            card = json.dumps({"recipe": {"objective": {"loss": LOSSES[name]}}})
            insert("training_run", [{"weights_sha256": weights, "recipe": "r", "card": card}])
        for model in models:
            insert("layer_pair", pairs(model["attempt_id"], documents[:4], model["blocks"]))
            insert("sublayer_token", sublayers(model["attempt_id"], documents[:4], model["blocks"]))
        for model in {model["name"]: model for model in models}.values():
            insert("token_text", spellings(model["tokenizer_sha256"]))
            insert("token_tag", tags(model["full_depth_attempt_id"], documents))
    return path


def spellings(tokenizer: str) -> list[dict[str, Any]]:
    return [
        {
            "tokenizer_sha256": tokenizer,
            "token_id": i,
            "text": token_text(i),
            "begins_word": None if i == NO_TEXT else i % 3 > 0,
        }
        for i in range(100)
    ]


def token_text(token_id: int) -> str:
    return "\U0001f980" if token_id == UNDRAWABLE else f"w{token_id}"


def pairs(attempt: str, documents: list[str], blocks: int) -> list[dict[str, Any]]:
    """Return rows for pairs of blocks: cosine and divergence follow from their distance and differ a little by
    document.
    """
    return [
        {
            "attempt_id": attempt,
            "doc_key": key,
            "block_a": a,
            "block_b": b,
            "cosine": 1 - abs(a - b) / 10 - place / 50,
            "jsd": abs(a - b) / 20,
            "n": 5 + place,
        }
        for place, key in enumerate(documents)
        for a in range(1, blocks + 1)
        for b in range(1, blocks + 1)
    ]


def sublayers(attempt: str, documents: list[str], blocks: int) -> list[dict[str, Any]]:
    """Return random read-outs for each part of each block."""
    rng = np.random.default_rng(blocks)
    return [
        {
            "attempt_id": attempt,
            "doc_key": key,
            "position": position,
            "token_id": 1,
            "block": block,
            "read_out": part,
            "top_ids": rng.choice(100, 10, replace=False).tolist(),
            "top_p": (np.sort(rng.random(10))[::-1] / 10).tolist(),
            "entropy": 1.5,
        }
        for key in documents
        for position in range(1, RECORDED + 1)
        for block in range(1, blocks + 1)
        for part in READ_OUTS
    ]


def tags(attempt: str, documents: list[str]) -> list[dict[str, Any]]:
    return [
        {"attempt_id": attempt, "doc_key": key, "position": i, "upos": TAGS[i % 3], "tagger": "tagger 1"}
        for key in documents
        for i in range(1, TAGGED + 1)
    ]


@pytest.fixture(scope="module")
def probed(database: Path) -> list[Row]:
    """Return every probed token."""
    return query_rows(
        database,
        "SELECT model, attempt_id, doc_key, position, token_id, first_match, p1, top1_id, top2_id, top3_id, p_final, "
        "full_token_id FROM probe_trace ORDER BY ALL",
    )


def query_rows(database: Path, sql: str) -> list[Row]:
    with open_database(database) as opened:
        return list(Frame.query(opened, sql).rows)


def mean_and_half(pairs: Iterable[tuple[str, float]]) -> tuple[float, float]:
    """Return the mean of the values, and half of its 95 % interval from residuals per document; a pair is (document,
    value).
    """
    sums, counts = defaultdict(float), defaultdict(int)
    for document, value in pairs:
        sums[document] += value
        counts[document] += 1
    total, n = sum(counts.values()), len(counts)
    mean = sum(sums.values()) / total
    spread = sum((sums[key] - mean * counts[key]) ** 2 for key in counts)
    half = T[n] / total * sqrt(n / (n - 1) * spread)
    return mean, half_of_share(mean, half, n) if all(0 <= sums[key] <= counts[key] for key in counts) else half


def of_model(rows: Iterable[Row], model: str) -> list[Row]:
    return [row for row in rows if row["model"] == model]


def by_document(rows: Iterable[Row], value: Callable[[Row], float]) -> list[tuple[str, float]]:
    return [(row["doc_key"], value(row)) for row in rows]


def figure_of(name: str, frame: Frame) -> Figure:
    return drawn(next(source.module for source in discover(figures) if source.name == name), frame)


def heights(axes: Iterable[Axes]) -> list[float]:
    """Return the y coordinates of all markers."""
    return [
        y for panel in axes for line in panel.lines if line.get_marker() not in ("None", "") for y in line.get_ydata()
    ]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def cells(name: str, row: Row) -> dict[str, str]:
    module = next(source.module for source in discover(tables) if source.name == name)
    return {column.heading: column.cell(row).text for column in module.COLUMNS}


def test_first_match_shares_and_mean_equal_plain_loops(database: Path, rows_of: Rows, probed: list[Row]) -> None:
    rows = rows_of(database, figures, "natcap_fig1_first_match")
    local_rows = [row for row in rows.rows if row["origin"] == "ours"]
    assert {(row["model"], row["series"]) for row in local_rows} == set(SERIES.items())
    for row in local_rows:
        tokens = of_model(probed, row["model"])
        share = mean_and_half(
            by_document(tokens, lambda token, block=row["block"]: float(token["first_match"] == block))
        )
        ideal = mean_and_half(by_document(tokens, lambda token: token["first_match"]))
        assert (row["share"], row["half_width"]) == pytest.approx(share, abs=1e-6)
        assert (row["ideal_exit"], row["ideal_half_width"]) == pytest.approx(ideal, abs=1e-6)
        assert (row["blocks"], row["n"]) == (len(tokens[0]["p1"]), len(tokens))
    published = [(row["ideal_exit"], row["blocks"]) for row in rows.rows if row["origin"] == "published"]
    assert sorted(published) == [(20.67, 32), (23.47, 40)]  # NarrativeQA, beside squad

    (axes,) = figure_of("natcap_fig1_first_match", rows).axes
    crosses = [x for line in axes.lines if line.get_marker() == "x" for x in line.get_xdata()]
    assert crosses == pytest.approx([23.47 / 40 * 6, 20.67 / 32 * 6])
    ideals = {row["ideal_exit"] for row in local_rows}
    (top,) = {y for line in axes.lines if line.get_marker() == "x" for y in line.get_ydata()}
    labelled_x = [x for line in axes.lines for x, y in zip(*line.get_data(), strict=True) if y == top]
    assert sorted(set(labelled_x) - set(crosses)) == sorted(ideals)
    assert [y for y in heights([axes]) if y != top] == [
        row["share"] for series in sorted(SERIES.values()) for row in local_rows if row["series"] == series
    ]


def test_example_is_the_most_confident_token_with_the_latest_first_match(
    database: Path, rows_of: Rows, probed: list[Row]
) -> None:
    rows = rows_of(database, figures, "natcap_fig2_hypotheses")
    figure = figure_of("natcap_fig2_hypotheses", rows)
    for axes, ((model,), part) in zip(figure.axes, rows.groups("model"), strict=True):
        tokens = of_model(probed, model)
        latest = max(token["first_match"] for token in tokens)
        late = [token for token in tokens if token["first_match"] == latest]
        token = min(
            late, key=lambda candidate: (-candidate["p_final"][-1], candidate["doc_key"], candidate["position"])
        )
        for row in part.rows:
            assert (row["doc_key"], row["position"]) == (token["doc_key"], token["position"])
            token_id = token[f"top{row['rank']}_id"][row["block"] - 1]
            assert (row["token_id"], row["is_final"]) == (token_id, token_id == token["full_token_id"])
            assert row["text"] == token_text(token_id)
        bold = [text for text in axes.texts if text.get_fontweight() == "bold"]
        assert len(bold) == sum(row["is_final"] for row in part.rows)
        assert len([text for text in axes.texts if text.get_text()[-5:-2] in (" 0.", " 1.")]) == len(part.rows)


def test_characters_missing_from_the_font_are_drawn_as_boxes(database: Path, rows_of: Rows) -> None:
    rows = rows_of(database, figures, "natcap_fig2_hypotheses")
    printable_rows = (
        {**row, "text": text} for row, text in zip(rows.rows, ["\U0001f980", "a\nb", "Ġc", None], strict=False)
    )
    words = " ".join(texts(figure_of("natcap_fig2_hypotheses", Frame(rows.columns, tuple(printable_rows)))))
    assert all(word in words for word in ("□ ", "a\\nb ", "▁c ", f"{rows.rows[3]['token_id']} "))


def gates(database: Path) -> dict[str, Row]:
    """Return each model's row with the lowest mean exit layer among thresholds that keep 98 % of full depth's score."""
    exits = query_rows(
        database,
        "SELECT * FROM frontier WHERE method = 'max-prob' AND execution = 'real' AND value >= 0.98 * full_value",
    )
    return {
        model: min(of_model(exits, model), key=lambda row: row["mean_exit_layer"])
        for model in {r["model"] for r in exits}
    }


def test_gate_is_shown_at_the_most_permissive_threshold_that_keeps_the_score(
    database: Path, rows_of: Rows, probed: list[Row]
) -> None:
    rows = rows_of(database, figures, "natcap_fig3_7_8_9_gates")
    chosen = gates(database)
    assert {r["model"]: r["params"] for r in rows.rows if r["method"] == "max-prob"} == {
        model: row["params"] for model, row in chosen.items()
    }
    assert {r["model"] for r in rows.rows if r["method"] == "oracle"} == set(LOSSES)
    ideal = {(token["model"], token["doc_key"], token["position"]): token["first_match"] for token in probed}
    for row in (row for row in rows.rows if row["method"] == "max-prob"):
        exits = query_rows(
            database,
            "SELECT model, doc_key, position, exit_layer FROM token_trace WHERE execution = 'simulated' "
            f"AND model = '{row['model']}' AND params = '{row['params']}'",
        )
        distance = by_document(
            exits,
            lambda exit_row: abs(
                exit_row["exit_layer"] - ideal[exit_row["model"], exit_row["doc_key"], exit_row["position"]]
            ),
        )
        assert (row["distance"], row["distance_half_width"]) == pytest.approx(mean_and_half(distance), abs=1e-6)
        mean_exit = np.mean([exit_row["exit_layer"] for exit_row in exits])
        assert row["simulated_speedup"] == pytest.approx(row["blocks"] / mean_exit, abs=1e-6)
        assert row["speedup"] == chosen[row["model"]]["speedup"]


def test_gates_may_increase_an_error_metric_by_at_most_2_percent(
    database: Path, as_errors: Callable[[Path], Path], rows_of: Rows
) -> None:
    rows = rows_of(as_errors(database), figures, "natcap_fig3_7_8_9_gates").rows
    assert rows and all(row["value"] <= 1.02 * row["full_value"] for row in rows if row["method"] != "oracle")


def test_simulated_gates_are_hollow_and_measured_ones_filled(database: Path, rows_of: Rows) -> None:
    rows = rows_of(database, figures, "natcap_fig3_7_8_9_gates")
    slow = Frame(rows.columns, tuple({**row, "inside_noise_floor": row["method"] == "oracle"} for row in rows.rows))
    panels = figure_of("natcap_fig3_7_8_9_gates", slow).axes
    titles = [axes.get_title(loc="left") for axes in panels[:2]]
    assert titles == ["without joint optimisation", "with joint optimisation"]
    distances = [row["distance"] for row in rows.rows if row["method"] == "max-prob"]
    assert sorted(heights(panels[:2])) == sorted(distances)
    fills = {
        value: line.get_markerfacecolor()
        for axes in panels[2:]
        for line in axes.lines
        if line.get_marker() not in ("None", "")
        for value in line.get_ydata()
    }
    for row in slow.rows:
        assert (fills[row["speedup"]] == MUTED) == row["inside_noise_floor"]
        assert row["simulated_speedup"] is None or fills[row["simulated_speedup"]] == "none"


def test_models_without_a_gate_keeping_98_percent_are_annotated(database: Path, rows_of: Rows) -> None:
    rows = rows_of(database, figures, "natcap_fig3_7_8_9_gates")
    oracles = Frame(rows.columns, tuple(row for row in rows.rows if row["method"] == "oracle"))
    assert sum("keeps 98 %" in text for text in texts(figure_of("natcap_fig3_7_8_9_gates", oracles))) == 2


def test_confidence_by_block_equals_plain_loops(database: Path, rows_of: Rows, probed: list[Row]) -> None:
    rows = rows_of(database, figures, "natcap_fig4_confidence")
    for row in rows.rows:
        tokens = by_document(of_model(probed, row["model"]), lambda token, block=row["block"]: token["p1"][block - 1])
        assert (row["mean"], row["half_width"]) == pytest.approx(mean_and_half(tokens), abs=1e-6)
    assert sorted(heights(figure_of("natcap_fig4_confidence", rows).axes)) == sorted(rows.values("mean"))


def test_ideal_exits_are_averaged_over_position_bins(database: Path, rows_of: Rows, probed: list[Row]) -> None:
    rows = rows_of(database, figures, "natcap_fig5_length")
    along = [row for row in rows.rows if row["measure"] == "position"]
    assert [row["x"] for row in of_model(along, "world-gpt")] == [1.5, 3.5, 5.5, 7.5, 9.5, 11.5, 13.5, 15.5]
    for row in rows.rows:
        tokens = of_model(probed, row["model"])
        if row["measure"] == "position":
            tokens = [token for token in tokens if abs(token["position"] - row["x"]) < 1]
        expected = mean_and_half(by_document(tokens, lambda token: token["first_match"]))
        assert (row["ideal_exit"], row["half_width"]) == pytest.approx(expected, abs=1e-6)
        assert row["n"] == len(tokens)
    assert {row["x"] for row in rows.rows if row["measure"] == "length"} == {15.5}  # all answers are 15 long
    assert sorted(heights(figure_of("natcap_fig5_length", rows).axes)) == sorted(rows.values("ideal_exit"))


def test_subword_exits_and_shares_equal_plain_loops(database: Path, rows_of: Rows, probed: list[Row]) -> None:
    rows = rows_of(database, figures, "natcap_fig11_subwords")
    assert len(rows.rows) == 4
    for row in rows.rows:
        later = row["part"] == "later piece"
        worded = [token for token in of_model(probed, row["model"]) if token["token_id"] != NO_TEXT]
        tokens = [token for token in worded if (token["token_id"] % 3 == 0) == later]
        expected = mean_and_half(by_document(tokens, lambda token: token["first_match"]))
        assert (row["ideal_exit"], row["half_width"]) == pytest.approx(expected, abs=1e-6)
        assert row["share"] == pytest.approx(len(tokens) / len(worded))
    exits, shares = figure_of("natcap_fig11_subwords", rows).axes
    assert sorted(x for line in exits.lines for x in line.get_xdata()) == sorted(rows.values("ideal_exit"))
    widths = [bar.get_width() for bar in shares.patches]
    assert sorted(widths) == sorted(row["share"] for row in rows.rows if row["part"] == "later piece")


def test_sublayer_statistics_equal_plain_loops(database: Path, rows_of: Rows) -> None:
    rows = rows_of(database, figures, "natcap_fig6_sublayers")
    read = query_rows(database, "SELECT * FROM sublayer_trace")
    final = {
        (r["model"], r["doc_key"], r["position"]): r["top_ids"][0]
        for r in sorted(read, key=lambda r: r["block"])
        if r["read_out"] == "block"
    }
    for row in rows.rows:
        part = [
            r for r in of_model(read, row["model"]) if (r["block"], r["read_out"]) == (row["block"], row["read_out"])
        ]
        p1 = mean_and_half(by_document(part, lambda token: token["top_p"][0]))
        equal = mean_and_half(
            by_document(
                part, lambda token: token["top_ids"][0] == final[token["model"], token["doc_key"], token["position"]]
            )
        )
        assert (row["probability"], row["probability_half_width"]) == pytest.approx(p1, abs=1e-6)
        assert (row["share"], row["share_half_width"]) == pytest.approx(equal, abs=1e-6)
    assert len(rows.rows) == (4 + 6) * len(READ_OUTS)
    figure = figure_of("natcap_fig6_sublayers", rows)
    assert len(heights(figure.axes)) == 2 * len(rows.rows)
    assert any("(blocks executed)" in text for text in texts(figure))


def test_sublayer_table_shows_one_token_per_model_with_its_top_predictions(database: Path, rows_of: Rows) -> None:
    rows = rows_of(database, tables, "natcap_table12_sublayers")
    read = query_rows(database, "SELECT * FROM sublayer_trace")
    for (model, key, position), part in rows.groups("model", "doc_key", "position"):
        shares_by_block = {
            (r["block"], r["read_out"]): r
            for r in of_model(read, model)
            if r["position"] == position and r["doc_key"] == key
        }
        assert len(part.rows) == len(shares_by_block)
        final = shares_by_block[max(shares_by_block)[0], "block"]["top_ids"][0]
        for row in part.rows:
            share = shares_by_block[row["block"], row["read_out"]]
            assert row["tokens"] == " ".join(map(token_text, share["top_ids"]))
            assert row["ids"] == " ".join(map(str, share["top_ids"]))
            assert row["final_rank"] == (share["top_ids"].index(final) + 1 if final in share["top_ids"] else None)
            assert row["probability"] == pytest.approx(share["top_p"][0])
    assert [row["read_out"] for row in rows.rows[:4]] == ["self-attention", "after-attention", "feed-forward", "block"]
    assert len({(row["model"], row["doc_key"], row["position"]) for row in rows.rows}) == 2


def test_layer_pair_similarities_equal_weighted_averages(database: Path, rows_of: Rows) -> None:
    rows = rows_of(database, figures, "natcap_fig10_layer_pairs")
    places = np.arange(4)
    for row in rows.rows:
        block_distance = abs(row["block_a"] - row["block_b"])
        cosine = np.average(1 - block_distance / 10 - places / 50, weights=5 + places)
        assert (row["cosine"], row["jsd"], row["n"]) == pytest.approx((cosine, block_distance / 20, 26), abs=1e-6)
    panels = [
        axes for axes in figure_of("natcap_fig10_layer_pairs", rows).axes if axes.images and axes.get_xlim()[0] == 0.5
    ]
    images = [np.asarray(axes.images[0].get_array()) for axes in panels]
    assert [image.shape[0] for image in images] == [4, 6, 4, 6]
    assert sum(image.sum() for image in images) == pytest.approx(sum(rows.values("cosine")) + sum(rows.values("jsd")))


def test_ideal_exit_table_lists_local_and_published_results(database: Path, rows_of: Rows, probed: list[Row]) -> None:
    name = "natcap_tables1_2_3_7_8_10_ideal_exit"
    rows = rows_of(database, tables, name).rows
    local_rows = [row for row in rows if row["printed_in"] == "here" and row["model"]]
    assert [(row["model"], row["training"]) for row in local_rows] == [
        ("world-gpt", "every block"),
        ("world-t5", "last block"),
    ]
    for row in local_rows:
        tokens = of_model(probed, row["model"])
        can, half = mean_and_half(by_document(tokens, lambda token: float(token["first_match"] < len(token["p1"]))))
        assert (row["can_exit"], row["can_exit_half_width"]) == pytest.approx((100 * can, 100 * half), abs=1e-5)
        ideal = mean_and_half(by_document(tokens, lambda token: token["first_match"]))
        assert (row["ideal_exit"], row["ideal_half_width"]) == pytest.approx(ideal, abs=1e-6)
        low, high = ideal[0] - ideal[1], ideal[0] + ideal[1]
        assert cells(name, row)["Ideal exit"] == f"{ideal[0]:.2f} [{low:.2f}, {high:.2f}]"
        assert row["score"].startswith("f1 ")
    assert rows[2]["data"] == "NarrativeQA"  # of the same kind as squad
    printed = {(row["printed_in"], row["data"], row["model"], row["training"]): row for row in rows}
    llama = printed["Table 1", "CNN/DM", "Llama-2-7b-chat (32)", "last block"]
    assert cells(name, llama) | {"Depth": "66%"} == cells(name, llama)
    assert (llama["ideal_exit"], llama["can_exit"], llama["score"]) == (
        21.11,
        94.83,
        "rouge1 20.39, rouge2 8.07, rougeL 19.76",
    )
    joint = printed["Table 10", "GLUE RTE", "BERT-base-uncased (12)", "every block"]
    assert (joint["ideal_exit"], joint["can_exit"]) == (1.62, 99.28)
    assert [row["kind"] for row in rows if row["data"] == "not measured here"] == [
        "classification (encoders)",
        "code and reasoning",
    ]
    assert all(row["parameters"] > 0 for row in local_rows)
    assert all(row["parameters"] is None for row in rows if row not in local_rows)


@pytest.mark.parametrize(
    ("task", "kind", "companion"),
    [
        ("lm-eval:gsm8k", "code and reasoning", "StrategyQA"),
        ("lm-eval:strategyqa_generate", "code and reasoning", "GSM8K"),
        ("lm-eval:narrativeqa", "question answering", "NarrativeQA"),
        ("cnn-dailymail", "summarisation", "CNN/DM"),
        ("iwslt14-de-en", "translation", "IWSLT14 DE-EN"),
    ],
)
def test_tasks_of_the_paper_are_grouped_by_kind(
    database: Path, rows_of: Rows, tmp_path: Path, task: str, kind: str, companion: str
) -> None:
    copy = Path(shutil.copy(database, tmp_path / "copy.duckdb"))
    with duckdb.connect(copy) as connection:
        connection.execute("UPDATE dataset_artifact SET task = ?", [task])
    rows = rows_of(copy, tables, "natcap_tables1_2_3_7_8_10_ideal_exit").rows
    assert {row["kind"] for row in rows if row["parameters"]} == {kind}
    assert companion in {row["data"] for row in rows if row["kind"] == kind and row["printed_in"] != "here"}
    missing = {row["kind"] for row in rows if row["data"] == "not measured here"}
    assert missing == {"classification (encoders)", "code and reasoning"} - {kind}


def test_ideal_gate_table_lists_oracle_runs_and_published_results(database: Path, rows_of: Rows) -> None:
    name = "natcap_table4_ideal_gate"
    rows = rows_of(database, tables, name).rows
    local_rows = [row for row in rows if row["printed_in"] == "here"]
    frontier = query_rows(database, "SELECT * FROM frontier WHERE method = 'oracle' ORDER BY model")
    assert [(row["speedup"], row["value"]) for row in local_rows] == [
        (row["speedup"], row["value"]) for row in frontier
    ]
    assert cells(name, local_rows[0])["Trained on"] == "every block"
    assert len(rows) - len(local_rows) == 28  # seven data sets, two encoders, two ways of training
    assert cells(name, {**local_rows[0], "inside_noise_floor": True})["Speed-up"].startswith("≈ ")
    assert cells(name, rows[-1]) | {"Speed-up": "2.94", "Score": "acc 94.04", "Δ": "–"} == cells(name, rows[-1])


def test_example_table_shows_one_document_with_the_exit_of_every_token(
    database: Path, rows_of: Rows, probed: list[Row]
) -> None:
    rows = rows_of(database, tables, "natcap_tables5_13_examples").rows
    (key,) = {row["doc_key"] for row in rows}
    assert key == min(token["doc_key"] for token in probed)
    ideal = next(row for row in rows if row["model"] == "world-t5" and row["run"].startswith("ideal"))
    tokens = [exit_token for exit_token in of_model(probed, "world-t5") if exit_token["doc_key"] == key]
    assert ideal["answer"] == " ".join(
        f"{token_text(exit_token['token_id'])}/{exit_token['first_match']}" for exit_token in tokens
    )
    assert [row["run"] for row in rows] == 2 * ["ideal exits of full depth", "real early exit, state-copy"]


def test_word_class_table_lists_local_and_published_exits(database: Path, rows_of: Rows, probed: list[Row]) -> None:
    rows = rows_of(database, tables, "natcap_tables6_11_word_classes").rows
    assert {row["upos"] for row in rows} == set(TAGS)
    for row in rows:
        tagged = [token for token in of_model(probed, row["model"]) if token["position"] <= TAGGED]
        tokens = [token for token in tagged if TAGS[token["position"] % 3] == row["upos"]]
        expected = mean_and_half(by_document(tokens, lambda token: token["first_match"]))
        assert (row["ideal_exit"], row["half_width"]) == pytest.approx(expected, abs=1e-6)
        assert row["frequency"] == pytest.approx(100 * len(tokens) / len(tagged), abs=1e-6)
    punctuation = next(row for row in rows if row["upos"] == "PUNCT")
    assert (punctuation["published_exit"], punctuation["published_frequency"]) == (26.77, 8.17)


def test_published_results_are_not_shown_without_local_probes(empty_database: Path, rows_of: Rows) -> None:
    for package in (figures, tables):
        for source in discover(package):
            if source.section == "natcap":
                assert rows_of(empty_database, package, source.name).rows == ()


@pytest.mark.parametrize(
    ("package", "name"),
    [
        *((figures, source.name) for source in discover(figures) if source.name.startswith("natcap_")),
        *((figures, name) for name in ("faithfulness", "prune_fig1_rank", "prune_fig2_3_margin")),
        (tables, "natcap_tables6_11_word_classes"),
    ],
)
def test_repeatedly_probed_documents_count_once(
    package: ModuleType, name: str, database: Path, probed_twice: Database, rows_of: Rows
) -> None:
    first_rows = rows_of(database, package, name)
    (sql,) = (source.sql for source in discover(package) if source.name == name)
    assert first_rows.rows
    assert Frame.query(probed_twice, sql).rows == first_rows.rows


@pytest.mark.parametrize(
    "name",
    [
        "near_ties",
        "oracle_far_below",
        "gap_reliability",
        "block_curves",
        "confidence_error_by_block",
        "signal_quality",
        "threshold_for_agreement",
        "threshold_replay",
    ],
)
def test_saved_queries_count_repeatedly_probed_documents_once(
    name: str, probed_once: Database, probed_twice: Database
) -> None:
    query = saved_query(name)
    answers = [it.query(query.sql, query.defaults or None).to_pylist() for it in (probed_once, probed_twice)]
    assert answers[0]
    assert answers[1] == [pytest.approx(row) for row in answers[0]]
