"""ExitBench: a reproducible benchmark harness and result database for early-exit methods.

    import exitbench as eb

    model = eb.load_model("builtin-weighted")                        # or a Hugging Face checkpoint folder
    answer = eb.decode(model, ["..."], "calm-softmax", threshold=0.9)[0]
    probe = eb.probe(model, ["..."])
    eb.replay(probe, "calm-softmax", thresholds=[0.5, 0.9])          # many thresholds, one pass
    eb.run("builtin", only="*/squad/*", limit=20)
    with eb.open_results("runs") as results:
        results.frontier().to_pandas()

Importing this package is cheap: each public name is imported on first use. Once lm-eval is imported, this project's
models are registered with it under the name `exitbench`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from exitbench.lm_eval_registration import register_with_lm_eval

__version__ = "1.0.0"

if TYPE_CHECKING:
    from exitbench.errors import UserError as UserError
    from exitbench.harness.api.classifiers import BlockPrediction as BlockPrediction
    from exitbench.harness.api.classifiers import Classification as Classification
    from exitbench.harness.api.classifiers import Classifier as Classifier
    from exitbench.harness.api.classifiers import classify as classify
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
    "Answer": "harness.api.models:Answer",
    "BlockPrediction": "harness.api.classifiers:BlockPrediction",
    "Classification": "harness.api.classifiers:Classification",
    "Classifier": "harness.api.classifiers:Classifier",
    "Gate": "methods.base:Gate",
    "Method": "methods.base:Method",
    "Model": "harness.api.models:Model",
    "Probe": "harness.api.models:Probe",
    "Results": "harness.api.results:Results",
    "RunReport": "harness.api.running:RunReport",
    "Task": "tasks.base:Task",
    "UserError": "errors:UserError",
    "classify": "harness.api.classifiers:classify",
    "decode": "harness.api.models:decode",
    "load_model": "harness.api.models:load_model",
    "method_names": "methods.registry:method_names",
    "open_results": "harness.api.results:open_results",
    "probe": "harness.api.models:probe",
    "register_method": "methods.registry:register",
    "register_task": "tasks.registry:register",
    "replay": "harness.api.models:replay",
    "run": "harness.api.running:run",
    "task_names": "tasks.registry:task_names",
}
__all__ = ["__version__", *_PLACES]

register_with_lm_eval()


def __getattr__(name: str) -> Any:
    """Import and return a public name of this package when it is first used."""
    if name not in _PLACES:
        raise AttributeError(f"module 'exitbench' has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    return getattr(import_module(f"exitbench.{module}"), attribute)


def __dir__() -> list[str]:
    """Return the names for `dir(exitbench)` and tab completion: the public names, sorted."""
    return sorted(__all__)
