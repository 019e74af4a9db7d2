"""Makes a drawing fit for the page: a fraction of the bytes, and in the colours of the reader's light or dark theme."""

import re
from typing import Final
from urllib.parse import quote

from exitbench.reports.plotting.style import DARK, LIGHT, Theme

_DROPPED: Final = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", re.DOTALL)
_TAG: Final = re.compile(r"<[^<>]+>")
_NUMBERED: Final = re.compile(r' id="[a-z0-9]+_\d+"')  # matplotlib's own names of parts, which nothing refers to
_COORDINATES: Final = re.compile(r' (?:d|x|y|width|height|points)="[^"]*"')
_LONG_NUMBER: Final = re.compile(r"(\.\d\d)\d+")
_STYLE: Final = re.compile(r' style="([^"]*)"')
_SIZE: Final = re.compile(r"viewBox='0 0 ([\d.]+) ([\d.]+)'")
_UNQUOTED: Final = " !$'()*+,-./:;=?@[]_~{}|^`"  # nothing that would end an attribute or begin an entity
_ROLES: Final = ("paper", "ink", "grid", "quiet")


def themed(svg: bytes) -> str:
    """Return `svg`, drawn in the light theme, so that it shows in the theme its reader prefers.

    Coordinates keep two decimals: a hundredth of a point. Styles that repeat become classes.
    """
    classes: dict[str, str] = {}
    text = _TAG.sub(lambda found: _smaller(found[0], classes), _DROPPED.sub("", svg.decode("utf-8")))
    text = re.sub(r">\s*\n\s*<", "><", text).strip()
    rules = "".join(f".{name}{{{style.replace(': ', ':').replace('; ', ';')}}}" for style, name in classes.items())
    theme = f":root{{{_variables(LIGHT)}}}@media(prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}"
    head, closed, rest = text.partition(">")
    return f"{head}{closed}<style>{theme}{rules}</style>{rest}"


def data_uri(picture: str) -> str:
    """Return a URI that holds a picture; no attribute ends in it."""
    return "data:image/svg+xml," + quote(picture, _UNQUOTED)


def size_of(picture: str) -> tuple[int, int]:
    """Return width and height of a picture of `themed`, in points: a page keeps their place before it is loaded."""
    width, height = _SIZE.findall(picture[:1000])[0]
    return round(float(width)), round(float(height))


def _smaller(tag: str, classes: dict[str, str]) -> str:
    """Return one tag in fewer bytes; what it is styled by is added to `classes`, by its text."""
    tag = _COORDINATES.sub(lambda found: _LONG_NUMBER.sub(r"\1", found[0]), _NUMBERED.sub("", tag))
    for role in _ROLES:
        tag = tag.replace(getattr(LIGHT, role), f"var(--{role})")
    tag = _STYLE.sub(lambda found: f' class="{classes.setdefault(found[1], f"s{len(classes)}")}"', tag)
    return tag if "'" in tag else tag.replace('"', "'")  # a URI takes the one as it is and spells the other out


def _variables(theme: Theme) -> str:
    return ";".join(f"--{role}:{getattr(theme, role)}" for role in _ROLES)
