"""Settings of a checkpoint's generation_config.json that ExitBench does not apply."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from exitbench.harness.cells.cell import GenerationSettings

_UNCHANGED: Final[Mapping[str, tuple[Any, ...]]] = {
    "do_sample": (False,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "dola_layers": (),
    "repetition_penalty": (1,),
    "encoder_repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "bad_words_ids": ([],),
    "force_words_ids": ([],),
    "constraints": ([],),
    "sequence_bias": ({}, []),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1,),
    "watermarking_config": (),
    "token_healing": (False,),
    "stop_strings": ([], ""),
    "max_time": (),
}
"""Settings that change which tokens transformers' ``generate`` returns, with the values (besides null) that do not.

Ids of special tokens are not listed, since they are applied; nor is the longest answer, which the suite sets.
"""

_OF_SAMPLING: Final[Mapping[str, tuple[Any, ...]]] = {
    "temperature": (1,),
    "top_k": (50,),
    "top_p": (1,),
    "min_p": (),
    "top_h": (),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
}
_OF_BEAMS: Final[Mapping[str, tuple[Any, ...]]] = {
    "length_penalty": (1,),
    "early_stopping": (False,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
}

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class NotApplied:
    """Generation settings of a checkpoint that were not applied.

    Attributes:
        file: Name of the file with the settings.
        settings: The file's values, by name of the setting.
    """

    file: str
    settings: Mapping[str, Any]

    def __str__(self) -> str:
        settings = ", ".join(f"{name} = {_short_json(value)}" for name, value in self.settings.items())
        return f"not applied: {settings} ({self.file})"


def not_applied(folder: Path, generation: GenerationSettings) -> NotApplied:
    """Return the settings of a checkpoint that would change generated tokens, but that a suite's cell does not apply.

    As in transformers, config.json counts only if there is no generation_config.json.

    Args:
        folder: Folder of the checkpoint.
        generation: Settings of the cell; a setting with the same value as in the checkpoint counts as applied.

    Raises:
        UserError: A file cannot be read.
    """
    from exitbench.harness.engine.checkpoints.loading import GENERATION_CONFIG, read_config, read_generation_config

    has_own_file = (folder / GENERATION_CONFIG).is_file()
    stored, requested = read_generation_config(folder) if has_own_file else read_config(folder), generation.to_json()
    without_effect = dict(_UNCHANGED)
    if stored.get("do_sample"):
        without_effect |= _OF_SAMPLING
    if stored.get("num_beams") not in (None, 1):
        without_effect |= _OF_BEAMS
    settings = {
        name: _plain(stored[name])
        for name, unchanged in without_effect.items()
        if stored.get(name) is not None and stored[name] not in unchanged and stored[name] != requested.get(name)
    }
    return NotApplied(GENERATION_CONFIG if has_own_file else "config.json", settings)


def _plain(value: Any) -> Any:
    """Return the value itself, or its text if JSON cannot represent it (NaN, infinity)."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return str(value)
    return value


def _short_json(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
