"""Train several models side by side: small ones train faster on one thread each than in turn on all threads."""

from collections.abc import MutableSequence, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Final

from exitbench.errors import UserError
from exitbench.harness.processes.lifeline import end_with
from exitbench.harness.training.recipe import Recipe
from exitbench.harness.training.store import ensure_trained
from exitbench.progress import progress

_LOOK_S: Final = 0.5

_steps: MutableSequence[int]
"""Steps done of each model: memory that is shared with the parent, which looks there; nobody waits for anybody."""


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
    context = get_context("spawn")  # so that the parent needs no torch and its threads are not copied
    steps = context.RawArray("q", len(ordered))
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(steps,)) as pool:
        threads = max(1, cores // workers)
        jobs = [
            pool.submit(_train, recipe, models_dir, data_dir, threads, place) for place, recipe in enumerate(ordered)
        ]
        try:
            _follow(ordered, jobs, steps)
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
    folders = {recipe.name: job.result() for recipe, job in zip(ordered, jobs, strict=True)}
    return [folders[recipe.name] for recipe in recipes]


def _follow(recipes: Sequence[Recipe], jobs: Sequence[Future[Path]], steps: Sequence[int]) -> None:
    """Show how far each is until all have ended; raises what the first raises that fails."""
    left, started = set(range(len(jobs))), set()
    with progress(len(jobs), "models", "step") as shown:
        while left:
            wait([jobs[place] for place in left], _LOOK_S, FIRST_COMPLETED)
            ended = {place for place in left if jobs[place].done()}
            for place in sorted(left):
                recipe = recipes[place]
                if steps[place] and place not in started:
                    shown.start(recipe.name, recipe.optimisation.steps)
                    started.add(place)
                shown.documents_done(recipe.name, steps[place])
            for place in sorted(ended):
                jobs[place].result()
                shown.end(recipes[place].name, "ok")
            left -= ended


def _begin(steps: MutableSequence[int]) -> None:
    global _steps
    _steps = steps
    parent = parent_process()
    assert parent is not None, "a spawned process has one"
    end_with(int(parent.sentinel))


def _train(recipe: Recipe, models_dir: Path, data_dir: Path | None, threads: int, place: int) -> Path:
    import torch

    torch.set_num_threads(threads)
    return ensure_trained(recipe, models_dir, data_dir, lambda step: _steps.__setitem__(place, step))
