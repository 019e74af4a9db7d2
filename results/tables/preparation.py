"""Tables of fits, calibrations and trainings, and of the text of every token id."""

from typing import Final

from exitbench.results.tables.declared import ATTEMPT_ID, Column, Table

PREPARATION: Final = (
    Table(
        "fit_curve",
        "One row per attempt and epoch of a fit.",
        (
            ATTEMPT_ID,
            Column("epoch", "INTEGER", "number of the epoch, in the order trained", key=True),
            Column("train_loss", "DOUBLE", "loss on the documents that the method was fitted on"),
            Column("held_out_loss", "DOUBLE", "loss on held-out documents"),
            Column("held_out_accuracy", "DOUBLE", "accuracy on held-out documents"),
        ),
        file="fit_curve",
    ),
    Table(
        "calibration_step",
        "One row per attempt and tested level, the most conservative first; only the last one of an attempt can "
        "have failed.",
        (
            ATTEMPT_ID,
            Column("step", "INTEGER", "number of the level; 1 is the most conservative", key=True),
            Column("threshold", "DOUBLE", "the level, a value of one of the method's parameters"),
            Column("mean_loss", "DOUBLE", "mean loss over the calibration documents, 0..1"),
            Column("p_value", "DOUBLE", "p-value of a loss above delta, NULL if the rule has no test", required=False),
            Column("passed", "BOOLEAN", "the level passed, so the next one was tested"),
            Column("mean_exit_layer", "DOUBLE", "mean exit layer at that level"),
            Column("n", "BIGINT", "number of calibration documents"),
        ),
        file="calibration",
    ),
    Table(
        "training_run",
        "One row per trained model: its recipe and training card.",
        (
            Column("weights_sha256", "VARCHAR", "digest of the weights, as in model_artifact", key=True),
            Column("recipe", "VARCHAR", "recipe of the training"),
            Column("card", "JSON", "the whole training card, JSON"),
        ),
        import_key=("weights_sha256",),
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
            Column("step", "INTEGER", "number of the optimiser step", key=True),
            Column(
                "block", "SMALLINT", "number of the block, 1..L, NULL for the whole model", key=True, required=False
            ),
            Column("metric", "VARCHAR", "name of the metric", key=True),
            Column("value", "DOUBLE", "value of the metric"),
        ),
        indexed=False,
        import_key=("weights_sha256",),
    ),
    Table(
        "token_text",
        "One row per tokenizer and token id.",
        (
            Column("tokenizer_sha256", "VARCHAR", "digest of the tokenizer", key=True, added=True),
            Column("token_id", "INTEGER", "id of the token", key=True),
            Column("text", "VARCHAR", "token as spelled by the tokenizer, with its marks of spaces"),
            Column(
                "begins_word",
                "BOOLEAN",
                "it is the first piece of a word (every token is, if a tokenizer does not mark spaces), NULL for "
                "tokens that are not text",
                required=False,
            ),
        ),
        import_key=("tokenizer_sha256",),
    ),
)
