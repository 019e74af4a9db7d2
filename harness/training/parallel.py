"""Several models at once: small ones train faster side by side on one thread each than in turn on all threads."""

from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from pathlib import Path

from exitbench.errors import UserError
from exitbench.harness.processes.lifeline import end_with
from exitbench.harness.training.recipe import Recipe
from exitbench.harness.training.store import ensure_trained


def ensure_all_trained(recipes: Sequence[Recipe], models_dir: Path, data_dir: Path | None, cores: int) -> list[Path]:
    """Train every recipe that is missing, as many at a time as there are cores.

    Args:
        recipes: What to train.
        models_dir: Where models are kept.
        data_dir: What the paths of local files are relative to.
        cores: Cores to share out; each process gets an equal part.

    Returns:
        The folders, in the order of the recipes.

    Raises:
        UserError: See `ensure_trained`.
    """
    if not recipes:
        return []
    # What others start from comes first; who starts from it comes last, and finds it ready.
    first = {recipe.first.name: recipe.first for recipe in recipes if recipe.first is not None}
    own = {recipe.name: recipe for recipe in recipes}
    if twice := [recipe.name for recipe in recipes if {**first, **own}[recipe.name] != recipe]:
        raise UserError(f"two different recipes are called {twice[0]!r}.")
    ordered = sorted({**own, **first}.values(), key=lambda recipe: (recipe.first is not None, recipe.name not in first))
    workers = min(len(ordered), cores)
    # Spawned, so that the parent needs no torch and its threads are not copied.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        jobs: dict[str, Future[Path]] = {
            recipe.name: pool.submit(_train, recipe, models_dir, data_dir, max(1, cores // workers), line)
            for line, recipe in enumerate(ordered)
        }
        try:
            folders = {name: job.result() for name, job in jobs.items()}
        except BrokenProcessPool as error:
            raise UserError(
                "a training process was killed, perhaps for want of memory; the same command goes on from its last "
                "resume point."
            ) from error
        except BaseException:
            # Interrupted, or one of them failed: the others would train to their end before the pool lets go.
            for process in list(pool._processes.values()):
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [folders[recipe.name] for recipe in recipes]


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "a spawned process has one"
    end_with(int(parent.sentinel))


def _train(recipe: Recipe, models_dir: Path, data_dir: Path | None, threads: int, line: int) -> Path:
    import torch

    torch.set_num_threads(threads)
    return ensure_trained(recipe, models_dir, data_dir, line=line)
