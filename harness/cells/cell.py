"""A cell: one method on one model and one task, and the identity computed from its settings.

A cell's id is the SHA-256 of the canonical JSON of its settings. Paths of files and a suite's names for itself, models
and tasks are not part of it. The bytes of weights, data and prompts are, and so are the declared versions of engine,
method and metric. The code that implements them is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from exitbench.harness.cells.seeds import derivations
from exitbench.results.files.formats import content_id

if TYPE_CHECKING:  # numpy is not loaded to print help
    from exitbench.results.statistics.risk_control import Rule
    from exitbench.tasks.base import ModelKind

ID_VERSION = 3
"""Version of the identity's contents. Raising it makes every stored cell stale."""

Kind = Literal["quality", "timing", "probe", "scores", "replay", "fit", "calibration"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Consistency = Literal["textual", "risk"]
CONSISTENCIES: tuple[Consistency, ...] = get_args(Consistency)

Record = Literal["sublayers", "layer-pairs", "prompt-ids", "token-times"]
RECORDS: tuple[Record, ...] = get_args(Record)
TIMED_RECORDS: tuple[Record, ...] = ("token-times",)
"""Names in `RECORDS` that timing cells record; probes record the other names."""

Truncate = Literal["left", "right", "drop"]
TRUNCATIONS: tuple[Truncate, ...] = get_args(Truncate)


EngineName = Literal["lean", "hosted"]
EngineChoice = Literal["auto", "lean", "hosted"]
ENGINES: tuple[EngineChoice, ...] = get_args(EngineChoice)

HeadPrecision = Literal["exact", "certified"]
HEAD_PRECISIONS: tuple[HeadPrecision, ...] = get_args(HeadPrecision)

FirstToken = Literal["full", "gated"]
FIRST_TOKENS: tuple[FirstToken, ...] = get_args(FirstToken)

DeviceMap = tuple[tuple[str, int], ...]
"""Devices in the order of the blocks, each with its number of decoder blocks."""

Scope = Literal["token", "context"]
SCOPES: tuple[Scope, ...] = get_args(Scope)


UNTIMED_ROWS = 16
"""Default number of documents per batch in a fit, probe or scores cell."""

INPUTS = ("probe_cell_id", "scores_cell_id", "fit_cell_id")
"""Fields with the ids of the cells whose rows a cell reads as input; these ids are part of its identity."""


@dataclass(frozen=True)
class MethodRef:
    """A cell's method: its name, all its parameters (defaults included), and the version of its computation.

    Attributes:
        revision: Version that the method declares. For a third-party method also its distribution, and a digest of
            its syntax trees (`methods.registry.revision`).
        distribution: Name of the installed distribution that contains the method; None if there is none.
        version: Version of the distribution.
        unused_params: Names of parameters that have no effect, given the values of the others. The identity of a cell
            contains all parameters, but not this list.
    """

    name: str
    params: Mapping[str, Any]
    revision: str
    distribution: str | None = None
    version: str | None = None
    unused_params: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelRef:
    """A checkpoint, identified by its content.

    Attributes:
        name: The suite's name for the checkpoint.
        kind: ``seq2seq``, ``causal`` or ``encoder``.
        source: Origin: ``hub:OWNER/NAME@COMMIT`` or ``gguf:FILE@SHA256``; None for other folders and trained recipes.
            Not part of the identity: a copy of the same files is the same model.
    """

    name: str
    weights_sha256: str
    config_sha256: str
    tokenizer_sha256: str
    kind: ModelKind
    blocks: int
    encoder_blocks: int
    parameters: int
    source: str | None = None


@dataclass(frozen=True)
class TaskRef:
    """A task's documents, identified by their content.

    Attributes:
        label: The suite's name for the task.
        documents: Number of documents.
        settings: For lm-eval's tasks, the settings of prompts and answers that differ from the task's YAML (the YAML
            is part of the metrics' version); None for this project's tasks.
    """

    name: str
    label: str
    split: str
    source: str
    documents: int
    data_sha256: str
    prompts_sha256: str
    metric_version: str
    settings: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class GenerationSettings:
    """Settings of prompts and of greedy generation; a setting is None if the suite does not set it.

    Attributes:
        max_new_tokens: Maximum length of an answer, in tokens.
        stop: Strings that end an answer.
        repetition_penalty: Divisor of the positive logits, and factor of the negative logits, of tokens seen before.
        no_repeat_ngram_size: No n-gram of this size appears twice.
        min_length: Minimum number of tokens of an answer, counted as transformers does: including the prompt of a
            decoder-only model, or the start token of an encoder-decoder.
        forced_bos_token_id: First new token of an encoder-decoder.
        chat_template_sha256: Digest of the checkpoint's chat template, if prompts use it.
        system: System message of the chat.
        max_prompt_tokens: Maximum number of tokens of a prompt, special tokens included.
        truncate: Side on which longer prompts are cut (``left`` keeps their end), or ``drop``: their documents are
            excluded.
        first_token: Decoder-only models: ``gated`` lets the first token exit early like every other; None computes it
            in the prefill of the prompt, at full depth.
        scope: ``answer``: all tokens of an answer exit where its first token exits. ``context``, for log-likelihoods:
            all tokens of all choices of a context exit where its first scored token exits. None: each token
            exits on its own.
        prompt_style: Style of the prompts (`tasks.styles`); None for the task's own format, ``t5``.
        num_fewshot: Number of examples in each prompt; None for styles without examples.
        fewshot_seed: Seed that chose the examples; None if there are none.
    """

    max_new_tokens: int
    stop: tuple[str, ...] = ()
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    min_length: int | None = None
    forced_bos_token_id: int | None = None
    chat_template_sha256: str | None = None
    system: str | None = None
    max_prompt_tokens: int | None = None
    truncate: Truncate | None = None
    first_token: Literal["gated"] | None = None
    scope: Literal["context", "answer"] | None = None
    prompt_style: Literal["chat", "completion"] | None = None
    num_fewshot: int | None = None
    fewshot_seed: int | None = None

    @property
    def gates_first_token(self) -> bool:
        """True if the first token of a decoder-only model may exit early.

        The decode loop then runs the last prompt token; otherwise the prefill does.
        """
        return self.first_token == "gated"

    @cached_property
    def logit_rules(self) -> dict[str, Any]:
        """Rules of the suite, by name, that change logits before a token is chosen (`engine.decoding.logit_rules`)."""
        names = ("repetition_penalty", "no_repeat_ngram_size", "min_length", "forced_bos_token_id")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def to_json(self) -> dict[str, Any]:
        """Return all settings that are not None, as JSON data that is part of the cell's identity."""
        settings = {name: value for name, value in asdict(self).items() if value is not None}
        return {**settings, "stop": list(self.stop)}


@dataclass(frozen=True)
class TimingSettings:
    """Settings of a timing cell's measurement (docs/measuring.md).

    Attributes:
        documents: Number of documents timed, taken in order. Intervals are over documents, so fewer documents than the
            default cause a remark; more rounds over the same documents do not make them narrower.
        seconds: Time budget per arm (method, full depth): stop once each arm has been timed for this long, after
            `least_rounds` or more. None sets no budget.
        max_rounds: Maximum number of rounds over the documents. A round runs full depth and the method in
            mirrored order (ABBA).
        target_half_width: Stop earlier, after `least_rounds` or more, once the 95% interval of the paired speed-up is
            within this half width, relative to the speed-up.
        warm_up: Number of requests decoded before timing starts.
    """

    documents: int = 20
    seconds: float | None = 2.0
    max_rounds: int = 20
    target_half_width: float = 0.02
    warm_up: int = 3

    @property
    def least_rounds(self) -> int:
        """Minimum number of rounds; a median over fewer rounds is not robust against single slow measurements."""
        from exitbench.results.statistics.speed import MIN_ROUNDS

        return min(MIN_ROUNDS, self.max_rounds)

    def to_json(self) -> dict[str, Any]:
        """Return all settings that are not None, as JSON data that is part of the cell's identity."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class CalibrationSettings:
    """Settings of a threshold's calibration (CALM section 4).

    Attributes:
        levels: Thresholds to try, the most conservative first.
        delta: Bound on the expected loss.
        epsilon: Maximum probability that the bound is violated, over draws of the calibration documents.
        consistency: Definition of the loss. ``textual`` compares with full depth's text; ``risk`` is the decrease of
            the score against the references.
        rule: Name of the risk-control rule (`results.statistics.risk_control.RULES`).
        held_out_sha256: Digest of the documents on which the chosen threshold is checked.
    """

    levels: tuple[float, ...]
    delta: float
    epsilon: float
    consistency: Consistency
    rule: Rule
    held_out_sha256: str = ""


@dataclass(frozen=True)
class RecordSettings:
    """Settings of a probe or timing cell that stores additional kinds of data (`RECORDS`) instead of its usual results.

    Probes can record predictions after each sublayer, differences between blocks (`engine.decoding.sublayers`), and the
    token ids of prompts. Timing cells can record the time of each token (`work.recording`).

    Attributes:
        what: Names from `RECORDS`, in the order of `RECORDS`.
        documents: Number of documents that are recorded, taken in order.
    """

    what: tuple[Record, ...]
    documents: int


def default_batch_rows(kind: Kind, batch_size: int) -> int:
    """Return the default number of documents per batch, for a cell that does not set `batch_rows`."""
    return UNTIMED_ROWS if kind in ("probe", "scores", "fit") else batch_size


@dataclass(frozen=True)
class Cell:
    """One method with parameters on one model, one task and one seed, for one kind of measurement.

    Attributes:
        engine_version: `harness.engine.ENGINE_VERSION`.
        engine: Engine that runs the blocks: the lean engine, or transformers' own blocks (`harness.engine.hosted`).
        batch_size: Number of documents decoded together in timed work; elsewhere see `default_batch_rows`.
        batch_rows: Maximum number of documents decoded together in an untimed cell; None for the default. Part of
            the identity: a matrix product of a larger batch is summed in another order and can break ties differently.
        random_weights: Whether the model's weights were never trained.
        limited: Whether the user limited the documents to fewer than the suite says.
        timing: Only for timing cells; part of the identity.
        calibration: Only for calibration cells; part of the identity.
        record: Only for probe and timing cells that store additional data; part of the identity.
        full_depth_cell_id: Quality cell of full depth on the same model and documents; None in that cell and in cells
            not compared with it.
        probe_cell_id: Probe (cell with every block's predictions) that a scores or replay cell reads.
        scores_cell_id: Scores cell (with the gate's scores at every block) that a replay also reads, if the probe does
            not determine the method's score.
        fit_cell_id: Cell that fitted the method; None for methods that are not fitted.
        device_map: Number of blocks per device of a model on several devices; None if all blocks are on ``device``.
        head_precision: ``certified`` decides from bounds of the logits if the bounds suffice, with the same tokens and
            exit layers as ``exact``. FLOPs and stored scores differ, so it is part of the identity.
    """

    suite: str
    kind: Kind
    method: MethodRef
    engine_version: int
    kv_policy: str
    model: ModelRef
    task: TaskRef
    generation: GenerationSettings
    dtype: str
    device: str
    batch_size: int
    seed: int
    random_weights: bool = False
    limited: bool = False
    timing: TimingSettings | None = None
    calibration: CalibrationSettings | None = None
    record: RecordSettings | None = None
    full_depth_cell_id: str | None = None
    probe_cell_id: str | None = None
    scores_cell_id: str | None = None
    fit_cell_id: str | None = None
    batch_rows: int | None = None
    engine: EngineName = "lean"
    device_map: DeviceMap | None = None
    head_precision: HeadPrecision = "exact"

    @property
    def rows(self) -> int:
        """Maximum number of documents decoded in one batch."""
        return self.batch_rows or default_batch_rows(self.kind, self.batch_size)

    @property
    def depends_on(self) -> tuple[str, ...]:
        """Ids of the cells that must have ended ``ok`` before this cell runs."""
        compared = self.full_depth_cell_id if self.kind == "quality" else None
        needed = (compared, self.probe_cell_id, self.scores_cell_id, self.fit_cell_id)
        return tuple(cell_id for cell_id in needed if cell_id is not None)

    @property
    def execution(self) -> str:
        """``simulated`` for a replay, ``real`` for all cells that run the model."""
        return "simulated" if self.kind == "replay" else "real"

    @property
    def first_token(self) -> FirstToken:
        """``full`` if the first token is computed at full depth, by the prefill; ``gated`` if it may exit early."""
        return "gated" if self.model.kind == "seq2seq" or self.generation.gates_first_token else "full"

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Settings and digests that are hashed to the cell's id."""
        content: dict[str, Any] = {
            "id_version": ID_VERSION,
            "kind": self.kind,
            "method": {
                "name": self.method.name,
                "params": dict(self.method.params),
                "revision": self.method.revision,
            },
            "engine_version": self.engine_version,
            "kv_policy": self.kv_policy,
            "model": {
                "weights_sha256": self.model.weights_sha256,
                "config_sha256": self.model.config_sha256,
                "tokenizer_sha256": self.model.tokenizer_sha256,
            },
            "task": {
                "name": self.task.name,
                "data_sha256": self.task.data_sha256,
                "prompts_sha256": self.task.prompts_sha256,
                "metric_version": self.task.metric_version,
                **({} if self.task.settings is None else {"settings": dict(self.task.settings)}),
            },
            "generation": self.generation.to_json(),
            "dtype": self.dtype,
            "device": self.device,
            "batch_size": self.batch_size,
            "seed": self.seed,
        }
        if self.timing is not None:
            content["timing"] = self.timing.to_json()
        if self.calibration is not None:
            content["calibration"] = {**asdict(self.calibration), "levels": list(self.calibration.levels)}
        if self.record is not None:
            content["record"] = {**asdict(self.record), "what": list(self.record.what)}
        if self.generation.stop and (self.timing is not None or self.record is not None):
            content["ends_at_stop"] = True  # before, only answers of quality cells and probes ended at stop strings
        if self.engine != "lean":  # left out at its default, like every later setting, so that existing ids stay valid
            content["engine"] = self.engine
        if self.device_map is not None:
            content["device_map"] = [list(share) for share in self.device_map]
        if self.head_precision != "exact":
            content["head_precision"] = self.head_precision
            content["full_depth_head"] = self.head_precision  # before, full depth always read the exact head
        for name in ("batch_rows", *INPUTS):
            if (value := getattr(self, name)) is not None:
                content[name] = value
        return content

    @cached_property
    def cell_id(self) -> str:
        """SHA-256 (hex) of the identity."""
        return content_id(self.identity)

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``cell.json``."""
        record = asdict(self)
        record["generation"] = self.generation.to_json()
        record["depends_on"] = list(self.depends_on)
        record["method"]["unused_params"] = list(self.method.unused_params)
        if self.calibration is not None:
            record["calibration"]["levels"] = list(self.calibration.levels)
        if self.record is not None:
            record["record"]["what"] = list(self.record.what)
        record["device_map"] = self.device_map and [list(share) for share in self.device_map]
        return {
            "cell_id": self.cell_id,
            "id_version": ID_VERSION,
            "execution": self.execution,
            **record,
            "seeds": derivations(self.seed),
            "identity": self.identity,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Cell:
        """Rebuild a cell from ``cell.json``; derived keys (id, execution, identity) are computed again."""
        generation, timing, calibration = record["generation"], record["timing"], record["calibration"]
        method, recorded = record["method"], record["record"]
        rebuilt: dict[str, Any] = dict(
            method=MethodRef(**{**method, "unused_params": tuple(method["unused_params"])}),
            model=ModelRef(**record["model"]),
            task=TaskRef(**record["task"]),
            generation=GenerationSettings(**{**generation, "stop": tuple(generation["stop"])}),
            timing=None if timing is None else TimingSettings(**timing),
            calibration=calibration and CalibrationSettings(**{**calibration, "levels": tuple(calibration["levels"])}),
            record=recorded and RecordSettings(tuple(recorded["what"]), recorded["documents"]),
            device_map=_device_map(record["device_map"]),
        )
        return cls(**{field.name: record[field.name] for field in fields(cls)} | rebuilt)


def _device_map(stored: Sequence[Sequence[Any]] | None) -> DeviceMap | None:
    return None if stored is None else tuple((str(device), int(blocks)) for device, blocks in stored)
