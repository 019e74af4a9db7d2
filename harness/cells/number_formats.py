"""Number formats that a model can be run in, and by which engine."""

from pathlib import Path

from exitbench.errors import UserError
from exitbench.harness.cells.cell import EngineName


def check_format(where: Path | str, dtype: str, engine: EngineName) -> None:
    """Check that an engine has a number format.

    Raises:
        UserError: It has not: the hosted one multiplies as transformers' blocks do.
    """
    if dtype == "int8" and engine == "hosted":
        raise UserError(
            f'{where}: dtype = "int8" is of the lean engine, and this model is run by the hosted one. Allowed: '
            '"float32", "bfloat16", "float16" and "auto".'
        )
