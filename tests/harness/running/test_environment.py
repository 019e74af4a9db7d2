"""The record of software and machine."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from exitbench.harness.processes import fork_server
from exitbench.harness.processes.fork_server import spinning
from exitbench.harness.running import environment as module
from exitbench.harness.running.environment import ENV_VARS, environment, free_cores, git_state, hardware
from exitbench.results.spool.schema import ENV_KEYS


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a Git repository with one committed package."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "package")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_environment_record_is_json_with_every_key_of_the_spool() -> None:
    record = json.loads(json.dumps({"environment": environment(), "hardware": hardware(threads=3)}))
    assert set(record["environment"]) == set(ENV_KEYS["environment"])
    assert set(record["hardware"]) == set(ENV_KEYS["hardware"])
    assert record["hardware"]["threads"] == 3
    assert record["hardware"]["ram_bytes"] > 2**28
    assert record["environment"]["python"] == ".".join(map(str, sys.version_info[:3]))


def test_memory_that_differs_by_a_few_pages_is_the_same_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two starts of one machine: otherwise their times would not be compared."""
    sizes = []
    for pages in (6_171_024, 6_171_023, 6_171_021):
        monkeypatch.setattr(
            "os.sysconf", lambda name, pages=pages: {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": pages}[name]
        )
        sizes.append(hardware(threads=1)["ram_bytes"])
    assert len(set(sizes)) == 1 and abs(sizes[0] - 6_171_024 * 4096) < 2**28


def test_environment_lists_required_packages_with_versions() -> None:
    packages = environment()["packages"]
    import numpy

    assert packages["numpy"] == numpy.__version__
    assert {"exitbench", "torch", "duckdb", "lm-eval"} <= set(packages)


def test_only_listed_environment_variables_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENV_VARS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SOME_SECRET_TOKEN", "hush")
    assert environment()["env_vars"] == {"OMP_NUM_THREADS": "1"}


def test_git_state_has_the_commit_and_whether_the_checkout_is_dirty(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert git_state(checkout / "package") == (commit, False)
    (checkout / "package" / "__init__.py").write_text("changed = True\n")
    assert git_state(checkout / "package") == (commit, True)


def test_package_installed_inside_an_unrelated_checkout_has_no_commit(checkout: Path) -> None:
    installed = checkout / "venv" / "package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert git_state(installed) == (None, None)


def test_environment_does_not_import_torch() -> None:
    code = "import sys, exitbench.harness.running.environment as e; e.environment(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


STAT = """\
cpu  300 50 100 4000 9 5 4 3 7 0
cpu0 100 20 50 2000 4 2 1 3 7 0
cpu1 200 30 50 2000 5 3 3 0 0 0
intr 12345
"""


def test_busy_ticks_count_only_the_given_cores_and_exclude_niced_processes(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(STAT)
    assert module._busy_ticks({0}, tmp_path / "stat") == 100 + 50 + 2 + 1 + 3
    assert module._busy_ticks({0, 1}, tmp_path / "stat") == 156 + 200 + 50 + 3 + 3
    assert module._busy_ticks({0}, tmp_path / "none") is None


@pytest.mark.parametrize(("held", "free"), [(0.0, 4), (0.3, 4), (0.6, 3), (1.0, 3), (2.4, 2), (4.0, 1), (9.0, 1)])
def test_free_cores_are_those_not_busy_with_other_processes(
    held: float, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_affinity", lambda: {0, 1, 2, 3})
    monkeypatch.setattr(module, "_busy_cores", lambda cores: held)
    monkeypatch.setattr(module, "_cgroup_cores", lambda root, membership: None)
    assert free_cores() == free


def test_free_cores_are_counted_after_the_imports_of_the_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a suite that is planned quickly takes its own server for another process."""
    monkeypatch.setattr(module, "_affinity", lambda: {0, 1})
    reader, writer = socket.socketpair()
    monkeypatch.setattr(fork_server, "_server", server := fork_server._Server.__new__(fork_server._Server))
    server.client_pid, server._socket = os.getpid(), reader
    imported = threading.Event()
    importing = threading.Timer(0.2, lambda: (imported.set(), writer.sendall(b"{}\n")))
    monkeypatch.setattr(module, "_busy_cores", lambda cores: float(not imported.is_set()))
    with reader, writer:
        importing.start()
        assert free_cores() == 2
        importing.join()


def test_free_cores_are_limited_by_the_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "a" / "cpu.max").write_text("250000 100000\n")
    (tmp_path / "a" / "b" / "cpu.max").write_text("800000 100000\n")
    (tmp_path / "membership").write_text("0::/a/b\n")
    allowed = module._cgroup_cores(tmp_path, tmp_path / "membership")
    assert allowed == 2.5
    assert module._cgroup_cores(tmp_path, tmp_path / "none") is None
    monkeypatch.setattr(module, "_affinity", lambda: {0, 1, 2, 3})
    monkeypatch.setattr(module, "_busy_cores", lambda cores: 0.0)
    monkeypatch.setattr(module, "_cgroup_cores", lambda root, membership: allowed)
    assert free_cores() == 2


def test_core_used_by_another_process_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    core = {min(os.sched_getaffinity(0))}
    with subprocess.Popen(
        [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {core})\nwhile True: pass"]
    ) as busy:
        try:
            time.sleep(0.3)
            assert module._busy_cores(core) == pytest.approx(1, abs=0.4)
        finally:
            busy.kill()


def test_spin_count_is_set_unless_the_user_sets_a_wait_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert spinning() == {"GOMP_SPINCOUNT": "10000"}
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert spinning() == {}


def test_default_spin_count_is_not_recorded_as_a_user_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "10000")
    assert "GOMP_SPINCOUNT" not in environment()["env_vars"]
    monkeypatch.setenv("GOMP_SPINCOUNT", "500")
    assert environment()["env_vars"]["GOMP_SPINCOUNT"] == "500"
