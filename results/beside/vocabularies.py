"""Vocabularies: spellings of token ids, once per tokenizer, kept in the spool beside the attempts.

<spool>/vocabularies/<tokenizer_sha256>/{token_text.parquet, DONE}
"""

import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import sqlalchemy as sa

from exitbench.results.database.catalogue import known_keys
from exitbench.results.files.arrow import insert_rows
from exitbench.results.files.atomic import DamagedFile, SpoolError, check_digested_folder, write_digested_folder
from exitbench.results.files.bounded import read_table
from exitbench.results.files.duckdb_files import is_trouble
from exitbench.results.spool.records import VOCABULARY, records
from exitbench.results.spool.schema import arrow_schema
from exitbench.results.tables import TABLES

_QUARANTINE: Final = "quarantine"
FILE: Final = "token_text.parquet"
_LONGEST_BYTES: Final = 1 << 16
"""Of a token's text; the longest that tokenizers have are some hundred spaces."""
_SCHEMA: Final = arrow_schema(TABLES["token_text"])
_WORD_MARKS: Final = ("\u2581", "\u0120\u010a\u0109")
"""What begins a word: SentencePiece's space; byte-level BPE's space, line feed and tab."""
_GOES_ON: Final = "##"
"""What begins a piece of WordPiece that goes on with a word."""


def record_vocabulary(
    spool_root: Path, tokenizer_sha256: str, texts: Sequence[str | None], special_ids: Collection[int]
) -> None:
    """Write a vocabulary into the spool; nothing to do if it is there.

    Args:
        spool_root: The spool.
        tokenizer_sha256: Digest of the tokenizer, as cells have it.
        texts: Every token as the tokenizer spells it, by id; None where an id stands for nothing.
        special_ids: Tokens that are no text (end of sequence and so on).

    Raises:
        UserError: The spool cannot be written.
    """
    marks = begins_word(texts)
    ids = [token_id for token_id, text in enumerate(texts) if text is not None]
    rows = {
        "token_id": ids,
        "text": [texts[token_id] for token_id in ids],
        "begins_word": [None if token_id in special_ids else marks[token_id] for token_id in ids],
    }
    table = pa.table(rows, schema=_SCHEMA)
    write_digested_folder(
        spool_root / VOCABULARY.folder / tokenizer_sha256,
        lambda folder: pq.write_table(table, folder / FILE, compression="zstd"),
    )


def begins_word(texts: Sequence[str | None]) -> list[bool]:
    """Return which tokens begin a word, by the marks of their spelling; without any mark every token is a word."""
    for marks in _WORD_MARKS:
        if any(text is not None and len(text) > 1 and text[0] in marks for text in texts):
            return [text is not None and re.match(f"[{marks}]", text) is not None for text in texts]
    return [text is not None and (text == _GOES_ON or not text.startswith(_GOES_ON)) for text in texts]


def load_vocabularies(engine: sa.Engine, spool_root: Path) -> list[str]:
    """Add every vocabulary that the database lacks, each whole or not at all; return what is wrong with others."""
    known = known_keys(engine, "token_text")
    found, problems = records(spool_root, VOCABULARY)
    for folder in found:
        if folder.name not in known:
            try:
                rows = read_vocabulary(folder)
                with engine.begin() as connection:
                    insert_rows(connection, "token_text", rows, "tokenizer_sha256", folder.name)
            except SpoolError as error:
                problems.append(f"{folder}: {error}{_aside(spool_root, folder, error)}")
            except (duckdb.Error, sa.exc.DBAPIError) as error:
                if is_trouble(error):
                    raise
                problems.append(f"{folder}: does not fit the database: {error}")
    return problems


def read_vocabulary(folder: Path) -> pa.Table:
    """Return a vocabulary that is what was written.

    Raises:
        DamagedFile: A file is missing or was changed, or holds no vocabulary.
        SpoolError: It cannot be read.
    """
    check_digested_folder(folder, [FILE])
    rows = read_table(folder / FILE, _SCHEMA)
    longest = pc.max(pc.binary_length(rows["text"])).as_py() or 0
    if longest > _LONGEST_BYTES:
        raise DamagedFile(f"{folder / FILE}: a token has {longest} bytes; allowed: {_LONGEST_BYTES}.")
    return rows


def check_vocabularies(spool_root: Path) -> list[str]:
    """Return what is wrong with vocabularies, each checked against its digest."""
    found, problems = records(spool_root, VOCABULARY)
    for folder in found:
        try:
            read_vocabulary(folder)
        except SpoolError as error:
            if not isinstance(error, DamagedFile):
                problems.append(f"{folder}: {error}")
                continue
            problems.append(f"{folder}: {error} The next ingest moves it to the quarantine; the next run writes it.")
    return problems


def _aside(spool_root: Path, folder: Path, error: SpoolError) -> str:
    """Move a damaged vocabulary out of the way of a new one and say so; one that cannot be read stays."""
    if not isinstance(error, DamagedFile):
        return ""
    aside = spool_root / _QUARANTINE / VOCABULARY.folder / folder.name
    aside.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(aside, ignore_errors=True)
    return f" Moved to {folder.rename(aside)}; the next run writes it."
