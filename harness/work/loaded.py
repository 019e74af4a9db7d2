"""Loaded model of a worker, and the data that its cells share."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor

from exitbench.errors import UserError
from exitbench.harness.cells.cell import DeviceMap, EngineChoice, GenerationSettings
from exitbench.harness.cells.job import CellJob, DataRequest, WorkerSpec
from exitbench.harness.engine.checkpoints.encoder_loading import EncoderCheckpoint, is_encoder, load_encoder
from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer
from exitbench.harness.engine.encoders.model import EncoderClassifier
from exitbench.harness.engine.model.engine import Engine
from exitbench.harness.engine.products.choosing import use_fastest
from exitbench.harness.work.base import Skip
from exitbench.harness.work.lm import EarlyExitLM
from exitbench.harness.work.sharing import SharedPasses
from exitbench.methods.base import NOTHING_FITTED
from exitbench.results.files.atomic import SpoolError
from exitbench.results.side_records.vocabularies import record_vocabulary
from exitbench.results.spool.attempts import attempt_status, read_attempt
from exitbench.results.spool.schema import FITTED_FILE
from exitbench.tasks.document import Document

Value = TypeVar("Value")


class LoadedModel:
    """One loaded model, and caches shared by all cells that a worker runs on it.

    Args:
        spec: Specification of the worker: its cells and paths.
        loaded: The checkpoint, if it is already in memory; None loads it.

    Attributes:
        tokenizer: The checkpoint's tokenizer.
        products: Fastest matrix-multiplication routines of the weights, as measured on loading; None if not measured
            (`engine.products`).
        passes: State of the shared passes, each of which decodes or replays for several cells.
        full_answers: Token ids of full depth's greedy answers decoded so far: by data and settings, then by document
            key.
        wrap_lm: Function that may wrap or replace the lm-eval model of a cell; it returns the model to use.
    """

    def __init__(self, spec: WorkerSpec, loaded: Checkpoint | None = None) -> None:
        formats = {(item.cell.dtype, item.cell.engine, item.cell.device_map) for item in spec.cells}
        if len(formats) != 1:
            raise ValueError(f"one worker loads one number format, engine and device map, not {formats}")
        ((dtype, engine, device_map),) = formats
        self.spool, self.inputs, self.data_dir = spec.spool, spec.inputs or spec.spool, spec.data_dir
        self.path, self.confirms_unsafe_code = spec.model_path, spec.confirm_run_unsafe_code
        self._checkpoint = loaded or load_model(spec.model_path, getattr(torch, dtype), spec.device, engine, device_map)
        self.products = use_fastest(self._checkpoint.model) if loaded is None else None
        self.tokenizer: Any = load_tokenizer(spec.model_path)
        self._record_vocabulary(spec.cells[0].cell.model.tokenizer_sha256)
        self.passes = SharedPasses()
        self.wrap_lm: Callable[[CellJob, EarlyExitLM], EarlyExitLM] = lambda item, lm: lm
        self.documents = functools.cache(self._load)
        self._read_attempt = functools.cache(read_attempt)  # several cells may read the same attempt
        self.full_answers: dict[tuple[DataRequest, GenerationSettings], Mapping[str, list[int]]] = {}
        self._made: dict[Hashable, Any] = {}

    @property
    def checkpoint(self) -> Checkpoint:
        """The loaded checkpoint of a model that generates text."""
        assert isinstance(self._checkpoint, Checkpoint), "the planner gives classifiers tasks of their own"
        return self._checkpoint

    @property
    def classifier(self) -> EncoderClassifier:
        """The loaded classifier, for an encoder-only model."""
        assert isinstance(self._checkpoint, EncoderCheckpoint), "the planner gives encoders tasks of their own"
        return self._checkpoint.model

    @property
    def model(self) -> Engine | EncoderClassifier:
        """The model that runs the blocks: an engine for generation, or an encoder classifier."""
        return self._checkpoint.model

    def _record_vocabulary(self, tokenizer_sha256: str) -> None:
        texts = self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer)))
        try:
            record_vocabulary(self.spool, tokenizer_sha256, texts, self.tokenizer.all_special_ids)
        except UserError as error:  # no cell needs the spellings
            print(f"The tokens' spellings were not stored: {error}", file=sys.stderr)

    def _load(self, data: DataRequest) -> tuple[list[Document], int]:
        """Return a request's documents, and the number left out since a document with another use has the same prompt.

        It is called through the cached function `documents`.
        """
        return data.load_with_excluded_count(self.data_dir)

    def cached(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the cached value of a key; on first use, compute it with ``make``. All cells share the cache."""
        if key not in self._made:
            self._made[key] = make()
        value: Value = self._made[key]
        return value

    def fitted(self, fit_cell_id: str | None) -> Mapping[str, Tensor]:
        """Return the tensors that a fit cell has stored, by name; empty if the method needs no fit (None)."""
        if fit_cell_id is None:
            return NOTHING_FITTED
        path = self.file_of(fit_cell_id, FITTED_FILE)
        tensors: dict[str, Tensor] = load_file(path, device=str(self.model.device))
        return tensors

    def file_of(self, cell_id: str, name: str) -> Path:
        """Return the path of a file that the latest attempt of another cell has written to the spool.

        Raises:
            Skip: That cell has not succeeded, or its files are damaged or were removed.
        """
        status = attempt_status(self.inputs, cell_id)
        if status is None or status.status != "ok":
            outcome = "was never run" if status is None else f"ended as {status.status}"
            raise Skip(f"needs cell {cell_id[:12]}, which {outcome}")
        try:
            freed = self._read_attempt(status.path).freed
        except SpoolError as error:
            raise Skip(f"needs cell {cell_id[:12]}, which is damaged: {error}") from error
        if name.removesuffix(".parquet") in freed:
            raise Skip(f"needs {name} of cell {cell_id[:12]}, which `exitbench gc` removed; run that cell again")
        return status.path / name


def load_model(
    folder: Path, dtype: torch.dtype, device: str, engine: EngineChoice, device_map: DeviceMap | None
) -> Checkpoint | EncoderCheckpoint:
    """Load a checkpoint: a decoder, an encoder-decoder, or an encoder with a classifier.

    Args:
        folder: Folder of the checkpoint.
        dtype: Number format of the weights.
        device: Torch device.
        engine: Implementation that runs the blocks (``auto`` chooses); ignored for encoders.
        device_map: Devices with their numbers of blocks; None for one device. Ignored for encoders.

    Raises:
        UserError: The checkpoint cannot be read, or does not fit into memory.
    """
    if is_encoder(folder):
        return load_encoder(folder, dtype, device)
    return load_checkpoint(folder, dtype, device, engine, device_map)
