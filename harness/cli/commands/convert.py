"""``exitbench convert``: make a checkpoint folder from a GGUF file."""

import shlex
import sys
from argparse import Namespace

from exitbench.harness.engine.checkpoints.gguf_conversion import convert_gguf
from exitbench.terminal import print_escaped


def convert(arguments: Namespace) -> int:
    """Convert a GGUF file to a checkpoint in safetensors; print what was written, and the next commands.

    Raises:
        UserError: The file cannot be converted, or the folder cannot be written.
    """
    origin = convert_gguf(arguments.file, arguments.folder, arguments.dtype)
    folder = shlex.quote(str(arguments.folder))
    lines = (
        f"wrote {arguments.folder}: {origin.dtype} {origin.remark}",
        f"Results name the model NAME-GGUF-{origin.quantization}.",
        "",
        "next:",
        f"  exitbench inspect {folder}",
        f"  exitbench new suite mine --model {folder}",
    )
    print_escaped("\n".join(lines), sys.stdout)
    return 0
