"""Stored conformance verdicts of the bundled methods, which are not checked again while their source is unchanged.

`python -m exitbench.harness.conformance.shipped` checks all bundled methods and rewrites `shipped.toml`.
"""

from __future__ import annotations

import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Final

from exitbench.errors import UserError
from exitbench.harness.conformance import checks_version

FILE: Final = Path(__file__).with_name("shipped.toml")


@cache
def conforming_sources() -> dict[str, str]:
    """Return the source digests of the bundled methods that conform, by method name, as stored in `shipped.toml`.

    The result is empty if the source of the checks has changed since `shipped.toml` was written.
    """
    record = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return dict(record["sources"]) if record["checks"] == checks_version() else {}


def shipped_text() -> str:
    """Check every bundled method with its default parameters, and return the new content of `shipped.toml`.

    Raises:
        UserError: A method does not conform.
    """
    from exitbench.harness.conformance import examine
    from exitbench.methods.registry import distribution, get_method, method_names, syntax_sha256

    lines = [
        "# Sources of methods that conform by these checks; made by `python -m exitbench.harness.conformance.shipped`.",
        f'checks = "{checks_version()}"',
        "",
        "[sources]",
    ]
    for name in method_names():
        method = get_method(name)
        if distribution(method)[0] != "exitbench":
            continue
        result = examine(method.from_params({}))
        if not result.conforms:
            raise UserError(f"{name} {result}")
        lines.append(f'{name} = "{syntax_sha256(method)}"')
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    try:
        FILE.write_text(shipped_text(), encoding="utf-8")
    except UserError as error:
        sys.exit(f"exitbench: {error}")
