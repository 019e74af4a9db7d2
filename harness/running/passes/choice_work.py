"""What scoring texts costs beside full depth, by numbers read and by FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exitbench.harness.cells.job import CellJob
from exitbench.harness.cells.seeds import seed_for
from exitbench.harness.engine.decoding.likelihood import Scored
from exitbench.harness.engine.decoding.scoring_cost import scoring_cost
from exitbench.harness.engine.model.engine import Engine
from exitbench.harness.running.passes.session import Session, with_role
from exitbench.harness.running.scored_texts import ScoredText, scored_contexts
from exitbench.harness.running.scoring import Metric
from exitbench.methods.base import Cost, Parts
from exitbench.results.statistics.intervals import ratio_interval
from exitbench.tasks.document import Document


def choice_work(
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
