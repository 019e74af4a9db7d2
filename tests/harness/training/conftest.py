"""Fixtures: a recipe that trains in a second, its data, and tiny models of transformers."""

import gzip
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # for the module `tiny_families`

RECIPE = """\
name = "tiny"
seed = 3

[[train]]
task = "wmt-en-fr"
source = "local"
files = { en = "train.en.gz", fr = "train.fr.gz" }
repeat = 2

[[validation]]
task = "wmt-en-fr"
source = "local"
files = { en = "val.en", fr = "val.fr" }

[tokenizer]
kind = "bpe"
vocab_size = 320

[architecture]
d_model = 32
d_kv = 8
d_ff = 64
num_heads = 4
num_layers = 3
num_decoder_layers = 3
dropout_rate = 0.0

[objective]
loss = "weighted"

[optimisation]
steps = 40
batch_tokens = 400
learning_rate = 1e-2
warmup_steps = 5
"""
ENGLISH = ("a red dog", "the cat", "two boys", "sleeps", "runs", "sees a car", "in the park", "at night")
FRENCH = ("un chien rouge", "le chat", "deux garçons", "dort", "court", "voit une auto", "dans le parc", "la nuit")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Return a data folder with sentences and translations; two training lines are also in the validation data."""
    folder = tmp_path / "data"
    folder.mkdir()
    triples = [(i, j, k) for i in range(3) for j in range(3, 6) for k in range(6, 8)] * 2
    random.Random(0).shuffle(triples)
    english = [" ".join(ENGLISH[n] for n in triple) for triple in triples]
    french = [" ".join(FRENCH[n] for n in triple) for triple in triples]
    for side, lines in (("en", english), ("fr", french)):
        with gzip.open(folder / f"train.{side}.gz", "wt", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        (folder / f"val.{side}").write_text("".join(f"{line}\n" for line in lines[:2]), encoding="utf-8")
    return folder


@pytest.fixture
def write_recipe(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes the tiny recipe with some of its text replaced."""

    def write(*changes: tuple[str, str]) -> Path:
        text = RECIPE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        path = tmp_path / "tiny.toml"
        path.write_text(text)
        return path

    return write
