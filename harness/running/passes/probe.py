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
    """Decode at full depth, then read every block's opinion on every token in one teacher-forced pass.

    What the quality cell of full depth has answered before in this session is not decoded again.
    """
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

    known = session.answers_of_full_depth(item)

    def outputs_of(chosen: Sequence[int]) -> list[list[int]]:
        keys = [documents[index].key for index in chosen]
        if all(key in known for key in keys):
            return [known[key] for key in keys]
        rows = [requests[index] for index in chosen]
        batch = prefill(session.checkpoint.model, rows, asked.max_new_tokens, gates_first_token=gates_first)
        return [made.token_ids for made in decode(session.checkpoint, batch, session.full_parts(), is_stopped)]

    def probe(chosen: Sequence[int]) -> None:
        answered = [documents[index] for index in chosen]
        probed = probe_table(
            session.checkpoint,
            [document.key for document in answered],
            [requests[index].prompt_ids for index in chosen],
            outputs_of(chosen),
            gold_ids=[session.target_ids(item, document) for document in answered],
            kinds=[session.kinds(item, document) for document in answered],
        )
        writer.write("probe", probed)

    in_batches(order, item.cell.rows, probe, on_progress)
