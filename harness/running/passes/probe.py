"""Probe: what every block says about every token of full depth's answers."""

from __future__ import annotations

from collections.abc import Sequence

from exitbench.harness.cells.job import CellJob
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.probe import probe_table
from exitbench.harness.running.batches import in_batches
from exitbench.harness.running.lm import stops
from exitbench.harness.running.passes.choice_offline import choice_probe_pass
from exitbench.harness.running.passes.recording import recording_pass
from exitbench.harness.running.passes.session import Progress, Session
from exitbench.results.spool.attempts import AttemptWriter


def probe_pass(session: Session, item: CellJob, writer: AttemptWriter, on_progress: Progress) -> None:
    """Decode at full depth, then read every block's opinion on every token in one teacher-forced pass."""
    if item.data.task_object.output_type != "generate_until":
        return choice_probe_pass(session, item, writer, on_progress)
    if item.cell.record is not None:
        return recording_pass(session, item, item.cell.record, writer, on_progress)
    documents = session.answered(item)
    requests = [session.request(item, document) for document in documents]
    asked = item.cell.generation
    order = sorted(range(len(documents)), key=lambda index: len(requests[index].prompt_ids))
    gates_first = asked.gates_first_token
    is_stopped = None if item.data.settings is None else stops(session.tokenizer, asked.stop, reads_special=True)

    def probe(chosen: Sequence[int]) -> None:
        rows = [requests[index] for index in chosen]
        batch = prefill(session.checkpoint.model, rows, asked.max_new_tokens, gates_first_token=gates_first)
        answers = decode(session.checkpoint, batch, session.full_parts(), is_stopped)
        outputs = [made.token_ids for made in answers]
        answered = [documents[index] for index in chosen]
        probed = probe_table(
            session.checkpoint,
            [document.key for document in answered],
            [row.prompt_ids for row in rows],
            outputs,
            gold_ids=[session.target_ids(item, document) for document in answered],
            kinds=[session.kinds(item, document) for document in answered],
        )
        writer.write("probe", probed)

    in_batches(order, item.cell.rows, probe, on_progress)
