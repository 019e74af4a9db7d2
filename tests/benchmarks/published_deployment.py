"""Compare published early-exit deployment code with this project: same weights, exits and tokens, one process, ABBA.

    git clone https://github.com/raymin0223/fast_robust_early_exit FOLDER && git -C FOLDER checkout 3e503c5
    python3 -m pip install --no-deps --target OLD transformers==4.28.1 huggingface-hub==0.14.1
    OMP_NUM_THREADS=2 python tests/benchmarks/published_deployment.py --published FOLDER --transformers OLD
    (and: --exits 4 12, --head certified)

FREE's repository has a deployment of static exits, CALM and FREE for T5 at batch 1. It has no licence, so none of it is
copied here. It runs unchanged, on the release of transformers that it pins, including `generate`, except that:

- transformers' check of its dependencies is skipped, and newer releases already imported are unloaded;
- its folder `models` is an empty package, because its `__init__` also imports LongT5;
- its option `use_synchronize` is off, since its timers would synchronize the device repeatedly;
- before each comparison with the confidence, the threshold is set to force the wanted exit (above 1: never, below 0:
  always). Its code still computes all confidences.

This project's thresholds are set in the same way. With `--head certified`, this project's gates decide from bounds of
the logits, which the published code lacks. Weights are random (T5 v1.0: tied, ReLU), in fp32. `calm` evaluates the gate
at every block, `calm-min` from the exit on (exit_min_layer); `free` exits there, but every fourth token runs all
blocks. Milliseconds per token exclude the first token: encoder and prompt count only in the column `request`.
"""

import argparse
import dataclasses
import functools
import importlib
import itertools
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers

from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Request
from exitbench.harness.engine.products.choosing import use_fastest
from exitbench.methods.base import Parts, Threshold
from exitbench.methods.registry import get_method

SMALL = dict(vocab_size=2048, d_model=128, d_kv=32, d_ff=512, num_heads=4, num_layers=8, num_decoder_layers=8)
BASE = dict(vocab_size=32128, d_model=768, d_kv=64, d_ff=3072, num_heads=12, num_layers=12, num_decoder_layers=12)
LARGE = {**BASE, "d_model": 1024, "d_ff": 4096, "num_heads": 16, "num_layers": 24, "num_decoder_layers": 24}
SHAPES = {"small": SMALL, "base": BASE, "large": LARGE}
ENDLESS = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": None}
METHODS = {"static": "static", "calm": "calm-softmax", "calm-min": "calm-softmax", "free": "free"}
# By kind, shape and exit layer, on a CPU; at all other exit layers this project should be faster.
GOALS = {("calm", "base", 4): 1.35, ("calm-min", "base", 4): 1.35, ("static", "base", 12): 1.25}
CERTIFIED_GOALS = {("calm", "base", 4): 1.8, ("calm", "base", 12): 2.5}
NEVER, ALWAYS = 2.0, -1.0  # thresholds outside the range of a softmax margin
DEEP_EVERY = 4  # FREE: one in this many tokens runs all blocks
PROMPT_TOKENS, NEW_TOKENS, PINNED = 24, 17, "4.28.1"


class TokenTimer:
    """Stopping criterion that never stops; it notes the time of each token of a request."""

    def __init__(self) -> None:
        self.at_ms = [self._now()]

    def __call__(self, *_: object) -> bool:
        self.at_ms.append(self._now())
        return False

    def ended(self, token_ids: list[int]) -> None:
        now = self._now()
        self.token_ids, self.request_ms = token_ids, now - self.at_ms[0]
        self.token_ms = (now - self.at_ms[1]) / (len(token_ids) - 1)  # excluding the first token

    def _now(self) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() * 1e3


@dataclasses.dataclass(frozen=True)
class Forced(Threshold):
    exits: Sequence[int]

    def value(self, block: int, position: int, max_new_tokens: int) -> float:
        return ALWAYS if self.exits[position - 1] == block else NEVER

    def sql(self, max_new_tokens: int) -> str:
        return f"CASE WHEN {list(self.exits)}[position] = l THEN {ALWAYS} ELSE {NEVER} END"


class Local:
    def __init__(self, folder: Path, device: str, head: str) -> None:
        self.checkpoint, self.head = load_checkpoint(folder, device=device), head
        use_fastest(self.checkpoint.model)  # as in every run

    def parts(self, kind: str, exits: Sequence[int]) -> Parts:
        at: dict[str, Any] = {"exit_layer": exits[0]}
        lazy = {"kv_policy": "state-copy-lazy"}  # nothing is ever copied, since no token runs deeper blocks
        calm: dict[str, Any] = {"decay": "none"}
        params = {"static": at | lazy, "calm": calm, "calm-min": calm | {"min_exit": exits[0]}, "free": at}[kind]
        parts = get_method(METHODS[kind]).from_params(params).parts(self.checkpoint.model.n_blocks)
        if kind == "static":
            return parts
        forced = dataclasses.replace(parts, threshold=Forced(exits))
        return forced.certified() if self.head == "certified" else forced

    def answer(self, parts: Parts, prompt: list[int], exits: list[int]) -> TokenTimer:
        answer = TokenTimer()
        batch = prefill(self.checkpoint.model, [Request(prompt)], len(exits))
        (generation,) = decode(self.checkpoint, batch, parts, is_stopped=answer)
        answer.ended(generation.token_ids)
        if generation.exit_layers != exits:
            sys.exit(f"ours left after blocks {generation.exit_layers} instead of {exits}")
        return answer


class Published:
    """T5 of FREE's repository, with predetermined exits."""

    def __init__(self, code: Any, shape: dict[str, int], weights: dict[str, Any], device: str) -> None:
        util, made = sys.modules["util"], sys.modules["transformers"].T5Config(**shape, **ENDLESS)
        options = util.AdditionalArguments(deploy_scenario=True, use_synchronize=False)
        self.model = code.DeployT5ForConditionalGeneration(util.update_autoconfig(made, options)).eval()
        self.model.load_state_dict(weights, strict=False)  # a missing weight would change the tokens
        self.model.to(device).tie_weights()
        self.code, self.n_blocks = code, shape["num_decoder_layers"]

    def set(self, kind: str, exit_layer: int) -> None:
        """Configure the model for this kind of exit as its constructor would."""
        calm, free = kind.startswith("calm"), kind == "free"
        of_stack = dict(
            use_early_exit=calm,
            exit_min_layer=exit_layer if kind == "calm-min" else None,
            use_shallow_deep=free,
            shallow_exit_layer=exit_layer if free else None,
        )
        static = exit_layer if kind == "static" and exit_layer < self.n_blocks else None
        measures = dict(exit_conf_type="softmax" if calm else None, shallow2deep_conf_type="softmax" if free else None)
        for config in (self.model.config, self.model.decoder.config):
            config.update({"static_exit_layer": static, **measures, **of_stack})
        vars(self.model.decoder).update(of_stack)

    def forced_thresholds(self, kind: str, exits: Sequence[int]) -> list[float]:
        """Return thresholds that force the exit layers `exits`, one per comparison of the published code, in order.

        It compares once per token if `kind` is "free", else at every block up to the exit ("calm-min": from the first
        exit layer on).
        """
        if kind == "free":
            return [NEVER if layer == self.n_blocks else ALWAYS for layer in exits]
        first = exits[0] if kind == "calm-min" else 1
        at_each = ((at, layer) for layer in exits for at in range(first, min(layer + 1, self.n_blocks)))
        return [ALWAYS if at == layer else NEVER for at, layer in at_each]

    def answer(self, kind: str, prompt: list[int], exits: list[int]) -> TokenTimer:
        levels, compare = iter(self.forced_thresholds(kind, exits)), self.code.get_skip_mask
        threshold = "shallow2deep_conf_threshold" if kind == "free" else "exit_conf_threshold"

        def forced(*args: Any, config: Any, **kwargs: Any) -> Any:
            setattr(config, threshold, next(levels))
            return compare(*args, config=config, **kwargs)

        self.model.decoder.block_op = [0] * self.n_blocks  # the model's count of tokens per block
        answer = TokenTimer()
        with patch.object(self.code, "get_skip_mask", forced), torch.inference_mode():
            prompt_1S = torch.tensor([prompt], device=self.model.device)
            out = self.model.generate(prompt_1S, max_new_tokens=len(exits), stopping_criteria=[answer])
            answer.ended(out[0, 1:].tolist())
        counted = (0, exits[0]) if kind == "free" else range(self.n_blocks)
        ran = {index: self.model.decoder.block_op[index] for index in counted}
        if ran != {index: sum(index < layer for layer in exits) for index in counted}:
            sys.exit(f"the published code ran {ran} (tokens by block, from 0) instead of exits {exits}")
        return answer


def import_published(folder: Path, old: Path) -> Any:
    """Return the published module `models.deploying_t5`, imported on the transformers release that it pins."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("transformers", "huggingface_hub"):
            del sys.modules[name]
    checks = types.ModuleType("transformers.dependency_versions_check")
    checks.__dict__["dep_version_check"] = lambda *_: None
    models = types.ModuleType("models")
    models.__path__ = [str(folder / "models")]
    sys.modules.update({checks.__name__: checks, models.__name__: models})
    sys.path[:0] = [str(folder), str(old)]
    release = importlib.import_module("transformers").__version__
    if release != PINNED:
        sys.exit(f"{old}: transformers {release}; the published code needs {PINNED}")
    return importlib.import_module("models.deploying_t5")


def make_checkpoint(folder: Path, shape: dict[str, int]) -> dict[str, Any]:
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**shape, **ENDLESS))
    with torch.no_grad():  # else all tokens are equal, which would hide errors
        model.decoder.final_layer_norm.weight.normal_()
        for name, weight in model.named_parameters():
            weight.mul_(10 if name.endswith("q.weight") else 1)
    model.save_pretrained(folder)
    return dict(model.state_dict())


def compared(reference: Callable[[], TokenTimer], local: Callable[[], TokenTimer], rounds: int) -> str:
    same = reference().token_ids == local().token_ids
    rounds_of_answers = [(reference(), local(), local(), reference()) for _ in range(rounds)]
    ratios = [(a.token_ms + d.token_ms) / (b.token_ms + c.token_ms) for a, b, c, d in rounds_of_answers]
    request = statistics.median(
        (a.request_ms + d.request_ms) / (b.request_ms + c.request_ms) for a, b, c, d in rounds_of_answers
    )
    theirs_ms = statistics.median(x.token_ms for a, _, _, d in rounds_of_answers for x in (a, d))
    ours_ms = statistics.median(x.token_ms for _, b, c, _ in rounds_of_answers for x in (b, c))
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    times = f"{theirs_ms:15.2f}  {ours_ms:6.2f}  {middle:6.2f} ({low:.2f} to {high:.2f})"
    return f"{times:49}  {request:7.2f}  {'same' if same else 'differ':6}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", type=Path, required=True, help="a checkout of the published repository")
    parser.add_argument("--transformers", type=Path, required=True, help=f"a folder with transformers {PINNED}")
    parser.add_argument("--shape", choices=SHAPES, default="base")
    parser.add_argument("--kinds", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--exits", nargs="+", type=int, help="exit layers (default: every one)")
    parser.add_argument("--head", choices=("exact", "certified"), default="exact", help="how our gates read it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    shape, n_blocks = SHAPES[options.shape], SHAPES[options.shape]["num_decoder_layers"]
    layers = options.exits or range(1, n_blocks + 1)
    if not set(layers) <= set(range(1, n_blocks + 1)) or options.rounds < 2:
        parser.error(f"--exits are 1 to {n_blocks}; --rounds are 2 or more")
    for path in (options.published / "models/deploying_t5.py", options.transformers / "transformers/__init__.py"):
        if not path.is_file():
            parser.error(f"no {path}: --help says what --published and --transformers are")
    with tempfile.TemporaryDirectory() as place:
        weights = make_checkpoint(Path(place), shape)
        engine = Local(Path(place), options.device, options.head)
    published = Published(import_published(options.published, options.transformers), shape, weights, options.device)
    prompt = torch.randint(3, shape["vocab_size"], (PROMPT_TOKENS,)).tolist()
    mixed = [1 + 5 * at % n_blocks for at in range(NEW_TOKENS)]
    published.set("calm", mixed[0])
    answers = [published.answer("calm", prompt, mixed), engine.answer(engine.parts("calm", mixed), prompt, mixed)]
    if answers[0].token_ids != answers[1].token_ids:
        sys.exit(f"exits {mixed}: theirs answers {answers[0].token_ids}, ours {answers[1].token_ids}")
    threads = torch.get_num_threads()
    print(f"T5 {options.shape}, fp32, {options.head} head, {options.device}, {NEW_TOKENS} tokens, {threads} thread(s)")
    print("kind     exit  theirs ms/token    ours  times faster (quartiles)  request  tokens  goal")
    for kind, layer in itertools.product(options.kinds, layers):
        if (kind, layer) == ("free", n_blocks):
            continue  # the published code needs blocks after the exit
        published.set(kind, layer)
        exits = [layer] * NEW_TOKENS
        if kind == "free":
            exits[DEEP_EVERY - 1 :: DEEP_EVERY] = [n_blocks] * (NEW_TOKENS // DEEP_EVERY)
        reference = functools.partial(published.answer, kind, prompt, exits)
        local = functools.partial(engine.answer, engine.parts(kind, exits), prompt, exits)
        goals = GOALS if options.head == "exact" else GOALS | CERTIFIED_GOALS
        goal = goals.get((kind, options.shape, layer), 1.0)
        print(f"{kind:8} {layer:4} {compared(reference, local, options.rounds)}  {goal:.2f}", flush=True)


if __name__ == "__main__":
    main()
