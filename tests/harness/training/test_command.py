"""`exitbench train`: models of a suite or one recipe, and their logs in the database."""

import multiprocessing
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from exitbench.errors import UserError
from exitbench.harness.cli.commands.run import named_recipes
from exitbench.harness.cli.main import main
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.training import store
from exitbench.results.database.connection import open_database

WriteRecipe = Callable[..., Path]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fork(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after whose call models are trained in forks, which have torch imported already."""
    forks = multiprocessing.get_context("fork")
    return lambda: monkeypatch.setattr(store, "get_context", lambda method: forks)


def test_train_command_trains_once_and_compares_heads_with_the_models_read_out(
    write_recipe: WriteRecipe,
    data_dir: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    fork: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ["--data-dir", str(data_dir), "--threads", "1"]
    arguments = ["train", str(write_recipe(("steps = 40", "steps = 6"))), *options]
    assert main(arguments) == 0
    first = capfd.readouterr()
    assert first.out.startswith("tiny: loss ") and "after block 3" in first.out
    assert first.err.startswith("[1/1] tiny (6 steps): ok, ")
    (folder,) = Path("runs/models").glob("[!.]*")
    assert str(folder) in first.out
    stamp = (folder / "card.json").stat().st_mtime_ns
    with open_database(Path("runs/exitbench.duckdb")) as database:
        assert database.query("SELECT DISTINCT model FROM training_curves").to_pylist() == [{"model": "tiny"}]

    fork()
    assert main(arguments) == 0
    assert capfd.readouterr().out == first.out
    assert (folder / "card.json").stat().st_mtime_ns == stamp

    text = write_recipe().read_text()
    heads = tmp_path / "heads.toml"
    heads.write_text(
        text[: text.index("[tokenizer]")].replace('"tiny"', '"heads"')
        + '[start]\ncheckpoint = "elsewhere"\n[objective]\nloss = "exit-heads"\n'
        + '[exit_heads]\nkind = "lens"\nafter_blocks = [2]\ntext = "documents"\ncached_tokens = 100\n'
        + '[optimisation]\nsteps = 3\nbatch_tokens = 50\nlearning_rate = 1e-2\nprecision = "bf16"\n'
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert main(["train", str(heads), "--start", str(folder), *options]) == 0
    out, err = capfd.readouterr()
    assert err.startswith("[1/1] heads (5 steps): ok, "), "two batches of states, three steps"
    assert "\n  computed in fp32: " in out
    assert "computed in" not in first.out
    assert re.search(r"last block, [0-9]+ tokens:\n    block 2: own read-out [01]\.\d{3}, exit head [01]\.\d{3}\n", out)


def test_train_accepts_a_suite_or_a_recipe_name() -> None:
    wanted = {entry.recipe for entry in load_suite("builtin").models}
    assert wanted and {recipe.name for recipe in named_recipes("builtin")} == wanted
    assert [recipe.name for recipe in named_recipes("builtin-vanilla")] == ["builtin-vanilla"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("builtn", "Did you mean 'builtin'?"), ("builtin-fre", "Did you mean"), ("none.toml", "none.toml")],
)
def test_unknown_suite_or_recipe_is_refused(name: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", name]) == 2
    assert message in capfd.readouterr().err


def test_missing_data_is_refused_without_a_traceback(
    write_recipe: WriteRecipe, data_dir: Path, capfd: pytest.CaptureFixture[str], fork: Callable[[], None]
) -> None:
    fork()
    (data_dir / "val.fr").unlink()
    assert main(["train", str(write_recipe()), "--data-dir", str(data_dir)]) == 2
    error = capfd.readouterr().err
    assert "val.fr" in error and "Traceback" not in error


def test_seed_suffix_selects_a_recipe_with_another_seed() -> None:
    (recipe,) = named_recipes("builtin-weighted@1")
    assert (recipe.name, recipe.seed) == ("builtin-weighted@1", 1)
    with pytest.raises(UserError, match="Allowed: a seed"):
        named_recipes("builtin-weighted@one")
