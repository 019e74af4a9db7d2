"""Third-party YAML for lm-eval: nothing in it is run, and only its folder and the data folder are read."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from exitbench.errors import UserError
from exitbench.tasks.base import Source
from exitbench.tasks.lm_eval import leaves, unsafe_code
from exitbench.tasks.lm_eval.settings import LmEvalSettings
from exitbench.tasks.lm_eval.task import LmEvalTask
from exitbench.tasks.lm_eval.unsafe_code import passes
from exitbench.tasks.registry import get_task

SECRET = "the secret of this machine"
TASK: dict[str, Any] = {
    "task": "theirs",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "test.jsonl"}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": ["yes", "no"],
    "doc_to_target": 0,
    "metric_list": [{"metric": "acc"}],
}
RUNS = 'open("ran", "w").close()'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder with `yaml`, `data`, and a secret next to both."""
    monkeypatch.chdir(tmp_path)
    for name in ("yaml", "data", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "test.jsonl").write_text('{"question": "Is it?"}\n{"question": "Was it?"}\n')
    (tmp_path / "elsewhere" / "secret.yaml").write_text(f"task: theirs\ndescription: {SECRET}\n")
    (tmp_path / "elsewhere" / "secret.jsonl").write_text(json.dumps({"question": SECRET}) + "\n")
    return tmp_path


def third_party_task(place: Path, config: dict[str, Any] | str | bytes, name: str = "theirs.yaml") -> LmEvalTask:
    """Write a third-party YAML file, and return its task."""
    content = yaml.safe_dump(config) if isinstance(config, dict) else config
    (place / "yaml" / name).write_bytes(content.encode() if isinstance(content, str) else content)
    task = get_task("lm-eval:theirs", LmEvalSettings(include=str(place / "yaml"), fewshot_seed=hash(str(place))))
    assert isinstance(task, LmEvalTask)
    return task


def refused(place: Path, config: dict[str, Any] | str | bytes, says: str, source: Source | None = None) -> None:
    """Check that a third-party task is refused with one short message, and that no code in it ran."""
    with pytest.raises(UserError, match=says) as error:
        task = third_party_task(place, config)
        documents = task.load(source or Source("local", place / "data"), "test", None)
        task.instances(documents)
    assert SECRET not in str(error.value)
    assert len(str(error.value)) < 1500
    assert not (place / "ran").exists()


def test_data_only_task_is_loaded(place: Path) -> None:
    documents = (task := third_party_task(place, TASK)).load(Source("local", place / "data"), "test", None)
    assert [task.prompt(document) for document in documents] == ["Is it?", "Was it?"]


# ------------------------------------------------------------------------------------------ code


@pytest.mark.parametrize("key", ["process_docs", "doc_to_text", "custom_dataset", "class"])
def test_function_tag_is_refused_without_importing_it(place: Path, key: str) -> None:
    (place / "yaml" / "code.py").write_text(f"{RUNS}\ndef f(*a): return ''\n")
    text = yaml.safe_dump(TASK) + f"{key}: !function code.f\n"
    refused(place, text.replace("doc_to_text: '{{question}}'\n", ""), r"theirs\.yaml, line \d+: !function names code")


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system ['touch ran']", "!!python/name:os.system ''"])
def test_python_yaml_tags_are_refused(place: Path, tag: str) -> None:
    refused(place, yaml.safe_dump(TASK) + f"description: {tag}\n", "could not determine a constructor for the tag")


@pytest.mark.parametrize("key", ["process_docs", "process_results", "custom_dataset", "class", "unsafe_code"])
def test_keys_that_need_code_are_refused(place: Path, key: str) -> None:
    refused(place, {**TASK, key: "code.f"}, f"{key} needs code, which YAML of an `include` folder may not bring")


@pytest.mark.parametrize(
    "template",
    [
        "{{ cycler.__init__.__globals__.os.system('touch ran') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ (lambda: 0) }}",
        "{% for c in [].__class__.__base__.__subclasses__() %}{{ c }}{% endfor %}",
        "{{ question|attr('__class__') }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(question) }}",
        "{% if question == 'Was it?' %}{{ question.__class__ }}{% endif %}",  # not of the document that is tried first
    ],
)
@pytest.mark.parametrize("key", ["doc_to_text", "description", "doc_to_target", "gen_prefix"])
@pytest.mark.sampled(2)
def test_template_that_escapes_the_sandbox_is_refused(place: Path, key: str, template: str) -> None:
    refused(place, {**TASK, key: template}, "^lm-eval: task 'theirs': (SecurityError|TemplateSyntaxError)")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"metric_list": [{"metric": "accuracy", "hf_evaluate": True}]}, "hf_evaluate loads code from the hub"),
        ({"metric_list": [{"metric": "local_code"}]}, r"unknown metric 'local_code'\."),
        ({"metric_list": [{"metric": "acc", "aggregation": "os.system"}]}, "unknown aggregation 'os.system'"),
        ({"metric_list": [{"metric": "bleu", "aggregation": "ter"}]}, "aggregation is 'ter'. Allowed: mean, bleu."),
        ({"use_prompt": "elsewhere/secret.yaml:x"}, r"use_prompt is 'elsewhere/secret\.yaml:x'\."),
        ({"use_prompt": "promptsource:x"}, "use_prompt is 'promptsource:x'"),
        ({"filter_list": [{"name": "x", "filter": [{"function": "custom"}]}]}, "unknown filter 'custom'"),
        ({"fewshot_config": {"sampler": "os.system"}}, "fewshot_config: unknown sampler"),
        ({"fewshot_config": {"process_docs": "f"}}, "fewshot_config: unknown key 'process_docs'"),
        ({"doc_to_image": "x"}, "doc_to_image needs code"),
        ({"no_such_key": 1}, "unknown key 'no_such_key'"),
    ],
)
def test_unknown_names_that_could_load_code_are_refused(place: Path, change: dict[str, Any], says: str) -> None:
    (place / "local_code").mkdir()
    (place / "local_code" / "local_code.py").write_text(RUNS)
    refused(place, {**TASK, **change}, says)


def test_task_overrides_in_a_group_are_checked(place: Path) -> None:
    group = {"group": "theirs", "task": [{"task": "hellaswag", "process_docs": "f"}]}
    refused(place, group, r"theirs\.yaml: task 'hellaswag': process_docs needs code")


# ------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize(
    "name", ["../elsewhere/secret.yaml", "sub/../../elsewhere/secret.yaml", "{place}/elsewhere/secret.yaml"]
)
def test_include_outside_its_folder_is_refused(place: Path, name: str) -> None:
    refused(place, {**TASK, "include": name.format(place=place)}, "leads out of .*/yaml or over a link")


def test_symlinks_in_the_include_folder_are_not_followed(place: Path) -> None:
    os.symlink("../elsewhere/secret.yaml", place / "yaml" / "linked")
    os.symlink("../elsewhere", place / "yaml" / "folder")
    refused(place, {**TASK, "include": "linked"}, "leads out of .*/yaml or over a link")
    refused(place, {**TASK, "include": "folder/secret.yaml"}, "leads out of .*/yaml or over a link")
    os.symlink("../elsewhere/secret.yaml", place / "yaml" / "a.yaml")
    task = third_party_task(place, TASK)
    assert "description" not in task._configs["theirs"].config


def test_include_cycle_is_refused(place: Path) -> None:
    (place / "yaml" / "b").write_text("include: theirs.yaml\n")
    refused(place, {**TASK, "include": "b"}, "includes itself")


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ("../elsewhere/secret.jsonl", "leads out of --data-dir"),
        ("{place}/elsewhere/secret.jsonl", "leads out of --data-dir"),
        ("../elsewhere/*.jsonl", "leads out of --data-dir"),
        ("link.jsonl", "leads out of --data-dir"),
        ("l*.jsonl", "leads out of --data-dir"),
        ("https://example.org/x.jsonl", "is an address"),
        ("zip://x::https://example.org/x.zip", "is an address"),
        ("none.jsonl", "no such file below --data-dir"),
        ({"test": {"deep": ["../elsewhere/secret.jsonl"]}}, "leads out of --data-dir"),
        (3, "needed: names of files"),
    ],
)
def test_data_files_outside_the_data_folder_are_refused(place: Path, files: Any, says: str) -> None:
    os.symlink("../elsewhere/secret.jsonl", place / "data" / "link.jsonl")
    named = files.format(place=place) if isinstance(files, str) else files
    data_files = named if isinstance(named, dict) else {"test": named}
    refused(place, {**TASK, "dataset_kwargs": {"data_files": data_files}}, says)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dataset_path": "elsewhere", "dataset_kwargs": {}}, "is one of the hub, and the local source names no files"),
        ({"dataset_path": "pandas"}, "is one of the hub"),
        ({"dataset_path": "webdataset"}, "is one of the hub"),
        (
            {"dataset_kwargs": {"data_files": "test.jsonl", "trust_remote_code": True}},
            "'trust_remote_code' is not read",
        ),
        ({"dataset_kwargs": {"data_dir": "/"}}, "'data_dir' is not read"),
        ({"dataset_kwargs": {}}, "has no data_files"),
    ],
)
def test_local_source_refuses_hub_data_sets_and_unknown_options(place: Path, change: dict[str, Any], says: str) -> None:
    refused(place, {**TASK, **change}, says)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dataset_path": "./elsewhere"}, "Needed: a name of the hub"),
        ({"dataset_path": "/etc"}, "Needed: a name of the hub"),
        ({"dataset_path": "a/../../elsewhere"}, "Needed: a name of the hub"),
        ({"dataset_path": "https://example.org"}, "Needed: a name of the hub"),
        ({"dataset_path": "a/b", "dataset_kwargs": {"token": "x"}}, "'token' is not read"),
        ({"dataset_path": "a/b", "dataset_kwargs": {"data_files": "/etc/passwd"}}, "is no file of the data set"),
        ({"dataset_path": "json"}, "its YAML names files"),
    ],
)
def test_hub_source_refuses_paths_urls_and_unknown_options(place: Path, change: dict[str, Any], says: str) -> None:
    refused(place, {**TASK, **change}, says, Source("hub"))


# ------------------------------------------------------------------------------------------ bombs


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
            + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 10)}]\n" for i in range(9)),
            "stands for more than 100000 values",
        ),
        ("a: " + "[" * 100_000, "nested more than 50 deep"),
        ("a: " + "{b: " * 60 + "1", "nested more than 50 deep"),
        (b"a: \xff\xfe", "not YAML"),
        ("- a\n", "not a table of names and values"),
        ("1: a\n", "not a table of names and values"),
        ("a: b: c\n", r"theirs\.yaml, line 1: not YAML"),
        ("task: theirs\nn: " + "9" * 5000 + "\n", "not YAML"),
        ("#" * (1 << 20) + "\n", "more than 1048576 bytes"),
    ],
)
def test_oversized_or_invalid_yaml_is_refused(place: Path, text: str | bytes, says: str) -> None:
    refused(place, text, says)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("metric_list", [{"metric": ["acc"]}], r"unknown metric \['acc'\]"),
        ("metric_list", [{"metric": "acc", "aggregation": ["mean"]}], r"unknown aggregation \['mean'\]"),
        ("generation_kwargs", 5, r"theirs\.yaml: generation_kwargs is 5\. Needed: a table"),
        ("generation_kwargs", ["x"], r"generation_kwargs is \['x'\]"),
        ("fewshot_config", {"sampler": ["x"]}, r"fewshot_config: unknown sampler \['x'\]"),
        ("dataset_path", ["json"], r"dataset_path is \['json'\]\. Needed: text"),
        ("dataset_kwargs", 5, "dataset_kwargs is 5"),
        ("num_fewshot", -1, "num_fewshot is -1. Needed: a whole number from 0 to 10000"),
        ("num_fewshot", 5, "Sample larger than population"),
        ("repeats", "x", "repeats is 'x'"),
        ("tag", 5, "tag is 5"),
        ("filter_list", [{"name": "n", "filter": [{"function": "regex", "regex_pattern": "("}]}], "regex: missing"),
        ("filter_list", [{"name": "n", "filter": [{"function": "take_first", "x": 5}]}], "unexpected keyword"),
    ],
)
def test_value_of_the_wrong_type_is_refused_with_file_and_key(place: Path, key: str, value: object, says: str) -> None:
    refused(place, {**TASK, key: value}, says)


def test_failing_metric_error_names_the_task(place: Path) -> None:
    config = {**TASK, "output_type": "generate_until", "doc_to_target": "yes"}
    del config["doc_to_choice"]
    task = third_party_task(place, config)
    (document, _) = task.load(Source("local", place / "data"), "test", None)
    with pytest.raises(UserError, match="lm-eval: task 'theirs': TypeError"):
        task.score(document, "x")


def test_exponentially_growing_yaml_merges_are_refused(place: Path) -> None:
    lines = ["a0: &a0 {" + ", ".join(f"k{i}: 1" for i in range(9)) + "}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 12)]
    refused(place, "\n".join(lines), r"theirs\.yaml: its merged tables \(`<<`\) stand for more than 100000 values")
    refused(place, "a: &a {<<: *a}", "refers to itself")
    merged = yaml.safe_dump({**TASK, "dataset_kwargs": {"<<": TASK["dataset_kwargs"]}}).replace("'<<'", "<<")
    assert third_party_task(place, merged).load(Source("local", place / "data"), "test", None)


LOOPS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a regular expression": "{{ ('a' * 40 + 'b') | regex_replace('(a+)+$', 'x') }}",
}


@pytest.mark.parametrize("what", LOOPS)
def test_slow_template_is_stopped(what: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves, "_SECONDS", 0.2)
    refused(place, {**TASK, "doc_to_text": LOOPS[what]}, "the template .* takes too long: more than 0.2 s")
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)


def test_template_time_limit_applies_to_all_documents_together(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves, "SECONDS_IN_ALL", 0.2)
    loop = "{% for a in range(99999) %}{% endfor %}" * 5
    lines = (json.dumps({"question": str(number)}) + "\n" for number in range(100))
    (place / "data" / "test.jsonl").write_text("".join(lines))
    refused(place, {**TASK, "doc_to_text": loop}, "or 0.2 s for all documents")


@pytest.mark.parametrize("text", ["{{ 9 ** 9999999 }}", "{{ 'a' * 99999999 }}", "{{ [1] * 99999999 }}"])
def test_template_with_huge_values_is_refused(text: str, place: Path) -> None:
    refused(place, {**TASK, "doc_to_text": text}, "of values this large")


def test_slow_filter_is_stopped(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves, "SECONDS_IN_ALL", 0.2)
    config = {**TASK, "output_type": "generate_until", "doc_to_target": "yes"}
    config["metric_list"] = [{"metric": "exact_match"}]
    config["filter_list"] = [{"name": "n", "filter": [{"function": "regex", "regex_pattern": "(a+)+$"}]}]
    del config["doc_to_choice"]
    task = third_party_task(place, config)
    (document, _) = task.load(Source("local", place / "data"), "test", None)
    with pytest.raises(UserError, match="filter_list of task 'theirs' takes too long"):
        task.score(document, "a" * 40 + "b")


# ------------------------------------------------------------------------------------------ code of a model


ADD = "def add(a, b):\n    return a {} b\n"


def test_program_passes_if_it_and_its_tests_run_to_completion() -> None:
    assert passes(ADD.format("+"), "assert add(2, 3) == 5\nassert add(1, 1) == 2")
    assert not passes(ADD.format("*"), "assert add(2, 3) == 5\nassert add(1, 1) == 2")
    assert not passes(ADD.format("+") + "raise ValueError", "assert add(2, 3) == 5")
    assert not passes("def add(a, b:", "assert add(2, 3) == 5")
    assert passes("x = 1", "")


RIGHT = {
    "its own class": (
        "class Pair:\n    def __init__(s, a): s.a = a\ndef f(p): return p[0].a",
        "assert f([Pair(3)]) == 3",
    ),
    "an object of the program": ("root = object()\ndef f(o): return o is root", "assert f(root) == True"),
    "a module": ("import math\ndef f(x): return x / 3", "assert math.isclose(f(1), 0.3333, rel_tol=0.001)"),
    "a builtin's name": ("def sum(a, b): return a + b", "assert sum(10, 15) == 25"),
    "a subclass": (
        "from collections import Counter\ndef f(x): return Counter(x)",
        "assert f([1, 1, 2]) == {1: 2, 2: 1}",
    ),
    "sets": ("def f(x): return {frozenset(x)}, {1: 2}.keys()", "assert f([1]) == ({frozenset([1])}, {1})"),
    "a generator": ("def f(n): yield from range(n)", "assert list(f(3)) == [0, 1, 2] and next(f(1)) == 0"),
    "an infinite generator": ("import itertools\ndef f(): return itertools.count()", "assert next(f()) == 0"),
    "all numbers": (
        "def f(*x): return x",
        "assert f(2**70, .1, 1j, True, None, b'a') == (2**70, .1, 1j, True, None, b'a')",
    ),
    "text": ("def f(x): return x + '\\ud800\\n'", "assert f('\xe9') == '\xe9\\ud800\\n'"),
    "fractions": (
        "from fractions import Fraction\ndef f(a): return Fraction(a, 4)",
        "assert f(2) == 0.5 and f(8) == 2",
    ),
    "an error": ("def f(x): raise KeyError(x)", "try: f(1)\nexcept KeyError: pass\nelse: assert False"),
    "a named argument": ("def f(x, *, y): return x - y", "assert f(3, y=2) == 1"),
    "truth": ("import re\ndef f(x): return re.match('a', x)", "assert f('a') and not f('b')"),
    "files": ("open('f', 'w').write('a')\ndef f(): return open('f').read()", "assert f() == 'a'"),
}


@pytest.mark.parametrize("what", RIGHT)
def test_program_that_passes_in_one_interpreter_passes_in_two(what: str) -> None:
    program, tests = RIGHT[what]
    exec(f"{program}\n{tests}", {"__name__": "__main__", "open": lambda *_: io.StringIO("a")})
    assert passes(program, tests)


WRONG_ANSWER = "import math\ndef f(x): return 0\n"
CHEATS = {
    "the caller's frame": """
import os, sys
frame = sys._getframe()
while frame:
    for one in list(frame.f_locals.values()):
        if isinstance(one, dict) and isinstance(one.get("token"), str):
            for end in range(64):
                try: os.write(end, one["token"].encode())
                except OSError: pass
            os._exit(0)
    frame = frame.f_back
""",
    "all objects": """
import gc, os
for one in gc.get_objects():
    if isinstance(one, dict) and isinstance(one.get("token"), str):
        for end in range(64):
            try: os.write(end, one["token"].encode())
            except OSError: pass
        os._exit(0)
""",
    "equal to everything": "class A:\n    def __eq__(s, o): return True\ndef f(x): return A()",
    "an int equal to everything": "class A(int):\n    def __eq__(s, o): return True\ndef f(x): return A()",
    "a built-in function": "def set(x): return 0\ndef len(x): return 1",
    "built-in functions for good": "import builtins\nbuiltins.set = builtins.len = lambda x: 1",
    "no assertion errors": "import builtins\nbuiltins.AssertionError = None",
    "a module": "import sys\nclass M(type(sys)):\n    isclose = lambda *a, **k: True\nmath = M('math')",
    "an exit": "import os; os._exit(0)",
    "the end of the interpreter": "import atexit, os; atexit.register(os._exit, 0); raise SystemExit(0)",
    "every descriptor": """
import os
for end in range(3, 64):
    try: os.write(end, b'x' * 32)
    except OSError: pass
""",
}


TESTS = ("assert f(3) == 9", "assert set(f(3)) == set([9])", "assert math.isclose(f(3), 9)")
AIMED_AT = {"a built-in function": 1, "built-in functions for good": 1, "a module": 2}
"""Which of `TESTS` a cheat wants to change, where it is not the first."""


@pytest.mark.parametrize(
    ("cheat", "tests"),
    [
        pytest.param(cheat, tests, marks=() if place == AIMED_AT.get(cheat, 0) else pytest.mark.exhaustive)
        for place, tests in enumerate(TESTS)
        for cheat in CHEATS
    ],
)
def test_program_that_cheats_with_a_wrong_answer_does_not_pass(cheat: str, tests: str) -> None:
    assert not passes(WRONG_ANSWER + CHEATS[cheat], tests)


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "x = 'x' * (2 << 30)",
        "open('f', 'wb').write(b'x' * (2 << 20))",
        "for i in range(20): open(f'f{i}', 'wb').write(b'x' * 1_000_000)",
        "for i in range(2000): open(f'f{i}', 'wb')",
        "import socket; socket.create_connection(('127.0.0.1', 80), 1)",
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 9))",
        "import urllib.request; urllib.request.urlopen('http://localhost:80', timeout=1)",
        "import os; assert 'SECRET' in os.environ",
        "import os; assert os.listdir('/proc')",
        "open('{folder}/f', 'w')",
        "import os; os.remove('{folder}/there')",
        "import socket; socket.socket(socket.AF_UNIX).connect('{folder}/socket')",
        "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
        "import ctypes; assert ctypes.CDLL(None).mount(b'tmpfs', b'.', b'tmpfs', 0, b'size=1g') == 0",
        "import ctypes; assert ctypes.CDLL(None).syscall(425, 8, bytes(200)) >= 0",
        "import os; os.memfd_create('m')",
        "for i in range(100): globals()[f'f{i}'] = open('/dev/null')",
    ],
)
def test_program_that_exceeds_limits_or_leaves_the_sandbox_does_not_pass(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.setitem(unsafe_code._LIMITS, "RLIMIT_CPU", 1)
    (tmp_path / "there").write_text("")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "socket"))
        listener.listen()
        assert not passes(program.replace("{folder}", str(tmp_path)), "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["socket", "there"]


def test_child_processes_do_not_outlive_their_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # by which its processes are known
    program = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n"
    assert passes(program, "") or os.geteuid() != 0  # limits of processes are not for root
    deadline = time.monotonic() + 10  # the system ends a namespace's processes a moment after its first one
    while any(str(tmp_path).encode() in _environment(entry) for entry in Path("/proc").iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _environment(entry: Path) -> bytes:
    try:
        return (entry / "environ").read_bytes()
    except OSError:
        return b""


def test_code_is_not_run_without_namespace_support(monkeypatch: pytest.MonkeyPatch) -> None:
    unsafe_code._command.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"run without a network only, and on this system there is no `unshare`"):
        passes("pass", "")
    unsafe_code._command.cache_clear()


def test_code_is_not_run_without_confirmation(place: Path) -> None:
    row = {"task_id": 11, "text": "Add.", "code": "", "test_list": ["open('ran', 'w')", "pass", "pass"]}
    (place / "data" / "mbpp.jsonl").write_text(json.dumps(row) + "\n")
    task = get_task("lm-eval:mbpp")
    assert isinstance(task, LmEvalTask)
    (document,) = task.load(Source("local", place / "data", (("test", "mbpp.jsonl"),)), "test", None)
    with pytest.raises(UserError, match="Allowed with --confirm-run-unsafe-code"):
        task.score(document, "x = 1")
    with pytest.raises(UserError, match="Allowed with --confirm-run-unsafe-code"):
        task.evaluate(None, [document])
    assert not (place / "ran").exists()
    (scored,) = task.score_responses([document], {document.key: ["x = 1"]}, True).values()
    assert scored.values == {"pass_at_1": 100.0}
    assert not (place / "ran").exists()  # it ran in a folder of its own
