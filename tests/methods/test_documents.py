"""Documents on methods, references and terms agree with the code."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import exitbench
from exitbench.harness.planning.suite import Suite, load_suite
from exitbench.methods import kv_policies
from exitbench.methods.base import KVPolicy, Method
from exitbench.methods.gated import Gating, Skipping, SoftmaxGating
from exitbench.methods.registry import get_method, method_names

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "methods"
INDEX = (FOLDER / "index.md").read_text(encoding="utf-8")
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md") if path.stem != "index"}
REFERENCES = (ROOT / "docs" / "references.md").read_text(encoding="utf-8")
OURS = [name for name in method_names() if get_method(name).__module__.startswith("exitbench.methods.")]
CONTROLS = {"full", "random"}
"""Methods that are of no paper."""
NO_REFERENCES = {"JSD"}
"""Words in capitals in the source of a method that name no paper."""
SUITE = """
schema = 1
name = "example"
seed = 1

[models]
vanilla = { recipe = "builtin-vanilla" }
weighted = { recipe = "builtin-weighted" }
free = { recipe = "builtin-free" }
exit-heads = { recipe = "builtin-exit-heads" }
layer-skip = { recipe = "builtin-layer-skip" }

[tasks.squad]
task = "squad"
source = "builtin"

"""


def sections(text: str) -> dict[str, str]:
    """Return the text under each heading, up to the next heading of any level."""
    parts = re.split(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def anchor(heading: str) -> str:
    """Return the anchor that GitHub generates for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def rows(text: str) -> list[str]:
    """Return the names in the first column of the tables."""
    return re.findall(r"^\| `([^`]+)` \|", text, flags=re.MULTILINE)


def examples(text: str) -> list[str]:
    return re.findall(r"^```toml\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def loaded(example: str, folder: Path) -> Suite:
    path = folder / "example.toml"
    path.write_text(SUITE + example, encoding="utf-8")
    return load_suite(path)


@pytest.fixture(scope="module")
def document() -> ModuleType:
    spec = importlib.util.spec_from_file_location("methods_document", Path(__file__).with_name("document.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_method_has_a_page_and_every_page_a_method() -> None:
    assert sorted(PAGES) == OURS
    for name, page in PAGES.items():
        assert page.startswith(f"# {name}\n"), name
        assert re.findall(r"<!-- parameters: (.+) -->", page) == [name]
    assert re.findall(r"<!-- parameters: (.+) -->", INDEX) == ["shared"]


def test_method_table_lists_every_method_once() -> None:
    linked = re.findall(r"^\| \[([a-z0-9-]+)\]\(([a-z0-9-]+)\.md\) \| \S", sections(INDEX)["All methods"], re.MULTILINE)
    assert sorted(linked) == [(name, name) for name in OURS]


def test_every_method_page_states_output_source_and_cost() -> None:
    for name, page in PAGES.items():
        assert all(f"- **{what}:**" in page for what in ("Emits", "Source", "Cost")), name


def test_kv_policy_table_lists_exactly_the_existing_policies() -> None:
    known = [thing for thing in vars(kv_policies).values() if isinstance(thing, type) and issubclass(thing, KVPolicy)]
    names = {cls.name for cls in known if hasattr(cls, "name")}
    assert names >= set(kv_policies.KV_POLICIES) | set(kv_policies.ROLLBACKS)
    assert sorted(rows(sections(INDEX)["KV policies"])) == sorted(names)


def choices(method: type[Method], parameter: str) -> list[str]:
    field = next(field for field in dataclasses.fields(method) if field.name == parameter)
    return sorted(field.metadata["choices"])


def test_head_table_lists_exactly_the_existing_heads() -> None:
    section = sections(INDEX)["LM heads and exit heads"]
    assert sorted(rows(section)) == choices(SoftmaxGating, "head")
    assert "\n| exit heads |" in section


def test_rule_decay_and_loss_tables_list_exactly_the_allowed_values() -> None:
    softmax, text = get_method("calm-softmax"), sections(INDEX)
    rules = sorted(["rule", "decay", *choices(softmax, "rule"), *choices(softmax, "decay")])
    assert sorted(rows(text["Threshold rules and decays"])) == rules
    assert sorted(rows(text["Trained gates"])) == sorted(["loss", *choices(get_method("mee-lstm"), "loss")])


def test_every_skipping_method_accepts_all_applicable_kv_policies() -> None:
    for name in OURS:
        if issubclass(get_method(name), Skipping):
            has_gate = issubclass(get_method(name), Gating)
            known = kv_policies.GATE_POLICIES if has_gate else kv_policies.KV_POLICIES
            assert choices(get_method(name), "kv_policy") == sorted(known), name


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.md")), ids=lambda path: path.stem)
def test_parameter_tables_are_up_to_date_with_the_generator(path: Path, document: ModuleType) -> None:
    text = path.read_text(encoding="utf-8")
    assert document.rewritten(text) == text, "python tests/methods/document.py"


def test_every_parameter_is_documented_as_shared_or_as_the_methods_own(document: ModuleType) -> None:
    shared = rows(document.shared_table())
    assert sorted(shared) == sorted(document.shared_rows())
    for name in OURS:
        table = document.own_table(get_method(name))
        same = re.findall(r"`(\w+)`", re.sub(r"^\|.*", "", table, flags=re.MULTILINE))
        assert set(same) <= set(shared), name
        assert sorted([*same, *rows(table)]) == sorted(field.name for field in dataclasses.fields(get_method(name)))


def test_generated_table_lists_parameters_with_their_defaults_and_ranges(document: ModuleType) -> None:
    table = document.own_table(get_method("heads"))
    assert rows(table) == ["threshold", "levels", "exit_blocks", "confidence", "temperature"]
    assert '| `confidence` | `"breaking-ties"` | `breaking-ties`, `entropy`,' in table
    assert "| `exit_blocks` | `[]` | list: whole number from 1 |" in table
    assert (
        "| `epsilon` | `0.95` | number from 0 to 1 | required agreement, for rule epsilon |" in document.shared_table()
    )


def test_parameter_that_differs_from_the_shared_one_is_in_the_methods_table(document: ModuleType) -> None:
    assert rows(document.own_table(get_method("mee-mlp3"))) == ["min_exit", "decay"]
    assert rows(document.own_table(get_method("entropy"))) == ["threshold"]
    assert document.own_table(get_method("max-prob")).endswith("No parameters of its own.\n")


def test_every_example_is_a_valid_suite_sweep_or_calibration(tmp_path: Path) -> None:
    written = [example for text in (INDEX, *PAGES.values()) for example in examples(text)]
    assert written
    for example in written:
        suite = loaded(example, tmp_path)
        assert suite.sweeps or suite.calibrations
        for entry in (*suite.sweeps, *suite.calibrations):
            for point in entry.points:
                get_method(point.method.name).from_params(dict(point.params)).check(8)


def test_every_method_page_has_one_example_of_that_method(tmp_path: Path) -> None:
    for name, page in PAGES.items():
        (example,) = examples(page)
        assert {sweep.points[0].method.name for sweep in loaded(example, tmp_path).sweeps} == {name}


def test_every_method_page_links_to_the_references_of_its_source() -> None:
    papers = list(sections(REFERENCES))
    for name in OURS:
        source = get_method(name).source
        named = [paper for paper in papers if re.search(rf"\b{re.escape(paper)}\b", source, flags=re.IGNORECASE)]
        in_capitals = set(re.findall(r"\b[A-Z]\w*[A-Z]\w*\b", source)) - NO_REFERENCES
        assert in_capitals <= set(named), f"{name}: {source}"
        assert bool(named) != (name in CONTROLS), f"{name}: {source}"
        linked = set(re.findall(r"\(\.\./references\.md#([^)]+)\)", PAGES[name]))
        assert set(map(anchor, named)) <= linked, f"{name}: {source}"


def test_methods_listed_by_a_reference_mention_it_on_their_pages() -> None:
    for paper, text in sections(REFERENCES).items():
        for name in set(re.findall(r"methods/([\w-]+)\.md", text)) & set(OURS):
            assert re.search(rf"\b{re.escape(paper)}\b", PAGES[name], re.IGNORECASE), (paper, name)


def test_figures_and_tables_named_in_references_exist() -> None:
    files = (path for folder in ("figures", "tables") for path in (ROOT / "reports" / folder).rglob("*.sql"))
    stems = {path.stem for path in files if path.parent.name != "shared"}
    named = set(re.findall(r"`((?:mee|prune|natcap|heads|explain)_\w+)`", REFERENCES))
    assert named and named <= stems, named - stems
    papers = {name for name in stems if re.match(r"(mee|prune|natcap|heads|explain)_", name)}
    assert named == papers, papers ^ named


def test_reference_commits_equal_those_in_parity_md() -> None:
    parity = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")
    compared = dict(re.findall(r"\b(FREE|MEE|PRUNE) ([0-9a-f]{7})\b", parity))
    assert set(compared) == {"FREE", "MEE", "PRUNE"}
    for paper, commit in compared.items():
        assert f"commit {commit}" in sections(REFERENCES)[paper], paper


def test_glossary_defines_each_term_once() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = [
        word for result in re.findall(r"^- \*\*(.+?)\*\*:", glossary, flags=re.MULTILINE) for word in result.split(", ")
    ]
    assert len(terms) == len(set(terms))
    entries = re.findall(r"^- .*", glossary, flags=re.MULTILINE)
    assert len(entries) == len(re.findall(r"^- \*\*.+?\*\*: \S", glossary, flags=re.MULTILINE))


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_citation_on_each_page_has_the_current_version(page: str) -> None:
    (entry,) = re.findall(r"```bibtex\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert re.findall(r"^  version = \{(.+)\},$", entry, re.MULTILINE) == [exitbench.__version__]
    assert f"year    = {{{_citation()['date-released'][:4]}}}" in entry


def _citation() -> dict[str, str]:
    pairs = re.findall(r"^([a-z-]+):(?: (.*))?$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    return {key: value.strip('"') for key, value in pairs}


def test_citation_file_has_the_current_version() -> None:
    citation = _citation()
    assert citation["version"] == exitbench.__version__
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert citation["title"] == "ExitBench"
    assert f'license = "{citation["license"]}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert {"message", "authors", "abstract"} <= set(citation)
