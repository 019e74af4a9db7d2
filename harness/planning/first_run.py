"""Estimate the time of cells for which no similar cell has run: from the model's bytes and FLOPs, and this CPU.

A decode step reads all weights once and starts some kernels per block; a prompt is bound by arithmetic. Answers are
assumed to be as long as references. Only the CPU is measured. Expect an error of a factor of two.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch.nn.functional import linear

from exitbench.harness.cells.cell import Cell
from exitbench.harness.cells.corpus import Corpus
from exitbench.results.analysis.status import Estimate

BASIS: Final = "bytes per token"

_WEIGHT_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
_KERNELS_PER_BLOCK: Final = 40
"""Operations that a step starts in one block: norms, products, rotary positions, attention, cache."""
_CHARACTERS_PER_TOKEN: Final = 4
_TEXTS: Final = 4
"""Assumed number of texts scored per document, for a task without generation."""
_CELL_S: Final = 0.1
"""Seconds to begin and end a cell, without loading the model."""
_ARMS: Final = 3
"""Number of timed arms (full depth, its twin and the method); each decodes all documents twice per round."""
_TRACE_BYTES: Final = {"quality": 24, "probe": 120, "scores": 60, "timing": 150, "replay": 15}
"""Typical bytes per token in an attempt's folder, by kind of cell."""


@dataclass(frozen=True)
class Machine:
    """Speed of this machine's CPU, measured within a tenth of a second.

    Attributes:
        bytes_per_s: Rate at which weights are read from memory.
        flops_per_s: FLOPs per second of a float32 matrix product with many rows.
        kernel_s: Seconds of a very small matrix product, that is, the cost of starting an operation.
    """

    bytes_per_s: float
    flops_per_s: float
    kernel_s: float


@dataclass(frozen=True)
class Lengths:
    """Typical number of tokens per document.

    Attributes:
        read: Tokens of the prompt, or of all texts that are scored or classified.
        generated: Tokens of the generated answer; 0 if nothing is generated.
    """

    read: float
    generated: float


def typical_lengths(cell: Cell, corpus: Corpus, generates: bool) -> Lengths:
    """Return the typical lengths of a cell's prompts and answers, from numbers of characters and the cell's limits.

    Args:
        cell: The cell.
        corpus: Description of its documents.
        generates: Whether the model generates answers; otherwise it scores or classifies texts.
    """
    generation = cell.generation
    prompt = 1 + corpus.prompt_characters / _CHARACTERS_PER_TOKEN
    answer = 1 + corpus.answer_characters / _CHARACTERS_PER_TOKEN
    if generates:
        return Lengths(min(prompt, generation.max_prompt_tokens or math.inf), min(answer, generation.max_new_tokens))
    return Lengths(prompt if cell.model.kind == "encoder" else prompt + _TEXTS * answer, 0)


def first_run_estimate(cell: Cell, lengths: Lengths, machine: Machine, pass_cells: int = 1) -> Estimate:
    """Return the estimated time and disk space of a cell, without using earlier attempts.

    Args:
        cell: Cell on the CPU.
        lengths: Typical lengths of its documents.
        machine: Speed of this machine.
        pass_cells: Number of cells that share the cell's pass (run of the model); each makes its batches larger.
    """
    documents, kind = cell.task.documents, cell.kind
    document_s = document_seconds(cell, lengths, machine, cell.rows * pass_cells)
    seconds = document_s * documents
    if cell.timing is not None:
        documents = min(documents, cell.timing.documents)
        round_s = 2 * documents * document_s
        rounds = max(min(cell.timing.max_rounds, (cell.timing.seconds or 0) / round_s), cell.timing.least_rounds)
        seconds = _ARMS * rounds * round_s
    elif cell.calibration is not None:
        seconds *= 1 + len(cell.calibration.levels)
    elif kind == "fit":
        seconds *= 2  # one half is computing the documents' states, the other training on them
    elif kind == "replay":
        seconds = 0.0
    tokens = documents * (lengths.generated or lengths.read)
    return Estimate(seconds + _CELL_S, 8192 + tokens * _TRACE_BYTES.get(kind, 4), BASIS)


def document_seconds(cell: Cell, lengths: Lengths, machine: Machine, rows: int) -> float:
    """Return the seconds per document at full depth, if ``rows`` documents are decoded in one batch."""
    model = cell.model
    kernels_s = (model.blocks + model.encoder_blocks) * _KERNELS_PER_BLOCK * machine.kernel_s
    token_s = 2 * model.parameters / machine.flops_per_s
    weights_s = model.parameters * _WEIGHT_BYTES[cell.dtype] / machine.bytes_per_s
    step_s = kernels_s + max(weights_s, rows * token_s)
    return kernels_s / rows + lengths.read * token_s + lengths.generated * step_s / rows


@cache
def this_machine() -> Machine:
    """Measure and return the speed of this machine's CPU."""
    weights_VD, rows_MD, few_DD = torch.rand(16_384, 1024), torch.rand(128, 1024), torch.rand(32, 32)
    some_UD = weights_VD[:2048]
    return Machine(
        bytes_per_s=weights_VD.nbytes / _fastest_s(lambda: linear(rows_MD[:1], weights_VD), 4),
        flops_per_s=2 * len(rows_MD) * some_UD.numel() / _fastest_s(lambda: linear(rows_MD, some_UD), 4),
        kernel_s=_fastest_s(lambda: linear(few_DD[:1], few_DD), 50),
    )


def _fastest_s(call: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(times):
        start_s = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start_s)
    return min(seconds)
