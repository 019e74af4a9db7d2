"""Answers with the exit layer of every token (Tables 5 and 13 of the natural-capability paper)."""

from exitbench.reports.figures.natcap import EMPTY
from exitbench.reports.tables.columns import number, text

__all__ = ["CAPTION", "COLUMNS", "EMPTY", "TITLE"]

TITLE = "Answers with the exit of every token"
CAPTION = (
    "One document of each task, chosen by its key, not for what it shows. After each token, as the tokenizer spells "
    "it: its exit layer in blocks executed. First the ideal exits of full depth's answer (the first block whose most "
    "likely token is the last block's); then, where it was run, a real decode that leaves at the first block which "
    "says what full depth would say at that point, so that keys and values of skipped blocks come from the KV policy "
    "and later tokens may differ; a decoder without an encoder has its first token from reading the prompt, through "
    "all blocks. Trained on: the last block alone, or every block (joint optimisation). After Tables 5 and 13 of Early "
    "Exit Is a Natural Capability, which print one text each, exits counted from 0, and let the first four tokens of "
    "Table 13 run through all blocks."
)

COLUMNS = (
    text("Task", "task"),
    text("Document", "doc_key"),
    text("Model", "model"),
    text("Trained on", "training"),
    text("Run", "run"),
    number("Blocks", "blocks", "{}"),
    text("Answer / exit layers", "answer", long=True),
    number("Mean exit", "mean_exit", "{:.2f}"),
    number("Tokens", "n", "{:,}"),
)
