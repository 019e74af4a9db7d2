"""Training recipes: model, data, objective and optimization, read from TOML into frozen dataclasses.

A recipe has no absolute paths (files are relative to the data folder) and no time budget. The same recipe on the same
data gives the same training run, however fast the machine is.
"""

from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from exitbench.errors import UserError, suggestion
from exitbench.harness.reading.toml import TomlTable
from exitbench.tasks.base import ModelKind, Part
from exitbench.tasks.document import DEFAULT_LEVEL, LEVELS

T = TypeVar("T")

# Part of every model's digest: increase it whenever a code change leads to different weights for the same recipe.
TRAINING_VERSION = 3
RECIPES_DIR = Path(__file__).parent / "recipes"

Family = Literal["t5", "llama", "marian", "pegasus", "gpt_neox", "phi", "bert"]
_DECODER_ONLY = frozenset({"llama", "gpt_neox", "phi"})
_ENCODER_ONLY = frozenset({"bert"})
_OF_T5 = ("feed_forward_proj", "relative_attention_num_buckets", "relative_attention_max_distance")


def _number(low: float, high: float = float("inf"), default: Any = MISSING) -> Any:
    """Return a dataclass field for a number that must lie between `low` and `high`, bounds included.

    The bounds are stored as metadata, and checked when a recipe is read. Without `default`, the field is required.
    """
    return field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True)
class DataSource:
    """Documents of one task as training data; the task makes the prompts, so they are the same as in evaluation.

    Attributes:
        task: Registered name of the task.
        source: `builtin` (generated) or `local` (files below the data folder).
        split: Split of built-in data; `train` for local files.
        files: Local files as (role, path relative to the data folder); the task defines the roles.
        part: Part of the documents in local files: `all`, `train` (about four fifths) or `test` (one fifth).
        documents: Number of documents; 0 keeps all documents of local files.
        seed: Seed of the built-in generator.
        level: Difficulty level of built-in data, 1 to 3.
        repeat: How often each epoch repeats these documents.
        from_step: First training step at which these documents are used. T5 has no absolute positions. Its decoder
            learns where to attend hundreds of steps sooner from short, nearly word-for-word pairs than from a mixture
            with long ones.
    """

    task: str
    source: Literal["builtin", "local"] = "builtin"
    split: str = "train"
    files: tuple[tuple[str, str], ...] = ()
    part: Part = "all"
    documents: int = _number(0, default=0)
    seed: int = _number(0, default=0)
    level: int = _number(LEVELS[0], LEVELS[-1], default=DEFAULT_LEVEL)
    repeat: int = _number(1, default=1)
    from_step: int = _number(0, default=0)


@dataclass(frozen=True)
class TokenizerRecipe:
    """Tokenizer of a new model: word-level for the built-in data, or a byte-level BPE trained on the training text.

    Attributes:
        kind: `builtin` (word-level) or `bpe`.
        vocab_size: Vocabulary size of the BPE; 0 for `builtin`.
    """

    kind: Literal["builtin", "bpe"]
    vocab_size: int = _number(0, 65_536, default=0)


@dataclass(frozen=True)
class ArchitectureRecipe:
    """Architecture of a randomly initialized transformers model.

    Attribute names follow `transformers.T5Config` for all families. A decoder-only model has `num_layers` 0, an
    encoder-only one `num_decoder_layers` 0. Other settings are the defaults of the family's configuration; T5 and Llama
    have tied embeddings.

    Attributes:
        d_kv: Width of one attention head; must be `d_model / num_heads` except in T5 and Llama.
        feed_forward_proj: Type of the MLP, for T5 only, like the settings of relative positions; other families have
            their own.
        max_positions: Maximum number of tokens of a text; unused by T5, which has relative positions only.
        neighbour_heads: Number of attention heads initialized to attend 1, 2, .. tokens back. In T5, these are heads of
            every block, since all blocks share one position table. In Llama, they are heads of the first block, with as
            many induction heads in the second block. Retrieving a fact depends on such heads. From random
            initialization they take longer to form than a short training lasts.
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
    """Start of a training: weights and tokenizer of another recipe's model, or of a checkpoint.

    Attributes:
        recipe: Name or path of another recipe, whose model is trained first; empty if `checkpoint` is given.
        checkpoint: Folder of a Hugging Face checkpoint of a supported family, relative to the data folder; empty if
            `recipe` is given.
    """

    recipe: str = ""
    checkpoint: str = ""


@dataclass(frozen=True, kw_only=True)
class ObjectiveRecipe:
    """Settings of the training objective.

    Attributes:
        loss: Name of the loss. A name of `losses.JointLoss`: cross-entropy of all blocks, with the weights that
            `losses.block_weights` has for this name. `shallow-deep`: cross-entropy of two blocks (FREE). `layer-skip`:
            cross-entropy of blocks on a curriculum, with layer dropout. `exit-heads`: loss of exit heads on a frozen
            model. For encoders only: `two-stage`: cross-entropy of off-ramps on a frozen model (DeeBERT).
            `alternating`: cross-entropy of the last block and of all blocks in turn (BERxiT). `self-distillation`:
            divergence of off-ramps on a frozen model from its last block (FastBERT).
        blocks: Blocks whose losses count, ascending, including the last block; empty for all. Only for losses with a
            weight per block.
        every_block_steps: Number of initial training steps with loss `weighted`, whatever `loss` is. Multi-hop
            retrieval is learned several times faster if every block is read out.
        label_smoothing: Share of the correct token's (or label's) probability that is spread over all tokens (labels).
        shallow_blocks: FREE's S, the block of the early exit; 0 for other losses.
        distillation: Rule for pairing shallow and deep blocks in FREE's distillation loss; `none` omits that loss.
        distillation_weight: FREE's alpha, the weight of the distillation loss.
        distillation_transform: Whether a trained linear map is applied to the shallow states in the distillation loss.
        layer_dropout: LayerSkip's p_max, the probability that a sequence skips the last block; it is lower for earlier
            blocks.
        early_exit_scale: LayerSkip's e_scale, a factor on the early blocks' losses; 0 leaves the last block's only.
        curriculum: Early blocks in the loss at a training step: all (`none`), every `rotation`-th block in turn, or
            gradually more blocks.
        rotation: LayerSkip's R, the distance between blocks of the rotational curriculum.
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
    blocks: tuple[int, ...] = ()
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
    """Settings of self-supervised exit heads on a frozen model (HEADS; tuned lens for kind `lens`; heads of EE-Tuning).

    Heads of kinds `lens`, `norm` and `residual-mlp` end in the model's own LM head and start as its read-out of the
    block. They minimize the KL divergence from the last block's distribution; `target` and `entropy_weight` are for the
    other kinds.

    Attributes:
        kind: `linear`: norm and linear map. `mlp`: norm and two layers. `lens`: a map of the state before the model's
            own final norm and LM head. `norm`: a copy of the final norm before the model's own LM head. `residual-mlp`:
            a residual gated MLP before norm and LM head.
        count: Number of heads, placed after blocks i * floor(L / (count + 1)), i = 1..count (HEADS: 6, 12, 18, 24 of
            32).
        after_blocks: Blocks that get a head; if given, `count` is not used.
        init: Initial weights: from scratch, or copied from the model's own norm and LM head; for `residual-mlp` from
            the block's own MLP.
        norm: Kind of norm in a head from scratch.
        hidden_width: Hidden width of kinds `mlp` and, from scratch, `residual-mlp`.
        target: Training target: the frozen model's most probable token (`hard`, as in the published code) or its
            distribution (`soft`, as in the paper).
        entropy_weight: lambda in the loss (1 - lambda) CE - lambda H, in which entropy H is rewarded.
        text: Training text: the documents' reference answers, or text that the frozen model samples after `prompts`.
        prompts: Prompts for sampling; if empty, the prompts of the documents.
        texts: Number of sampled texts.
        text_tokens: Maximum number of tokens of a sampled text.
        positions: Tokens to train on: those of answers or, if the model is decoder-only, all tokens of prompt and
            answer.
        cached_tokens: Number of tokens whose hidden states are computed once, before training, and then read from a
            file. A training step then uses `batch_tokens` of these tokens. 0: the frozen model runs at every step.
    """

    kind: Literal["linear", "mlp", "lens", "norm", "residual-mlp"] = "linear"
    count: int = _number(1, default=4)
    after_blocks: tuple[int, ...] = ()
    init: Literal["scratch", "copy"] = "scratch"
    norm: Literal["layer", "rms"] = "layer"
    hidden_width: int = _number(1, default=256)
    target: Literal["hard", "soft"] = "soft"
    entropy_weight: float = _number(0.0, 1.0, default=0.95)
    text: Literal["documents", "generated"] = "generated"
    prompts: tuple[str, ...] = ()
    texts: int = _number(1, default=2000)
    text_tokens: int = _number(1, default=64)
    positions: Literal["answers", "all"] = "answers"
    cached_tokens: int = _number(0, default=0)

    def blocks(self, n_blocks: int) -> tuple[int, ...]:
        """Return the blocks (1-based) of a decoder with `n_blocks` blocks that get an exit head.

        Raises:
            UserError: One of these blocks is not before the decoder's last block.
        """
        if self.after_blocks and max(self.after_blocks) >= n_blocks:
            raise UserError(
                f"[exit_heads] after_blocks has {max(self.after_blocks)}, and the model has {n_blocks} decoder blocks. "
                f"Allowed: 1 to {n_blocks - 1}."
            )
        if not self.after_blocks and self.count >= n_blocks:
            raise UserError(f"{self.count} exit heads need a decoder of more blocks than this one's {n_blocks}.")
        return self.after_blocks or tuple(i * (n_blocks // (self.count + 1)) for i in range(1, self.count + 1))


_OF_JOINT_LOSSES = frozenset({"last", "uniform", "weighted", "geometric", "branchynet", "last-70"})
_OF_ENCODERS = frozenset({"two-stage", "alternating", "self-distillation"})
_ON_FROZEN = frozenset({"two-stage", "self-distillation"})


@dataclass(frozen=True)
class OffRampsRecipe:
    """Settings of the off-ramps, which read out an encoder's blocks before the last one.

    Attributes:
        kind: `linear`: a linear map per block. `pooler-linear`: a pooler and a linear map per block (DeeBERT, BERxiT).
            `attention`: a small attention over all tokens, a pooler and a linear map per block (FastBERT).
            `shared-pooler`: the model's own pooler, and a linear map per block (PABEE). `shared-head`: the model's own
            classifier for every block, without additional parameters (NATCAP).
    """

    kind: Literal["linear", "pooler-linear", "attention", "shared-pooler", "shared-head"] = "pooler-linear"


@dataclass(frozen=True, kw_only=True)
class OptimisationRecipe:
    """Optimization settings of a training: length, batches, learning rates, optimizer and number formats.

    Attributes:
        steps: Number of optimizer steps.
        batch_tokens: Maximum number of source and target tokens per batch, including padding.
        max_tokens: Maximum number of tokens of a source or target; longer training pairs are left out.
        learning_rate: Peak learning rate of the schedule.
        embedding_learning_rate_factor: Learning rate of the embedding relative to `learning_rate`. T5 initializes
            embeddings with standard deviation 1 and matrices with d_model ** -0.5. Equal Adam steps therefore change
            the embedding much less, relative to its size.
        position_learning_rate_factor: Learning rate of the relative position tables relative to `learning_rate`. Their
            values must reach several nats before an attention head attends to a single position; until then the model
            reads a bag of words.
        optimizer: `adamw`; or `muon`: orthogonalized momentum for the weight matrices, AdamW for the other weights
            (Jordan et al., 2024). A step of `muon` costs more, but far fewer steps are needed.
        muon_learning_rate: Learning rate of the matrices under `muon`, on AdamW's scale (updates have the root mean
            square of AdamW's).
        schedule: Learning rate schedule after a linear warm-up, by its name in `transformers.get_scheduler`; both
            `linear` and `cosine` end at 0.
        warmup_steps: Number of training steps in which the learning rates rise linearly from 0.
        clip_norm: Maximum norm of all gradients together; larger ones are scaled down.
        precision: `bf16` computes activations in bfloat16 (autocast) if the processor has fast products of it; trained
            weights stay fp32.
        saved_precision: Number format of the checkpoint; `bf16` is half as large.
        shared_steps: Number of initial training steps in which blocks 2..L share their weights.
        save_steps: Number of training steps between resume points.
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
    """Training recipe of one model: data, start, objective, optimization and seed.

    Attributes:
        seed: Seed of all that is random in the training, such as new weights, order of examples and dropout.
        train: Training data; of documents with the same prompt, only the first is kept.
        validation: Data on which the accuracy of each block is computed for the model's card.
        held_out: Data whose prompts, like those of `validation`, are dropped from training.
        start: Weights and tokenizer to start from; None trains a new model of `architecture` with a new `tokenizer`.
        objective: The loss and its settings.
        optimisation: Steps, batches, learning rates and number formats.
        exit_heads: Settings of the exit heads that loss `exit-heads` trains; None for other losses.
        off_ramps: Settings of an encoder's off-ramps; None if its own classifier reads out every block.
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
        """Return the recipe as a dictionary, for model cards and digests.

        Settings added in later versions are left out if they have their default values. So the digests of models
        trained before stay valid.
        """
        values = asdict(self)
        # Left out at their defaults, so that existing digests stay valid.
        if self.off_ramps is None:
            del values["off_ramps"]
        if isinstance(heads := values["exit_heads"], dict):
            defaults = asdict(ExitHeadsRecipe())
            for name in ("after_blocks", "positions", "cached_tokens"):
                if heads[name] == defaults[name]:
                    del heads[name]
        if not self.objective.blocks:
            del values["objective"]["blocks"]
        for source in (*values["train"], *values["validation"], *values["held_out"]):
            if isinstance(source, dict) and source["part"] == "all":
                del source["part"]
        return values

    @property
    def cache_steps(self) -> int:
        """Number of steps by which the progress display counts the computation of states before training.

        It is the number of tokens whose states are cached, divided by the tokens of a training step, rounded up; 0 if
        no states are cached.
        """
        tokens = 0 if self.exit_heads is None else self.exit_heads.cached_tokens
        return -(-tokens // self.optimisation.batch_tokens)

    @property
    def first(self) -> "Recipe | None":
        """The recipe that must be trained first, because this recipe starts from its model; None if there is none."""
        return load_recipe(self.start.recipe) if self.start is not None and self.start.recipe else None

    @property
    def kind(self) -> ModelKind | None:
        """Kind of the trained model (encoder, causal, seq2seq); None if only a checkpoint on disk determines it."""
        if self.architecture is not None:
            family = self.architecture.family
            return "encoder" if family in _ENCODER_ONLY else "causal" if family in _DECODER_ONLY else "seq2seq"
        return None if self.first is None else self.first.kind

    @property
    def n_blocks(self) -> int | None:
        """Number of decoder blocks, or of an encoder-only model's blocks; None if only a checkpoint determines it."""
        if self.architecture is not None:
            return self.architecture.num_decoder_layers or self.architecture.num_layers
        return None if self.first is None else self.first.n_blocks


def recipe_names() -> list[str]:
    """Return the sorted names of the bundled recipes."""
    return sorted(path.stem for path in RECIPES_DIR.glob("*.toml"))


def recipe_path(name: str) -> Path:
    """Return the path of a bundled recipe's TOML file.

    Raises:
        UserError: No bundled recipe has this name; the message suggests similar names.
    """
    path = RECIPES_DIR / f"{name}.toml"
    if path.stem != name or not path.is_file():
        raise UserError(f"No recipe {name!r}.{suggestion(name, recipe_names())}")
    return path


def load_recipe(name_or_path: str | Path) -> Recipe:
    """Return a bundled recipe by its name, or any recipe by the path of its TOML file.

    `NAME@SEED` is a bundled recipe with another seed, to measure the variation between trainings.

    Raises:
        UserError: The recipe is unknown, the file is unreadable or invalid TOML, a key is unknown or missing, or a
            value is out of range.
    """
    path = Path(name_or_path)
    recipe_name, at, other_seed = str(name_or_path).rpartition("@")
    if at and path.suffix != ".toml":
        if not (other_seed.isascii() and other_seed.isdigit() and len(other_seed) < 10):
            raise UserError(f"Recipe {name_or_path!r}: after @ stands {other_seed!r}. Allowed: a seed, 0 to 999999999.")
        return replace(load_recipe(recipe_name), name=f"{recipe_name}@{int(other_seed)}", seed=int(other_seed))
    top = TomlTable.read(path if path.suffix == ".toml" else recipe_path(str(name_or_path)))
    top.allow(*(f.name for f in fields(Recipe)))
    seed = top.get("seed", int)
    if seed < 0:
        raise top.error("seed", f"is {seed}. Allowed: 0 or more.")
    train = tuple(map(_data_source, top.tables("train")))
    if all(source.from_step for source in train):
        raise top.error("train", "no entry has from_step = 0, so nothing can be shown first.")
    present = {key for key in ("start", "tokenizer", "architecture") if key in top.values}
    if present not in ({"start"}, {"tokenizer", "architecture"}):
        raise top.error(None, "needs either [start], or both [tokenizer] and [architecture].")
    recipe = Recipe(
        name=top.name("name", top.get("name", str)),
        seed=seed,
        train=train,
        validation=tuple(map(_data_source, top.tables("validation"))),
        held_out=tuple(map(_data_source, top.tables("held_out"))) if "held_out" in top.values else (),
        start=_start(top.table("start")) if "start" in present else None,
        tokenizer=_tokenizer(top.table("tokenizer")) if "tokenizer" in present else None,
        architecture=_architecture(top.table("architecture")) if "architecture" in present else None,
        objective=_build(ObjectiveRecipe, top.table("objective")),
        exit_heads=_build(ExitHeadsRecipe, top.table("exit_heads")) if "exit_heads" in top.values else None,
        optimisation=_optimisation(top.table("optimisation")),
        off_ramps=_build(OffRampsRecipe, top.table("off_ramps")) if "off_ramps" in top.values else None,
    )
    _check_objective(recipe, top)
    _check_off_ramps(recipe, top)
    _check_positions(recipe, top)
    return recipe


def _check_objective(recipe: Recipe, top: TomlTable) -> None:
    """Raise a `UserError` if a recipe's objective contradicts its other tables, such as [exit_heads] or [start]."""
    objective, table = recipe.objective, top.table("objective")
    if (objective.loss == "exit-heads") != (recipe.exit_heads is not None):
        raise table.error("loss", 'an [exit_heads] table goes with loss = "exit-heads", and only with it.')
    if recipe.exit_heads is not None and recipe.start is None:
        raise table.error("loss", '"exit-heads" needs a [start]: its model is frozen.')
    if recipe.optimisation.shared_steps and recipe.start is not None:
        raise top.table("optimisation").error("shared_steps", "is for a new model: a [start] has blocks of its own.")
    if objective.blocks and objective.loss not in _OF_JOINT_LOSSES - {"last"}:
        allowed = ", ".join(sorted(_OF_JOINT_LOSSES - {"last"}))
        raise table.error("blocks", f"goes with a loss that has a weight for each block: {allowed}.")
    if objective.blocks and not (objective.blocks[0] > 0 and all(a < b for a, b in pairwise(objective.blocks))):
        raise table.error("blocks", "allowed: ascending block numbers from 1.")
    if (objective.loss == "shallow-deep") != bool(objective.shallow_blocks):
        raise table.error("loss", '`shallow_blocks` goes with loss = "shallow-deep", and only with it.')
    n_blocks = recipe.n_blocks
    if n_blocks is not None and objective.shallow_blocks >= n_blocks:
        raise table.error("shallow_blocks", f"must be below the model's {n_blocks} decoder blocks.")
    if recipe.exit_heads is not None:
        _check_exit_heads(recipe.exit_heads, n_blocks, top.table("exit_heads"))


def _check_exit_heads(heads: ExitHeadsRecipe, n_blocks: int | None, table: TomlTable) -> None:
    """Raise a `UserError` if the exit heads' blocks are not ascending, or not before the model's last block."""
    after = heads.after_blocks
    if after and not (after[0] > 0 and all(low < high for low, high in pairwise(after))):
        raise table.error("after_blocks", "allowed: ascending block numbers from 1.")
    if after and n_blocks is not None and after[-1] >= n_blocks:
        raise table.error("after_blocks", f"must be below the model's {n_blocks} decoder blocks.")
    if not after and n_blocks is not None and heads.count >= n_blocks:
        raise table.error("count", f"must be below the model's {n_blocks} decoder blocks.")


def _check_off_ramps(recipe: Recipe, top: TomlTable) -> None:
    """Raise a `UserError` if an encoder's loss does not fit its off-ramps, or a decoder has settings for encoders."""
    loss, table, kind = recipe.objective.loss, top.table("objective"), recipe.kind
    is_encoder = kind == "encoder" or (kind is None and recipe.off_ramps is not None)
    if is_encoder and loss not in _OF_JOINT_LOSSES | _OF_ENCODERS:
        allowed = ", ".join(sorted(_OF_JOINT_LOSSES | _OF_ENCODERS))
        raise table.error("loss", f"is {loss!r}, which is for decoders. Allowed for encoders: {allowed}.")
    if kind not in ("encoder", None) and (loss in _OF_ENCODERS or recipe.off_ramps is not None):
        raise top.error(None, "[off_ramps] and the losses two-stage, alternating, self-distillation are for encoders.")
    has_ramp_parameters = recipe.off_ramps is not None and recipe.off_ramps.kind != "shared-head"
    if loss in _ON_FROZEN and not (has_ramp_parameters and recipe.start is not None):
        raise table.error(
            "loss", f'{loss!r} needs a [start], which is frozen, and [off_ramps] other than "shared-head".'
        )
    if loss == "last" and has_ramp_parameters:
        raise table.error("loss", 'is "last", by which off-ramps never learn. Leave out [off_ramps].')


def _check_positions(recipe: Recipe, top: TomlTable) -> None:
    """Raise a `UserError` if a new model with absolute positions has fewer of them than the longest training text."""
    architecture, longest = recipe.architecture, recipe.optimisation.max_tokens
    if (
        architecture is not None
        and architecture.family not in {"t5", *_DECODER_ONLY}
        and longest > architecture.max_positions
    ):
        raise top.table("architecture").error(
            "max_positions",
            f"is {architecture.max_positions}, but [optimisation] max_tokens is {longest}. Allowed: as many or more.",
        )


def _start(table: TomlTable) -> StartRecipe:
    """Return the settings of table [start], which names either a recipe or a checkpoint."""
    start = _build(StartRecipe, table)
    if bool(start.recipe) == bool(start.checkpoint):
        raise table.error(None, "needs exactly one of `recipe` and `checkpoint`.")
    if start.recipe:
        path = Path(start.recipe) if start.recipe.endswith(".toml") else recipe_path(start.recipe)
        if path.resolve() == table.path.resolve():
            raise table.error("recipe", "is this very recipe.")
    return start


def _data_source(table: TomlTable) -> DataSource:
    """Return a data source from its TOML table, such as [[train]], after checking that its keys fit together.

    For example, `files` is only for local data.
    """
    source = _build(DataSource, table)
    if source.source == "builtin" and not source.documents:
        raise table.error(None, "built-in data has no end; say how many `documents`.")
    if source.part != "all" and source.source != "local":
        raise table.error("part", 'goes with source = "local" only; built-in data has splits.')
    if (source.source == "local") != bool(source.files):
        raise table.error(None, '`files` goes with source = "local", and only with it.')
    return source


def _tokenizer(table: TomlTable) -> TokenizerRecipe:
    """Return the tokenizer's settings from table [tokenizer]; only kind `bpe` has a vocabulary size."""
    tokenizer = _build(TokenizerRecipe, table)
    if (tokenizer.kind == "bpe") != bool(tokenizer.vocab_size):
        raise table.error(None, '`vocab_size` goes with kind = "bpe", and only with it.')
    return tokenizer


def _architecture(table: TomlTable) -> ArchitectureRecipe:
    """Return the settings of table [architecture], after checking what the model family allows, such as an encoder."""
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
    table.refuse(_OF_T5, f"is for t5: {family} has its own.")
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


def _optimisation(table: TomlTable) -> OptimisationRecipe:
    """Return the settings of table [optimisation], after checking the warm-up and the learning rate of Muon."""
    optimisation = _build(OptimisationRecipe, table)
    if optimisation.warmup_steps >= optimisation.steps:
        raise table.error("warmup_steps", f"must be fewer than steps = {optimisation.steps}.")
    if (optimisation.optimizer == "muon") != bool(optimisation.muon_learning_rate):
        raise table.error(None, '`muon_learning_rate` goes with optimizer = "muon", and only with it.')
    return optimisation


def _build(cls: type[T], table: TomlTable) -> T:
    """Return an instance of dataclass `cls`, whose fields are read from the keys of a TOML table.

    Unknown keys, wrong types and numbers out of range raise a `UserError`. A missing key gets the field's default; if
    there is none, it is an error too.
    """
    dataclass_fields = fields(cls)  # type: ignore[arg-type]
    table.allow(*(f.name for f in dataclass_fields))
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for f in dataclass_fields:
        if f.name not in table.values and f.default is not MISSING:
            continue
        value = values[f.name] = _value(table, f.name, hints[f.name])
        low, high = f.metadata.get("low"), f.metadata.get("high")
        if low is not None and not low <= value <= high:
            raise table.error(f.name, f"is {value}. Allowed: {low} to {high}.")
    return cls(**values)


def _value(table: TomlTable, key: str, kind: Any) -> Any:
    """Return the value of a TOML key, checked against `kind`, the type that the dataclass field declares.

    A table is returned as sorted pairs (key, text) if `kind` is a tuple of pairs.
    """
    if get_origin(kind) is Literal:
        word = table.get(key, str)
        if word not in get_args(kind):
            raise table.error(key, f"is {word!r}.{suggestion(word, get_args(kind))}")
        return word
    if kind == tuple[str, ...]:
        return table.strings(key, ())
    if kind == tuple[int, ...]:
        return tuple(table.typed(key, entry, int) for entry in table.get(key, list))
    if get_origin(kind) is tuple:
        roles = table.get(key, dict)
        return tuple(sorted((role, table.typed(key, path, str)) for role, path in roles.items()))
    return table.get(key, kind)
