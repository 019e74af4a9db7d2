"""Packages of the distribution: the folders with an ``__init__.py`` beneath the five top ones."""

from pathlib import Path

from setuptools import setup

TOP = ("harness", "methods", "tasks", "results", "reports")
ROOT = Path(__file__).parent
FOLDERS = sorted(init.parent.relative_to(ROOT) for top in TOP for init in (ROOT / top).rglob("__init__.py"))
PACKAGES = {".".join(("exitbench", *folder.parts)): folder.as_posix() for folder in FOLDERS}
PACKAGES["exitbench"] = PACKAGES.pop("exitbench.harness._root")  # the root package itself

setup(packages=list(PACKAGES), package_dir=PACKAGES)
