"""Single tasks of lm-eval with their data: documents, and the requests that lm-eval builds for them."""

import random
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jinja2 import Template
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment

from exitbench.errors import UserError, one_line, suggestion
from exitbench.tasks.lm_eval.configs import LeafConfig, leaf_configs
from exitbench.tasks.lm_eval.data import changes_for, unreadable
from exitbench.tasks.lm_eval.settings import LmEvalSettings
from exitbench.terminal import without_middle

if TYPE_CHECKING:
    from exitbench.tasks.base import Source

Chat = tuple[str | None, Callable[..., str] | None]
"""A system message, and the checkpoint's chat template as a function from messages to text."""

_RANDOM_SEED, _NUMPY_SEED = 0, 1234
"""Seeds that lm-eval sets before it loads tasks; some tasks shuffle their choices at that point."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """Single task of lm-eval with its data.

    Attributes:
        config: The task's configuration with all settings applied.
        task: lm-eval's task object.
        seed: Seed for drawing few-shot examples.
        multiturn: True if few-shot examples are separate turns in a chat template.
    """

    config: LeafConfig
    task: Any
    seed: int
    multiturn: bool
    _docs: dict[str, list[Any]] = field(default_factory=dict)
    _draws: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the task in lm-eval."""
        return self.config.task_name

    @cached_property
    def evaluated(self) -> str:
        """Split that lm-eval evaluates: test or, if there is none, validation."""
        return "test" if self.task.has_test_docs() else "validation"

    def resolve_split(self, split: str) -> str:
        """Return lm-eval's split (test, validation or train) that a split named in a suite stands for.

        If the task has no test or no validation split, the split that lm-eval evaluates takes its place.

        Raises:
            UserError: The task has no such split.
        """
        has = {
            "train": self.task.has_training_docs(),
            "validation": self.task.has_validation_docs(),
            "test": self.task.has_test_docs(),
        }
        resolved = self.evaluated if split in ("test", "validation") and not has[split] else split
        if not has.get(resolved):
            allowed = [name for name, exists in has.items() if exists]
            raise UserError(f"lm-eval: task {self.name!r} has no split {split!r}.{suggestion(split, allowed)}")
        return resolved

    def docs(self, split: str) -> list[Any]:
        """Return the task's documents of a split (test, validation or train), in lm-eval's order."""
        if split not in self._docs:
            read = {
                "train": self.task.training_docs,
                "validation": self.task.validation_docs,
                "test": self.task.test_docs,
            }
            with _seeded(), _without_bars():
                self._docs[split] = list(read[split]())
        return self._docs[split]

    def subset_task(self, split: str, ordinals: Sequence[int], chat: Chat | None) -> Any:
        """Return a copy of lm-eval's task that is restricted to the documents with indices `ordinals` in a split.

        `chat` is a system message and a chat template for the prompts; None for neither.

        A document's few-shot examples are the same as when all documents are evaluated, so its prompt does not depend
        on the selection.
        """
        docs, draws = self.docs(split), self._drawn(split)
        subset: Any = copy(self.task)
        system, template = chat or (None, None)
        ordinal_of_doc = {id(docs[ordinal]): ordinal for ordinal in ordinals}
        if draws:
            subset.sampler = sampler = _FixedSampler()

            def fewshot_context(doc: Any, *args: Any, **kwargs: Any) -> Any:
                sampler.examples = draws[ordinal_of_doc[id(doc)]]
                return self.task.__class__.fewshot_context(subset, doc, *args, **kwargs)

            subset.fewshot_context = fewshot_context

        def doc_iterator(**_: Any) -> Iterator[tuple[int, Any]]:
            return iter([(ordinal, docs[ordinal]) for ordinal in ordinals])

        def build_all_requests(**_: Any) -> None:
            with _without_bars(), named_errors(self.name):
                self.task.__class__.build_all_requests(
                    subset,
                    system_instruction=system,
                    apply_chat_template=template is not None,
                    fewshot_as_multiturn=self.multiturn,
                    chat_template=template,
                )

        def process_results(doc: Any, results: Any) -> dict[str, Any]:
            with named_errors(self.name):
                scores: dict[str, Any] = self.task.process_results(doc, results)
            return scores

        def apply_filters() -> Any:
            with named_errors(self.name), time_limit(SECONDS_IN_ALL, f"lm-eval: filter_list of task {self.name!r}"):
                return self.task.__class__.apply_filters(subset)

        subset.doc_iterator, subset.build_all_requests, subset._instances = doc_iterator, build_all_requests, None
        subset.process_results, subset.apply_filters = process_results, apply_filters
        return subset

    def _drawn(self, split: str) -> list[Any]:
        """Return the few-shot examples of each document of a split, drawn as in lm-eval; empty if none are drawn."""
        from lm_eval.api.task import ConfigurableTask

        n = self.config.num_fewshot
        if not n or not isinstance(self.task, ConfigurableTask):
            return []
        if split not in self._draws:
            self.task.set_fewshot_seed(self.seed)
            config = self.task.config
            # For its evaluated split, lm-eval ensures that no document is its own example; for other splits we do.
            exclude_self = split != self.evaluated or self.task.fewshot_cfg.split == config.test_split
            with named_errors(self.name):
                self._draws[split] = [
                    self.task.sampler.sample(n=n, eval_doc=doc if exclude_self else None) for doc in self.docs(split)
                ]
        return self._draws[split]


class _FixedSampler:
    """Few-shot sampler that returns examples drawn earlier."""

    examples: Sequence[Any] = ()

    def sample(self, n: int, eval_doc: Any = None, df: Any = None, **_: Any) -> Sequence[Any]:
        return self.examples


@lru_cache(maxsize=16)
def leaves(name: str, settings: LmEvalSettings, source: "Source") -> tuple[Leaf, ...]:
    """Return the single tasks of a task, group or tag with their data, except those without data in a local source.

    Raises:
        UserError: The data cannot be read, or no task has data.
    """
    use_sandbox()
    configs = leaf_configs(name, settings)
    built = []
    for config in configs:
        changes = changes_for(config, source)
        if changes is not None:
            task = _built(config, changes, source)
            built.append(Leaf(config, task, settings.fewshot_seed, settings.fewshot_as_multiturn))
    if not built:
        paths = ", ".join(path for _, path in source.files)
        raise UserError(f"lm-eval: {name!r}: {paths} holds nothing of {', '.join(c.task_name for c in configs[:8])}.")
    return tuple(built)


def _built(config: LeafConfig, changes: Mapping[str, Any], source: "Source") -> Any:
    try:
        with _seeded(), _without_bars():
            task = config.build(**changes)
    except UserError:
        raise
    except ImportError as error:
        raise UserError(f"lm-eval: task {config.task_name!r} needs a package that is not installed: {error}.") from None
    except Exception as error:  # any error of a template on the first document
        raise unreadable(config, source, error) from error
    if getattr(task, "MULTIMODAL", False):
        raise UserError(f"lm-eval: task {config.task_name!r} has pictures or sound. Allowed: tasks of text.")
    for metric, function in getattr(task, "_metric_fn_list", {}).items():
        if function is None and task.config.process_results is None:
            raise UserError(
                f"lm-eval: task {config.task_name!r}: metric {metric!r} is code that `evaluate` would download, which "
                "is not done. Allowed: metrics of lm-eval's own."
            )
    task.set_config(key="num_fewshot", value=config.num_fewshot)
    task.set_fewshot_seed(seed=1234)
    return task


@contextmanager
def named_errors(name: str) -> Iterator[None]:
    """Convert errors in a task's templates and scoring into a `UserError` that names the task."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"lm-eval: task {name!r}: {type(error).__name__}: {one_line(error)}") from error


@contextmanager
def _seeded() -> Iterator[None]:
    """Seed the random generators as lm-eval does when it loads tasks, and restore their state afterwards."""
    before, before_numpy = random.getstate(), np.random.get_state()
    random.seed(_RANDOM_SEED)
    np.random.seed(_NUMPY_SEED)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(before_numpy)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Disable progress bars of lm-eval and `datasets`: requests are built for single documents, thousands of times."""
    import datasets
    import lm_eval.api.task

    bar, enabled = lm_eval.api.task.tqdm, datasets.is_progress_bar_enabled()
    lm_eval.api.task.tqdm = lambda items, **_: items
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        lm_eval.api.task.tqdm = bar
        if enabled:
            datasets.enable_progress_bars()


_SECONDS: Final = 10.0
"""Maximum CPU seconds for rendering a template once."""
SECONDS_IN_ALL: Final = 600.0
"""Maximum CPU seconds for one template, or the filters of one task, over all documents."""
_BITS: Final = 1 << 20
"""Maximum size of an integer in bits: Python cannot be interrupted while it multiplies larger ones."""
_ITEMS: Final = 1 << 24
"""Maximum length of a text or a list."""
_MAX_SHOWN_CHARS: Final = 80


class _Template(Template):
    """Jinja template with a limit on rendering time, and its source text for messages."""

    source = ""
    _spent = 0.0

    def render(self, *args: Any, **kwargs: Any) -> str:
        """Render the template.

        Raises:
            UserError: Rendering takes too long.
        """
        seconds = min(_SECONDS, SECONDS_IN_ALL - self._spent)
        with time_limit(seconds, f"lm-eval: the template {self.source!r}") as seconds_left:
            text = super().render(*args, **kwargs)
        self._spent += seconds - seconds_left()
        return text


class _Sandbox(SandboxedEnvironment):
    """Jinja sandbox that compiles each template once, not once per document as lm-eval does."""

    template_class = _Template
    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._compiled = lru_cache(maxsize=4096)(self._with_source)

    def from_string(self, source: str, *args: object, **kwargs: object) -> Template:  # type: ignore[override]
        """Return the compiled template with this source text."""
        return self._compiled(source)

    def _with_source(self, source: str) -> Template:
        template = super().from_string(source)
        assert isinstance(template, _Template)
        template.source = without_middle(source, _MAX_SHOWN_CHARS)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left * right` or `left ** right` in a template.

        Raises:
            SecurityError: The result could be too large.
        """
        if _size(operator, left, right) > 1:
            raise SecurityError(f"{operator} of values this large")
        return super().call_binop(context, operator, left, right)


def _size(operator: str, left: Any, right: Any) -> float:
    """Return an upper bound of the size of a product or power, as a share of the largest allowed size."""
    for number, other in ((left, right), (right, left)):
        if isinstance(number, int) and operator == "*" and isinstance(other, str | bytes | list | tuple):
            return number * len(other) / _ITEMS
    if not isinstance(left, int) or not isinstance(right, int):
        return 0.0
    bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
    return bits / _BITS


@cache
def use_sandbox() -> None:
    """Make lm-eval render templates in a sandbox from now on, in this process."""
    from lm_eval import utils

    plain = utils.env
    sandbox = _Sandbox(loader=plain.loader, undefined=plain.undefined, keep_trailing_newline=True)
    sandbox.filters.update(plain.filters)
    utils.env = sandbox


@contextmanager
def time_limit(seconds: float, what: str) -> Iterator[Callable[[], float]]:
    """Limit the CPU time of a `with` block; yield a function that, after the block, returns how many seconds were left.

    `what` names the limited work in the error message.

    The limit is a signal, which also interrupts regular expressions. Only the main thread receives signals: in other
    threads there is no limit.

    Raises:
        UserError: The limit was exceeded.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield lambda: seconds
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise UserError(f"{what} takes too long: more than {_SECONDS:g} s, or {SECONDS_IN_ALL:g} s for all documents.")

    before = signal.signal(signal.SIGVTALRM, stop)
    remaining = seconds
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, max(seconds, 0.001))
        try:
            yield lambda: remaining
        finally:
            remaining = signal.setitimer(signal.ITIMER_VIRTUAL, 0)[0]
    finally:
        signal.signal(signal.SIGVTALRM, before)
