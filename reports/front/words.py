"""Recommendation cards as text: every sentence and number is written here, so that the page's script only selects."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from exitbench.reports.frame import Row
from exitbench.reports.front.cards import BASELINES, MOST_PERCENT, Card, Recommendation, calibrated, verdict
from exitbench.reports.front.suite_toml import suite_toml
from exitbench.reports.labels import OTHER_LENGTH, Setting, label_in_sentence, number_format, setting
from exitbench.reports.tables.columns import ABSENT, format_number, metric_digits
from exitbench.terminal import number_of


@dataclass(frozen=True)
class Alternative:
    """Setting to compare the recommended one with, as text: one row of a card's small table."""

    what: str
    name: str
    speedup: str
    delta: str
    blocks: str


@dataclass(frozen=True)
class RecommendationText:
    """One recommendation of a card, as text.

    Attributes:
        from_percent: Lower end of the allowed loss, included.
        until_percent: Upper end, excluded; None for no limit.
        name: Recommended setting.
        is_faster: Whether a timed setting is recommended. Such a setting is confirmed to lose at most this loss and to
            be faster than full depth.
        gains: The large numbers of the card, each with its meaning: speed-up and quality, or blocks run if not timed.
        verdict: Comparison with a static depth, in a sentence.
        facts: Pairs of term and value: quality, depth, agreement and so on.
        alternatives: Settings to compare with.
        next_recommendation: Allowed loss from which another setting is recommended, rounded up to a step of the slider,
            and that setting as text; None if there is none.
        cell_id: Cell of the run; None for full depth.
        toml: Suite that repeats the run.
    """

    from_percent: float
    until_percent: float | None
    name: str
    is_faster: bool
    gains: tuple[tuple[str, str], ...]
    verdict: str
    facts: tuple[tuple[str, str], ...]
    alternatives: tuple[Alternative, ...]
    next_recommendation: tuple[float, str] | None
    cell_id: str | None
    toml: str | None


@dataclass(frozen=True)
class CardText:
    """Card as text: a model on a task, the scope of its numbers, and its recommendations."""

    model: str
    task: str
    is_timed: bool
    is_generated: bool
    footer: str
    recommendations: tuple[RecommendationText, ...]


def recommends_faster(card: CardText, percent: float) -> bool:
    """Return whether the recommendation at an allowed loss of `percent` % is confirmed to be faster than full depth."""
    return next(text for text in reversed(card.recommendations) if text.from_percent <= percent).is_faster


def describe_card(
    card: Card, names: Mapping[Setting, str], exports: Mapping[str, Row], calibrations: Sequence[Row]
) -> CardText:
    """Return a card as text.

    Args:
        card: The card.
        names: Label of each setting.
        exports: Rows of exports.sql, by cell id.
        calibrations: Rows of the table of calibrated thresholds.
    """
    writer = _CardWriter(card, names, exports, calibrations)
    return CardText(
        card.full["model"],
        card.full["task"],
        card.timed > 0,
        bool(card.full["is_generated"]),
        writer.footer(),
        tuple(writer.recommendation(index) for index in range(len(card.recommendations))),
    )


@dataclass(frozen=True)
class _CardWriter:
    card: Card
    names: Mapping[Setting, str]
    exports: Mapping[str, Row]
    calibrations: Sequence[Row]

    def recommendation(self, index: int) -> RecommendationText:
        recommendation = self.card.recommendations[index]
        row = recommendation.headline
        return RecommendationText(
            recommendation.from_percent,
            recommendation.until_percent,
            self.name(row) if row else "full depth",
            row is not None and row["speedup"] is not None,
            tuple(self.gains(recommendation)),
            verdict(self.card, recommendation, self.name),
            tuple(self.facts(recommendation)),
            tuple(self.alternatives(recommendation)),
            self.next_recommendation(index),
            row["cell_id"] if row else None,
            self.toml(row) if row else None,
        )

    def name(self, row: Row) -> str:
        return label_in_sentence(self.names[setting(row)])

    def short(self, row: Row) -> str:
        """Return the label of a row's setting; for a baseline only its parameters, since the table row names it."""
        name = self.name(row)
        return name.partition(" ")[2] if row["method"] in BASELINES else name

    def gains(self, recommendation: Recommendation) -> Iterator[tuple[str, str]]:
        best, full = recommendation.headline, self.card.full
        if best is not None and best["speedup"] is not None:
            mark = f"{OTHER_LENGTH} " if best["is_other_length"] else ""
            per_token = format_number(best["speedup_per_token"], "{:.2f}×")
            interval = f"95 % CI {best['confirming_speedup_low']:.2f} to {best['confirming_speedup_high']:.2f}"
            yield f"{best['confirming_speedup']:.2f}×", f"{mark}faster per request ({interval}), {per_token} per token"
        elif best is not None:
            yield f"{_blocks(best)}", "blocks run; not timed"
        if (row := full if best is None else best)["value"] is not None:
            digits = metric_digits(row)
            compared = "at full depth" if best is None else f"(full depth {full['value']:.{digits}f})"
            yield f"{row['value']:.{digits}f}", f"{row['metric']} {compared}"

    def facts(self, recommendation: Recommendation) -> Iterator[tuple[str, str]]:
        if (row := recommendation.headline) is not None:
            if (note := number_format(row)) is not None:
                yield "Number format", note
            yield "Change", _confirmed_change(row)
            yield "Blocks run", f"{_blocks(row)} per token"
            if row["token_match"] is not None:
                yield "Agreement", f"{row['token_match']:.1%} of tokens are full depth's"
            yield "Guaranteed", self.guarantee(row)
        if (worth := recommendation.untimed) is not None and worth is not row:
            yield "Not timed", f"{self.name(worth)} runs {_blocks(worth)} blocks and is chosen at this loss too"

    def guarantee(self, row: Row) -> str:
        if row["promised_delta"] is not None:
            return (
                f"yes: calibrated for an expected loss ({row['promised_consistency']}) of at most "
                f"{row['promised_delta']:g}, with confidence {1 - row['promised_epsilon']:g}"
            )
        basis = (
            f"no calibration: chosen among {number_of(self.card.timed, 'timed setting')} on a third of the documents, "
            "confirmed and reported on the others"
            if row["speedup"] is not None
            else "no: not timed"
        )
        chosen = calibrated(self.card, self.calibrations)
        if not chosen:
            return basis
        first = chosen[0]
        return (
            f"{basis}. A calibration chose {first['method']} at {first['threshold']:g} (expected loss at most "
            f"{first['delta']:g}, confidence {1 - first['epsilon']:g})"
        )

    def alternatives(self, recommendation: Recommendation) -> list[Alternative]:
        lines: list[Alternative] = []
        for what, static in (
            ("Best static", recommendation.static),
            ("Least lossy static", self.card.safest_static),
        ):
            if (
                static is not None
                and static is not recommendation.headline
                and (not lines or static is not recommendation.static)
            ):
                lines.append(self.line(what, static))
        if recommendation.method is not None and recommendation.method is not recommendation.headline:
            lines.append(self.line("Chosen method", recommendation.method))
        if recommendation.random is not None:
            lines.append(self.line("Random, about as deep", recommendation.random))
        if (oracle := self.card.oracle) is not None:
            # its blocks run are not comparable: to know the first correct block, it runs all of them
            depth = f"exits at {oracle['mean_exit_layer']:.2f}"
            lines.append(Alternative("Oracle", self.short(oracle), ABSENT, ABSENT, depth))
        return lines

    def line(self, what: str, row: Row) -> Alternative:
        speedup = format_number(row["speedup"], "{:.2f}×")
        change = ABSENT if row["delta"] is None else _change(row)
        return Alternative(what, self.short(row), speedup, change, format_number(row["mean_blocks_run"], "{:.2f}"))

    def next_recommendation(self, index: int) -> tuple[float, str] | None:
        now = self.card.recommendations[index].headline
        candidates = (
            recommendation
            for recommendation in self.card.recommendations[index + 1 :]
            if recommendation.headline is not None and recommendation.headline is not now
        )
        if (other := next(candidates, None)) is None or other.headline is None:
            return None
        percent = ceil(10 * other.from_percent) / 10
        timed = other.headline["speedup"] is not None
        gain = f"{other.headline['confirming_speedup']:.2f}×" if timed else f"{_blocks(other.headline)} blocks"
        return (percent, f"{self.name(other.headline)}, {gain}") if percent <= MOST_PERCENT else None

    def toml(self, row: Row) -> str | None:
        export = self.exports.get(row["cell_id"])
        return None if export is None else suite_toml(export, f"recommended-{row['model']}-{row['task']}")

    def footer(self) -> str:
        full, timed = (
            self.card.full,
            [row for row in self.card.rows if row["timed_documents"] and not row["is_full_depth"]],
        )
        counts = {(row["timed_documents"], row["timed_rounds"]) for row in timed}
        about = [
            f"{size(full['parameters'])} parameters",
            full["setting"],
            number_of(full["n"], "document") + (" (subset)" if full["limited"] else ""),
            *(f"{documents} timed × {rounds}" for documents, rounds in sorted(counts, key=str)),
        ]
        return " · ".join(about)


def size(parameters: int | None) -> str:
    """Return a number of parameters in short form: ``'1.7 M'``."""
    if parameters is None:
        return "an unknown number of"
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if parameters >= unit:
            return f"{parameters / unit:.3g} {name}"
    return str(parameters)


def _change(row: Row) -> str:
    digits = metric_digits(row)
    if row["delta_low"] is None:
        return f"{row['delta']:+.{digits}f}"
    interval = f"[{row['delta_low']:+.{digits}f}, {row['delta_high']:+.{digits}f}]"
    return f"{row['delta']:+.{digits}f} {interval}" + ("" if row["is_paired"] else " (not paired)")


def _confirmed_change(row: Row) -> str:
    """Return as text the metric's difference to full depth, on documents not used to choose, and the loss's bound."""
    if row["confirming_delta_low"] is None:
        return _change(row)
    digits = metric_digits(row)
    interval = f"[{row['confirming_delta_low']:+.{digits}f}, {row['confirming_delta_high']:+.{digits}f}]"
    documents = number_of(row["confirming_n"], "document")
    most = f"at most {row['confirming_loss_high_percent']:.1f} % worse"
    return f"{row['confirming_delta']:+.{digits}f} {interval} on {documents} that it was not chosen on: {most}"


def _blocks(row: Row) -> str:
    return f"{format_number(row['mean_blocks_run'], '{:.2f}')} of {row['blocks']}"


def facts(runs: Sequence[Row], results: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    """Return pairs of term and value on what ran: models, data, machine and so on.

    Args:
        runs: Rows of title.sql.
        results: Rows of the results table.
    """
    if not runs:
        return ()
    shapes: dict[str, list[str]] = defaultdict(list)
    for model, blocks, parameters, random in _distinct(runs, "model", "blocks", "parameters", "random_weights"):
        weights = ", never trained" if random else ""
        shapes[f"{blocks} blocks, {size(parameters)} parameters{weights}"].append(model)
    kinds: dict[str, list[str]] = defaultdict(list)
    for task, is_generated in _distinct(runs, "task", "is_generated"):
        kinds["generated" if is_generated else "real"].append(task)
    # if anything was timed, show the machine of the timings
    measured = [row for row in runs if row["is_timed"]] or runs
    days = sorted({row["first_day"] for row in runs} | {row["last_day"] for row in runs})
    machines = (
        machine if has_gpu else f"{machine}, {threads} thread{'s' * (threads != 1)}"
        for machine, has_gpu, threads in _distinct(measured, "machine", "has_gpu", "threads")
    )
    commits = (
        (commit[:12] if commit else "unknown") + (" with changes" if dirty else "")
        for commit, dirty in _distinct(runs, "commit", "dirty")
    )
    timed = _range(row["timed_documents"] for row in results)
    return (
        ("Models", "; ".join(f"{', '.join(models)} ({shape})" for shape, models in shapes.items())),
        ("Data", "; ".join(f"{', '.join(tasks)} ({kind})" for kind, tasks in kinds.items())),
        ("Documents", f"{_range(row['documents'] for row in runs)} per task" + (f", {timed} timed" if timed else "")),
        ("Machine", "; ".join(machines)),
        ("Commit", ", ".join(commits)),
        ("Date", days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"),
    )


def data_warning(runs: Sequence[Row]) -> str:
    """Return a warning that data are generated and models small; empty if no data are generated."""
    generated = [row for row in runs if row["is_generated"]]
    if not generated:
        return ""
    largest = max((row["parameters"] or 0 for row in generated), default=0)
    subject = "All data are" if len(generated) == len(runs) else "Part of the data is"
    return f"{subject} generated, for models of at most {size(largest)} parameters."


def _distinct(rows: Sequence[Row], *names: str) -> list[tuple[Any, ...]]:
    return list(dict.fromkeys(tuple(row[name] for name in names) for row in rows))


def _range(numbers: Iterable[int | None]) -> str:
    counts = sorted({number for number in numbers if number is not None})
    if not counts:
        return ""
    return f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
