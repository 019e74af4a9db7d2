"""ExitBench: a reproducible benchmark harness and result database for early-exit methods.

    import exitbench as eb

    model = eb.load_model("builtin-weighted")                        # or a Hugging Face checkpoint folder
    answer = eb.decode(model, ["..."], "calm-softmax", threshold=0.9)[0]
    probe = eb.probe(model, ["..."])
    eb.replay(probe, "calm-softmax", thresholds=[0.5, 0.9])          # many thresholds, one pass
    eb.run("builtin", only="*/squad/*", limit=20)
    with eb.open_results("runs") as results:
        results.frontier().to_pandas()

Importing this loads nothing heavy: each name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from exitbench.errors import UserError as UserError
    from exitbench.harness.api.models import Answer as Answer
    from exitbench.harness.api.models import Model as Model
    from exitbench.harness.api.models import Probe as Probe
    from exitbench.harness.api.models import decode as decode
    from exitbench.harness.api.models import load_model as load_model
    from exitbench.harness.api.models import probe as probe
    from exitbench.harness.api.models import replay as replay
    from exitbench.harness.api.results import Results as Results
    from exitbench.harness.api.results import open_results as open_results
    from exitbench.harness.api.running import RunReport as RunReport
    from exitbench.harness.api.running import run as run
    from exitbench.methods.base import Gate as Gate
    from exitbench.methods.base import Method as Method
    from exitbench.methods.registry import method_names as method_names
    from exitbench.methods.registry import register as register_method  # noqa: F401
    from exitbench.tasks.base import Task as Task
    from exitbench.tasks.registry import register as register_task  # noqa: F401
    from exitbench.tasks.registry import task_names as task_names

_PLACES = {
    **dict.fromkeys(("Answer", "Model", "Probe", "decode", "load_model", "probe", "replay"), "harness.api.models"),
    **dict.fromkeys(("Results", "open_results"), "harness.api.results"),
    **dict.fromkeys(("RunReport", "run"), "harness.api.running"),
    **dict.fromkeys(("Gate", "Method"), "methods.base"),
    "Task": "tasks.base",
    "UserError": "errors",
    "method_names": "methods.registry",
    "task_names": "tasks.registry",
}
_RENAMED = {
    "register_method": ("methods.registry", "register"),
    "register_task": ("tasks.registry", "register"),
}
__all__ = ["__version__", *_PLACES, *_RENAMED]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _PLACES and name not in _RENAMED:
        raise AttributeError(f"module 'exitbench' has no attribute {name!r}")
    module, attribute = _RENAMED.get(name, (_PLACES.get(name, ""), name))
    return getattr(import_module(f"exitbench.{module}"), attribute)


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted(__all__)
