"""Style of all figures: print sizes, two themes, one colour-blind safe palette, and reproducible files."""

import io
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final
from urllib.parse import quote

import matplotlib as mpl
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

SINGLE_INCHES: Final = 3.3
DOUBLE_INCHES: Final = 6.9
"""Width of two columns of a paper and their gap. Figures have one of two widths, so that print needs no scaling."""
TALLEST_INCHES: Final = 9.0
"""Maximum height of a figure: a page less a caption."""
SMALL_POINTS: Final = 7.0
"""Smallest font size."""
_DPI = 300
_SCREEN_DPI = 110
MUTED = "#8a8a8a"
"""Colour of secondary lines and areas: contrast 3:1 on white and on near-black. For text see `quiet`."""
LETTERS = ("#131517", "#fdfdfd")
"""Text colours on light and dark cells of a heat map, whose colours do not change with the theme."""

# Okabe and Ito (2008) in their order from blue on, without yellow, which is invisible on white. Orange (originally
# #E69F00) and sky blue (#56B4E9) are darkened to 3:1 on white, as far from the others for colour-blind readers as
# possible.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#9C5402", "#0996FB")
# 6 and 11 are coprime: 66 methods differ, and in grey print markers alone distinguish the first eleven.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "h", "<", "d")


@dataclass(frozen=True)
class Theme:
    """Background and foreground colours of the light or the dark theme, as ``#rrggbb``."""

    name: str
    paper: str
    ink: str
    grid: str
    quiet: str  # secondary text
    full: str  # end of the sequential scale that starts at `paper`


LIGHT = Theme("light", "#ffffff", "#1c1e21", "#e3e5e8", "#5c6370", "#08519c")
DARK = Theme("dark", "#17191c", "#e4e6ea", "#33373d", "#9aa1ac", "#7cc0f0")


@dataclass(frozen=True)
class SeriesStyle:
    """Colour and marker of a series; the pair is unique, see `series_styles`."""

    colour: str
    marker: str


def theme(which: Theme) -> AbstractContextManager[None]:
    """Return a context in which figures must be built *and* saved to look like `which`.

    It sets everything but the backend, so that neither matplotlibrc nor a notebook's settings affect a figure.
    """
    defaults = {name: value for name, value in mpl.rcParamsDefault.items() if name != "backend"}
    settings: Any = {**defaults, **_COMMON, **_ink_colours(which)}
    return mpl.rc_context(settings)


def quiet() -> str:
    """Return the colour of secondary text in the current theme."""
    return (DARK if mpl.rcParams["axes.facecolor"] == DARK.paper else LIGHT).quiet


class ReportFigure(Figure):
    """Figure that saves itself in the report's style and displays in a notebook without any set-up.

    Attributes:
        caption: Finding, and how to read the figure; empty until it is set.
    """

    caption: str = ""

    def savefig(self, fname: Any, **options: Any) -> None:
        """Save the figure in the report's fonts; options are matplotlib's."""
        with theme(LIGHT):
            super().savefig(fname, **({"dpi": _DPI} | options))

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Return the PNG that Jupyter displays, and its size."""
        with theme(LIGHT):
            return save(self, "png"), {"width": round(_SCREEN_DPI * self.get_figwidth())}


def series_styles(names: Iterable[str]) -> dict[str, SeriesStyle]:
    """Return a distinct pair of colour and marker for each name, assigned in sorted order."""
    return {
        name: SeriesStyle(COLOURS[i % len(COLOURS)], _MARKERS[i % len(_MARKERS)])
        for i, name in enumerate(sorted(set(names)))
    }


def lay_out(figure: Figure) -> None:
    """Compute the layout of `figure` once, so that saving it in several formats does not repeat this."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")


def save(figure: Figure, kind: str, *, letters: str = "path") -> bytes:
    """Return `figure` as a file of `kind`; equal figures give equal bytes.

    Canvases are used directly, since `Figure.savefig` draws everything twice.

    Args:
        figure: Figure after `lay_out`.
        kind: File format: png, svg or pdf.
        letters: Text of an SVG: ``'path'`` looks the same everywhere; ``'none'`` (text) is smaller, in local fonts.
    """
    figure.set_dpi(_DPI)
    buffer = io.BytesIO()
    canvas = _canvas(kind)(figure)
    with mpl.rc_context({"svg.fonttype": letters}):
        getattr(canvas, f"print_{kind}")(buffer, **_WRITTEN[kind])
    return _with_numbered_clips(buffer.getvalue()) if kind == "svg" else buffer.getvalue()


def _with_numbered_clips(svg: bytes) -> bytes:
    """Rename the clip paths of an SVG to clip0, clip1, ...: matplotlib names some of them by memory address."""
    names: dict[bytes, bytes] = {}
    return _CLIP.sub(lambda match: names.setdefault(match[0], b"clip%d" % len(names)), svg)


_CLIP = re.compile(rb"(?<=url\(#)p[0-9a-f]{10}(?=\))|(?<=<clipPath id=\")p[0-9a-f]{10}(?=\")")
_CANVASES: Final = {"svg": "svg.FigureCanvasSVG", "pdf": "pdf.FigureCanvasPdf", "png": "agg.FigureCanvasAgg"}
_WRITTEN: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "svg": {"metadata": {"Date": None}},
    "pdf": {"metadata": {"CreationDate": None}},
    "png": {"metadata": {}, "pil_kwargs": {"compress_level": 4}},  # a little larger than at 6, in a third of the time
}


def _canvas(kind: str) -> Any:
    """Return the canvas class of a file format, imported lazily: a report that draws nothing does not need it."""
    module, name = _CANVASES[kind].split(".")
    return getattr(import_module(f"matplotlib.backends.backend_{module}"), name)


_COMMON: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # bundled with matplotlib, so the same on every machine
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 7.5,
    "axes.labelpad": 2.5,
    "xtick.labelsize": SMALL_POINTS,
    "ytick.labelsize": SMALL_POINTS,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.fontsize": SMALL_POINTS,
    "legend.title_fontsize": SMALL_POINTS,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.4,
    "figure.titlesize": 8,
    "figure.labelsize": 7.5,
    "figure.constrained_layout.h_pad": 0.06,
    "figure.constrained_layout.w_pad": 0.06,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.linewidth": 0.8,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.1,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.6,
    "text.parse_math": False,  # a dollar in a model's name is a dollar
    "svg.hashsalt": "exitbench",
    "pdf.fonttype": 42,  # journals refuse Type 3 fonts
}


def _ink_colours(which: Theme) -> dict[str, str]:
    ink = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    paper = ("figure.facecolor", "axes.facecolor")
    overrides = {"grid.color": which.grid, "image.cmap": f"exitbench_{which.name}"}
    return dict.fromkeys(ink, which.ink) | dict.fromkeys(paper, which.paper) | overrides


for _theme in (LIGHT, DARK):
    mpl.colormaps.register(
        LinearSegmentedColormap.from_list(f"exitbench_{_theme.name}", [_theme.paper, _theme.full]), force=True
    )


_DROPPED: Final = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", re.DOTALL)
_TAG: Final = re.compile(r"<[^<>]+>")
_NUMBERED: Final = re.compile(r' id="[a-z0-9]+_\d+"')  # matplotlib's ids of elements, which nothing refers to
_COORDINATES: Final = re.compile(r' (?:d|x|y|width|height|points)="[^"]*"')
_LONG_NUMBER: Final = re.compile(r"(\.\d\d)\d+")
_STYLE: Final = re.compile(r' style="([^"]*)"')
_SIZE: Final = re.compile(r"viewBox='0 0 ([\d.]+) ([\d.]+)'")
_UNQUOTED: Final = " !$'()*+,-./:;=?@[]_~{}|^`"  # no character that ends an attribute or begins an entity
_ROLES: Final = ("paper", "ink", "grid", "quiet")


def themed(svg: bytes) -> str:
    """Return `svg`, drawn in the light theme, with colours that follow the reader's preferred theme.

    Coordinates are rounded to a hundredth of a point. Inline styles become classes.
    """
    classes: dict[str, str] = {}
    text = _TAG.sub(lambda match: _smaller(match[0], classes), _DROPPED.sub("", svg.decode("utf-8")))
    text = re.sub(r">\s*\n\s*<", "><", text).strip()
    rules = "".join(f".{name}{{{style.replace(': ', ':').replace('; ', ';')}}}" for style, name in classes.items())
    theme = f":root{{{_variables(LIGHT)}}}@media(prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}"
    head, closed, body = text.partition(">")
    return f"{head}{closed}<style>{theme}{rules}</style>{body}"


def data_uri(picture: str) -> str:
    """Return an SVG picture as a data URI that is safe in an HTML attribute."""
    return "data:image/svg+xml," + quote(picture, _UNQUOTED)


def size_of(picture: str) -> tuple[int, int]:
    """Return width and height in points of an SVG that `themed` returned, so that a page can reserve the space."""
    width, height = _SIZE.findall(picture[:1000])[0]
    return round(float(width)), round(float(height))


def _smaller(tag: str, classes: dict[str, str]) -> str:
    """Return an SVG tag in fewer bytes; its style becomes a class, added to `classes` (style's text to class name)."""
    tag = _COORDINATES.sub(lambda match: _LONG_NUMBER.sub(r"\1", match[0]), _NUMBERED.sub("", tag))
    for role in _ROLES:
        tag = tag.replace(getattr(LIGHT, role), f"var(--{role})")
    tag = _STYLE.sub(lambda match: f' class="{classes.setdefault(match[1], f"s{len(classes)}")}"', tag)
    return tag if "'" in tag else tag.replace('"', "'")  # a data URI keeps ' as is, but must escape "


def _variables(theme: Theme) -> str:
    return ";".join(f"--{role}:{getattr(theme, role)}" for role in _ROLES)
