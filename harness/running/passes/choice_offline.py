"""Probe, scores and replay of given texts: what every block says of each of their tokens, and an exit rule over it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from exitbench.harness.cells.job import CellJob
from exitbench.harness.cells.seeds import seed_for
from exitbench.harness.engine.decoding.likelihood import Scored
from exitbench.harness.engine.decoding.probe import choice_probe_table, choice_scores
from exitbench.harness.engine.model.token_record import TokenRecord
from exitbench.harness.running.batches import in_batches
from exitbench.harness.running.passes.choices import choice_metrics, lm_eval_task, write_choices
from exitbench.harness.running.passes.exits import Recorded, exits, rows_of
from exitbench.harness.running.passes.session import Progress, Session, Skip, write_metrics
from exitbench.harness.running.scored_texts import ScoredText, Shared, contexts_of, longest_of
from exitbench.harness.running.scoring import task_metrics
from exitbench.results.files.arrow import lists
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import TABLES


def choice_probe_pass(session: Session, item: CellJob, writer: AttemptWriter, on_progress: Progress) -> None:
    """Read every block's opinion on every token of every text."""
    if item.cell.record is not None:
        raise Skip("what is inside blocks is recorded of tokens that a model generates")
    shared = _shared(session, item)

    def probe(chosen: Sequence[Shared]) -> None:
        keys, choices = [one.doc_key for one in chosen], [one.choices for one in chosen]
        contexts = [one.context for one in chosen]
        writer.write("probe", choice_probe_table(session.checkpoint, keys, choices, contexts, len(chosen)))

    in_batches(shared, item.cell.rows, probe, lambda done: on_progress(_documents(shared, done)))


def choice_scores_pass(session: Session, item: CellJob, writer: AttemptWriter, on_progress: Progress) -> None:
    """Ask the method's own gate at every block of every token of every text."""
    shared, parts = _shared(session, item), session.scoring(item, session.parts(item))
    schema = TABLES["scores"]

    def score(chosen: Sequence[Shared]) -> None:
        found = choice_scores(session.checkpoint, parts, [one.context for one in chosen], len(chosen))
        tokens = [
            (one.doc_key, choice, position, token_id)
            for one in chosen
            for choice, token_ids in zip(one.choices, one.context.continuations, strict=True)
            for position, token_id in enumerate(token_ids, start=1)
        ]
        keys, choices, positions, token_ids = zip(*tokens, strict=True)
        emitted_NL = np.where(found["is_greedy"], np.array(token_ids)[:, None], -1)
        columns = {
            "doc_key": list(keys),
            "choice": pa.array(choices, pa.int32()),
            "position": pa.array(positions, pa.int32()),
            "score": lists(found["score"], schema.field("score").type),
            "emitted_id": lists(emitted_NL.astype(np.int32), schema.field("emitted_id").type),
            "logprob": lists(found["logprob"], schema.field("logprob").type),
        }
        writer.write("scores", pa.table(columns))

    in_batches(shared, item.cell.rows, score, lambda done: on_progress(_documents(shared, done)))


def choice_replay_pass(session: Session, item: CellJob, writer: AttemptWriter, on_progress: Progress) -> None:
    """Find where the method would have left at each token, and score the choices by what it would have read there."""
    cell, depth, parts = item.cell, session.checkpoint.model.n_blocks, session.parts(item)
    if cell.generation.scope == "context":
        raise Skip('scope = "context" keeps one depth for a context, which a replay of single tokens cannot tell')
    assert cell.scores_cell_id is not None, "the planner gives every replay of choices its scores"
    task, documents = lm_eval_task(item), session.answered(item)
    texts = session.texts(item, documents)
    first_position = 1 if cell.first_token == "gated" else 2
    recorded = Recorded(
        source=rows_of("scores"),
        files={"scores": session.file_of(cell.scores_cell_id, "scores.parquet")},
        order=("doc_key", "choice", "position"),
        others=(),
        at_exit={"score": "score[{e}]", "logprob": "logprob[{e}]", "is_greedy": "emitted_id[{e}] >= 0"},
    )
    longest = longest_of(texts)
    found = exits(
        session, item, recorded, lambda method: method.exit_layer_sql(depth, longest, "score[l]", first_position)
    )
    columns = (found[name].to_pylist() for name in ("doc_key", "choice", "exit_layer", *recorded.at_exit))
    exited: dict[tuple[str, int], list[tuple[int, float, float, bool]]] = {}
    for doc_key, choice, *values in zip(*columns, strict=True):
        exited.setdefault((doc_key, choice), []).append(tuple(values))
    scored: dict[str, list[ScoredText]] = {}
    for text in texts:
        of_document, (pair,) = scored.setdefault(text.doc_key, []), text.pairs
        own = Scored(list(pair.continuation_ids))
        for token_id, token in zip(own.token_ids, exited[text.doc_key, len(of_document) + 1], strict=True):
            layer, score, logprob, is_greedy = token
            own.logprobs.append(logprob)
            own.greedy.append(is_greedy)
            own.records.append(
                TokenRecord(
                    token_id,
                    layer,
                    depth if parts.runs_all_blocks else layer,
                    score=None if layer == depth else score,
                    logprob=logprob,
                    is_greedy=is_greedy,
                )
            )
        of_document.append(ScoredText(text.text, len(pair.context_ids), pair.n_cut, (own,)))
    responses = {key: [(text.logprob, text.is_greedy) for text in own] for key, own in scored.items()}
    scores = task.score_responses(documents, responses, session.confirms_unsafe_code)
    write_choices(session, item, writer, documents, scored, None)
    metrics = task_metrics(task, [scores[document.key] for document in documents])
    write_metrics(writer, metrics | choice_metrics(session, item, documents, scored, parts))
    on_progress(session.units(item))


def _shared(session: Session, item: CellJob) -> list[Shared]:
    """The contexts of a cell's documents with their texts.

    Raises:
        Skip: Texts are scored in windows.
    """
    if item.data.task_object.output_type == "loglikelihood_rolling":
        raise Skip("whole texts are scored in windows; probes and replays are of choices behind a context")
    texts = session.texts(item, session.answered(item))
    return contexts_of(texts, partial(seed_for, "decode", item.cell.seed))


def _documents(shared: Sequence[Shared], done: int) -> int:
    """How many documents the first contexts are of, the last of which may have more of them."""
    return len({one.doc_key for one in shared[:done]})
