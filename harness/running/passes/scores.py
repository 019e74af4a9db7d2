"""Scores: the method's gate asked at every block of every probed token, for replays that a probe cannot score."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from exitbench.harness.cells.job import CellJob
from exitbench.harness.engine.decoding.generation import Request
from exitbench.harness.engine.decoding.probe import states_of
from exitbench.harness.running.batches import in_batches
from exitbench.harness.running.passes.choice_offline import choice_scores_pass
from exitbench.harness.running.passes.session import Progress, Session
from exitbench.methods.base import Parts
from exitbench.methods.offline import score_states
from exitbench.results.files.arrow import lists
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import TABLES
from exitbench.tasks.document import Document


def scores_pass(session: Session, item: CellJob, writer: AttemptWriter, on_progress: Progress) -> None:
    """Read full depth's answers from the probe, and score them teacher-forced."""
    if item.data.task_object.output_type != "generate_until":
        return choice_scores_pass(session, item, writer, on_progress)
    assert item.cell.probe_cell_id is not None, "the planner gives every scores cell its probe"
    path = session.file_of(item.cell.probe_cell_id, "probe.parquet")
    outputs: dict[str, list[int]] = defaultdict(list)
    for row in pq.read_table(path, columns=["doc_key", "position", "token_id"]).to_pylist():
        outputs[row["doc_key"]].append(row["token_id"])
    parts, documents, schema = session.parts(item), session.answered(item), TABLES["scores"]

    def score(chosen: Sequence[Document]) -> None:
        made = [outputs[document.key] for document in chosen]
        requests = [session.request(item, document) for document in chosen]
        score_NL, emitted_NL = _score(session, parts, requests, made)
        columns = {
            "doc_key": [document.key for document, tokens in zip(chosen, made, strict=True) for _ in tokens],
            "position": pa.array([place for tokens in made for place in range(1, len(tokens) + 1)], pa.int32()),
            "score": lists(score_NL.cpu().numpy(), schema.field("score").type),
            "emitted_id": lists(emitted_NL.cpu().numpy(), schema.field("emitted_id").type),
        }
        writer.write("scores", pa.table(columns))

    in_batches(documents, item.cell.rows, score, on_progress)


@torch.inference_mode()
def _score(
    session: Session, parts: Parts, requests: Sequence[Request], outputs: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """Scores and emitted tokens of every token of the outputs, in row order, [N, L] each."""
    model = session.checkpoint.model
    states_LND = states_of(session.checkpoint, [request.prompt_ids for request in requests], outputs)
    seeds = [request.seed for request, tokens in zip(requests, outputs, strict=True) for _ in tokens]
    position_N = torch.cat([torch.arange(1, len(tokens) + 1) for tokens in outputs])
    score_NL = torch.empty(len(seeds), model.n_blocks)
    emitted_NL = torch.empty(score_NL.shape, dtype=torch.long)
    for position in sorted(set(position_N.tolist())):
        at_N = (position_N == position).nonzero()[:, 0]
        scores_LN, emitted_LN = score_states(
            parts, model, states_LND[:, at_N], position=position, seeds_N=[seeds[index] for index in at_N.tolist()]
        )
        score_NL[at_N], emitted_NL[at_N] = scores_LN.T, emitted_LN.T
    return score_NL, emitted_NL
