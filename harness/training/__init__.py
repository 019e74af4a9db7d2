"""Training of the models that the bundled suites measure: from TOML recipes to Hugging Face checkpoints."""

from exitbench.harness.training.recipe import Recipe, load_recipe, recipe_names, recipe_path
from exitbench.harness.training.store import ensure_all_trained, ensure_trained, find_trained

__all__ = [
    "Recipe",
    "ensure_all_trained",
    "ensure_trained",
    "find_trained",
    "load_recipe",
    "recipe_names",
    "recipe_path",
]
