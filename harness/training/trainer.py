"""transformers' Trainer with this project's batches, objectives, optimizers and log.

A resumed training reaches the same weights as an uninterrupted one. AdamW has separate learning rates for embeddings
and position tables; matrices can be trained with Muon.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from exitbench.errors import UserError, is_out_of_memory
from exitbench.harness.engine.encoders.families import FAMILIES
from exitbench.harness.engine.encoders.stack import find_encoder_stack
from exitbench.harness.training.block_states import decoder_blocks
from exitbench.harness.training.data import Batch
from exitbench.harness.training.objectives import Objective
from exitbench.harness.training.recipe import OptimisationRecipe
from exitbench.results.files.atomic import write_whole_file


class CombinedOptimizer(torch.optim.Optimizer):
    """Optimizer that combines optimizers of different parameters; they are stepped, scheduled and saved as one."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers
        super().__init__([p for o in optimizers for group in o.param_groups for p in group["params"]], {})
        self._share_groups()

    def _share_groups(self) -> None:
        """Use the combined optimizers' parameter groups as this one's own, so that schedulers change their rates."""
        self.param_groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Let each of the combined optimizers update its parameters; `closure` is ignored."""
        for optimizer in self.optimizers:
            optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all combined optimizers as a list, in order, under the key `optimizers`."""
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the states of all combined optimizers, as returned by `state_dict`."""
        for optimizer, state in zip(self.optimizers, state_dict["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self._share_groups()


def computed_precision(settings: OptimisationRecipe) -> Literal["fp32", "bf16"]:
    """Return the number format in which this machine computes a training's activations.

    It is that of the recipe, except that a processor for whose bfloat16 products oneDNN has no kernels (of x86, one
    without AVX-512) computes in fp32: torch would multiply bfloat16 in plain loops, which takes a multiple of the time.
    """
    if settings.precision == "fp32" or torch.cuda.is_available():
        return settings.precision
    has_library = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return "bf16" if has_library and torch.ops.mkldnn._is_mkldnn_bf16_supported() else "fp32"


def make_optimizer(model: nn.Module, settings: OptimisationRecipe) -> torch.optim.Optimizer:
    """Return an optimizer of all trainable parameters; weight decay applies to matrices only.

    Token embeddings and tables of relative positions have their own learning rates. All parameters are trained with
    AdamW, except that matrices are trained with Muon if the settings name it.
    """
    embeddings: list[nn.Parameter] = []
    positions: list[nn.Parameter] = []
    matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    embedding = model.get_input_embeddings().weight  # type: ignore[operator]
    # Tables with one row per token or position are not orthogonalized as a whole, which would mix their rows.
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    head = model.get_output_embeddings()  # type: ignore[operator]
    if head is not None:  # classifiers have no LM head
        tables.add(id(head.weight))
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter is embedding:
            embeddings.append(parameter)
        elif "relative_attention_bias" in name:  # a lookup table with one row per bucket, not a map of states
            positions.append(parameter)
        elif id(parameter) in tables and settings.optimizer == "muon":
            vectors.append(parameter)
        else:
            (matrices if parameter.dim() == 2 else vectors).append(parameter)
    rate = settings.learning_rate
    groups: list[dict[str, Any]] = [
        {"params": embeddings, "lr": rate * settings.embedding_learning_rate_factor, "weight_decay": 0.0},
        {"params": positions, "lr": rate * settings.position_learning_rate_factor, "weight_decay": 0.0},
        {"params": vectors, "lr": rate, "weight_decay": 0.0},
    ]
    muon: list[torch.optim.Optimizer] = []
    if settings.optimizer == "muon":
        lr, decay = settings.muon_learning_rate, settings.weight_decay
        muon.append(torch.optim.Muon(matrices, lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    else:
        groups.append({"params": matrices, "lr": rate, "weight_decay": settings.weight_decay})
    nonempty_groups = [group for group in groups if group["params"]]
    return CombinedOptimizer([torch.optim.AdamW(nonempty_groups, betas=(0.9, settings.adam_beta2), fused=True), *muon])


class SharedBlocks:
    """Weight sharing among blocks 2..L: gradients are summed in block 2, and its weights copied to the later blocks.

    Block 1 is excluded: it reads embeddings, and in T5 it has the relative position table.

    It is used for the initial training steps, as in a Universal Transformer. Later blocks can then apply what one block
    learns, such as retrieving a fact, to that block's result. So multi-hop retrieval emerges from one hop (Dehghani et
    al. 2019; Saunshi et al. 2024).
    """

    def __init__(self, model: Any) -> None:
        blocks = [list(block.parameters()) for block in _blocks(model)[1:]]
        if len({tuple(p.shape for p in block) for block in blocks}) != 1:
            raise UserError("shared_steps: the blocks from the second on have different shapes.")
        self.groups: list[tuple[nn.Parameter, ...]] = list(zip(*blocks, strict=True))

    @torch.no_grad()
    def gather_gradients(self) -> None:
        """Sum the gradients of blocks 2..L in block 2; clear those of later blocks, which no optimizer then updates."""
        for first, *later_copies in self.groups:
            gradients: list[Tensor] = [p.grad for p in (first, *later_copies) if p.grad is not None]
            first.grad = torch.stack(gradients).sum(0) if gradients else None
            for other in later_copies:
                other.grad = None

    @torch.no_grad()
    def spread_weights(self) -> None:
        """Copy the weights of block 2 to all later blocks."""
        for first, *later_copies in self.groups:
            for other in later_copies:
                other.copy_(first)


def _blocks(model: Any) -> Sequence[nn.Module]:
    """Return the blocks of a model's decoder, or those of an encoder-only model."""
    if model.config.model_type in FAMILIES:
        return find_encoder_stack(model).modules
    return list(decoder_blocks(model))


LOG_POINTS = 100
EXTRAS = "early_exit"
"""Submodule name under which an objective's extra modules are part of the model during training."""
WEIGHTS = "model.safetensors"
"""Weights file in a resume point."""
COMPLETE = "COMPLETE"
"""File that marks a resume point as complete; contains the time spent until then."""

Rows = list[tuple[int, int | None, str, float]]
"""Rows of (step, block, metric, value)."""


class TrainingClock:
    """Clock of a training's wall and CPU time; in a resumed training, it continues from the stored time.

    An interrupted training is resumed in a new process, from its latest resume point.
    """

    def __init__(self, point: Path | None) -> None:
        """Continue from the time stored in a resume point, or start at zero if `point` is None."""
        elapsed_s = json.loads((point / COMPLETE).read_text(encoding="utf-8")) if point is not None else [0.0, 0.0]
        self.started = time.perf_counter() - elapsed_s[0], time.process_time() - elapsed_s[1]

    def seconds(self) -> tuple[float, float]:
        """Return the wall time and the CPU time spent so far, in seconds."""
        return time.perf_counter() - self.started[0], time.process_time() - self.started[1]

    def write(self, path: Path) -> None:
        """Write wall and CPU time spent so far, as a JSON list, atomically to a file that belongs to a resume point."""
        write_whole_file(path, json.dumps(self.seconds()))


class ExitTrainer(transformers.Trainer):  # type: ignore[misc]
    """transformers' `Trainer` that minimizes an `Objective`, a loss with values to log; it writes resume points.

    Args:
        model: Model to train in place.
        objective: The training loss.
        batches: Function that returns an endless iterator of batches from a training step (0-based) on.
        settings: Optimization settings, such as steps, learning rates and precision.
        folder: Folder of resume points.
        seed: Seed of dropout.
        on_step: Callback that receives the number of training steps done.
        clock: Clock whose time is stored in every resume point.
    """

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        objective: Objective,
        batches: Callable[[int], Iterator[Batch]],
        settings: OptimisationRecipe,
        folder: Path,
        seed: int,
        on_step: Callable[[int], None],
        clock: TrainingClock,
    ) -> None:
        self.objective, self.batches = objective, batches
        self.sums: dict[tuple[str, int | None], list[Tensor]] = defaultdict(list)
        # Resume points have what is trained, and not a frozen model of any size.
        is_frozen = not any(parameter.requires_grad for parameter in model.parameters())
        self.saved: nn.Module = objective.extras if is_frozen and objective.extras is not None else model
        if objective.extras is not None:
            model.add_module(EXTRAS, objective.extras)
        self.shared_steps = settings.shared_steps
        self.shared = SharedBlocks(model) if settings.shared_steps else None
        if self.shared is not None:
            self.shared.spread_weights()
        optimizer = make_optimizer(model, settings)
        scheduler = transformers.get_scheduler(settings.schedule, optimizer, settings.warmup_steps, settings.steps)
        logging_steps = max(1, settings.steps // LOG_POINTS)
        arguments = transformers.TrainingArguments(
            output_dir=str(folder),
            max_steps=settings.steps,
            max_grad_norm=settings.clip_norm,
            bf16=computed_precision(settings) == "bf16",
            use_cpu=not torch.cuda.is_available(),
            seed=seed,
            logging_steps=logging_steps,
            # A resume point between two log entries would lose the values summed since the last entry.
            save_steps=max(1, settings.save_steps // logging_steps) * logging_steps,
            save_total_limit=2,
            ignore_data_skip=True,  # `batches` starts at the resumed step
            dataloader_pin_memory=False,
            remove_unused_columns=False,
            disable_tqdm=True,
            report_to=[],
            logging_nan_inf_filter=False,
        )
        arguments._n_gpu = min(1, arguments.n_gpu)  # DataParallel hides encoder and decoder
        super().__init__(model=model, args=arguments, optimizers=(optimizer, scheduler))
        self.remove_callback(transformers.PrinterCallback)
        self.add_callback(_Steps(on_step, clock, self))

    def train_from(self, point: Path | None) -> None:
        """Train up to the last step, from the resume point in folder `point` or, if it is None, from the beginning."""
        # The process may have been killed after the last step, before the model was written.
        if point is not None and point.name == f"checkpoint-{self.args.max_steps}":
            self._load_from_checkpoint(str(point))
            self.state = transformers.TrainerState.load_from_json(str(point / "trainer_state.json"))
        else:
            self.train(resume_from_checkpoint=point and str(point))

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Write the trained weights (not those of a frozen model) to a resume point, with their module names.

        The file is written to folder `output_dir`; if that is None, to the folder of all resume points. `state_dict` is
        ignored.
        """
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self.saved, str(folder / WEIGHTS))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        load_model(self.saved, Path(resume_from_checkpoint) / WEIGHTS)

    def get_train_dataloader(self) -> DataLoader[Batch]:
        """Return a loader of the training batches from the current training step on, without end."""
        # A separate generator: the loader draws a number, which would shift dropout's random state after a resume.
        return DataLoader(_Batches(self), batch_size=None, generator=torch.Generator())

    def training_step(self, model: nn.Module, inputs: Batch, *_: Any, **__: Any) -> Tensor:
        """Run the forward and backward pass of a batch, and return its loss; gradients are added to the parameters.

        If the batch does not fit into memory, it is retried in halves.
        """
        model.train()
        loss = self._step_in_parts(model, inputs, 1.0)
        if self.shared is not None and self.state.global_step < self.shared_steps:
            self.shared.gather_gradients()
        return loss

    def step_ended(self) -> None:
        """Copy the weights of block 2 to the later blocks after a training step, while blocks share weights.

        It does nothing after the first `shared_steps` training steps, or if that number is 0.
        """
        if self.shared is not None and self.state.global_step <= self.shared_steps:
            self.shared.spread_weights()

    def _step_in_parts(self, model: nn.Module, inputs: Batch, share: float) -> Tensor:
        saved_gradients = (
            [None if p.grad is None else p.grad.clone() for p in model.parameters()] if share < 1 else None
        )
        n_rows = len(inputs["labels"])
        try:
            inputs = self._prepare_inputs(inputs)
            # Trainer's own autocast covers only `model.forward`; objectives call encoder and decoder directly.
            with self.accelerator.autocast():
                loss, logged = self.objective(model, inputs, self.state.global_step)
            self.accelerator.backward(loss * share)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if n_rows == 1:
                raise UserError("a single pair does not fit into memory; lower max_tokens.") from error
        else:
            for key, value in {("loss_nats", None): loss.detach(), **logged}.items():
                self.sums[key].append(value)
            return loss.detach() * share
        half = (n_rows + 1) // 2
        print(f"a batch of {n_rows} rows does not fit into memory; trying {half}.", file=sys.stderr)
        for index, p in enumerate(model.parameters()):
            p.grad = None if saved_gradients is None else saved_gradients[index]
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        parts = [{name: tensor[rows] for name, tensor in inputs.items()} for rows in (slice(half), slice(half, None))]
        tokens = [int((part["labels"] >= 0).sum()) for part in parts]
        pairs = zip(parts, tokens, strict=True)
        losses = [self._step_in_parts(model, part, share * n / sum(tokens)) for part, n in pairs]
        return torch.stack(losses).sum()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add to a log entry the means of the objective's values since the last entry, and log it.

        Args:
            logs: Entry of transformers' `Trainer`, such as the learning rate, by name.
            start_time: Start of the training, which is passed on to `Trainer.log`.
        """
        means = {_key(*key): torch.stack(values).mean().item() for key, values in self.sums.items()}
        self.sums.clear()
        super().log({**logs, **means}, start_time)

    def rows(self) -> Rows:
        """Return the training log so far, as (step, block, metric, value); block is None for the whole model."""
        log_rows: Rows = []
        for entry in self.state.log_history:
            for key, value in entry.items():
                metric, is_ours, block = key.partition("/")
                if is_ours or metric == "learning_rate":
                    log_rows.append((entry["step"], int(block) if block.isdigit() else None, metric, float(value)))
        return sorted(log_rows, key=lambda row: (row[0], row[2], row[1] or 0))


class _Batches(IterableDataset[Batch]):
    def __init__(self, trainer: ExitTrainer) -> None:
        self.trainer = trainer

    def __iter__(self) -> Iterator[Batch]:
        return self.trainer.batches(self.trainer.state.global_step)


class _Steps(transformers.TrainerCallback):  # type: ignore[misc]
    """Trainer callback that reports each training step to `on_step`, and marks resume points as complete.

    The mark is a file with the time on the clock; it is written after all other files of the resume point.
    """

    def __init__(self, on_step: Callable[[int], None], clock: TrainingClock, trainer: ExitTrainer) -> None:
        self.on_step, self.clock, self.trainer = on_step, clock, trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.step_ended()
        self.on_step(state.global_step)
        control.should_log |= state.global_step == state.max_steps

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.clock.write(Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE)


def resume_point(folder: Path) -> Path | None:
    """Return the folder of the latest complete resume point in the folder of a training; None if there is none.

    A resume point has the weights and the optimizer's state, from which an interrupted training continues.
    """
    steps = [int(path.parent.name.rpartition("-")[2]) for path in folder.glob(f"checkpoint-*/{COMPLETE}")]
    return folder / f"checkpoint-{max(steps)}" if steps else None


def _key(metric: str, block: int | None) -> str:
    return f"{metric}/{'' if block is None else block}"
