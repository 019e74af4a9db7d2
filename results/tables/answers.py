"""Tables of answers and their scores, and tables that every ingest derives from them."""

from typing import Final

from exitbench.results.tables.declared import ATTEMPT_ID, DOC_KEY, Column, Table

ANSWERS: Final = (
    Table(
        "sample",
        "One row per attempt and document: the answer and its scores.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column("output_text", "VARCHAR", "text of the answer", redacted_sql="''"),
            Column(
                "output_ids",
                "INTEGER[]",
                "tokens of the answer, end of sequence included; empty if an export omitted them",
                redacted_sql="[]",
            ),
            Column("n_prompt", "INTEGER", "number of tokens of the prompt"),
            Column("n_output", "INTEGER", "number of tokens of the answer"),
            Column("stop_reason", "VARCHAR", "reason why decoding ended: eos, length or stop_string"),
            Column(
                "scores",
                "JSON",
                "scores by all metrics of the task, JSON, in the metrics' version at the time of the run",
            ),
            Column("statistics", "JSON", "sums from which corpus metrics are computed, JSON"),
            Column(
                "n_cut",
                "INTEGER",
                "number of prompt tokens that were cut off because the prompt was longer than the suite or the model "
                "allows, NULL if none were",
                required=False,
            ),
            Column(
                "input_text",
                "VARCHAR",
                "text that an encoder classified, of full depth's runs; NULL elsewhere, and if an export omitted it",
                required=False,
                redacted_sql="NULL",
            ),
            Column(
                "gold_text",
                "VARCHAR",
                "the right answer as text; NULL in the same cases",
                required=False,
                redacted_sql="NULL",
            ),
        ),
        file="samples",
    ),
    Table(
        "sample_rescore",
        "One row per attempt, document and metric version: scores of stored outputs under a version other than the "
        "attempt's.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column("metric_version", "VARCHAR", "version of the metrics that the scores are of", key=True, added=True),
            Column("scores", "JSON", "scores by all metrics of the task"),
            Column("statistics", "JSON", "sums from which corpus metrics are computed"),
            Column("scored_at", "TIMESTAMP", "time of scoring, UTC", added=True),
        ),
        import_key=("attempt_id", "metric_version"),
    ),
    Table(
        "metric",
        "One row per attempt, metric and metric version.",
        (
            ATTEMPT_ID,
            Column("ordinal", "INTEGER", "order in which the attempt wrote its metrics", added=True),
            Column("metric", "VARCHAR", "name of the metric", key=True),
            Column("metric_version", "VARCHAR", "version of the metric's definition", key=True),
            Column("value", "DOUBLE", "value of the metric"),
            Column("ci_low", "DOUBLE", "lower end of the value's 95% interval, NULL if it has none", required=False),
            Column("ci_high", "DOUBLE", "upper end of the value's 95% interval, NULL if it has none", required=False),
            Column("ci_method", "VARCHAR", "method that computed the interval", required=False),
            Column("n", "BIGINT", "number of documents"),
            Column(
                "scored_at",
                "TIMESTAMP",
                "time of scoring, UTC: the attempt's end, or later if the metric was rescored from stored outputs",
                added=True,
            ),
            Column(
                "role",
                "VARCHAR",
                "topic of the metric: headline (the task's headline metric), task (its other metrics), agreement "
                "(with full depth), depth (blocks), cost (counted work), speed (measured time), energy (from the "
                "machine's counters), format (effects of the number format), preparation (of a fit or calibration) or "
                "data (documents and prompts omitted or cut)",
            ),
            Column(
                "lower_is_better",
                "BOOLEAN",
                "smaller values of the metric are better, NULL if it is not a score",
                required=False,
            ),
            Column(
                "scale_low",
                "DOUBLE",
                "smallest possible value of the score, NULL if it has no scale or is not a score",
                required=False,
            ),
            Column("scale_high", "DOUBLE", "largest possible value, NULL in the same cases", required=False),
        ),
        file="metrics",
        import_key=("attempt_id", "metric_version"),
    ),
    Table(
        "quality_difference",
        "One row per attempt and part of its documents: the paired difference to full depth of the same checkpoint. "
        "Computed after every ingest and after opening a snapshot, since SQL cannot invert a distribution.",
        (
            ATTEMPT_ID,
            Column("full_attempt_id", "VARCHAR", "attempt of full depth"),
            Column("metric", "VARCHAR", "the task's headline metric"),
            Column(
                "part",
                "VARCHAR",
                "part of the documents: all, choosing or confirming; the macro is_choosing returns the part of a "
                "document",
                key=True,
            ),
            Column("scored_at", "TIMESTAMP", "time when the run was scored, UTC"),
            Column("full_scored_at", "TIMESTAMP", "time when full depth was scored, UTC"),
            Column("n", "INTEGER", "number of documents"),
            Column("n_up", "INTEGER", "number of documents with a higher score"),
            Column("n_down", "INTEGER", "number of documents with a lower score"),
            Column(
                "delta",
                "DOUBLE",
                "difference to full depth, NULL if documents' contributions to the metric cannot be computed",
                required=False,
            ),
            Column(
                "delta_low",
                "DOUBLE",
                "lower end of its 95% interval, NULL also if there are fewer than two documents",
                required=False,
            ),
            Column("delta_high", "DOUBLE", "upper end of that interval", required=False),
        ),
        indexed=False,
        local=True,
    ),
    Table(
        "choice_answer",
        "One row per attempt, document and text whose log-likelihood was requested.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column(
                "choice",
                "INTEGER",
                "number of the text: 1 = first of the task's list (after a document's choices come its other "
                "requests, such as choices without their context)",
                key=True,
            ),
            Column(
                "text",
                "VARCHAR",
                "text that was scored, NULL if an export omitted it",
                required=False,
                redacted_sql="NULL",
            ),
            Column("n_context", "INTEGER", "number of tokens of the context"),
            Column(
                "n_cut",
                "INTEGER",
                "number of tokens of the context that were cut off because the model has too few positions",
                required=False,
            ),
            Column("n_tokens", "INTEGER", "number of tokens that were scored"),
            Column(
                "logprob",
                "DOUBLE",
                "natural logarithm of the text's probability given the context; each token's probability is read at "
                "its exit",
            ),
            Column(
                "full_logprob", "DOUBLE", "the same at full depth, NULL if full depth was not scored", required=False
            ),
            Column("is_greedy", "BOOLEAN", "each token is the most probable at its exit"),
            Column(
                "full_is_greedy", "BOOLEAN", "the same at full depth, NULL if full depth was not scored", required=False
            ),
            Column(
                "is_right",
                "BOOLEAN",
                "the choice is the right one of the task, NULL if the task has no right choice",
                required=False,
            ),
            Column("is_chosen", "BOOLEAN", "the choice is the document's most probable one", required=False),
            Column(
                "full_is_chosen",
                "BOOLEAN",
                "the choice is the document's most probable one at full depth, NULL if full depth was not scored",
                required=False,
            ),
        ),
        file="choices",
        indexed=False,
    ),
    Table(
        "sequence_block",
        "One row per attempt of an encoder, document and gated block, including the last block. Regression has no "
        "label and no probability; the last block has no gate.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column(
                "block",
                "SMALLINT",
                "number of the gated block, 1..L; the last one gives the model's own answer",
                key=True,
            ),
            Column(
                "label_id",
                "INTEGER",
                "most probable label, as its index in the task's list, from 0; NULL for regression",
                required=False,
            ),
            Column("prediction", "DOUBLE", "the label as a number; for regression, the output of the block's off-ramp"),
            Column("probability", "FLOAT", "probability of that label; NULL for regression", required=False),
            Column("gold", "DOUBLE", "index of the right label, or the right number"),
            Column(
                "score",
                "FLOAT",
                "gate's score of the document; NULL at the last block, which has no gate, NaN if its formula gives "
                "no number",
                required=False,
            ),
            Column("exited", "BOOLEAN", "the document exited here"),
        ),
        file="sequence_trace",
        indexed=False,
    ),
    Table(
        "token_tag",
        "One row per tagger and token of a stored answer that belongs to a word.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column(
                "position",
                "INTEGER",
                "position as in token_trace of the same attempt_id, and in probe_trace of the probe with the same "
                "setting_id (see runs)",
                key=True,
            ),
            Column("upos", "VARCHAR", "universal part of speech of the word, the same for all its pieces"),
            Column("tagger", "VARCHAR", "library, model and versions of the tagger", key=True, added=True),
        ),
        indexed=False,
        import_key=("attempt_id", "tagger"),
    ),
)
