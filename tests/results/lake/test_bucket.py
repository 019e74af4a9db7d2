"""A lake in a bucket of an S3 server on this machine (moto's): equal to a directory's, and errors of buckets."""

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stored_rows import RowsByTable, rows_by_table

import exitbench as eb
from exitbench.harness.cli.main import main
from exitbench.results.database.connection import open_database
from exitbench.results.lake.export import export_lake
from exitbench.results.lake.reading import open_lake

pytest.importorskip("deltalake", reason="deltalake is not installed (pip install 'exitbench[lake]')")
pytest.importorskip("moto.server", reason="moto is not installed (dependency group test)")

NUMBERS = itertools.count()
SECRET = "never-to-be-printed"
EXPORTERS = Path(__file__).with_name("exporters.py")
SERVER = Path(__file__).with_name("s3_server.py")


@pytest.fixture(scope="module")
def fewest_database(part_of_few: Callable[[int], Path]) -> Path:
    """Return the database of a sixth of `few_spool`: each of its attempts is a dozen requests to the server."""
    return part_of_few(6)


@pytest.fixture(scope="module")
def fewest_rows(fewest_database: Path) -> RowsByTable:
    return rows_by_table(fewest_database)


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    """Start the S3 server and yield its port."""
    command = [sys.executable, str(SERVER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        yield server.stdout.readline().strip()
        server.stdin.close()


@pytest.fixture
def bucket(port: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket, and credentials in the environment."""
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
    return f"s3://study-{next(NUMBERS)}/of/ours"


def test_concurrent_exports_to_a_bucket_give_the_rows_of_the_database(
    bucket: str,
    fewest_database: Path,
    fewest_rows: RowsByTable,
) -> None:
    """The store's conditional write decides which commit is first."""
    command = [sys.executable, str(EXPORTERS), "together", str(fewest_database), bucket, "2"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["0"] * 2
    with open_database(fewest_database) as database:
        repeated = export_lake(database.duck, bucket)
    assert (repeated.added, repeated.existing) == (0, len(fewest_rows["attempt"]))
    with open_lake(bucket) as lake:
        assert rows_by_table(lake) == fewest_rows
    with eb.open_results(bucket) as results:
        assert results.frontier().num_rows > 0


@pytest.mark.parametrize(
    ("url", "forgotten", "message"),
    [
        ("{bucket}/elsewhere", "", "no lake of schema"),
        ("s3://no-such-bucket/x", "", "NoSuchBucket"),
        ("{bucket}", "AWS_ACCESS_KEY_ID", "no credentials were found"),
        ("s3://Not a bucket/x", "", "is not a lake"),
        ("gs://study/x", "", "is not a lake"),
    ],
)
def test_bucket_error_is_short_and_reveals_no_secret(
    bucket: str,
    url: str,
    forgotten: str,
    message: str,
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
        assert message in error
        assert SECRET not in error
        assert len(error.splitlines()) <= 3


def test_unreachable_server_is_reported(
    bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert main(["sql", "SELECT 1", "--lake", bucket]) == 2
    assert "Connect" in capsys.readouterr().err
