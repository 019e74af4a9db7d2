"""Recipes: what to train, on what, for how many steps; a TOML file becomes frozen dataclasses.

A recipe holds no path of the machine (files are relative to the data folder) and no time budget: the
same recipe on the same data gives the same training run, however fast the machine is.
"""

from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from exitbench.errors import UserError, suggestion
from exitbench.harness.toml import Table

T = TypeVar("T")

RECIPES_DIR = Path(__file__).parent / "recipes"


def _number(low: float, high: float = float("inf"), default: Any = MISSING) -> Any:
    """A numeric field with an inclusive range."""
    return field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True)
class DataSource:
    """Documents of one task, read through the task itself (so that prompts are those of evaluation).

    Attributes:
        task: Registered name of the task.
        source: `builtin` (generated) or `local` (files below the data folder).
        split: Which split of built-in data; `train` for local files.
        files: Local files as (role, path relative to the data folder).
        documents: How many documents; 0 keeps all that local files have.
        seed: Seed of the built-in generator.
        repeat: How many times each epoch shows these documents.
        from_step: First step at which they are shown. T5 has no absolute positions, so a decoder learns where to look
            from short, nearly word-for-word pairs hundreds of steps sooner than from a mixture with long ones.
    """

    task: str
    source: Literal["builtin", "local"] = "builtin"
    split: str = "train"
    files: tuple[tuple[str, str], ...] = ()
    documents: int = _number(0, default=0)
    seed: int = _number(0, default=0)
    repeat: int = _number(1, default=1)
    from_step: int = _number(0, default=0)


@dataclass(frozen=True)
class TokenizerRecipe:
    """Either the word-level tokenizer of the built-in data or a byte-level BPE fitted to the training text."""

    kind: Literal["builtin", "bpe"]
    vocab_size: int = _number(0, 65_536, default=0)


@dataclass(frozen=True)
class ArchitectureRecipe:
    """T5 with tied embeddings; the names are those of `transformers.T5Config`."""

    d_model: int = _number(8)
    d_kv: int = _number(4)
    d_ff: int = _number(8)
    num_heads: int = _number(1)
    num_layers: int = _number(1)
    num_decoder_layers: int = _number(1)
    feed_forward_proj: Literal["relu", "gated-gelu"] = "relu"
    dropout_rate: float = _number(0.0, 0.9, default=0.1)
    relative_attention_num_buckets: int = _number(2, default=32)
    relative_attention_max_distance: int = _number(4, default=128)


@dataclass(frozen=True, kw_only=True)
class OptimisationRecipe:
    """How the weights are found.

    Attributes:
        loss: `last` trains the last block's output only; `weighted` every decoder block's (see `losses`).
        steps: Optimiser steps.
        batch_tokens: Source and target tokens of a batch, padding included.
        max_tokens: Pairs with a longer source or target are left out.
        learning_rate: Peak of the schedule.
        embedding_learning_rate_factor: The embedding's rate over the others'. T5 draws embeddings with
            standard deviation 1 and matrices with d_model ** -0.5, so equal steps of Adam move the embedding,
            relative to its size, much less.
        optimizer: `adamw`; or `muon`: orthogonalised momentum for the weight matrices, AdamW for the rest
            (Jordan et al., 2024). A step costs more, and far fewer are needed.
        muon_learning_rate: Rate of the matrices, on AdamW's scale (their update has the root mean square of AdamW's).
        schedule: After a linear warm-up; names of `transformers.get_scheduler`, both fall to 0 at the last step.
        precision: `bf16` computes activations and gradients in bfloat16; the weights that learn stay fp32.
    """

    loss: Literal["last", "weighted"]
    steps: int = _number(1)
    batch_tokens: int = _number(16)
    max_tokens: int = _number(2, default=128)
    learning_rate: float = _number(0.0)
    embedding_learning_rate_factor: float = _number(0.0, default=1.0)
    optimizer: Literal["adamw", "muon"] = "adamw"
    muon_learning_rate: float = _number(0.0, default=0.0)
    schedule: Literal["linear", "cosine"] = "cosine"
    warmup_steps: int = _number(0, default=0)
    weight_decay: float = _number(0.0, default=0.0)
    clip_norm: float = _number(0.0, default=1.0)
    label_smoothing: float = _number(0.0, 0.9, default=0.0)
    adam_beta2: float = _number(0.0, 1.0, default=0.98)
    precision: Literal["fp32", "bf16"] = "fp32"


@dataclass(frozen=True)
class Recipe:
    """One model: data, tokenizer, architecture, optimisation and the seed of them all.

    Attributes:
        train: Training data; of two documents with one prompt the first is kept.
        validation: Data for the accuracy of each block in the model's card.
        held_out: Data whose prompts, like those of `validation`, are dropped from training.
    """

    name: str
    seed: int
    train: tuple[DataSource, ...]
    validation: tuple[DataSource, ...]
    held_out: tuple[DataSource, ...]
    tokenizer: TokenizerRecipe
    architecture: ArchitectureRecipe
    optimisation: OptimisationRecipe


def recipe_names() -> list[str]:
    """Names of the shipped recipes, sorted."""
    return sorted(path.stem for path in RECIPES_DIR.glob("*.toml"))


def recipe_path(name: str) -> Path:
    """File of a shipped recipe.

    Raises:
        UserError: No such recipe.
    """
    path = RECIPES_DIR / f"{name}.toml"
    if path.stem != name or not path.is_file():
        raise UserError(f"No recipe {name!r}.{suggestion(name, recipe_names())}")
    return path


def load_recipe(name_or_path: str | Path) -> Recipe:
    """Read a shipped recipe by name, or any recipe by the path of its TOML file.

    Raises:
        UserError: Unknown recipe, unreadable file, invalid TOML, unknown or missing key, or value out of range.
    """
    path = Path(name_or_path)
    top = Table.read(path if path.suffix == ".toml" else recipe_path(str(name_or_path)))
    top.allow(*(f.name for f in fields(Recipe)))
    seed = top.get("seed", int)
    if seed < 0:
        raise top.error("seed", f"is {seed}. Allowed: 0 or more.")
    train = tuple(map(_data_source, top.tables("train")))
    if all(source.from_step for source in train):
        raise top.error("train", "no entry has from_step = 0, so nothing can be shown first.")
    return Recipe(
        name=top.get("name", str),
        seed=seed,
        train=train,
        validation=tuple(map(_data_source, top.tables("validation"))),
        held_out=tuple(map(_data_source, top.tables("held_out"))) if "held_out" in top.values else (),
        tokenizer=_tokenizer(top.table("tokenizer")),
        architecture=_architecture(top.table("architecture")),
        optimisation=_optimisation(top.table("optimisation")),
    )


def _data_source(table: Table) -> DataSource:
    """One source, with what no single key of it can show."""
    source = _build(DataSource, table)
    if source.source == "builtin" and not source.documents:
        raise table.error(None, "built-in data has no end; say how many `documents`.")
    if (source.source == "local") != bool(source.files):
        raise table.error(None, '`files` goes with source = "local", and only with it.')
    return source


def _tokenizer(table: Table) -> TokenizerRecipe:
    """The tokenizer; only a trained one has a size to choose."""
    tokenizer = _build(TokenizerRecipe, table)
    if (tokenizer.kind == "bpe") != bool(tokenizer.vocab_size):
        raise table.error(None, '`vocab_size` goes with kind = "bpe", and only with it.')
    return tokenizer


def _architecture(table: Table) -> ArchitectureRecipe:
    """The architecture, in the range that `transformers` can generate with.

    `generate` of transformers 5.23 makes a T5 decoder's cache as deep as the encoder and fails beyond it.
    """
    architecture = _build(ArchitectureRecipe, table)
    if architecture.num_layers < architecture.num_decoder_layers:
        raise table.error("num_layers", f"must be at least num_decoder_layers = {architecture.num_decoder_layers}.")
    return architecture


def _optimisation(table: Table) -> OptimisationRecipe:
    """The optimisation, whose warm-up must end."""
    optimisation = _build(OptimisationRecipe, table)
    if optimisation.warmup_steps >= optimisation.steps:
        raise table.error("warmup_steps", f"must be fewer than steps = {optimisation.steps}.")
    if (optimisation.optimizer == "muon") != bool(optimisation.muon_learning_rate):
        raise table.error(None, '`muon_learning_rate` goes with optimizer = "muon", and only with it.')
    return optimisation


def _build(cls: type[T], table: Table) -> T:
    """Make one dataclass of one TOML table."""
    own = fields(cls)  # type: ignore[arg-type]
    table.allow(*(f.name for f in own))
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for f in own:
        if f.name not in table.values and f.default is not MISSING:
            continue
        value = values[f.name] = _value(table, f.name, hints[f.name])
        low, high = f.metadata.get("low"), f.metadata.get("high")
        if low is not None and not low <= value <= high:
            raise table.error(f.name, f"is {value}. Allowed: {low} to {high}.")
    return cls(**values)


def _value(table: Table, key: str, kind: Any) -> Any:
    """One value of the type that its field declares."""
    if get_origin(kind) is Literal:
        word = table.get(key, str)
        if word not in get_args(kind):
            raise table.error(key, f"is {word!r}.{suggestion(word, get_args(kind))}")
        return word
    if get_origin(kind) is tuple:
        roles = table.get(key, dict)
        return tuple(sorted((role, table.typed(key, path, str)) for role, path in roles.items()))
    return table.get(key, kind)
