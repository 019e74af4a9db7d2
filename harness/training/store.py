"""Trained models on disk: one folder a recipe and digest, complete or absent; some are shipped with the package.

A model is trained in a hidden folder, with resume points beside it, and renamed when it is complete, under a lock of
its digest: a kill leaves nothing that looks like a model, the next training goes on from the latest resume point, and
two processes never train the same one.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from exitbench.errors import UserError
from exitbench.harness.training.recipe import TRAINING_VERSION, Recipe, StartRecipe
from exitbench.results.files.formats import content_id
from exitbench.results.spool.schema import CARD_FILE
from exitbench.tasks.sources import below

SHIPPED = Path(__file__).parents[1] / "checkpoints"
"""Models that come with the package: copies of what `exitbench train builtin` makes."""


def model_digest(recipe: Recipe, data_sha256: str, start_sha256: str, training_version: int) -> str:
    """SHA-256 of everything that decides the weights."""
    identity = {
        "recipe": recipe.described(),
        "data_sha256": data_sha256,
        "start_sha256": start_sha256,
        "training_version": training_version,
    }
    return content_id(identity)


def find_trained(recipe: Recipe, *models_dirs: Path) -> Path | None:
    """The latest complete model of this recipe in the first of the folders that has one; None when none has.

    Quick: neither data nor weights are read. Only `ensure_trained` knows whether the data is still the same.
    """
    first = recipe.first.described() if recipe.first is not None else None
    known = {"recipe": recipe.described(), "start_recipe": first, "training_version": TRAINING_VERSION}
    wanted = json.loads(json.dumps(known))
    for models_dir in models_dirs:
        cards = sorted(models_dir.glob(f"*/{CARD_FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
        for card in cards:
            content = json.loads(card.read_text("utf-8"))
            if not card.parent.name.startswith(".") and {key: content.get(key) for key in wanted} == wanted:
                return card.parent
    return None


def ensure_trained(
    recipe: Recipe, models_dir: Path, data_dir: Path | None, on_step: Callable[[int], None] = lambda step: None
) -> Path:
    """Return the folder of a recipe's model, training it first when it is not there.

    Args:
        recipe: What to train.
        models_dir: Where models are kept; made when missing.
        data_dir: What the paths of local files are relative to.
        on_step: Called with the number of steps done; not for the recipe that it starts from.

    Returns:
        `models_dir / NAME-DIGEST`: a Hugging Face checkpoint with tokenizer, log and card, and the exit heads or
        off-ramps that the recipe trains. Another process that is training the same model is waited for.

    Raises:
        UserError: Missing or malformed data, or a folder that cannot be written.
    """
    # Imported here: whoever only lists recipes should not wait for torch.
    from exitbench.harness.engine.checkpoints.digest import describe_checkpoint, files_sha256
    from exitbench.harness.training.classifiers.models import may_learn_labels
    from exitbench.harness.training.classifiers.train import train_classifier
    from exitbench.harness.training.data import read_text
    from exitbench.harness.training.train import train

    start = _start(recipe.start, models_dir, data_dir) if recipe.start is not None else None
    start_sha256, kind = "", recipe.kind
    if start is not None and (kind == "encoder" or (kind is None and may_learn_labels(recipe, start))):
        start_sha256, kind = files_sha256(start), "encoder"
    elif start is not None:
        model = describe_checkpoint("start", start)
        kind = model.kind
        start_sha256 = content_id([model.weights_sha256, model.config_sha256, model.tokenizer_sha256])
    assert kind is not None, "a recipe without a start has an architecture"
    if recipe.off_ramps is not None and kind != "encoder":
        raise UserError(
            f"Recipe {recipe.name!r}: [off_ramps] are for encoders; {start} is none, or its task no labels."
        )
    text = read_text(recipe, data_dir, kind)
    digest = model_digest(recipe, text.sha256, start_sha256, TRAINING_VERSION)
    name = f"{recipe.name}-{digest[:8]}"
    final = models_dir / name
    if final.is_dir():
        return final
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(models_dir / f".{name}.lock"):
            if final.is_dir():
                return final
            work = models_dir / f".{name}.partial"
            building = work / "model"
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir(parents=True)
            (train_classifier if kind == "encoder" else train)(recipe, text, start, building, work, on_step)
            building.rename(final)
            shutil.rmtree(work)
    except OSError as error:
        raise UserError(f"Cannot write the model of recipe {recipe.name!r} to {models_dir}: {error}.") from error
    return final


def _start(start: StartRecipe, models_dir: Path, data_dir: Path | None) -> Path:
    """Folder of the checkpoint that a recipe goes on from."""
    from exitbench.harness.training.recipe import load_recipe

    if start.recipe:
        return ensure_trained(load_recipe(start.recipe), models_dir, data_dir)
    if data_dir is None:
        raise UserError(f"the start {start.checkpoint!r} is looked for below --data-dir, which is not given.")
    return below(data_dir, start.checkpoint)
