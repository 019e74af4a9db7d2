"""Which kinds of token settle early: copied words, or those that need several facts."""

from exitbench.reports.tables.columns import number, parameters, text

ORDER = 20
TITLE = "Depth by kind of token"
CAPTION = (
    "On the built-in data, whose words carry their kind. Probes: first match is the first block whose most likely "
    "token is the final one, stable from is the first after which it stays so. Real decodes: the mean exit layer. All "
    "count blocks executed. The last column compares with full depth at the same position."
)
EMPTY = "No data yet: run `nox -s bench`, or any suite with `probe` cells on the built-in data."

COLUMNS = (
    text("Model", "model"),
    text("Task", "task"),
    text("Cells", "kind"),
    text("Method", "method"),
    parameters("Parameters", "params"),
    text("KV policy", "kv_policy", collapses=True),
    text("Kind of token", "token_kind"),
    number("Tokens", "n", "{:,}"),
    number("First match", "mean_first_match", "{:.2f}"),
    number("Stable from", "mean_stable_from", "{:.2f}"),
    number("Exit layer", "mean_exit_layer", "{:.2f}"),
    number("Tokens = full", "share_equal_full", "{:.1%}"),
)
