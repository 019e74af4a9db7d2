"""Recipes: allowed values, and that every value is part of a model's identity."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from exitbench.errors import UserError
from exitbench.harness.training import load_recipe, recipe_names
from exitbench.harness.training.recipe import RECIPES_DIR
from exitbench.harness.training.store import model_digest


def test_every_bundled_recipe_loads_and_is_named_like_its_file() -> None:
    assert recipe_names()
    assert [load_recipe(name).name for name in recipe_names()] == recipe_names()


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (("d_ff", "d_fff"), "d_fff = 64", "Did you mean 'd_ff'?"),
        (("steps = 40", "steps = 0"), "steps = 0", "Allowed: 1 to"),
        (("steps = 40", 'steps = "many"'), 'steps = "many"', "whole number"),
        (('loss = "weighted"', 'loss = "wieghted"'), "wieghted", "Did you mean 'weighted'?"),
        (('loss = "weighted"', 'loss = "weighted"\ndistillation = "unifrom"'), "unifrom", "Did you mean 'uniform'?"),
        (
            ('loss = "weighted"', 'loss = "weighted"\ncurriculum = "rotation"'),
            "curriculum",
            "Did you mean 'rotational'?",
        ),
        (('loss = "weighted"', 'loss = "weighted"\nrotation = 0'), "rotation = 0", "Allowed: 1 to"),
        (('loss = "weighted"', 'loss = "weighted"\nlayer_dropout = 1.1'), "layer_dropout = 1.1", "Allowed: 0.0 to 1.0"),
        (('loss = "weighted"', 'loss = "weighted"\nearly_exit_scale = -1.0'), "early_exit_scale", "Allowed: 0.0 to"),
        (('kind = "bpe"', 'kind = "builtin"'), "[tokenizer]", "only with it"),
        (("warmup_steps = 5", "warmup_steps = 40"), "warmup_steps = 40", "fewer than steps"),
        (('"val.fr" }', '"val.fr" }\nrepaet = 2'), "repaet", "Did you mean 'repeat'?"),
        (("num_layers = 3", "num_layers = 0"), "num_layers = 0", "has an encoder"),
        (("d_ff = 64", "d_ff = 64\nneighbour_heads = 5"), "neighbour_heads = 5", "at most num_heads = 4"),
        (("seed = 3", "seed = -3"), "seed = -3", "0 or more"),
        (
            ("[tokenizer]", "[start]\nrecipe = 'builtin-causal'\n[tokenizer]"),
            'name = "tiny"',
            "either [start], or both",
        ),
        (('loss = "weighted"', 'loss = "shallow-deep"'), 'loss = "shallow-deep"', "`shallow_blocks` goes with"),
        (
            ('loss = "weighted"', 'loss = "shallow-deep"\nshallow_blocks = 3'),
            "shallow_blocks = 3",
            "below the model's 3 decoder blocks",
        ),
        (('loss = "weighted"', 'loss = "last"\nblocks = [1, 3]'), "blocks = [1, 3]", "a weight for each block: bra"),
        (('loss = "weighted"', 'loss = "weighted"\nblocks = [3, 1]'), "blocks = [3, 1]", "ascending block numbers"),
        (('"val.fr" }', '"val.fr" }\npart = "tset"'), 'part = "tset"', "Did you mean 'test'?"),
        (('loss = "weighted"', 'loss = "exit-heads"'), 'loss = "exit-heads"', "[exit_heads] table goes with"),
        (("dropout_rate = 0.0", 'dropout_rate = 0.0\nfamily = "llama"'), "num_layers = 3", "has no encoder"),
        (("d_kv = 8", 'd_kv = 8\nfamily = "marain"'), 'family = "marain"', "Did you mean 'marian'?"),
        (("num_layers = 3", 'family = "pegasus"\nnum_layers = 0'), "num_layers = 0", "pegasus has an encoder"),
        (("num_layers = 3", 'family = "gpt_neox"\nnum_layers = 3'), "num_layers = 3", "gpt_neox has no encoder"),
        (("d_kv = 8", 'd_kv = 16\nfamily = "marian"'), "d_kv = 16", "d_model / num_heads = 8: marian has no other"),
        (
            (
                "d_kv = 8\nd_ff = 64\nnum_heads = 4\nnum_layers = 3",
                'd_kv = 4\nd_ff = 64\nnum_heads = 8\nfamily = "phi"',
            ),
            "d_kv = 4",
            "a multiple of 8: phi turns a part",
        ),
        (
            ("d_kv = 8", 'd_kv = 8\nfamily = "marian"\nneighbour_heads = 2'),
            "neighbour_heads = 2",
            "marian begins at random",
        ),
        (
            ("d_kv = 8", 'd_kv = 8\nfamily = "marian"\nfeed_forward_proj = "relu"'),
            'feed_forward_proj = "relu"',
            "is for t5: marian has its own",
        ),
        (
            ("d_kv = 8", 'd_kv = 8\nfamily = "marian"\nmax_positions = 127'),
            "max_positions = 127",
            "max_tokens is 128. Allowed: as many or more",
        ),
    ],
)
def test_mistake_in_a_recipe_is_reported_with_its_line(
    write_recipe: Callable[..., Path], change: tuple[str, str], line: str, message: str
) -> None:
    path = write_recipe(change)
    with pytest.raises(UserError) as caught:
        load_recipe(path)
    number = next(n for n, text in enumerate(path.read_text().splitlines(), start=1) if line in text)
    assert str(caught.value).startswith(f"{path}:{number}:")
    assert message in str(caught.value)


def test_unknown_recipe_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match="Did you mean 'multi30k-weighted'"):
        load_recipe("multi30k-wieghted")


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to every leaf of a nested dataclass."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), (*path, field.name))
    elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        yield from leaves(value[0], (*path, 0))
    else:
        yield path


def changed(value: Any, path: tuple[Any, ...]) -> Any:
    """Return a copy of the nested dataclass in which the value at a path is different."""
    if not path:
        if value is None:
            return "x"
        return (
            value + 1 if isinstance(value, int | float) else (*value, "x") if isinstance(value, tuple) else value + "x"
        )
    if isinstance(value, tuple):
        return (changed(value[0], path[1:]), *value[1:])
    return dataclasses.replace(value, **{path[0]: changed(getattr(value, path[0]), path[1:])})


def test_model_digest_changes_with_every_recipe_field_data_and_version(write_recipe: Callable[..., Path]) -> None:
    recipe = load_recipe(write_recipe())
    paths = list(leaves(recipe))
    assert len(paths) > 35
    variants = [model_digest(changed(recipe, path), "a", "", 1) for path in paths]
    others = (("a", "", 1), ("b", "", 1), ("a", "s", 1), ("a", "", 2))
    variants += [model_digest(recipe, *other) for other in others]
    assert len(set(variants)) == len(variants)


def test_a_recipe_cannot_start_from_itself(write_recipe: Callable[..., Path]) -> None:
    path = write_recipe()
    text = path.read_text()
    start = f'[start]\nrecipe = "{path}"\n'
    path.write_text(text[: text.index("[tokenizer]")] + start + text[text.index("[objective]") :])
    with pytest.raises(UserError, match="is this very recipe"):
        load_recipe(path)


def test_seed_suffix_changes_only_name_and_seed() -> None:
    other, shipped = load_recipe("builtin-weighted@7"), load_recipe("builtin-weighted")
    assert other == dataclasses.replace(shipped, name="builtin-weighted@7", seed=7)


@pytest.mark.parametrize("seed", ["", "one", "-1", "1.5", "9" * 5000])
def test_invalid_seed_suffix_is_refused(seed: str) -> None:
    with pytest.raises(UserError, match="Allowed: a seed, 0 to 999999999"):
        load_recipe(f"builtin-weighted@{seed}")


def test_shared_steps_are_refused_with_a_start_recipe(write_recipe: Callable[..., Path]) -> None:
    path = write_recipe(("steps = 40", "steps = 40\nshared_steps = 5"))
    text = path.read_text()
    path.write_text(
        text[: text.index("[tokenizer]")] + '[start]\nrecipe = "builtin-causal"\n' + text[text.index("[objective]") :]
    )
    with pytest.raises(UserError, match="shared_steps: is for a new model"):
        load_recipe(path)


@pytest.mark.parametrize(
    ("after_blocks", "message"),
    [
        ("[2, 2]", "ascending block numbers from 1"),
        ("[0, 2]", "ascending block numbers from 1"),
        ("[2, 8]", "below the model's 8 decoder blocks"),
        ('["2"]', "after_blocks"),
    ],
)
def test_invalid_exit_head_blocks_are_refused(tmp_path: Path, after_blocks: str, message: str) -> None:
    text = (RECIPES_DIR / "builtin-exit-heads.toml").read_text()
    path = tmp_path / "heads.toml"
    path.write_text(text.replace("count = 3", f"after_blocks = {after_blocks}"))
    with pytest.raises(UserError, match=message):
        load_recipe(path)


def test_default_exit_head_settings_are_omitted_from_the_recipe_description() -> None:
    described = load_recipe("builtin-exit-heads").described()["exit_heads"]
    assert not {"after_blocks", "positions", "cached_tokens"} & described.keys()
    described = load_recipe("smollm2-tuned-lens").described()["exit_heads"]
    assert (described["after_blocks"], described["cached_tokens"]) == ((6, 12, 18, 24, 27), 50000)
