"""Table of digests that identify the weights and documents used by the runs."""

from exitbench.reports.frame import Row
from exitbench.reports.tables.columns import TableCell, TableColumn, number, text

SECTION = "provenance"
ORDER = 50
TITLE = "Weights and documents"
CAPTION = "SHA-256 of the models' weights, and of the canonical form of the tasks' documents."
EMPTY = "No data yet: run `nox -s bench`."


def _blocks(row: Row) -> TableCell:
    if row["blocks"] is None:
        return TableCell("", None)
    encoder = f" (encoder {row['encoder_blocks']})" if row["encoder_blocks"] else ""
    return TableCell(f"{row['blocks']}{encoder}", row["blocks"])


COLUMNS = (
    text("What", "artifact"),
    text("Name", "name"),
    text("Kind or split", "kind"),
    TableColumn("Blocks", _blocks, numeric=True),
    number("Parameters", "parameters", "{:,}"),
    number("Documents", "documents", "{:,}"),
    text("Source", "source"),
    text("SHA-256", "sha256", long=True),
)
