"""Equal content has one canonical text and one digest."""

import hashlib
import math

import pytest

from exitbench.results.files.formats import canonical_json, content_id


def test_canonical_json_sorts_keys_and_keeps_non_ascii_text() -> None:
    assert canonical_json({"b": [1, 0.5, None, True], "a": "é"}) == '{"a":"é","b":[1,0.5,null,true]}'
    assert content_id({"b": 1, "a": 2}) == content_id({"a": 2, "b": 1})


def test_the_id_is_the_sha256_of_the_canonical_text() -> None:
    assert content_id({"a": 1}) == hashlib.sha256(b'{"a":1}').hexdigest()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_without_a_json_representation_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"a": value})
