"""Traces: store the exits of an lm-eval evaluation as runs of a suite (`trace=DIR` in `model_args`).

Before decoding, lm-eval's evaluation is written as a suite (DIR/suite.toml) and planned. After all requests are
answered, the suite's cells are written from the answers. The full-depth baseline is run if DIR does not contain it.
"""

from __future__ import annotations

import inspect
import json
import re
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import lm_eval.evaluator
import torch
from lm_eval.api.instance import Instance

from exitbench.errors import UserError
from exitbench.harness.cells.job import CellJob, WorkerSpec
from exitbench.harness.planning.contracts import with_verdicts
from exitbench.harness.planning.plan import Plan, make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.running import worker
from exitbench.harness.training.recipe import recipe_names
from exitbench.harness.work.kinds import work_of
from exitbench.harness.work.lm import DocumentAnswer, EarlyExitLM
from exitbench.harness.work.lm_eval_work import LmEvalWork
from exitbench.harness.work.loaded import LoadedModel
from exitbench.harness.work.scored_texts import ScoredText
from exitbench.plugins import plugins_folder
from exitbench.results.files.formats import toml_table
from exitbench.results.spool.attempts import attempt_status
from exitbench.tasks.lm_eval.configs import catalogue
from exitbench.tasks.lm_eval.data import FILE_FORMATS
from exitbench.tasks.lm_eval.settings import PREFIX, LmEvalSettings
from exitbench.tasks.lm_eval.task import LmEvalTask
from exitbench.terminal import print_escaped

if TYPE_CHECKING:
    from exitbench.harness.api.lm_eval_model import ExitBenchLM

MODEL: Final = "--model exitbench"
SEED: Final = 0
"""Seed of decoding and of the trace's suite. Random methods have a separate seed parameter."""
SUITE: Final = "lm-eval"

RecordedAnswers = dict[tuple[str, int, int], tuple[tuple[Any, ...], DocumentAnswer | ScoredText]]
"""Arguments and answer of each request, by (task name, document id, request index)."""


@dataclass(frozen=True)
class PlannedTrace:
    """Trace of one lm-eval evaluation, planned as a suite, with the folders that it reads and writes.

    Attributes:
        folder: DIR of `trace=DIR`.
        plan: Plan of the suite, including the full-depth baseline.
        data_dir: Root folder of the tasks' files.
        confirmed: Whether scoring may execute code that the model wrote.
    """

    folder: Path
    plan: Plan
    data_dir: Path
    confirmed: bool

    def write(self, lm: ExitBenchLM, answers: RecordedAnswers) -> None:
        """Write the suite's cells from the answers that lm-eval received; a failing cell is skipped with a message."""
        (group,) = self.plan.groups
        assert group.folder is not None, "the model has been loaded"
        items = group.to_run("failed")
        if not items:
            print_escaped(f"trace: {self.folder} has all of this already.")
            return
        spool, threads = self.folder / "spool", torch.get_num_threads()
        folder, data = group.folder.resolve(), self.data_dir.resolve()
        spec = WorkerSpec(
            items, folder, data, spool, str(self.plan.device), threads,
            plugins=plugins_folder(), confirm_run_unsafe_code=self.confirmed,
        )  # fmt: skip
        model, method = LoadedModel(spec, lm.checkpoint), lm.arguments.method.name
        # lm-eval did not request the full-depth baseline, so it is decoded rather than repeated.
        model.wrap_lm = lambda item, inner: _Repeating(inner, answers) if item.cell.method.name == method else inner
        traced = tuple(item for item in items if _all_answered(model, item, answers))
        worker.run(replace(spec, cells=traced), _say_started, model)
        for item in traced:
            status = attempt_status(spool, item.cell.cell_id)
            if status is None or status.status != "ok":
                print_escaped(f"trace: {item.label}: {status.reason if status else 'not run'}")
        print_escaped(f"trace: exitbench import {spool}")


_watching: weakref.WeakSet[EarlyExitLM] = weakref.WeakSet()
"""Models with watched evaluations; see `watch_evaluations`."""


def watch_evaluations(lm: EarlyExitLM) -> None:
    """Wrap lm-eval's `evaluate`: set the model's document splits before each evaluation, and plan and write its trace.

    lm-eval tells a model neither its tasks nor when the evaluation ends. So `evaluate` is replaced in lm-eval's module,
    until the last model passed to this function is deleted.
    """
    original = lm_eval.evaluator.evaluate
    if not list(_watching):
        lm_eval.evaluator.evaluate = _watched(original)
    _watching.add(lm)
    weakref.finalize(lm, _unwatch)


def _unwatch() -> None:
    if not list(_watching) and (original := getattr(lm_eval.evaluator.evaluate, "watches", None)) is not None:
        lm_eval.evaluator.evaluate = original


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @wraps(function)
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        lm = getattr(arguments["lm"], "lm", arguments["lm"])  # lm-eval's caching wrapper holds the model in `lm`
        if not hasattr(lm, "traces"):
            return function(*args, **kwargs)
        lm.splits = {name: _split(task) for name, task in _tasks(arguments).items()}
        if not lm.traces:
            return function(*args, **kwargs)
        if lm is not arguments["lm"]:
            raise UserError(f"{MODEL}: trace needs every answer, use_cache (--use_cache) has some: use one of them.")
        trace = plan_trace(lm, arguments)
        lm.recorded.clear()
        results = function(*args, **kwargs)
        trace.write(lm, lm.recorded)
        return results

    evaluate.watches = function  # type: ignore[attr-defined]
    return evaluate


def plan_trace(lm: ExitBenchLM, evaluate_arguments: Mapping[str, Any]) -> PlannedTrace:
    """Express the lm-eval evaluation that is about to start as a suite, and plan this suite.

    Args:
        lm: The model.
        evaluate_arguments: Arguments of lm-eval's `evaluate`.

    Raises:
        UserError: The evaluation cannot be expressed as a suite.
    """
    arguments = lm.arguments
    assert arguments.trace is not None, "called only if a trace is requested"
    folder = Path(arguments.trace)
    text = suite_text(
        lm, {name: _task_table(lm, name, task, evaluate_arguments) for name, task in _tasks(evaluate_arguments).items()}
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "suite.toml").write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{MODEL}: trace={folder} cannot be written ({error.strerror}).") from None
    data_dir = Path(arguments.data_dir or ".")
    plan = make_plan(load_suite(folder / "suite.toml"), folder / "spool", folder / "models", data_dir)
    plan = with_verdicts(plan, "failed", folder, lambda number: None)
    return PlannedTrace(folder, plan, data_dir, bool(evaluate_arguments["confirm_run_unsafe_code"]))


def _tasks(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task objects of lm-eval's `evaluate` arguments, by task name; groups are expanded."""
    tasks = arguments["task_dict"]
    if "tasks" in tasks:
        return dict(tasks["tasks"])
    from lm_eval.evaluator_utils import _handle_back_comp

    return dict(_handle_back_comp(tasks)[1])  # nested groups, as in earlier versions


def _split(task: Any) -> str:
    return "test" if task.has_test_docs() else "validation"


def suite_text(lm: ExitBenchLM, tasks: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the TOML text of a suite equivalent to the evaluation, with the same model and method.

    Args:
        lm: The model.
        tasks: Values of each task's table in the suite, by task name.
    """
    arguments = lm.arguments
    defaults = {
        "dtype": lm.dtype,
        "device": lm.checkpoint.model.device.type,
        "batch_size": arguments.rows,
        "kinds": ["quality"],
    }
    is_recipe = arguments.pretrained in recipe_names() and not Path(arguments.pretrained).exists()
    location_key = "recipe" if is_recipe else "path"
    is_name = is_recipe or arguments.pretrained.startswith("hub:")
    model = {location_key: arguments.pretrained if is_name else str(lm.folder.resolve()), "engine": arguments.engine}
    grid = {name: [value] for name, value in arguments.params.items()}
    lines = [f"schema = 1\nname = {json.dumps(SUITE)}\nseed = {SEED}"]
    lines += toml_table("[defaults]", defaults)
    lines += toml_table(f"[models.{_label(arguments.pretrained)}]", model)
    for name, values in tasks.items():
        lines += toml_table(f"[tasks.{_label(name)}]", values)
    lines += toml_table("[[sweep]]", {"method": arguments.method.name, **({"grid": grid} if grid else {})})
    return "\n".join(lines) + "\n"


def _task_table(lm: ExitBenchLM, name: str, task: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an evaluated task's table ``[tasks.LABEL]``; settings equal to the defaults are left out."""
    config, include = task.config, lm.arguments.include
    if arguments["samples"] is not None:
        raise UserError(f"{MODEL}: trace goes with limit, not with samples, which suites do not have.")
    if name not in catalogue(include):
        raise UserError(
            f"{MODEL}: trace: {name!r} is not one of lm-eval's own tasks; include=DIR says where its YAML is."
        )
    default_task = LmEvalTask(f"{PREFIX}{name}", LmEvalSettings(include=include))
    table: dict[str, Any] = {"task": f"{PREFIX}{name}"}
    table["source"] = "local" if config.dataset_path in FILE_FORMATS else "hub"
    if include is not None:
        table["include"] = str(Path(include).resolve())
    if (n_documents := _limited(task, arguments["limit"])) is not None:
        table["split"] = f"test[:{n_documents}]"
    if (fewshot := config.num_fewshot or 0) != default_task.num_fewshot:
        table["num_fewshot"] = fewshot
    if task.OUTPUT_TYPE == "generate_until":
        gen_kwargs = dict(config.generation_kwargs or {})
        table |= {"gen_kwargs": changed} if (changed := _changed(default_task.generation_kwargs, gen_kwargs)) else {}
    elif lm.arguments.scope != "token":
        table["scope"] = lm.arguments.scope
    if lm.arguments.first_token is not None:
        table["first_token"] = lm.arguments.first_token
    return table | _chat(arguments)


def _chat(arguments: Mapping[str, Any]) -> dict[str, Any]:
    template, system = arguments["apply_chat_template"], arguments["system_instruction"]
    if not template:
        if system:
            raise UserError(f"{MODEL}: trace: a system instruction goes with a chat template in suites.")
        return {}
    if isinstance(template, str):
        raise UserError(
            f"{MODEL}: trace: suites have the checkpoint's only chat template, not {template!r} of several."
        )
    multiturn = {"fewshot_as_multiturn": True} if arguments["fewshot_as_multiturn"] else {}
    return {"chat_template": True, **multiturn, **({"system": system} if system else {})}


def _limited(task: Any, limit: float | None) -> int | None:
    """Return the number of leading documents that lm-eval evaluates under `limit`; None for all documents."""
    if limit is None:
        return None
    from lm_eval.evaluator_utils import get_sample_size

    n_documents = int(get_sample_size(task, limit))
    return n_documents if n_documents < len(task.eval_docs) else None


def _changed(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in defaults or defaults[name] != value}


def _label(name: str) -> str:
    """Return a suite's label for a model or task of lm-eval: its name without characters that labels cannot have."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", Path(name).name).strip("-")[:80] or "model"


def _say_started(event: Mapping[str, Any]) -> None:
    if event["event"] == "start":
        print_escaped(f"trace: {event['label']}")


def _all_answered(model: LoadedModel, item: CellJob, answers: RecordedAnswers) -> bool:
    """Return whether the recorded answers cover every request of a suite's cell; print a message if one is missing."""
    work = work_of(model, item)
    assert isinstance(work, LmEvalWork), "a trace is of lm-eval's tasks"
    requests = [request for task_requests in work.instances().values() for request in task_requests]
    if all(_stored_answer(answers, request) is not None for request in requests):
        return True
    print_escaped(
        f"trace: {item.label} is left out: its requests are not those of a suite (another fewshot seed, or data)."
    )
    return False


class _Repeating(EarlyExitLM):
    """lm-eval model that returns the recorded answers of an earlier evaluation instead of decoding again."""

    def __init__(self, lm: EarlyExitLM, answers: RecordedAnswers) -> None:
        super().__init__(
            lm.checkpoint, lm.prompts, lm.parts, lm.rows, lm.seed_of, lm.on_answers, lm.encoding, lm.key_of
        )
        self._recorded = answers

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the recorded answer text of each request, in request order."""
        texts = []
        for request in requests:
            answer = _stored_answer(self._recorded, request)
            assert isinstance(answer, DocumentAnswer), "`_all_answered` has checked it"
            self.answers[self.key_of(request)] = answer
            texts.append(answer.text)
        self.on_answers(len(self.answers))
        return texts

    def _score(self, requests: list[Instance]) -> list[ScoredText]:
        texts_by_key: dict[str, dict[int, ScoredText]] = {}
        for request in requests:
            scored = _stored_answer(self._recorded, request)
            assert isinstance(scored, ScoredText), "`_all_answered` has checked it"
            texts_by_key.setdefault(self.key_of(request), {})[request.idx] = scored
        self.scored |= {key: [texts[index] for index in sorted(texts)] for key, texts in texts_by_key.items()}
        self.on_answers(len(self.scored))
        return [texts_by_key[self.key_of(request)][request.idx] for request in requests]


def _stored_answer(answers: RecordedAnswers, request: Instance) -> DocumentAnswer | ScoredText | None:
    """Return the recorded answer of a request; None if it was recorded for other arguments (prompt, stop strings)."""
    args, answer = answers.get((request.task_name, request.doc_id, request.idx), (None, None))
    return answer if args == request.args else None
