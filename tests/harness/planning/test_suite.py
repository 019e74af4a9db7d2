"""Reading suites: their expansion, and that every mistake is reported with file, line and key."""

from collections.abc import Callable
from pathlib import Path

import pytest

from exitbench.errors import UserError
from exitbench.harness.planning.suite import load_suite, suite_names

Writer = Callable[..., Path]

PROBED = '[[sweep]]\nmethod = "full"\nkinds = ["probe"]\n'
SWEEP = """\
[[sweep]]
method = "calm-softmax"
grid = { decay = ["code", "paper"] }
query = { threshold = [0.3, 0.7] }
"""


def line_of(path: Path, text: str) -> int:
    """Return the number, from 1, of the first line that contains the text."""
    return next(n for n, line in enumerate(path.read_text().splitlines(), start=1) if text in line)


def complaint(path: Path) -> str:
    """Return the error message raised by reading a suite."""
    with pytest.raises(UserError) as caught:
        load_suite(str(path))
    return str(caught.value)


def test_a_sweep_is_the_product_of_grid_and_query_with_query_innermost(write_suite: Writer) -> None:
    (sweep,) = load_suite(str(write_suite(SWEEP))).sweeps
    assert [point.label for point in sweep.points] == [
        "calm-softmax:decay=code,threshold=0.3",
        "calm-softmax:decay=code,threshold=0.7",
        "calm-softmax:decay=paper,threshold=0.3",
        "calm-softmax:decay=paper,threshold=0.7",
    ]


def test_exclude_removes_every_matching_point(write_suite: Writer) -> None:
    (sweep,) = load_suite(str(write_suite(SWEEP + 'exclude = [{ decay = "paper", threshold = 0.3 }]\n'))).sweeps
    assert [point.label for point in sweep.points] == [
        "calm-softmax:decay=code,threshold=0.3",
        "calm-softmax:decay=code,threshold=0.7",
        "calm-softmax:decay=paper,threshold=0.7",
    ]


def test_models_tasks_kinds_and_token_budget_have_defaults(write_suite: Writer) -> None:
    suite = load_suite(str(write_suite("[[sweep]]\nmethod = 'static'\n")))
    (sweep,) = suite.sweeps
    assert (sweep.models, sweep.tasks, sweep.kinds) == (("tiny",), ("lines",), ("quality", "timing"))
    assert (suite.dtype, suite.device, suite.batch_size, suite.timing.documents) == ("float32", "cpu", 1, 20)
    assert sweep.points[0].params == ()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ('[[sweep]]\nmethod = "calm-softmx"\n', "unknown method 'calm-softmx'. Did you mean 'calm-softmax'?"),
        ('[[sweep]]\nmethod = "static"\ntasks = ["line"]\n', "Did you mean 'lines'?"),
        ('[[sweep]]\nmethod = "static"\nmodels = ["tinny"]\n', "Did you mean 'tiny'?"),
        ('[[sweep]]\nmethod = "static"\nkinds = ["qualty"]\n', "unknown kind 'qualty'. Did you mean 'quality'?"),
        ('[[sweep]]\nmethod = "static"\ngird = { exit_layer = [1] }\n', "unknown key. Did you mean 'grid'?"),
        ('[[sweep]]\nmethod = "calm-softmax"\nquery = { threshhold = [0.5] }\n', "Did you mean 'threshold'?"),
        (
            '[[sweep]]\nmethod = "calm-softmax"\nquery = { threshold = [0.5, 1.5] }\n',
            "1.5 is out of range; allowed: between 0",
        ),
        ('[[sweep]]\nmethod = "calm-softmax"\nquery = { threshold = ["high"] }\n', "must be of type float, not 'high'"),
        ('[[sweep]]\nmethod = "calm-softmax"\nquery = { threshold = 0.5 }\n', "it must be a list of values"),
        ('[[sweep]]\nmethod = "calm-softmax"\nquery = { threshold = [0.5, 0.5] }\n', "names a value twice"),
        (PROBED + 'record = ["sublayer"]\n', "unknown record 'sublayer'. Did you mean 'sublayers'?"),
        (PROBED + "record_documents = 3\n", "goes with 'record', which is empty"),
        (PROBED + 'record = ["sublayers"]\nrecord_documents = 0\n', "is 0; it must be 1 or more"),
        (SWEEP + 'record = ["sublayers"]\n', "'kinds' has no \"probe\": quality, timing"),
        (PROBED + 'record = ["token-times"]\n', "'token-times' is what timings record, but 'kinds' has no \"timing\""),
        ('[[sweep]]\nmethod = "static"\ntimed_tasks = ["line"]\n', "(of [tasks.NAME]) 'line'. Did you mean 'lines'?"),
        (
            '[[sweep]]\nmethod = "static"\nkinds = ["quality"]\ntimed_tasks = ["lines"]\n',
            "is for cells that are timed, but 'kinds' has no \"timing\": quality",
        ),
        (SWEEP + "exclude = [{ threshold = 0.4 }]\n", "matches no point of the sweep"),
        (SWEEP + "exclude = [{ treshold = 0.3 }]\n", "Did you mean 'threshold'?"),
    ],
)  # fmt: skip
def test_mistake_in_a_sweep_is_reported_with_line_and_allowed_values(
    write_suite: Writer, wrong: str, says: str
) -> None:
    path = write_suite('[[sweep]]\nmethod = "static"\n\n', wrong)
    message = complaint(path)
    number = line_of(path, wrong.splitlines()[-1])
    assert message.startswith(f"{path}:{number}: [[sweep]] ")
    assert says in message


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("schema = 1", "schema = 2", "is 2; this version reads schema 1"),
        ("seed = 7", 'seed = "7"', "seed: is '7'; it must be a whole number"),
        ("seed = 7", "seed = true", "seed: is True; it must be a whole number"),
        ('task = "wmt-en-fr"', 'task = "wmt-en-frr"', "[tasks.lines] task: unknown task 'wmt-en-frr'"),
        ("max_new_tokens = 4", "max_new_tokens = 0", "max_new_tokens: is 0; it must be 1 or more"),
        ("random_weights = true", 'random_weight = "x"', "Did you mean 'random_weights'?"),
        ("[models.tiny]", '[models.tiny]\nrecipe = "builtin-vanilla"', "exactly one of 'recipe'"),
        ('source = "local"', 'source = "lcal"', "Did you mean 'local'?"),
        ("schema = 1", "schema = 1\nname = 'twice'", "not valid TOML"),
    ],
)
def test_mistake_outside_sweeps_is_reported_with_its_line(
    write_suite: Writer, before: str, after: str, says: str
) -> None:
    path = write_suite()
    path.write_text(path.read_text().replace(before, after, 1))
    message = complaint(path)
    assert message.startswith(str(path))
    assert says in message
    if "TOML" not in says:
        assert message.startswith(f"{path}:{line_of(path, after.splitlines()[0])}: ")


@pytest.mark.parametrize("value", ["0", "-1", "inf", "nan"])
def test_cell_timeout_must_be_positive_and_finite(write_suite: Writer, value: str) -> None:
    path = write_suite()
    text = path.read_text().replace("[models.tiny]", f"[defaults]\ncell_timeout_s = {value}\n[models.tiny]")
    path.write_text(text)
    must = "a number of seconds above 0" if value in ("0", "-1") else "a finite number"
    says = f"[defaults] cell_timeout_s: is {float(value)}; it must be {must}."
    assert complaint(path) == f"{path}:{line_of(path, 'cell_timeout_s = ')}: {says}"


def test_files_are_refused_without_local_data(write_suite: Writer) -> None:
    path = write_suite()
    path.write_text(path.read_text().replace('source = "local"', 'source = "builtin"'))
    assert complaint(path).startswith(f"{path}:{line_of(path, 'files = ')}: [tasks.lines] files: goes with source")


def test_unknown_recipe_is_refused_with_a_suggestion(write_suite: Writer, checkpoint: Path) -> None:
    path = write_suite()
    path.write_text(path.read_text().replace(f'path = "{checkpoint}"', 'recipe = "multi30k-wieghted"'))
    assert "unknown recipe 'multi30k-wieghted'. Did you mean 'multi30k-weighted'?" in complaint(path)


def test_missing_checkpoint_folder_is_refused_by_name(write_suite: Writer, checkpoint: Path, tmp_path: Path) -> None:
    path = write_suite()
    path.write_text(path.read_text().replace(str(checkpoint), "nowhere"))
    assert f"[models.tiny] path: {tmp_path / 'nowhere'} is not a checkpoint's folder" in complaint(path)


def test_gguf_file_is_refused_as_gguf(write_suite: Writer, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    path = write_suite()
    path.write_text(path.read_text().replace(str(checkpoint), "model.gguf"))
    assert "it has no config.json. model.gguf is GGUF: a file of mostly quantized weights" in complaint(path)


def test_unknown_suite_error_lists_the_bundled_suites() -> None:
    with pytest.raises(
        UserError, match=rf"no suite 'bultin'.* Did you mean 'builtin'\? Allowed: {', '.join(suite_names())}\."
    ):
        load_suite("bultin")


@pytest.mark.parametrize("name", suite_names())
def test_every_bundled_suite_loads_and_is_named_like_its_file(name: str) -> None:
    assert load_suite(name).name == name


CALIBRATION = """\
[[sweep]]
method = "static"

[[calibration]]
method = "calm-softmax"
levels = [0.9, 0.5]
delta = 0.1
epsilon = 0.05
"""


def test_a_calibration_has_defaults(write_suite: Writer) -> None:
    (entry,) = load_suite(str(write_suite(CALIBRATION))).calibrations
    assert (entry.models, entry.tasks, entry.documents, len(entry.points)) == (("tiny",), ("lines",), 100, 1)
    assert (entry.settings.levels, entry.settings.delta, entry.settings.epsilon) == ((0.9, 0.5), 0.1, 0.05)
    assert (entry.settings.consistency, entry.settings.rule) == ("textual", "hoeffding-bentkus")


def test_calibration_levels_must_go_from_conservative_to_permissive(write_suite: Writer) -> None:
    """Entropy is low where a model is confident, so its lowest threshold is the most conservative."""
    rising = CALIBRATION.replace("calm-softmax", "entropy").replace("[0.9, 0.5]", "[0.5, 0.9]")
    (entry,) = load_suite(str(write_suite(rising))).calibrations
    assert entry.settings.levels == (0.5, 0.9)
    falling = CALIBRATION.replace("calm-softmax", "entropy")
    assert "must go from the most conservative to the least" in complaint(write_suite(falling))


@pytest.mark.parametrize(
    "grid", ['{ rule = ["epsilon"] }', '{ rule = ["constant", "per-block"], levels = [[0.5, 0.4]] }']
)
def test_calibration_levels_are_refused_if_the_threshold_rule_ignores_them(write_suite: Writer, grid: str) -> None:
    """With such a rule, all thresholds of the calibration would give the same decode, and the last would be chosen."""
    path = write_suite(CALIBRATION.replace("levels = [0.9, 0.5]", f"grid = {grid}\nlevels = [0.9, 0.5]"))
    assert "[[calibration]] levels: change nothing for calm-softmax:rule=" in complaint(path)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("levels = [0.9, 0.5]", "levels = [0.5, 0.9]", "levels: must go from the most conservative to the least"),
        ("levels = [0.9, 0.5]", "levels = [0.9, 0.9]", "each once: [0.9, 0.9]"),
        ("levels = [0.9, 0.5]", "levels = []", "levels: is empty"),
        ("levels = [0.9, 0.5]", "levels = [1.5]", "1.5 is out of range; allowed: between 0"),
        ("levels = [0.9, 0.5]", 'levels = ["high"]', "must be of type float, not 'high'"),
        ('method = "calm-softmax"', 'method = "oracle"', "method: 'oracle' has no threshold to calibrate"),
        ("delta = 0.1", "delta = 1.0", "delta: is 1.0; it must lie between 0 and 1"),
        ("delta = 0.1", "delta = 0.0", "delta: is 0.0; it must lie between 0 and 1"),
        ("epsilon = 0.05", "epsilon = 1.5", "epsilon: is 1.5; it must lie between 0 and 1"),
        ("epsilon = 0.05", 'epsilon = 0.05\nrule = "hoefding"', "unknown rule 'hoefding'. Did you mean 'hoeffding'?"),
        (
            "epsilon = 0.05",
            'epsilon = 0.05\nconsistency = "textal"',
            "unknown consistency 'textal'. Did you mean 'textual'?",
        ),
        ("epsilon = 0.05", "epsilon = 0.05\nlevel = [0.5]", "Did you mean 'levels'?"),
        ("epsilon = 0.05", "epsilon = 0.05\ndocuments = 0", "documents: is 0; it must be 1 or more"),
    ],
)
def test_mistake_in_a_calibration_is_reported_with_line_and_allowed_values(
    write_suite: Writer, before: str, after: str, says: str
) -> None:
    path = write_suite(CALIBRATION.replace(before, after))
    message = complaint(path)
    number = line_of(path, after.splitlines()[-1])
    assert message.startswith(f"{path}:{number}: [[calibration]] ")
    assert says in message


def test_per_block_levels_are_lists_in_a_grid(write_suite: Writer) -> None:
    sweep = '[[sweep]]\nmethod = "calm-softmax"\ngrid = { rule = ["per-block"], levels = [[0.9, 0.5], [0.8, 0.4]] }\n'
    (read,) = load_suite(str(write_suite(sweep))).sweeps
    assert [dict(point.params)["levels"] for point in read.points] == [(0.9, 0.5), (0.8, 0.4)]
    assert read.points[0].label == "calm-softmax:rule=per-block,levels=0.9;0.5"


@pytest.mark.parametrize("key", ["train_files", "calibration_files"])
def test_split_files_are_refused_without_local_data(write_suite: Writer, key: str) -> None:
    path = write_suite()
    line = f'builtin = {{ task = "wmt-en-fr", {key} = {{ en = "a", fr = "b" }} }}'
    path.write_text(path.read_text().replace("[tasks]", f"[tasks]\n{line}"))
    assert complaint(path).startswith(
        f'{path}:{line_of(path, line)}: [tasks.builtin] {key}: goes with source = "local"'
    )
