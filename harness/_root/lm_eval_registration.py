"""Make lm-eval know our models under the name `exitbench`, without importing it before somebody else does.

lm-eval 0.4.13 looks for no plug-ins; a release after it reads the entry-point group `lm_eval.models`, which we declare.
Until then a finder waits for lm-eval's own list of models, and adds ours to it: a name, which lm-eval imports when it
is asked for.

So `import exitbench` puts a finder on `sys.meta_path`. Nothing else can wait for a module that may never be imported,
and importing lm-eval here would take seconds of every command. The finder answers for that one module, and takes itself
away when it is imported.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

NAME: Final = "exitbench"
CLASS: Final = "exitbench.harness.api.lm_eval_model:ExitBenchLM"
_LIST: Final = "lm_eval.models"


def register_with_lm_eval() -> None:
    """Register with lm-eval, now where it has been imported and otherwise when it is."""
    if _LIST in sys.modules:
        _register()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


@contextmanager
def quiet_lm_eval() -> Iterator[None]:
    """Log only lm-eval's errors while this project drives it: it warns of every task whose records we hand over."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _register() -> None:
    from lm_eval.api.registry import model_registry

    if NAME not in model_registry:
        model_registry.register(NAME, target=CLASS)


class _Finder:
    """Finds nothing itself: what others find of lm-eval's list registers us once it has been run."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec that the other finders have, for the one module that is waited for."""
        if name != _LIST:
            return None
        sys.meta_path.remove(self)
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((found for found in specs if found is not None), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run(module)
                _register()

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec
