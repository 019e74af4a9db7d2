"""Fixtures: the recipe of a classifier that trains in a second, and the sentences that it learns from."""

from collections.abc import Callable
from pathlib import Path

import pytest

RECIPE = """\
name = "tiny"
seed = 3

[[train]]
task = "sst2"
source = "local"
files = { data = "train.tsv" }

[[validation]]
task = "sst2"
source = "local"
files = { data = "dev.tsv" }

[tokenizer]
kind = "bpe"
vocab_size = 300

[architecture]
family = "bert"
d_model = 16
d_kv = 4
d_ff = 32
num_heads = 4
num_layers = 3
dropout_rate = 0.0
max_positions = 32

[off_ramps]
kind = "pooler-linear"

[objective]
loss = "weighted"

[optimisation]
steps = 12
batch_tokens = 200
max_tokens = 24
learning_rate = 1e-2
"""
WORDS = ("a fine film", "a dull film", "fine acting", "dull acting", "so fine", "so dull", "fine , fine", "dull , dull")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Return a folder in SST-2's format: sentences with `fine` or `dull`; `dev.tsv` and `train.tsv` are disjoint."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name, ending in (("train", "to see"), ("dev", "to hear")):
        rows = "".join(f"{text} {ending} {i}\t{int('fine' in text)}\n" for i in range(4) for text in WORDS)
        (folder / f"{name}.tsv").write_text(f"sentence\tlabel\n{rows}")
        pairs = "".join(f"one {i}\t{ending} {i % 3}\t{i % 6}.0\n" for i in range(18))
        (folder / f"rated_{name}.tsv").write_text(f"sentence1\tsentence2\tscore\n{pairs}")
    return folder


@pytest.fixture
def write_recipe(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes the tiny recipe with some of its text replaced."""

    def write(*changes: tuple[str, str], name: str = "tiny") -> Path:
        text = RECIPE.replace('"tiny"', f'"{name}"')
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / f"{name}.toml"
        path.write_text(text)
        return path

    return write
