"""Optional records that a suite requests (``record``): sub-layers, block similarity, prompt ids, token times.

Plain timings read the clock around whole phases. Token times also read it after every token, which costs a fraction of
a microsecond; on a GPU, the loop synchronizes there anyway. So token times are a separate cell
(``record = ["token-times"]``), and plain timings are unaffected.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch

from exitbench.harness.cells.cell import RecordSettings
from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.sublayers import layer_pairs, sublayer_read_outs
from exitbench.harness.engine.decoding.trace import Observer
from exitbench.harness.work.base import Progress, Skip
from exitbench.harness.work.timed import Unit, with_known_exits
from exitbench.methods.base import Parts
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import TABLES

if TYPE_CHECKING:
    from exitbench.harness.work.generation import GenerationWork, TimedGeneration


def record_internals(
    work: GenerationWork, settings: RecordSettings, writer: AttemptWriter, on_progress: Progress
) -> None:
    """Decode documents one at a time at full depth, and write the records that the suite requests.

    These are prompt token ids, read-outs of the sub-layers in each block, and similarities of pairs of blocks.
    """
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
    for n_done, (document, request) in enumerate(zip(documents, requests, strict=True), start=1):
        gates_first = generation.gates_first_token
        batch = prefill(checkpoint.model, [request], generation.max_new_tokens, gates_first_token=gates_first)
        output = decode(checkpoint, batch, work.full_parts, work.is_stopped)[0].token_ids
        if "sublayers" in settings.what:
            writer.write("sublayers", sublayer_table(checkpoint, document.key, request.prompt_ids, output))
        if "layer-pairs" in settings.what:
            writer.write("layer_pairs", pair_table(checkpoint, document.key, request.prompt_ids, output))
        on_progress(n_done)


def prompt_table(doc_key: str, prompt_ids: Sequence[int]) -> pa.Table:
    """Return a table with one row per token of a document's prompt, after truncation."""
    n = len(prompt_ids)
    return pa.table({"doc_key": [doc_key] * n, "position": range(1, n + 1), "token_id": list(prompt_ids)})


def sublayer_table(checkpoint: Checkpoint, doc_key: str, prompt: Sequence[int], output: Sequence[int]) -> pa.Table:
    """Return a table with one row per token and sub-layer of one answer: the most probable tokens read out there.

    Sub-layers are in the order in which they run.

    Args:
        checkpoint: The model.
        doc_key: Key of the document.
        prompt: Token ids of the prompt.
        output: Token ids of the answer.
    """
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
    """Return a table with one row per pair of blocks: their similarity, as means over the tokens of one answer.

    It has the cosine similarity of states and the Jensen-Shannon divergence of predicted distributions.

    Args:
        checkpoint: The model.
        doc_key: Key of the document.
        prompt: Token ids of the prompt.
        output: Token ids of the answer.
    """
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


class TokenClock(Observer):
    """Observer of the decode loop that reads the wall clock after each token of one answer.

    Attributes:
        read_ns: Clock readings in nanoseconds; the first one is taken before the first token.
    """

    def __init__(self) -> None:
        self.read_ns = [time.perf_counter_ns()]

    def emitted(self, generations: Sequence[Generation]) -> None:
        """Append a clock reading; called after each decode step."""
        self.read_ns.append(time.perf_counter_ns())

    def token_ns(self) -> list[int]:
        """Return the time of each token: nanoseconds since the token before it, or since the start for the first."""
        return [after - before for before, after in zip(self.read_ns, self.read_ns[1:], strict=False)]


def time_tokens(work: GenerationWork, writer: AttemptWriter, on_progress: Progress) -> None:
    """Write the wall time of every token, decoding one document at a time with full depth and the method in turn.

    Both decode each document `least_rounds` times (a timing setting).
    """
    cell, timing, settings = work.cell, work.cell.timing, work.cell.record
    assert timing is not None and settings is not None, "a timing cell has timing settings"
    if cell.batch_size > 1:
        raise Skip("in a batch a token takes as long as the step that it shares with other rows: use batch size 1")
    full, method = work.full_parts, work.parts()
    if method.kv_policy.verifies:
        raise Skip("drafts are taken back or kept together: no time is one token's")
    timed_work = work.timed_work()
    documents = work.documents[: settings.documents]
    units = [Unit(document.key, (work.request(document),)) for document in documents]
    arms = {"full": full, "method": method}
    untimed = {name: [timed_work.run(parts, unit) for unit in units] for name, parts in arms.items()}
    if method.gate.looks_ahead:
        answers = [answer for (answer,), _ in untimed["method"]]
        arms["method"] = with_known_exits(method, units, answers)
    for index in range(len(units[: timing.warm_up])):
        for arm, parts in arms.items():
            _time_one_answer(timed_work, parts, untimed[arm][index][1])
    for index, unit in enumerate(units):
        rows = []
        for round_ in range(timing.least_rounds):
            for arm in ("full", "method") if round_ % 2 == 0 else ("method", "full"):
                (answer,), timed_unit = untimed[arm][index]
                token_ns = _time_one_answer(timed_work, arms[arm], timed_unit)
                columns = zip(answer.token_ids, answer.exit_layers, token_ns, strict=True)
                rows += [
                    {"doc_key": unit.doc_key, "round": round_, "arm": arm, "position": at}
                    | {"token_id": token_id, "exit_layer": exit_layer, "wall_ns": wall_ns}
                    for at, (token_id, exit_layer, wall_ns) in enumerate(columns, start=1)
                ]
        writer.write("token_times", pa.Table.from_pylist(rows, schema=TABLES["token_times"]))
        on_progress(index + 1)


def _time_one_answer(work: TimedGeneration, parts: Parts, unit: Unit[Request]) -> list[int]:
    """Decode one untraced answer, and return the nanoseconds of each token; the prefill is not included."""
    batch = work.prefilled(unit)
    if work.device.type == "cuda":
        torch.cuda.synchronize(work.device)
    gc.disable()
    try:
        clock = TokenClock()
        decode(work.checkpoint, batch, parts, settings=work.settings, traced=False, observer=clock)
    finally:
        gc.enable()
    return clock.token_ns()
