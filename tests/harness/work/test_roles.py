"""A task declares the role (topic) of each of its metrics, so that a third-party task needs no change in SQL."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from exitbench.errors import UserError
from exitbench.harness.work.metrics import agreement_metrics, metric_table, task_metrics, with_role
from exitbench.results.database.connection import Database, open_database
from exitbench.results.ingest.ingest import ingest
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.tasks.base import Task
from exitbench.tasks.document import Document, DocumentScore


class Moderation(Task):
    """Third-party task whose headline metric has the name of one of this project's metrics (`acceptance_rate`)."""

    name: ClassVar[str] = "moderation"
    metric_version: ClassVar[str] = "3"
    metrics: ClassVar[tuple[str, ...]] = ("acceptance_rate", "exact")
    lower_is_better: ClassVar[frozenset[str]] = frozenset({"acceptance_rate"})
    consistency_metric: ClassVar[str] = "exact"
    default_max_new_tokens: ClassVar[int] = 4
    local_roles: ClassVar[tuple[frozenset[str], ...]] = ()

    def _read_local(self, files: Mapping[str, Path]) -> list[dict[str, Any]]:
        raise NotImplementedError

    def _read_hub(self, split: str) -> list[dict[str, Any]]:
        raise NotImplementedError

    def prompt(self, doc: Document) -> str:
        return str(doc.fields["text"])

    def target(self, doc: Document) -> str:
        return str(doc.fields["verdict"])

    def with_reference(self, doc: Document, text: str) -> Document:
        return Document.from_fields({**doc.fields, "verdict": text})

    def score(self, doc: Document, output: str) -> DocumentScore:
        return DocumentScore(
            {"acceptance_rate": 100.0 * (output == "yes"), "exact": 100.0 * (output == self.target(doc))}
        )

    def bounds(self, metric: str) -> tuple[float, float] | None:
        return None if metric == "exact" else (0.0, 100.0)


@pytest.fixture
def database(example: ModuleType, tmp_path: Path) -> Iterator[Database]:
    """Yield a database with a third-party task's metrics, depth and agreement."""
    task, ours = Moderation(), {"mean_exit_layer": example.plain(2.0), "mean_blocks_run": example.plain(3.0)}
    documents = [Document.from_fields({"text": str(n), "verdict": "no"}) for n in range(4)]
    scores = [task.score(document, "yes" if n else "no") for n, document in enumerate(documents)]
    cell = example.cell_json(example.MODELS[0], example.TASKS[0], example.FULL, "quality")
    agreement = agreement_metrics({"token_match": example.plain(0.5)})
    with AttemptWriter(tmp_path / "spool", cell, example.ENV) as writer:
        writer.write("metrics", metric_table(with_role("depth", ours) | agreement | task_metrics(task, scores)))
        writer.finish("ok")
    ingest(tmp_path / "spool", tmp_path / "exitbench.duckdb")
    with open_database(tmp_path / "exitbench.duckdb") as opened:
        yield opened


def test_frontier_uses_the_tasks_headline_metric(database: Database) -> None:
    (row,) = database.query("SELECT metric, value, mean_exit_layer, mean_blocks_run FROM frontier").to_pylist()
    assert row == {"metric": "acceptance_rate", "value": 75, "mean_exit_layer": 2, "mean_blocks_run": 3}
    roles = database.query("SELECT metric, role FROM metric_values").to_pylist()
    assert {one["metric"]: one["role"] for one in roles} == {
        "acceptance_rate": "headline", "exact": "task", "token_match": "agreement",
        "mean_exit_layer": "depth", "mean_blocks_run": "depth",
    }  # fmt: skip


def test_metric_values_have_direction_and_scale_of_scores(database: Database) -> None:
    rows = database.query("SELECT metric, lower_is_better, scale_low, scale_high FROM metric_values").to_pylist()
    assert {one.pop("metric"): tuple(one.values()) for one in rows} == {
        "acceptance_rate": (True, 0, 100),
        "exact": (False, None, None),
        "token_match": (False, None, None),
        "mean_exit_layer": (None, None, None),  # depth is no score
        "mean_blocks_run": (None, None, None),
    }
    assert database.query("SELECT lower_is_better FROM frontier")["lower_is_better"].to_pylist() == [True]


def test_unknown_metric_role_is_refused(example: ModuleType, tmp_path: Path) -> None:
    cell = example.cell_json(example.MODELS[0], example.TASKS[0], example.FULL, "quality")
    with AttemptWriter(tmp_path, cell, example.ENV) as writer:
        with pytest.raises(UserError, match="unknown role 'costs'"):
            writer.write("metrics", metric_table(with_role("costs", {"watts": example.plain(2.0)})))
        writer.finish("failed", "no metrics")
