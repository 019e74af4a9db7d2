"""Traces of a method on an included model, token by token, as digests.

Floating-point sums differ a little between processors. Models are loaded in double precision, and only documents with
the same result in single precision count, so that no decision depends on the last digits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch

from exitbench.harness.engine.checkpoints.digest import describe_checkpoint
from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer
from exitbench.harness.engine.decoding.decode import Batch, decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.probe import probe_table, states_of
from exitbench.harness.training.store import SHIPPED
from exitbench.harness.work.generation import answer_costs
from exitbench.methods.base import FitData, Method, argmax_token
from exitbench.methods.registry import baseline_method
from exitbench.tasks import builtin
from exitbench.tasks.builtin import TEXT_TASKS
from exitbench.tasks.document import Document
from exitbench.tasks.registry import get_task

MAX_NEW_TOKENS = 8
_DOCUMENTS, _FITTED_ON = 2, 3
_ENTRIES = 16


@dataclass(frozen=True)
class TracedModel:
    """Bundled model in one precision, and its prompts."""

    name: str
    dtype: torch.dtype

    @property
    def folder(self) -> Any:
        (config,) = SHIPPED.glob(f"{self.name}-????????/config.json")
        return config.parent

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return load_checkpoint(self.folder, self.dtype)

    @cached_property
    def requests(self) -> list[Request]:
        texts = [
            get_task(task).prompt_for(document, self.checkpoint.kind)
            for task in sorted(TEXT_TASKS)
            for document in builtin.documents(task, "test", _DOCUMENTS)
        ]
        return [Request(list(self.tokenizer(text)["input_ids"]), seed) for seed, text in enumerate(texts)]

    @cached_property
    def tokenizer(self) -> Any:
        return load_tokenizer(self.folder)

    @cached_property
    def inputs(self) -> str:
        """Digest of weights and prompts."""
        model = asdict(describe_checkpoint(self.name, self.folder))
        return digest([model["weights_sha256"], [request.prompt_ids for request in self.requests]])

    @cached_property
    def fit_data(self) -> FitData:
        """States of a few documents of the train split, teacher-forced."""
        task = get_task(sorted(TEXT_TASKS)[-1])
        documents = builtin.documents(task.name, "train", _FITTED_ON)
        texts = [task.prompt_for(document, self.checkpoint.kind) for document in documents]
        prompts = [list(self.tokenizer(text)["input_ids"]) for text in texts]
        gold = [list(self.tokenizer(text_target=task.target(document))["input_ids"]) for document in documents]
        model = self.checkpoint.model
        with torch.no_grad():
            states_LND = states_of(self.checkpoint, prompts, gold)
            final_N = argmax_token(model.logits(states_LND[-1]))
        document_N = torch.tensor([row for row, ids in enumerate(gold) for _ in ids])
        return FitData(model, states_LND, final_N, torch.tensor([token for ids in gold for token in ids]), document_N)

    @cache
    def fitted(self, cls: type[Method], fit_params: str) -> Mapping[str, torch.Tensor]:
        torch.manual_seed(0)
        return cls.from_params(json.loads(fit_params)).fit(self.fit_data, lambda share: None).tensors

    @cache
    def _prefilled(self, gated: bool) -> Batch:
        return prefill(self.checkpoint.model, self.requests, MAX_NEW_TOKENS, gates_first_token=gated)

    def prefilled(self, gated: bool) -> Batch:
        """Return a copy of the prefilled prompts. Prefill is a third of the work and the same for all traces."""
        batch = self._prefilled(gated)
        with torch.inference_mode():
            return replace(batch, cache=batch.cache.copied(torch.arange(len(self.requests))))

    def traces(self, cls: type[Method], params: Mapping[str, Any], first_token: str) -> list[Any]:
        """Return the method's trace of each prompt: tokens, exit layers, blocks run, stop reason and cost."""
        model = self.checkpoint.model
        method = cls.from_params(params).bound_to(model.exit_blocks)
        asked = method.fit_params()
        parts = method.parts(model.n_blocks, self.fitted(cls, json.dumps(asked)) if asked else {})
        gated = first_token == "gated"
        made = decode(self.checkpoint, self.prefilled(gated), parts)
        lengths = [len(request.prompt_ids) for request in self.requests]
        is_gated = "gated" if gated or self.checkpoint.kind == "seq2seq" else "full"
        costs = answer_costs(self.checkpoint, parts, made, lengths, is_gated)
        return [[*_trace(one), list(asdict(cost).values())] for one, cost in zip(made, costs, strict=True)]

    def probe(self) -> tuple[list[Any], dict[str, float]]:
        """Return the integer columns of a probe of full depth's answers, and the means of the other columns."""
        batch = prefill(self.checkpoint.model, self.requests, MAX_NEW_TOKENS)
        full = baseline_method()().parts(self.checkpoint.model.n_blocks)
        outputs = [made.token_ids for made in decode(self.checkpoint, batch, full)]
        prompts = [request.prompt_ids for request in self.requests]
        table = probe_table(self.checkpoint, [str(row) for row in range(len(prompts))], prompts, outputs)
        whole, means = [], {}
        for name in table.column_names:
            values = table[name].combine_chunks()
            flat = values.flatten() if hasattr(values, "flatten") and values.type.num_fields else values
            if str(flat.type) in ("float", "double"):
                present = torch.tensor([value for value in flat.to_pylist() if value is not None], dtype=torch.float64)
                means[name] = float(present.mean())
            else:
                whole.append([name, values.to_pylist()])
        return whole, means


def _trace(made: Generation) -> tuple[Any, ...]:
    return made.token_ids, made.exit_layers, made.blocks_run, made.stop_reason


def digest(value: Any) -> str:
    """Return the first digits of the SHA-256 of a value's JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_ENTRIES]


@cache
def traced_model(name: str, dtype: torch.dtype = torch.float64) -> TracedModel:
    return TracedModel(name, dtype)


_REFERENCES = (
    "The red house , which Eva sold on Monday , isn't Ben's .",
    "Olga Paul Lisbon , Eva has seven nuts .",
    "L'eau n'est pas froide : elle est gelée depuis 1998 !",
    "an old, old well-known friend",
)


def scores(task_name: str) -> str:
    """Return the digest of a task's scores for right, wrong, truncated and empty answers."""
    task = get_task(task_name)
    said = []
    for target, other in zip(_REFERENCES, [*_REFERENCES[1:], _REFERENCES[0]], strict=True):
        document = task.with_reference(Document.from_fields({}), target)
        words: Sequence[str] = target.split()
        for output in (
            target,
            other,
            "",
            " ".join(words[: len(words) // 2]),
            " ".join(reversed(words)),
            target.upper(),
        ):
            found = task.score(document, output)
            said.append([{name: round(value, 6) for name, value in found.values.items()}, found.statistics])
    return digest(said)
