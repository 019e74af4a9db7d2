"""Figures and table on monotone confidence: queries compared with NumPy over the same probes, and drawn marks."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest
from intervals import T, half_of_share
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from print_rules import drawn

from exitbench.reports import figures, tables
from exitbench.reports.figures.mee import (
    filter_origin,
    mee_appendix_similarity,
    mee_fig1_no_change,
    mee_fig3_trajectories,
)
from exitbench.reports.frame import Frame
from exitbench.reports.labels import shorten
from exitbench.reports.plotting.style import MUTED, series_styles
from exitbench.reports.registry import discover
from exitbench.results.spool.schema import TABLES
from exitbench.results.statistics.stability import stability

Rows = Callable[[Path, ModuleType, str], Frame]

DEPTHS = {"deep": 12, "flat": 4}
DOCUMENTS = 9
VOCABULARY = 50


@dataclass(frozen=True)
class Probed:
    """Random probe columns of one model, [N, L]: best token ids and probabilities, the final token's, and cosines."""

    doc_key: list[str]
    position: list[int]
    signals: Mapping[str, np.ndarray]
    stable_from: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        settled = np.logical_and.accumulate(self.agrees[:, ::-1], axis=1)[:, ::-1]
        object.__setattr__(self, "stable_from", settled.argmax(1) + 1)

    @property
    def agrees(self) -> np.ndarray:
        top1 = self.signals["top1_id"]
        return top1 == top1[:, -1:]

    def table(self) -> pa.Table:
        final = self.signals["top1_id"][:, -1]
        n, blocks = self.agrees.shape
        zeros = np.zeros((n, blocks))
        names = [field.name for field in TABLES["probe"] if pa.types.is_list(field.type) and not field.nullable]
        lists = {name: self.signals.get(name, zeros) for name in names}
        return pa.table(
            {
                "doc_key": self.doc_key,
                "position": self.position,
                "token_id": final,
                "full_token_id": final,
                "gold_token_id": final,
                "token_kind": ["copy"] * n,
                "first_match": self.agrees.argmax(1) + 1,
                "stable_from": self.stable_from,
                **stability(lists["p_final"], lists["cosine_last"]),
                **{name: values.tolist() for name, values in lists.items()},
            }
        )


def make_probed(blocks: int, seed: int) -> Probed:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, DOCUMENTS)
    n = int(lengths.sum())
    ranked = np.argsort(rng.random((n, blocks, VOCABULARY)), axis=2)[..., :3]
    ranked[:, -3:, 0] = np.where(rng.random((n, 3)) < 0.7, ranked[:, -1:, 0], ranked[:, -3:, 0])
    shares = np.sort(rng.dirichlet(np.ones(4), (n, blocks))[..., :3], axis=2)[..., ::-1]
    p_final = np.where(ranked[..., 0] == ranked[:, -1:, 0], shares[..., 0] ** 0.2, 0.01 * rng.random((n, blocks)))
    # The mean differs between documents, so that there are easy and difficult ones.
    easier = np.repeat(rng.random(DOCUMENTS), lengths)[:, None]
    steps = np.arange(1, blocks + 1) / blocks
    cosine = np.minimum(1, 0.6 * steps**0.3 + 0.25 * easier + 0.1 * rng.random((n, blocks)))
    cosine[:, -1] = 1
    return Probed(
        [f"doc{i}" for i, length in enumerate(lengths) for _ in range(length)],
        [position for length in lengths for position in range(1, length + 1)],
        {
            **{f"top{place + 1}_id": ranked[..., place] for place in range(3)},
            **{f"p{place + 1}": shares[..., place].astype(np.float32) for place in range(3)},
            "p_final": p_final.astype(np.float32),
            "cosine_last": cosine.astype(np.float32),
        },
    )


MODELS = {name: make_probed(blocks, seed) for seed, (name, blocks) in enumerate(DEPTHS.items())}


@pytest.fixture
def make_database(tmp_path: Path, example: ModuleType) -> Callable[..., Path]:
    """Return a function that builds a database of probes only; each argument maps names of models to their probes."""
    return lambda *runs: database_of(tmp_path, example, *runs)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, example: ModuleType) -> Path:
    """Return the read-only database of the probes in `MODELS`."""
    return database_of(tmp_path_factory.mktemp("probes"), example, MODELS)


def database_of(folder: Path, example: ModuleType, *runs: Mapping[str, Probed]) -> Path:
    for place, run in enumerate(runs):
        for name, probed in run.items():
            model = example.Model(name, "causal", probed.agrees.shape[1], 0)
            full = example.cell_json(model, example.TASKS[0], example.FULL, "quality")
            setting = {"source": str(place), "documents": len(set(probed.doc_key))}
            cell = example.cell_json(model, example.TASKS[0], example.FULL, "probe", full["cell_id"], **setting)
            example.write_attempt(folder / "spool", cell, {"probe": probed.table().to_pylist()})
    return Path(example.ingested(folder))


def by_model_and_block(frame: Frame, name: str, tolerance: float = 0) -> dict[tuple[str, int], float]:
    rows = filter_origin(frame, "ours").rows
    return {(row["model"], row["block"]): row[name] for row in rows if row.get("tolerance", 0) == tolerance}


def half_width(probed: Probed, values: np.ndarray) -> np.ndarray:
    """Return half the 95 % interval of the mean of `values` [N, ..] over tokens, which are clustered by document."""
    keys = sorted(set(probed.doc_key))
    inside = np.array([[key == other for other in probed.doc_key] for key in keys], float)
    deviation = inside @ (values.astype(float) - values.astype(float).mean(axis=0))
    n = len(keys)
    halves = T[n] * np.sqrt(n / (n - 1) * (deviation**2).sum(axis=0)) / len(values)
    sums, means = inside @ values, values.mean(axis=0)
    shares = ((sums >= 0) & (sums <= inside.sum(axis=1).reshape(-1, *[1] * (values.ndim - 1)))).all(axis=0)
    parts = zip(np.ravel(means), np.ravel(halves), np.ravel(shares), strict=True)
    return np.reshape([half_of_share(mean, half, n) if share else half for mean, half, share in parts], np.shape(means))


def expected_by_block(values: Callable[[Probed], np.ndarray]) -> dict[tuple[str, int], float]:
    """Return what `values` computes for each block, by model and block."""
    return {(name, i + 1): value for name, probed in MODELS.items() for i, value in enumerate(values(probed))}


def unchanged(probed: Probed) -> np.ndarray:
    """Return whether a token's prediction stays from a block on [N, L]."""
    return np.array([probed.agrees[:, block:].all(axis=1) for block in range(probed.agrees.shape[1])]).T


def monotone(probed: Probed) -> np.ndarray:
    """Return whether a token's probability falls at no later block [N, L]."""
    rises = np.diff(probed.signals["p_final"], axis=1) >= 0
    return np.array([rises[:, block:].all(axis=1) for block in range(rises.shape[1] + 1)]).T


def nearly_monotone(probed: Probed) -> np.ndarray:
    """Return whether a token's probability falls by at most 0.01 in total after a block [N, L]."""
    p_NL = probed.signals["p_final"].astype(float)
    fall_NL = p_NL - np.minimum.accumulate(p_NL[:, ::-1], axis=1)[:, ::-1]
    return np.array([(fall_NL[:, block:] <= 0.01).all(axis=1) for block in range(p_NL.shape[1])]).T


def test_no_change_and_monotone_shares_and_intervals_equal_numpy(database: Path, rows_of: Rows) -> None:
    for name, holds, tolerance in (
        ("mee_fig1_no_change", unchanged, 0),
        ("mee_unpublished_monotone_confidence", monotone, 0),
        ("mee_unpublished_monotone_confidence", nearly_monotone, 0.01),
    ):
        rows = rows_of(database, figures, name)
        shares = expected_by_block(lambda probed, holds=holds: holds(probed).mean(axis=0))  # type: ignore[misc]
        halves = expected_by_block(lambda probed, holds=holds: half_width(probed, holds(probed)))  # type: ignore[misc]
        assert by_model_and_block(rows, "share", tolerance) == pytest.approx(shares)
        assert by_model_and_block(rows, "half_width", tolerance) == pytest.approx(halves, abs=1e-9)
        assert {row["model"]: row["n"] for row in filter_origin(rows, "ours").rows} == {
            model: len(probed.position) for model, probed in MODELS.items()
        }


def test_probe_with_the_most_documents_is_used(make_database: Callable[..., Path], rows_of: Rows) -> None:
    deep = {"deep": MODELS["deep"]}
    database = make_database(deep, {"deep": of_documents(MODELS["deep"], ["doc0", "doc1"])})
    for name in ("mee_fig1_no_change", "mee_fig2_final_confidence", "mee_unpublished_monotone_confidence"):
        assert set(filter_origin(rows_of(database, figures, name), "ours").values("n")) == {
            len(MODELS["deep"].position)
        }
    similarity = rows_of(database, figures, "mee_appendix_similarity")
    assert similarity.distinct("documents") == [DOCUMENTS // 4]
    assert rows_of(database, tables, "mee_table1_easy_difficult").rows[0]["n"] == DOCUMENTS // 4


def test_published_curves_are_those_of_twelve_blocks(database: Path, rows_of: Rows) -> None:
    tick = {"mee_fig1_no_change": ("share", 0.75), "mee_fig2_final_confidence": ("mean", 0.48)}
    for name, (column, value) in {**tick, "mee_unpublished_monotone_confidence": ("share", 0.23)}.items():
        printed = filter_origin(rows_of(database, figures, name), "published")
        assert printed.distinct("model") == ["CALM", "FREE", "vanilla"]
        assert {row[column] for row in printed.rows if (row["model"], row["block"]) == ("CALM", 2)} == {value}
        assert printed.distinct("blocks") == [12]


def test_constant_probability_counts_as_monotone(make_database: Callable[..., Path], rows_of: Rows) -> None:
    p_final = np.array([[0.2, 0.2, 0.3, 0.3], [0.2, 0.1, 0.1, 0.4], [0.1, 0.2, 0.5, 0.4]], np.float32)
    top1 = np.ones((3, 4), int)
    probes = {"m": Probed(["a", "a", "b"], [1, 2, 1], {"top1_id": top1, "p_final": p_final})}
    rows = rows_of(make_database(probes), figures, "mee_unpublished_monotone_confidence")
    assert [*by_model_and_block(rows, "share").values()] == pytest.approx([1 / 3, 2 / 3, 2 / 3, 1])


def test_mean_and_standard_deviation_of_final_confidence_equal_numpy(database: Path, rows_of: Rows) -> None:
    rows = rows_of(database, figures, "mee_fig2_final_confidence")
    for column, statistic in (("mean", np.mean), ("std", np.std)):
        expected = expected_by_block(
            lambda probed, statistic=statistic: statistic(probed.signals["p_final"].astype(float), axis=0)
        )  # type: ignore[misc]
        assert by_model_and_block(rows, column) == pytest.approx(expected, abs=1e-6)
    halves = expected_by_block(lambda probed: half_width(probed, probed.signals["p_final"]))
    assert by_model_and_block(rows, "half_width") == pytest.approx(halves, abs=1e-6)


def latest(probed: Probed) -> int:
    """Return the index of the token whose final prediction appears latest; ties go to the most confident one."""
    first_match = probed.agrees.argmax(1)
    return max(range(len(first_match)), key=lambda i: (first_match[i], probed.signals["p_final"][i, -1]))


def test_trajectory_shows_the_most_confident_token_with_the_latest_first_match(database: Path, rows_of: Rows) -> None:
    rows = rows_of(database, figures, "mee_fig3_trajectories")
    for (model,), part in rows.groups("model"):
        probed = MODELS[model]
        token = latest(probed)
        assert {(row["doc_key"], row["position"]) for row in part.rows} == {
            (probed.doc_key[token], probed.position[token])
        }
        blocks = probed.agrees.shape[1]
        final = probed.signals["top1_id"][token, -1]
        expected = {(final, block + 1): probed.signals["p_final"][token, block] for block in range(blocks)}
        for block in range(blocks):
            for place in (1, 2, 3):
                candidate, p = probed.signals[f"top{place}_id"][token, block], probed.signals[f"p{place}"][token, block]
                if candidate != final and p > 0.1:
                    expected[candidate, block + 1] = p
        assert {(row["candidate_id"], row["block"]): row["probability"] for row in part.rows} == expected
        assert {row["candidate_id"] for row in part.rows if row["is_final"]} == {final}


def test_candidate_texts_are_shortened_in_the_legend(database: Path, rows_of: Rows) -> None:
    rows = rows_of(database, figures, "mee_fig3_trajectories")
    assert rows.distinct("candidate") == [None], "no tokenizer is recorded"
    with_long_texts = Frame(
        rows.columns, tuple({**row, "candidate": f"_{row['candidate_id']}" * 9} for row in rows.rows)
    )
    final = with_long_texts.rows[0]["candidate_id"]
    legend = drawn(mee_fig3_trajectories, with_long_texts).axes[0].get_legend()
    assert legend is not None
    assert legend.get_texts()[0].get_text().strip() == f"{shorten(f'_{final}' * 9, 12)}, final"
    assert legend.get_title().get_text() == "token"


def quarters(probed: Probed) -> dict[str, list[str]]:
    """Return the easiest and the most difficult quarter of the documents, by their mean cosine to the last block's
    state.
    """
    s, keys = probed.signals["cosine_last"][:, :-1], np.array(probed.doc_key)
    order = sorted(set(probed.doc_key), key=lambda key: -s[keys == key].astype(float).mean())
    quarter = len(order) // 4
    return {"easy": order[:quarter], "difficult": order[-quarter:]}


def of_documents(probed: Probed, documents: list[str]) -> Probed:
    """Return the probes of some documents only."""
    selected = np.isin(probed.doc_key, documents)
    return Probed(
        list(np.array(probed.doc_key)[selected]),
        list(np.array(probed.position)[selected]),
        {name: values[selected] for name, values in probed.signals.items()},
    )


def test_similarity_curves_of_easy_and_difficult_documents_equal_numpy(database: Path, rows_of: Rows) -> None:
    rows = rows_of(database, figures, "mee_appendix_similarity")
    for (model, name), part in rows.groups("model", "class"):
        of_class = of_documents(MODELS[model], quarters(MODELS[model])[name])
        cosine = of_class.signals["cosine_last"].astype(float)
        assert part.values("block") == list(range(1, DEPTHS[model] + 1))
        assert part.values("cosine") == pytest.approx(cosine.mean(axis=0), abs=1e-6)
        assert part.values("half_width") == pytest.approx(half_width(of_class, cosine), abs=1e-6)
        assert part.distinct("documents") == [DOCUMENTS // 4]
    panels = drawn(mee_appendix_similarity, rows).axes
    for axes, ((_,), part) in zip(panels, rows.groups("model"), strict=True):
        curves = {line.get_color(): list(line.get_ydata()) for line in axes.lines if len(line.get_ydata()) > 2}
        assert curves == {
            colour: [row["cosine"] for row in part.rows if row["class"] == name]
            for name, colour in (("easy", "#009E73"), ("difficult", "#0072B2"))
        }


def test_statistics_of_easy_and_difficult_documents_equal_numpy(database: Path, rows_of: Rows) -> None:
    *rows, easy, difficult = rows_of(database, tables, "mee_table1_easy_difficult").rows
    assert [(row["first_similar_mean"], row["grows_after_sixth"], row["n"]) for row in (easy, difficult)] == [
        (8.65, 0.78, 1000),
        (18.46, 0.97, 1000),
    ]
    assert [(row["model"], row["class"]) for row in rows] == [
        (model, name) for model in DEPTHS for name in ("easy", "difficult")
    ]
    for row in rows:
        probed, blocks = MODELS[row["model"]], DEPTHS[row["model"]]
        documents = quarters(probed)[row["class"]]
        s = probed.signals["cosine_last"][np.isin(probed.doc_key, documents)][:, :-1]
        similar = s >= 0.9
        first = np.where(similar.any(axis=1), similar.argmax(axis=1) + 1, blocks)
        lengths = [probed.doc_key.count(key) for key in documents]
        for name, values in (("first_similar", first), ("similar", similar.sum(axis=1)), ("length", lengths)):
            stored = (row[f"{name}_mean"], row[f"{name}_std"])
            assert stored == pytest.approx((np.mean(values), np.std(values)), abs=1e-6)
        after = {"grows": 0, "grows_after_sixth": round(blocks / 6), "grows_after_third": round(blocks / 3)}
        for name, omitted in after.items():
            assert row[name] == pytest.approx(np.mean((np.diff(s[:, omitted:], axis=1) > 0).all(axis=1)))
            selected_probes = of_documents(probed, documents)
            grown = (np.diff(selected_probes.signals["cosine_last"][:, omitted:-1], axis=1) > 0).all(axis=1)
            assert row[f"{name}_half"] == pytest.approx(half_width(selected_probes, grown), abs=1e-9)
        assert (row["sixth"], row["third"]) == tuple(after.values())[1:]
        assert (row["n"], row["tokens"]) == (len(documents), len(s))


def test_growth_is_judged_after_a_sixth_and_a_third_of_the_blocks(
    make_database: Callable[..., Path], rows_of: Rows
) -> None:
    blocks, grows_from = 12, [3, 4, 1, 1, 1, 1, 5, 6]
    s = np.tile(0.01 * np.arange(blocks), (len(grows_from), 1)) + 0.8 - 0.1 * np.arange(len(grows_from))[:, None]
    for token, block in enumerate(grows_from):
        if block > 1:
            s[token, block - 1] = s[token, block - 2]
    s[:, -1] = 1
    top1 = np.ones((len(grows_from), blocks), int)
    probes = {"m": Probed(list("abcdefgh"), [1] * 8, {"top1_id": top1, "cosine_last": s})}
    easy, difficult = filter_origin(rows_of(make_database(probes), tables, "mee_table1_easy_difficult"), "ours").rows
    names = ("grows", "grows_after_sixth", "grows_after_third")
    assert [easy[name] for name in names] == [0, 0.5, 1]
    assert [difficult[name] for name in names] == [0, 0, 0.5]
    # standing still is no fall
    assert [[row[f"nearly_{name}"] for name in names] for row in (easy, difficult)] == [[1, 1, 1]] * 2
    assert easy["tolerance"] == 0.01


def test_table_shows_standard_deviation_and_skipped_blocks(database: Path, rows_of: Rows) -> None:
    module = next(source.module for source in discover(tables) if source.name == "mee_table1_easy_difficult")
    row = {
        **rows_of(database, tables, "mee_table1_easy_difficult").rows[0],
        **{"similar_mean": 2.5, "similar_half": 0.25, "similar_std": 1.0},
        **{"grows_after_sixth": 0.5, "grows_after_sixth_half": 0.125},
    }
    texts = {column.heading: column.cell(row).text for column in module.COLUMNS}
    assert texts["Similar"] == "2.50 ± 0.25 (1.00)"
    assert texts["Growing after L/6"] == "50.0 ± 12.5 % (after 2)"
    assert texts["Growing after L/3"].endswith("(after 4)")


def test_table_omits_the_interval_when_all_documents_agree(database: Path, rows_of: Rows) -> None:
    module = next(source.module for source in discover(tables) if source.name == "mee_table1_easy_difficult")
    row = {**rows_of(database, tables, "mee_table1_easy_difficult").rows[0], "grows": 1.0, "grows_half": 0.0}
    assert "100.0 %" in [column.cell(row).text for column in module.COLUMNS]


@pytest.fixture(scope="module")
def figure_of(database: Path, rows_of: Rows) -> Callable[[str], Figure]:
    """Return a function that returns a figure of `database` by its name; it is drawn once, and only read."""
    modules = {source.name: source.module for source in discover(figures)}
    return cache(lambda name: drawn(modules[name], rows_of(database, figures, name)))


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("mee_fig1_no_change", "share"),
        ("mee_unpublished_monotone_confidence", "share"),
        ("mee_fig2_final_confidence", "mean"),
    ],
)
def test_each_model_is_one_line_in_its_colour(
    name: str, column: str, database: Path, rows_of: Rows, figure_of: Callable[[str], Figure]
) -> None:
    rows = rows_of(database, figures, name)
    panels = figure_of(name).axes
    styles = series_styles(DEPTHS)
    local_lines = [line for axes in panels for line in axes.lines if line.get_marker() != "x"]
    lines = {
        (line.get_color(), line.get_marker(), line.get_linestyle()): list(line.get_ydata()) for line in local_lines
    }
    drawn_as = {None: "-", 0: "-", 0.01: "--"}
    expected: dict[tuple[str, str, str], list[float]] = {}
    for row in filter_origin(rows, "ours").rows:
        style = styles[row["model"]]
        expected.setdefault((style.colour, style.marker, drawn_as[row.get("tolerance")]), []).append(row[column])
    assert lines == expected
    assert len(lines) == len(DEPTHS) * (1 + ("tolerance" in rows.columns))


def test_published_curves_are_grey_labeled_and_scaled_to_relative_depth(
    database: Path, rows_of: Rows, figure_of: Callable[[str], Figure]
) -> None:
    rows = rows_of(database, figures, "mee_fig1_no_change")
    (axes,) = figure_of("mee_fig1_no_change").axes
    curves = {line.get_color(): len(line.get_ydata()) for line in axes.lines if line.get_marker() == "x"}
    assert curves == {MUTED: 12}
    shallow = Frame(rows.columns, tuple(row for row in rows.rows if row["model"] != "deep"))
    (axes,) = drawn(mee_fig1_no_change, shallow).axes
    (calm, *_) = [line for line in axes.lines if line.get_marker() == "x"]
    np.testing.assert_allclose(calm.get_xdata(), DEPTHS["flat"] * np.arange(1, 13) / 12)
    assert {"CALM", "FREE", "vanilla"} <= {text.get_text() for text in axes.texts}


def test_labels_of_published_curves_overlap_no_line(figure_of: Callable[[str], Figure]) -> None:
    (axes,) = figure_of("mee_fig1_no_change").axes
    names = [text for text in axes.texts if text.get_text() in ("CALM", "FREE", "vanilla")]
    assert len(names) == 3
    for name in names:
        box = name.get_window_extent()
        for line in axes.lines:
            assert not line.get_path().transformed(line.get_transform()).intersects_bbox(box, filled=False), name


def test_spread_ribbons_and_error_bars_are_clipped_to_zero_and_one(
    database: Path, rows_of: Rows, figure_of: Callable[[str], Figure]
) -> None:
    rows = rows_of(database, figures, "mee_fig2_final_confidence")
    panels = figure_of("mee_fig2_final_confidence").axes
    for axes, (_, local_lines) in zip(panels, filter_origin(rows, "ours").groups("model"), strict=True):
        (ribbon,) = (bundle for bundle in axes.collections if isinstance(bundle, PolyCollection))
        (bars,) = (bundle for bundle in axes.collections if isinstance(bundle, LineCollection))
        for ends, column in ((ribbon.get_paths()[0].vertices, "std"), (np.vstack(bars.get_segments()), "half_width")):
            signed = ((row, sign) for row in local_lines.rows for sign in (-1, 1))
            expected = [np.clip(row["mean"] + sign * row[column], 0, 1) for row, sign in signed]
            assert {round(float(y), 6) for y in ends[:, 1]} == {round(float(y), 6) for y in expected}


def candidates(axes: Axes) -> list[Line2D]:
    return [line for line in axes.lines if line.get_marker() not in ("None", "")]


def labelled(axes: Axes) -> dict[str, np.ndarray]:
    return {str(line.get_label()): np.asarray(line.get_ydata()) for line in candidates(axes)}


def test_trajectories_have_one_panel_per_model_and_gaps_for_unlikely_candidates(
    database: Path, rows_of: Rows, figure_of: Callable[[str], Figure]
) -> None:
    rows = rows_of(database, figures, "mee_fig3_trajectories")
    panels = figure_of("mee_fig3_trajectories").axes
    assert [axes.get_title(loc="left") for axes in panels] == list(DEPTHS)
    for axes, ((model,), part) in zip(panels, rows.groups("model"), strict=True):
        lines = labelled(axes)
        final = f"{part.rows[0]['candidate_id']}, final"
        assert len(lines[final]) == DEPTHS[model]
        values = sorted(y for line in candidates(axes) for y in line.get_ydata() if not np.isnan(y))
        assert values == sorted(part.values("probability"))


def test_only_the_likeliest_candidates_are_named(
    database: Path, rows_of: Rows, figure_of: Callable[[str], Figure]
) -> None:
    rows = rows_of(database, figures, "mee_fig3_trajectories")
    deep = figure_of("mee_fig3_trajectories").axes[0]
    likeliest = Counter[int]()
    for row in rows.rows:
        if row["model"] == "deep" and not row["is_final"]:
            likeliest[row["candidate_id"]] = max(likeliest[row["candidate_id"]], row["probability"])
    assert len(likeliest) > 7
    named = [str(candidate) for candidate, _ in likeliest.most_common(7)]
    legend = deep.get_legend()
    assert legend is not None
    final, *other_labels, last_label = [text.get_text() for text in legend.get_texts()]
    assert (sorted(other_labels), last_label) == (sorted(named), "others")
    assert final.endswith(", final")
