"""Which engines run a checkpoint: each is tried, with weights where they fit, and says itself what it refuses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.harness.cells.cell import EngineChoice, EngineName
from exitbench.harness.engine.checkpoints.files import CONFIG
from exitbench.harness.engine.checkpoints.loading import Checkpoint, engine_for, load_checkpoint
from exitbench.harness.engine.hosted.model import HostedTransformer
from exitbench.harness.engine.model.available import available_bytes

_SHARE: Final = 0.5
"""Of the memory that is left, for weights in float32."""
_FLOAT32_BYTES: Final = 4


@dataclass(frozen=True)
class Tried:
    """What came of trying an engine.

    Attributes:
        engine: Which.
        why_not: Its own words where it refuses; None where it runs the model.
        is_proved: Whether what it computes is known to be right: of the lean engine always, of the hosted one where
            weights were loaded.
    """

    engine: EngineName
    why_not: str | None
    is_proved: bool


def try_engines(
    folder: Path, raw: dict[str, Any], choice: EngineChoice, numel: int
) -> tuple[tuple[Tried, ...], Checkpoint | None]:
    """Try the engine that is chosen, and whether the other would read the checkpoint.

    Args:
        folder: The checkpoint.
        raw: Its config.json.
        choice: As a suite says it.
        numel: Numbers in its files.

    Returns:
        The engine that runs it and the other, and what the first loaded; None where it refuses.
    """
    try:
        chosen = engine_for(folder / CONFIG, raw, choice)
    except UserError:  # a family that the lean engine does not have: it says so again where it is tried
        chosen = "lean"
    available = available_bytes("cpu")
    fits = available is None or numel * _FLOAT32_BYTES <= _SHARE * available
    first, checkpoint = _try(folder, chosen, "cpu" if chosen == "hosted" and fits else "meta")
    is_other_hosted = chosen == "lean"
    falls_back = is_other_hosted and choice == "auto" and checkpoint is None
    other, fallback = _try(folder, "hosted" if is_other_hosted else "lean", "cpu" if falls_back and fits else "meta")
    if falls_back and fallback is not None:
        return (other, first), fallback
    return (first, other), checkpoint


def _try(folder: Path, engine: EngineName, device: str) -> tuple[Tried, Checkpoint | None]:
    try:
        checkpoint = load_checkpoint(folder, device=device, engine=engine)
    except UserError as refusal:
        return Tried(engine, str(refusal), False), None
    is_proved = not isinstance(checkpoint.model, HostedTransformer) or device != "meta"
    return Tried(engine, None, is_proved), checkpoint
