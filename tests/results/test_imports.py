"""Results can be read without torch."""

import subprocess
import sys

SCRIPT = """
import sys
from importlib import import_module
from pkgutil import walk_packages
from exitbench import results
for module in walk_packages(results.__path__, "exitbench.results."):
    import_module(module.name)
print(len([name for name in sys.modules if name.startswith("exitbench.results.")]))
sys.exit("torch" in sys.modules)
"""


def test_nothing_in_results_imports_torch() -> None:
    process = subprocess.run([sys.executable, "-c", SCRIPT], check=False, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) > 50
