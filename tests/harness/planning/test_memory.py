"""Before loading: the number format of a model, and whether its cells fit into memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import T5ForConditionalGeneration

from exitbench.harness.cli.main import main
from exitbench.harness.engine.checkpoints.loading import head_numel
from exitbench.harness.engine.checkpoints.sizes import gib, weights_bytes
from exitbench.harness.engine.model import available
from exitbench.harness.planning.memory import shortages
from exitbench.harness.planning.plan import Plan, make_plan
from exitbench.harness.planning.suite import load_suite

Writer = Callable[..., Path]
SWEEP = '[[sweep]]\nmethod = "static"\ngrid = { exit_layer = [1] }\nkinds = ["quality"]\n'
BLOCKS, KV_WIDTH = 2, 16


@pytest.fixture
def suite(write_suite: Writer, checkpoint: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a small suite with the given defaults. Tests may change its model."""
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)

    def write(defaults: str) -> Path:
        path = write_suite(f"[defaults]\n{defaults}\n\n", SWEEP)
        path.write_text(path.read_text().replace(str(checkpoint), str(folder)))
        return path

    return write


@pytest.fixture
def make_plan_with(suite: Callable[[str], Path], data_dir: Path, tmp_path: Path) -> Callable[[str], Plan]:
    """Return a function that plans this suite with the given defaults."""
    return lambda defaults: make_plan(load_suite(suite(defaults)), tmp_path / "spool", tmp_path / "models", data_dir)


@pytest.fixture
def set_available_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets the machine's available memory, in KiB."""
    monkeypatch.setattr(available, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(available, "_OWN_CGROUP", tmp_path / "none")
    return lambda kib: (tmp_path / "meminfo").write_text(f"MemAvailable: {kib} kB\n") and None


def dtypes(plan: Plan) -> set[str]:
    return {cell.item.cell.dtype for group in plan.groups for cell in group.cells}


def ids(plan: Plan) -> list[str]:
    return [cell.item.cell.cell_id for group in plan.groups for cell in group.cells]


def test_auto_dtype_has_the_same_ids_as_the_stored_dtype_by_name(
    make_plan_with: Callable[[str], Plan], tmp_path: Path
) -> None:
    """A cell has one id, whether its number format is given by name or as `auto`."""
    auto = make_plan_with('dtype = "auto"')
    assert ids(auto) == ids(make_plan_with('dtype = "float32"'))
    assert 'dtype = "auto" is float32: what its weights are stored in' in auto.groups[0].remarks
    weights = tmp_path / "model" / "model.safetensors"
    save_file({name: x.bfloat16() for name, x in load_file(weights).items()}, weights, {"format": "pt"})
    auto = make_plan_with('dtype = "auto"')
    assert dtypes(auto) == {"bfloat16"}
    assert ids(auto) == ids(make_plan_with('dtype = "bfloat16"')) != ids(make_plan_with('dtype = "float32"'))


def test_memory_estimate_counts_weights_and_the_largest_batch(
    make_plan_with: Callable[[str], Plan], tmp_path: Path, set_available_memory: Callable[[int], None]
) -> None:
    rows, tokens = 4096, 4
    weights = weights_bytes(tmp_path / "model", torch.bfloat16)
    cache = rows * tokens * 2 * KV_WIDTH * BLOCKS * 2
    plan = make_plan_with(f'dtype = "bfloat16"\nbatch_rows = {rows}')
    set_available_memory(-(-(weights + cache) // 1024))
    assert list(shortages(plan, "failed")) == []
    set_available_memory((weights + cache) // 1024 - 1)
    (told,) = shortages(plan, "failed")
    assert told.startswith("model 'tiny' (") and told.endswith(
        f" does not fit: its weights take {gib(weights)} in bfloat16, keys and values of 4096 rows of 4 tokens "
        f"{gib(cache)}, and {gib((weights + cache) // 1024 * 1024 - 1024)} are available on cpu."
    )
    assert list(shortages(make_plan_with('dtype = "bfloat16"\nbatch_rows = 1'), "failed")) == []


def test_memory_of_certified_gates_includes_an_int8_copy_of_the_lm_head(
    write_suite: Writer, checkpoint: Path, data_dir: Path, tmp_path: Path, set_available_memory: Callable[[int], None]
) -> None:
    head = head_numel(checkpoint)
    assert head == T5ForConditionalGeneration.from_pretrained(checkpoint).lm_head.weight.numel()
    gated = '[[sweep]]\nmethod = "max-prob"\nquery = { threshold = [0.5] }\nkinds = ["quality"]\n'
    set_available_memory(0)

    def told(defaults: str) -> str:
        plan = make_plan(load_suite(write_suite(defaults, gated)), tmp_path / "spool", tmp_path / "models", data_dir)
        (line,) = shortages(plan, "failed")
        return line

    assert f", the int8 copy of its LM head {gib(head)}, keys" in told('[defaults]\nhead_precision = "certified"\n')
    assert "int8 copy" not in told("")


def test_run_that_exceeds_memory_is_refused_and_its_plan_warns(
    suite: Callable[[str], Path],
    data_dir: Path,
    tmp_path: Path,
    set_available_memory: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_available_memory(1)
    words = [str(suite("")), "--data-dir", str(data_dir), "--runs", str(tmp_path / "runs")]
    assert main(["plan", *words]) == 0
    assert "On this machine: model 'tiny' (" in capsys.readouterr().out
    assert main(["run", *words]) == 2
    messages = capsys.readouterr().err
    assert "does not fit: its weights take" in messages and "What needs less:" in messages
    assert "Traceback" not in messages
    assert not (tmp_path / "runs" / "spool").exists()
    set_available_memory(1024**2)
    assert main(["plan", *words]) == 0
    assert "does not fit" not in capsys.readouterr().out
