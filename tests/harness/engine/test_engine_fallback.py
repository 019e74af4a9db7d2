"""With `engine = "auto"`, the hosted engine runs checkpoints whose tensors the lean engine does not support."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_edits import edit_config
from prompt_decoding import full_depth_tokens
from safetensors.torch import load_file, save_file
from torch import Tensor

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.inspecting.inspection import inspect_folder

Tensors = Mapping[str, Tensor]


def without_shared(tensors: Tensors) -> dict[str, Tensor]:
    """Return T5's tensors as MADLAD-400 saves them: the embedding under the decoder's name, and an LM head."""
    embedding = tensors["shared.weight"]
    left = {name: tensor for name, tensor in tensors.items() if name != "shared.weight"}
    return {**left, "decoder.embed_tokens.weight": embedding, "lm_head.weight": embedding * embedding.shape[1] ** -0.5}


def without_prefix(tensors: Tensors) -> dict[str, Tensor]:
    """Return Llama's tensors under the names that AutoModel gives them."""
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items()}


OTHERS = {"t5": without_shared, "llama": without_prefix}
MISSING = {"t5": "encoder.embed_tokens.weight", "llama": "model.embed_tokens.weight"}


@pytest.fixture
def changed(twin: Any, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a family's checkpoint with other tensors and values of config.json."""

    def change(family: str, change: Callable[[Tensors], Tensors], **config: Any) -> Path:
        folder = tmp_path / "changed"
        shutil.copytree(twin(family).folder, folder)
        tensors = {name: tensor.clone() for name, tensor in change(load_file(folder / "model.safetensors")).items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        edit_config(folder, **config)
        return folder

    return change


@pytest.mark.parametrize("family", OTHERS)
def test_hosted_engine_runs_checkpoints_that_the_lean_engine_cannot_read(
    twin: Any, prompts: Any, changed: Callable[..., Path], family: str
) -> None:
    folder = changed(family, OTHERS[family], **({"tie_word_embeddings": False} if family == "t5" else {}))
    checkpoint = load_checkpoint(folder)
    assert checkpoint.engine == "hosted" and checkpoint.fallback is not None
    assert f"tensor {MISSING[family]!r} is missing" in checkpoint.fallback
    assert full_depth_tokens(checkpoint, prompts[:3], 5) == full_depth_tokens(twin(family).checkpoint, prompts[:3], 5)
    result = inspect_folder(folder)
    assert [(one.engine, one.is_proved) for one in result.engines] == [("hosted", True), ("lean", False)]
    assert result.engines[1].why_not == checkpoint.fallback
    assert not [line for line in result.lacks if "tensor" in line]


@pytest.mark.parametrize("family", OTHERS)
def test_explicitly_requested_lean_engine_or_int8_has_no_fallback(changed: Callable[..., Path], family: str) -> None:
    folder = changed(family, OTHERS[family])
    with pytest.raises(UserError, match=f"tensor '{MISSING[family]}' is missing"):
        load_checkpoint(folder, engine="lean")
    with pytest.raises(UserError, match=f"tensor '{MISSING[family]}' is missing"):
        load_checkpoint(folder, torch.int8)  # which the hosted engine does not have
    assert [one.engine for one in inspect_folder(folder, "lean").engines] == ["lean", "hosted"]


def test_checkpoint_that_no_engine_reads_gets_the_lean_engines_message(changed: Callable[..., Path]) -> None:
    folder = changed("llama", lambda tensors: {**tensors, "model.extra.weight": torch.ones(3)})
    with pytest.raises(UserError, match=r"1 tensor is not part of the model .*: model\.extra\.weight\. The model"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("engine", "prefix", "who"),
    [
        ("auto", "_orig_mod.", ", as torch.compile calls them"),
        ("lean", "module.", ", as DistributedDataParallel calls them"),
        ("hosted", "language_model.", ""),
    ],
)
def test_tensor_name_prefix_is_reported_and_the_suggested_command_removes_it(
    changed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, engine: Any, prefix: str, who: str
) -> None:
    folder = changed("llama", lambda tensors: {prefix + name: tensor for name, tensor in tensors.items()})
    n = len(load_file(folder / "model.safetensors"))
    with pytest.raises(UserError) as caught:
        load_checkpoint(folder, engine=engine)
    message = str(caught.value)
    assert f"{n} of {n} names begin with {prefix!r}{who}. Take it off in a copy of the folder: `" in message
    (code,) = re.findall(r'`python -c "(.*)"`', message)
    monkeypatch.chdir(folder)
    exec(code, {})
    load_checkpoint(folder, engine=engine)
