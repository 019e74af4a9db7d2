"""Read-outs of one token after every sublayer of every block (Table 12 of the natural-capability paper)."""

from exitbench.reports.figures.natcap import EMPTY
from exitbench.reports.tables.columns import number, text

__all__ = ["CAPTION", "COLUMNS", "EMPTY", "TITLE"]

TITLE = "One token, read out of every part of every block"
CAPTION = (
    "Final norm and LM head applied to the outputs that attention and feed-forward each add to the residual stream, "
    "to the stream after them, and to the stream after the block. Columns: the ten most probable tokens, as spelled "
    "by the tokenizer, the largest probability, the rank of the final token among the ten, and the entropy in nats. "
    "Of the recorded tokens of each model, the one whose final token becomes the most probable at the latest block: a "
    "late token, not a typical one. Trained on: the last block alone, or every block (joint optimisation). After "
    "Table 12 of Early Exit Is a Natural Capability, which prints ids."
)

COLUMNS = (
    text("Model", "model"),
    text("Trained on", "training"),
    text("Task", "task"),
    text("Document", "doc_key"),
    number("Position", "position", "{}"),
    number("Block", "block", "{}"),
    text("Read-out", "read_out"),
    number("Largest probability", "probability", "{:.3f}"),
    text("Most likely tokens", "tokens", long=True),
    number("Final is", "final_rank", "{}"),
    number("Entropy", "entropy", "{:.2f}"),
)
