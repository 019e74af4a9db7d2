"""Fixtures of crash tests: a suite of small cells over a random model, run by commands in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from exitbench.results.spool.attempts import read_attempt, read_status, scan_spool
from exitbench.tasks.builtin.corpus import build_tokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "results"))  # for the module `stored_rows`

from stored_rows import rows_by_table

SUITE = """\
schema = 1
name = "small"
seed = 7

[models.tiny]
path = "{checkpoint}"
random_weights = true

[tasks.lines]
task = "wmt-en-fr"
source = "local"
files = {{ en = "text.en", fr = "text.fr" }}
max_new_tokens = 3

[[sweep]]
method = "static"
grid = {{ exit_layer = [1, 2, 3] }}
kinds = ["quality"]

[[sweep]]
method = "calm-softmax"
grid = {{ threshold = [0.1, 0.5] }}
kinds = ["quality", "replay"]
"""
SPECIAL_TOKENS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
NOT_REPEATED = frozenset({"env.json", "status.json", "timings.parquet", "device.parquet", "log.txt"})
"""Files with dates and times, which differ between two attempts at the same cell."""


@dataclass(frozen=True)
class Bench:
    """Runner of commands on the small suite, with checks of the files they leave."""

    suite: Path

    def command(self, *arguments: str | Path) -> list[str]:
        """Return the command line of `exitbench` with these arguments."""
        return [sys.executable, "-m", "exitbench.harness.cli.main", *map(str, arguments)]

    def run_command(self, runs: Path) -> list[str]:
        """Return the command line of `exitbench run` on the suite."""
        return self.command("run", self.suite, "--data-dir", self.suite.parent, "--runs", runs)

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        """Start a command in a new process group, offline, with one thread."""
        offline = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=offline, start_new_session=True)

    def end(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command and wait for its end."""
        with self.start(command) as process:
            output, errors = process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def do(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run `exitbench` and wait for its end."""
        return self.end(self.command(*arguments))

    def run(self, runs: Path) -> subprocess.CompletedProcess[str]:
        """Run the suite and wait for its end."""
        return self.end(self.run_command(runs))

    def digests(self, runs: Path) -> dict[str, list[dict[str, str]]]:
        """Return, per cell, the digests of reproducible files of each successful attempt."""
        found: dict[str, list[dict[str, str]]] = {}
        for attempt in scan_spool(runs / "spool"):
            if attempt.finished and read_status(attempt).status == "ok":
                own = read_attempt(attempt.path).digests
                kept = {name: digest for name, digest in own.items() if name not in NOT_REPEATED}
                found.setdefault(attempt.cell_id, []).append(kept)
        return found

    def check(self, runs: Path) -> None:
        """Assert that spool and database are intact, and that the database equals one rebuilt from the spool."""
        checked = self.do("db", "check", "--runs", runs)
        assert checked.returncode == 0, checked.stderr
        before = rows_by_table(runs / "exitbench.duckdb")
        assert self.do("db", "rebuild", "--runs", runs).returncode == 0
        assert rows_by_table(runs / "exitbench.duckdb") == before


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Return a runner of the suite; model and data are in the suite file's folder."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("suite")
    folder.chmod(0o755)
    tokenizer = build_tokenizer()
    config = T5Config(
        vocab_size=tokenizer.get_vocab_size(), d_model=16, d_kv=4, d_ff=32, num_heads=4, num_layers=1,
        num_decoder_layers=4, decoder_start_token_id=0, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    T5ForConditionalGeneration(config).save_pretrained(folder / "model")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL_TOKENS).save_pretrained(folder / "model")
    (folder / "text.en").write_text("a dog runs\ntwo men sing\n")
    (folder / "text.fr").write_text("un chien court\ndeux hommes chantent\n")
    (folder / "small.toml").write_text(SUITE.format(checkpoint=folder / "model"))
    return Bench(folder / "small.toml")
