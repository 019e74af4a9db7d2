"""Templates of tasks, rendered where they cannot reach Python.

lm-eval renders the templates of its YAML in a plain environment, in which a template can import and run anything. Ours
is set in its place, for all tasks: what templates of lm-eval's own tasks ask of it, the sandbox has.
"""

from functools import cache, lru_cache

from jinja2 import Template
from jinja2.sandbox import SandboxedEnvironment


class _Sandbox(SandboxedEnvironment):
    """A sandbox that compiles each template once: lm-eval compiles them anew for every document."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._compiled = lru_cache(maxsize=4096)(super().from_string)

    def from_string(self, source: str, *args: object, **kwargs: object) -> Template:  # type: ignore[override]
        """Return a template of a text."""
        return self._compiled(source)


@cache
def use_sandbox() -> None:
    """Have lm-eval render templates in a sandbox from now on, in this process."""
    from lm_eval import utils

    plain = utils.env
    sandbox = _Sandbox(loader=plain.loader, undefined=plain.undefined, keep_trailing_newline=True)
    sandbox.filters.update(plain.filters)
    utils.env = sandbox
