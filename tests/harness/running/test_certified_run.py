"""A suite with certified gates has different cells but the same answers as with exact heads.

Traces count the rows of the head that were read.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow.parquet as pq
import pytest
from suite_runs import plan_suite, run_plan

from exitbench.errors import UserError
from exitbench.harness.cells.cell import Cell
from exitbench.harness.cells.job import CellJob
from exitbench.harness.planning.plan import Plan
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest
from exitbench.results.spool.attempts import latest_status

SUITE = """
schema = 1
name = "precision"
seed = 3
[defaults]
batch_rows = 3
{defaults}
[models.own]
{model}
[tasks]
{task}
[timing]
documents = 2
max_rounds = 2
warm_up = 1
"""
BUILTIN = 'squad = { source = "builtin", limit = 3, max_new_tokens = 5 }'
CERTIFIED = 'head_precision = "certified"'
GATED = """
[[sweep]]
method = "calm-softmax"
grid = { threshold = [0.3, 0.8] }
kinds = ["quality", "timing", "replay"]
[[sweep]]
method = "static"
grid = { exit_layer = [2] }
kinds = ["quality"]
[[calibration]]
method = "entropy"
levels = [0.1, 1.0]
delta = 0.5
epsilon = 0.5
documents = 3
"""


def planned(
    root: Path, sweeps: str, defaults: str = "", model: str = 'recipe = "builtin-weighted"', task: str = BUILTIN
) -> Plan:
    return plan_suite(root, SUITE.format(defaults=defaults, model=model, task=task) + sweeps)


def cells(plan: Plan) -> dict[str, CellJob]:
    """Return the cells of a plan by label, without the label's model and task."""
    return {one.item.label.partition("/squad/")[2]: one.item for one in plan.groups[0].cells}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, CellJob], dict[str, CellJob]]:
    """Run the suite with exact heads and with certified gates; return the folder and the cells of each run."""
    root, result = tmp_path_factory.mktemp("precision"), []
    for defaults in ("", CERTIFIED):
        plan = planned(root, GATED, defaults)
        run_plan(plan, root / "spool")
        result.append(cells(plan))
    return root, result[0], result[1]


def test_certified_head_precision_changes_the_ids_of_cells_that_decode(ran: Any) -> None:
    _, exact, certified = ran
    asked = {label for label, item in certified.items() if item.cell.head_precision == "certified"}
    other = {label for label in certified if certified[label].cell.cell_id != exact[label].cell.cell_id}
    decoding = {label for label in certified if label.endswith(("/quality", "/timing", "/calibration"))}
    assert asked == other == decoding and {"full/quality", "static:exit_layer=2/quality"} < decoding
    for item in certified.values():
        assert Cell.from_json(item.cell.to_json()) == item.cell
        assert ("head_precision" in item.cell.identity) == (item.cell.head_precision == "certified")


def test_certified_answers_and_exits_equal_exact_heads_and_scores_lie_in_bounds(ran: Any) -> None:
    root, exact, certified = ran
    ended = latest_status(root / "spool")
    assert {ended[item.cell.cell_id].status for item in (*exact.values(), *certified.values())} == {"ok"}
    for label in (
        *("full/quality", "static:exit_layer=2/quality"),
        *("calm-softmax:threshold=0.3/quality", "calm-softmax:threshold=0.8/quality"),
    ):
        ours, theirs = (
            pq.read_table(ended[result[label].cell.cell_id].path / "tokens.parquet").to_pylist()
            for result in (certified, exact)
        )
        for own, other in zip(ours, theirs, strict=True):
            same = ("doc_key", "position", "token_id", "exit_layer", "blocks_run", "reason")
            assert [own[name] for name in same] == [other[name] for name in same]
            half_width = own["score_half_width"]
            if half_width is None:
                assert own["score"] == other["score"]
            else:
                assert abs(own["score"] - other["score"]) <= half_width * (1 + 1e-5) + 1e-7
            assert own["head_rows_int8"] > 0 and own["head_fallbacks"] >= 0
            assert other["head_rows_int8"] is other["head_fallbacks"] is other["score_half_width"] is None
    assert sum(row["head_rows"] for row in ours) < sum(row["head_rows"] for row in theirs)


def test_certified_methods_are_compared_with_full_depth_that_reads_bounds_too(ran: Any) -> None:
    root, _, certified = ran
    ended = latest_status(root / "spool")

    def rows(label: str, table: str) -> list[dict[str, Any]]:
        return pq.read_table(ended[certified[label].cell.cell_id].path / f"{table}.parquet").to_pylist()

    def metrics(label: str) -> dict[str, float]:
        return {row["metric"]: row["value"] for row in rows(label, "metrics")}

    def rows_read(label: str) -> float:
        """Return the rows of the float32 head read per token; four int8 rows have the bytes of one."""
        return mean(row["head_rows"] + row["head_rows_int8"] / 4 for row in rows(label, "tokens"))

    full, static = "full/quality", "static:exit_layer=2/quality"
    assert metrics(full)["ideal_speedup_bytes"] == 1
    # Heads as a share of full depth's bytes per token, which are the same in both cells.
    shares = metrics(static)["cost_heads_bytes"] / metrics(full)["cost_heads_bytes"]
    assert shares == pytest.approx(rows_read(static) / rows_read(full))


def test_calibrations_with_certified_and_exact_heads_are_equal(ran: Any) -> None:
    root, exact, certified = ran
    ended = latest_status(root / "spool")
    (label,) = (label for label in exact if label.endswith("/calibration"))
    ours, theirs = (
        pq.read_table(ended[result[label].cell.cell_id].path / "calibration.parquet") for result in (certified, exact)
    )
    assert ours.equals(theirs)


def test_database_records_head_precision_per_run_and_int8_rows_per_token(ran: Any) -> None:
    root, *_ = ran
    ingest(root / "spool", root / "runs.duckdb")
    with open_database(root / "runs.duckdb", read_only=True) as database:
        runs = database.query(
            "SELECT DISTINCT method, head_precision, conditions FROM runs WHERE kind = 'quality' ORDER BY ALL"
        ).to_pylist()
        assert [(row["method"], row["head_precision"]) for row in runs] == [
            ("calm-softmax", "certified"),
            ("calm-softmax", "exact"),
            ("full", "certified"),
            ("full", "exact"),
            ("static", "certified"),
            ("static", "exact"),
        ]
        assert [row["conditions"].endswith("certified head") for row in runs] == [True, False] * 3
        answer = database.query(
            "SELECT r.head_precision, count(t.head_rows_int8) AS known, count(*) AS n FROM token_trace AS t "
            "JOIN runs AS r USING (attempt_id) WHERE r.kind = 'quality' GROUP BY ALL ORDER BY ALL"
        ).to_pylist()
        assert [(row["head_precision"], row["known"] == row["n"], row["known"]) for row in answer] == [
            ("certified", True, answer[0]["n"]),
            ("exact", False, 0),
        ]


@pytest.mark.parametrize(
    ("sweep", "named", "why"),
    [
        ('method = "calm-classifier"', "'calm-classifier'", "its gate's score cannot be bounded"),
        ('method = "contrastive"', "'contrastive'", "its gate's score cannot be bounded"),
        ('method = "calm-softmax"\ngrid = { head = ["pruned-fixed"] }', "'calm-softmax'", "something else than"),
    ],
)
def test_methods_without_certified_bounds_are_refused_by_name(tmp_path: Path, sweep: str, named: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as refused:
        planned(tmp_path, f"[[sweep]]\n{sweep}\nkinds = ['quality']\n", CERTIFIED)
    message = str(refused.value)
    assert "suite.toml" in message and 'head_precision = "certified"' in message and named in message
    assert "Allowed: calm-softmax, entropy, free, full, max-prob, self-speculation, static" in message


def test_certified_head_is_refused_on_the_hosted_engine(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="model 'own' runs on the hosted engine, whose logits are not bounded"):
        planned(tmp_path, GATED, CERTIFIED, 'recipe = "builtin-weighted"\nengine = "hosted"')


def test_certified_head_is_refused_with_int8_weights(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='bounds an LM head by an int8 copy, and dtype = "int8" has no other'):
        planned(tmp_path, GATED, f'{CERTIFIED}\ndtype = "int8"')


def test_unknown_head_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"precision of the LM head 'certain'.*'certified'"):
        planned(tmp_path, GATED, 'head_precision = "certain"')
