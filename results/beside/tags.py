"""Part-of-speech tags of the tokens of stored answers, kept in the spool.

<spool>/tags/<attempt_id>/<digest of the tagger's name>/{token_tag.parquet, status.json, DONE}
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from exitbench.results.beside.derived import Derived
from exitbench.results.files.arrow import insert_rows
from exitbench.results.files.bounded import read_table
from exitbench.results.spool.records import TAG
from exitbench.results.spool.schema import arrow_schema
from exitbench.results.tables import TABLES

_FILE: Final = "token_tag.parquet"
TAGS: Final = Derived(TAG, "tagger", (_FILE,), "annotate again")
SCHEMA: Final = arrow_schema(TABLES["token_tag"])
"""One row a token that belongs to a word."""
_KNOWN: Final = "SELECT DISTINCT attempt_id, tagger FROM token_tag"


def record_tags(spool_root: Path, attempt_id: str, tagger: str, tags: pa.Table) -> None:
    """Write the tags of an attempt's answers into the spool; nothing to do if they are there.

    Args:
        spool_root: The spool.
        attempt_id: Whose answers.
        tagger: Library, model and their versions.
        tags: Rows of `SCHEMA`.

    Raises:
        UserError: The spool cannot be written.
    """
    rows = tags.cast(SCHEMA)

    def fill(folder: Path) -> None:
        pq.write_table(rows, folder / _FILE, compression="zstd")

    TAGS.record(spool_root, tagger, {"attempt_id": attempt_id, "tagger": tagger}, fill)


def load_tags(engine: sa.Engine, spool_root: Path) -> list[str]:
    """Add every record whose attempt the database has, each whole or not at all; return what is wrong with others."""

    def add(folder: Path, status: Mapping[str, Any]) -> None:
        rows = read_table(folder / _FILE, SCHEMA)
        rows = rows.append_column("tagger", pa.array([status["tagger"]] * len(rows), pa.string()))
        with engine.begin() as connection:
            insert_rows(connection, "token_tag", rows, "attempt_id", status["attempt_id"])

    return TAGS.load(engine, spool_root, _KNOWN, add)


def check_tags(folder: Path) -> None:
    """Read one record, and forget it.

    Raises:
        UserError: It is not what it should be.
    """
    TAGS.status(folder)
    read_table(folder / _FILE, SCHEMA)
