"""Build script. The packages of the distribution are all folders with an ``__init__.py`` below the folders in `TOP`."""

from pathlib import Path

from setuptools import setup

TOP = ("harness", "methods", "tasks", "results", "reports")
ROOT = Path(__file__).parent
FOLDERS = sorted(init.parent.relative_to(ROOT) for top in TOP for init in (ROOT / top).rglob("__init__.py"))
PACKAGES = {".".join(("exitbench", *folder.parts)): folder.as_posix() for folder in FOLDERS}
PACKAGES["exitbench"] = PACKAGES.pop("exitbench.harness._root")  # the root package itself

setup(packages=list(PACKAGES), package_dir=PACKAGES)
