"""The hosted engine runs transformers families block by block, verifies them while loading, and refuses deviations.

Every family is tested by `nox -s models`. These tests use a few families with very different forward passes.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from checkpoint_edits import edit_config, edit_tensors
from prompt_decoding import full_depth_tokens
from transformers.utils import logging

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints import hosted_loading
from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.engine.hosted.cache import HostedCache
from exitbench.harness.engine.hosted.calls import SparedLinear
from exitbench.harness.engine.hosted.model import HostedTransformer
from exitbench.harness.engine.hosted.read_out import ReadOut
from exitbench.harness.engine.model.cost import TokenPlace
from exitbench.methods.registry import get_method

FOLDER = Path(__file__).parents[2] / "models"
MODULES = ("tiny", "checks", "run", "families_page")
FAMILIES = {
    "bloom": "causal",  # alibi, with an entry for each row and head
    "gemma2": "causal",  # sliding windows, norms after sub-layers, soft caps
    "mixtral": "causal",  # experts
    "opt": "causal",  # learned positions from the mask
    "bart": "seq2seq",  # no final norm, a bias after the head
    "t5": "seq2seq",  # position bias handed on from block 1
}
THOROUGHLY = ("gemma2",)


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    """Yield the modules that `nox -s models` runs, imported from `tests/models`, which is not a package."""
    sys.path.insert(0, str(FOLDER))
    yield {name: __import__(name) for name in MODULES}
    sys.path.remove(str(FOLDER))
    for name in MODULES:
        del sys.modules[name]


@pytest.fixture(scope="module")
def make_twin(scripts: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Return a function that builds a tiny model of a family, once, in transformers and in the hosted engine."""
    twins: dict[str, Any] = {}

    def make(name: str) -> Any:
        if name not in twins:
            tiny = scripts["tiny"]
            family = next(f for f in tiny.families() if (f.name, f.kind) == (name, FAMILIES[name]))
            with torch.no_grad():
                twins[name] = scripts["checks"].load(tiny.tiny_model(family), tmp_path_factory.mktemp(name))
        return twins[name]

    return make


@pytest.mark.sampled(2)
@pytest.mark.parametrize("check", ["full_depth_is_generate", "mixed_exits_are_rows_alone"])
@pytest.mark.parametrize("family", FAMILIES)
def test_family_passes_the_full_depth_and_mixed_exit_checks(
    scripts: Any, make_twin: Any, family: str, check: str
) -> None:
    getattr(scripts["checks"], check)(make_twin(family))


@pytest.mark.parametrize("family", THOROUGHLY)
def test_family_passes_the_remaining_five_checks(scripts: Any, make_twin: Any, family: str) -> None:
    others = scripts["checks"].CHECKS[2:]
    assert len(others) == 5
    for check in others:
        check(make_twin(family))


@pytest.mark.parametrize(("family", "way"), [("gemma2", "within"), ("mixtral", "direct"), ("bart", "within")])
def test_read_out_uses_the_fastest_correct_way(make_twin: Any, family: str, way: str) -> None:
    """Logits are computed by final norm and LM head alone (`direct`), unless the model caps them or adds a bias."""
    model = make_twin(family).model
    states = torch.randn(5, model.d_model, generator=torch.Generator().manual_seed(0))
    assert model.read_out.way == way
    torch.testing.assert_close(model.logits(states), model.read_out(states, "reference"))
    torch.testing.assert_close(model.logits_of_normed(model.final_normed(states)), model.logits(states))
    by_head = model.read_out(states, "direct")
    assert torch.allclose(by_head, model.logits(states)) == (way == "direct")


def test_logits_of_selected_head_rows_equal_those_of_the_whole_head(make_twin: Any) -> None:
    model, draw = make_twin("mixtral").model, torch.Generator().manual_seed(0)
    states = torch.randn(3, model.d_model, generator=draw)
    ids = torch.stack([torch.randperm(model.vocab_size, generator=draw)[:7] for _ in range(3)])
    result = model.logits_of(states, model.head_weights(ids))
    torch.testing.assert_close(result, model.logits(states).gather(1, ids))


def test_pruned_head_is_refused_if_the_model_modifies_its_lm_head_logits(make_twin: Any) -> None:
    pruned = get_method("max-prob").from_params({"head": "pruned-fixed"})
    assert make_twin("mixtral").model.why_not(pruned.parts(4), 2) is None
    assert "single rows of the LM head" in make_twin("gemma2").model.why_not(pruned.parts(4), 2)


@pytest.mark.parametrize(
    "name", ["llama", "gpt2", "t5", "mistral", "qwen3", "mt5", "umt5", "phi3-partly-rotated", "smollm3", "olmo2"]
)
def test_both_engines_give_the_same_answers_and_costs(twin: Any, prompts: Any, name: str) -> None:
    """The hosted engine counts the cost that the lean engine computes analytically."""
    lean, hosted = twin(name).checkpoint, twin(name).hosted
    assert (lean.engine, hosted.engine) == ("lean", "hosted")
    assert (hosted.eos_ids, hosted.start_id, hosted.kind) == (lean.eos_ids, lean.start_id, lean.kind)
    assert full_depth_tokens(lean, prompts[:12], 8) == full_depth_tokens(hosted, prompts[:12], 8)
    place = TokenPlace(context=23, source=9 if lean.kind == "seq2seq" else 0)
    ours, theirs = lean.model.block_cost(place), hosted.model.block_cost(place)
    assert theirs.matmul_flops == pytest.approx(ours.matmul_flops)
    assert theirs.read_numel == pytest.approx(ours.read_numel)
    assert hosted.model.kv_width == lean.model.kv_width


@pytest.mark.parametrize(
    ("name", "spared"), [("llama", {"self_attn.q_proj"}), ("t5", {"layer.0.SelfAttention.q"}), ("gpt2", set())]
)
def test_skipped_blocks_run_only_projections_that_keys_and_values_need(twin: Any, name: str, spared: set[str]) -> None:
    """A skipped block leaves out the query projection, unless one projection computes queries, keys and values (GPT-2).

    Block 1 is never skipped, so that all its projections run.
    """
    blocks = twin(name).hosted.model.stack.blocks
    result = [{n for n, m in block.named_modules() if isinstance(m.forward, SparedLinear)} for block in blocks]
    assert result == [set()] + [spared] * (len(blocks) - 1)


# ------------------------------------------------------------------------------------------------- what is refused


def load_error(folder: Path) -> str:
    """Return the error message with which the hosted engine refuses a folder; check that it is short."""
    with pytest.raises(UserError) as raised:
        load_checkpoint(folder, engine="hosted")
    assert len(str(raised.value)) < 1000
    return str(raised.value)


@pytest.fixture
def folder(make_twin: Any, tmp_path: Path) -> Path:
    """Return a folder with a copy of a checkpoint, which a test may change."""
    make_twin("opt").reference.save_pretrained(tmp_path)
    return tmp_path


def test_off_by_one_positions_are_detected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = HostedCache.positions
    monkeypatch.setattr(HostedCache, "positions", lambda cache, *ends: right(cache, *ends) + 1)
    assert "the state after block 1 (layers.0) differs by" in (message := load_error(folder))
    assert "model_type 'opt' cannot be run block by block" in message


def test_wrongly_filled_keys_and_values_are_detected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = HostedTransformer._store

    def wrong(model: Any, block: int, states: Any, *rest: Any) -> None:
        right(model, block, states.flip(-1) if block == 3 else states, *rest)

    monkeypatch.setattr(HostedTransformer, "_store", wrong)
    assert re.search(r"(keys|values) of block 3 filled from a state differs by", load_error(folder))


def test_incorrect_read_out_is_not_used(make_twin: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = make_twin("opt").model
    states = torch.randn(4, right.d_model, generator=torch.Generator().manual_seed(0))
    expected = right.logits(states)
    monkeypatch.setattr(ReadOut, "head_input", lambda read_out, states: states)  # as if there were no final norm
    model = load_checkpoint(folder).model
    assert model.read_out.way == "reference"
    torch.testing.assert_close(model.logits(states), expected)
    with pytest.raises(UserError, match="cannot be divided there"):
        model.logits_of_normed(states)


def test_family_that_cannot_be_split_into_blocks_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(lm: Any) -> None:
        raise AttributeError("no such part")

    monkeypatch.setattr(hosted_loading, "find_stack", odd)
    says = "model_type 'opt' cannot be run block by block: AttributeError while its blocks were tried (no such part)."
    assert load_error(folder) == says


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"rope": [{"num_layers": 10**6}]}, "num_layers is 1000000; allowed: at most 10000"),
        ({"vocab_size": 2**41}, "vocab_size is 2199023255552; allowed: at most 1099511627776"),
        (
            {"rope": functools.reduce(lambda inner, _: {"a": [inner]}, range(300), 1)},
            "a is nested too deep; allowed: 20",
        ),
    ],
    ids=["list", "number", "deep"],
)
def test_config_numbers_are_bounded_at_any_nesting_depth(folder: Path, values: Any, says: str) -> None:
    edit_config(folder, **values)
    assert says in load_error(folder)


def test_recurrent_blocks_are_refused(scripts: Any, tmp_path: Path) -> None:
    tiny = scripts["tiny"]
    family = next(family for family in tiny.families() if family.name == "mamba")
    tiny.tiny_model(family).save_pretrained(tmp_path)
    assert "model_type 'mamba' cannot be run block by block" in load_error(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda t: t.pop("model.decoder.layers.1.fc1.weight"),
            "1 tensor is missing from the checkpoint: model.decoder",
        ),
        (lambda t: t.update(odd=torch.ones(2)), "1 tensor is not part of the model that config.json describes: odd"),
        (
            lambda t: t.update({"model.decoder.layers.1.fc1.weight": torch.ones(3, 32)}),
            "layers.1.fc1.weight' has shape [3, 32], config.json requires [48, 32]",
        ),
    ],
    ids=["missing", "unexpected", "misshapen"],
)
def test_missing_unexpected_and_misshapen_tensors_are_refused(folder: Path, change: Any, says: str) -> None:
    edit_tensors(folder, change)
    assert says in load_error(folder)


def test_code_bundled_with_a_checkpoint_never_runs(folder: Path, tmp_path: Path) -> None:
    attention = dict.fromkeys(("attn_implementation", "_attn_implementation"), "kernels-community/evil")
    edit_config(folder, auto_map={"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}, **attention)
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert load_checkpoint(folder).engine == "hosted"
    assert not (tmp_path / "ran").exists()


def test_lean_engine_lists_its_families_when_it_refuses_one(folder: Path) -> None:
    with pytest.raises(
        UserError, match=r"the lean engine does not know model_type 'opt'. .* gpt2, llama, mistral, mt5, "
    ):
        load_checkpoint(folder, engine="lean")


def test_stored_position_ids_are_ignored_only_if_they_are_a_range(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({"model.position_ids": torch.arange(8)[None]}))
    load_checkpoint(folder)
    edit_tensors(folder, lambda tensors: tensors.update({"model.position_ids": torch.ones(1, 8)}))
    assert "1 tensor is not part of the model" in load_error(folder)


def test_loading_prints_no_progress_bars(twin: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """The progress bars of transformers are hidden during loading, and stay enabled for the user afterwards."""
    logging.enable_progress_bar()
    load_checkpoint(twin("t5").folder, engine="hosted")
    assert capfd.readouterr() == ("", "")
    assert logging.is_progress_bar_enabled()
