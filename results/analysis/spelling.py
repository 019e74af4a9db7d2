"""Detokenise single token ids for reading: without a tokenizer's marks."""

from collections.abc import Collection
from typing import Final

from exitbench.results.database.connection import Database

_STYLE: Final = """
    SELECT CASE
        WHEN bool_or(text LIKE '\u2581_%') THEN 'sentencepiece'
        WHEN bool_or(regexp_matches(text, '^[\u0120\u010a\u0109].')) THEN 'bytes'
        WHEN bool_or(text LIKE '##_%') THEN 'wordpiece'
        ELSE 'words' END AS style
    FROM vocabulary WHERE tokenizer_sha256 = $tokenizer
"""
_TEXTS: Final = """
    SELECT token_id, text, begins_word FROM vocabulary
    WHERE tokenizer_sha256 = $tokenizer AND list_contains($ids, token_id) ORDER BY token_id
"""


def spelled(database: Database, tokenizer_sha256: str, ids: Collection[int]) -> dict[int, str]:
    """Return the text of each id, with a space in front where a word begins; `` #17`` where no spelling is recorded.

    Args:
        database: An open database.
        tokenizer_sha256: As runs have it.
        ids: Token ids.
    """
    wanted = sorted(set(ids))
    (style,) = database.query(_STYLE, {"tokenizer": tokenizer_sha256})["style"].to_pylist()
    rows = database.query(_TEXTS, {"tokenizer": tokenizer_sha256, "ids": wanted}).to_pylist()
    known = {row["token_id"]: readable(row["text"], style, row["begins_word"]) for row in rows}
    return {token_id: known.get(token_id, f" #{token_id}") for token_id in wanted}


def readable(text: str, style: str, begins_word: bool | None) -> str:
    """Return what a token adds to a text.

    Args:
        text: As the tokenizer spells it.
        style: Of its marks: sentencepiece, bytes (byte-level BPE), wordpiece, or words (none).
        begins_word: As in view vocabulary; None for a token that is no text.
    """
    if begins_word is None:
        return f" {text}"
    if style == "sentencepiece":
        return text.replace("\u2581", " ")
    if style == "bytes":
        return _from_bytes(text)
    if style == "wordpiece" and text.startswith("##"):
        return text[2:]
    return f" {text}"


def _from_bytes(text: str) -> str:
    """Undo byte-level BPE's spelling; bytes that are no whole character stay visible."""
    if any(character not in _BYTES for character in text):
        return text
    return bytes(_BYTES[character] for character in text).decode("utf-8", "backslashreplace")


def _byte_spelling() -> dict[str, int]:
    """GPT-2's spelling of bytes: those with a visible Latin-1 character are it, the others follow from U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTES: Final = _byte_spelling()
