"""Notebook API for generative models: decode with any early-exit method, probe every block, replay many thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch

from exitbench.errors import UserError
from exitbench.harness.afterwards.replaying import Probe, replay
from exitbench.harness.api.classifiers import Classifier, bound_method
from exitbench.harness.cells.seeds import decode_seed
from exitbench.harness.engine.checkpoints.encoder_loading import is_encoder, load_encoder
from exitbench.harness.engine.checkpoints.files import CONFIG
from exitbench.harness.engine.checkpoints.hub import locate
from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint, read_config
from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer
from exitbench.harness.engine.decoding.decode import decode as decode_batch
from exitbench.harness.engine.decoding.decode import prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.probe import probe_table
from exitbench.harness.engine.products.choosing import use_fastest
from exitbench.harness.planning.plan import gpu_names, resolve_device, resolve_dtype
from exitbench.harness.planning.suite import DTYPES
from exitbench.harness.reading.regular_files import is_file
from exitbench.harness.training import find_trained, load_recipe
from exitbench.harness.training.recipe import recipe_names
from exitbench.harness.training.store import SHIPPED
from exitbench.methods.base import Method
from exitbench.methods.registry import baseline_method
from exitbench.terminal import print_escaped, visible

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Answer", "Model", "Probe", "decode", "load_model", "probe", "replay"]

_BATCH_ROWS = 16


@dataclass(frozen=True)
class Model:
    """A loaded generative checkpoint and its tokenizer, as returned by `load_model`.

    Attributes:
        folder: Folder from which the checkpoint was loaded.
        checkpoint: The model with its weights, as loaded by this project's engine.
        tokenizer: The transformers tokenizer.
    """

    folder: Path
    checkpoint: Checkpoint
    tokenizer: Any

    @property
    def n_blocks(self) -> int:
        """Number of decoder blocks, L."""
        return self.checkpoint.model.n_blocks

    def __repr__(self) -> str:
        """Return a short text with folder, kind of model and number of blocks; tensors are left out."""
        return f"Model({str(self.folder)!r}, {self.checkpoint.kind}, {self.n_blocks} decoder blocks)"


@dataclass(frozen=True)
class Answer:
    """Answer to one prompt and its exit trace. Per-token attributes include the end-of-sequence token.

    Attributes:
        text: The answer, without special tokens.
        tokens: The tokens as the tokenizer writes them.
        token_ids: Token ids.
        exit_layers: Exit layer of each token, 1..n_blocks.
        blocks_run: Number of blocks executed for each token.
        scores: Gate score at the exit; None for tokens that exited at the last block.
        stop_reason: ``eos`` or ``length``.
        n_blocks: Number of decoder blocks of the model.
    """

    text: str
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    exit_layers: tuple[int, ...]
    blocks_run: tuple[int, ...]
    scores: tuple[float | None, ...]
    stop_reason: str
    n_blocks: int

    @property
    def mean_exit_layer(self) -> float:
        """Mean exit layer over the tokens, in blocks."""
        return sum(self.exit_layers) / len(self.exit_layers)

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with one row per token."""
        import pandas as pd

        columns = ("tokens", "token_ids", "exit_layers", "blocks_run", "scores")
        names = ("token", "token_id", "exit_layer", "blocks_run", "score")
        columns_by_name = {name: list(getattr(self, column)) for name, column in zip(names, columns, strict=True)}
        return pd.DataFrame({"position": range(1, len(self.tokens) + 1), **columns_by_name})

    def show(self) -> None:
        """Print one line per token: the token, a bar as long as its exit layer, and the exit layer."""
        width = max(len(visible(token)) for token in self.tokens)
        for token, layer in zip(self.tokens, self.exit_layers, strict=True):
            print(f"{visible(token):<{width}}  {'█' * layer}{'·' * (self.n_blocks - layer)}  {layer}")
        print(f"{self.mean_exit_layer:.2f} of {self.n_blocks} blocks on average")


def load_model(
    name: str | Path, dtype: str = "float32", device: str = "cpu", *, hub: bool = False
) -> Model | Classifier:
    """Load a checkpoint folder, a Hugging Face hub model, or a bundled model by the name of its recipe.

    Args:
        name: A Hugging Face checkpoint folder, ``hub:OWNER/NAME@REVISION``, or a bundled model (``builtin-weighted``).
        dtype: ``float32``, ``bfloat16``, ``float16``, ``int8`` (weights only), or ``auto``, the dtype of the stored
            weights.
        device: ``cpu``, ``cuda``, ``cuda:N``, or ``auto``: a GPU if there is one, otherwise the CPU.
        hub: Whether the hub may be contacted; otherwise only its local cache is read.

    Returns:
        A `Model` for `decode` and `probe`, or a `Classifier` for `classify`, depending on the checkpoint.

    Raises:
        UserError: The folder, model or device does not exist, or the engine cannot read the model.

    Examples:
        >>> import exitbench as eb
        >>> eb.load_model("builtin-weighted").n_blocks
        8
    """
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r} is not known. Allowed: {', '.join(DTYPES)}.")
    devices = ("auto", "cpu", *gpu_names())
    if device not in devices:
        raise UserError(f"device {device!r} is not on this machine. Allowed: {', '.join(devices)}.")
    folder = find_model(name, hub=hub)
    torch_dtype = getattr(torch, resolve_dtype(dtype, folder))
    if is_encoder(folder):
        encoder = load_encoder(folder, torch_dtype, resolve_device(device))
        use_fastest(encoder.model)
        return Classifier(folder, encoder, load_tokenizer(folder))
    checkpoint = load_checkpoint(folder, torch_dtype, resolve_device(device))
    use_fastest(checkpoint.model)
    return Model(folder, checkpoint, load_tokenizer(folder))


def find_model(name: str | Path, *, hub: bool = False) -> Path:
    """Return the local folder of a checkpoint, named by a folder, a hub name or the name of a bundled model.

    ``hub``: Whether the model may be downloaded from the hub.

    Raises:
        UserError: The folder or model does not exist.
    """
    folder = locate(name, query_hub=hub, say=print_escaped).folder
    if not folder.exists() and str(name) in recipe_names():
        trained = find_trained(load_recipe(str(name)), SHIPPED)
        if trained is None:
            raise UserError(f"{name} is not bundled. Train it: exitbench train {name}.")
        folder = trained
    if not is_file(folder / CONFIG) or not is_encoder(folder):
        read_config(folder)  # reports a folder that is not a checkpoint before its weights are searched
    return folder


def decode(
    model: Model | Classifier,
    prompts: Sequence[str],
    method: str | Method = "full",
    *,
    max_new_tokens: int = 64,
    seed: int = 0,
    **params: Any,
) -> list[Answer]:
    """Answer prompts greedily with an early-exit method, in one batch.

    Args:
        model: A `Model`, from `load_model`.
        prompts: Complete input texts.
        method: A name from `exitbench.method_names()`, or a method object.
        max_new_tokens: Maximum number of tokens per answer.
        seed: Seed of random methods, combined with the index of the prompt.
        **params: Parameters of the method, such as ``threshold=0.9, kv_policy="state-copy"``.

    Returns:
        One `Answer` per prompt, in order.

    Raises:
        UserError: The model is a classifier, or the method or a parameter is unknown, incompatible with the model, or
            must be fitted first.

    Examples:
        >>> import exitbench as eb
        >>> model = eb.load_model("builtin-weighted")
        >>> answers = eb.decode(model, ["translate English to French: the key is lost ."], "static", exit_layer=2)
        >>> set(answers[0].exit_layers)
        {2}
    """
    model = _generating(model)
    engine = model.checkpoint.model
    chosen = bound_method(engine.n_blocks, engine.exit_blocks, method, params)
    requests = [_request(model, prompt, decode_seed(seed, str(at))) for at, prompt in enumerate(prompts)]
    if not requests:
        return []
    parts = chosen.parts(model.n_blocks)
    if (reason := engine.why_not(parts, len(requests))) is not None:
        raise UserError(f"{chosen.name!r} cannot be run on {str(model.folder)!r}: {reason}.")
    batch = prefill(engine, requests, max_new_tokens)
    return [_answer(model, generation) for generation in decode_batch(model.checkpoint, batch, parts)]


def probe(model: Model | Classifier, prompts: Sequence[str], *, max_new_tokens: int = 64) -> Probe:
    """Answer prompts at full depth, then record each block's prediction for every token in one teacher-forced pass.

    Args:
        model: A `Model`, from `load_model`.
        prompts: Complete input texts.
        max_new_tokens: Maximum number of tokens per answer.

    Returns:
        A `Probe`, from which `replay` computes any threshold without running the model again.

    Raises:
        UserError: There are no prompts, or the model is a classifier.

    Examples:
        >>> import exitbench as eb
        >>> probe = eb.probe(eb.load_model("builtin-weighted"), ["translate English to French: the key is lost ."])
        >>> len(probe.table.column("p1")[0])
        8
    """
    model = _generating(model)
    if not prompts:
        raise UserError("probe: there are no prompts.")
    full = baseline_method()().parts(model.n_blocks)
    tables = []
    for start in range(0, len(prompts), _BATCH_ROWS):
        requests = [_request(model, prompt) for prompt in prompts[start : start + _BATCH_ROWS]]
        answers = decode_batch(model.checkpoint, prefill(model.checkpoint.model, requests, max_new_tokens), full)
        keys = [f"{start + row:06}" for row in range(len(requests))]
        prompt_ids, outputs = [request.prompt_ids for request in requests], [answer.token_ids for answer in answers]
        tables.append(probe_table(model.checkpoint, keys, prompt_ids, outputs))
    return Probe(pa.concat_tables(tables), model.n_blocks, max_new_tokens, model.checkpoint.kind == "causal")


def _generating(model: Model | Classifier) -> Model:
    if isinstance(model, Classifier):
        raise UserError("this model classifies, and no text is generated with it. Classify with it: eb.classify.")
    return model


def _request(model: Model, prompt: str, seed: int = 0) -> Request:
    return Request(list(model.tokenizer(prompt)["input_ids"]), seed)


def _answer(model: Model, generation: Generation) -> Answer:
    return Answer(
        text=model.tokenizer.decode(generation.token_ids, skip_special_tokens=True),
        tokens=tuple(model.tokenizer.convert_ids_to_tokens(generation.token_ids)),
        token_ids=tuple(generation.token_ids),
        exit_layers=tuple(generation.exit_layers),
        blocks_run=tuple(generation.blocks_run),
        scores=tuple(generation.scores),
        stop_reason=generation.stop_reason,
        n_blocks=model.n_blocks,
    )
