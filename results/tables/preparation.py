"""Fits, calibrations and trainings, and spellings of tokens."""

from typing import Final

from exitbench.results.tables.declared import ATTEMPT_ID, Column, Table

PREPARATION: Final = (
    Table(
        "fit_curve",
        "One row per attempt and epoch of a fit.",
        (
            ATTEMPT_ID,
            Column("epoch", "INTEGER", "in the order trained", key=True),
            Column("train_loss", "DOUBLE", "loss on the documents that the method was fitted on"),
            Column("held_out_loss", "DOUBLE", "loss on documents kept out of it"),
            Column("held_out_accuracy", "DOUBLE", "accuracy on documents kept out of it"),
        ),
        file="fit_curve",
    ),
    Table(
        "calibration_step",
        "One row per attempt and level tried, conservative first; only the last of an attempt can have failed.",
        (
            ATTEMPT_ID,
            Column("step", "INTEGER", "1 is the most conservative level", key=True),
            Column("threshold", "DOUBLE", "the level, a value of the method's own parameter"),
            Column("mean_loss", "DOUBLE", "over the calibration documents, 0..1"),
            Column("p_value", "DOUBLE", "of a loss above delta, NULL under a rule that tests nothing", required=False),
            Column("passed", "BOOLEAN", "the walk went on"),
            Column("mean_exit_layer", "DOUBLE", "mean exit layer at that level"),
            Column("n", "BIGINT", "calibration documents"),
        ),
        file="calibration",
    ),
    Table(
        "training_run",
        "One row per trained model: its recipe and training card.",
        (
            Column("weights_sha256", "VARCHAR", "digest of the weights, as in model_artifact", key=True),
            Column("recipe", "VARCHAR", "what it was trained by"),
            Column("card", "JSON", "all that is known, JSON"),
        ),
        arrives_by=("weights_sha256",),
    ),
    Table(
        "training_log",
        "One row per step, block and metric of a training.",
        (
            Column(
                "weights_sha256",
                "VARCHAR",
                "digest of the weights, as in model_artifact",
                key=True,
                references="training_run",
                added=True,
            ),
            Column("step", "INTEGER", "of the optimiser", key=True),
            Column("block", "SMALLINT", "1..L, NULL for the whole model", key=True, required=False),
            Column("metric", "VARCHAR", "name of the metric", key=True),
            Column("value", "DOUBLE", "value of the metric"),
        ),
        indexed=False,
        arrives_by=("weights_sha256",),
    ),
    Table(
        "token_text",
        "One row per tokenizer and token id.",
        (
            Column("tokenizer_sha256", "VARCHAR", "digest of the tokenizer", key=True, added=True),
            Column("token_id", "INTEGER", "number of the token", key=True),
            Column("text", "VARCHAR", "as the tokenizer spells it, with its marks of spaces"),
            Column(
                "begins_word",
                "BOOLEAN",
                "it is the first piece of a word (every token, where a tokenizer marks no spaces), NULL for tokens "
                "that are no text",
                required=False,
            ),
        ),
        arrives_by=("tokenizer_sha256",),
    ),
)
