"""Fit: what a method trains or sets, on states of the train split with the model frozen."""

from __future__ import annotations

import pyarrow as pa
import torch
from safetensors.torch import save_file

from exitbench.harness.cells.job import CellJob
from exitbench.harness.engine.decoding.probe import states_of
from exitbench.harness.running.passes.session import Progress, Session, with_role, write_metrics
from exitbench.harness.running.sequences.passes import sequence_fit_data
from exitbench.methods.base import FitData, argmax_token
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import FITTED_FILE, TABLES
from exitbench.results.statistics.intervals import point


def fit_pass(session: Session, item: CellJob, writer: AttemptWriter, on_progress: Progress) -> None:
    """Teacher-force the references of the train split, fit, and write tensors and curve."""
    is_whole = item.data.task_object.output_type == "classification"
    data = sequence_fit_data(session, item) if is_whole else fit_data(session, item)
    total = session.units(item)
    fitted = session.method(item).fit(data, lambda share: on_progress(round(share * total)))
    save_file({name: tensor.contiguous() for name, tensor in fitted.tensors.items()}, writer.path / FITTED_FILE)
    if fitted.curve:
        writer.write("fit_curve", pa.Table.from_pylist(fitted.curve, schema=TABLES["fit_curve"]))
        n = int(data.document_N.max()) + 1
        last = {name: value for name, value in fitted.curve[-1].items() if name.startswith("held_out")}
        metrics = {name: point(value, n) for name, value in last.items()}
        write_metrics(writer, with_role("preparation", metrics))


@torch.no_grad()
def fit_data(session: Session, item: CellJob) -> FitData:
    """States of the cell's documents, teacher-forced on their references cut at the longest answer allowed."""
    documents, checkpoint, rows = session.answered(item), session.checkpoint, item.cell.rows
    references = [session.reference(item, document) for document in documents]
    prompts, gold = [prompt for prompt, _ in references], [tokens for _, tokens in references]
    pieces = [
        states_of(checkpoint, prompts[start : start + rows], gold[start : start + rows])
        for start in range(0, len(documents), rows)
    ]
    states_LND = torch.cat(pieces, dim=1)
    flat = [(index, token) for index, tokens in enumerate(gold) for token in tokens]
    document_N, gold_token_N = torch.tensor(flat, device=states_LND.device).unbind(1)
    final_token_N = argmax_token(checkpoint.model.logits(states_LND[-1]))
    return FitData(checkpoint.model, states_LND, final_token_N, gold_token_N, document_N)
