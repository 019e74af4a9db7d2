"""Compare this project's decoding with published code token by token; called by `nox -s parity`.

    python tests/parity/run.py --python PYTHON --free DIR --mee DIR --pruning DIR
        [--only GLOB] [--documents N] [--write]

PYTHON is an interpreter with tests/parity/requirements.txt installed; DIR are checkouts of the commits named in
docs/parity.md, which are never changed. The exit status is 1 if a setting that must be equal differs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import torch
from comparing import Answer, Comparison, compared, differing_thresholds, markdown, table_cells
from configurations import PUBLISHED, Configuration, configurations
from ours import Document, answers, checkpoint, documents, folder, histories, networks
from safetensors.torch import load_file

from exitbench.errors import UserError
from exitbench.methods.beta_mixture import adaptive_threshold

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "parity.md"
BEGIN, END = "<!-- made by `nox -s parity -- ... --write` -->", "<!-- end -->"
PAUSE_S = 0.2
THRESHOLDS = "thresholds of 300 random histories"


@dataclass(frozen=True)
class Row:
    """Compared setting and the comparison's result."""

    asked: Configuration
    found: Comparison

    @property
    def is_wrong(self) -> bool:
        """True if it differs although it must be equal."""
        return not self.found.equal and not self.asked.differs


def main() -> int:
    """Return 0, 1 (something differs), 2 (bad input) or 130 (interrupted)."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--python", type=Path, required=True, help="of the environment of the published code")
    for option, code in PUBLISHED.items():
        about = f"checkout of {code.address} at {code.commit}"
        parser.add_argument(f"--{option}", type=Path, metavar="DIR", help=about)
    parser.add_argument("--only", action="append", metavar="GLOB", help="settings of these names; may be repeated")
    parser.add_argument("--documents", type=int, metavar="N", help="at most so many documents a setting")
    parser.add_argument("--write", action="store_true", help="put the table into docs/parity.md")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(options)
    except UserError as error:
        print(f"parity: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def run(options: argparse.Namespace) -> int:
    """Run the requested comparisons and print them; return 0 or 1."""
    if options.documents is not None and options.documents < 1:
        raise UserError(f"--documents {options.documents}: allowed is a number from 1 up.")
    chosen = [configuration for configuration in configurations() if _is_chosen(configuration.name, options.only)]
    if not chosen and not _is_chosen(THRESHOLDS, options.only):
        names = ", ".join(configuration.name for configuration in configurations()[:5])
        raise UserError(f"--only {' '.join(options.only)} matches no setting. Settings are {names}, ...")
    codes = {configuration.code for configuration in chosen} | (
        {"free"} if _is_chosen(THRESHOLDS, options.only) else set()
    )
    sources = {option: _checkout(option, getattr(options, option)) for option in PUBLISHED if option in codes}
    rows, lines, interrupted = [], [], False
    try:
        for row, note in _compare(options, chosen, sources):
            if row is not None:
                rows.append(row)
            lines += [note] * bool(note)
            print("\n".join([*([_formatted(row)] if row is not None else []), *[note] * bool(note)]), flush=True)
    except KeyboardInterrupt:
        interrupted = True
    places = {configuration.name: place for place, configuration in enumerate(chosen)}
    rows.sort(key=lambda row: places[row.asked.name])
    lines.sort()
    wrong = [row.asked.name for row in rows if row.is_wrong] + [line for line in lines if "DIFFER" in line]
    page = _page(rows, lines, options)
    if interrupted:
        page = f"Ended early: {len(rows)} of {len(chosen)} settings were compared. {page}"
    print(f"\n{page}\n\n{len(wrong)} settings differ" + "".join(f"\n  {name}" for name in wrong))
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, _, after = text.partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{page}\n{END}{after.partition(END)[2]}", encoding="utf-8")
    return 130 if interrupted else int(bool(wrong))


def _is_chosen(name: str, patterns: Sequence[str] | None) -> bool:
    return patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)


def _checkout(option: str, place: Path | None) -> Path:
    """Return the folder with the code, in a checkout of the required commit.

    Raises:
        UserError: The checkout is missing, at another commit, or modified.
    """
    code = PUBLISHED[option]
    needed = f"--{option} is to name a checkout of https://{code.address} at {code.commit}"
    if place is None:
        raise UserError(f"{needed}; these settings need it (--only chooses others).")
    if not (place / code.folder / "models" / "deploying_t5.py").is_file():
        raise UserError(f"{needed}, but {place} has no {Path(code.folder, 'models', 'deploying_t5.py')}.")
    git = ["git", "-C", str(place), "-c", f"safe.directory={place.resolve()}"]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if not head.stdout.startswith(code.commit):
        at = head.stdout.strip()[:7] or head.stderr.strip().partition("\n")[0]
        raise UserError(f"{needed}, not at {at}. Put it there: git -C {place} checkout {code.commit}")
    ran = [str(Path(code.folder, package)) for package in ("models", "util")]
    changed = subprocess.run(
        [*git, "diff", "--name-only", "HEAD", "--", *ran], capture_output=True, text=True, check=False
    )
    if changed.stdout:
        raise UserError(f"{needed} as it is, but in {place} there is changed {changed.stdout.split()[0]}.")
    return (place / code.folder).resolve()


def _compare(
    options: argparse.Namespace, chosen: Sequence[Configuration], sources: Mapping[str, Path]
) -> Iterator[tuple[Row | None, str]]:
    """Yield the table row of each compared setting, and a note on its thresholds or unverified tokens ("" for none).

    The comparison of FREE's threshold rule on synthetic histories has only a note; its row is None.
    """
    with TemporaryDirectory(prefix="parity-") as temporary, ExitStack() as running:
        place, queue = Path(temporary), SimpleQueue[tuple[Row | None, str] | BaseException | None]()
        pool = ProcessPoolExecutor(len(sources), get_context("spawn"))
        running.callback(pool.shutdown, wait=False, cancel_futures=True)
        paths = networks(checkpoint("builtin-weighted").model.d_model, place)
        for option, source in sources.items():
            own = [configuration for configuration in chosen if configuration.code == option]
            texts = [documents(configuration.model, configuration.every, options.documents) for configuration in own]
            jobs = [_job(configuration, docs, paths) for configuration, docs in zip(own, texts, strict=True)]
            drawn_histories = histories(300) if option == "free" and _is_chosen(THRESHOLDS, options.only) else []
            if drawn_histories:
                jobs.insert(0, {"name": THRESHOLDS, "runtime": "thresholds", "histories": drawn_histories})
            job = place / f"{option}.json"
            job.write_text(json.dumps({"source": str(source), "configurations": jobs}), encoding="utf-8")
            results = running.enter_context(_published(options.python, job))
            tasks = [(_threshold_comparison, (drawn_histories,))] * bool(drawn_histories)
            tasks += [(_row, (item, docs, paths.get(item.network))) for item, docs in zip(own, texts, strict=True)]
            Thread(target=_compare_results, args=(pool, tasks, results, queue), daemon=True).start()
        going = len(sources)
        while going:
            answer = queue.get()
            if isinstance(answer, BaseException):
                raise answer
            if answer is None:
                going -= 1
            else:
                yield answer


def _compare_results(
    pool: ProcessPoolExecutor,
    tasks: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]],
    results: Iterator[dict[str, Any]],
    queue: SimpleQueue[Any],
) -> None:
    """Compare each result of the published program with this project's, and put the outcome into `queue`.

    The n-th task compares the n-th result, in a process of `pool`. At the end, None is put into the queue, or the error
    that ended the comparisons.
    """
    try:
        for (function, about), result in zip(tasks, results, strict=True):
            queue.put(pool.submit(function, *about, result).result())
        queue.put(None)
    except BaseException as error:  # passed to the waiting thread
        queue.put(error)


def _job(configuration: Configuration, docs: Sequence[Document], paths: Mapping[str, Path]) -> dict[str, Any]:
    return {
        "name": configuration.name,
        "runtime": configuration.runtime,
        "model": str(folder(configuration.model)),
        "settings": dict(configuration.settings),
        "patches": list(configuration.patches),
        "network": str(paths[configuration.network]) if configuration.network else None,
        "documents": [vars(document) for document in docs],
        **configuration.extras,
    }


@contextmanager
def _published(python: Path, job: Path) -> Iterator[Iterator[dict[str, Any]]]:
    """Start the published code and yield its answers, one configuration at a time. It continues while they are
    compared.

    Raises:
        UserError: The program cannot be started, or ended before all answers were written.
    """
    answers_file, errors = job.with_suffix(".jsonl"), job.with_suffix(".log")
    quiet = {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"}
    command = [str(python), str(HERE / "published.py"), str(job)]
    with answers_file.open("wb") as output, errors.open("wb") as log:
        try:
            process = subprocess.Popen(command, stdout=output, stderr=log, env={**os.environ, **quiet})
        except OSError as error:
            raise UserError(f"--python {python} cannot be started: {error.strerror}.") from None

    def results() -> Iterator[dict[str, Any]]:
        with answers_file.open(encoding="utf-8") as lines:
            text, ended = "", False
            while not ended:
                ended = process.poll() is not None
                text += lines.read()
                while "\n" in text:
                    line, _, text = text.partition("\n")
                    yield json.loads(line)
                if not ended:
                    time.sleep(PAUSE_S)
        if process.returncode:
            last_lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
            raise UserError(f"the published code ended with {process.returncode}: {' / '.join(last_lines)}")

    try:
        yield results()
    finally:
        process.kill()
        process.wait()


def _threshold_comparison(histories: Sequence[Sequence[Sequence[float]]], result: dict[str, Any]) -> tuple[None, str]:
    return None, _threshold_note(THRESHOLDS, result["thresholds"], [_threshold(history) for history in histories])


def _row(
    configuration: Configuration, docs: Sequence[Document], network: Path | None, result: dict[str, Any]
) -> tuple[Row, str]:
    torch.set_num_threads(1)
    weights = {} if network is None else load_file(network)
    records = result["answers"]
    levels = [record.get("threshold") for record in records]
    published = [
        Answer(record["key"], record["tokens"], record["exits"], record["asked"], record["rolled_back"])
        for record in records
    ]
    row = Row(configuration, compared(published, answers(configuration, docs, weights, levels)))
    if "rollback_conf_threshold" in configuration.settings:
        return row, _tails(configuration, published, checkpoint(configuration.model).model.n_blocks)
    if not configuration.own_threshold:
        return row, ""
    fitted = [record for record in records if record["threshold"] is not None]
    local = [_threshold(list(zip(*result["history"][: record["known"]], strict=True))) for record in fitted]
    return row, _threshold_note(
        f"thresholds of {configuration.name}", [record["threshold"] for record in fitted], local
    )


def _tails(configuration: Configuration, published: Sequence[Answer], n_blocks: int) -> str:
    """Return a sentence on published tokens that were never verified: those after an answer's last full-depth token."""
    if configuration.differs:
        return ""
    tails = [len(list(takewhile(lambda layer: layer < n_blocks, reversed(answer.exits)))) for answer in published]
    return (
        f"{configuration.name}: {sum(tail > 0 for tail in tails)} of {len(tails)} answers of the published code end in "
        f"tokens that it did not verify, {sum(tails)} of {sum(len(answer.tokens) for answer in published)} tokens"
    )


def _threshold(history: Sequence[Sequence[float]]) -> float:
    """Return the threshold that the rule ``adaptive-code`` chooses for a history of confidences and agreements."""
    scores, agrees = history
    return adaptive_threshold(
        torch.tensor(scores, dtype=torch.float64), torch.tensor(agrees, dtype=torch.bool), default=0.0, form="code"
    )


def _threshold_note(name: str, published: Sequence[float], local: Sequence[float]) -> str:
    difference = differing_thresholds(published, local)
    equal = sum(not differing_thresholds([first], [second]) for first, second in zip(published, local, strict=True))
    return f"{name}: {equal} of {len(local)} equal" + (f", which DIFFER: {difference}" if difference else "")


def _formatted(row: Row) -> str:
    verdict = "differs as meant" if row.asked.differs else "DIFFERS"
    verdict = "equal" if row.found.equal else f"{verdict}: {row.found.first}"
    return " | ".join([*table_cells(row.asked.name, row.found), verdict])


def _page(rows: Sequence[Row], thresholds: Sequence[str], options: argparse.Namespace) -> str:
    """Return the set-up and the results in Markdown."""
    equal = [row for row in rows if not row.asked.differs]
    intended = [row for row in rows if row.asked.differs]
    tokens = sum(row.found.tokens[0] for row in equal)
    same, exits = (sum(getattr(row.found, name) for row in equal) for name in ("equal_tokens", "equal_exits"))
    narrowed = [f"`--only '{pattern}'`" for pattern in options.only or ()]
    narrowed += [f"`--documents {options.documents}`"] if options.documents else []
    parts = [
        f"{sum(row.found.equal for row in equal)} of {len(equal)} settings that are to be equal are equal: "
        f"{same:,} of {tokens:,} tokens, {exits:,} of {tokens:,} exits"
        + (f" (with {', '.join(narrowed)})." if narrowed else "."),
        "\n".join(f"- {line}" for line in thresholds),
        markdown([table_cells(row.asked.name, row.found) for row in equal]) if equal else "",
        "Intended differences (published / ours):" if intended else "",
        markdown([table_cells(f"{row.asked.name}: {row.asked.differs}", row.found) for row in intended])
        if intended
        else "",
        "\n".join(f"- {row.asked.name} differs: {row.found.first}" for row in rows if row.is_wrong),
    ]
    return "\n\n".join(part for part in parts if part)


if __name__ == "__main__":
    sys.exit(main())
