"""Probe: what every block says about every token of full depth's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from exitbench.harness.cells.job import WorkItem
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.probe import probe
from exitbench.harness.running.passes.recording import recording_pass
from exitbench.harness.running.passes.session import BATCH_ROWS, Progress, Session
from exitbench.results.files.arrow import lists
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import TABLES
from exitbench.tasks.document import Document


def probe_pass(session: Session, item: WorkItem, writer: AttemptWriter, on_progress: Progress) -> None:
    """Decode at full depth, then read every block's opinion on every token in one teacher-forced pass."""
    if item.cell.record is not None:
        return recording_pass(session, item, item.cell.record, writer, on_progress)
    documents = session.answered(item)
    requests = [session.request(item, document) for document in documents]
    asked = item.cell.generation
    order = sorted(range(len(documents)), key=lambda index: len(requests[index].prompt_ids))
    for start in range(0, len(order), BATCH_ROWS):
        chosen = order[start : start + BATCH_ROWS]
        rows = [requests[index] for index in chosen]
        gates_first = asked.gates_first_token
        batch = prefill(session.checkpoint.model, rows, asked.max_new_tokens, gates_first_token=gates_first)
        outputs = [made.token_ids for made in decode(session.checkpoint, batch, session.full_parts())]
        signals = probe(session.checkpoint, [row.prompt_ids for row in rows], outputs)
        writer.write("probe", _probe_table(session, item, [documents[index] for index in chosen], outputs, signals))
        on_progress(min(start + BATCH_ROWS, len(order)))


def _probe_table(
    session: Session,
    item: WorkItem,
    documents: Sequence[Document],
    outputs: Sequence[Sequence[int]],
    signals: Mapping[str, np.ndarray],
) -> pa.Table:
    columns: dict[str, Any] = {"doc_key": [], "position": [], "token_id": [], "gold_token_id": [], "token_kind": []}
    for document, output in zip(documents, outputs, strict=True):
        gold, kinds = session.target_ids(item, document), session.kinds(item, document)
        n = len(output)
        columns["doc_key"] += [document.key] * n
        columns["position"] += range(1, n + 1)
        columns["token_id"] += output
        columns["gold_token_id"] += (gold + [None] * n)[:n]
        columns["token_kind"] += (kinds + [None] * n)[:n]
    for name, values in signals.items():
        columns[name] = values if values.ndim == 1 else lists(values, TABLES["probe"].field(name).type)
    return pa.table({name: pa.array(columns[name], type=TABLES["probe"].field(name).type) for name in columns})
