"""`nox -s parity` finds every kind of difference and says where it is; it refuses what is no checkout of the code."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.methods.registry import get_method

FOLDER = Path(__file__).parent / "parity"
MODULES = ("comparing", "configurations", "ours", "run")


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    """Yield the modules of the parity scripts by name. They are in one folder and form no package."""
    sys.path.insert(0, str(FOLDER))
    yield {name: __import__(name) for name in MODULES}
    sys.path.remove(str(FOLDER))
    for name in MODULES:
        del sys.modules[name]


def changed(scripts: Any, **changes: Any) -> Any:
    """Return the comparison of two equal answers, the second of which is changed on one side."""
    gate_scores = [[(1, 0.25), (2, 0.75)], [(1, 0.5)], [(1, 0.125), (2, 0.25)]]
    one = scripts["comparing"].Answer("squad 0 ab12", [7, 9, 1], [2, 1, 8], gate_scores, 2)
    return scripts["comparing"].compared([one, one], [one, dataclasses.replace(one, **changes)])


def test_answers_that_differ_only_by_rounding_are_equal(scripts: Any) -> None:
    same = changed(scripts, gate_scores=[[(1, 0.25), (2, 0.75001)], [(1, 0.5)], [(1, 0.125), (2, 0.25)]])
    assert same.equal
    assert (same.documents, same.identical, same.tokens, same.equal_tokens, same.equal_exits) == (2, 2, [6, 6], 6, 6)
    assert (same.scores, same.rolled_back, same.depth, same.first) == (10, [4, 4], [22, 22], "")
    assert same.largest == pytest.approx(1e-5)


@pytest.mark.parametrize(
    ("changes", "says", "tokens", "exits"),
    [
        ({"tokens": [7, 8, 1]}, "token 2: 9 there, 8 here", 5, 5),
        (
            {"tokens": [7, 9], "exits": [2, 1], "gate_scores": [[(1, 0.25), (2, 0.75)], [(1, 0.5)]]},
            "3 tokens there, 2",
            5,
            5,
        ),
        ({"exits": [2, 2, 8]}, "token 2: leaves after block 1 there, 2 here", 6, 5),
        ({"rolled_back": 3}, "2 tokens undone there, 3 here", 6, 6),
        (
            {"gate_scores": [[(1, 0.25), (2, 0.75)], [(1, 0.51)], []]},
            "token 2: scores 0.500000 at block 1 there, 0.51",
            6,
            6,
        ),
        (
            {"gate_scores": [[(1, 0.25), (2, float("nan"))], [], []]},
            "token 1: scores 0.750000 at block 2 there, nan",
            6,
            6,
        ),
        ({"gate_scores": [[(1, 0.25)], [], []]}, "token 1: asked at blocks [1, 2] there, [1] here", 6, 6),
        ({"gate_scores": [[(2, 0.25)], [], []]}, "token 1: asked at blocks [1, 2] there, [2] here", 6, 6),
    ],
)
def test_artificial_difference_is_found_and_located(
    scripts: Any, changes: dict[str, Any], says: str, tokens: int, exits: int
) -> None:
    other = changed(scripts, **changes)
    assert not other.equal
    assert other.first.startswith(f"document squad 0 ab12: {says}")
    assert (other.documents, other.identical, other.equal_tokens, other.equal_exits) == (2, 1, tokens, exits)


def test_mismatched_documents_and_incomplete_answers_cannot_be_compared(scripts: Any) -> None:
    for changes in ({"key": "squad 0 cd34"}, {"exits": [2, 1]}):
        with pytest.raises(ValueError, match="squad 0"):
            changed(scripts, **changes)


def test_thresholds_are_compared_individually(scripts: Any) -> None:
    differing = scripts["comparing"].differing_thresholds
    assert differing([0.3, 0.9], [0.3, 0.9 + 1e-12]) == ""
    assert differing([0.3, 0.9, 0.5], [0.3, 0.8333, float("nan")]) == "threshold 2: 0.9000 there, 0.8333 here"
    assert differing([0.5], [float("nan")]).startswith("threshold 1")


def test_differing_setting_is_an_error_unless_expected(scripts: Any) -> None:
    known = scripts["configurations"].configurations()
    equal, other = changed(scripts), changed(scripts, exits=[2, 2, 8])
    for asked in (next(one for one in known if not one.differs), next(one for one in known if one.differs)):
        assert not scripts["run"].Row(asked, equal).is_wrong
        assert scripts["run"].Row(asked, other).is_wrong == (not asked.differs)


def test_every_parity_setting_has_a_valid_method_and_parameters(scripts: Any) -> None:
    known = scripts["configurations"].configurations()
    assert len({asked.name for asked in known}) == len(known) > 80
    for asked in known:
        get_method(asked.method).from_params(dict(asked.params)).check(8)


def test_recorded_scores_belong_to_the_final_tokens_after_rollbacks(scripts: Any) -> None:
    """In answers with undone drafts, the recorded score of each token is the one that decided about it."""
    ours, configurations = scripts["ours"], scripts["configurations"].configurations()
    asked = next(one for one in configurations if one.name.startswith("rollback 1/vanilla"))
    docs = ours.documents(asked.model, every=8, most=6)
    made = list(ours.answers(asked, docs, {}, [None] * len(docs)))
    assert [answer.key for answer in made] == [document.key for document in docs]
    assert any(answer.rolled_back for answer in made)
    n_blocks = load_checkpoint(ours.folder(asked.model)).model.n_blocks
    for answer in made:
        for layer, ((block, score),) in zip(answer.exits, answer.gate_scores, strict=True):
            assert block == asked.params["exit_layer"]
            assert layer in (block, n_blocks)
            assert score > asked.params["threshold"] or layer == n_blocks


def test_folder_that_is_not_a_checkout_of_the_commit_is_refused(scripts: Any, tmp_path: Path) -> None:
    checkout = scripts["run"]._checkout
    with pytest.raises(UserError, match=r"^--free is to name a checkout of .* at 3e503c5; these settings need it"):
        checkout("free", None)
    with pytest.raises(UserError, match=r"^--mee .* at d2f00f5, but .* has no src/models/deploying_t5.py"):
        checkout("mee", tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "deploying_t5.py").write_text("")
    with pytest.raises(UserError, match=r"^--free .* not at fatal: not a git repository"):
        checkout("free", tmp_path)
    who = ["-c", "user.name=a", "-c", "user.email=a"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "other"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    with pytest.raises(UserError, match=r"^--free .* not at [0-9a-f]{7}\. Put it there: git -C .* checkout 3e503c5"):
        checkout("free", tmp_path)
