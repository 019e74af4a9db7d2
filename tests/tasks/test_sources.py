"""Readers of original formats: accepted input, and the place named in messages about bad input."""

import gzip
from pathlib import Path

import pytest

from exitbench.errors import UserError
from exitbench.tasks.sources import (
    member,
    read_json,
    read_lines,
    read_parallel,
    read_tab_separated,
    read_text,
    require,
    resolve_files,
)

PARALLEL_OR_PAIRS = (frozenset({"en", "fr"}), frozenset({"pairs"}))


def message(error: pytest.ExceptionInfo[UserError]) -> str:
    return str(error.value)


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
def test_plain_and_gzipped_files_read_the_same(write, name):
    assert read_text(write(name, "été\n")) == "été\n"


def test_byte_order_mark_is_removed(write):
    assert read_text(write("text.txt", b"\xef\xbb\xbfone")) == "one"


def test_a_missing_file_suggests_the_files_of_its_folder(write):
    write("val.json.gz", [])
    path = write("train.json.gz", []).with_name("val.json")
    with pytest.raises(UserError) as error:
        read_text(path)
    assert str(path) in message(error)
    assert "Did you mean 'val.json.gz'?" in message(error)
    assert "train.json.gz" in message(error)


def test_a_missing_folder_suggests_its_neighbours(write, tmp_path):
    write("samsum/val.json", [])
    with pytest.raises(UserError, match=r"has no 'samsun'\. Did you mean 'samsum'\?"):
        read_text(tmp_path / "samsun" / "deeper" / "val.json")


def test_a_missing_file_of_a_large_folder_names_only_the_nearest(write, tmp_path):
    for number in range(100):
        write(f"newstest{number}.en", "")
    with pytest.raises(UserError) as error:
        read_text(tmp_path / "newstest2014.en")
    assert message(error).count("newstest") == 12, "the path, the suggestion and the ten nearest names"


def test_missing_file_error_mentions_an_empty_folder(tmp_path):
    with pytest.raises(UserError, match=r"is empty\.$"):
        read_text(tmp_path / "val.json")


def test_folder_in_place_of_a_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="is a folder"):
        read_text(tmp_path)


@pytest.mark.parametrize("kept_bytes", [15, 5])
def test_truncated_gzip_file_is_reported_as_truncated(tmp_path, kept_bytes):
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(b"some text that is long enough")[:kept_bytes])
    with pytest.raises(UserError, match=rf"cut\.gz: the gzip file is cut short after {kept_bytes} bytes"):
        read_text(path)


@pytest.mark.parametrize("damaged_byte", [10, -5], ids=["in the data", "in the checksum"])
def test_a_damaged_gzip_file_is_named(tmp_path, damaged_byte):
    data = bytearray(gzip.compress(b"some text that is long enough"))
    data[damaged_byte] ^= 0xFF
    path = tmp_path / "damaged.gz"
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"damaged\.gz: not a whole gzip file"):
        read_text(path)


def test_plain_text_named_gz_is_refused(tmp_path):
    path = tmp_path / "plain.gz"
    path.write_text("plain")
    with pytest.raises(UserError, match=r"plain\.gz: not a whole gzip file.*must hold gzip"):
        read_text(path)


def test_bytes_that_are_not_utf8_are_named_with_their_line(write):
    with pytest.raises(UserError, match=r"latin\.txt, line 3: byte 0xe9 is not UTF-8"):
        read_text(write("latin.txt", b"one\ntwo\ncaf\xe9\n"))


def test_lines_end_at_newlines_only(write):
    path = write("lines.txt", "a\u2028b\r\nc\x0bd\u0085e\n\nf")
    assert read_lines(path) == ["a\u2028b", "c\x0bd\u0085e", "", "f"]


def test_parallel_files_of_different_length_name_the_first_line_without_partner(write):
    with pytest.raises(UserError, match=r"a\.en has 2 lines but .*a\.fr has 3: line 3 has no partner"):
        read_parallel(write("a.en", "1\n2\n"), write("a.fr", "1\n2\n3\n"))


def test_tab_separated_pairs_may_carry_an_attribution(write):
    assert read_tab_separated(write("fra.txt", "Go.\tVa !\nRun!\tCours !\tCC-BY 2.0\n")) == [
        ("Go.", "Va !"),
        ("Run!", "Cours !"),
    ]


@pytest.mark.parametrize(("line", "columns"), [("Run!", 1), ("a\tb\tc\td", 4)])
def test_wrong_number_of_columns_is_named_with_its_line(write, line, columns):
    with pytest.raises(UserError, match=rf"fra\.txt, line 2: {columns} TAB-separated columns"):
        read_tab_separated(write("fra.txt", f"Go.\tVa !\n{line}\n"))


def test_invalid_json_is_named_with_line_and_column(write):
    with pytest.raises(UserError, match=r"broken\.json, line 2, column 8: not JSON"):
        read_json(write("broken.json", '{"a": 1,\n "b": [}\n'))


def test_a_missing_key_names_the_record_and_the_keys_present():
    with pytest.raises(UserError, match=r"^f\.json, \[3\]: key 'id' is missing\. Present: dialogue, summary\.$"):
        member({"summary": "", "dialogue": ""}, "id", str, "f.json, [3]")


@pytest.mark.parametrize(
    ("value", "type_name"),
    [({}, "an object"), ([], "a list"), ("1", "a string"), (True, "true"), (None, "null"), (1.5, "a number")],
)
def test_wrong_type_error_names_the_actual_type(value, type_name):
    with pytest.raises(UserError, match=rf"^here, key 'n': is {type_name}\. Needed: a whole number\.$"):
        member({"n": value}, "n", int, "here")


def test_unpaired_surrogate_is_refused(write):
    text = read_json(write("half.json", r'["\ud83d"]'))[0]
    with pytest.raises(UserError, match="surrogate"):
        require(text, str, "half.json, [0]")


def test_surrogate_pair_becomes_one_character(write):
    text = read_json(write("whole.json", r'["\ud83d\ude00"]'))[0]
    assert require(text, str, "here") == "😀"


def test_files_are_resolved_below_the_data_dir():
    files = resolve_files("wmt-en-fr", Path("data"), [("en", "a.en"), ("fr", "sub/a.fr")], PARALLEL_OR_PAIRS)
    assert files == {"en": Path("data/a.en"), "fr": Path("data/sub/a.fr")}


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (
            [("eng", "a.en")],
            r"unknown role 'eng' in files \(eng = 'a\.en'\)\. Did you mean 'en'\? Allowed: en, fr, pairs",
        ),
        ([("en", "a.en")], r"files gives en\. Needed: en \+ fr or pairs"),
        ([("en", "a"), ("fr", "b"), ("pairs", "c")], r"files gives en \+ fr \+ pairs\. Needed: en \+ fr or pairs"),
        ([("en", "a.en"), ("en", "b.en")], r"role 'en' is given twice in files: .*a\.en and .*b\.en"),
        ([], r"files gives no role\. Needed"),
    ],
)
def test_invalid_file_roles_are_refused(files, complaint):
    with pytest.raises(UserError, match=f"^wmt-en-fr: {complaint}"):
        resolve_files("wmt-en-fr", Path("data"), files, PARALLEL_OR_PAIRS)


def test_local_files_need_a_data_dir():
    with pytest.raises(UserError, match=r"^squad: a local source needs --data-dir"):
        resolve_files("squad", None, [("data", "dev.json")], (frozenset({"data"}),))
