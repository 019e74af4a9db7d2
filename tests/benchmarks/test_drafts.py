"""Speed-up of drafts that full depth verifies, on a small model trained to exit: their answers are full depth's.

The model is the built-in one with LayerSkip's objective, of 8 blocks of width 128. Its dialogues are generated.
"""

from __future__ import annotations

from typing import Any

import pytest
from goals import Recorder
from models import UNTRACED
from ratios import Timed, compare
from transformers import AutoTokenizer

from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Request
from exitbench.harness.engine.products.choosing import use_fastest
from exitbench.harness.training import find_trained, load_recipe
from exitbench.harness.training.store import SHIPPED
from exitbench.methods.base import Parts
from exitbench.methods.registry import get_method
from exitbench.tasks import builtin
from exitbench.tasks.registry import get_task

pytestmark = pytest.mark.benchmark(disable_gc=True)

GOAL = 1.2
DIALOGUES, NEW_TOKENS = 8, 40
METHODS: dict[str, tuple[str, dict[str, Any], float | None]] = {
    "block-2": ("self-speculation", {"exit_layer": 2, "drafts": 6, "stop_below": 0.5}, GOAL),
    "softmax-at-every-block": ("calm-softmax", {"threshold": 0.9, "kv_policy": "self-speculation"}, GOAL),
    "prompt": ("prompt-lookup", {"drafts": 3}, None),
}


@pytest.mark.parametrize("drafting", METHODS)
def test_verified_drafts(drafting: str, threads: None, measured_forms: None, benchmark: Any, record: Recorder) -> None:
    """Measure the speed-up of decoding over full depth at batch 1, with answers that end by themselves."""
    folder = find_trained(load_recipe("builtin-layer-skip"), SHIPPED)
    assert folder is not None, "the model is part of the package"
    checkpoint = load_checkpoint(folder)
    use_fastest(checkpoint.model)
    task, tokenizer = get_task("samsum"), AutoTokenizer.from_pretrained(folder)
    texts = [task.prompt_for(document, checkpoint.kind) for document in builtin.documents("samsum", "test", DIALOGUES)]
    prompts = [tokenizer(text).input_ids for text in texts]
    name, params, goal = METHODS[drafting]
    full, early = (
        one_by_one(checkpoint, prompts, get_method(name).from_params(params).parts(checkpoint.model.n_blocks))
        for name, params in (("full", {}), (name, params))
    )
    reference, answers = full.run_traced(), early.run_traced()
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in reference]
    exits = [layer for answer in answers for layer in answer.exit_layers]
    note = f"exit {sum(exits) / len(exits):.2g} of {checkpoint.model.n_blocks}"
    record(compare(benchmark, full, early), "x", at_least=goal, note=note)


def one_by_one(checkpoint: Checkpoint, prompts: list[list[int]], parts: Parts) -> Timed:
    """Return the decoding of each prompt by itself as an action to time, after prefill and without a trace."""
    return Timed(
        lambda batches: [decode(checkpoint, batch, parts, **UNTRACED) for batch in batches],
        lambda: [prefill(checkpoint.model, [Request(prompt)], NEW_TOKENS) for prompt in prompts],
        lambda batches: [answer for batch in batches for answer in decode(checkpoint, batch, parts)],
    )
