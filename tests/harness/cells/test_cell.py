"""A cell's id: values that change it, values that do not, and fixed ids that show accidental changes."""

import functools
import json
from collections.abc import Iterator
from dataclasses import Field, fields, replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitbench.harness.cells.cell import (
    CONSISTENCIES,
    HEAD_PRECISIONS,
    ID_VERSION,
    INPUTS,
    KINDS,
    RECORDS,
    TRUNCATIONS,
    CalibrationSettings,
    Cell,
    EngineName,
    GenerationSettings,
    MethodRef,
    ModelRef,
    RecordSettings,
    TaskRef,
    TimingSettings,
)
from exitbench.results.files.values import first_invalid_key
from exitbench.results.spool.schema import CELL_KEYS
from exitbench.results.statistics.risk_control import RULES
from exitbench.tasks.base import ModelKind

CELL = Cell(
    suite="suite",
    kind="quality",
    method=MethodRef("gate", {"threshold": 0.5, "decay": "code"}, "1", unused_params=("decay",)),
    engine_version=1,
    kv_policy="state-copy",
    model=ModelRef("small", "b" * 64, "c" * 64, "d" * 64, "seq2seq", 8, 4, 1000),
    task=TaskRef("squad", "squad-short", "test", "builtin", 60, "e" * 64, "f" * 64, "squad-1"),
    generation=GenerationSettings(16, ("\n",)),
    dtype="float32",
    device="cpu",
    batch_size=1,
    seed=7,
)

UNSTOPPED = replace(CELL.generation, stop=())
RECORD = RecordSettings(("sublayers", "layer-pairs"), 4)
CALIBRATION = CalibrationSettings((0.9, 0.5), 0.1, 0.05, "textual", "hoeffding-bentkus", "1" * 64)

ASKED: dict[str, Any] = {
    "kind": replace(CELL, kind="probe"),
    "method name": replace(CELL, method=replace(CELL.method, name="other")),
    "parameter": replace(CELL, method=replace(CELL.method, params={"threshold": 0.6, "decay": "code"})),
    "parameter's type": replace(CELL, method=replace(CELL.method, params={"threshold": "0.5", "decay": "code"})),
    "method revision": replace(CELL, method=replace(CELL.method, revision="2")),
    "engine version": replace(CELL, engine_version=2),
    "KV policy": replace(CELL, kv_policy="exact"),
    "weights": replace(CELL, model=replace(CELL.model, weights_sha256="0" * 64)),
    "config": replace(CELL, model=replace(CELL.model, config_sha256="0" * 64)),
    "tokenizer": replace(CELL, model=replace(CELL.model, tokenizer_sha256="0" * 64)),
    "task": replace(CELL, task=replace(CELL.task, name="other")),
    "data": replace(CELL, task=replace(CELL.task, data_sha256="0" * 64)),
    "prompts": replace(CELL, task=replace(CELL.task, prompts_sha256="0" * 64)),
    "metric version": replace(CELL, task=replace(CELL.task, metric_version="squad-2")),
    "budget": replace(CELL, generation=replace(CELL.generation, max_new_tokens=17)),
    "stop strings": replace(CELL, generation=replace(CELL.generation, stop=())),
    "number format": replace(CELL, dtype="bfloat16"),
    "device": replace(CELL, device="cuda"),
    "batch size": replace(CELL, batch_size=2),
    "rows decoded together": replace(CELL, batch_rows=2),
    "precision of the head": replace(CELL, head_precision="certified"),
    "seed": replace(CELL, seed=8),
    "timing settings": replace(CELL, timing=TimingSettings()),
    "calibration settings": replace(CELL, calibration=CALIBRATION),
    "levels": replace(CELL, calibration=replace(CALIBRATION, levels=(0.9,))),
    "delta": replace(CELL, calibration=replace(CALIBRATION, delta=0.2)),
    "epsilon": replace(CELL, calibration=replace(CALIBRATION, epsilon=0.2)),
    "consistency": replace(CELL, calibration=replace(CALIBRATION, consistency="risk")),
    "rule": replace(CELL, calibration=replace(CALIBRATION, rule="naive")),
    "record": replace(CELL, record=RECORD),
    "what is recorded": replace(CELL, record=RecordSettings(("sublayers",), 4)),
    "documents recorded": replace(CELL, record=RecordSettings(("sublayers", "layer-pairs"), 5)),
    "held-out documents": replace(CELL, calibration=replace(CALIBRATION, held_out_sha256="0" * 64)),
}

NAMES: dict[str, Any] = {
    "suite": replace(CELL, suite="other"),
    "name of the model": replace(CELL, model=replace(CELL.model, name="other")),
    "label of the task": replace(CELL, task=replace(CELL.task, label="other")),
    "source": replace(CELL, task=replace(CELL.task, source="local")),
    "order of parameters": replace(CELL, method=replace(CELL.method, params={"decay": "code", "threshold": 0.5})),
    "labels of the result": replace(CELL, random_weights=True, limited=True),
}


@pytest.mark.parametrize("what", ASKED)
def test_every_identity_field_changes_the_id(what: str) -> None:
    assert ASKED[what].cell_id != CELL.cell_id


def test_distinct_cells_have_distinct_ids() -> None:
    assert len({cell.cell_id for cell in ASKED.values()}) == len(ASKED)


@pytest.mark.parametrize("what", NAMES)
def test_names_and_paths_do_not_change_the_id(what: str) -> None:
    assert NAMES[what] != CELL or what == "order of parameters"
    assert NAMES[what].cell_id == CELL.cell_id


@pytest.mark.parametrize("name", INPUTS)
def test_input_digests_change_the_id(name: str) -> None:
    first, second = (replace(CELL, **{name: other * 64}) for other in "12")
    assert len({first.cell_id, second.cell_id, CELL.cell_id}) == 3


def test_full_depth_reference_does_not_change_the_id() -> None:
    assert replace(CELL, full_depth_cell_id="1" * 64).cell_id == CELL.cell_id


def test_cells_depend_on_their_inputs_and_quality_cells_on_full_depth_too() -> None:
    inputs = {name: str(number) * 64 for number, name in enumerate(INPUTS)}
    cell = replace(CELL, full_depth_cell_id="f" * 64, **inputs)
    assert cell.depends_on == ("f" * 64, *inputs.values())
    assert replace(cell, kind="replay").depends_on == tuple(inputs.values())
    assert CELL.depends_on == ()


def test_only_a_replay_is_simulated() -> None:
    assert {kind for kind in KINDS if replace(CELL, kind=kind).execution == "simulated"} == {"replay"}


def test_cell_json_has_every_key_of_the_spool() -> None:
    record = CELL.to_json()
    assert first_invalid_key(record, CELL_KEYS) is None
    assert record["identity"] == CELL.identity


DIGESTS = st.text("0123456789abcdef", min_size=64, max_size=64)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.one_of(st.booleans(), st.integers(), NUMBERS, st.text())
PARAMS = st.dictionaries(st.text(), st.one_of(SCALARS, st.lists(SCALARS), st.dictionaries(st.text(), SCALARS)))
LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "str": st.text(),
    "int": st.integers(),
    "float": NUMBERS,
    "bool": st.booleans(),
    "str | None": st.none() | DIGESTS,
    "int | None": st.none() | st.integers(),
    "float | None": st.none() | NUMBERS,
    "Literal['gated'] | None": st.none() | st.just("gated"),
    "Literal['context', 'answer'] | None": st.none() | st.sampled_from(["context", "answer"]),
    "Literal['chat', 'completion'] | None": st.none() | st.sampled_from(["chat", "completion"]),
    "Truncate | None": st.none() | st.sampled_from(TRUNCATIONS),
    "tuple[str, ...]": st.lists(st.text()).map(tuple),
    "tuple[Record, ...]": st.lists(st.sampled_from(RECORDS)).map(tuple),
    "tuple[float, ...]": st.lists(NUMBERS).map(tuple),
    "Mapping[str, Any]": PARAMS,
    "Mapping[str, Any] | None": st.none() | PARAMS,
    "ModelKind": st.sampled_from(get_args(ModelKind)),
    "Kind": st.sampled_from(KINDS),
    "EngineName": st.sampled_from(get_args(EngineName)),
    "HeadPrecision": st.sampled_from(HEAD_PRECISIONS),
    "DeviceMap | None": st.none() | st.lists(st.tuples(st.text(), st.integers()), min_size=1).map(tuple),
    "Consistency": st.sampled_from(CONSISTENCIES),
    "Rule": st.sampled_from(sorted(RULES)),
}
PARTS = {
    "MethodRef": MethodRef,
    "ModelRef": ModelRef,
    "TaskRef": TaskRef,
    "GenerationSettings": GenerationSettings,
    "TimingSettings": TimingSettings,
    "CalibrationSettings": CalibrationSettings,
    "RecordSettings": RecordSettings,
}
# Everything else that a cell has is asked.
NOT_ASKED = {
    "suite",
    "method.distribution",
    "method.version",
    "method.unused_params",  # follows from the parameters
    "model.name",
    "model.kind",
    "model.blocks",
    "model.encoder_blocks",
    "model.parameters",
    "model.source",
    "task.label",
    "task.split",
    "task.source",
    "task.documents",
    "random_weights",
    "limited",
    "full_depth_cell_id",
}


def any_of(part: type[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a dataclass, whose fields may be dataclasses themselves."""
    return st.builds(part, **{item.name: any_value(item) for item in fields(part)})


def any_value(item: Field[Any]) -> st.SearchStrategy[Any]:
    kind = str(item.type)
    if (part := PARTS.get(kind.removesuffix(" | None"))) is None:
        return LEAVES[kind]
    return any_of(part) | st.none() if kind.endswith("None") else any_of(part)


def leaves(part: Any, prefix: str = "") -> Iterator[tuple[str, Field[Any]]]:
    """Yield path and field of every plain value within nested dataclasses; parts that are None are skipped."""
    for item in fields(part):
        if str(item.type).removesuffix(" | None") not in PARTS:
            yield prefix + item.name, item
        elif (value := getattr(part, item.name)) is not None:
            yield from leaves(value, f"{prefix}{item.name}.")


def changed(part: Any, path: str, value: Any) -> Any:
    """Return a copy of the dataclass with another value at a path."""
    name, _, rest = path.partition(".")
    return replace(part, **{name: changed(getattr(part, name), rest, value) if rest else value})


def at(part: Any, path: str) -> Any:
    return functools.reduce(getattr, path.split("."), part)


def spelled(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


CELLS = any_of(Cell)


@given(cell=CELLS, data=st.data())
def test_any_change_of_an_identity_field_changes_the_id(cell: Cell, data: st.DataObject) -> None:
    path, item = data.draw(st.sampled_from([leaf for leaf in leaves(cell) if leaf[0] not in NOT_ASKED]))
    value = data.draw(any_value(item).filter(lambda value: spelled(value) != spelled(at(cell, path))))
    assert changed(cell, path, value).cell_id != cell.cell_id


@given(cell=CELLS, data=st.data())
def test_no_change_outside_the_identity_changes_the_id(cell: Cell, data: st.DataObject) -> None:
    path, item = data.draw(st.sampled_from([leaf for leaf in leaves(cell) if leaf[0] in NOT_ASKED]))
    assert changed(cell, path, data.draw(any_value(item))).cell_id == cell.cell_id


@given(cell=CELLS, part=st.sampled_from([TimingSettings(), CALIBRATION, RECORD]))
def test_optional_settings_change_the_id(cell: Cell, part: Any) -> None:
    names = {TimingSettings: "timing", CalibrationSettings: "calibration", RecordSettings: "record"}
    name = names[type(part)]
    assert replace(cell, **{name: part}).cell_id != replace(cell, **{name: None}).cell_id


@given(params=PARAMS, data=st.data())
def test_parameter_order_does_not_change_the_id(params: dict[str, Any], data: st.DataObject) -> None:
    other = {name: params[name] for name in data.draw(st.permutations(list(params)))}
    ids = {replace(CELL, method=replace(CELL.method, params=each)).cell_id for each in (params, other)}
    assert len(ids) == 1


@given(first=CELLS, second=CELLS)
def test_ids_are_equal_exactly_if_the_identities_are(first: Cell, second: Cell) -> None:
    assert (first.cell_id == second.cell_id) == (spelled(first.identity) == spelled(second.identity))


@given(cell=CELLS)
def test_cell_round_trips_through_json(cell: Cell) -> None:
    back = Cell.from_json(json.loads(json.dumps(cell.to_json())))
    assert back == cell
    assert back.cell_id == cell.cell_id


def test_id_version_changes_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exitbench.harness.cells.cell.ID_VERSION", ID_VERSION + 1)
    assert replace(CELL).cell_id != CELL.cell_id


# If one of these fails, stored results are no longer found: raise ID_VERSION and say why in CHANGELOG.md, or undo it.
GOLDEN = {
    "quality": (CELL, "d2effe41862bd0475ade5ae9589d9bc5a532d2835f28a15f530fb9026da0a176"),
    "timing for some seconds": (
        replace(CELL, kind="timing", timing=TimingSettings(), generation=UNSTOPPED),
        "3ab2c09276a6c1f4e866ce130437a2d21f3bf7219b0533cd9920d116070a40e5",
    ),
    "timing of before there were seconds": (
        replace(CELL, kind="timing", timing=TimingSettings(20, None, max_rounds=5), generation=UNSTOPPED),
        "02243da7b89610d9e616bcea8c0883d28f8e6e024a8e2bcf6e61b2c52944b8a3",
    ),
    "timing that ends at stop strings": (
        replace(CELL, kind="timing", timing=TimingSettings()),
        "15376b869a9624f8c7f8d86e7758ffc67163fa0d959fe36449c2261beb4a4cf9",
    ),
    "calibration": (
        replace(CELL, kind="calibration", calibration=CALIBRATION),
        "7f6d7415f1628cc76551e5478bcd8d4bdcb5e56995ef77988f6fde00115750ec",
    ),
    "replay": (
        replace(CELL, kind="replay", probe_cell_id="2" * 64, scores_cell_id="3" * 64),
        "edbdfb8658ae6c65c2c8bb7eb80184d82ff0785ee5defae192801a89a49cb533",
    ),
    "recording": (
        replace(CELL, kind="probe", record=RECORD, generation=UNSTOPPED),
        "96879fd2f9f0c8f97ff13ac6b40d9480d667f390e3e6588a6bcd92b46c6ea05e",
    ),
    "fitted": (replace(CELL, fit_cell_id="4" * 64), "03ef1b93b5c0bce0285e0628e1e859b84e919711e363953963d05895b029ea46"),
    "other letters": (
        replace(CELL, generation=GenerationSettings(16, ("é\u2028", "\t"))),
        "272a7b78d1dcb9c54eeefec36c889429c652a6c00fdadb3abe254f6e18316bae",
    ),
    "numbers": (
        replace(CELL, method=replace(CELL.method, params={"a": 1e-7, "b": 1.0, "c": [1, None, True]})),
        "86152411fde4ebbd3a14030d0e93984380cde67a7da3c642708575c8280e5ef3",
    ),
}


@pytest.mark.parametrize("what", GOLDEN)
def test_ids_equal_the_recorded_golden_ids(what: str) -> None:
    cell, cell_id = GOLDEN[what]
    assert cell.cell_id == cell_id
