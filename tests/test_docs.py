"""What the documents tell people to do works."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from exitbench.methods import registry

ROOT = Path(__file__).parents[1]


def test_the_contributing_guides_method_is_a_whole_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.DOTALL)
    path = tmp_path / "my_max_prob.py"
    path.write_text(example)
    spec = importlib.util.spec_from_file_location("my_max_prob", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "my_max_prob", module)
    spec.loader.exec_module(module)
    method = registry.get_method("my-max-prob").from_params({"threshold": 0.5, "min_exit": 2})
    parts = method.parts(6)
    assert parts.blocks == {2, 3, 4, 5}
    assert "p1[l]" in str(parts.exit_layer_sql(6, 10))


def test_every_path_a_document_names_exists() -> None:
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))):
        for name in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / name).exists(), f"{document.name} links to {name}"
