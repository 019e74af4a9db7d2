"""What a metric is about is said by whoever writes it: a task from elsewhere needs no name of its own in SQL."""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from exitbench.errors import UserError
from exitbench.harness.running.passes.session import with_role
from exitbench.harness.running.scoring import metric_table, task_metrics
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.tasks.base import Task
from exitbench.tasks.document import Document, DocumentScore


class Moderation(Task):
    """Its headline metric is called as one of ours is."""

    name: ClassVar[str] = "moderation"
    metric_version: ClassVar[str] = "3"
    metrics: ClassVar[tuple[str, ...]] = ("acceptance_rate", "exact")
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


def test_a_tasks_own_headline_metric_is_the_frontiers(example: ModuleType, tmp_path: Path) -> None:
    task, ours = Moderation(), {"mean_exit_layer": example.plain(2.0), "mean_blocks_run": example.plain(3.0)}
    documents = [Document.from_fields({"text": str(n), "verdict": "no"}) for n in range(4)]
    scores = [task.score(document, "yes" if n else "no") for n, document in enumerate(documents)]
    cell = example.cell_json(example.MODELS[0], example.TASKS[0], example.FULL, "quality")
    with AttemptWriter(tmp_path / "spool", cell, example.ENV) as writer:
        writer.write("metrics", metric_table(with_role("depth", ours) | task_metrics(task, scores)))
        writer.finish("ok")
    ingest(tmp_path / "spool", tmp_path / "exitbench.duckdb")
    with open_database(tmp_path / "exitbench.duckdb") as database:
        (row,) = database.query("SELECT metric, value, mean_exit_layer, mean_blocks_run FROM frontier").to_pylist()
        roles = database.query("SELECT metric, role FROM metric_values").to_pylist()
    assert row == {"metric": "acceptance_rate", "value": 75, "mean_exit_layer": 2, "mean_blocks_run": 3}
    assert {one["metric"]: one["role"] for one in roles} == {
        "acceptance_rate": "headline", "exact": "task", "mean_exit_layer": "depth", "mean_blocks_run": "depth"
    }  # fmt: skip


def test_a_role_that_is_none_is_refused(example: ModuleType, tmp_path: Path) -> None:
    cell = example.cell_json(example.MODELS[0], example.TASKS[0], example.FULL, "quality")
    with AttemptWriter(tmp_path, cell, example.ENV) as writer:
        with pytest.raises(UserError, match="unknown role 'costs'"):
            writer.write("metrics", metric_table(with_role("costs", {"watts": example.plain(2.0)})))
        writer.finish("failed", "no metrics")
