"""Large models: loading holds one copy of the weights, and models that do not fit are refused before loading."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from exitbench.errors import UserError
from exitbench.harness.api.models import load_model
from exitbench.harness.engine.checkpoints.loading import kv_width, load_checkpoint
from exitbench.harness.engine.checkpoints.sizes import gib, stored_dtype, weights_bytes
from exitbench.harness.engine.model import available
from exitbench.harness.engine.model.available import available_bytes, machine_bytes

GIB = 2**30
SHAPE = dict(vocab_size=2000, num_attention_heads=8, num_key_value_heads=8, eos_token_id=1, tie_word_embeddings=False)
LARGE: dict[str, Callable[[], Any]] = {  # 60 and 70 MiB in float32
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SHAPE, hidden_size=512, intermediate_size=1024, num_hidden_layers=6)
    ),
    "mixtral": lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            **SHAPE, hidden_size=256, intermediate_size=512, num_hidden_layers=5, num_local_experts=8
        )
    ),
}
PEAK = """
import gc, re, sys
from pathlib import Path
import torch
from exitbench.harness.engine.checkpoints.loading import load_checkpoint

def status(key):
    return int(re.search(key + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
def load(folder, dtype, engine):
    with torch.inference_mode():
        return load_checkpoint(Path(folder), getattr(torch, dtype), "cpu", engine)
for case in sys.argv[1:]:
    small, large, *how = case.split(",")
    load(small, *how)  # whatever is imported on the way
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = status("VmRSS")
    model = load(large, *how)
    print(status("VmHWM") - before)
    del model
"""
AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Settings of glibc that return all freed memory. Without them the peak differs between runs."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """Return a function that saves a small and a large float32 model of a family, and returns both folders."""
    results: dict[str, tuple[Path, Path]] = {}

    def make(family: str) -> tuple[Path, Path]:
        if family not in results:
            large, small = (tmp_path_factory.mktemp(name) for name in ("large", "small"))
            model = LARGE[family]()
            model.save_pretrained(large)
            config = type(model.config).from_dict({**model.config.to_dict(), "num_hidden_layers": 2})
            type(model)(config).save_pretrained(small)
            results[family] = small, large
        return results[family]

    return make


LOADED = {  # family, number format, engine, and the most memory in copies of the weights
    ("llama", "float32", "lean"): 1.5,  # norms are folded in, projections joined
    ("llama", "bfloat16", "hosted"): 1.5,  # converted: three copies where all are read before
    ("mixtral", "float32", "hosted"): 1.09,  # experts are joined: 1.05, and 1.13 where threads read ahead
}


@pytest.fixture(scope="module")
def peaks(folders: Any) -> dict[tuple[str, str, str], int]:
    """Return the peak memory in bytes of loading each large model of `LOADED`, one after the other in a process."""
    cases = [",".join([*map(str, folders(family)), *how]) for family, *how in LOADED]
    words = [sys.executable, "-c", PEAK, *cases]
    completed = subprocess.run(words, env={**os.environ, **AT_ONCE}, capture_output=True, text=True, check=True)
    return dict(zip(LOADED, map(int, completed.stdout.split()), strict=True))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak")
@pytest.mark.parametrize("loaded", LOADED, ids="-".join)
def test_loading_holds_one_copy_of_the_weights(folders: Any, peaks: Any, loaded: tuple[str, str, str]) -> None:
    family, dtype, _ = loaded
    weights = weights_bytes(folders(family)[1], getattr(torch, dtype))
    assert weights < peaks[loaded] < LOADED[loaded] * weights


def test_loaded_models_do_not_memory_map_their_file(folders: Any) -> None:
    """The file is read, not mapped, so later writes to it do not change the model."""
    small, _ = folders("llama")
    models = [load_checkpoint(small, torch.float32, "cpu", engine).model for engine in ("lean", "hosted")]
    assert len(models) == 2
    assert str(small) not in Path("/proc/self/maps").read_text()


# ---------------------------------------------------------------------------------------------------- what does not fit


@pytest.fixture
def sparse_checkpoint(folders: Any, tmp_path: Path) -> Path:
    """Return the folder of a checkpoint with 64 GiB of bfloat16 weights, in a sparse file that takes no disk space."""
    numbers = 32 * GIB
    header = json.dumps({"lm_head.weight": {"dtype": "BF16", "shape": [numbers], "data_offsets": [0, 2 * numbers]}})
    config = json.loads((folders("llama")[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode())
        file.truncate(8 + len(header) + 2 * numbers)
    return tmp_path


@pytest.mark.parametrize("engine", ["lean", "hosted"])
def test_model_larger_than_available_memory_is_refused_before_loading(
    sparse_checkpoint: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sparse_checkpoint / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:   {100 * GIB // 1024} kB\n")
    monkeypatch.setattr(available, "_MEMINFO", sparse_checkpoint / "meminfo")
    monkeypatch.setattr(available, "_OWN_CGROUP", sparse_checkpoint / "none")
    with pytest.raises(UserError) as raised:
        load_checkpoint(sparse_checkpoint, torch.float32, "cpu", engine)
    assert str(raised.value) == (
        f"{sparse_checkpoint}: does not fit: its weights take 128.0 GiB in float32, and 100.0 GiB are available on "
        "cpu. Nothing was loaded."
    )
    with pytest.raises(UserError, match="tensor"):  # half of it fits, and is read: it is another model
        load_checkpoint(sparse_checkpoint, torch.bfloat16, "meta", engine)


@pytest.mark.parametrize(
    ("version", "line", "files"),
    [
        ("2", "0::/jobs/one", ("memory.max", "memory.current", "inactive_file")),
        ("1", "7:cpu,memory:/jobs/one", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ],
)
def test_available_memory_respects_cgroup_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, line: str, files: tuple[str, str, str]
) -> None:
    """Available memory is limited by the control group of the process, by its parent groups, and by the machine.

    Page cache that can be reclaimed counts as available.
    """
    group = tmp_path / ("memory/jobs/one" if version == "1" else "jobs/one")
    group.mkdir(parents=True)
    (tmp_path / "meminfo").write_text(f"MemTotal: {200 * GIB // 1024} kB\nMemAvailable: {100 * GIB // 1024} kB\n")
    (tmp_path / "cgroup").write_text(f"9:cpuset:/other\n{line}\n")
    for name, path in (("_MEMINFO", "meminfo"), ("_OWN_CGROUP", "cgroup"), ("_CGROUPS", "")):
        monkeypatch.setattr(available, name, tmp_path / path)
    limit, current, inactive = files
    assert available_bytes("cpu") == 100 * GIB and machine_bytes() == 200 * GIB
    for where, most in ((group, "max\n"), (group.parent, f"{20 * GIB}\n")):
        (where / limit).write_text(most)
        (where / current).write_text(f"{15 * GIB}\n")
        (where / "memory.stat").write_text(f"anon 5\n{inactive} {2 * GIB}\n")
    assert available_bytes("cpu") == 7 * GIB and machine_bytes() == 20 * GIB
    assert available_bytes("meta") is None


def test_available_memory_of_this_machine_is_plausible() -> None:
    assert 2**20 < (available_bytes("cpu") or 0) < 2**50


@pytest.mark.parametrize(
    ("n_bytes", "spelled"), [(3 * GIB // 2, "1.5 GiB"), (2000 * GIB, "2,000.0 GiB"), (2**20, "0.001 GiB")]
)
def test_sizes_are_formatted_in_gib(n_bytes: int, spelled: str) -> None:
    assert gib(n_bytes) == spelled


@pytest.mark.parametrize("name", ["llama", "llama-rope3-biases", "qwen2-tied", "gpt2", "t5"])
def test_kv_width_is_known_before_loading(twin: Any, name: str) -> None:
    assert kv_width(twin(name).folder) == twin(name).checkpoint.model.kv_width


# ------------------------------------------------------------------------------------------------------ number formats


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_stored_dtype_is_that_of_most_numbers_and_float32_for_float64(
    folders: Any, tmp_path: Path, dtype: torch.dtype
) -> None:
    tensors = load_file(folders("llama")[0] / "model.safetensors")
    kept_in_fp32 = {"model.norm.weight"}  # most numbers decide
    stored = {name: x if name in kept_in_fp32 else x.to(dtype) for name, x in tensors.items()}
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    read = "float32" if dtype == torch.float64 else str(dtype).removeprefix("torch.")
    assert stored_dtype(tmp_path) == read


def test_auto_dtype_loads_a_model_in_its_stored_dtype(causal_model: Path) -> None:
    loaded = load_model(causal_model, dtype="auto", device="auto").checkpoint.model
    assert str(loaded.dtype).removeprefix("torch.") == stored_dtype(causal_model)
    assert loaded.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
