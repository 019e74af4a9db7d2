"""Generated sentences for classification: labels follow from the meaning and from no simpler feature."""

from collections import Counter
from functools import cache
from itertools import combinations
from statistics import fmean

import pytest

from exitbench.tasks.base import Source, documents_sha256
from exitbench.tasks.builtin import build_tokenizer, documents
from exitbench.tasks.document import Document
from exitbench.tasks.registry import get_task

LEVELS = (1, 2, 3)
KINDS = {1: {"copy", "hop1"}, 2: {"copy", "hop1", "hop2", "hop3"}, 3: {"copy", "hop2", "hop3", "hop4"}}
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
MOODS = {"happy": 1, "tired": 0, "sick": 0}


@cache
def sentences(level: int) -> list[Document]:
    return documents("sst2", "train", 3000, level=level)


def moods_of(doc: Document) -> list[int]:
    """Return the moods in a text, in order; 1 means well."""
    return [MOODS[word] for word in doc.fields["sentence"].split() if word in MOODS]


def follow_number_words(doc: Document) -> tuple[int, int]:
    """Return how many other words decide the label, one pointing to the next, and the mood of the last of them."""
    number, _, *words, _ = doc.fields["sentence"].split()
    assert len(words) == len(NUMBERS)
    n_looks = 0
    while number not in MOODS:
        number, n_looks = words[NUMBERS.index(number)], n_looks + 1
    return n_looks, MOODS[number]


def test_sentences_equal_the_recorded_golden_digest() -> None:
    assert documents_sha256(documents("sst2", "validation", 200))[:16] == "eb4ea29386eeb23b"


@pytest.mark.parametrize("level", LEVELS)
def test_every_label_is_found_by_following_its_number_of_hops(level: int) -> None:
    for doc in sentences(level):
        n_looks, mood = follow_number_words(doc)
        assert mood == doc.fields["label"]
        assert doc.token_kinds in {("copy",), (f"hop{n_looks}",)}


@pytest.mark.parametrize("level", LEVELS)
def test_moods_determine_the_label_only_in_copy_sentences(level: int) -> None:
    for doc in sentences(level):
        moods = moods_of(doc)
        assert sum(moods) == (4 * doc.fields["label"] if doc.token_kinds == ("copy",) else 2)


@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
def test_first_or_last_mood_is_uninformative_if_moods_differ(place: int) -> None:
    right = [moods_of(doc)[place] == doc.fields["label"] for doc in sentences(2) if doc.token_kinds != ("copy",)]
    assert 0.45 < fmean(right) < 0.55


@pytest.mark.parametrize("level", LEVELS)
def test_every_sentence_kind_of_a_level_is_frequent_with_both_labels(level: int) -> None:
    counts = Counter((doc.token_kinds[0], doc.fields["label"]) for doc in sentences(level))
    assert {kind for kind, _ in counts} == KINDS[level]
    assert min(counts.values()) > 0.08 * counts.total()


def test_sentences_are_unique_within_and_across_splits() -> None:
    splits = ("train", "calibration", "validation", "test")
    drawn = [{d.fields["sentence"] for d in documents("sst2", split, 300)} for split in splits]
    assert all(len(some) == 300 for some in drawn)
    assert all(some.isdisjoint(other) for some, other in combinations(drawn, 2))


def test_builtin_tokenizer_knows_every_word() -> None:
    encoded = build_tokenizer().encode_batch([doc.fields["sentence"] for doc in sentences(3)])
    assert {len(encoding) for encoding in encoded} == {len(NUMBERS) + 4}
    assert not any("<unk>" in encoding.tokens for encoding in encoded)


def test_builtin_sentences_have_the_fields_of_the_real_data_set() -> None:
    loaded = get_task("sst2").load(Source(), "validation", None)
    assert len(loaded) == 500
    assert {frozenset(doc.fields) for doc in loaded} == {frozenset({"id", "sentence", "label"})}
