"""Templates of tasks, rendered where they cannot reach Python, nor take forever.

lm-eval renders the templates of its YAML in a plain environment, in which a template can import and run anything. Ours
is set in its place, for all tasks: what templates of lm-eval's own tasks ask of it, the sandbox has.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from types import FrameType
from typing import Any, Final

from jinja2 import Template
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment, SecurityError

from exitbench.errors import UserError
from exitbench.terminal import without_middle

_SECONDS: Final = 10.0
"""Of processor time that rendering a template once may take."""
SECONDS_IN_ALL: Final = 600.0
"""That one template, or the filters of one task, may take for all documents."""
_BITS: Final = 1 << 20
"""Of a whole number: nothing interrupts Python while it multiplies larger ones."""
_ITEMS: Final = 1 << 24
"""Of a text or a list."""
_SHOWN: Final = 80


class _Template(Template):
    """A template with a limit of time, which knows its text."""

    source = ""
    _spent = 0.0

    def render(self, *args: Any, **kwargs: Any) -> str:
        """Render it.

        Raises:
            UserError: It takes too long.
        """
        seconds = min(_SECONDS, SECONDS_IN_ALL - self._spent)
        with time_limit(seconds, f"lm-eval: the template {self.source!r}") as left:
            text = super().render(*args, **kwargs)
        self._spent += seconds - left()
        return text


class _Sandbox(SandboxedEnvironment):
    """A sandbox that compiles each template once: lm-eval compiles them anew for every document."""

    template_class = _Template
    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._compiled = lru_cache(maxsize=4096)(self._with_source)

    def from_string(self, source: str, *args: object, **kwargs: object) -> Template:  # type: ignore[override]
        """Return a template of a text."""
        return self._compiled(source)

    def _with_source(self, source: str) -> Template:
        template = super().from_string(source)
        assert isinstance(template, _Template)
        template.source = without_middle(source, _SHOWN)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute a product or a power whose size is bounded."""
        if _size(operator, left, right) > 1:
            raise SecurityError(f"{operator} of values this large")
        return super().call_binop(context, operator, left, right)


def _size(operator: str, left: Any, right: Any) -> float:
    """How large the result may become, as a share of the largest one allowed."""
    for number, other in ((left, right), (right, left)):
        if isinstance(number, int) and operator == "*" and isinstance(other, str | bytes | list | tuple):
            return number * len(other) / _ITEMS
    if not isinstance(left, int) or not isinstance(right, int):
        return 0.0
    bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
    return bits / _BITS


@cache
def use_sandbox() -> None:
    """Have lm-eval render templates in a sandbox from now on, in this process."""
    from lm_eval import utils

    plain = utils.env
    sandbox = _Sandbox(loader=plain.loader, undefined=plain.undefined, keep_trailing_newline=True)
    sandbox.filters.update(plain.filters)
    utils.env = sandbox


@contextmanager
def time_limit(seconds: float, what: str) -> Iterator[Callable[[], float]]:
    """End what takes too much of the processor; gives what says how many seconds were left.

    A signal ends it, Python's regular expressions too, and signals come to the main thread only: in others there is no
    limit.

    Raises:
        UserError: It took longer.
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
