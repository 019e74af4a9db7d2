"""Several models at once: small ones train faster side by side on one thread each than in turn on all threads."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from exitbench.harness.training.recipe import Recipe
from exitbench.harness.training.store import ensure_trained


def ensure_all_trained(recipes: Sequence[Recipe], models_dir: Path, data_dir: Path | None, cores: int) -> None:
    """Train every recipe that is missing, as many at a time as there are cores.

    Args:
        recipes: What to train.
        models_dir: Where models are kept.
        data_dir: What the paths of local files are relative to.
        cores: Cores to share out; each process gets an equal part.

    Raises:
        UserError: See `ensure_trained`.
    """
    if not recipes:
        return
    workers = min(len(recipes), cores)
    # Spawned, so that the parent needs no torch and its threads are not copied.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = [
            pool.submit(_train, recipe, models_dir, data_dir, cores // workers, line)
            for line, recipe in enumerate(recipes)
        ]
        for job in jobs:
            job.result()


def _train(recipe: Recipe, models_dir: Path, data_dir: Path | None, threads: int, line: int) -> None:
    import torch

    torch.set_num_threads(threads)
    ensure_trained(recipe, models_dir, data_dir, line=line)
