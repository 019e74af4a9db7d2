"""Quality of tasks that ask for log-likelihoods: every text scored through lm-eval, with the exits of its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from exitbench.harness.cells.job import CellJob
from exitbench.harness.cells.seeds import seed_for
from exitbench.harness.engine.decoding.likelihood import Scored
from exitbench.harness.engine.decoding.scoring_cost import scoring_cost
from exitbench.harness.engine.model.engine import Engine
from exitbench.harness.running.choice_tables import (
    FullChoice,
    choice_rows,
    chosen_place,
    full_choices,
    gap_nats,
    read_choices,
    token_rows,
)
from exitbench.harness.running.passes.evaluating import checked_metrics, evaluate_documents
from exitbench.harness.running.passes.number_format import choice_gaps
from exitbench.harness.running.passes.session import (
    Progress,
    Session,
    agreement_metrics,
    depth_interval,
    with_role,
    write_metrics,
)
from exitbench.harness.running.scored_texts import ScoredText, scored_contexts
from exitbench.harness.running.scoring import Metric, score_columns
from exitbench.methods.base import Cost, Parts
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import TABLES
from exitbench.results.statistics.intervals import bounded_ratio_interval, ratio_interval
from exitbench.tasks.document import Document
from exitbench.tasks.lm_eval.task import LmEvalTask


def choices_pass(session: Session, item: CellJob, writer: AttemptWriter, on_progress: Progress) -> None:
    """Score the texts of every document through lm-eval; write samples, choices, their tokens and metrics."""
    task, documents = lm_eval_task(item), session.answered(item)
    parts = session.scoring(item, session.parts(item))
    lm = session.lm(item, parts, on_progress)
    by_key, evaluated = evaluate_documents(session, item, lm, documents)
    scored = {document.key: lm.scored[document.key] for document in documents}
    scores = [by_key[document.key] for document in documents]
    samples = [
        {**_sample(task, document, scored[document.key]), **score_columns(score)}
        for document, score in zip(documents, scores, strict=True)
    ]
    writer.write("samples", pa.Table.from_pylist(samples, schema=TABLES["samples"]))
    metrics = checked_metrics(task, scores, evaluated)
    write_choices(session, item, writer, documents, scored, parts)
    metrics |= choice_metrics(session, item, documents, scored, parts)
    metrics |= _work(session, item, documents, scored, parts)
    write_metrics(writer, metrics | choice_gaps(session, item, documents, scored))


def lm_eval_task(item: CellJob) -> LmEvalTask:
    """The task of a cell whose texts are scored."""
    task = item.data.task_object
    assert isinstance(task, LmEvalTask), "only lm-eval's tasks ask for log-likelihoods"
    return task


def full_of(
    session: Session, item: CellJob, documents: Sequence[Document], scored: Mapping[str, Sequence[ScoredText]]
) -> Mapping[tuple[str, int], FullChoice]:
    """What full depth said of every text: of its own cell, or this one's where it is that."""
    if item.cell.full_depth_cell_id is None:
        return full_choices(lm_eval_task(item), documents, scored)
    choices, tokens = (
        session.file_of(item.cell.full_depth_cell_id, f"{name}.parquet") for name in ("choices", "tokens")
    )
    return read_choices(choices, tokens)


def write_choices(
    session: Session,
    item: CellJob,
    writer: AttemptWriter,
    documents: Sequence[Document],
    scored: Mapping[str, Sequence[ScoredText]],
    parts: Parts,
) -> None:
    """Write every text and every token that was scored, beside full depth's."""
    task, full = lm_eval_task(item), full_of(session, item, documents, scored)
    for name, rows in (
        ("choices", choice_rows(task, documents, scored, full)),
        ("tokens", token_rows(documents, scored, full, session.checkpoint.model.n_blocks)),
    ):
        writer.write(name, pa.Table.from_pylist(rows, schema=TABLES[name]))


def choice_metrics(
    session: Session,
    item: CellJob,
    documents: Sequence[Document],
    scored: Mapping[str, Sequence[ScoredText]],
    parts: Parts,
) -> dict[str, Metric]:
    """Mean exit layer and blocks run of scored tokens; agreement with full depth in choices and log-probabilities."""
    task, full = lm_eval_task(item), full_of(session, item, documents, scored)
    n_blocks, texts = session.checkpoint.model.n_blocks, [scored[document.key] for document in documents]
    tokens = [sum(len(text.token_ids) for text in own) for own in texts]
    exits = [sum(sum(text.exit_layers) for text in own) for own in texts]
    runs = [sum(sum(text.blocks_run) for text in own) for own in texts]
    depth = {
        "mean_exit_layer": depth_interval(exits, tokens, n_blocks, is_fixed=not parts.gate.decides),
        "mean_blocks_run": depth_interval(runs, tokens, n_blocks, is_fixed=parts.runs_fixed_blocks),
    }
    agreement: dict[str, Metric] = {}
    if task.output_type == "multiple_choice":
        same = [
            full[document.key, chosen_place(task, document, own) + 1].is_chosen is True
            for document, own in zip(documents, texts, strict=True)
        ]
        match = bounded_ratio_interval(same, [1] * len(same))
        agreement |= agreement_metrics({"choice_match": match})
    if item.cell.full_depth_cell_id is not None:
        gaps = [gap_nats(document.key, own, full) for document, own in zip(documents, texts, strict=True)]
        gap = ratio_interval(gaps, tokens, seed=seed_for("bootstrap", item.cell.seed))
        agreement |= agreement_metrics({"logprob_gap": gap}, lower_is_better=True)
    return with_role("depth", depth) | agreement


def _sample(task: LmEvalTask, document: Document, own: Sequence[ScoredText]) -> dict[str, object]:
    chosen = own[chosen_place(task, document, own)]
    is_whole_text = task.output_type == "loglikelihood_rolling"  # which is the document's own
    return {
        "doc_key": document.key,
        "output_text": "" if is_whole_text else chosen.text,
        "output_ids": [] if is_whole_text else chosen.token_ids,
        "n_prompt": chosen.n_context,
        "n_cut": chosen.n_cut or None,
        "n_output": len(chosen.token_ids),
        "stop_reason": "scored",
    }


def _work(
    session: Session,
    item: CellJob,
    documents: Sequence[Document],
    scored: Mapping[str, Sequence[ScoredText]],
    parts: Parts,
) -> dict[str, Metric]:
    """Ideal speed-ups of documents, their contexts included: sums of full depth's work over those of the method's.

    Nothing of encoder-decoders, of whose encoders no work is counted.
    """
    model, asked = session.checkpoint.model, item.cell.generation
    own, full = ({document.key: Cost() for document in documents} for _ in range(2))
    for key, context, made in scored_contexts(session.texts(item, documents), scored):
        at_full = [_at_full_depth(one, model) for one in made]
        for totals, method, texts in ((own, parts, made), (full, session.full_parts(), at_full)):
            cost = scoring_cost(
                model,
                method,
                context,
                texts,
                scope=asked.scope or "token",
                gates_first_token=asked.gates_first_token,
            )
            if cost is None:
                return {}
            totals[key] += cost
    seed = seed_for("bootstrap", item.cell.seed)
    pairs = [(full[document.key], own[document.key]) for document in documents]
    read = [(whole.read_numel, less.read_numel) for whole, less in pairs]
    flops = [(whole.flops, less.flops) for whole, less in pairs]
    work = {
        name: ratio_interval([whole for whole, _ in both], [less for _, less in both], seed=seed)
        for name, both in (("ideal_speedup_bytes", read), ("ideal_speedup_flops", flops))
    }
    return with_role("cost", work)


def _at_full_depth(scored: Scored, model: Engine) -> Scored:
    n = len(scored.token_ids)
    return Scored(scored.token_ids, [model.n_blocks] * n, [model.n_blocks] * n, [model.vocab_size] * n)
