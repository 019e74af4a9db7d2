"""Answers with the exit layer of every token (Tables 5 and 13 of the natural-capability paper)."""

from exitbench.reports.figures.natcap import EMPTY
from exitbench.reports.tables.columns import number, text

__all__ = ["CAPTION", "COLUMNS", "EMPTY", "TITLE"]

TITLE = "Answers with the exit layer of every token"
CAPTION = (
    "One document of each task, chosen by its key, not by its content. After each token, as spelled by the tokenizer: "
    "its exit layer in blocks executed. First, the ideal exits of full depth's answer (the first block whose most "
    "probable token is the last block's). Then, if it was run, a real decode that exits at the first block which "
    "agrees with full depth at that point. There, keys and values of skipped blocks come from the KV policy, so later "
    "tokens may differ. A decoder without an encoder reads its first token from the prompt's pass, through all "
    "blocks. Trained on: the last block alone, or every block (joint optimisation). After Tables 5 and 13 of Early "
    "Exit Is a Natural Capability, which print one text each, count exits from 0, and let the first four tokens of "
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
