"""Replay: the method's exit rule applied to a probe, in SQL; every token is as full depth left it (simulated)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from exitbench.harness.cells.job import CellJob
from exitbench.harness.running.passes.choice_offline import choice_replay_pass
from exitbench.harness.running.passes.exits import Recorded, exits, rows_of
from exitbench.harness.running.passes.session import (
    Progress,
    Session,
    agreement_metrics,
    depth_interval,
    with_role,
    write_metrics,
)
from exitbench.methods.base import Parts
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.statistics.intervals import bounded_ratio_interval


def replay_pass(session: Session, item: CellJob, writer: AttemptWriter, on_progress: Progress) -> None:
    """Find where the method would have left at each probed token."""
    if item.data.task_object.output_type != "generate_until":
        return choice_replay_pass(session, item, writer, on_progress)
    depth, parts = session.checkpoint.model.n_blocks, session.parts(item)
    tokens = _tokens(session, item, parts)
    writer.write("tokens", tokens)
    is_match = pc.cast(pc.equal(tokens["token_id"], tokens["full_token_id"]), pa.int64())
    summed = [("exit_layer", "sum"), ("blocks_run", "sum"), ("position", "count"), ("is_match", "sum")]
    by_document = tokens.append_column("is_match", is_match).group_by("doc_key", use_threads=False).aggregate(summed)
    exit_layers, blocks, n_tokens, matches = (by_document[f"{name}_{how}"].to_numpy() for name, how in summed)
    depths = {"mean_exit_layer": depth_interval(exit_layers, n_tokens, depth, is_fixed=not parts.gate.decides)}
    if parts.kv_policy.deferred is None:  # else later tokens of a real decode run skipped blocks too
        runs = depth_interval(blocks, n_tokens, depth, is_fixed=parts.runs_fixed_blocks)
        depths["mean_blocks_run"] = runs
    match = bounded_ratio_interval(matches, n_tokens)
    write_metrics(writer, with_role("depth", depths) | agreement_metrics({"token_match": match}))
    on_progress(session.units(item))


def _tokens(session: Session, item: CellJob, parts: Parts) -> pa.Table:
    """The spool's rows of each token.

    The score is what the probe's columns say, or, where they cannot, what the method's gate said in a scores cell.
    """
    cell, depth = item.cell, session.checkpoint.model.n_blocks
    assert cell.probe_cell_id is not None, "the planner gives every replay its probe"
    files = {"probe": session.file_of(cell.probe_cell_id, "probe.parquet")}
    source, emitted_sql = f"{rows_of('probe')} AS probe", "top1_id[{e}]"
    if cell.scores_cell_id is not None:
        files["scores"] = session.file_of(cell.scores_cell_id, "scores.parquet")
        source = f"{source} JOIN {rows_of('scores')} AS scores USING (doc_key, position)"
        emitted_sql = "emitted_id[{e}]"
    first_position = 1 if cell.first_token == "gated" else 2

    def rule_of(method: Parts) -> str:
        score_sql = "score[l]" if cell.scores_cell_id is not None else method.score_sql(depth)
        assert score_sql is not None, "the planner gives every replay that a probe cannot score its scores"
        return method.exit_layer_sql(depth, cell.generation.max_new_tokens, score_sql, first_position)

    order, others = ("doc_key", "position"), ("token_kind", "full_token_id")
    found = exits(session, item, Recorded(source, files, order, others, {"token_id": emitted_sql}), rule_of)
    exit_layer, last = found["exit_layer"], pa.scalar(depth, found["exit_layer"].type)
    blocks_run = pc.if_else(parts.runs_all_blocks, last, exit_layer)
    reason = pc.if_else(pc.equal(exit_layer, last), "last", "threshold")
    return found.append_column("blocks_run", blocks_run).append_column("reason", reason)
