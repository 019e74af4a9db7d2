"""A lake in a bucket of an S3 server on this machine (moto's): as in a folder, and what can be wrong with one."""

import itertools
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import exitbench as eb
from exitbench.errors import UserError
from exitbench.harness.cli.main import main
from exitbench.results.database.connection import Database, open_database
from exitbench.results.lake.export import export_lake
from exitbench.results.lake.places import place_of
from exitbench.results.lake.reading import open_lake

pytest.importorskip("s3fs", reason="s3fs is not installed (pip install 'exitbench[lake]')")
server = pytest.importorskip("moto.server", reason="moto is not installed (dependency group test)")
pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])

NUMBERS = itertools.count()
SECRET = "never-to-be-printed"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket, and credentials in the environment."""
    started = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    started.start()
    _, port = started.get_host_and_port()
    environment = {
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nowhere",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    import s3fs

    name = f"study-{next(NUMBERS)}"  # moto keeps what servers before had
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir(name)
    yield f"s3://{name}/of/ours"
    started.stop()


def test_a_bucket_has_what_the_database_has(
    bucket: str,
    few_database: Path,
    few_rows: dict[str, list[str]],
    rows_by_table: Callable[[Database], dict[str, list[str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("exitbench.results.lake.served._WHOLE_BYTES", 4000)  # so that larger files are read in parts
    with open_database(few_database) as database:
        done = export_lake(database.duck, place_of(bucket))
        again = export_lake(database.duck, place_of(bucket))
    assert done.added > 0
    assert (again.added, again.there) == (0, done.added)
    with open_lake(bucket) as lake:
        assert rows_by_table(lake) == few_rows
    with eb.open_results(bucket) as results:
        assert results.frontier().num_rows > 0


def test_an_object_that_is_there_stays(bucket: str) -> None:
    place = place_of(bucket)
    place.add("schema=1/x.json", b"first")
    place.add("schema=1/x.json", b"second")
    assert place.read("schema=1/x.json", 10) == b"first"
    with pytest.raises(UserError, match="has more than 3 bytes"):
        place.read("schema=1/x.json", 3)


@pytest.mark.parametrize(
    ("url", "forgotten", "said"),
    [
        ("{bucket}/elsewhere", "", "there is no lake. `exitbench export lake"),
        ("s3://no-such-bucket/x", "", "no such bucket"),
        ("{bucket}", "AWS_ACCESS_KEY_ID", "no credentials were found"),
        ("s3://Not a bucket/x", "", "is not the name of a bucket"),
        ("gs://study/x", "", "Other stores are not known"),
    ],
)
def test_what_cannot_be_opened_is_told_on_a_screen(
    bucket: str,
    url: str,
    forgotten: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if forgotten:
        monkeypatch.delenv(forgotten)
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for command in (("sql", "SELECT 1"), ("status",)):
        capsys.readouterr()
        assert main([*command, "--lake", url.format(bucket=bucket)]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert SECRET not in error
        assert len(error.splitlines()) <= 3


def test_a_server_that_is_not_there_is_told(
    bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    assert main(["sql", "SELECT 1", "--lake", bucket]) == 2
    assert "cannot be reached" in capsys.readouterr().err
