"""transformers' Trainer with our batches, objectives, optimisers and log; interrupted, it goes on to the same weights.

AdamW has rates of its own for embeddings and position tables; matrices learn by Muon if asked.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from exitbench.errors import UserError, is_out_of_memory
from exitbench.harness.engine.encoders.families import FAMILIES
from exitbench.harness.engine.encoders.stack import find_encoder_stack
from exitbench.harness.training.data import Batch
from exitbench.harness.training.objectives import Objective
from exitbench.harness.training.readable import decoder_blocks
from exitbench.harness.training.recipe import OptimisationRecipe


class Together(torch.optim.Optimizer):
    """Several optimisers over different parameters, stepped, scheduled and saved as one."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers
        super().__init__([p for o in optimizers for group in o.param_groups for p in group["params"]], {})
        self._share_groups()

    def _share_groups(self) -> None:
        """Let schedulers write into the optimisers' own groups."""
        self.param_groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step each."""
        for optimizer in self.optimizers:
            optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """The states of all, in order."""
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        for optimizer, state in zip(self.optimizers, state_dict["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self._share_groups()


def make_optimizer(model: nn.Module, settings: OptimisationRecipe) -> torch.optim.Optimizer:
    """The optimiser of all parameters that learn; weight decay for matrices only."""
    embeddings: list[nn.Parameter] = []
    positions: list[nn.Parameter] = []
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    embedding = model.get_input_embeddings().weight  # type: ignore[operator]
    # Rows that are looked up or chosen, one a token or a position: orthogonalised as a whole, they would be mixed.
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    head = model.get_output_embeddings()  # type: ignore[operator]
    if head is not None:  # a classifier has none
        tables.add(id(head.weight))
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter is embedding:
            embeddings.append(parameter)
        elif "relative_attention_bias" in name:  # one row a bucket: a look-up, not a matrix that maps states
            positions.append(parameter)
        elif id(parameter) in tables and settings.optimizer == "muon":
            others.append(parameter)
        else:
            (matrices if parameter.dim() == 2 else others).append(parameter)
    rate = settings.learning_rate
    groups: list[dict[str, Any]] = [
        {"params": embeddings, "lr": rate * settings.embedding_learning_rate_factor, "weight_decay": 0.0},
        {"params": positions, "lr": rate * settings.position_learning_rate_factor, "weight_decay": 0.0},
        {"params": others, "lr": rate, "weight_decay": 0.0},
    ]
    muon: list[torch.optim.Optimizer] = []
    if settings.optimizer == "muon":
        lr, decay = settings.muon_learning_rate, settings.weight_decay
        muon.append(torch.optim.Muon(matrices, lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    else:
        groups.append({"params": matrices, "lr": rate, "weight_decay": settings.weight_decay})
    known = [group for group in groups if group["params"]]
    return Together([torch.optim.AdamW(known, betas=(0.9, settings.adam_beta2), fused=True), *muon])


class SharedBlocks:
    """Blocks 2..L as one: the gradients of all go into block 2, and its weights into the others.

    Block 1 stays apart: it reads embeddings, and a T5's has the table of relative positions.

    Used for the first steps, as in a Universal Transformer: what one block learns, such as to find a fact again, all
    later ones can do with what it found. Many hops come of one (Dehghani et al. 2019; Saunshi et al. 2024).
    """

    def __init__(self, model: Any) -> None:
        blocks = [list(block.parameters()) for block in _blocks(model)[1:]]
        if len({tuple(p.shape for p in block) for block in blocks}) != 1:
            raise UserError("shared_steps: the blocks from the second on have different shapes.")
        self.groups: list[tuple[nn.Parameter, ...]] = list(zip(*blocks, strict=True))

    @torch.no_grad()
    def gather_gradients(self) -> None:
        """Sum up the blocks' gradients in block 2; the others are left without, so that no optimiser moves them."""
        for first, *others in self.groups:
            found: list[Tensor] = [p.grad for p in (first, *others) if p.grad is not None]
            first.grad = torch.stack(found).sum(0) if found else None
            for other in others:
                other.grad = None

    @torch.no_grad()
    def spread_weights(self) -> None:
        """Give all blocks the weights of block 2."""
        for first, *others in self.groups:
            for other in others:
                other.copy_(first)


def _blocks(model: Any) -> Sequence[nn.Module]:
    """Blocks of a decoder, or of an encoder without one."""
    if model.config.model_type in FAMILIES:
        return find_encoder_stack(model).modules
    return list(decoder_blocks(model))


LOG_POINTS = 100
EXTRAS = "early_exit"
"""Name below which an objective's own modules are part of the model while it learns."""
WEIGHTS = "model.safetensors"
"""File of the weights in a resume point."""
COMPLETE = "COMPLETE"
"""File that a resume point has once all of it is written; it tells the time spent until then."""

Rows = list[tuple[int, int | None, str, float]]
"""Step, block, metric and value."""


class Clock:
    """Time spent on a training, over all the processes that it took."""

    def __init__(self, point: Path | None) -> None:
        """Go on from a resume point."""
        known = json.loads((point / COMPLETE).read_text(encoding="utf-8")) if point is not None else [0.0, 0.0]
        self.started = time.perf_counter() - known[0], time.process_time() - known[1]

    def seconds(self) -> tuple[float, float]:
        """Wall and CPU time."""
        return time.perf_counter() - self.started[0], time.process_time() - self.started[1]

    def write(self, path: Path) -> None:
        """Note the time in a resume point, whole or not at all."""
        partial = path.with_name(f".{path.name}")
        partial.write_text(json.dumps(self.seconds()), encoding="utf-8")
        partial.replace(path)


class ExitTrainer(transformers.Trainer):  # type: ignore[misc]
    """A Trainer that minimises an `Objective`.

    Args:
        model: Learns in place.
        objective: The loss.
        batches: Gives the batches from a step (0 upwards) on, without end.
        settings: Steps, rates, precision.
        folder: For resume points; emptied by nobody.
        seed: Of dropout.
        on_step: Called with the number of steps done.
        clock: Told by every resume point.
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
        clock: Clock,
    ) -> None:
        self.objective, self.batches = objective, batches
        self.sums: dict[tuple[str, int | None], list[Tensor]] = defaultdict(list)
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
            bf16=settings.precision == "bf16",
            use_cpu=not torch.cuda.is_available(),
            seed=seed,
            logging_steps=logging_steps,
            # A resume point between two points of the log would lose what was summed up since the last.
            save_steps=max(1, settings.save_steps // logging_steps) * logging_steps,
            save_total_limit=2,
            ignore_data_skip=True,  # `batches` is told where to go on
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
        """Train to the last step, from a resume point if there is one."""
        # A kill may come after the last step, before the model is written.
        if point is not None and point.name == f"checkpoint-{self.args.max_steps}":
            self._load_from_checkpoint(str(point))
            self.state = transformers.TrainerState.load_from_json(str(point / "trainer_state.json"))
        else:
            self.train(resume_from_checkpoint=point and str(point))

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Write a resume point's weights by their names in memory; those of a family's checkpoints may be others."""
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self.model, str(folder / WEIGHTS))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        load_model(model or self.model, Path(resume_from_checkpoint) / WEIGHTS)

    def get_train_dataloader(self) -> DataLoader[Batch]:
        """The recipe's batches, from the step that was reached."""
        # A generator of its own: the loader draws a number that dropout would miss when the training goes on.
        return DataLoader(_Batches(self), batch_size=None, generator=torch.Generator())

    def training_step(self, model: nn.Module, inputs: Batch, *_: Any, **__: Any) -> Tensor:
        """Forward and backward; a batch that does not fit into memory is tried again in halves."""
        model.train()
        loss = self._step_in_parts(model, inputs, 1.0)
        if self.shared is not None and self.state.global_step < self.shared_steps:
            self.shared.gather_gradients()
        return loss

    def step_ended(self) -> None:
        """Spread what shared blocks learned."""
        if self.shared is not None and self.state.global_step <= self.shared_steps:
            self.shared.spread_weights()

    def _step_in_parts(self, model: nn.Module, inputs: Batch, share: float) -> Tensor:
        kept = [None if p.grad is None else p.grad.clone() for p in model.parameters()] if share < 1 else None
        n_rows = len(inputs["labels"])
        try:
            inputs = self._prepare_inputs(inputs)
            # Trainer's own context covers `model.forward` only; objectives call encoder and decoder themselves.
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
            p.grad = None if kept is None else kept[index]
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        parts = [{name: tensor[rows] for name, tensor in inputs.items()} for rows in (slice(half), slice(half, None))]
        tokens = [int((part["labels"] >= 0).sum()) for part in parts]
        pairs = zip(parts, tokens, strict=True)
        losses = [self._step_in_parts(model, part, share * n / sum(tokens)) for part, n in pairs]
        return torch.stack(losses).sum()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the means since the last point of the log."""
        means = {_key(*key): torch.stack(values).mean().item() for key, values in self.sums.items()}
        self.sums.clear()
        super().log({**logs, **means}, start_time)

    def rows(self) -> Rows:
        """The log so far."""
        found: Rows = []
        for entry in self.state.log_history:
            for key, value in entry.items():
                metric, is_ours, block = key.partition("/")
                if is_ours or metric == "learning_rate":
                    found.append((entry["step"], int(block) if block.isdigit() else None, metric, float(value)))
        return sorted(found, key=lambda row: (row[0], row[2], row[1] or 0))


class _Batches(IterableDataset[Batch]):
    def __init__(self, trainer: ExitTrainer) -> None:
        self.trainer = trainer

    def __iter__(self) -> Iterator[Batch]:
        return self.trainer.batches(self.trainer.state.global_step)


class _Steps(transformers.TrainerCallback):  # type: ignore[misc]
    """Tells of the steps, and marks resume points that are whole."""

    def __init__(self, on_step: Callable[[int], None], clock: Clock, trainer: ExitTrainer) -> None:
        self.on_step, self.clock, self.trainer = on_step, clock, trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.step_ended()
        self.on_step(state.global_step)
        control.should_log |= state.global_step == state.max_steps

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.clock.write(Path(args.output_dir) / f"checkpoint-{state.global_step}" / COMPLETE)


def resume_point(folder: Path) -> Path | None:
    """The latest point in a trainer's folder that an interrupted training can go on from."""
    steps = [int(path.parent.name.rpartition("-")[2]) for path in folder.glob(f"checkpoint-*/{COMPLETE}")]
    return folder / f"checkpoint-{max(steps)}" if steps else None


def _key(metric: str, block: int | None) -> str:
    return f"{metric}/{'' if block is None else block}"
