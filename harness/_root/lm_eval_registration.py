"""Register this project's models with lm-eval as `exitbench`, without importing lm-eval first.

lm-eval 0.4.13 has no plug-in mechanism; a later release reads the entry-point group `lm_eval.models`, which this
package declares. Until then, an import hook waits for lm-eval's own model registry and adds the name `exitbench` to it.
lm-eval imports the class on first use.

So `import exitbench` puts a finder on `sys.meta_path`. No simpler mechanism can wait for a module that may never be
imported, and importing lm-eval here would delay every command by seconds. The finder handles that one module and
removes itself when the module is imported.
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
    """Register this project's models with lm-eval: now if lm-eval has been imported, otherwise when it is imported."""
    if _LIST in sys.modules:
        _register()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


@contextmanager
def quiet_lm_eval() -> Iterator[None]:
    """Context manager in which lm-eval logs errors only.

    Otherwise lm-eval warns about every task whose documents this project passes to it.
    """
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
    """Import hook that lets other finders load lm-eval's model registry, then registers this project's models."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the import spec of lm-eval's model registry, with registration added; None for any other module."""
        if name != _LIST:
            return None
        sys.meta_path.remove(self)
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((candidate for candidate in specs if candidate is not None), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: ModuleType) -> None:
                run(module)
                _register()

            spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec
