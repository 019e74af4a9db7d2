"""Check the level of built-in data: a model trained on one level must not be measured on another by accident."""

from collections.abc import Iterable

from exitbench.errors import UserError
from exitbench.harness.planning.entries.task import TaskEntry
from exitbench.harness.planning.suite import ModelEntry
from exitbench.harness.training import Recipe


def require_learned(model: ModelEntry, recipe: Recipe, tasks: Iterable[TaskEntry]) -> None:
    """Check that a model was trained on the levels that it is measured on.

    Raises:
        UserError: The model was trained on other levels of the same task.
    """
    for task in tasks:
        learned = _levels(recipe, task.data.task)
        if task.data.source == "builtin" and learned and task.data.level not in learned:
            allowed = " or ".join(f"level = {level}" for level in sorted(learned))
            raise UserError(
                f"{task.where}: level is {task.data.level}, but model {model.name!r} (recipe {recipe.name!r}) learned "
                f"{task.data.task} at another. Allowed: {allowed}; or a model whose recipe has "
                f"`level = {task.data.level}` where it trains on {task.data.task}."
            )


def _levels(recipe: Recipe, task: str) -> set[int]:
    """Return the levels of a task in the training data of a recipe and of the recipes that it starts from."""
    levels = {source.level for source in recipe.train if (source.task, source.source) == (task, "builtin")}
    return levels | (_levels(recipe.first, task) if recipe.first is not None else set())
