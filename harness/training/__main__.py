"""`python -m exitbench.harness.training RECIPE`: train one recipe and print the model's folder."""

import argparse
import sys
from pathlib import Path

import torch

from exitbench.errors import UserError
from exitbench.harness.training import ensure_trained, load_recipe, recipe_names


def main() -> int:
    """Read the arguments, train, print; 2 on bad input."""
    parser = argparse.ArgumentParser(prog="python -m exitbench.harness.training", description=__doc__)
    parser.add_argument("recipe", help=f"a shipped recipe ({', '.join(recipe_names())}) or a TOML file")
    parser.add_argument("--models-dir", type=Path, default=Path("runs/models"))
    parser.add_argument("--data-dir", type=Path, default=None, help="folder of the recipe's local files")
    parser.add_argument("--threads", type=int, default=None, help="threads of torch (default: torch's own choice)")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    try:
        print(ensure_trained(load_recipe(arguments.recipe), arguments.models_dir, arguments.data_dir))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
