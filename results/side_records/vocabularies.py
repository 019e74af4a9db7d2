"""Vocabularies: the text of every token id, one record per tokenizer, kept in the spool next to the attempts.

<spool>/vocabularies/<tokenizer_sha256>/{token_text.parquet, DONE}
"""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import sqlalchemy as sa

from exitbench.results.database.catalogue import known_keys
from exitbench.results.files.arrow import insert_rows
from exitbench.results.files.atomic import DamagedFile, check_digested_folder, write_digested_folder
from exitbench.results.files.bounded import read_table
from exitbench.results.side_records.derived import check_records, load_records
from exitbench.results.spool.records import VOCABULARY
from exitbench.results.spool.schema import arrow_schema
from exitbench.results.tables import TABLES

_REMEDY: Final = "the next run writes it"
FILE: Final = "token_text.parquet"
_LONGEST_BYTES: Final = 1 << 16
"""Maximum length of a token's text; the longest in real tokenizers are some hundred spaces."""
_SCHEMA: Final = arrow_schema(TABLES["token_text"])
_WORD_MARKS: Final = ("\u2581", "\u0120\u010a\u0109")
"""Marks at the beginning of a word: SentencePiece's space; byte-level BPE's space, line feed and tab."""
_CONTINUATION: Final = "##"
"""Mark at the beginning of a WordPiece token that continues a word."""


def record_vocabulary(
    spool_root: Path, tokenizer_sha256: str, texts: Sequence[str | None], special_ids: Collection[int]
) -> None:
    """Write the vocabulary of a tokenizer into the spool, unless it exists.

    Args:
        spool_root: The spool.
        tokenizer_sha256: Digest of the tokenizer, as in cells.
        texts: Every token as the tokenizer spells it, by id; None if an id is not used.
        special_ids: Ids of tokens that are no text (end of sequence and so on).

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
    """Return, by token id, whether the token begins a word, judged by the tokenizer's marks of spaces or continuations.

    If no token has such a mark, every token begins a word.
    """
    for marks in _WORD_MARKS:
        if any(text is not None and len(text) > 1 and text[0] in marks for text in texts):
            return [text is not None and re.match(f"[{marks}]", text) is not None for text in texts]
    return [text is not None and (text == _CONTINUATION or not text.startswith(_CONTINUATION)) for text in texts]


def load_vocabularies(engine: sa.Engine, spool_root: Path) -> list[str]:
    """Add to the database the spool's vocabularies that it lacks; return a message per vocabulary not added."""
    stored = known_keys(engine, "token_text")

    def add(folder: Path) -> None:
        rows = read_vocabulary(folder)
        with engine.begin() as connection:
            insert_rows(connection, "token_text", rows, "tokenizer_sha256", folder.name)

    return load_records(spool_root, VOCABULARY, lambda folder: folder.name not in stored, add, _REMEDY)


def read_vocabulary(folder: Path) -> pa.Table:
    """Return the vocabulary in a folder, one row per token id, after checking its digest.

    Raises:
        DamagedFile: A file is missing, changed, or no vocabulary.
        SpoolError: A file cannot be read.
    """
    check_digested_folder(folder, [FILE])
    rows = read_table(folder / FILE, _SCHEMA)
    longest = pc.max(pc.binary_length(rows["text"])).as_py() or 0
    if longest > _LONGEST_BYTES:
        raise DamagedFile(f"{folder / FILE}: a token has {longest} bytes; allowed: {_LONGEST_BYTES}.")
    return rows


def check_vocabularies(spool_root: Path) -> list[str]:
    """Check every vocabulary in the spool against its digest; return a message per invalid vocabulary."""
    return check_records(spool_root, VOCABULARY, read_vocabulary, _REMEDY)
