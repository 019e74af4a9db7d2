"""Answers and their scores, and tables that every ingest derives from them."""

from typing import Final

from exitbench.results.tables.declared import ATTEMPT_ID, DOC_KEY, Column, Table

ANSWERS: Final = (
    Table(
        "sample",
        "One row per attempt and document: the answer and its scores.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column("output_text", "VARCHAR", "the answer", redacted_sql="''"),
            Column(
                "output_ids",
                "INTEGER[]",
                "tokens of the answer, end of sequence included, none where an export left them out",
                redacted_sql="[]",
            ),
            Column("n_prompt", "INTEGER", "tokens of the prompt"),
            Column("n_output", "INTEGER", "tokens of the answer"),
            Column("stop_reason", "VARCHAR", "eos, length or stop_string"),
            Column("scores", "JSON", "of all the task's metrics, JSON, under the version it had when it ran"),
            Column("statistics", "JSON", "sums from which metrics of a corpus are made, JSON"),
            Column(
                "n_cut",
                "INTEGER",
                "tokens of the prompt that were cut off, since it was longer than the suite or the model allows, "
                "NULL where nothing is cut",
                required=False,
            ),
            Column(
                "input_text",
                "VARCHAR",
                "that an encoder classified, of full depth's runs; NULL elsewhere, and where an export left it out",
                required=False,
                redacted_sql="NULL",
            ),
            Column(
                "gold_text",
                "VARCHAR",
                "the right answer as it is spelled, likewise",
                required=False,
                redacted_sql="NULL",
            ),
        ),
        file="samples",
    ),
    Table(
        "sample_rescore",
        "One row per attempt, document and metric version: scores of stored outputs under another version than the "
        "attempt's own.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column("metric_version", "VARCHAR", "version that the scores are of", key=True, added=True),
            Column("scores", "JSON", "of all the task's metrics"),
            Column("statistics", "JSON", "sums from which metrics of a corpus are made"),
            Column("scored_at", "TIMESTAMP", "UTC", added=True),
        ),
        arrives_by=("attempt_id", "metric_version"),
    ),
    Table(
        "metric",
        "One row per attempt, metric and metric version.",
        (
            ATTEMPT_ID,
            Column("ordinal", "INTEGER", "order in which the attempt wrote its metrics", added=True),
            Column("metric", "VARCHAR", "name of the metric", key=True),
            Column("metric_version", "VARCHAR", "version of the metric's definition", key=True),
            Column("value", "DOUBLE", "the metric's value"),
            Column(
                "ci_low", "DOUBLE", "lower end of the value's 95% interval, NULL where there is none", required=False
            ),
            Column(
                "ci_high", "DOUBLE", "upper end of the value's 95% interval, NULL where there is none", required=False
            ),
            Column("ci_method", "VARCHAR", "how the interval was made", required=False),
            Column("n", "BIGINT", "documents"),
            Column(
                "scored_at",
                "TIMESTAMP",
                "UTC: the attempt's end, or later for a metric that was rescored from stored outputs",
                added=True,
            ),
            Column(
                "role",
                "VARCHAR",
                "what it is about: headline (the task's headline metric), task (its others), agreement (with full "
                "depth), depth (blocks), cost (work, as counted), speed (time, as measured), energy (as counters of "
                "the machine tell), preparation (of a fit or calibration) or data (documents and prompts left out "
                "or cut)",
            ),
            Column(
                "lower_is_better", "BOOLEAN", "less of the metric is better, NULL where it is no score", required=False
            ),
            Column(
                "scale_low",
                "DOUBLE",
                "least value that the score can have, NULL where it has no scale or is no score",
                required=False,
            ),
            Column("scale_high", "DOUBLE", "greatest value that it can have, NULL likewise", required=False),
        ),
        file="metrics",
        arrives_by=("attempt_id", "metric_version"),
    ),
    Table(
        "quality_difference",
        "One row per attempt and part of its documents: the paired difference to full depth of the same checkpoint. "
        "Every ingest makes it, since SQL cannot invert a distribution.",
        (
            ATTEMPT_ID,
            Column("full_attempt_id", "VARCHAR", "full depth's run"),
            Column("metric", "VARCHAR", "the task's headline metric"),
            Column(
                "part",
                "VARCHAR",
                "all, choosing or confirming documents; the macro is_choosing tells which a document belongs to",
                key=True,
            ),
            Column("scored_at", "TIMESTAMP", "of the run's scores, UTC"),
            Column("full_scored_at", "TIMESTAMP", "of full depth's"),
            Column("n", "INTEGER", "documents"),
            Column("n_up", "INTEGER", "documents with a higher score"),
            Column("n_down", "INTEGER", "documents with a lower score"),
            Column(
                "delta",
                "DOUBLE",
                "mean difference to full depth, NULL where the metric is no mean of its documents",
                required=False,
            ),
            Column(
                "delta_low",
                "DOUBLE",
                "lower end of its 95% interval, NULL also where fewer than two documents leave none",
                required=False,
            ),
            Column("delta_high", "DOUBLE", "upper end", required=False),
        ),
        indexed=False,
    ),
    Table(
        "choice_answer",
        "One row per attempt, document and text whose log-likelihood was asked for.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column(
                "choice",
                "INTEGER",
                "number of the text: 1 = the first that the task lists (behind a document's choices its further "
                "requests, such as choices without their context)",
                key=True,
            ),
            Column(
                "text",
                "VARCHAR",
                "that was scored, NULL where an export left it out",
                required=False,
                redacted_sql="NULL",
            ),
            Column("n_context", "INTEGER", "tokens of the context"),
            Column(
                "n_cut",
                "INTEGER",
                "tokens of the context that were cut off, since the model has no positions for them",
                required=False,
            ),
            Column("n_tokens", "INTEGER", "tokens that were scored"),
            Column(
                "logprob",
                "DOUBLE",
                "natural logarithm of its probability given the context, each token's read where it left",
            ),
            Column("full_logprob", "DOUBLE", "at full depth, NULL where full depth was not scored", required=False),
            Column("is_greedy", "BOOLEAN", "each token is the most probable where it left"),
            Column("full_is_greedy", "BOOLEAN", "at full depth, NULL where full depth was not scored", required=False),
            Column(
                "is_right",
                "BOOLEAN",
                "the task says that the choice is right, NULL where it has no right choice",
                required=False,
            ),
            Column("is_chosen", "BOOLEAN", "the choice is the most probable of the document's", required=False),
            Column(
                "full_is_chosen",
                "BOOLEAN",
                "at full depth the choice is the most probable of the document's, NULL where full depth was not scored",
                required=False,
            ),
        ),
        file="choices",
        indexed=False,
    ),
    Table(
        "sequence_block",
        "One row per attempt, document and block that was asked, the last one included, of encoders. A regression "
        "has no label and no probability; the last block asks no gate.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column("block", "SMALLINT", "that was asked, 1..L; the last one is the model's own answer", key=True),
            Column(
                "label_id",
                "INTEGER",
                "most probable label, by its place among the task's, from 0; NULL in a regression",
                required=False,
            ),
            Column("prediction", "DOUBLE", "the same as a number; of a regression what the block's off-ramp says"),
            Column("probability", "FLOAT", "of that label; NULL in a regression", required=False),
            Column("gold", "DOUBLE", "right label by its place, or the right number"),
            Column(
                "score",
                "FLOAT",
                "what the gate said of the document; NULL at the last block, which asks none, NaN where its formula "
                "gives no number",
                required=False,
            ),
            Column("exited", "BOOLEAN", "the document left here"),
        ),
        file="sequence_trace",
        indexed=False,
    ),
    Table(
        "token_tag",
        "One row per token of a stored answer that belongs to a word, and tagger.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column(
                "position",
                "INTEGER",
                "as in token_trace of the same attempt_id, and in probe_trace of the probe whose setting_id (see "
                "runs) is the same",
                key=True,
            ),
            Column("upos", "VARCHAR", "universal part of speech of the word, which all its pieces have"),
            Column("tagger", "VARCHAR", "library, model and versions", key=True, added=True),
        ),
        indexed=False,
        arrives_by=("attempt_id", "tagger"),
    ),
)
