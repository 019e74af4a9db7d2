"""Identity: what changes a cell's id, what does not, and that ids never change by accident."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitbench.harness.cell import (
    INPUTS,
    KINDS,
    CalibrationSettings,
    Cell,
    Generation,
    MethodRef,
    ModelRef,
    TaskRef,
    TimingSettings,
)
from exitbench.results.schema import CELL_KEYS

CELL = Cell(
    suite="suite",
    kind="quality",
    method=MethodRef("gate", {"threshold": 0.5, "decay": "code"}, "a" * 64),
    kv_policy="state-copy",
    model=ModelRef("small", "b" * 64, "c" * 64, "d" * 64, "seq2seq", 8, 4, 1000),
    task=TaskRef("squad", "squad-short", "test", "builtin", 60, "e" * 64, "f" * 64, "squad-1"),
    generation=Generation(16, ("\n",)),
    dtype="float32",
    device="cpu",
    batch_size=1,
    seed=7,
)

CALIBRATION = CalibrationSettings((0.9, 0.5), 0.1, 0.05, "textual", "hoeffding-bentkus", "1" * 64)

ASKED: dict[str, Any] = {
    "kind": replace(CELL, kind="probe"),
    "method name": replace(CELL, method=replace(CELL.method, name="other")),
    "parameter": replace(CELL, method=replace(CELL.method, params={"threshold": 0.6, "decay": "code"})),
    "parameter's type": replace(CELL, method=replace(CELL.method, params={"threshold": "0.5", "decay": "code"})),
    "method source": replace(CELL, method=replace(CELL.method, source_sha256="0" * 64)),
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
    "seed": replace(CELL, seed=8),
    "timing settings": replace(CELL, timing=TimingSettings()),
    "calibration settings": replace(CELL, calibration=CALIBRATION),
    "levels": replace(CELL, calibration=replace(CALIBRATION, levels=(0.9,))),
    "delta": replace(CELL, calibration=replace(CALIBRATION, delta=0.2)),
    "epsilon": replace(CELL, calibration=replace(CALIBRATION, epsilon=0.2)),
    "consistency": replace(CELL, calibration=replace(CALIBRATION, consistency="risk")),
    "rule": replace(CELL, calibration=replace(CALIBRATION, rule="naive")),
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


def test_the_id_of_a_fixed_cell_never_changes() -> None:
    assert CELL.cell_id == "e50239d3701f9ffdf8fc1f58d99ae6f02346393d3ed9ea2ab7b0f4ec0e4411a1"


@pytest.mark.parametrize("what", ASKED)
def test_whatever_was_asked_changes_the_id(what: str) -> None:
    assert ASKED[what].cell_id != CELL.cell_id


def test_no_two_questions_share_an_id() -> None:
    assert len({cell.cell_id for cell in ASKED.values()}) == len(ASKED)


@pytest.mark.parametrize("what", NAMES)
def test_names_and_places_do_not_change_the_id(what: str) -> None:
    assert NAMES[what] != CELL or what == "order of parameters"
    assert NAMES[what].cell_id == CELL.cell_id


@pytest.mark.parametrize("name", INPUTS)
def test_a_cell_is_another_when_what_it_computes_from_is(name: str) -> None:
    first, second = (replace(CELL, **{name: other * 64}) for other in "12")
    assert len({first.cell_id, second.cell_id, CELL.cell_id}) == 3


def test_what_a_cell_is_compared_with_is_not_part_of_it() -> None:
    assert replace(CELL, full_depth_cell_id="1" * 64).cell_id == CELL.cell_id


def test_a_cell_waits_for_its_inputs_and_a_quality_cell_for_full_depth_too() -> None:
    inputs = {name: str(number) * 64 for number, name in enumerate(INPUTS)}
    cell = replace(CELL, full_depth_cell_id="f" * 64, **inputs)
    assert cell.depends_on == ("f" * 64, *inputs.values())
    assert replace(cell, kind="replay").depends_on == tuple(inputs.values())
    assert CELL.depends_on == ()


def test_only_a_replay_is_simulated() -> None:
    assert {kind for kind in KINDS if replace(CELL, kind=kind).execution == "simulated"} == {"replay"}


def test_cell_json_has_every_key_of_the_spool() -> None:
    record = CELL.to_json()
    for section, names in CELL_KEYS.items():
        assert set(names) <= set(record[section] if section else record)
    assert record["identity"] == CELL.identity


PARAMS = st.dictionaries(
    st.text(), st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text())
)


@given(params=PARAMS, stop=st.lists(st.text()), seed=st.integers())
def test_a_cell_survives_json(params: dict[str, Any], stop: list[str], seed: int) -> None:
    cell = replace(
        CELL,
        kind="timing",
        method=replace(CELL.method, params=params),
        generation=Generation(3, tuple(stop)),
        seed=seed,
        timing=TimingSettings(documents=4),
        calibration=CALIBRATION,
        fit_cell_id="2" * 64,
    )
    back = Cell.from_json(json.loads(json.dumps(cell.to_json())))
    assert back == cell
    assert back.cell_id == cell.cell_id
