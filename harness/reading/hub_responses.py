"""Checks of a hub server's responses, before huggingface_hub uses their content as file names or reads the body.

huggingface_hub names files and folders of its cache by the ETag, by the commit in a header and by the digests in a file
listing. It does not check these values from the server.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from exitbench.errors import UserError
from exitbench.harness.reading.config_values import shortened

if TYPE_CHECKING:
    import httpx2

LISTED_FILES: Final = 10_000
"""Maximum number of files in a repository."""
_API_BYTES: Final = 64 << 20
"""Maximum total bytes of all API responses while one model is downloaded."""
_API_RESPONSES: Final = 1_000
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_DIGEST: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.+=-]{0,127}")
"""Pattern of allowed ETags: the hub sends SHA-1 and SHA-256; mirrors use other digests."""
_COMMIT_HEADER, _ETAG_HEADERS = "X-Repo-Commit", ("ETag", "X-Linked-Etag")
_SIZE_HEADERS: Final = ("Content-Length", "X-Linked-Size")
_API: Final = "/api/"


def is_commit(text: object) -> bool:
    """Return whether a value is a full git commit hash (40 hexadecimal digits)."""
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


@contextmanager
def checked_responses(model: str, largest_bytes: int) -> Iterator[None]:
    """Context manager that checks every response to huggingface_hub in this process.

    Args:
        model: Name of the downloaded model, for messages.
        largest_bytes: Maximum bytes of a file.

    Raises:
        UserError: Raised by a request in the context, if its response has an invalid name, size or number.
    """
    from huggingface_hub import get_session

    check, session = _ResponseCheck(model, largest_bytes), get_session()
    before = session.event_hooks
    session.event_hooks = {
        "request": [*before["request"], _ask_uncompressed],
        "response": [*before["response"], check],
    }
    try:
        yield
    finally:
        session.event_hooks = before


def _ask_uncompressed(request: httpx2.Request) -> None:
    """Request uncompressed responses, so that a small response cannot decompress to a large one."""
    request.headers["Accept-Encoding"] = "identity"


class _ResponseCheck:
    """HTTP hook that checks every response of the hub; thread-safe, since several threads download."""

    def __init__(self, model: str, largest_bytes: int) -> None:
        self._model, self._largest_bytes = model, largest_bytes
        self._lock = threading.Lock()
        self._api_bytes = self._api_responses = 0

    def __call__(self, response: httpx2.Response) -> None:
        headers, path = response.headers, response.request.url.path
        if _COMMIT_HEADER in headers and not is_commit(headers[_COMMIT_HEADER]):
            raise self._refusal(f"the commit {shortened(headers[_COMMIT_HEADER])}, which is not a commit")
        if headers.get("Content-Encoding", "identity") != "identity":
            raise self._refusal("a compressed response, though none was requested")
        is_api = path.startswith(_API) or f"{_API}models/" in path  # a mirror's endpoint may have a path
        if is_api and response.request.method != "HEAD":
            self._read_api(response, is_listing="/tree/" in path)
            return
        for name in _SIZE_HEADERS:
            if name in headers and not self._is_size(headers[name]):
                raise self._refusal(
                    f"a size of {shortened(headers[name])} bytes; at most {self._largest_bytes} are expected"
                )
        if response.request.method == "HEAD":
            for name in _ETAG_HEADERS:
                # huggingface_hub strips the same characters when it derives a file name.
                digest = headers.get(name, "0").lstrip("W/").strip('"')
                if not _DIGEST.fullmatch(digest):
                    raise self._refusal(f"the {name} {shortened(headers[name])}, which is no digest")
        elif response.is_success and "Content-Length" not in headers:
            raise self._refusal("a file without its size")

    def _is_size(self, text: str) -> bool:
        return text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) <= self._largest_bytes

    def _read_api(self, response: httpx2.Response, *, is_listing: bool) -> None:
        with self._lock:
            self._api_responses += 1
            if self._api_responses > _API_RESPONSES:
                raise self._refusal(f"a listing in more than {_API_RESPONSES} parts")
        response.stream = self._bounded(response.stream)
        response.read()
        if not (is_listing and response.is_success):
            return
        try:
            entries = response.json()
        except (ValueError, RecursionError) as error:
            raise self._refusal("a listing that is not JSON") from error
        for entry in entries if isinstance(entries, list) else ():
            self._check_entry(entry)

    def _check_entry(self, entry: Any) -> None:
        """Check one file's entry in the hub's file listing, whose digests huggingface_hub uses as local file names."""
        large = entry.get("lfs") if isinstance(entry, dict) else None
        for record in (entry, large):
            if record is None:
                continue
            if not isinstance(record, dict):
                raise self._refusal("a listing whose entries are no objects")
            digest = record.get("oid", "0")
            if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
                raise self._refusal(f"the digest {shortened(str(digest))} in a listing, which is not a digest")
            require_size(record.get("size", 0), self._model, shortened(entry.get("path")))

    def _bounded(self, stream: Any) -> Any:
        import httpx2

        check = self

        class Bounded(httpx2.SyncByteStream):
            """Body of a response. Reading raises UserError when the total length of all bodies exceeds the limit."""

            def __iter__(self) -> Iterator[bytes]:
                for part in stream:
                    with check._lock:
                        check._api_bytes += len(part)
                        if check._api_bytes > _API_BYTES:
                            raise check._refusal(f"more than {_API_BYTES >> 20} MiB about its files")
                    yield part

            def close(self) -> None:
                stream.close()

        return Bounded()

    def _refusal(self, what: str) -> UserError:
        return UserError(f"{self._model}: the hub answers with {what}. Nothing of it is kept.")


def require_size(size: object, model: str, file: str) -> int:
    """Check the size in bytes that a hub reports for a file, and return it; return 0 if the hub reports none.

    ``model`` and ``file`` are for the message.

    Raises:
        UserError: The size is not a non-negative integer.
    """
    if size is None:
        return 0
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise UserError(f"{model}: the hub answers with a size of {shortened(size)} bytes for {file}.")
    return size
