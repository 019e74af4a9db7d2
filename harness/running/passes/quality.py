"""Quality: every document answered through lm-eval, with exit traces and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from exitbench.harness.cells.job import CellJob
from exitbench.harness.cells.seeds import seed_for
from exitbench.harness.cells.sharing import differ_in_threshold_alone
from exitbench.harness.engine.decoding.generation import Generation
from exitbench.harness.engine.model.engine import Engine
from exitbench.harness.engine.model.token_record import full_depth_records
from exitbench.harness.running.lm import Answer
from exitbench.harness.running.passes.choices import choices_pass
from exitbench.harness.running.passes.evaluating import checked_metrics, evaluate_documents
from exitbench.harness.running.passes.number_format import answer_gaps
from exitbench.harness.running.passes.session import (
    FullOutput,
    Progress,
    Session,
    agreement_metrics,
    answer_costs,
    answer_costs_by_part,
    depth_interval,
    full_outputs,
    with_role,
    write_metrics,
)
from exitbench.harness.running.scoring import Metric, score_columns
from exitbench.harness.running.sequences.passes import sequence_quality_pass
from exitbench.methods.base import Parts
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import TABLES
from exitbench.results.statistics.intervals import bounded_ratio_interval, ratio_interval
from exitbench.tasks.document import Document


def quality_pass(session: Session, item: CellJob, writer: AttemptWriter, on_progress: Progress) -> None:
    """Answer every document through lm-eval; write samples, exit traces and metrics."""
    if item.data.task_object.output_type == "classification":
        return sequence_quality_pass(session, item, writer, on_progress)
    if item.data.task_object.output_type != "generate_until":
        return choices_pass(session, item, writer, on_progress)
    cell, task = item.cell, item.data.task_object
    documents = session.answered(item)
    parts = session.parts(item)
    lm = session.lm(item, parts, on_progress)
    by_key, evaluated = evaluate_documents(session, item, lm, documents)
    answers = [lm.answers[document.key] for document in documents]
    scores = [by_key[document.key] for document in documents]
    samples = [
        {
            "doc_key": document.key,
            "output_text": answer.text,
            "output_ids": answer.generation.token_ids,
            "n_prompt": answer.n_prompt,
            "n_cut": answer.n_cut,
            "n_output": len(answer.generation.token_ids),
            "stop_reason": answer.generation.stop_reason,
            **score_columns(score),
        }
        for document, answer, score in zip(documents, answers, scores, strict=True)
    ]
    writer.write("samples", pa.Table.from_pylist(samples, schema=TABLES["samples"]))
    metrics = checked_metrics(task, scores, evaluated)
    full = {
        document.key: FullOutput(answer.n_prompt, answer.generation.token_ids)
        for document, answer in zip(documents, answers, strict=True)
    }
    if differ_in_threshold_alone(parts, session.full_parts()):
        session.note_full_depth(item, {key: output.token_ids for key, output in full.items()})
    if cell.full_depth_cell_id is not None:
        full = full_outputs(session, cell.full_depth_cell_id)
    writer.write("tokens", _token_table(session, item, documents, answers, full, parts))
    gaps = answer_gaps(session, item, documents, answers)
    write_metrics(writer, metrics | _decode_metrics(session, item, parts, documents, answers, full) | gaps)


def _token_table(
    session: Session,
    item: CellJob,
    documents: Sequence[Document],
    answers: Sequence[Answer],
    full: Mapping[str, FullOutput],
    parts: Parts,
) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for document, answer in zip(documents, answers, strict=True):
        kinds = session.kinds(item, document)
        full_ids = full[document.key].token_ids
        rows += [
            {
                **record.to_row(parts),
                "doc_key": document.key,
                "position": index + 1,
                "token_kind": kinds[index] if index < len(kinds) else None,
                "full_token_id": full_ids[index] if index < len(full_ids) else None,
            }
            for index, record in enumerate(answer.generation.records)
        ]
    return pa.Table.from_pylist(rows, schema=TABLES["tokens"])


def _decode_metrics(
    session: Session,
    item: CellJob,
    parts: Parts,
    documents: Sequence[Document],
    answers: Sequence[Answer],
    full: Mapping[str, FullOutput],
) -> dict[str, Metric]:
    """Mean exit layer and blocks run, agreement with full depth, cost by part and, of verified drafts, the share kept.

    Costs are ideal speed-ups of answers, and bytes of a token as shares of full depth's. Each is a ratio of sums over
    documents.
    """
    made = [answer.generation for answer in answers]
    outputs = [full[document.key] for document in documents]
    matches = [
        sum(a == b for a, b in zip(generation.token_ids, output.token_ids, strict=False))
        for generation, output in zip(made, outputs, strict=True)
    ]
    lengths = [answer.n_prompt for answer in answers]
    checkpoint, first_token = session.checkpoint, item.cell.first_token
    costs = answer_costs(checkpoint, parts, made, lengths, first_token)
    by_part = answer_costs_by_part(checkpoint, parts, made, lengths, first_token)
    full_made = [_at_full_depth(output, checkpoint.model) for output in outputs]
    full_lengths = [output.n_prompt for output in outputs]
    full_costs = answer_costs(checkpoint, session.full_parts(), full_made, full_lengths, first_token)
    seed = seed_for("bootstrap", item.cell.seed)
    tokens, n_blocks = [len(generation.token_ids) for generation in made], checkpoint.model.n_blocks
    exits, runs = [sum(g.exit_layers) for g in made], [sum(g.blocks_run) for g in made]
    depth = {
        "mean_exit_layer": depth_interval(exits, tokens, n_blocks, is_fixed=not parts.gate.decides),
        "mean_blocks_run": depth_interval(runs, tokens, n_blocks, is_fixed=parts.runs_fixed_blocks),
    }
    agreement = {"token_match": bounded_ratio_interval(matches, [len(output.token_ids) for output in outputs])}
    work = {
        "ideal_speedup_bytes": ratio_interval(
            [cost.read_numel for cost in full_costs], [cost.read_numel for cost in costs], seed=seed
        ),
        "ideal_speedup_flops": ratio_interval(
            [cost.flops for cost in full_costs],
            [cost.flops for cost in costs],
            seed=seed,
        ),
    }
    full_tokens = sum(len(output.token_ids) for output in outputs)
    full_bytes = sum(cost.read_numel for cost in full_costs) / full_tokens
    as_full = [n * full_bytes for n in tokens]
    for part in by_part[0] if by_part else ():
        read = [cost[part].read_numel for cost in by_part]
        work[f"cost_{part}_bytes"] = ratio_interval(read, as_full, seed=seed)
    work["cost_total_bytes"] = ratio_interval([cost.read_numel for cost in costs], as_full, seed=seed)
    if parts.kv_policy.verifies:
        accepted = [
            sum(record.exit_layer < n_blocks == record.blocks_run for record in generation.records)
            for generation in made
        ]
        drafts = [kept + sum(generation.rejected) for kept, generation in zip(accepted, made, strict=True)]
        if sum(drafts):
            agreement["acceptance_rate"] = bounded_ratio_interval(accepted, drafts)
    return with_role("depth", depth) | agreement_metrics(agreement) | with_role("cost", work)


def _at_full_depth(output: FullOutput, model: Engine) -> Generation:
    return Generation(output.token_ids, full_depth_records(output.token_ids, model))
