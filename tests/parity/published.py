"""Run published early-exit code unchanged and record its decisions, in a separate environment (requirements.txt).

    python published.py JOB.json > ANSWERS.jsonl

A job names the folder with the code (packages `models` and `util`) and configurations with documents; the output has
one line of answers per configuration. Files in that folder are not changed: patches of a configuration are in memory,
and each documents its reason. Imports nothing from this project, which needs another transformers version.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import T5Config

Document = dict[str, Any]
Answer = dict[str, Any]


class Watch:
    """Recorder of gate evaluations, step by step.

    A step is one call of the model. Scores are recorded by wrapping the lookup of the confidence function, decisions by
    wrapping the function that compares the score with the threshold.
    """

    def __init__(self, model: Any, util: Any, deploying: Any, first_block: int) -> None:
        self.model, self.first_block, self.n_blocks = model, first_block, model.config.num_decoder_layers
        self.scores: list[list[float]] = []
        self.leaves: list[list[bool]] = []
        self.rolled_back: list[int] = []
        model.register_forward_pre_hook(self._begin)
        looked_up = util.get_confidence_class
        util.get_confidence_class = lambda key: self._noting_score(looked_up(key))
        for name in ("get_skip_mask", "get_skip_mask_cd"):
            if hasattr(deploying, name):
                setattr(deploying, name, self._noting_decision(getattr(deploying, name)))

    def clear(self) -> None:
        self.scores, self.leaves, self.rolled_back = [], [], []

    def _begin(self, *_: Any) -> None:
        self.scores.append([])
        self.leaves.append([])
        self.rolled_back.append(getattr(self.model, "rollback_num", 0))

    def _noting_score(self, measure: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any, **kwargs: Any) -> Any:
            score = measure(*args, **kwargs)
            value = score[0] if isinstance(score, tuple) else score
            self.scores[-1].append(float(value.reshape(-1)[0]))
            return score

        return noting

    def _noting_decision(self, decide: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any, **kwargs: Any) -> Any:
            decision = decide(*args, **kwargs)
            leaves = decision[0] if isinstance(decision, tuple) else decision
            self.leaves[-1].append(bool(torch.as_tensor(leaves).reshape(-1)[0]))
            return decision

        return noting

    def trace(self) -> tuple[list[int], list[list[tuple[int, float]]]]:
        """Return exit layer and (block, score) pairs of every token that was not undone."""
        after = [*self.rolled_back[1:], getattr(self.model, "rollback_num", 0)]
        exits: list[int] = []
        gated: list[list[tuple[int, float]]] = []
        for scores, leaves, before, now in zip(self.scores, self.leaves, self.rolled_back, after, strict=True):
            if now > before:  # undone tokens, of which the full model chooses the first again
                del exits[before - now :], gated[before - now :]
            pairs = list(enumerate(scores, self.first_block))
            gated.append(pairs)
            exits.append(pairs[leaves.index(True)][0] if True in leaves else self.n_blocks)
        return exits, gated


def main(job_path: str) -> None:
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    sys.path.insert(0, job["source"])
    output, sys.stdout = sys.stdout, sys.stderr  # the code prints; stdout is for answers only
    for configuration in job["configurations"]:
        answers = {"name": configuration["name"], **RUNTIMES[configuration["runtime"]](configuration)}
        print(json.dumps(answers), file=output, flush=True)


@torch.inference_mode()
def deployed(configuration: dict[str, Any]) -> dict[str, Any]:
    """Decode with the single-request runtime (`DeployT5ForConditionalGeneration`)."""
    deploying, util = modules()
    settings = configuration["settings"]
    model = load(deploying.DeployT5ForConditionalGeneration, configuration)
    for patch in configuration["patches"]:
        PATCHES[patch](model, deploying, util, configuration)
    shallow = settings.get("shallow_exit_layer")
    watch = Watch(model, util, deploying, shallow or max(1, settings.get("exit_min_layer") or 0))
    answers = []
    for document in configuration["documents"]:
        watch.clear()
        before, n_known = model.rollback_num, sum(len(labels) for labels in model.decoder.stack_ident_all)
        ids = generate(model, document, [document["prompt"]])
        exits, scores = watch.trace()
        answer = {"key": document["key"], "tokens": ids[0], "exits": exits, "asked": scores}
        answer["rolled_back"] = model.rollback_num - before
        if settings.get("use_adapt_threshold"):
            answer |= {"threshold": model.decoder.bmm_threshold, "known": n_known}  # with its sample size
        answers.append(answer)
    history = []
    if settings.get("use_adapt_threshold"):
        labels = [int(label) for piece in model.decoder.stack_ident_all for label in piece]
        history = list(zip(map(float, model.decoder.stack_conf_all), labels, strict=True))
    return {"answers": answers, "history": history}


@torch.inference_mode()
def at_full_depth(configuration: dict[str, Any]) -> dict[str, Any]:
    """Evaluate the gate at every block of every token, with MEE's own runtime and a threshold that is never exceeded.

    A batch of one fails there (a mask without dimension), so each document is decoded twice in one batch.
    """
    _, util = modules()
    from models import modeling_t5

    model = load(modeling_t5.EffT5ForConditionalGeneration, configuration)
    watch = Watch(model, util, modeling_t5, 1)
    answers = []
    for document in configuration["documents"]:
        watch.clear()
        ids = generate(model, document, [document["prompt"]] * 2)
        exits, scores = watch.trace()
        answers.append({"key": document["key"], "tokens": ids[0], "exits": exits, "asked": scores, "rolled_back": 0})
    return {"answers": answers, "history": []}


def thresholds(configuration: dict[str, Any]) -> dict[str, Any]:
    """Return the threshold that FREE's code chooses for each given history, with a new mixture model each time."""
    import numpy as np
    from util.bmm import BetaMixture1D

    results = []
    with np.errstate(all="ignore"):
        for scores, labels in configuration["histories"]:
            mixture = BetaMixture1D()
            mixture.fit(np.array(scores), np.array(labels))
            results.append(float(mixture.predict_proba(0.3, 0.9)))
    return {"thresholds": results}


RUNTIMES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "deployed": deployed,
    "full depth": at_full_depth,
    "thresholds": thresholds,
}


def modules() -> tuple[Any, Any]:
    """Import the published decoder and confidence measures again, without the patches of earlier configurations."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("models", "util")]:
        del sys.modules[name]
    import util.skip_conf as util
    from models import deploying_t5

    return deploying_t5, util


def load(cls: Any, configuration: dict[str, Any]) -> Any:
    """Return the published model with the checkpoint's weights, bf16 converted to fp32, and the gate's network."""
    from util import AdditionalArguments, update_autoconfig

    arguments = AdditionalArguments(use_synchronize=False, **configuration["settings"])
    config = T5Config.from_pretrained(configuration["model"])
    config.use_cache = True
    config = update_autoconfig(config, arguments, max_answer_length=1)
    model = cls.from_pretrained(configuration["model"], config=config, torch_dtype=torch.float32).eval()
    if configuration["network"] is not None:
        weights = load_file(configuration["network"])
        weights |= {name.replace("out.", "linear."): value for name, value in weights.items()}
        if model.cm_head is None:
            model.cm_head = missing_network(model.config.d_model, configuration["settings"]["exit_conf_type"])
        head_weights = {name: weights[name] for name in model.cm_head.state_dict()}
        model.cm_head.load_state_dict(head_weights)
        model.cm_head.eval()
    return model


def missing_network(d_model: int, measure: str) -> Any:
    """Return the gate's network for MEE's single-request runtime, which itself builds only the network of the measure
    `meta`.
    """
    from models.modeling_t5 import LSTMClassifier
    from torch import nn

    if measure == "recurrent_classifier":
        return LSTMClassifier(input_size=d_model, hidden_size=250, output_size=2)
    return nn.Sequential(nn.Linear(3 * d_model, d_model, bias=False), nn.ReLU(), nn.Linear(d_model, 2, bias=False))


def generate(model: Any, document: Document, prompts: Sequence[list[int]]) -> list[list[int]]:
    """Return greedy answers, without the decoder start token."""
    limit = document["max_new_tokens"]
    model.config.max_answer_length = model.decoder.config.max_answer_length = limit  # N of the decay, by task
    ids = model.generate(input_ids=torch.tensor(prompts), max_new_tokens=limit, do_sample=False, num_beams=1)
    return [row[1:] for row in ids.tolist()]


# ------------------------------------------------------------------------------------------ patches


def remember_blocks(model: Any, deploying: Any, util: Any, configuration: dict[str, Any]) -> None:
    """Pass the states and logits of earlier blocks to MEE's measures, which its single-request runtime does not do.

    MEE's other runtime cannot decode with exits (its cache ends at the first exit, and a batch of one fails).
    """
    decoder, decide = model.decoder, deploying.get_skip_mask
    hidden: list[torch.Tensor] = []
    read: list[torch.Tensor] = []
    probabilities, resets = configuration["probabilities"], configuration["resets"]

    def begin(_: Any, args: tuple[torch.Tensor, ...]) -> None:
        hidden[:], read[:] = [decoder.final_layer_norm(args[0])], []

    def with_history(logits: Any, states: Any, classifier: Any, config: Any, pos_time: int = 1) -> bool:
        hidden.append(states)
        read.append(torch.softmax(logits, -1) if probabilities else logits)
        block = len(read)
        mask = decide(
            logits,
            states,
            classifier,
            config=config,
            pos_time=pos_time,
            all_hidden_states=tuple(hidden),
            all_softmax_values=read,
            layer_index=block,
            should_reset=resets and block == len(decoder.block) - 1,
        )
        return bool(mask.reshape(-1)[0])

    decoder.block[0].register_forward_pre_hook(begin)
    deploying.get_skip_mask = with_history


def no_repetition_penalty(model: Any, deploying: Any, util: Any, configuration: dict[str, Any]) -> None:
    """Remove the repetition penalty of 1.2 that the pruning code applies to every method, including full depth."""
    type(model).apply_repetition_penalty = staticmethod(lambda logits, input_ids, penalty=1.2: logits)


def pruning_sizes(model: Any, deploying: Any, util: Any, configuration: dict[str, Any]) -> None:
    """Replace k_1 = 35000 and k_min = 250, meant for a vocabulary of 32128, with the configuration's sizes."""
    first, least = configuration["pruning_sizes"]
    size = deploying.DeployT5Stack.func_inverse
    deploying.DeployT5Stack.func_inverse = lambda self, i, k1, k2, n: size(self, i, first, least, n)


def plain_contrast(model: Any, deploying: Any, util: Any, configuration: dict[str, Any]) -> None:
    """Fix the call of the plain contrast, which gets arguments it does not accept: call it like the reweighted one."""
    plain = util.contrastive_confidence

    def called(*args: Any, hidden_states: Any = None, classifier: Any = None, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    util.reweight_contrastive_confidence = called


PATCHES: dict[str, Callable[[Any, Any, Any, dict[str, Any]], None]] = {
    "remember blocks": remember_blocks,
    "no repetition penalty": no_repetition_penalty,
    "pruning sizes": pruning_sizes,
    "plain contrast": plain_contrast,
}

if __name__ == "__main__":
    main(sys.argv[1])
