"""Inspection of a classifier's folder, and the reasons why a classifier cannot be run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from exitbench.harness.cli.main import main
from exitbench.harness.engine.checkpoints.exit_head_files import new_off_ramps, save_off_ramps
from exitbench.harness.engine.checkpoints.files import OFF_RAMPS_FILE
from exitbench.harness.inspecting.encoders import inspect_classifier


@pytest.fixture
def three(classifier_folder: Callable[..., Path], tmp_path: Path) -> Path:
    """Return the folder of a classifier with three labels, which a test may change."""
    return Path(shutil.copytree(classifier_folder(("Bad", "So-so", "Good")), tmp_path / "three"))


def test_report_of_a_bundled_classifier_fits_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "builtin-encoder-joint"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 48 and max(map(len, lines[1:])) <= 100
    assert "answers     one of negative, positive" in lines
    assert "read out    all 6 blocks by the model's own classifier, 4,224 weights" in lines
    said = " ".join(" ".join(lines).split())
    assert "Methods that run on it: berxit (after a fit)," in said
    assert "free: an encoder keeps no keys and values" in said
    assert "adainfer, calm-classifier, mee-lstm, mee-mlp3: it is fitted on the model's own head" in said


def test_off_ramps_are_listed_in_text_and_json(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = torch.Generator().manual_seed(1)
    save_off_ramps(three / OFF_RAMPS_FILE, "linear", new_off_ramps("linear", (1, 3), 16, 3, draw))
    assert main(["inspect", str(three)]) == 0
    assert "off-ramps (linear, 102 parameters) after blocks 1, 3" in " ".join(capsys.readouterr().out.split())
    assert main(["inspect", str(three), "--format", "json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["shape"]["off_ramps"] == {"kind": "linear", "blocks": [1, 3], "numel": 102}
    assert (output["shape"]["blocks"], output["shape"]["labels"]) == (4, ["Bad", "So-so", "Good"])


def test_off_ramps_with_attention_do_not_change_the_width(three: Path) -> None:
    draw = torch.Generator().manual_seed(1)
    save_off_ramps(three / OFF_RAMPS_FILE, "attention", new_off_ramps("attention", (1,), 16, 3, draw))
    shape = inspect_classifier(three).shape
    assert shape is not None and shape.width == 16 and shape.off_ramps is not None
    assert shape.off_ramps.numel == 128 * 17 + 5 * 128 * 129 + 3 * 129


def test_regression_model_refuses_gates_on_label_probabilities(classifier_folder: Callable[..., Path]) -> None:
    methods = {one.method: one.why_not for one in inspect_classifier(classifier_folder(("LABEL_0",))).methods}
    assert methods["pabee"] is None and methods["static"] is None
    assert methods["max-prob"] is not None and "regression" in methods["max-prob"]


def test_reasons_why_a_classifier_cannot_be_run_are_listed(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (three / "tokenizer.json").unlink()
    draw = torch.Generator().manual_seed(1)
    save_off_ramps(three / OFF_RAMPS_FILE, "linear", new_off_ramps("linear", (1, 3), 8, 3, draw))
    assert main(["inspect", str(three)]) == 1
    output = capsys.readouterr().out
    assert "It cannot be run:" in output and OFF_RAMPS_FILE in output and "tokenizer" in output
