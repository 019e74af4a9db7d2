"""Number formats in which a model can be run, and the engines that support them."""

from pathlib import Path

from exitbench.errors import UserError
from exitbench.harness.cells.cell import EngineName


def check_format(location: Path | str, dtype: str, engine: EngineName) -> None:
    """Check that an engine supports a number format.

    Args:
        location: Place of the setting, for the error message.
        dtype: Number format, such as ``bfloat16`` or ``int8``.
        engine: Engine that would run the model.

    Raises:
        UserError: The format is int8 and the engine is the hosted one, which cannot multiply int8 weights.
    """
    if dtype == "int8" and engine == "hosted":
        raise UserError(
            f'{location}: dtype = "int8" is of the lean engine, and this model is run by the hosted one. Allowed: '
            '"float32", "bfloat16", "float16" and "auto".'
        )
