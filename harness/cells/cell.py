"""One cell: what is asked of one method on one model and one task, and the identity that follows from it.

A cell's id is the SHA-256 of the canonical JSON of *what was asked*. Where a file lies and what
somebody calls a suite, a model or a task are not part of that; the bytes of weights, data and prompts are, and so are
the versions that engine, method and metric declare of what they compute. How their code is written is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from exitbench.harness.cells.seeds import derivations
from exitbench.results.files.formats import content_id

if TYPE_CHECKING:  # numpy is not loaded to print help
    from exitbench.results.statistics.risk_control import Rule
    from exitbench.tasks.base import ModelKind

ID_VERSION = 3
"""Version of the identity's contents; raising it makes every stored cell stale."""

Kind = Literal["quality", "timing", "probe", "scores", "replay", "fit", "calibration"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Consistency = Literal["textual", "risk"]
CONSISTENCIES: tuple[Consistency, ...] = get_args(Consistency)

Record = Literal["sublayers", "layer-pairs", "prompt-ids", "token-times"]
RECORDS: tuple[Record, ...] = get_args(Record)
TIMED_RECORDS: tuple[Record, ...] = ("token-times",)
"""What timing cells record; probes record the others."""

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
"""Devices, each with how many decoder blocks it has, the first blocks first."""

Scope = Literal["token", "context"]
SCOPES: tuple[Scope, ...] = get_args(Scope)


UNTIMED_ROWS = 16
"""Documents that go through all blocks together in a fit, a probe and its scores, where a suite names no number."""

INPUTS = ("probe_cell_id", "scores_cell_id", "fit_cell_id")
"""Cells whose rows a cell computes from: part of what it asks."""


@dataclass(frozen=True)
class MethodRef:
    """A method with every parameter, defaults included, and the revision of what it computes.

    Attributes:
        revision: The version that it declares and, of a method that does not come along, its distribution and the
            digest of its syntax (`methods.registry.revision`).
        distribution: What brought it, by name; None where no installed distribution did.
        version: Of the distribution.
        unused_params: Parameters that the others leave without effect. Not part of the identity, which has them all.
    """

    name: str
    params: Mapping[str, Any]
    revision: str
    distribution: str | None = None
    version: str | None = None
    unused_params: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelRef:
    """A checkpoint by content. ``name`` is what the suite calls it; ``kind`` is seq2seq or causal.

    Attributes:
        source: Where it came from, such as ``hub:OWNER/NAME@COMMIT``; None for a folder of the user's and for a recipe.
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
    """A task's documents by content. ``label`` is what the suite calls them; ``documents`` counts them.

    Attributes:
        settings: Of a task of lm-eval: what its prompts and answers are made by beside its YAML, which the metrics'
            version has; None for our own tasks.
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
    """How prompts are made and when greedy generation ends besides end-of-sequence; None where a suite does not ask.

    Attributes:
        max_new_tokens: Longest answer.
        stop: Strings that end an answer.
        repetition_penalty: What logits of tokens seen before are divided by (multiplied with where negative).
        no_repeat_ngram_size: No run of so many tokens appears twice.
        min_length: Tokens before which no answer ends, counted as transformers does: with the prompt of a decoder-only
            model, with the start token of an encoder-decoder.
        forced_bos_token_id: First new token of an encoder-decoder.
        chat_template_sha256: Digest of the checkpoint's chat template, through which prompts go.
        system: System message of the chat.
        max_prompt_tokens: Longest prompt, special tokens included.
        truncate: Where longer ones are cut (``left`` keeps their end), or ``drop``: their documents are left out.
        first_token: Decoder-only models: ``gated`` lets the first token exit early like every other; None reads it
            from the prompt's own pass, at full depth.
        scope: Log-likelihoods: ``context`` keeps the depth of the first scored token for all tokens of all choices of
            its context; None decides by token.
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
    scope: Literal["context"] | None = None

    @property
    def gates_first_token(self) -> bool:
        """Whether the last prompt token of a decoder-only model goes through the decode loop."""
        return self.first_token == "gated"

    @cached_property
    def logit_rules(self) -> dict[str, Any]:
        """Rules asked for, by name, that change logits before a token is chosen (`engine.decoding.logit_rules`)."""
        names = ("repetition_penalty", "no_repeat_ngram_size", "min_length", "forced_bos_token_id")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def to_json(self) -> dict[str, Any]:
        """Return the budget, the stop strings and whatever else is asked: its part of an identity."""
        asked = {name: value for name, value in asdict(self).items() if value is not None}
        return {**asked, "stop": list(self.stop)}


@dataclass(frozen=True)
class TimingSettings:
    """How a timing cell measures (docs: how we measure).

    Attributes:
        documents: Documents timed, taken in order. They are what intervals are over, so that fewer than the default are
            a remark; rounds over the same ones make no interval hold more often.
        seconds: Stop after `least_rounds` or more, once each arm has been timed for this long; None where only the
            other two stop it, as before there was a budget.
        max_rounds: Upper bound of ABBA rounds over the documents.
        target_half_width: Stop earlier, after `least_rounds` or more, once the 95% interval of the paired speed-up is
            within this half width, relative to the speed-up.
        warm_up: Requests decoded before anything is timed.
    """

    documents: int = 20
    seconds: float | None = 2.0
    max_rounds: int = 20
    target_half_width: float = 0.02
    warm_up: int = 3

    @property
    def least_rounds(self) -> int:
        """Rounds that are always timed: a median of fewer readings follows those that stalled."""
        from exitbench.results.statistics.speed import MIN_ROUNDS

        return min(MIN_ROUNDS, self.max_rounds)

    def to_json(self) -> dict[str, Any]:
        """Return its part of an identity; settings that are not asked for are left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class CalibrationSettings:
    """How a threshold is calibrated (CALM section 4).

    Attributes:
        levels: Values of the method's threshold to try, conservative first.
        delta: Bound on the expected loss.
        epsilon: Chance that the bound is broken, over draws of the calibration documents.
        consistency: Loss against full depth's text, or how much worse the score against the references is.
        rule: A name of `results.risk_control.RULES`.
        held_out_sha256: Digest of the documents on which the choice is checked.
    """

    levels: tuple[float, ...]
    delta: float
    epsilon: float
    consistency: Consistency
    rule: Rule
    held_out_sha256: str = ""


@dataclass(frozen=True)
class RecordSettings:
    """What a probe or a timing records in place of what it usually does, in a cell of its own.

    Of probes: the inside of blocks (`engine.decoding.sublayers`), and the ids of prompts. Of timings: when each token
    is there (`work.recording`).

    Attributes:
        what: Names of `RECORDS`, in their order.
        documents: Documents of which it is recorded, taken in order.
    """

    what: tuple[Record, ...]
    documents: int


def unasked_rows(kind: Kind, batch_size: int) -> int:
    """Return how many documents go through the model together in a cell of which a suite says no `batch_rows`."""
    return UNTIMED_ROWS if kind in ("probe", "scores", "fit") else batch_size


@dataclass(frozen=True)
class Cell:
    """One method with parameters on one model, one task, one seed, of one kind.

    Attributes:
        engine_version: `harness.engine.ENGINE_VERSION`.
        engine: What runs the model's blocks: the engine's own forward pass, or transformers' (`harness.engine.hosted`).
        batch_size: Rows that are decoded together in what is timed.
        batch_rows: Rows that are decoded together in a cell that decodes and is not timed, at most; None where it is
            not asked (`rows`). Part of what was asked: products of more rows add up in another order, which decides
            between tokens that are tied but for rounding.
        timing: Only for timing cells; part of what was asked.
        calibration: Only for calibration cells; likewise.
        record: Only for probe and timing cells that record what others do not; likewise.
        full_depth_cell_id: Quality cell of full depth on the same model and documents; None for itself.
        probe_cell_id: What a scores or replay cell reads.
        scores_cell_id: What a replay reads besides, where the probe cannot tell the method's score.
        fit_cell_id: Where the method was fitted; None for methods that fit nothing.
        device_map: Where the blocks of a model are that is on several devices; None where all is on ``device``.
        head_precision: ``certified`` decides from bounds of the logits where those tell, with the tokens and exit
            layers of ``exact``. Work and stored scores differ: part of what was asked.
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
        """Documents that go through the model together."""
        return self.batch_rows or unasked_rows(self.kind, self.batch_size)

    @property
    def depends_on(self) -> tuple[str, ...]:
        """Cells that must have ended ``ok`` before this one runs."""
        compared = self.full_depth_cell_id if self.kind == "quality" else None
        needed = (compared, self.probe_cell_id, self.scores_cell_id, self.fit_cell_id)
        return tuple(cell_id for cell_id in needed if cell_id is not None)

    @property
    def execution(self) -> str:
        """``simulated`` for a replay, ``real`` for everything that ran the model."""
        return "simulated" if self.kind == "replay" else "real"

    @property
    def first_token(self) -> FirstToken:
        """``full`` where the first token is read from the prompt's own pass, ``gated`` where it may exit early."""
        return "gated" if self.model.kind == "seq2seq" or self.generation.gates_first_token else "full"

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Exactly what is hashed."""
        asked: dict[str, Any] = {
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
            asked["timing"] = self.timing.to_json()
        if self.calibration is not None:
            asked["calibration"] = {**asdict(self.calibration), "levels": list(self.calibration.levels)}
        if self.record is not None:
            asked["record"] = {**asdict(self.record), "what": list(self.record.what)}
        if self.engine != "lean":  # left out at its default, like every later setting, so that ids stay
            asked["engine"] = self.engine
        if self.device_map is not None:
            asked["device_map"] = [list(share) for share in self.device_map]
        if self.head_precision != "exact":
            asked["head_precision"] = self.head_precision
        for name in ("batch_rows", *INPUTS):
            if (value := getattr(self, name)) is not None:
                asked[name] = value
        return asked

    @cached_property
    def cell_id(self) -> str:
        """SHA-256 (hex) of the identity."""
        return content_id(self.identity)

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``cell.json`` (docs/contracts.md)."""
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
        """Rebuild a cell from ``cell.json``; derived keys (id, execution, identity) are computed anew."""
        generation, timing, calibration = record["generation"], record["timing"], record["calibration"]
        method = record["method"]
        recorded = record["record"]
        return cls(
            suite=record["suite"],
            kind=cast(Kind, record["kind"]),
            method=MethodRef(**{**method, "unused_params": tuple(method["unused_params"])}),
            engine_version=record["engine_version"],
            kv_policy=record["kv_policy"],
            model=ModelRef(**record["model"]),
            task=TaskRef(**record["task"]),
            generation=GenerationSettings(**{**generation, "stop": tuple(generation["stop"])}),
            dtype=record["dtype"],
            device=record["device"],
            batch_size=record["batch_size"],
            seed=record["seed"],
            random_weights=record["random_weights"],
            limited=record["limited"],
            timing=None if timing is None else TimingSettings(**timing),
            calibration=calibration and CalibrationSettings(**{**calibration, "levels": tuple(calibration["levels"])}),
            record=recorded and RecordSettings(tuple(recorded["what"]), recorded["documents"]),
            full_depth_cell_id=record["full_depth_cell_id"],
            **{name: record[name] for name in INPUTS},
            batch_rows=record["batch_rows"],
            engine=cast(EngineName, record["engine"]),
            device_map=_device_map(record["device_map"]),
            head_precision=cast(HeadPrecision, record["head_precision"]),
        )


def _device_map(stored: Sequence[Sequence[Any]] | None) -> DeviceMap | None:
    return None if stored is None else tuple((str(device), int(blocks)) for device, blocks in stored)
