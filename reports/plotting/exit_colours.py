"""One colour per exit layer: a sequential, colour-blind safe scale, and a readable text colour for each.

The deeper a token's exit, the more its colour contrasts with the background, in the light and in the dark theme.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

Rgb = tuple[float, float, float]

# YlGnBu of ColorBrewer (Brewer, 2003), without its palest step, which is too close to white.
_SCALE: Final = ("#f4f9c0", "#c7e9b4", "#7fcdbb", "#41b6c4", "#1d91c0", "#225ea8", "#253494", "#081d58")
_INKS: Final = ("#000000", "#ffffff")


@dataclass(frozen=True)
class Shade:
    """Background and text colour of an exit layer as ``#rrggbb``, with a contrast of 4.5 or more."""

    background: str
    text_colour: str


def shades(blocks: int, *, dark: bool = False) -> list[Shade]:
    """Return one shade per exit layer 1..`blocks`, for the light or the dark theme."""
    places = [block / (blocks - 1) for block in range(blocks)] if blocks > 1 else [1.0]
    papers = [_at(1 - place if dark else place) for place in places]
    return [Shade(paper, max(_INKS, key=lambda ink: contrast(paper, ink))) for paper in papers]


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21 (WCAG 2.2)."""
    darker, lighter = sorted((_luminance(first), _luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def _at(place: float) -> str:
    """Return the scale's colour at position `place`, from 0 (palest) to 1 (darkest), interpolated linearly in sRGB."""
    steps = list(pairwise(_SCALE))
    index = min(int(place * len(steps)), len(steps) - 1)
    share = place * len(steps) - index
    pairs = zip(*(_rgb(colour) for colour in steps[index]), strict=True)
    return "#" + "".join(f"{round(255 * (a + share * (b - a))):02x}" for a, b in pairs)


def _rgb(colour: str) -> Rgb:
    red, green, blue = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    return red, green, blue


def _luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in _rgb(colour)]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
