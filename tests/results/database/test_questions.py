"""Questions of early-exit researchers: short SQL over the views, compared with plain loops over the spool.

SQL that begins with @ is a saved query with its default parameters. No query needs a JSON operator.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, pstdev
from typing import Any, Final

import pytest

from exitbench.results.database.connection import Database
from exitbench.results.queries import saved_query
from exitbench.results.spool.attempts import AttemptRecord, read_attempt, scan_spool

Opener = Callable[[Path], AbstractContextManager[Database]]
Row = dict[str, Any]
Rows = list[Row]
MOST_LINES: Final = 8
OVER_VIEWS: Final = {
    "after_the_first_error": """
        SELECT model, task_label, method, label, kv_policy, seed, diverged, avg(equal_full::INTEGER),
            avg(exit_layer), count(*)
        FROM token_trace WHERE execution = 'real' AND method <> 'full' AND diverged IS NOT NULL GROUP BY ALL
    """,
    "wasted_blocks": """
        SELECT model, task_label, method, label, kv_policy, seed, avg(greatest(exit_layer - first_match, 0)),
            avg((exit_layer < first_match)::INTEGER), avg((exit_layer = first_match)::INTEGER), count(*)
        FROM token_probe WHERE NOT diverged AND execution = 'real' AND method <> 'full' GROUP BY ALL
    """,
    "deeper_was_right": """
        SELECT model, task_label, method, label, kv_policy, seed, avg(first_match - exit_layer),
            avg((first_match - exit_layer = 1)::INTEGER), avg(score), count(*)
        FROM token_probe WHERE diverged AND exit_layer < first_match AND execution = 'real' GROUP BY ALL
    """,
    "overlap_of_methods": """
        SELECT a.model, a.task_label, a.method, a.label, a.kv_policy, seed, b.method, b.label, b.kv_policy,
            avg((a.exit_layer = b.exit_layer)::INTEGER), nullif(corr(a.exit_layer, b.exit_layer), 'nan'),
            avg((a.equal_full AND b.equal_full)::INTEGER), count(*)
        FROM token_trace AS a JOIN token_trace AS b USING (model, task_label, seed, execution, doc_key, position)
        WHERE a.method GLOB 'calm-*' AND a.method <> b.method AND execution = 'real' GROUP BY ALL
    """,
}
"""Saved queries written again over the views. The originals use tables of documents, which is faster but longer."""


class WorldRows:
    """Rows of the spool's tables, read without the database. Each row also has the names of its run."""

    def __init__(self, root: Path) -> None:
        latest: dict[str, AttemptRecord] = {}
        for attempt in sorted(scan_spool(root), key=lambda attempt: attempt.attempt_id):
            record = read_attempt(attempt.path)
            if record.status["status"] == "ok":
                latest[attempt.cell_id] = record
        self.runs: Rows = []
        self._rows: dict[str, Rows] = defaultdict(list)
        for record in latest.values():
            run = _named(record)
            self.runs.append(run)
            for table in record.tables:
                rows = [row for batch in record.batches(table) for row in batch.to_pylist()]
                self._rows[table] += [run | row for row in rows]
        self.tokens = self._rows["tokens"]
        self.probed = {_place(row): row for row in self._rows["probe"]}
        self.timings = [row for row in self._rows["timings"] if not row["twin"]]
        self.steps = self._rows["calibration"]
        self.metrics = self._rows["metrics"]
        self.samples = [row | {"scores": json.loads(row["scores"])} for row in self._rows["samples"]]
        full = {_place(row): row["token_id"] for row in self.tokens if row["method"] == "full"}
        for document in grouped(self.tokens, "attempt", "doc_key").values():
            diverged = False
            for row in sorted(document, key=lambda row: int(row["position"])):
                row["equal"] = row["token_id"] == full[_place(row)]
                row["first_error"] = not row["equal"] and not diverged
                row["diverged"] = diverged = diverged or not row["equal"]

    @property
    def real(self) -> Rows:
        """Tokens of quality cells, which decode for real."""
        return [row for row in self.tokens if row["kind"] == "quality"]

    def early(self) -> Rows:
        """Return the tokens of all methods except full depth."""
        return [row for row in self.real if row["method"] != "full"]

    def metric(self, name: str, kind: str = "quality") -> dict[str, float]:
        """Return the values of a metric by run."""
        return {row["attempt"]: row["value"] for row in self.metrics if (row["metric"], row["kind"]) == (name, kind)}

    def runs_of(self, kind: str) -> Rows:
        return [run for run in self.runs if run["kind"] == kind]


def _named(record: AttemptRecord) -> Row:
    cell, params = record.cell, dict(record.cell["method"]["params"])
    label_params = {
        name: value for name, value in params.items() if name not in ("kv_policy", "seed", "min_exit", "decay")
    }
    return {
        "attempt": record.attempt.attempt_id,
        "kind": cell["kind"],
        "model": cell["model"]["name"],
        "blocks": cell["model"]["blocks"],
        "task": cell["task"]["label"],
        "method": cell["method"]["name"],
        "label": ", ".join(
            f"{name}={label_params[name]}"
            for name in sorted(label_params, key=lambda name: (name != "threshold", name))
        )
        or "usual",
        "threshold": params.get("threshold"),
    }


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("model", "task", "doc_key", "position"))


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], Rows]:
    groups: dict[tuple[Any, ...], Rows] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    return groups


def means(rows: Iterable[Row], names: str, value: Callable[[Row], float]) -> list[tuple[Any, ...]]:
    return [(*key, mean(map(value, members))) for key, members in grouped(rows, *names.split()).items()]


def correlation(a: list[float], b: list[float]) -> float | None:
    if pstdev(a) == 0 or pstdev(b) == 0:
        return None
    return sum((x - mean(a)) * (y - mean(b)) for x, y in zip(a, b, strict=True)) / len(a) / pstdev(a) / pstdev(b)


def before_and_at(world_rows: WorldRows) -> Rows:
    """Return each answer's tokens up to its first difference from full depth, with the probe's columns for their
    positions.
    """
    return [
        row | {"probe": world_rows.probed[_place(row)]}
        for row in world_rows.tokens
        if not row["diverged"] or row["first_error"]
    ]


def two_methods(world_rows: WorldRows) -> Iterator[tuple[Row, Row]]:
    other = grouped(world_rows.real, "model", "task", "doc_key", "position")
    for row in world_rows.real:
        if row["method"].startswith("calm-"):
            yield from ((row, at) for at in other[_place(row)] if at["method"] != row["method"])


def overlap(world_rows: WorldRows) -> Iterator[tuple[Any, ...]]:
    pairs = defaultdict(list)
    for a, b in two_methods(world_rows):
        names = (a["model"], a["task"], a["method"], a["label"], "state-copy", 7, b["method"], b["label"], "state-copy")
        pairs[names].append((a, b))
    for key, both in pairs.items():
        a, b = ([float(pair[side]["exit_layer"]) for pair in both] for side in (0, 1))
        same = mean(x == y for x, y in zip(a, b, strict=True))
        yield (*key, same, correlation(a, b), mean(x["equal"] and y["equal"] for x, y in both), len(both))


def documents(world_rows: WorldRows) -> Rows:
    """Return each answer compared with full depth's: both scores, number of equal tokens, and first difference."""
    headline = {"squad": "f1", "samsum": "rougeL", "wmt-en-fr": "bleu"}
    full = {(row["model"], row["task"], row["doc_key"]): row for row in world_rows.samples if row["method"] == "full"}
    rows = []
    for row in world_rows.samples:
        other, metric = full[row["model"], row["task"], row["doc_key"]], headline[row["task"]]
        differs = [a != b for a, b in zip(row["output_ids"], other["output_ids"], strict=True)]
        score, full_score = row["scores"][metric], other["scores"][metric]
        at = differs.index(True) + 1 if any(differs) else None
        rows.append(row | {"score": score, "full": full_score, "equal": differs.count(False), "at": at})
    return rows


def time_by_document(world_rows: WorldRows, phase: str, arm: str = "method") -> dict[tuple[Any, ...], float]:
    """Return the mean time of a phase in ms, by run and document."""
    rows = [row for row in world_rows.timings if row["phase"] == phase and row["arm"] == arm]
    return {
        key: mean(row["wall_ns"] for row in members) / 1e6
        for key, members in grouped(rows, "attempt", "doc_key").items()
    }


def faster(world_rows: WorldRows) -> dict[str, float]:
    """Return the speed-up of whole requests by run, from times summed over all readings."""
    arms = {
        arm: grouped([r for r in world_rows.timings if (r["phase"], r["arm"]) == ("total", arm)], "attempt")
        for arm in ("full", "method")
    }
    return {
        key[0]: sum(r["wall_ns"] for r in arms["full"][key]) / sum(r["wall_ns"] for r in rows)
        for key, rows in arms["method"].items()
    }


def setting_of(run: Row) -> tuple[Any, ...]:
    return (run["model"], run["task"], run["method"], run["label"])


def speed_of_setting(world_rows: WorldRows) -> dict[tuple[Any, ...], float]:
    speed = faster(world_rows)
    return {setting_of(run): speed[run["attempt"]] for run in world_rows.runs_of("timing")}


def that_agree(world_rows: WorldRows) -> Iterator[tuple[Any, ...]]:
    match, depth, speed = (
        world_rows.metric("token_match"),
        world_rows.metric("mean_blocks_run"),
        speed_of_setting(world_rows),
    )
    runs = [run for run in world_rows.runs_of("quality") if run["method"] != "full" and match[run["attempt"]] >= 0.99]
    for members in grouped(runs, "model", "task", "method").values():
        run = min(members, key=lambda run: (depth[run["attempt"]], -match[run["attempt"]]))
        at = run["attempt"]
        yield (*setting_of(run), "state-copy", 7, match[at], depth[at], run["blocks"], speed.get(setting_of(run)))


def by_document_speed(world_rows: WorldRows) -> Iterator[tuple[Any, ...]]:
    full, method_times, decode = (
        time_by_document(world_rows, "total", "full"),
        time_by_document(world_rows, "total"),
        time_by_document(world_rows, "decode"),
    )
    for run in world_rows.runs_of("timing"):
        docs = [doc for attempt, doc in method_times if attempt == run["attempt"]]
        times = [[told_ms[run["attempt"], doc] for doc in docs] for told_ms in (full, method_times, decode)]
        yield (*setting_of(run), "state-copy", 7, 5, sum(times[0]) / sum(times[1]), mean(times[2]) / 5, len(docs))


def retained_quality(world_rows: WorldRows) -> Iterator[tuple[Any, ...]]:
    loss, depth = (world_rows.metric(f"held_out_{name}", "calibration") for name in ("loss", "mean_exit_layer"))
    for (attempt,), steps in grouped(world_rows.steps, "attempt").items():
        chosen = [step for step in steps if step["passed"]][-1]
        name = (
            chosen["model"],
            chosen["task"],
            chosen["method"],
            chosen["label"],
            "textual",
            chosen["threshold"],
            0.35,
            0.3,
        )
        yield (*name, chosen["mean_loss"], loss[attempt], loss[attempt] <= 0.35, depth[attempt], 8)


def whole_answers(world_rows: WorldRows) -> Iterator[tuple[Any, ...]]:
    """Yield each setting with the share of its answers that equal full depth's to the last token."""
    unchanged_answers = {
        key: all(row["equal"] for row in rows)
        for key, rows in grouped(world_rows.early(), "attempt", "doc_key").items()
    }
    for run in world_rows.runs_of("quality"):
        if run["method"] != "full":
            yield (
                *setting_of(run),
                mean(same for (attempt, _), same in unchanged_answers.items() if attempt == run["attempt"]),
            )


@dataclass(frozen=True)
class Question:
    """A question, the SQL that answers it, and the answer by plain loops: rows in any order."""

    text: str
    sql: str
    slow: Callable[[WorldRows], Iterable[tuple[Any, ...]]]


SETTING: Final = "model task method label"
AUDIT: Final = (
    Question(
        "Which kinds of tokens exit early?",
        """
        SELECT token_kind, avg(exit_layer)
        FROM token_trace WHERE execution = 'real' AND method <> 'full' GROUP BY ALL
        """,
        lambda world_rows: means(world_rows.early(), "token_kind", lambda row: row["exit_layer"]),
    ),
    Question(
        "Do tokens exit earlier as the answer goes on?",
        """
        SELECT method, label, position, avg(exit_layer) FROM token_trace
        WHERE execution = 'real' GROUP BY ALL
        """,
        lambda world_rows: means(world_rows.real, "method label position", lambda row: row["exit_layer"]),
    ),
    Question(
        "Do errors cascade behind the first?",
        OVER_VIEWS["after_the_first_error"],
        lambda world_rows: [
            (
                *key[:4],
                "state-copy",
                7,
                key[4],
                mean(r["equal"] for r in members),
                mean(r["exit_layer"] for r in members),
                len(members),
            )
            for key, members in grouped(world_rows.early(), *SETTING.split(), "diverged").items()
        ],
    ),
    Question("Which threshold agrees to 99 %?", "@settings_that_agree", that_agree),
    Question(
        "Is the margin reliable, block by block?",
        """
        SELECT block, round(p1 - p2, 1) AS margin, avg((rank_final = 1)::INT), count(*) FROM layer_trace GROUP BY ALL
        """,
        lambda world_rows: [
            (*key, mean(row["right"] for row in members), len(members))
            for key, members in grouped(
                (
                    {"block": k + 1, "margin": round(p1 - p2, 1), "right": rank == 1}
                    for row in world_rows.probed.values()
                    for k, (p1, p2, rank) in enumerate(zip(row["p1"], row["p2"], row["rank_final"], strict=True))
                ),
                "block",
                "margin",
            ).items()
        ],
    ),
    Question("Are long answers sped up as much as short ones?", "@speed_by_length", by_document_speed),
    Question(
        "How many blocks are wasted beside an oracle?",
        OVER_VIEWS["wasted_blocks"],
        lambda world_rows: [
            (
                *key,
                "state-copy",
                7,
                mean(max(row["exit_layer"] - row["probe"]["first_match"], 0) for row in members),
                mean(row["exit_layer"] < row["probe"]["first_match"] for row in members),
                mean(row["exit_layer"] == row["probe"]["first_match"] for row in members),
                len(members),
            )
            for key, members in grouped(
                (
                    row
                    for row in before_and_at(world_rows)
                    if not row["diverged"] and row["kind"] == "quality" and row["method"] != "full"
                ),
                *SETTING.split(),
            ).items()
        ],
    ),
    Question(
        "Wrong, but right some blocks deeper: how many?",
        OVER_VIEWS["deeper_was_right"],
        lambda world_rows: [
            (
                *key,
                "state-copy",
                7,
                mean(row["probe"]["first_match"] - row["exit_layer"] for row in members),
                mean(row["probe"]["first_match"] - row["exit_layer"] == 1 for row in members),
                mean(row["score"] for row in members) if members[0]["score"] is not None else None,
                len(members),
            )
            for key, members in grouped(
                (
                    row
                    for row in before_and_at(world_rows)
                    if row["first_error"]
                    and row["exit_layer"] < row["probe"]["first_match"]
                    and row["kind"] == "quality"
                ),
                *SETTING.split(),
            ).items()
        ],
    ),
    Question("Do two methods let the same tokens go?", OVER_VIEWS["overlap_of_methods"], overlap),
    Question(
        "Which settings does none beat in quality and speed?",
        """
        SELECT model, task_label, method, label, speedup FROM frontier AS a
        WHERE execution = 'real' AND NOT is_full_depth AND NOT EXISTS (
            FROM frontier AS b WHERE b.model = a.model AND b.task_label = a.task_label
                AND b.execution = 'real' AND NOT b.is_full_depth AND b.value >= a.value AND b.speedup > a.speedup)
        """,
        lambda world_rows: [
            (*setting_of(run), speed)
            for value, speeds in [
                (
                    world_rows.metric("f1") | world_rows.metric("rougeL") | world_rows.metric("bleu"),
                    speed_of_setting(world_rows),
                )
            ]
            for run in world_rows.runs_of("quality")
            if (speed := speeds.get(setting_of(run))) is not None
            and not any(
                value[other["attempt"]] >= value[run["attempt"]] and speeds[setting_of(other)] > speed
                for other in world_rows.runs_of("quality")
                if other["method"] != "full" and (other["model"], other["task"]) == (run["model"], run["task"])
            )
        ],
    ),
    Question(
        "How much does the seed matter?",
        "SELECT method, label, count(DISTINCT seed), avg(value) FROM frontier WHERE execution = 'real' GROUP BY ALL",
        lambda world_rows: [
            (*key, 1, mean(value[run["attempt"]] for run in members))
            for value in [world_rows.metric("f1") | world_rows.metric("rougeL") | world_rows.metric("bleu")]
            for key, members in grouped(world_rows.runs_of("quality"), "method", "label").items()
        ],
    ),
    Question(
        "Where do answers first differ from full depth's?",
        """
        SELECT model, task_label, method, label, avg(first_divergence), avg((first_divergence IS NULL)::INT)
        FROM answers GROUP BY ALL
        """,
        lambda world_rows: [
            (*key, mean(positions) if positions else None, mean(row["at"] is None for row in members))
            for key, members in grouped(documents(world_rows), *SETTING.split()).items()
            for positions in [[row["at"] for row in members if row["at"]]]
        ],
    ),
    Question(
        "How many first errors are near-ties?",
        """
        SELECT method, label, avg((full_gap < 0.5)::INT), count(*) FROM token_probe
        WHERE diverged AND execution = 'real' GROUP BY ALL
        """,
        lambda world_rows: [
            (*key, mean(row["probe"]["p1"][-1] - row["probe"]["p2"][-1] < 0.5 for row in members), len(members))
            for key, members in grouped(
                (row for row in before_and_at(world_rows) if row["first_error"] and row["kind"] == "quality"),
                "method",
                "label",
            ).items()
        ],
    ),
    Question(
        "What does a KV policy cost?",
        "SELECT method, label, kv_policy, avg(delta) FROM frontier WHERE execution = 'real' GROUP BY ALL",
        lambda world_rows: [
            (*key, "state-copy", mean(row["score"] - row["full"] for row in members))
            for key, members in grouped(documents(world_rows), "method", "label").items()
        ],
    ),
    Question(
        "Where does one token leave?",
        """
        SELECT model, method, label, avg(exit_layer), count(*) FROM token_trace
        WHERE token_id = 67 AND execution = 'real' GROUP BY ALL
        """,
        lambda world_rows: [
            (*key, mean(row["exit_layer"] for row in members), len(members))
            for key, members in grouped(
                (r for r in world_rows.real if r["token_id"] == 67), "model", "method", "label"
            ).items()
        ],
    ),
    Question(
        "How many rows of the LM head does a token cost?",
        "SELECT method, label, avg(head_rows) FROM token_trace WHERE execution = 'real' GROUP BY ALL",
        lambda world_rows: means(world_rows.real, "method label", lambda row: row["head_rows"]),
    ),
    Question(
        "Does the batch change answers?",
        "SELECT conditions, count(*), avg(token_match) FROM frontier WHERE execution = 'real' GROUP BY ALL",
        lambda world_rows: [
            (
                "float32, cpu, batch 1",
                len(world_rows.runs_of("quality")),
                mean(world_rows.metric("token_match").values()),
            )
        ],
    ),
    Question(
        "Does confidence fall from block to block?",
        "SELECT model, avg((monotone_from = 1)::INT) FROM probe_trace GROUP BY ALL",
        lambda world_rows: means(world_rows.probed.values(), "model", lambda row: row["monotone_from"] == 1),
    ),
    Question(
        "Does time follow depth, document by document?",
        """
        SELECT t.method, t.label, t.threshold, regr_slope(t.ms, d.blocks) FROM timings AS t JOIN (
            SELECT model, task_label, method, label, doc_key, sum(blocks_run) AS blocks FROM token_trace
            WHERE execution = 'real' GROUP BY ALL) AS d USING (model, task_label, method, label, doc_key)
        WHERE t.arm = 'method' AND t.phase = 'decode' AND t.method IN ('oracle', 'calm-softmax') GROUP BY ALL
        """,
        lambda world_rows: [
            (*key, slope(members))
            for key, members in grouped(
                (row for row in decoded(world_rows) if row["method"] in ("oracle", "calm-softmax")),
                "method",
                "label",
                "threshold",
            ).items()
        ],
    ),
    Question(
        "Which documents flip from right to worse?",
        """
        SELECT model, task_label, doc_key, count(*) FILTER (delta < 0), min(delta) FROM answers
        WHERE method <> 'full' GROUP BY ALL
        """,
        lambda world_rows: [
            (*key, sum(d < 0 for d in deltas), min(deltas))
            for key, members in grouped(
                (row for row in documents(world_rows) if row["method"] != "full"), "model", "task", "doc_key"
            ).items()
            for deltas in [[row["score"] - row["full"] for row in members]]
        ],
    ),
    Question("Did calibrations keep their promise?", "@calibrations_kept", retained_quality),
    Question(
        "Where do methods leave that run equally many blocks?",
        """
        SELECT h.method, h.label, h.exit_layer, h.share FROM exit_histogram AS h JOIN frontier AS f USING (attempt_id)
        WHERE f.model = 'world-t5' AND f.task_label = 'squad' AND f.execution = 'real'
            AND f.mean_blocks_run BETWEEN 2 AND 4
        """,
        lambda world_rows: [
            (*key, len([row for row in members if row["exit_layer"] == layer]) / len(members))
            for names, members in grouped(
                (row for row in world_rows.real if (row["model"], row["task"]) == ("world-t5", "squad")),
                "method",
                "label",
            ).items()
            if 2 <= mean(row["exit_layer"] for row in members) <= 4
            for layer in {row["exit_layer"] for row in members}
            for key in [(*names, layer)]
        ],
    ),
    Question(
        "Do frequent tokens leave earlier?",
        """
        SELECT method, label, corr(n, depth) FROM (
            SELECT method, label, token_id, count(*) AS n, avg(exit_layer) AS depth
            FROM token_trace WHERE execution = 'real' AND method IN ('random', 'oracle') GROUP BY ALL) GROUP BY ALL
        """,
        lambda world_rows: [
            (*key, correlation([float(len(m)) for m in tokens], [mean(r["exit_layer"] for r in m) for m in tokens]))
            for key, members in grouped(
                (r for r in world_rows.real if r["method"] in ("random", "oracle")), "method", "label"
            ).items()
            for tokens in [list(grouped(members, "token_id").values())]
        ],
    ),
    Question(
        "How much of the saved work becomes time, by machine?",
        """
        SELECT timing_cpu, avg(realised_fraction), count(*)
        FROM frontier WHERE realised_fraction IS NOT NULL GROUP BY ALL
        """,
        lambda world_rows: [
            ("Test CPU", mean(fractions.values()), len(fractions))
            for fractions in [world_rows.metric("realised_fraction", "timing")]
        ],
    ),
    Question(
        "What does every method say at one token?",
        "@methods_at_one_token",
        lambda world_rows: [
            (
                row["model"],
                row["task"],
                row["doc_key"],
                1,
                row["method"],
                row["label"],
                "state-copy",
                7,
                "real" if row["kind"] == "quality" else "simulated",
                row["exit_layer"],
                row["token_id"],
                None,
                None,
                row["equal"],
                row["diverged"],
                row["score"],
            )
            for row in world_rows.tokens
            if row["position"] == 1
            and row["doc_key"]
            == min(r["doc_key"] for r in world_rows.tokens if (r["model"], r["task"]) == (row["model"], row["task"]))
        ],
    ),
)


def decoded(world_rows: WorldRows) -> Iterator[Row]:
    """Yield each timed answer with its decode time in ms and the sum of its exit layers."""
    blocks = {
        key: sum(r["exit_layer"] for r in members)
        for key, members in grouped(world_rows.real, *SETTING.split(), "doc_key").items()
    }
    ms = time_by_document(world_rows, "decode")
    for run in world_rows.runs_of("timing"):
        for attempt, doc in ms:
            if attempt == run["attempt"]:
                yield run | {"ms": ms[attempt, doc], "work": float(blocks[(*setting_of(run), doc)])}


def slope(rows: Rows) -> float:
    work, ms = [row["work"] for row in rows], [row["ms"] for row in rows]
    return sum((x - mean(work)) * (y - mean(ms)) for x, y in zip(work, ms, strict=True)) / sum(
        (x - mean(work)) ** 2 for x in work
    )


OURS: Final = (
    Question(
        "How many settings of each method were run?",
        "SELECT method, count(DISTINCT label) FROM frontier WHERE execution = 'real' GROUP BY ALL",
        lambda world_rows: [
            (key[0], len({run["label"] for run in members}))
            for key, members in grouped(world_rows.runs_of("quality"), "method").items()
        ],
    ),
    Question(
        "Which thresholds were asked, and of which methods?",
        "SELECT DISTINCT method, threshold FROM frontier WHERE threshold IS NOT NULL",
        lambda world_rows: {
            (run["method"], run["threshold"]) for run in world_rows.runs_of("quality") if run["threshold"] is not None
        },
    ),
    Question(
        "Which values did a parameter take?",
        "SELECT DISTINCT method, name, number FROM parameters WHERE name = 'exit_layer'",
        lambda world_rows: [("static", "exit_layer", 2.0)],
    ),
    Question(
        "How does quality go with the threshold?",
        "SELECT model, task_label, threshold, value FROM frontier WHERE method = 'calm-softmax' AND execution = 'real'",
        lambda world_rows: [
            (run["model"], run["task"], run["threshold"], value[run["attempt"]])
            for value in [world_rows.metric("f1") | world_rows.metric("rougeL") | world_rows.metric("bleu")]
            for run in world_rows.runs_of("quality")
            if run["method"] == "calm-softmax"
        ],
    ),
    Question(
        "What share of tokens leaves in the first half of the blocks?",
        """
        SELECT model, method, label, avg((exit_layer <= blocks / 2)::INT) FROM token_trace JOIN (
            SELECT attempt_id, blocks FROM runs) USING (attempt_id) WHERE execution = 'real' GROUP BY ALL
        """,
        lambda world_rows: means(
            world_rows.real, "model method label", lambda row: row["exit_layer"] <= row["blocks"] / 2
        ),
    ),
    Question(
        "How many answers are full depth's to the last token?",
        """
        SELECT model, task_label, method, label, avg((first_divergence IS NULL)::INT) FROM answers
        WHERE method <> 'full' GROUP BY ALL
        """,
        whole_answers,
    ),
    Question(
        "How many tokens of an answer are full depth's?",
        "SELECT method, label, avg(equal_tokens / n_output) FROM answers GROUP BY ALL",
        lambda world_rows: means(documents(world_rows), "method label", lambda row: row["equal"] / 5),
    ),
    Question(
        "Which documents lose most with one method?",
        """
        SELECT model, task_label, doc_key, delta FROM answers WHERE method = 'static'
        QUALIFY row_number() OVER (PARTITION BY model, task_label ORDER BY delta, doc_key) = 1
        """,
        lambda world_rows: [
            (*key, worst["doc_key"], worst["score"] - worst["full"])
            for key, members in grouped(
                (r for r in documents(world_rows) if r["method"] == "static"), "model", "task"
            ).items()
            for worst in [min(members, key=lambda row: (row["score"] - row["full"], row["doc_key"]))]
        ],
    ),
    Question(
        "How early in answers are first errors?",
        "SELECT method, label, median(first_divergence) FROM answers WHERE first_divergence IS NOT NULL GROUP BY ALL",
        lambda world_rows: [
            (*key, float(median(row["at"] for row in members)))
            for key, members in grouped((r for r in documents(world_rows) if r["at"]), "method", "label").items()
        ],
    ),
    Question(
        "How sure is a gate where it errs, and where it does not?",
        """
        SELECT threshold, equal_full, avg(score) FROM token_trace
        WHERE method = 'calm-softmax' AND execution = 'real' GROUP BY ALL
        """,
        lambda world_rows: means(
            (row for row in world_rows.real if row["method"] == "calm-softmax"),
            "threshold equal",
            lambda row: row["score"],
        ),
    ),
    Question(
        "How many tokens does the gate never let go?",
        "SELECT method, label, avg((reason = 'last')::INT) FROM token_trace WHERE execution = 'real' GROUP BY ALL",
        lambda world_rows: means(world_rows.real, "method label", lambda row: row["reason"] == "last"),
    ),
    Question(
        "What did full depth say where a method errs?",
        """
        SELECT method, label, full_token_id, token_id, count(*) FROM token_trace
        WHERE NOT equal_full AND execution = 'real' AND method = 'static' GROUP BY ALL
        """,
        lambda world_rows: [
            (*key, len(members))
            for key, members in grouped(
                (
                    row | {"full": world_rows.probed[_place(row)]["token_id"]}
                    for row in world_rows.real
                    if not row["equal"] and row["method"] == "static"
                ),
                "method",
                "label",
                "full",
                "token_id",
            ).items()
        ],
    ),
    Question(
        "How early could each kind of word leave?",
        "SELECT token_kind, avg(first_match), avg(stable_from) FROM probe_trace GROUP BY ALL",
        lambda world_rows: [
            (*key, mean(r["first_match"] for r in members), mean(r["stable_from"] for r in members))
            for key, members in grouped(world_rows.probed.values(), "token_kind").items()
        ],
    ),
    Question(
        "How deep do words go that need two look-ups, and what are they?",
        """
        SELECT token_kind, decided_by, avg(exit_layer) FROM token_trace JOIN token_kinds USING (token_kind)
        WHERE token_kind = 'hop2' AND execution = 'real' GROUP BY ALL
        """,
        lambda world_rows: [
            (*key, "two facts, one found by what the other says", mean(row["exit_layer"] for row in members))
            for key, members in grouped((r for r in world_rows.real if r["token_kind"] == "hop2"), "token_kind").items()
        ],
    ),
    Question(
        "How probable was full depth's token where a method left?",
        "SELECT method, label, avg(p_final) FROM token_probe WHERE NOT diverged AND execution = 'real' GROUP BY ALL",
        lambda world_rows: means(
            (r for r in before_and_at(world_rows) if not r["diverged"] and r["kind"] == "quality"),
            "method label",
            lambda row: row["probe"]["p_final"][row["exit_layer"] - 1],
        ),
    ),
    Question(
        "Which rank had full depth's token where a method erred?",
        """
        SELECT method, label, max(rank_final), count(*)
        FROM token_probe WHERE diverged AND execution = 'real' GROUP BY ALL
        """,
        lambda world_rows: [
            (*key, max(r["probe"]["rank_final"][r["exit_layer"] - 1] for r in members), len(members))
            for key, members in grouped(
                (r for r in before_and_at(world_rows) if r["first_error"] and r["kind"] == "quality"), "method", "label"
            ).items()
        ],
    ),
    Question(
        "How far are replays from real decodes?",
        """
        SELECT a.model, a.task_label, a.threshold, a.mean_exit_layer - b.mean_exit_layer
        FROM frontier AS a JOIN frontier AS b USING (model, task_label, method, label)
        WHERE a.execution = 'simulated' AND b.execution = 'real'
        """,
        lambda world_rows: [
            (run["model"], run["task"], run["threshold"], simulated[run["attempt"]] - real[setting_of(run)])
            for simulated in [world_rows.metric("mean_exit_layer", "replay")]
            for real in [
                {
                    setting_of(r): world_rows.metric("mean_exit_layer")[r["attempt"]]
                    for r in world_rows.runs_of("quality")
                }
            ]
            for run in world_rows.runs_of("replay")
        ],
    ),
    Question(
        "How much faster is each phase?",
        "SELECT method, label, phase, sum(full_ms) / sum(ms) FROM timings WHERE arm = 'method' GROUP BY ALL",
        lambda world_rows: [
            (
                *key,
                phase,
                sum(full[run["attempt"], d] for run in members for a, d in decode_times if a == run["attempt"])
                / sum(
                    decode_times[run["attempt"], d] for run in members for a, d in decode_times if a == run["attempt"]
                ),
            )
            for phase in ("prefill", "decode", "total")
            for full, decode_times in [
                (time_by_document(world_rows, phase, "full"), time_by_document(world_rows, phase))
            ]
            for key, members in grouped(world_rows.runs_of("timing"), "method", "label").items()
        ],
    ),
    Question(
        "How many ms does a token of full depth take?",
        "SELECT model, avg(ms_per_token) FROM timings WHERE arm = 'full' AND phase = 'decode' GROUP BY ALL",
        lambda world_rows: [
            (
                model,
                mean(decode_times[key] / 5 for key in decode_times if key[0] in {run["attempt"] for run in members}),
            )
            for decode_times in [time_by_document(world_rows, "decode", "full")]
            for (model,), members in grouped(world_rows.runs_of("timing"), "model").items()
        ],
    ),
    Question(
        "How often was each document timed?",
        "SELECT arm, phase, min(readings), count(*) FROM timings WHERE arm <> 'twin' GROUP BY ALL",
        lambda world_rows: [
            (
                *key,
                min(len(m) for m in grouped(members, "attempt", "doc_key").values()),
                len(grouped(members, "attempt", "doc_key")),
            )
            for key, members in grouped(world_rows.timings, "arm", "phase").items()
        ],
    ),
    Question(
        "Which speed-up has the fastest setting of each model?",
        "SELECT model, max(speedup) FROM frontier WHERE execution = 'real' GROUP BY ALL",
        lambda world_rows: [
            (model, max(speed[run["attempt"]] for run in members))
            for speed in [faster(world_rows)]
            for (model,), members in grouped(world_rows.runs_of("timing"), "model").items()
        ],
    ),
    Question(
        "How many levels did calibrations try?",
        """
        SELECT model, task_label, count(*), count(*) FILTER (passed), max(held_out_documents)
        FROM calibrations GROUP BY ALL
        """,
        lambda world_rows: [
            (*key, len(members), sum(step["passed"] for step in members), 8)
            for key, members in grouped(world_rows.steps, "model", "task").items()
        ],
    ),
    Question(
        "How long are answers and prompts?",
        "SELECT model, task_label, avg(n_prompt), avg(n_output) FROM answers WHERE method = 'full' GROUP BY ALL",
        lambda world_rows: [
            (*key, mean(row["n_prompt"] for row in members), mean(row["n_output"] for row in members))
            for key, members in grouped(
                (r for r in world_rows.samples if r["method"] == "full"), "model", "task"
            ).items()
        ],
    ),
    Question(
        "How settled are tokens after each block?",
        "SELECT model, task_label, block, sum(settled) / sum(n) FROM probe_by_document GROUP BY ALL",
        lambda world_rows: [
            (*key, block, mean(row["stable_from"] <= block for row in members))
            for key, members in grouped(world_rows.probed.values(), "model", "task").items()
            for block in range(1, members[0]["blocks"] + 1)
        ],
    ),
    Question(
        "How sure is each block?",
        "SELECT model, block, sum(p1) / sum(n) FROM probe_by_document GROUP BY ALL",
        lambda world_rows: [
            (model, block, mean(row["p1"][block - 1] for row in members))
            for (model,), members in grouped(world_rows.probed.values(), "model").items()
            for block in range(1, members[0]["blocks"] + 1)
        ],
    ),
)


@pytest.fixture(scope="module")
def world_rows(example_spool: Path) -> WorldRows:
    return WorldRows(example_spool)


@pytest.fixture(scope="module")
def database(example_database: Path, open_computed: Opener) -> Iterator[Database]:
    with open_computed(example_database) as opened:
        yield opened


@pytest.mark.parametrize("question", [*AUDIT, *OURS], ids=lambda question: question.text)
def test_short_sql_answers_equal_plain_loops(question: Question, database: Database, world_rows: WorldRows) -> None:
    saved = question.sql.startswith("@")
    sql = saved_query(question.sql[1:]).with_defaults() if saved else question.sql
    assert len(sql.strip().splitlines()) <= MOST_LINES
    assert not [operator for operator in ("->", "json", "params") if operator in sql.lower()]
    answer = database.duck.execute(sql).fetchall()
    assert answer
    expected = sorted(map(_rounded, question.slow(world_rows)), key=_sortable)
    assert sorted(map(_rounded, answer), key=_sortable) == expected


@pytest.mark.parametrize("name", OVER_VIEWS)
def test_saved_query_over_documents_equals_its_form_over_views(name: str, database: Database) -> None:
    answers = [database.duck.execute(sql).fetchall() for sql in (saved_query(name).with_defaults(), OVER_VIEWS[name])]
    result, plain = (sorted(map(_rounded, answer), key=_sortable) for answer in answers)
    assert result == plain


def test_there_are_fifty_distinct_questions() -> None:
    assert len(AUDIT) == len(OURS) == 25 and len({question.text for question in (*AUDIT, *OURS)}) == 50


def _rounded(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row with numbers rounded, so that 32-bit floats and other orders of summation agree."""
    return tuple(
        float(f"{value:.4g}") + 0.0
        if isinstance(value, float | int) and not isinstance(value, bool) and math.isfinite(value)
        else value
        for value in row
    )


def _sortable(row: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(map(str, row))
