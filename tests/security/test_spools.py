"""Third-party spools: their content is only data, no link is followed, and one bad part does not stop the others."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from exitbench.errors import UserError
from exitbench.results.analysis.status import spool_status
from exitbench.results.database.connection import open_database
from exitbench.results.files.atomic import DamagedFile, SpoolError
from exitbench.results.files.regular import Folder
from exitbench.results.ingest import importing
from exitbench.results.ingest.importing import import_spool, merge
from exitbench.results.ingest.ingest import ingest, rebuild
from exitbench.results.maintenance.integrity import check, require_whole_spool
from exitbench.results.side_records.derived import TAG_SCHEMA as TAGS
from exitbench.results.side_records.derived import record_tags
from exitbench.results.side_records.vocabularies import record_vocabulary
from exitbench.results.spool.attempts import AttemptWriter, free_tables, read_attempt, read_status, scan_spool
from exitbench.results.spool.schema import SCHEMA_VERSION

SECRET = b"the reader's own key"
ID = "ab" * 32
SHORT = "ab" * 8
CARD = {"recipe": {"name": "small"}}
LOG = "step,block,metric,value\n10,,loss_nats,2.5\n"


@pytest.fixture(scope="session")
def small(example_spool: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a spool with at most two successful attempts per kind of cell."""
    root, of_kind = tmp_path_factory.mktemp("small") / "spool", defaultdict(list)
    for attempt in scan_spool(example_spool):
        if attempt.finished and read_status(attempt).status == "ok":
            of_kind[read_attempt(attempt.path).cell["kind"]].append(attempt)
    for attempt in (entry for attempts in of_kind.values() for entry in attempts[:2]):
        shutil.copytree(attempt.path, root / attempt.path.relative_to(example_spool))
    return root


@pytest.fixture
def third_party(small: Path, tmp_path: Path) -> Path:
    """Return a copy of the spool to attack."""
    return Path(shutil.copytree(small, tmp_path / "theirs"))


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """Return a folder of the user's private files, to which a link could point."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in ("id_rsa", "card.json", "training_log.csv", "token_text.parquet"):
        (folder / name).write_bytes(SECRET)
    return folder


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return tmp_path / "ours" / "spool"


def database(spool: Path) -> Path:
    return spool.parent / "exitbench.duckdb"


def first(spool: Path) -> Path:
    """Return the folder of the first successful attempt that has tokens."""
    paths = (entry.path for entry in scan_spool(spool) if (entry.path / "tokens.parquet").exists())
    return next(path for path in paths if json.loads((path / "status.json").read_text())["status"] == "ok")


def seal(folder: Path) -> None:
    """Update DONE with the digests of all other files."""
    names = [path for path in sorted(folder.iterdir()) if path.name != "DONE" and path.is_file()]
    (folder / "DONE").write_text(
        json.dumps({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in names})
    )


def rewrite(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def training(root: Path, name: str = ID, card: Any = CARD, log: str = LOG) -> Path:
    folder = root / "trainings" / name
    folder.mkdir(parents=True)
    (folder / "card.json").write_text(card if isinstance(card, str) else json.dumps(card))
    (folder / "training_log.csv").write_text(log)
    return folder


def vocabulary(root: Path, rows: pa.Table, **how: Any) -> None:
    folder = root / "vocabularies" / ID
    folder.mkdir(parents=True)
    pq.write_table(rows, folder / "token_text.parquet", **how)
    seal(folder)


def no_secret_in(spool: Path) -> None:
    for path in spool.rglob("*"):
        assert not path.is_symlink(), path
        assert path.is_dir() or path.is_file(), path
        assert not path.is_file() or SECRET not in path.read_bytes(), path


# What `attack` does to a spool, what must be said of it, and whether an attempt is lost by it.


def link_among_files(third_party: Path, secrets: Path) -> None:
    (first(third_party) / "leak.txt").symlink_to(secrets / "id_rsa")


def unlisted_file(third_party: Path, _secrets: Path) -> None:
    (first(third_party) / "more.bin").write_bytes(SECRET)


def link_for_a_file(third_party: Path, secrets: Path) -> str:
    """Replace a file by a link whose content matches DONE, so that only the link is wrong."""
    path = first(third_party) / "log.txt"
    (secrets / "log").write_bytes(SECRET)
    path.unlink(missing_ok=True)
    path.symlink_to(secrets / "log")
    seal(path.parent)
    return r"log\.txt: is a link"


def link_for_done(third_party: Path, secrets: Path) -> str:
    (first(third_party) / "DONE").rename(secrets / "DONE")
    (first_unsealed(third_party) / "DONE").symlink_to(secrets / "DONE")
    return "DONE: is a link"


def first_unsealed(spool: Path) -> Path:
    return next(entry.path for entry in scan_spool(spool) if not (entry.path / "DONE").exists())


def link_for_an_attempt(third_party: Path, secrets: Path) -> str:
    path = first(third_party)
    path.rename(secrets / "attempt")
    path.symlink_to(secrets / "attempt")
    return f"{path.name}: is a link"


def link_for_a_cell(third_party: Path, secrets: Path) -> str:
    path = first(third_party).parent
    path.rename(secrets / "cell")
    path.symlink_to(secrets / "cell")
    return f"{path.name}: is a link"


def link_for_a_prefix(third_party: Path, secrets: Path) -> str:
    path = first(third_party).parent.parent
    path.rename(secrets / "prefix")
    path.symlink_to(secrets / "prefix")
    return f"{path.name}: is a link"


def device_for_a_table(third_party: Path, _secrets: Path) -> str:
    path = first(third_party) / "tokens.parquet"
    path.unlink()
    path.symlink_to("/dev/zero")
    return r"tokens\.parquet: is a link"


def socket_for_a_table(third_party: Path, _secrets: Path) -> str:
    path = first(third_party) / "tokens.parquet"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as unix_socket, contextlib.chdir(path.parent):
        unix_socket.bind(path.name)
    return r"tokens\.parquet: is a link, or something else than a regular file"


def pipe_for_cell_json(third_party: Path, _secrets: Path) -> str:
    path = first(third_party) / "cell.json"
    path.unlink()
    os.mkfifo(path)
    return r"cell\.json: is a link, or something else than a regular file"


def other_cells_id(third_party: Path, _secrets: Path) -> str:
    path = first(third_party)
    rewrite(path / "cell.json", cell_id="../../../x")
    seal(path)
    return r"cell_id' is .*\.\./x\W, not 64 hexadecimal digits"


def cell_that_is_not_its_identity(third_party: Path, _secrets: Path) -> str:
    path = first(third_party)
    rewrite(path / "cell.json", identity={"kind": "quality", "method": "a better one"})
    seal(path)
    return "cell_id is not the digest of its identity"


def attempt_with_a_newline(third_party: Path, _secrets: Path) -> str:
    path = first(third_party)
    path.rename(path.with_name(f"{path.name}\nno problem"))
    return "is not the name of an attempt"


def done_that_leaves_its_folder(third_party: Path, _secrets: Path) -> str:
    done_file = first(third_party) / "DONE"
    done_file.write_text(json.dumps({**json.loads(done_file.read_text()), "../../x": "0" * 64}))
    return r"lists '\.\./\.\./x'"


def done_with_numbers(third_party: Path, _secrets: Path) -> str:
    done_file = first(third_party) / "DONE"
    done_file.write_text(json.dumps(dict.fromkeys(json.loads(done_file.read_text()), 7)))
    return "is not text"


def freed_that_leaves_its_folder(third_party: Path, _secrets: Path) -> str:
    (first(third_party) / "FREED").write_text('{"../../victim": 3}')
    return r"FREED: no table '\.\./\.\./victim'"


def large_cell_json(third_party: Path, _secrets: Path) -> str:
    path = first(third_party) / "cell.json"
    with path.open("ab") as file:
        file.write(b" " * 100_000_000)
    seal(path.parent)
    return r"cell\.json: has more than \d+ bytes"


def table_of_too_many_rows(third_party: Path, _secrets: Path) -> str:
    path = first(third_party) / "tokens.parquet"
    pq.write_table(pa.table({"position": np.zeros(20_000_000, np.int8)}), path)
    seal(path.parent)
    return r"tokens\.parquet: claims \d+ rows or values; its size allows"


def table_that_expands(third_party: Path, _secrets: Path) -> str:
    """Write a table whose dictionary has one text of a megabyte, used in every row: 100 GB if it is expanded."""
    path = first(third_party) / "samples.parquet"
    texts = pa.DictionaryArray.from_arrays(np.zeros(100_000, np.int32), pa.array(["x" * 1_000_000]))
    rows = {"doc_key": np.arange(100_000).astype(str), "output_text": texts, "output_ids": [[1]] * 100_000}
    numbers = {"n_prompt": np.arange(100_000), "n_output": np.arange(100_000)}
    words = dict.fromkeys(("stop_reason", "scores", "statistics"), ["{}"] * 100_000)
    pq.write_table(pa.table({**rows, **numbers, **words}), path)
    seal(path.parent)
    return r"samples\.parquet: 4096 of its rows take more than"


def table_of_nested_columns(third_party: Path, _secrets: Path) -> str:
    path = first(third_party) / "tokens.parquet"
    kind: pa.DataType = pa.int32()
    for _ in range(200):
        kind = pa.struct([("a", kind)])
    pq.write_table(pa.schema([("score", kind)]).empty_table(), path, store_schema=False)
    seal(path.parent)
    return r"tokens\.parquet: "


def table_with_a_column_of_ours(third_party: Path, _secrets: Path) -> str:
    path = first(third_party) / "tokens.parquet"
    rows = pq.read_table(path)
    pq.write_table(rows.append_column("attempt_id", pa.array(["other"] * len(rows))), path)
    seal(path.parent)
    return "has a column 'attempt_id'"


def trainings_linked(third_party: Path, secrets: Path) -> str:
    (third_party / "trainings").mkdir()
    (third_party / "trainings" / "0000").symlink_to(secrets)
    (third_party / "trainings" / ID).symlink_to(secrets)
    return "trainings/0000: is a link"


def all_trainings_linked(third_party: Path, secrets: Path) -> str:
    (third_party / "trainings").symlink_to(secrets)
    return "trainings: is a link"


def training_with_more_files(third_party: Path, _secrets: Path) -> None:
    (training(third_party) / ".ssh").write_bytes(SECRET)


def training_of_another_name(third_party: Path, _secrets: Path) -> str:
    training(third_party, "evil")
    return "trainings/evil: is no record by its name"


def training_in_capitals(third_party: Path, _secrets: Path) -> str:
    """Add a training whose name differs only in case, which is equal on some file systems."""
    training(third_party, ID.upper())
    return "is no record by its name"


def training_in_wide_digits(third_party: Path, _secrets: Path) -> str:
    """Add a training whose name equals a digest after Unicode normalisation."""
    training(third_party, "\uff11" * 64)
    return "is no record by its name"


def training_with_a_pipe(third_party: Path, _secrets: Path) -> str:
    log = training(third_party) / "training_log.csv"
    log.unlink()
    os.mkfifo(log)
    return r"training_log\.csv: is a link, or something else"


def pipe_for_a_training(third_party: Path, _secrets: Path) -> str:
    (third_party / "trainings").mkdir()
    os.mkfifo(third_party / "trainings" / ID)
    return "is no folder"


def card_of_wrong_types(third_party: Path, _secrets: Path) -> str:
    training(third_party, card={"recipe": {"name": ["small"]}})
    return r"card\.json: key 'recipe\.name' is \[.small.\], not text"


def card_nested_deeply(third_party: Path, _secrets: Path) -> str:
    training(third_party, card='{"recipe":' * 100_000)
    return r"card\.json: is not JSON: nested too deeply"


def log_of_wrong_types(third_party: Path, _secrets: Path) -> str:
    training(third_party, log="step,block,metric,value\n=cmd|' /C calc'!A0,,m,1\n")
    return r"training_log\.csv: cannot be read"


def log_without_metric(third_party: Path, _secrets: Path) -> str:
    training(third_party, log="step,block,metric,value\n,,,\n")
    return "has empty fields"


def vocabulary_of_a_device(third_party: Path, _secrets: Path) -> str:
    folder = third_party / "vocabularies" / ID
    folder.mkdir(parents=True)
    (folder / "token_text.parquet").symlink_to("/dev/zero")
    (folder / "DONE").write_text(json.dumps({"token_text.parquet": "0" * 64}))
    return r"token_text\.parquet: is a link"


def vocabulary_of_another_name(third_party: Path, _secrets: Path) -> str:
    folder = third_party / "vocabularies" / "abc"
    folder.mkdir(parents=True)
    (folder / "token_text.parquet").symlink_to("/dev/zero")
    return "vocabularies/abc: is no record by its name"


def vocabulary_of_a_huge_token(third_party: Path, _secrets: Path) -> str:
    vocabulary(third_party, pa.table({"token_id": [0], "text": ["x" * 10_000_000], "begins_word": [True]}))
    return "a token has 10000000 bytes"


def vocabulary_of_too_many_tokens(third_party: Path, _secrets: Path) -> str:
    zeros = pa.array(np.zeros(20_000_000, np.int8))
    texts = pa.DictionaryArray.from_arrays(zeros, pa.array(["x"]))
    vocabulary(third_party, pa.table({"token_id": zeros, "text": texts}), compression="zstd")
    return "rows or values; its size allows"


def vocabulary_with_a_second_file(third_party: Path, _secrets: Path) -> str:
    record_vocabulary(third_party, ID, ["a"], ())
    (third_party / "vocabularies" / ID / "more").write_bytes(SECRET)
    seal(third_party / "vocabularies" / ID)
    return "lists 'more'"


def rescores_of_dots(third_party: Path, _secrets: Path) -> str:
    (third_party / "rescores" / "a..%2f.." / SHORT).mkdir(parents=True)
    return "is no record by its name"


def tags_under_another_digest(third_party: Path, _secrets: Path) -> str:
    """Add tags under a wrong digest, which every ingest would add again."""
    rows = pa.Table.from_pylist([{"doc_key": "a", "position": 1, "upos": "NOUN"}], schema=TAGS)
    record_tags(third_party, first(third_party).name, "tagger", rows)
    (folder,) = (third_party / "tags").glob("*/*")
    folder.rename(folder.with_name(SHORT))
    return "its folder's name is not the digest of its tagger"


def tags_of_another_attempt(third_party: Path, _secrets: Path) -> str:
    rows = pa.Table.from_pylist([{"doc_key": "a", "position": 1, "upos": "NOUN"}], schema=TAGS)
    record_tags(third_party, first(third_party).name, "tagger", rows)
    (third_party / "tags" / first(third_party).name).rename(third_party / "tags" / "20260102T030405000000Z-ffffffff")
    return "not of its folder's"


def pipe_for_a_benchmark(third_party: Path, _secrets: Path) -> str:
    (third_party / "perf").mkdir()
    os.mkfifo(third_party / "perf" / f"{SHORT}.json")
    return "is no regular file"


def link_for_a_benchmark(third_party: Path, secrets: Path) -> str:
    (third_party / "perf").mkdir()
    (third_party / "perf" / f"{SHORT}.json").symlink_to(secrets / "id_rsa")
    return "json: is a link"


def import_that_leaves_its_folder(third_party: Path, secrets: Path) -> str:
    folder = third_party / "imports" / SHORT
    folder.mkdir(parents=True)
    tables = {"../../../home/token_text": {"sha256": hashlib.sha256(SECRET).hexdigest(), "rows": 1}}
    manifest = {"format": "exitbench-snapshot-1", "schema_version": 8, "tables": tables, "texts_left_out_of": []}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return r"lists '\.\./\.\./\.\./home/token_text\.parquet'"


def import_with_a_linked_table(third_party: Path, secrets: Path) -> str:
    folder = third_party / "imports" / SHORT
    folder.mkdir(parents=True)
    (folder / "token_text.parquet").symlink_to(secrets / "token_text.parquet")
    tables = {"token_text": {"sha256": hashlib.sha256(SECRET).hexdigest(), "rows": 1}}
    manifest = {"format": "exitbench-snapshot-1", "schema_version": 8, "tables": tables, "texts_left_out_of": []}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return r"token_text\.parquet: is a link"


ON_ATTEMPTS = (
    link_for_a_file,
    link_for_done,
    link_for_an_attempt,
    link_for_a_cell,
    link_for_a_prefix,
    device_for_a_table,
    socket_for_a_table,
    pipe_for_cell_json,
    other_cells_id,
    cell_that_is_not_its_identity,
    attempt_with_a_newline,
    done_that_leaves_its_folder,
    done_with_numbers,
    freed_that_leaves_its_folder,
    large_cell_json,
    table_of_too_many_rows,
    table_that_expands,
    table_of_nested_columns,
    table_with_a_column_of_ours,
)
ON_RECORDS = (
    trainings_linked,
    all_trainings_linked,
    training_of_another_name,
    training_in_capitals,
    training_in_wide_digits,
    training_with_a_pipe,
    pipe_for_a_training,
    card_of_wrong_types,
    card_nested_deeply,
    log_of_wrong_types,
    log_without_metric,
    vocabulary_of_a_device,
    vocabulary_of_another_name,
    vocabulary_of_a_huge_token,
    vocabulary_of_too_many_tokens,
    vocabulary_with_a_second_file,
    rescores_of_dots,
    tags_under_another_digest,
    tags_of_another_attempt,
    pipe_for_a_benchmark,
    link_for_a_benchmark,
    import_that_leaves_its_folder,
    import_with_a_linked_table,
)
UNSEEN = (link_among_files, unlisted_file, training_with_more_files)
Attack = Callable[[Path, Path], str | None]


@pytest.mark.parametrize("attack", [*ON_ATTEMPTS, *ON_RECORDS, *UNSEEN], ids=lambda attack: attack.__name__)
def test_import_of_a_hostile_spool_adds_only_its_valid_attempts(
    attack: Attack, third_party: Path, local: Path, secrets: Path
) -> None:
    n = len(list(scan_spool(third_party)))
    # behind a linked prefix lie all attempts of it
    lost = (
        len(list(first(third_party).parent.parent.glob("*/*")))
        if attack is link_for_a_prefix
        else attack in ON_ATTEMPTS
    )
    says = attack(third_party, secrets)
    local.mkdir(parents=True)
    report = import_spool(third_party, local, {})
    assert report.added == n - lost
    no_secret_in(local)
    if says is None:
        assert report.problems == ()
    else:
        assert len([problem for problem in report.problems if _matches(says, problem)]) == 1, report.problems
    assert not any("None" in problem for problem in report.problems)
    assert [read_attempt(entry.path).status["schema_version"] for entry in scan_spool(local)] == [
        SCHEMA_VERSION
    ] * report.added
    assert not list(local.glob(".import*"))


def _matches(says: str, problem: str) -> bool:
    return re.search(says, problem) is not None


@pytest.mark.parametrize(
    ("column", "value", "allowed"),
    [
        ("exit_layer", 30_000, r"1 to \d"),
        ("exit_layer", -5, r"1 to \d"),
        ("exit_layer", 0, r"1 to \d"),
        ("position", 0, "1 and more"),
        ("position", -1, "1 and more"),
    ],
)
def test_out_of_range_token_value_is_reported_on_import(
    third_party: Path, local: Path, column: str, value: int, allowed: str
) -> None:
    path = first(third_party) / "tokens.parquet"
    rows = pq.read_table(path).to_pylist()
    schema = pq.read_schema(path)
    pq.write_table(pa.Table.from_pylist([*rows[:-1], {**rows[-1], column: value}], schema=schema), path)
    seal(path.parent)
    local.mkdir(parents=True)
    (problem,) = import_spool(third_party, local, {}).problems
    assert re.search(rf"tokens\.parquet: column '{column}' has {value}; allowed: {allowed}", problem)


def test_valid_spool_with_every_record_kind_is_imported_completely(third_party: Path, local: Path) -> None:
    training(third_party, log=LOG + "20,,=1+1\x00,3\n")
    record_vocabulary(third_party, ID, ["a", "\x1b[31m", "\u202e", "</script>", "\x00"], ())
    rows = pa.Table.from_pylist([{"doc_key": "a", "position": 1, "upos": "NOUN"}], schema=TAGS)
    record_tags(third_party, first(third_party).name, "tagger", rows)
    linked = third_party.with_name("linked")
    linked.symlink_to(third_party)  # of the source itself, by whoever imports it
    assert merge(linked, local, database(local)).problems == ()
    with open_database(database(local)) as opened:
        texts = opened.query("SELECT text FROM token_text ORDER BY token_id")["text"].to_pylist()
        metrics = opened.query("SELECT metric FROM training_log ORDER BY step")["metric"].to_pylist()
        tags = opened.query("FROM token_tag").num_rows
    assert (texts, metrics, tags) == (["a", "\x1b[31m", "\u202e", "</script>", "\x00"], ["loss_nats", "=1+1\x00"], 1)
    assert check(local, database(local)).problems == ()


def test_symlink_swapped_in_after_listing_is_not_followed(
    third_party: Path, local: Path, secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt's folder is replaced by a link at the moment when its files are copied."""
    path = first(third_party)
    shutil.copytree(path, secrets / "attempt")
    (secrets / "attempt" / "log.txt").write_bytes(SECRET)
    seal(secrets / "attempt")
    copy = Folder.copy

    def swap(folder: Folder, name: str, target: Path, limit: int) -> None:
        if folder.path == path and not path.is_symlink():
            path.rename(path.with_name("away"))
            path.symlink_to(secrets / "attempt")
        copy(folder, name, target, limit)

    monkeypatch.setattr(Folder, "copy", swap)
    merge(third_party, local, database(local))
    assert path.is_symlink()
    no_secret_in(local)
    assert check(local, database(local)).problems == ()


def test_checks_use_the_copy_and_not_the_changed_source(
    third_party: Path, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = first(third_party)
    read = read_attempt

    def change(copy: Path) -> Any:
        if copy.name == path.name:
            shutil.rmtree(path)
        return read(copy)

    monkeypatch.setattr(importing, "read_attempt", change)
    assert merge(third_party, local, database(local)).problems == ()
    assert read_attempt(local / path.relative_to(third_party)).status["status"] == "ok"


FAULTS = {
    "no version": ("status.json", {"schema_version": None}),
    "version of text": ("status.json", {"schema_version": "6"}),
    "version of truth": ("status.json", {"schema_version": True}),
    "status": ("status.json", {"status": "great"}),
    "status as a list": ("status.json", {"status": ["ok"]}),
    "date": ("status.json", {"started_at": "yesterday"}),
    "date without a zone": ("status.json", {"ended_at": "2026-01-02T03:04:05"}),
    "date before all dates": ("status.json", {"started_at": "0001-01-01T00:00:00+14:00"}),
    "date as a number": ("status.json", {"ended_at": 3}),
    "reason": ("status.json", {"reason": {"a": 1}}),
    "exit code": ("status.json", {"exit_code": 10**30}),
    "memory": ("status.json", {"peak_rss_bytes": -1}),
    "kind": ("cell.json", {"kind": "evil"}),
    "execution": ("cell.json", {"execution": "imagined"}),
    "seed": ("cell.json", {"seed": 10**40}),
    "batch size": ("cell.json", {"batch_size": 1.5}),
    "depends_on": ("cell.json", {"depends_on": [3]}),
    "model": ("cell.json", {"model": ["a"]}),
    "method": ("cell.json", {"method": None}),
    "random weights": ("cell.json", {"random_weights": "no"}),
    "environment": ("env.json", {"environment": 3}),
    "no hardware": ("env.json", {"hardware": None}),
}
FREED = ('["tokens"]', '{"../../victim": 1}', '{"tokens": -1}', '{"tokens": "many"}', '{"tokens": true}', "{", "null")


@pytest.fixture(scope="session")
def filled(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a runs folder with a copy of the spool `small`, and its database."""
    runs = tmp_path_factory.mktemp("filled") / "runs"
    shutil.copytree(small, runs / "spool")
    ingest(runs / "spool", runs / "exitbench.duckdb")
    return runs


@pytest.fixture
def own_spool(filled: Path, tmp_path: Path) -> Path:
    """Return a user's own spool with its database."""
    return Path(shutil.copytree(filled, tmp_path / "runs")) / "spool"


@pytest.mark.parametrize("fault", FAULTS)
def test_resealed_attempt_with_an_invalid_value_is_refused_naming_the_key(third_party: Path, fault: str) -> None:
    name, changes = FAULTS[fault]
    bad = first(third_party)
    rewrite(bad / name, **changes)
    seal(bad)
    with pytest.raises(SpoolError, match=rf"{name}: key '{next(iter(changes))}' is ") as raised:
        read_attempt(bad)
    assert not isinstance(raised.value, DamagedFile)  # another version's, perhaps: it stays where it is


@pytest.mark.parametrize("key", ["schema_version", "status", "reason", "started_at", "ended_at"])
def test_resealed_status_with_a_missing_key_is_refused_naming_the_key(third_party: Path, key: str) -> None:
    path = first(third_party) / "status.json"
    path.write_text(json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != key}))
    seal(path.parent)
    with pytest.raises(SpoolError, match=rf"status\.json: key '{key}' is missing"):
        read_attempt(path.parent)


@pytest.mark.parametrize("note", FREED)
def test_malformed_note_of_freed_tables_is_refused(third_party: Path, note: str) -> None:
    (first(third_party) / "FREED").write_text(note)
    with pytest.raises(DamagedFile, match="FREED: "):
        read_attempt(first(third_party))


def test_damaged_attempts_do_not_stop_check_or_rebuild_for_other_attempts(own_spool: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim.parquet"
    victim.write_bytes(SECRET)
    intact = [entry.path for entry in scan_spool(own_spool) if entry.finished]
    no_version, kind, listed, leaving = intact[:4]
    rewrite(no_version / "status.json", schema_version=None)
    rewrite(kind / "cell.json", kind="evil")
    for path in (no_version, kind):
        seal(path)
    (listed / "FREED").write_text('["tokens"]')
    (leaving / "FREED").write_text('{"../../victim": 1}')
    problems = check(own_spool, database(own_spool)).problems
    assert [[str(bad) in problem for problem in problems].count(True) for bad in intact[:4]] == [1] * 4
    assert len(problems) == 4 and not any("None" in problem for problem in problems)
    require_whole_spool(own_spool, database(own_spool))
    with pytest.raises(UserError, match="is not replaced: it has 4 attempts"):
        rebuild(own_spool, database(own_spool))
    report = rebuild(own_spool, database(own_spool), forget=True)
    assert report.added == len(intact) - 4
    assert spool_status(own_spool).attempts == len(intact) - 2  # two are in the quarantine
    assert victim.read_bytes() == SECRET


def test_unknown_status_counts_as_damaged(own_spool: Path) -> None:
    bad = first(own_spool)
    rewrite(bad / "status.json", status="great")
    seal(bad)
    attempt = next(entry for entry in scan_spool(own_spool) if entry.path == bad)
    assert read_status(attempt).status == "damaged"


def test_truncated_table_is_not_mistaken_for_a_damaged_database(small: Path, tmp_path: Path) -> None:
    """DuckDB's error message names the file, whose path contains a word by which damaged databases are recognized."""
    spool = Path(shutil.copytree(small, tmp_path / "Corrupt" / "spool"))
    bad = first(spool) / "tokens.parquet"
    pq.write_table(pa.concat_tables([pq.read_table(bad)] * 200), bad, compression="none", use_dictionary=False)
    content = bad.read_bytes()
    footer = int.from_bytes(content[-8:-4], "little") + 8
    bad.write_bytes(content[:100] + content[-footer:])
    seal(bad.parent)
    n = len(list(scan_spool(spool)))
    report = ingest(spool, database(spool))
    assert report.added == n - 1
    (named,) = report.quarantined
    assert f"{bad}: " in named and "quarantine" in named
    assert check(spool, database(spool)).problems == ()


def test_symlinks_inside_the_local_spool_are_reported_but_the_spool_may_be_one(own_spool: Path, tmp_path: Path) -> None:
    bad = first(own_spool)
    bad.rename(tmp_path / "elsewhere")
    bad.symlink_to(tmp_path / "elsewhere")
    (named,) = ingest(own_spool, database(own_spool)).quarantined
    assert f"{bad}: is a link" in named
    assert any(f"{bad}: is a link" in problem for problem in check(own_spool, database(own_spool)).problems)
    bad.unlink()
    (tmp_path / "elsewhere").rename(bad)
    own_spool.rename(tmp_path / "large disk")
    own_spool.symlink_to(tmp_path / "large disk")
    assert ingest(own_spool, database(own_spool)).quarantined == ()
    assert check(own_spool, database(own_spool)).problems == ()


def test_attempt_is_not_started_behind_a_symlink(own_spool: Path, tmp_path: Path) -> None:
    record = read_attempt(first(own_spool))
    prefix = first(own_spool).parent.parent
    prefix.rename(tmp_path / "elsewhere")
    prefix.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"{prefix}: is a link"):
        AttemptWriter(own_spool, record.cell, record.env)


@pytest.mark.parametrize("name", ["WHY.txt", "FREED.partial"])
def test_notes_in_an_attempt_are_not_written_through_symlinks(own_spool: Path, tmp_path: Path, name: str) -> None:
    """Two notes are written there: why an attempt was quarantined, and which tables were freed."""
    victim = tmp_path / "victim"
    victim.write_bytes(SECRET)
    bad = first(own_spool)
    (bad / name).symlink_to(victim)
    if name == "FREED.partial":
        free_tables(bad, {"tokens": 3})
    else:
        database(own_spool).unlink()
        (bad / "tokens.parquet").write_bytes(b"")
        (message,) = ingest(own_spool, database(own_spool)).quarantined
        assert "quarantine" in message
    assert victim.read_bytes() == SECRET


def test_named_pipes_in_a_spool_do_not_block(own_spool: Path) -> None:
    bad = first(own_spool)
    for name in ("status.json", "DONE", "RUNNING", "FREED"):
        (bad / name).unlink(missing_ok=True)
        os.mkfifo(bad / name)
    assert any(str(bad) in problem for problem in check(own_spool, database(own_spool)).problems)
    assert bad.parent.name in {entry.cell_id for entry in scan_spool(own_spool)}
    assert len(spool_status(own_spool).damaged) == 1
