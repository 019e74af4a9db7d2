"""Recipes: what to train, on what, for how many steps; a TOML file becomes frozen dataclasses.

A recipe holds no path of the machine (files are relative to the data folder) and no time budget: the
same recipe on the same data gives the same training run, however fast the machine is.
"""

from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from exitbench.errors import UserError, suggestion
from exitbench.harness.reading.toml import Table
from exitbench.tasks.base import ModelKind
from exitbench.tasks.document import DEFAULT_LEVEL, LEVELS

T = TypeVar("T")

# Part of every model's digest: raise it whenever a change of the training makes other weights of the same recipe.
TRAINING_VERSION = 3
RECIPES_DIR = Path(__file__).parent / "recipes"

Family = Literal["t5", "llama", "marian", "pegasus", "gpt_neox", "phi", "bert"]
_DECODER_ONLY = frozenset({"llama", "gpt_neox", "phi"})
_ENCODER_ONLY = frozenset({"bert"})
_OF_T5 = ("feed_forward_proj", "relative_attention_num_buckets", "relative_attention_max_distance")


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
        level: How hard built-in data are.
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
    level: int = _number(LEVELS[0], LEVELS[-1], default=DEFAULT_LEVEL)
    repeat: int = _number(1, default=1)
    from_step: int = _number(0, default=0)


@dataclass(frozen=True)
class TokenizerRecipe:
    """Either the word-level tokenizer of the built-in data or a byte-level BPE fitted to the training text."""

    kind: Literal["builtin", "bpe"]
    vocab_size: int = _number(0, 65_536, default=0)


@dataclass(frozen=True)
class ArchitectureRecipe:
    """A model drawn anew, of a family of transformers.

    The names are those of `transformers.T5Config`, whatever the family; a decoder without an encoder has `num_layers`
    0, an encoder without a decoder `num_decoder_layers` 0. What is not said here is the default of the family's
    configuration; T5 and Llama have tied embeddings.

    Attributes:
        d_kv: Width of a head; `d_model / num_heads` but in T5 and Llama.
        feed_forward_proj: Of T5, as the relative positions; other families have their own.
        max_positions: Longest text; of a T5, which has relative positions only, nothing.
        neighbour_heads: So many heads begin by looking at the token 1, 2, .. before (T5: in every block of encoder and
            decoder, which share a table; Llama: in the first, by biases, and as many of the second by looking for the
            tokens that those passed on, an induction head). Finding a fact again needs them first, and nothing else
            can be learned before; drawn at random, they take longer to come about than a short training lasts.
    """

    d_model: int = _number(8)
    d_kv: int = _number(4)
    d_ff: int = _number(8)
    num_heads: int = _number(1)
    num_decoder_layers: int = _number(0, default=0)
    num_layers: int = _number(0, default=0)
    family: Family = "t5"
    feed_forward_proj: Literal["relu", "gated-gelu"] = "relu"
    dropout_rate: float = _number(0.0, 0.9, default=0.1)
    relative_attention_num_buckets: int = _number(2, default=32)
    relative_attention_max_distance: int = _number(4, default=128)
    max_positions: int = _number(1, default=1024)
    neighbour_heads: int = _number(0, default=0)


@dataclass(frozen=True)
class StartRecipe:
    """Weights and tokenizer to go on from: exactly one of the two.

    Attributes:
        recipe: Another recipe, which is trained first.
        checkpoint: Folder of a Hugging Face checkpoint of a supported family, relative to the data folder.
    """

    recipe: str = ""
    checkpoint: str = ""


@dataclass(frozen=True, kw_only=True)
class ObjectiveRecipe:
    """What is minimised.

    Attributes:
        loss: Cross-entropy of the last block only, of every block with the weights of `losses.JointLoss`, of two blocks
            (`shallow-deep`, FREE), of blocks on a curriculum with layer dropout (`layer-skip`), or of exit heads on a
            frozen model (`exit-heads`). Of encoders also: of off-ramps on a frozen model (`two-stage`, DeeBERT), of the
            last block and of all in turn (`alternating`, BERxiT), or the divergence of off-ramps on a frozen model from
            its last block (`self-distillation`, FastBERT).
        every_block_steps: First steps in which every block learns (loss `weighted`), whatever `loss` is: finding facts
            again, many times in a row, comes about several times sooner where each time is read out.
        label_smoothing: Share of the gold token's mass that is spread over the vocabulary.
        shallow_blocks: FREE's S.
        distillation: Which shallow states learn which deep ones (FREE); `none` leaves the term out.
        distillation_weight: FREE's alpha.
        distillation_transform: Put a linear map on the shallow side.
        layer_dropout: LayerSkip's p_max: chance that a sequence skips the last block; earlier blocks less.
        early_exit_scale: LayerSkip's e_scale: weight of the early blocks' losses.
        curriculum: Which early blocks learn at a step: all, every `rotation`-th in turn, or one more by and by.
        rotation: LayerSkip's R.
    """

    loss: Literal[
        "last",
        "uniform",
        "weighted",
        "geometric",
        "branchynet",
        "last-70",
        "shallow-deep",
        "layer-skip",
        "exit-heads",
        "two-stage",
        "alternating",
        "self-distillation",
    ]
    every_block_steps: int = _number(0, default=0)
    label_smoothing: float = _number(0.0, 0.9, default=0.0)
    shallow_blocks: int = _number(0, default=0)
    distillation: Literal["none", "last", "uniform", "closest-code", "closest-text"] = "none"
    distillation_weight: float = _number(0.0, default=0.5)
    distillation_transform: bool = False
    layer_dropout: float = _number(0.0, 1.0, default=0.0)
    early_exit_scale: float = _number(0.0, default=0.2)
    curriculum: Literal["none", "rotational", "gradual"] = "rotational"
    rotation: int = _number(1, default=3)


@dataclass(frozen=True, kw_only=True)
class ExitHeadsRecipe:
    """Self-supervised exit heads on a frozen model (HEADS; Tuned lens for kind `lens`).

    Attributes:
        kind: Norm and linear map; norm and two layers; or a map of the state before the model's own head.
        count: How many: after blocks i * floor(L / (count + 1)), i = 1..count (HEADS: 6, 12, 18, 24 of 32).
        init: From scratch, or copied from the model's own norm and head.
        norm: Kind of norm of a head from scratch.
        hidden_width: Of kind `mlp`.
        target: The frozen model's choice (`hard`, as published code) or its distribution (`soft`, as the paper).
        entropy_weight: lambda: (1 - lambda) CE - lambda H; entropy is rewarded.
        text: Learn on the documents' reference answers, or on text that the frozen model samples after `prompts`.
        prompts: What text is sampled after; none: the prompts of the documents.
        texts: How many texts are sampled.
        text_tokens: Longest sampled text.
    """

    kind: Literal["linear", "mlp", "lens"] = "linear"
    count: int = _number(1, default=4)
    init: Literal["scratch", "copy"] = "scratch"
    norm: Literal["layer", "rms"] = "layer"
    hidden_width: int = _number(1, default=256)
    target: Literal["hard", "soft"] = "soft"
    entropy_weight: float = _number(0.0, 1.0, default=0.95)
    text: Literal["documents", "generated"] = "generated"
    prompts: tuple[str, ...] = ()
    texts: int = _number(1, default=2000)
    text_tokens: int = _number(1, default=64)

    def blocks(self, n_blocks: int) -> tuple[int, ...]:
        """Blocks of an L-block decoder that get a head."""
        return tuple(i * (n_blocks // (self.count + 1)) for i in range(1, self.count + 1))


_OF_JOINT_LOSSES = frozenset({"last", "uniform", "weighted", "geometric", "branchynet", "last-70"})
_OF_ENCODERS = frozenset({"two-stage", "alternating", "self-distillation"})
_ON_FROZEN = frozenset({"two-stage", "self-distillation"})


@dataclass(frozen=True)
class OffRampsRecipe:
    """How the blocks of an encoder before the last are read out.

    Attributes:
        kind: `linear`: a linear map a block. `pooler-linear`: a pooler and a linear map a block (DeeBERT, BERxiT).
            `shared-pooler`: the model's own pooler, and a linear map a block (PABEE). `shared-head`: the model's own
            classifier reads every block, so that there is nothing beside it (NATCAP).
    """

    kind: Literal["linear", "pooler-linear", "shared-pooler", "shared-head"] = "pooler-linear"


@dataclass(frozen=True, kw_only=True)
class OptimisationRecipe:
    """How the weights are found.

    Attributes:
        steps: Optimiser steps.
        batch_tokens: Source and target tokens of a batch, padding included.
        max_tokens: Pairs with a longer source or target are left out.
        learning_rate: Peak of the schedule.
        embedding_learning_rate_factor: The embedding's rate over the others'. T5 draws embeddings with
            standard deviation 1 and matrices with d_model ** -0.5, so equal steps of Adam move the embedding,
            relative to its size, much less.
        position_learning_rate_factor: The same for the tables of relative positions, which must reach values of
            several nats before a head looks at one place only; without that the model reads a bag of words.
        optimizer: `adamw`; or `muon`: orthogonalised momentum for the weight matrices, AdamW for the rest
            (Jordan et al., 2024). A step costs more, and far fewer are needed.
        muon_learning_rate: Rate of the matrices, on AdamW's scale (their update has the root mean square of AdamW's).
        schedule: After a linear warm-up; names of `transformers.get_scheduler`, both fall to 0 at the last step.
        precision: `bf16` computes activations in bfloat16 (autocast); the weights that learn stay fp32.
        saved_precision: Number format of the checkpoint; `bf16` is half as large.
        shared_steps: First steps in which the decoder's blocks from the second on have the same weights.
        save_steps: Steps between the points that an interrupted training goes on from.
    """

    steps: int = _number(1)
    batch_tokens: int = _number(16)
    max_tokens: int = _number(2, default=128)
    learning_rate: float = _number(0.0)
    embedding_learning_rate_factor: float = _number(0.0, default=1.0)
    position_learning_rate_factor: float = _number(0.0, default=1.0)
    optimizer: Literal["adamw", "muon"] = "adamw"
    muon_learning_rate: float = _number(0.0, default=0.0)
    schedule: Literal["linear", "cosine"] = "cosine"
    warmup_steps: int = _number(0, default=0)
    weight_decay: float = _number(0.0, default=0.0)
    clip_norm: float = _number(0.0, default=1.0)
    adam_beta2: float = _number(0.0, 1.0, default=0.98)
    precision: Literal["fp32", "bf16"] = "fp32"
    saved_precision: Literal["fp32", "bf16"] = "fp32"
    shared_steps: int = _number(0, default=0)
    save_steps: int = _number(1, default=100)


@dataclass(frozen=True)
class Recipe:
    """One model: data, what it starts from, objective, optimisation and the seed of them all.

    Attributes:
        train: Training data; of two documents with one prompt the first is kept.
        validation: Data for the accuracy of each block in the model's card.
        held_out: Data whose prompts, like those of `validation`, are dropped from training.
        start: Weights to go on from; or else a new model of `architecture` with a new `tokenizer`.
        exit_heads: The heads that loss `exit-heads` trains.
        off_ramps: Of an encoder; None: its own classifier reads every block.
    """

    name: str
    seed: int
    train: tuple[DataSource, ...]
    validation: tuple[DataSource, ...]
    held_out: tuple[DataSource, ...]
    start: StartRecipe | None
    tokenizer: TokenizerRecipe | None
    architecture: ArchitectureRecipe | None
    objective: ObjectiveRecipe
    exit_heads: ExitHeadsRecipe | None
    optimisation: OptimisationRecipe
    off_ramps: OffRampsRecipe | None = None

    def described(self) -> dict[str, Any]:
        """Return what cards and digests say of the recipe."""
        values = asdict(self)
        if self.off_ramps is None:  # as before there were any, so that digests stay
            del values["off_ramps"]
        return values

    @property
    def first(self) -> "Recipe | None":
        """The recipe that must be trained before this one."""
        return load_recipe(self.start.recipe) if self.start is not None and self.start.recipe else None

    @property
    def kind(self) -> ModelKind | None:
        """Of model; None where only a checkpoint on disk knows."""
        if self.architecture is not None:
            family = self.architecture.family
            return "encoder" if family in _ENCODER_ONLY else "causal" if family in _DECODER_ONLY else "seq2seq"
        return None if self.first is None else self.first.kind

    @property
    def n_blocks(self) -> int | None:
        """Blocks of the decoder, or of an encoder without one; None where only a checkpoint on disk knows."""
        if self.architecture is not None:
            return self.architecture.num_decoder_layers or self.architecture.num_layers
        return None if self.first is None else self.first.n_blocks


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

    `NAME@SEED` is a shipped recipe with another seed, so that a training's luck can be seen.

    Raises:
        UserError: Unknown recipe, unreadable file, invalid TOML, unknown or missing key, or value out of range.
    """
    path = Path(name_or_path)
    known, at, other_seed = str(name_or_path).rpartition("@")
    if at and path.suffix != ".toml":
        if not (other_seed.isascii() and other_seed.isdigit() and len(other_seed) < 10):
            raise UserError(f"Recipe {name_or_path!r}: after @ stands {other_seed!r}. Allowed: a seed, 0 to 999999999.")
        return replace(load_recipe(known), name=f"{known}@{int(other_seed)}", seed=int(other_seed))
    top = Table.read(path if path.suffix == ".toml" else recipe_path(str(name_or_path)))
    top.allow(*(f.name for f in fields(Recipe)))
    seed = top.get("seed", int)
    if seed < 0:
        raise top.error("seed", f"is {seed}. Allowed: 0 or more.")
    train = tuple(map(_data_source, top.tables("train")))
    if all(source.from_step for source in train):
        raise top.error("train", "no entry has from_step = 0, so nothing can be shown first.")
    given = {key for key in ("start", "tokenizer", "architecture") if key in top.values}
    if given not in ({"start"}, {"tokenizer", "architecture"}):
        raise top.error(None, "needs either [start], or both [tokenizer] and [architecture].")
    recipe = Recipe(
        name=top.name("name", top.get("name", str)),
        seed=seed,
        train=train,
        validation=tuple(map(_data_source, top.tables("validation"))),
        held_out=tuple(map(_data_source, top.tables("held_out"))) if "held_out" in top.values else (),
        start=_start(top.table("start")) if "start" in given else None,
        tokenizer=_tokenizer(top.table("tokenizer")) if "tokenizer" in given else None,
        architecture=_architecture(top.table("architecture")) if "architecture" in given else None,
        objective=_build(ObjectiveRecipe, top.table("objective")),
        exit_heads=_build(ExitHeadsRecipe, top.table("exit_heads")) if "exit_heads" in top.values else None,
        optimisation=_optimisation(top.table("optimisation")),
        off_ramps=_build(OffRampsRecipe, top.table("off_ramps")) if "off_ramps" in top.values else None,
    )
    _check_objective(recipe, top)
    _check_off_ramps(recipe, top)
    _check_positions(recipe, top)
    return recipe


def _check_objective(recipe: Recipe, top: Table) -> None:
    """What the objective asks of the rest."""
    objective, table = recipe.objective, top.table("objective")
    if (objective.loss == "exit-heads") != (recipe.exit_heads is not None):
        raise table.error("loss", 'an [exit_heads] table goes with loss = "exit-heads", and only with it.')
    if recipe.exit_heads is not None and recipe.start is None:
        raise table.error("loss", '"exit-heads" needs a [start]: its model is frozen.')
    if recipe.optimisation.shared_steps and recipe.start is not None:
        raise top.table("optimisation").error("shared_steps", "is for a new model: a [start] has blocks of its own.")
    if (objective.loss == "shallow-deep") != bool(objective.shallow_blocks):
        raise table.error("loss", '`shallow_blocks` goes with loss = "shallow-deep", and only with it.')
    n_blocks = recipe.n_blocks
    if n_blocks is not None and objective.shallow_blocks >= n_blocks:
        raise table.error("shallow_blocks", f"must be below the model's {n_blocks} decoder blocks.")
    if n_blocks is not None and recipe.exit_heads is not None and recipe.exit_heads.count >= n_blocks:
        raise top.table("exit_heads").error("count", f"must be below the model's {n_blocks} decoder blocks.")


def _check_off_ramps(recipe: Recipe, top: Table) -> None:
    """What an encoder's objective and its off-ramps ask of each other."""
    loss, table, kind = recipe.objective.loss, top.table("objective"), recipe.kind
    is_encoder = kind == "encoder" or (kind is None and recipe.off_ramps is not None)
    if is_encoder and loss not in _OF_JOINT_LOSSES | _OF_ENCODERS:
        allowed = ", ".join(sorted(_OF_JOINT_LOSSES | _OF_ENCODERS))
        raise table.error("loss", f"is {loss!r}, which is for decoders. Allowed for encoders: {allowed}.")
    if kind not in ("encoder", None) and (loss in _OF_ENCODERS or recipe.off_ramps is not None):
        raise top.error(None, "[off_ramps] and the losses two-stage, alternating, self-distillation are for encoders.")
    own = recipe.off_ramps is not None and recipe.off_ramps.kind != "shared-head"
    if loss in _ON_FROZEN and not (own and recipe.start is not None):
        raise table.error(
            "loss", f'{loss!r} needs a [start], which is frozen, and [off_ramps] other than "shared-head".'
        )
    if loss == "last" and own:
        raise table.error("loss", 'is "last", by which off-ramps never learn. Leave out [off_ramps].')


def _check_positions(recipe: Recipe, top: Table) -> None:
    """That a model with a table of positions has one for every token that it is trained on."""
    made, longest = recipe.architecture, recipe.optimisation.max_tokens
    if made is not None and made.family not in {"t5", *_DECODER_ONLY} and longest > made.max_positions:
        raise top.table("architecture").error(
            "max_positions",
            f"is {made.max_positions}, but [optimisation] max_tokens is {longest}. Allowed: as many or more.",
        )


def _start(table: Table) -> StartRecipe:
    """One of the two places that weights can come from."""
    start = _build(StartRecipe, table)
    if bool(start.recipe) == bool(start.checkpoint):
        raise table.error(None, "needs exactly one of `recipe` and `checkpoint`.")
    if start.recipe:
        path = Path(start.recipe) if start.recipe.endswith(".toml") else recipe_path(start.recipe)
        if path.resolve() == table.path.resolve():
            raise table.error("recipe", "is this very recipe.")
    return start


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
    """The architecture, as its family can have it."""
    architecture = _build(ArchitectureRecipe, table)
    family, n_heads = architecture.family, architecture.num_heads
    if family in _DECODER_ONLY and architecture.num_layers:
        raise table.error("num_layers", f"must be 0 or left out: {family} has no encoder.")
    if family in _ENCODER_ONLY and architecture.num_decoder_layers:
        raise table.error("num_decoder_layers", f"must be 0 or left out: {family} has no decoder.")
    if family not in _ENCODER_ONLY and not architecture.num_decoder_layers:
        raise table.error("num_decoder_layers", f"must be at least 1: {family} has a decoder.")
    if family not in _DECODER_ONLY and not architecture.num_layers:
        raise table.error("num_layers", f"must be at least 1: {family} has an encoder.")
    if architecture.neighbour_heads > n_heads:
        raise table.error("neighbour_heads", f"must be at most num_heads = {n_heads}.")
    if family == "t5":
        return architecture
    for key in _OF_T5:
        if key in table.values:
            raise table.error(key, f"is for t5: {family} has its own.")
    if family == "llama":
        return architecture
    if architecture.neighbour_heads:
        raise table.error("neighbour_heads", f"must be 0 or left out: {family} begins at random.")
    if architecture.d_kv * n_heads != architecture.d_model:
        raise table.error(
            "d_kv", f"must be d_model / num_heads = {architecture.d_model / n_heads:g}: {family} has no other."
        )
    if family in _DECODER_ONLY and architecture.d_kv % 8:
        raise table.error("d_kv", f"must be a multiple of 8: {family} turns a part of each head by its position.")
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
    if kind == tuple[str, ...]:
        return table.strings(key, ())
    if get_origin(kind) is tuple:
        roles = table.get(key, dict)
        return tuple(sorted((role, table.typed(key, path, str)) for role, path in roles.items()))
    return table.get(key, kind)
