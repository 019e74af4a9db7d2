"""``exitbench train``: make the models of a suite, from their recipes."""

import json
from argparse import Namespace
from pathlib import Path

from exitbench.errors import UserError, suggestion
from exitbench.harness.planning.suite import load_suite, suite_names
from exitbench.harness.reading.toml import Table
from exitbench.harness.running.environment import available_cores
from exitbench.harness.service.folders import Runs
from exitbench.harness.training import Recipe, ensure_all_trained, load_recipe, recipe_names
from exitbench.results.beside.trainings import record_training
from exitbench.results.spool.schema import CARD_FILE


def train(arguments: Namespace) -> int:
    """Train every recipe of a suite, or one recipe; models that are there are left as they are.

    Raises:
        UserError: Unknown suite or recipe, missing data, or a folder that cannot be written.
        KeyboardInterrupt: The user interrupted; the same command goes on from the latest resume points.
    """
    from exitbench.harness.engine.checkpoints.digest import describe_checkpoint
    from exitbench.results.ingest.ingest import ingest

    recipes = named_recipes(arguments.what)
    runs = Runs(arguments.runs)
    runs.require_writable()
    models_dir = arguments.models_dir or runs.models
    folders = ensure_all_trained(recipes, models_dir, arguments.data_dir, arguments.threads or available_cores())
    for recipe, folder in zip(recipes, folders, strict=True):
        record_training(runs.spool, describe_checkpoint(recipe.name, folder).weights_sha256, folder)
        print(_summary(recipe, folder))
    ingest(runs.spool, runs.database)
    return 0


def named_recipes(what: str) -> list[Recipe]:
    """The recipes of a suite, or the one recipe of that name or file."""
    path = Path(what)
    if path.is_file() and "models" not in Table.read(path).values:
        return [load_recipe(path)]
    if what.partition("@")[0] in recipe_names() and what not in suite_names():
        return [load_recipe(what)]
    if not path.is_file() and what not in suite_names():
        raise UserError(f"no suite or recipe {what!r}.{suggestion(path.stem, {*suite_names(), *recipe_names()})}")
    return [load_recipe(entry.recipe) for entry in load_suite(what).models if entry.recipe]


def _summary(recipe: Recipe, folder: Path) -> str:
    card = json.loads((folder / CARD_FILE).read_text(encoding="utf-8"))
    found = card["validation"]
    what = f"{found['metric']} {{:.1f}}" if "metric" in found else "token accuracy {:.3f}"
    by_block = found["score" if "metric" in found else "token_accuracy"]
    told = (
        f"{what.format(by_block[0])} after block 1, {what.format(by_block[-1]).split()[-1]} after block {len(by_block)}"
    )
    minutes = card["wall_seconds"] / 60
    return f"{recipe.name}: loss {card['final_loss_nats']:.3f}, {told}, {minutes:.1f} min\n  {folder}"
