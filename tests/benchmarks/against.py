"""Compare the work tree with another commit: the same benchmarks, in turn, on this machine (see run.py).

Both are copied first, so that neither changes during the run and the repository is left alone. The benchmarks are the
work tree's in both cases; the sides differ in the copy from which `exitbench` is imported. Each benchmark file runs in
separate processes in the order REV, work tree, work tree, REV, so that slow drift of the machine cancels. Neighbouring
processes form a pair, and the interval is Student's t over the logarithms of the pairs' ratios, since processes differ
more than the rounds within one.
"""

import json
import math
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from checkouts import commit_of, copy_commit, copy_work_tree, git, import_path

from exitbench.errors import UserError

TOLERANCE = 0.05
# 97.5% quantiles of Student's t by number of pairs, two per round.
T_QUANTILE = {2: 12.706, 4: 3.182, 6: 2.571, 8: 2.365, 10: 2.262}
MOST_ROUNDS = max(T_QUANTILE) // 2

Medians = Mapping[str, float]
"""Median seconds by benchmark, measured by one process."""


@dataclass(frozen=True)
class Comparison:
    """Median seconds of a benchmark on both sides, REV (before) and work tree (after): one per process."""

    benchmark: str
    before_s: tuple[float, ...]
    after_s: tuple[float, ...]

    @property
    def name(self) -> str:
        """Name of the benchmark without the folder, which all share."""
        return self.benchmark.rpartition("tests/benchmarks/")[2]

    @property
    def interval(self) -> tuple[float, float, float]:
        """95% interval of the work tree's time divided by REV's: low end, estimate, high end."""
        logs = [math.log(after / before) for before, after in zip(self.before_s, self.after_s, strict=True)]
        middle, half = statistics.fmean(logs), math.inf
        if len(logs) > 1:
            half = T_QUANTILE[len(logs)] * statistics.stdev(logs) / math.sqrt(len(logs))
        return math.exp(middle - half), math.exp(middle), math.exp(middle + half)

    @property
    def verdict(self) -> str:
        """Return "slower" or "faster" if the whole interval lies on one side of 1; else an empty string."""
        low, _, high = self.interval
        return "slower" if low > 1 else "faster" if high < 1 else ""

    def is_worse(self, tolerance: float) -> bool:
        """Return whether the work tree is clearly slower, and by more than the tolerated share of the time."""
        return self.verdict == "slower" and self.interval[1] > 1 + tolerance


def compare(rev: str, chosen: Sequence[str], rounds: int, tolerance: float) -> int:
    """Measure the benchmarks on both sides and print a table.

    Return 0, or 1 if a benchmark is slower, fails on the work tree, or none ran on both sides.

    Raises:
        UserError: No such commit, no git, or no benchmark is selected.
    """
    commit = commit_of(rev)
    state = " with changes" if git("status", "--porcelain") else ""
    sides = {"REV": f"{rev}, {commit[:10]}", "work tree": git("rev-parse", "HEAD")[:10] + state}
    with TemporaryDirectory(prefix="perf-against-") as folder:
        before, after = Path(folder) / "before", Path(folder) / "after"
        copy_commit(commit, before)
        copy_work_tree(after)
        bench = Bench(after, {"REV": import_path(before), "work tree": import_path(after)})
        compared = [found for file in bench.files(chosen) for found in bench.compare(file, chosen, rounds)]
    print(f"\nREV is {sides['REV']}; the work tree is {sides['work tree']}.\n")
    print(*table(compared), sep="\n")
    print(*(f"cannot run, {side}: {failure}" for side, failure in bench.failures), sep="\n")
    worse = sum(comparison.is_worse(tolerance) for comparison in compared)
    print(f"{worse} of {len(compared)} are slower by more than {tolerance:.0%}")
    return int(worse > 0 or not compared or any(side == "work tree" for side, _ in bench.failures))


@dataclass(frozen=True)
class Bench:
    """Runner of benchmarks on both sides, in separate processes.

    Attributes:
        tests: The copy whose benchmarks are run.
        paths: Import path of `exitbench` for each side.
        failures: Side and pytest's message per failed benchmark; filled by `compare`.
    """

    tests: Path
    paths: Mapping[str, Path]
    failures: list[tuple[str, str]] = field(default_factory=list)

    def files(self, chosen: Sequence[str]) -> list[str]:
        """Return the files of the benchmarks that pytest selects."""
        output = self._pytest("work tree", "--collect-only", "-q", *chosen)
        files = re.findall(r"^(\S+\.py)(?:::|: \d)", output, flags=re.MULTILINE)
        if not files:
            raise UserError(f"no benchmark is chosen:\n{output[-1000:]}")
        return list(dict.fromkeys(files))

    def compare(self, file: str, chosen: Sequence[str], rounds: int) -> list[Comparison]:
        """Run the benchmarks of a file on both sides in turn, and return a comparison for each benchmark."""
        medians: dict[str, list[Medians]] = {side: [] for side in self.paths}
        for side in ("REV", "work tree", "work tree", "REV") * rounds:
            print(f"{file}: {side}", flush=True)
            medians[side].append(self.run(side, [f"--only-file={file}", *chosen]))
        return list(paired(medians["REV"], medians["work tree"]))

    def run(self, side: str, arguments: Sequence[str]) -> Medians:
        """Run benchmarks in a separate process and return their medians; record failures."""
        times = self.paths[side] / "times.json"
        times.unlink(missing_ok=True)
        options = ["--continue-on-collection-errors", "-rfE", "--tb=line", "--color=no", f"--benchmark-json={times}"]
        output = self._pytest(side, *options, *arguments)
        results = json.loads(times.read_text(encoding="utf-8"))["benchmarks"] if times.exists() else []
        failures = re.findall(r"^(?:FAILED|ERROR) (.+)$", output, flags=re.MULTILINE)
        if not results and not failures:
            failures = output.splitlines()[-1:]
        failed = {failure.partition(" - ")[0] for at, failure in self.failures if at == side}
        self.failures.extend((side, failure) for failure in failures if failure.partition(" - ")[0] not in failed)
        return {benchmark["fullname"]: benchmark["stats"]["median"] for benchmark in results}

    def _pytest(self, side: str, *arguments: str) -> str:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        command += ["-o", "testpaths=tests/benchmarks", *arguments]
        searched = os.pathsep.join(filter(None, (str(self.paths[side]), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": searched}
        process = subprocess.run(command, cwd=self.tests, env=environment, capture_output=True, text=True)
        return process.stdout.strip() or process.stderr.strip()


def paired(before: Sequence[Medians], after: Sequence[Medians]) -> Iterator[Comparison]:
    """Yield a comparison for each benchmark that every process of both sides measured."""
    for benchmark in before[0]:
        if all(benchmark in medians for medians in (*before, *after)):
            seconds = [tuple(medians[benchmark] for medians in side) for side in (before, after)]
            yield Comparison(benchmark, *seconds)


def table(compared: Sequence[Comparison]) -> Iterator[str]:
    """Yield the lines of a table, largest slowdown first."""
    if not compared:
        yield "no benchmark ran on both sides"
        return
    width = max(len(comparison.name) for comparison in compared)
    yield f"{'benchmark':{width}}  {'REV':>10}  {'work tree':>10}  {'ratio':>6}  95% interval"
    for comparison in sorted(compared, key=lambda comparison: -comparison.interval[1]):
        low, ratio, high = comparison.interval
        seconds = (f"{readable(statistics.median(s)):>10}" for s in (comparison.before_s, comparison.after_s))
        numbers = f"{ratio:6.3f}  {low:.3f} to {high:.3f}"
        yield "  ".join((f"{comparison.name:{width}}", *seconds, numbers, comparison.verdict)).rstrip()


def readable(seconds: float) -> str:
    """Return a time in a suitable unit."""
    unit, scale = ("s", 1.0) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("us", 1e6)
    return f"{seconds * scale:.4g} {unit}"
