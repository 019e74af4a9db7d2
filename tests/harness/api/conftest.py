"""Fixtures of small random models with a byte tokenizer, and of lm-eval tasks over local files."""

from pathlib import Path

import pytest
from lm_eval_toys import gpt_neox, save_models, write_tasks


@pytest.fixture(scope="session")
def toy_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return folders of two random models, decoder-only and encoder-decoder, whose blocks predict different tokens."""
    return save_models(tmp_path_factory.mktemp("toys"), gpt_neox)


@pytest.fixture(scope="session")
def toy_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the tasks' YAML, with absolute paths of data files."""
    return write_tasks(tmp_path_factory.mktemp("tasks"), documents=7, new_tokens=6) / "theirs"
