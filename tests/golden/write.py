"""Write the golden traces again, if every changed trace has a new version: `python tests/golden/write.py`."""

from __future__ import annotations

import sys

from golden import FILE, compute_golden, faults, read, text


def main() -> int:
    """Write the traces. Return 1 without writing if a version was not raised, or was raised without a change."""
    stored = read() if FILE.exists() else None
    found = compute_golden(stored, on_progress=lambda line: print(line, file=sys.stderr))
    wrong = list(faults(stored, found)) if stored is not None else []
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    FILE.write_text(text(found), encoding="utf-8")
    empty = [one for one, made in found.traces.items() if not made.documents]
    print(f"{len(found.traces)} traces, {len(empty)} of no document: {empty}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
