"""Folders of trained models: one per recipe and digest, complete or absent; some are bundled with the package.

A model is trained in a hidden folder, next to its resume points, and renamed when complete, under a lock for its
digest. So an interrupted training leaves nothing that looks like a model, and the next training continues from the
latest resume point. Two processes never train the same model.
"""

import json
import shutil
from collections.abc import Callable, MutableSequence, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Final

from filelock import FileLock

from exitbench.errors import UserError
from exitbench.harness.processes.lifeline import end_with
from exitbench.harness.training.recipe import TRAINING_VERSION, Recipe, StartRecipe
from exitbench.progress import Expected, progress
from exitbench.results.files.formats import content_id
from exitbench.results.spool.schema import CARD_FILE
from exitbench.tasks.sources import path_inside

SHIPPED = Path(__file__).parents[1] / "checkpoints"
"""Bundled models: copies of the results of `exitbench train builtin`."""


def model_digest(recipe: Recipe, data_sha256: str, start_sha256: str, training_version: int) -> str:
    """Return the SHA-256 of all that determines a trained model's weights: recipe, data, start and training code.

    Args:
        recipe: The recipe.
        data_sha256: Digest of all training and validation pairs.
        start_sha256: Digest of the checkpoint that the training starts from; empty for a new model.
        training_version: Version of the training code (`recipe.TRAINING_VERSION`).
    """
    identity = {
        "recipe": recipe.described(),
        "data_sha256": data_sha256,
        "start_sha256": start_sha256,
        "training_version": training_version,
    }
    return content_id(identity)


def find_trained(recipe: Recipe, *models_dirs: Path) -> Path | None:
    """Return the folder of a recipe's latest complete model in the first of `models_dirs` that has one, or None.

    The model's card must name the same recipe, start recipe and version of the training code. Data and weights are not
    read; only `ensure_trained` checks whether the training data is still what the model was trained on.
    """
    first = recipe.first.described() if recipe.first is not None else None
    card_fields = {"recipe": recipe.described(), "start_recipe": first, "training_version": TRAINING_VERSION}
    wanted = json.loads(json.dumps(card_fields))
    for models_dir in models_dirs:
        cards = sorted(models_dir.glob(f"*/{CARD_FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
        for card in cards:
            content = json.loads(card.read_text("utf-8"))
            if not card.parent.name.startswith(".") and {key: content.get(key) for key in wanted} == wanted:
                return card.parent
    return None


def ensure_trained(
    recipe: Recipe,
    models_dir: Path,
    data_dir: Path | None,
    on_step: Callable[[int], None] = lambda step: None,
    start: Path | None = None,
) -> Path:
    """Return the folder of a recipe's model; train the model first if it is missing.

    If the recipe starts from another recipe's model, that one is trained first if it is missing.

    Args:
        recipe: The recipe to train.
        models_dir: Folder of trained models; created if missing.
        data_dir: Root folder of local data files and start checkpoints; None if the recipe needs neither.
        on_step: Callback that receives the number of training steps done; not called for the recipe that this one
            starts from.
        start: Checkpoint that replaces `[start] checkpoint` of this recipe, or of the recipe that it starts from.

    Returns:
        The folder `models_dir / NAME-DIGEST`: a Hugging Face checkpoint with tokenizer, log, card, and trained exit
        heads or off-ramps. If another process is training the same model, the function waits for it.

    Raises:
        UserError: Data are missing or malformed, or a folder cannot be written.
    """
    # Imported here: listing recipes should not load torch.
    from exitbench.harness.engine.checkpoints.digest import describe_checkpoint, files_sha256
    from exitbench.harness.training.classifiers import can_train_classifier, train_classifier
    from exitbench.harness.training.data import read_text
    from exitbench.harness.training.train import train

    if recipe.start is not None:
        start = _start(recipe.start, models_dir, data_dir, start)
    start_sha256, kind = "", recipe.kind
    if start is not None and (kind == "encoder" or (kind is None and can_train_classifier(recipe, start))):
        start_sha256, kind = files_sha256(start), "encoder"
    elif start is not None:
        model = describe_checkpoint("start", start)
        kind = model.kind
        start_sha256 = content_id([model.weights_sha256, model.config_sha256, model.tokenizer_sha256])
    assert kind is not None, "a recipe without a start has an architecture"
    if recipe.off_ramps is not None and kind != "encoder":
        raise UserError(
            f"Recipe {recipe.name!r}: [off_ramps] are for encoders with labels; {start} is not an encoder, or its task "
            "has no labels."
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


def _start(start: StartRecipe, models_dir: Path, data_dir: Path | None, checkpoint: Path | None) -> Path:
    """Return the folder of the checkpoint to start from; if it is another recipe's model, train that if missing.

    Args:
        start: Table [start] of a recipe, which names another recipe or a checkpoint.
        models_dir: Folder of trained models.
        data_dir: Root folder of local data files, which the checkpoint's path is relative to.
        checkpoint: Checkpoint to use instead of the one that [start] (of this or the other recipe) names, or None.
    """
    from exitbench.harness.training.recipe import load_recipe

    if start.recipe:
        return ensure_trained(load_recipe(start.recipe), models_dir, data_dir, start=checkpoint)
    if checkpoint is not None:
        return checkpoint
    if data_dir is None:
        raise UserError(
            f"the start {start.checkpoint!r} is looked for below --data-dir, which is not given. --start names another."
        )
    return path_inside(data_dir, start.checkpoint)


_LOOK_S: Final = 0.5

_steps: MutableSequence[int]
"""Number of steps done per model, in memory shared with the parent, which polls it without locking."""


def ensure_all_trained(
    recipes: Sequence[Recipe], models_dir: Path, data_dir: Path | None, cores: int, start: Path | None = None
) -> list[Path]:
    """Train the models of all recipes that are not trained yet, in up to one process per core.

    Args:
        recipes: The recipes.
        models_dir: Folder of trained models.
        data_dir: Root folder of local data files and start checkpoints; None if the recipes need neither.
        cores: Number of cores, divided equally among the processes.
        start: Checkpoint that replaces the `[start] checkpoint` that all recipes name; None to use that.

    Returns:
        The folders of the models, in the order of the recipes.

    Raises:
        UserError: Data are missing or malformed, a folder cannot be written, or a training process was killed. Two
            different recipes have the same name, or `start` is given and not all recipes name the same checkpoint.
    """
    if not recipes:
        return []
    checkpoints = {first.start and first.start.checkpoint for first in (recipe.first or recipe for recipe in recipes)}
    if start is not None and (len(checkpoints) > 1 or checkpoints & {None, ""}):
        names = ", ".join(recipe.name for recipe in recipes)
        raise UserError(f"--start is for recipes with the same [start] checkpoint, not for {names}.")
    # Recipes that others start from come first, so that they are ready when the others need them.
    first = {recipe.first.name: recipe.first for recipe in recipes if recipe.first is not None}
    requested = {recipe.name: recipe for recipe in recipes}
    if twice := [recipe.name for recipe in recipes if {**first, **requested}[recipe.name] != recipe]:
        raise UserError(f"two different recipes are called {twice[0]!r}.")
    ordered = sorted(
        {**requested, **first}.values(), key=lambda recipe: (recipe.first is not None, recipe.name not in first)
    )
    workers = min(len(ordered), cores)
    context = get_context("spawn")  # the parent need not load torch, and its threads are not copied
    steps = context.RawArray("q", len(ordered))
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(steps,)) as pool:
        threads = max(1, cores // workers)
        jobs = [
            pool.submit(_train, recipe, models_dir, data_dir, threads, place, start)
            for place, recipe in enumerate(ordered)
        ]
        try:
            _follow(ordered, jobs, steps)
        except BrokenProcessPool as error:
            raise UserError(
                "a training process was killed, perhaps for want of memory; the same command goes on from its last "
                "resume point."
            ) from error
        except BaseException:
            # Interrupted, or a training failed: the pool would wait until the others have finished.
            for process in list(pool._processes.values()):
                process.terminate()
            raise
    folders = {recipe.name: job.result() for recipe, job in zip(ordered, jobs, strict=True)}
    return [folders[recipe.name] for recipe in recipes]


def _follow(recipes: Sequence[Recipe], jobs: Sequence[Future[Path]], steps: Sequence[int]) -> None:
    """Show the progress of each training until all have ended; re-raise the first error.

    Args:
        recipes: Recipes that are being trained.
        jobs: Future of each recipe's training, in the same order.
        steps: Number of training steps done for each recipe, updated by the training processes.
    """
    remaining, started = set(range(len(jobs))), set()
    with progress({recipe.name: Expected() for recipe in recipes}, "models", "step") as bars:
        while remaining:
            wait([jobs[place] for place in remaining], _LOOK_S, FIRST_COMPLETED)
            ended = {place for place in remaining if jobs[place].done()}
            for place in sorted(remaining):
                recipe = recipes[place]
                if steps[place] and place not in started:
                    bars.start(recipe.name, recipe.cache_steps + recipe.optimisation.steps)
                    started.add(place)
                bars.documents_done(recipe.name, steps[place])
            for place in sorted(ended):
                jobs[place].result()
                bars.end(recipes[place].name, "ok")
            remaining -= ended


def _begin(steps: MutableSequence[int]) -> None:
    global _steps
    _steps = steps
    parent = parent_process()
    assert parent is not None, "a spawned process has one"
    end_with(int(parent.sentinel))


def _train(
    recipe: Recipe, models_dir: Path, data_dir: Path | None, threads: int, place: int, start: Path | None
) -> Path:
    import torch

    torch.set_num_threads(threads)
    return ensure_trained(recipe, models_dir, data_dir, lambda step: _steps.__setitem__(place, step), start)
