"""What the speed of a product depends on beside its shape."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any


def cpu_model() -> str:
    """Return the processor's name."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        match = None
    return match[1] if match else platform.processor() or platform.machine()


def this_machine(threads: int) -> dict[str, Any]:
    """Return processor, instructions that torch uses, its version, and threads."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    return {"cpu": cpu_model(), "capability": capability, "torch": torch.__version__, "threads": threads}
