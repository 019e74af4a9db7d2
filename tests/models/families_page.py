"""Page docs/families.md: every family of transformers on the hosted engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers

from exitbench.harness.engine.checkpoints.families import FAMILIES

HEAD = """# Every family of transformers on the hosted engine

Engines, formats and devices: [models](models.md).

Made by `nox -s models` with transformers {transformers} and torch {torch}; do not edit. From the configuration class of
every decoder and encoder-decoder of transformers a tiny random checkpoint is made (4 blocks, fp32, on the CPU), saved,
loaded by the hosted engine, and checked on 20 prompts of different length or fewer:

* full depth answers what `generate` does;
* rows that leave after different blocks answer what each answers alone;
* keys and values that are filled for skipped blocks are those that the block, run on that state, keeps;
* leaving always after one block answers what the model cut there does;
* what waits (`sync-parallel`, `recompute-backlog`, `state-copy-lazy`) is completed as a full run would have;
* self-speculation answers what full depth does;
* a probe over answers sees what decoding saw.

{supported} of {all} classes are supported. Families that the lean engine has too run there unless a suite says
`engine = "hosted"`: {lean}.

* read-out: *direct* where logits are those of norm and LM head alone; *within* where the model's own code adds a scale,
  a soft cap or a bias, and *reference* where transformers' whole forward pass gives the logits: methods that read
  single rows of the LM head are skipped in both.
* rows: *alone* where rows that are padded on the left count positions with their padding, so that prompts of different
  length cannot be decoded together.
* attention: transformers' implementation that is used.

"""


def page(records: Sequence[dict[str, Any]]) -> str:
    by = {verdict: [r for r in records if r["verdict"] == verdict] for verdict in ("supported", "failed", "refused")}
    counts = {"supported": len(by["supported"]), "all": len(records), "lean": ", ".join(sorted(FAMILIES))}
    text = HEAD.format(transformers=transformers.__version__, torch=torch.__version__.split("+")[0], **counts)
    text += "## Supported\n\n| family | class | read-out | rows | attention |\n| --- | --- | --- | --- | --- |\n"
    for r in by["supported"]:
        rows = "together" if r["pads_left"] or r["encoder"] else "alone"
        text += f"| {r['family']} | {r['cls']} | {r['read_out']} | {rows} | {r['attention']} |\n"
    if by["failed"]:
        text += "\n## Loaded, but a check fails\n\n| family | class | what fails |\n| --- | --- | --- |\n"
        text += "".join(f"| {r['family']} | {r['cls']} | {_cell(r['why'])} |\n" for r in by["failed"])
    text += "\n## Refused\n\nAs the engine says it, or why no tiny checkpoint could be made of the class alone.\n\n"
    text += "| family | class | because |\n| --- | --- | --- |\n"
    return text + "".join(f"| {r['family']} | {r['cls']} | {_cell(r['why'])} |\n" for r in by["refused"])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:240]
