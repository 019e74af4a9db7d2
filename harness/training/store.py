"""Trained models on disk: one folder a digest, complete or absent.

A model is trained in a hidden folder and renamed when it is complete, under a lock of its digest, so
that a kill leaves nothing that looks like a model and two processes never train the same one.
"""

import hashlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock

from exitbench.errors import UserError
from exitbench.harness.training.recipe import Recipe

CARD = "card.json"


def model_digest(recipe: Recipe, data_sha256: str, training_version: int) -> str:
    """SHA-256 of everything that decides the weights."""
    identity = {"recipe": asdict(recipe), "data_sha256": data_sha256, "training_version": training_version}
    return hashlib.sha256(json.dumps(identity, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def find_trained(recipe: Recipe, models_dir: Path) -> Path | None:
    """The latest complete model of this recipe, without reading its data; None when there is none.

    Quick, for listings. Only `ensure_trained` knows whether the data is still the same.
    """
    wanted = json.loads(json.dumps(asdict(recipe)))
    cards = sorted(models_dir.glob(f"*/{CARD}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for card in cards:
        if not card.parent.name.startswith(".") and json.loads(card.read_text("utf-8"))["recipe"] == wanted:
            return card.parent
    return None


def ensure_trained(
    recipe: Recipe, models_dir: Path, data_dir: Path | None, progress: bool = True, line: int = 0
) -> Path:
    """Return the folder of a recipe's model, training it first when it is not there.

    Args:
        recipe: What to train.
        models_dir: Where models are kept; made when missing.
        data_dir: What the paths of local files are relative to.
        progress: Show a progress bar on stderr.
        line: Line of the bar, where several processes show theirs.

    Returns:
        `models_dir / digest[:16]`: a Hugging Face checkpoint with tokenizer and card.json. Another
        process that is training the same model is waited for.

    Raises:
        UserError: Missing or malformed data, or a folder that cannot be written.
    """
    # Imported here: whoever only lists recipes should not wait for torch.
    from exitbench.harness.training.data import read_text
    from exitbench.harness.training.train import TRAINING_VERSION, train

    text = read_text(recipe, data_dir)
    name = model_digest(recipe, text.sha256, TRAINING_VERSION)[:16]
    final = models_dir / name
    if final.is_dir():
        return final
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        lock = FileLock(models_dir / f".{name}.lock")
        with lock:
            if final.is_dir():
                return final
            for abandoned in models_dir.glob(f".{name}-*"):
                shutil.rmtree(abandoned)
            building = models_dir / f".{name}-{os.getpid()}"
            building.mkdir()
            try:
                train(recipe, text, building, progress, line)
                building.rename(final)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    except OSError as error:
        raise UserError(f"Cannot write the model of recipe {recipe.name!r} to {models_dir}: {error}.") from error
    return final
