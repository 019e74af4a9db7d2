"""The record of software and machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from exitbench.harness.running.environment import ENV_VARS, environment, git_state, hardware
from exitbench.results.spool.schema import ENV_KEYS


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one committed package."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "package")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_the_record_has_every_key_of_the_spool_and_is_json() -> None:
    record = json.loads(json.dumps({"environment": environment(), "hardware": hardware(threads=3)}))
    assert set(record["environment"]) == set(ENV_KEYS["environment"])
    assert set(record["hardware"]) == set(ENV_KEYS["hardware"])
    assert record["hardware"]["threads"] == 3
    assert record["hardware"]["ram_bytes"] > 2**28
    assert record["environment"]["python"] == ".".join(map(str, sys.version_info[:3]))


def test_packages_are_the_requirements_with_their_versions() -> None:
    packages = environment()["packages"]
    import numpy

    assert packages["numpy"] == numpy.__version__
    assert {"exitbench", "torch", "duckdb", "lm-eval"} <= set(packages)


def test_of_the_environment_only_listed_variables_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENV_VARS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SOME_SECRET_TOKEN", "hush")
    assert environment()["env_vars"] == {"OMP_NUM_THREADS": "1"}


def test_a_clean_checkout_gives_its_commit_and_a_changed_one_is_dirty(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert git_state(checkout / "package") == (commit, False)
    (checkout / "package" / "__init__.py").write_text("changed = True\n")
    assert git_state(checkout / "package") == (commit, True)


def test_a_package_installed_inside_a_checkout_of_something_else_has_no_commit(checkout: Path) -> None:
    installed = checkout / "venv" / "package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert git_state(installed) == (None, None)


def test_asking_for_the_environment_does_not_load_torch() -> None:
    code = "import sys, exitbench.harness.running.environment as e; e.environment(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
