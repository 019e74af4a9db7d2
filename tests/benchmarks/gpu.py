"""Check and time everything that a GPU changes, in one command, and print a short table.

    python tests/benchmarks/gpu.py [--device cuda|cpu] [--quick] [--only STEP] [--out FILE.json]

Takes at most 8 minutes: a step that no longer fits is skipped with a message. The exit status is 1 if a check fails or
a step aborts; missed goals are shown. `--quick` uses tiny shapes, to test the script itself.

First the device is checked against the CPU; if it is wrong, nothing is timed. Tokens and exit layers in fp32 must be
equal, except at near ties: row by row and in a batch, with CUDA graphs of the blocks and without. The models are the
bundled ones and a random one with grouped heads. The methods are `gpu_checks.METHODS` with their default KV policies.
Not checked: bf16, which most timings use; other gates and heads; any other KV policy (noisy, exact, deferred,
verifying); the oracle; and sampling.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from goals import is_met, table
from gpu_checks import correctness
from gpu_models import Line, Setting
from gpu_speed import batches, compiled, decoders, full_depth, gates, graphs, llama, realised_fraction, tracing

from exitbench.harness.running.environment import environment_and_hardware

MOST_S = 480.0
STEPS: dict[Callable[[Setting], Iterator[Line]], float] = {
    correctness: 120,
    full_depth: 100,
    graphs: 30,
    realised_fraction: 30,
    gates: 45,
    batches: 40,
    decoders: 60,
    tracing: 25,
    llama: 45,
    compiled: 90,
}
"""Steps and the estimated seconds of each; a step is skipped if less time is left."""
UNCHECKED: Line = ("correctness", {"note": "left out: what is timed here was not checked"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen steps and print a table; return 1 if a check failed or a step aborted, else 0."""
    options = _arguments(arguments)
    with TemporaryDirectory(prefix="gpu-") as folder, torch.inference_mode():
        setting = Setting(options.device, options.quick, Path(folder), time.monotonic() + MOST_S)
        info = environment_and_hardware(torch.get_num_threads())
        print(_environment(info), flush=True)
        lines = [] if correctness.__name__ in options.only else [_printed(UNCHECKED)]
        lines += [line for step in STEPS if step.__name__ in options.only for line in _run(step, setting)]
    print("\n" + "\n".join([*table(lines), *(_formatted(line) for line in lines if "measured" not in line[1])]))
    if options.out is not None:
        results = [{"name": name, **about} for name, about in lines]
        options.out.write_text(json.dumps({**info, "results": results}, indent=1, default=str), encoding="utf-8")
    return int(any(about.get("check", False) and not is_met(about) for _, about in lines))


def _arguments(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    names = [step.__name__ for step in STEPS]
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny shapes and few repetitions")
    parser.add_argument("--only", choices=names, action="append", help="this step alone; may be given more than once")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write everything that was measured there, as JSON")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; allowed here: --device cpu, which tries the script with --quick")
    options.only = options.only or names
    return options


def _environment(info: dict[str, Any]) -> str:
    hardware, software = info["hardware"], info["environment"]
    dirty = " (changed)" if software["git_dirty"] else ""
    return (
        f"{hardware['gpu'] or hardware['cpu']}; driver {hardware['driver']}, CUDA {hardware['cuda']}, "
        f"torch {torch.__version__}, commit {str(software['git_commit'])[:10]}{dirty}"
    )


def _run(step: Callable[[Setting], Iterator[Line]], setting: Setting) -> Iterator[Line]:
    """Run a step; print and yield its lines. A skipped or aborted step has one line that says why."""
    name, left_s = step.__name__, setting.left_s()
    print(f"\n{name} ({left_s:.0f} s left)", flush=True)
    if left_s < STEPS[step] and not setting.quick:
        yield _printed((name, {"note": f"left out: {left_s:.0f} s are left, about {STEPS[step]:.0f} needed"}))
        return
    if setting.is_wrong:
        yield _printed((name, {"note": "left out: answers differ from those of the CPU"}))
        return
    try:
        for line in step(setting):
            yield _printed(line)
    except Exception as error:
        yield _printed((name, {"note": f"{type(error).__name__}: {error}".splitlines()[0], "check": True}))
    finally:
        if setting.on_gpu:
            torch.cuda.empty_cache()


def _printed(line: Line) -> Line:
    print("  " + _formatted(line), flush=True)
    return line


def _formatted(line: Line) -> str:
    name, info = line
    return table([line])[1] if "measured" in info else f"{name}: {info['note']}"


if __name__ == "__main__":
    sys.exit(main())
