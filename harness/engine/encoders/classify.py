"""Classify texts with early exit: block after block on the texts of a batch, each of which exits separately.

It uses a method's gate and threshold as the decode loop does (`engine.decoding.decode`). A text that exits is finished,
so nothing is cached for it.

Shape suffixes: A texts that have not exited before a block, T tokens, D model width, C labels, L blocks, S width of the
states that are read out (`model.read_out_state`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from exitbench.harness.cells.texts import EncodedText
from exitbench.harness.engine.encoders.model import EncoderClassifier
from exitbench.harness.engine.model.token_record import TokenRecord
from exitbench.methods.base import ActiveRows, BlockView, Cost, Parts
from exitbench.methods.heads import TrainedHead


@dataclass(frozen=True)
class BlockReading:
    """Prediction for one text after one block.

    Attributes:
        block: The block, 1..L.
        label: Index of the most probable label; 0 for a regression.
        value: Prediction of a regression; otherwise the probability of ``label``.
        score: The gate's score; None at the last block, which has no gate.
        exited: Whether the text exited here.
        is_needed: Whether gate or answer needed this read-out, so that it counts as work. Else only the trace did.
    """

    block: int
    label: int
    value: float
    score: float | None
    exited: bool
    is_needed: bool


@dataclass(frozen=True)
class Classified:
    """Predicted label or value of a text, and where it exited.

    Attributes:
        record: Exit record with the label as the text's only token; without tracing it has no score and no head rows.
        value: Prediction of a regression; otherwise the probability of the label.
        readings: Predictions after each gate block, and after the last block, up to the exit; empty if not traced.
    """

    record: TokenRecord
    value: float
    readings: list[BlockReading]

    @property
    def label(self) -> int:
        """Index of the predicted label; 0 for a regression."""
        return self.record.token_id

    @property
    def exit_layers(self) -> list[int]:
        """The one exit layer of the text, as a list."""
        return [self.record.exit_layer]

    @property
    def blocks_read(self) -> list[int]:
        """Blocks whose read-out the gate or the answer needed."""
        return [reading.block for reading in self.readings if reading.is_needed]


@torch.inference_mode()
def classify(
    model: EncoderClassifier, texts: Sequence[EncodedText], parts: Parts, *, traced: bool = True
) -> list[Classified]:
    """Classify a batch of texts, each of which exits where the method decides.

    Args:
        model: The model.
        texts: Texts of the batch.
        parts: The method.
        traced: Keep the prediction after each gate block, and check that numbers are finite. The answers are the same
            without.

    Returns:
        One answer per text, in the order of the texts.

    Raises:
        ArithmeticError: The run is traced, and a logit is not finite.
    """
    # The model's own classifier reads out blocks without an off-ramp.
    batch = _Batch(model, texts, replace(parts, head=TrainedHead()), traced)
    for block in range(1, model.n_blocks + 1):
        batch.run(block)
        if not batch.rows:
            break
    return [batch.answers[row] for row in range(len(texts))]


@torch.inference_mode()
def pooled_states(model: EncoderClassifier, texts: Sequence[EncodedText]) -> Tensor:
    """Return the states that classifiers read, after the embedding and every block, of B texts: [L+1, B, S]."""
    hidden_BTD, context = model.embed(texts)
    states = [model.state(0, hidden_BTD, context)]
    for block in range(1, model.n_blocks + 1):
        hidden_BTD = model.stack.block(block, hidden_BTD, context)
        states.append(model.state(block, hidden_BTD, context))
    return torch.stack(states)


def text_cost(
    model: EncoderClassifier, parts: Parts, n_tokens: int, exit_layer: int, blocks_read: Sequence[int]
) -> Cost:
    """Return the cost of classifying one text: blocks up to its exit layer, gate, and read-outs at ``blocks_read``."""
    gate_blocks = [block for block in parts.gate_blocks(model.n_blocks) if block <= exit_layer]
    numel = sum(model.exit_head_numel(block) for block in blocks_read)
    cost = model.block_cost(n_tokens) * exit_layer + Cost(matmul_flops=2 * numel, read_numel=numel)
    for block in range(1, exit_layer + 1) if parts.gate.needs_history else gate_blocks:
        cost += model.attention_cost(block, n_tokens)
    return cost + parts.gate.cost(model, gate_blocks)


class _Batch:
    """Batch of texts during classification.

    Attributes:
        rows: Indices in the batch of the texts that have not exited.
        answers: Answers for the texts that have exited, by index in the batch.
    """

    def __init__(self, model: EncoderClassifier, texts: Sequence[EncodedText], parts: Parts, traced: bool) -> None:
        self._model, self._parts, self._traced = model, parts, traced
        self.rows: Sequence[int] = range(len(texts))
        self.answers: dict[int, Classified] = {}
        self._readings: list[list[BlockReading]] = [[] for _ in texts]
        self._hidden_ATD, self._context = model.embed(texts)
        seeds = tuple(text.seed for text in texts)
        self._active = ActiveRows((1,) * len(texts), seeds, (0,) * len(texts), self.rows)
        self._memory: dict[str, Tensor] = {}
        self._answer_memory = parts.gate.start_answers(len(texts), self._hidden_ATD.device)
        self._previous_score_A: Tensor | None = None
        self._state_AS: Tensor
        self._earlier = [self._state(0)] if parts.gate.needs_history else []
        self._ahead_LAS = self._run_ahead() if parts.gate.looks_ahead else None

    def run(self, block: int) -> None:
        """Run a block on the texts that have not exited; those whose gate score is above the threshold exit."""
        parts, is_last = self._parts, block == self._model.n_blocks
        if self._ahead_LAS is None:
            self._hidden_ATD = self._model.stack.block(block, self._hidden_ATD, self._context)
        if not (is_last or block in parts.blocks or parts.gate.needs_history):
            return
        self._state_AS = self._state(block) if self._ahead_LAS is None else self._ahead_LAS[block - 1]
        view = self._view(block)
        if is_last or block in parts.blocks:
            score_A = None if is_last else parts.gate.score(view)
            leaves = [True] * len(self.rows)
            if score_A is not None:
                leaves = (score_A > parts.threshold.value(block, 1, 1)).tolist()
            self._previous_score_A = score_A
            self._note(view, score_A, leaves)
            self._store_answers(view, [index for index, leaving in enumerate(leaves) if leaving])
            self._keep([index for index, leaving in enumerate(leaves) if not leaving])
        if parts.gate.needs_history and self.rows:
            self._earlier.append(self._state_AS)

    def _view(self, block: int) -> BlockView:
        return BlockView(
            block=block,
            active=self._active,
            max_new_tokens=1,
            hidden_AD=self._state_AS,
            memory=self._memory,
            model=self._model,
            head=self._parts.head,
            earlier=self._earlier,
            previous_score_A=self._previous_score_A,
            ahead_LAD=self._ahead_LAS,
            answer_memory=self._answer_memory,
        )

    def _state(self, block: int) -> Tensor:
        return self._model.state(block, self._hidden_ATD, self._context)

    def _run_ahead(self) -> Tensor:
        """Run all blocks, for a gate that looks ahead; return the states read after each of them, [L, A, S]."""
        states = []
        for block in range(1, self._model.n_blocks + 1):
            self._hidden_ATD = self._model.stack.block(block, self._hidden_ATD, self._context)
            states.append(self._state(block))
        return torch.stack(states)

    def _note(self, view: BlockView, score_A: Tensor | None, leaves: Sequence[bool]) -> None:
        """Record the prediction after a block for each remaining text; if not traced, do nothing."""
        if not self._traced:
            return
        was_read = view.is_read
        labels, values = self._predictions(view)
        scores = [None] * len(leaves) if score_A is None else score_A.tolist()
        for row, label, value, score, exited in zip(self.rows, labels, values, scores, leaves, strict=True):
            reading = BlockReading(view.block, label, value, score, exited, is_needed=was_read or exited)
            self._readings[row].append(reading)

    def _predictions(self, view: BlockView) -> tuple[list[int], list[float]]:
        """Return each text's most probable label and its probability; for a regression 0 and the predicted number.

        Raises:
            ArithmeticError: A logit is not finite.
        """
        logits_AC = view.logits_AK.float()
        if not torch.isfinite(logits_AC).all():
            raise ArithmeticError(f"a logit after block {view.block} is not finite")
        if self._model.is_regression:
            return [0] * len(logits_AC), logits_AC[:, 0].tolist()
        p_A, label_A = torch.softmax(logits_AC, dim=-1).max(-1)
        return label_A.tolist(), p_A.tolist()

    def _store_answers(self, view: BlockView, index: Sequence[int]) -> None:
        """Store the answers for texts that exit; ``index`` are their indices among the texts of ``view``."""
        if not index:
            return
        if len(index) < len(self.rows):
            view = view.take(index, torch.tensor(index, device=self._model.device))
        label_A, logits_AC = self._parts.gate.choose(view), view.logits_AK.float()
        value_A = logits_AC[:, 0]
        if not self._model.is_regression:
            value_A = torch.softmax(logits_AC, dim=-1).gather(1, label_A[:, None])[:, 0]
        blocks_run = view.block if self._ahead_LAS is None else self._model.n_blocks
        for at, label, value in zip(index, label_A.tolist(), value_A.tolist(), strict=True):
            readings = self._readings[self.rows[at]]
            record = TokenRecord(
                label,
                view.block,
                blocks_run,
                head_rows=sum(reading.is_needed for reading in readings) * self._model.vocab_size,
                score=readings[-1].score if readings else None,
            )
            self.answers[self.rows[at]] = Classified(record, value, readings)

    def _keep(self, index: Sequence[int]) -> None:
        """Drop the texts that exit; ``index`` are the indices of the others among the texts that ran the block."""
        if len(index) == len(self.rows):
            return
        self.rows = [self.rows[at] for at in index]
        if not index:
            return
        index_A = torch.tensor(index, device=self._model.device)
        self._context, self._active = self._context.take(index_A), self._active.take(index, index_A)
        self._hidden_ATD = self._hidden_ATD.index_select(0, index_A)
        self._state_AS = self._state_AS.index_select(0, index_A)
        self._memory = {name: value.index_select(0, index_A) for name, value in self._memory.items()}
        self._earlier = [state_AD.index_select(0, index_A) for state_AD in self._earlier]
        if self._previous_score_A is not None:
            self._previous_score_A = self._previous_score_A.index_select(0, index_A)
        if self._ahead_LAS is not None:
            self._ahead_LAS = self._ahead_LAS.index_select(1, index_A)
