"""CSV that round-trips: values as they are, lines that end with a line feed, and what is read is what was written."""

import csv
from typing import Any, Final, TextIO

_LINE_END: Final = "\r\n"


class _LineFeeds:
    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, line: str) -> None:
        self._out.write(line.removesuffix(_LINE_END) + "\n")


def csv_writer(out: TextIO) -> Any:
    """Return a `csv.writer` that ends lines with a line feed.

    The standard one, told to do that, leaves a carriage return within a value unquoted, where a reader ends the line.
    """
    return csv.writer(_LineFeeds(out), lineterminator=_LINE_END)
