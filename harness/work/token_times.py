"""Token times: when each token of an answer is there, by a clock that is read once a token; no part of a speed-up.

A timing reads the clock around whole phases. Here it is also read after every token, which costs a fraction of a
microsecond each, and on a GPU where the loop waits for the token anyway. So it is a cell of its own that a sweep asks
for (``record = ["token-times"]``), and plain timings stay as they are.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import torch

from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.trace import Observer
from exitbench.harness.work.base import Progress, Skip
from exitbench.harness.work.timed import Unit
from exitbench.methods.base import Parts
from exitbench.results.spool.attempts import AttemptWriter
from exitbench.results.spool.schema import TABLES

if TYPE_CHECKING:
    from exitbench.harness.work.generation import GenerationWork, TimedGeneration


class TokenClock(Observer):
    """Reads the clock as each token of one answer has been chosen; looks at nothing else.

    Attributes:
        read_ns: The readings; the first is of before the first token.
    """

    def __init__(self) -> None:
        self.read_ns = [time.perf_counter_ns()]

    def emitted(self, generations: Sequence[Generation]) -> None:
        """Read the clock."""
        self.read_ns.append(time.perf_counter_ns())

    def token_ns(self) -> list[int]:
        """How long each token took."""
        return [after - before for before, after in zip(self.read_ns, self.read_ns[1:], strict=False)]


def time_tokens(asked: GenerationWork, writer: AttemptWriter, on_progress: Progress) -> None:
    """Decode one document after the other, by the method and at full depth in turn, in a timing's least rounds."""
    cell, timing, settings = asked.cell, asked.cell.timing, asked.cell.record
    assert timing is not None and settings is not None, "a timing cell has timing settings"
    if cell.batch_size > 1:
        raise Skip("in a batch a token takes as long as the step that it shares with others: ask for batch size 1")
    full, method = asked.full_parts, asked.parts()
    if method.kv_policy.verifies:
        raise Skip("drafts are taken back or kept together: no time is one token's")
    work = asked.timed_work()
    documents = asked.documents[: settings.documents]
    units = [Unit(document.key, (asked.request(document),)) for document in documents]
    made = {name: [work.run(parts, unit)[0] for unit in units] for name, parts in (("full", full), ("method", method))}
    arms = {"full": full, "method": method}
    if method.gate.looks_ahead:
        arms["method"] = work.knowing(method, units, made["method"])
    for unit in units[: timing.warm_up]:
        for parts in arms.values():
            _timed(work, parts, unit)
    for done, unit in enumerate(units):
        rows = []
        for round_ in range(timing.least_rounds):
            for arm in ("full", "method") if round_ % 2 == 0 else ("method", "full"):
                answer, token_ns = made[arm][done], _timed(work, arms[arm], unit)
                columns = zip(answer.token_ids, answer.exit_layers, token_ns, strict=True)
                rows += [
                    {"doc_key": unit.doc_key, "round": round_, "arm": arm, "position": at}
                    | {"token_id": token_id, "exit_layer": exit_layer, "wall_ns": wall_ns}
                    for at, (token_id, exit_layer, wall_ns) in enumerate(columns, start=1)
                ]
        writer.write("token_times", pa.Table.from_pylist(rows, schema=TABLES["token_times"]))
        on_progress(done + 1)


def _timed(work: TimedGeneration, parts: Parts, unit: Unit[Request]) -> list[int]:
    """Nanoseconds of each token of one decode, untraced; its prefill is over before the clock is read first."""
    settings = work.settings
    batch = prefill(
        work.checkpoint.model, unit.requests, settings.max_new_tokens, gates_first_token=settings.gates_first_token
    )
    if work.device.type == "cuda":
        torch.cuda.synchronize(work.device)
    gc.disable()
    try:
        clock = TokenClock()
        decode(work.checkpoint, batch, parts, asked=settings, traced=False, observer=clock)
    finally:
        gc.enable()
    return clock.token_ns()
