"""Replay: the method's exit rule applied to a probe, in SQL; every token is as full depth left it (simulated)."""

from __future__ import annotations

from exitbench.harness.cells.job import CellJob
from exitbench.harness.running.passes.choice_offline import choice_replay_pass
from exitbench.harness.running.passes.session import Progress, Session, depth_interval, with_role, write_metrics
from exitbench.results.files.memory import in_memory
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.statistics.intervals import bounded_ratio_interval


def replay_pass(session: Session, item: CellJob, writer: AttemptWriter, on_progress: Progress) -> None:
    """Find where the method would have left at each probed token.

    The score is what the probe's columns say, or, where they cannot, what the method's gate said in a scores cell.
    """
    if item.data.task_object.output_type != "generate_until":
        return choice_replay_pass(session, item, writer, on_progress)
    cell, depth, parts = item.cell, session.checkpoint.model.n_blocks, session.parts(item)
    assert cell.probe_cell_id is not None, "the planner gives every replay its probe"
    probe = str(session.file_of(cell.probe_cell_id, "probe.parquet"))
    source, params = "read_parquet($probe) AS probe", {"probe": probe}
    score_sql, emitted_sql = parts.score_sql(depth), "top1_id[e]"
    if cell.scores_cell_id is not None:
        params["scores"] = str(session.file_of(cell.scores_cell_id, "scores.parquet"))
        source = f"{source} JOIN read_parquet($scores) AS scores USING (doc_key, position)"
        score_sql, emitted_sql = "score[l]", "emitted_id[e]"
    assert score_sql is not None, "the planner gives every replay that a probe cannot score its scores"
    first_position = 1 if cell.first_token == "gated" else 2
    rule = parts.exit_layer_sql(depth, cell.generation.max_new_tokens, score_sql, first_position)
    blocks_run = depth if parts.runs_all_blocks else "e"
    with in_memory() as connection:
        tokens = connection.sql(
            f"""
            SELECT doc_key, position, {emitted_sql} AS token_id, token_kind, e AS exit_layer,
                   {blocks_run} AS blocks_run, NULL::INTEGER AS head_rows, NULL::FLOAT AS score,
                   CASE WHEN e = {depth} THEN 'last' ELSE 'threshold' END AS reason, full_token_id
            FROM (SELECT *, {rule} AS e FROM {source})
            ORDER BY doc_key, position
            """,
            params=params,
        ).to_arrow_table()
        writer.write("tokens", tokens)
        connection.register("tokens", tokens)
        per_document = connection.execute(
            """
            SELECT sum(exit_layer) AS depths, sum(blocks_run) AS blocks, count(*) AS tokens,
                   sum((token_id = full_token_id)::INT) AS matches
            FROM tokens GROUP BY doc_key ORDER BY doc_key
            """
        ).fetchnumpy()
    exits, blocks, n_tokens = (per_document[name] for name in ("depths", "blocks", "tokens"))
    depths = {"mean_exit_layer": depth_interval(exits, n_tokens, depth, is_fixed=not parts.gate.decides)}
    if parts.kv_policy.deferred is None:  # else later tokens of a real decode run skipped blocks too
        runs = depth_interval(blocks, n_tokens, depth, is_fixed=parts.runs_fixed_blocks)
        depths["mean_blocks_run"] = runs
    match = bounded_ratio_interval(per_document["matches"], n_tokens)
    write_metrics(writer, with_role("depth", depths) | with_role("agreement", {"token_match": match}))
    on_progress(session.units(item))
