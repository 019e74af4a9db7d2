"""Finding methods: those of this package and those of other distributions, with the revision of their code."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import exitbench
from exitbench import provenance
from exitbench.errors import UserError
from exitbench.methods import registry
from exitbench.methods.base import Method
from exitbench.methods.registry import (
    baseline_method,
    distribution,
    get_method,
    method_names,
    register,
    revision,
    syntax_sha256,
)

THIRD_PARTY = '''
"""A method of another distribution: exits where two blocks in a row choose the same token."""
from dataclasses import dataclass
import torch
from exitbench.methods.base import Gate, Method, Parts, argmax_token, blocks_from, param
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import StateCopy
from exitbench.methods.thresholds import Constant

class Agreement(Gate):
    def score(self, view):
        choice_A = argmax_token(view.logits_AK)
        before_A = view.memory.get("choice_A", torch.full_like(choice_A, -1))
        view.memory["choice_A"] = choice_A
        return (choice_A == before_A).float()

@dataclass(frozen=True)
class Twice(Method):
    name = "twice"
    first: int = param(2, "first block at which the gate is asked", low=1)
    def parts(self, n_blocks, fitted=None):
        return Parts(Agreement(), Constant(0.5), LMHead(), StateCopy(), blocks_from(self.first, n_blocks))
'''


def write_distribution(folder: Path, source: str) -> None:
    """Write the files that installing a wheel with a method would leave."""
    (folder / "exit_twice.py").write_text(source)
    info = folder / "exit_twice-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: exit-twice\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[exitbench.methods]\ntwice = exit_twice:Twice\n")


def load(folder: Path, source: str) -> type[Method]:
    """Write a module to ``folder`` and return its method class."""
    folder.mkdir()
    path = folder / "exit_twice.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("exit_twice", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["exit_twice"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cls: type[Method] = module.Twice
    return cls


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], type[Method]]]:
    """Yield a function that installs a distribution with a method, and returns the method as a new process finds it."""
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))

    def put(source: str) -> type[Method]:
        write_distribution(tmp_path, source)
        monkeypatch.syspath_prepend(tmp_path)
        registry._discover.cache_clear()
        return get_method("twice")

    yield put
    sys.modules.pop("exit_twice", None)
    registry._discover.cache_clear()


def conformance() -> tuple[dict[str, Callable[..., None]], Callable[..., Any]]:
    """Return the conformance tests by name, and `binder`, which prepares methods for a model."""
    spec = importlib.util.spec_from_file_location("conformance", Path(__file__).with_name("test_conformance.py"))
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    asked = {kind for kind, name, params in module.CASES if (name, params) == ("twice", {})}
    assert asked == set(module.KINDS), "a method that is found is tested unasked"
    return {name: test for name, test in vars(module).items() if name.startswith("test_")}, module.binder


def test_third_party_method_is_discovered_and_passes_the_conformance_suite(
    install: Any, tiny: Any, prompts: Any
) -> None:
    assert "twice" not in method_names()
    method = install(THIRD_PARTY)()
    assert "twice" in method_names()
    suite, binder = conformance()
    assert len(suite) >= 7
    for test in suite.values():
        test(tiny, prompts, method, binder(tiny, prompts))


@pytest.mark.parametrize(
    ("wrong", "fails"),
    [
        (
            "(choice_A == before_A).float() * (choice_A.unique().numel() > 1)",
            "test_batched_answers_equal_single_row_answers",
        ),
        ("(choice_A == before_A) + torch.rand(len(choice_A)).round()", "test_same_seed_gives_the_same_trace"),
        ("(choice_A == before_A).float() * torch.nan", "test_minimal_threshold_exits_at_the_first_allowed_block"),
        ("(view.model.logits(view.hidden_AD).argmax(-1) == before_A).float()", "test_declared_cost"),
    ],
)
def test_broken_method_fails_the_conformance_suite(
    install: Any, tiny: Any, prompts: Any, wrong: str, fails: str
) -> None:
    method = install(THIRD_PARTY.replace("(choice_A == before_A).float()", wrong))()
    suite, binder = conformance()
    (test,) = [test for name, test in suite.items() if name.startswith(fails)]
    with pytest.raises((AssertionError, ArithmeticError)):
        test(tiny, prompts, method, binder(tiny, prompts))


def test_method_reports_its_distribution_and_version(install: Any) -> None:
    assert distribution(install(THIRD_PARTY)) == ("exit-twice", "1.0")
    assert distribution(baseline_method()) == ("exitbench", exitbench.__version__)


def test_method_outside_any_distribution_reports_none(tmp_path: Path) -> None:
    assert distribution(load(tmp_path / "loose", THIRD_PARTY)) == (None, None)


def test_exactly_one_baseline_method_exists_and_it_is_greedy() -> None:
    assert [name for name in method_names() if get_method(name).is_baseline] == [baseline_method().name]
    assert baseline_method()().params() == {"temperature": 0.0}


@pytest.mark.parametrize("name", method_names())
def test_every_method_documents_its_source_and_parameters(name: str) -> None:
    cls = get_method(name)
    assert cls.source
    assert cls.__doc__
    assert all(field.metadata["doc"] for field in dataclasses.fields(cls))
    assert cls.from_params(cls().params()) == cls()


def test_unknown_method_error_suggests_a_similar_name() -> None:
    with pytest.raises(
        UserError, match=r"^s\.toml: unknown method 'calm_softmax'\. Did you mean 'calm-softmax'\? Allowed: "
    ):
        get_method("calm_softmax", location="s.toml")


def test_duplicate_method_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))

    class Impostor(get_method("static")):  # type: ignore[misc]
        name = "static"

    with pytest.raises(ValueError, match="two methods are named 'static'"):
        register(Impostor)


def test_third_party_method_revision_depends_only_on_its_code(tmp_path: Path) -> None:
    before = revision(load(tmp_path / "1", THIRD_PARTY))
    assert before == revision(load(tmp_path / "2", THIRD_PARTY))
    for number, (old, new) in enumerate([("Constant(0.5)", "Constant(0.7)"), ("name = ", "version = 2; name = ")], 3):
        assert before != revision(load(tmp_path / str(number), THIRD_PARTY.replace(old, new)))


@pytest.mark.parametrize("change", ["\n# a remark", "\n\n\n", '\n"""What follows."""\n'])
def test_comments_docstrings_and_layout_do_not_change_the_revision(tmp_path: Path, change: str) -> None:
    assert revision(load(tmp_path / "1", THIRD_PARTY)) == revision(load(tmp_path / "2", THIRD_PARTY + change))


def test_revision_of_a_bundled_method_is_its_declared_version() -> None:
    assert all(revision(cls) == str(cls.version) for cls in map(get_method, method_names()))


def test_method_revision_covers_imported_modules_of_the_same_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)

    def revised(**texts: str) -> str:
        for name, text in {"__init__": "", "parts": "LEVEL = 0.5", "other": "", **texts}.items():
            (tmp_path / "acme" / f"{name}.py").write_text(text)
        for name in [name for name in sys.modules if name.partition(".")[0] == "acme"]:
            del sys.modules[name]
        provenance._imported.cache_clear()
        importlib.invalidate_caches()
        return revision(importlib.import_module("acme.twice").Twice)

    (tmp_path / "acme").mkdir()
    twice = "from acme.parts import LEVEL\n" + THIRD_PARTY.replace("Constant(0.5)", "Constant(LEVEL)")
    before = revised(twice=twice)
    assert revised(twice=twice, other="LEVEL = 1") == before
    assert revised(twice=twice, parts="LEVEL = 0.25") != before


METHODS = Path(registry.__file__).parent
BASE = sorted(path.relative_to(METHODS).as_posix() for path in (METHODS / "base").glob("*.py"))


@pytest.mark.parametrize(
    ("changed", "is_covered"),
    [
        ("calm_softmax.py", True),
        ("gates.py", True),
        ("thresholds.py", True),
        *((path, True) for path in BASE),
        ("oracle.py", False),
        ("registry.py", False),
        ("__init__.py", False),
    ],
)
@pytest.mark.parametrize("addition", [b"\nADDED = 1\n", b"\n# a remark\n"])
def test_conformance_cache_key_covers_exactly_the_syntax_of_the_methods_modules(
    monkeypatch: pytest.MonkeyPatch, changed: str, is_covered: bool, addition: bytes
) -> None:
    cls = get_method("calm-softmax")
    before = syntax_sha256.__wrapped__(cls)
    change(monkeypatch, changed, addition)
    assert (syntax_sha256.__wrapped__(cls) != before) == (is_covered and b"#" not in addition)


@pytest.mark.parametrize("changed", BASE)
def test_third_party_conformance_cache_key_covers_every_base_class_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    cls = load(tmp_path / "1", THIRD_PARTY)
    before = syntax_sha256.__wrapped__(cls)
    change(monkeypatch, changed, b"\nADDED = 1\n")
    assert syntax_sha256.__wrapped__(cls) != before


def change(monkeypatch: pytest.MonkeyPatch, name: str, addition: bytes) -> None:
    """Make a file of the methods' folder appear changed: reading it returns additional bytes."""
    read, changed = Path.read_bytes, METHODS / name
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + (addition if path == changed else b""))
