"""Test every transformers family on the hosted engine, each in a separate process; write docs/families.md.

python tests/models/run.py [--only NAME ...] [--jobs N] [--write]
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from checks import CHECKS, generated, load
from families_page import page
from tiny import VOCABULARY, Family, families, tiny_model
from transformers.utils import logging

from exitbench.errors import UserError

DOCUMENT = Path(__file__).parents[2] / "docs" / "families.md"
TIMEOUT_S = 900
FORKED = multiprocessing.get_context("fork")  # what is imported once need not be again


def main() -> int:
    """Test the requested families; return 1 if a supported family fails a check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", help="families")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write docs/families.md")
    asked = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    chosen = [family for family in families() if not asked.only or family.name in asked.only]
    with ThreadPoolExecutor(asked.jobs) as pool:
        records = []
        for record in pool.map(check_in_process, chosen):
            took = record.get("seconds", "")
            what = f"{record['family']:24} {record['kind']:8} {took:>6}"
            print(f"{record['verdict']:9} {what} {record['why'][:300]}", flush=True)
            records.append(record)
    counts = {verdict: sum(r["verdict"] == verdict for r in records) for verdict in ("supported", "refused", "failed")}
    print(counts)
    if asked.write:
        DOCUMENT.write_text(page(records), encoding="utf-8")
    return 1 if counts["failed"] else 0


def check_in_process(family: Family) -> dict[str, Any]:
    """Test a family in a separate process, so that a crash or hang fails this family only."""
    ours, theirs = FORKED.Pipe(duplex=False)
    process = FORKED.Process(target=_send, args=(family, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if ours.poll(TIMEOUT_S):
            return dict(ours.recv())
        why = f"no end after {TIMEOUT_S} s"
    except EOFError:
        why = "its process ended without a word"
    finally:
        process.kill()
        process.join()
    return {"family": family.name, "kind": family.kind, "cls": family.cls, "verdict": "failed", "why": why}


def _send(family: Family, to: Connection) -> None:
    to.send(check_family(family))


def check_family(family: Family) -> dict[str, Any]:
    """Make a tiny checkpoint of a family, load it and check it."""
    record: dict[str, Any] = {"family": family.name, "kind": family.kind, "cls": family.cls, "why": ""}
    began = time.process_time()
    try:
        reference = varied_model(family)
    except Exception as error:
        return record | {"verdict": "refused", "why": f"no tiny checkpoint: {_said(error)}"}
    with TemporaryDirectory() as folder, torch.no_grad():
        try:
            twin = load(reference, Path(folder))
        except UserError as error:
            return record | {"verdict": "refused", "why": str(error).replace(folder, "FOLDER")}
        except Exception as error:
            return record | {"verdict": "failed", "why": f"loading: {_said(error)}"}
        model = twin.model
        record |= {
            "read_out": model.read_out.way,
            "pads_left": model.pads_left,
            "attention": reference.config._attn_implementation,
            "encoder": model.stack.encoder is not None,
        }
        failures = []
        for check in CHECKS:
            try:
                check(twin)
            except Exception as error:
                failures.append(f"{check.__name__}: {_said(error)}")
    record["seconds"] = round(time.process_time() - began, 1)
    return record | {"verdict": "failed" if failures else "supported", "why": "; ".join(failures)}


def varied_model(family: Family) -> Any:
    """Return a tiny model whose answers differ between prompts: the first seed's with enough distinct answers."""
    draw = random.Random(0)
    rows = [[draw.randrange(3, VOCABULARY) for _ in range(7)] for _ in range(12)]
    most, telling = 0, None
    for seed in range(1, 16):
        reference = tiny_model(family, seed)
        with torch.no_grad():
            distinct = len({tuple(answer) for answer in generated(reference, rows)})
        if distinct > most:
            most, telling = distinct, reference
        if most > 8:
            break
    return telling


def _said(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text} ({Path(place.filename).name}:{place.lineno})"


if __name__ == "__main__":
    sys.exit(main())
