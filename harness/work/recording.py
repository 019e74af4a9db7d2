"""Recording: what probes keep of the inside of blocks, and of prompts, where a suite asks, of its first documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from exitbench.harness.cells.cell import RecordSettings
from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.sublayers import layer_pairs, sublayer_read_outs
from exitbench.harness.work.base import Progress, Skip
from exitbench.results.spool.attempts import AttemptWriter

if TYPE_CHECKING:
    from exitbench.harness.work.generation import GenerationWork


def record_insides(
    work: GenerationWork, settings: RecordSettings, writer: AttemptWriter, on_progress: Progress
) -> None:
    """Decode one document after the other at full depth, and look into the blocks that did it."""
    checkpoint, generation = work.model.checkpoint, work.settings
    if "sublayers" in settings.what and checkpoint.engine != "lean":
        raise Skip("what the parts of a block add is known to the lean engine only; this model runs on the hosted one")
    documents = work.documents[: settings.documents]
    requests = [work.request(document) for document in documents]
    if "prompt-ids" in settings.what:
        for document, request in zip(documents, requests, strict=True):
            writer.write("prompts", prompt_table(document.key, request.prompt_ids))
    if not {"sublayers", "layer-pairs"} & set(settings.what):
        return
    for done, (document, request) in enumerate(zip(documents, requests, strict=True), start=1):
        gates_first = generation.gates_first_token
        batch = prefill(checkpoint.model, [request], generation.max_new_tokens, gates_first_token=gates_first)
        output = decode(checkpoint, batch, work.full_parts)[0].token_ids
        if "sublayers" in settings.what:
            writer.write("sublayers", sublayer_table(checkpoint, document.key, request.prompt_ids, output))
        if "layer-pairs" in settings.what:
            writer.write("layer_pairs", pair_table(checkpoint, document.key, request.prompt_ids, output))
        on_progress(done)


def prompt_table(doc_key: str, prompt_ids: Sequence[int]) -> pa.Table:
    """Return the rows of one prompt, as it is fed: cut where it was too long."""
    n = len(prompt_ids)
    return pa.table({"doc_key": [doc_key] * n, "position": range(1, n + 1), "token_id": list(prompt_ids)})


def sublayer_table(checkpoint: Checkpoint, doc_key: str, prompt: Sequence[int], output: Sequence[int]) -> pa.Table:
    """Return the rows of one output, in the order in which the parts of blocks run."""
    n = len(output)
    parts = [
        pa.table(
            {
                "doc_key": [doc_key] * n,
                "position": range(1, n + 1),
                "token_id": list(output),
                "block": [read_out.block] * n,
                "read_out": [read_out.part] * n,
                "top_ids": read_out.top_ids_NK.tolist(),
                "top_p": read_out.top_p_NK.tolist(),
                "entropy": read_out.entropy_N,
            }
        )
        for read_out in sublayer_read_outs(checkpoint, prompt, output)
    ]
    return pa.concat_tables(parts)


def pair_table(checkpoint: Checkpoint, doc_key: str, prompt: Sequence[int], output: Sequence[int]) -> pa.Table:
    """Return the rows of one output, every block with every block."""
    cosine_LL, jsd_LL = layer_pairs(checkpoint, prompt, output)
    block_a, block_b = (1 + places.ravel() for places in np.indices(cosine_LL.shape))
    return pa.table(
        {
            "doc_key": [doc_key] * cosine_LL.size,
            "block_a": block_a,
            "block_b": block_b,
            "cosine": cosine_LL.ravel(),
            "jsd": jsd_LL.ravel(),
            "n": [len(output)] * cosine_LL.size,
        }
    )
