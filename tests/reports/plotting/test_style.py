"""Colours of figures: readable on white and on dark paper, by colour-blind readers too."""

import re
from itertools import combinations

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from exitbench.reports.plotting.exit_colours import contrast
from exitbench.reports.plotting.style import COLOURS, DARK, LIGHT, MUTED, Theme, quiet, save, theme

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
SIGHT = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
# Ottosson (2020): linear RGB to cones, and their cube roots to Oklab.
CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
OKLAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)


def perceived(colour: str, sight: str) -> np.ndarray:
    """Return the three Oklab coordinates of a color as seen with a kind of color vision, `sight`."""
    rgb = np.array([int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    light: np.ndarray = np.clip(np.array(SIGHT[sight]) @ linear, 0, 1)
    return np.array(OKLAB) @ np.cbrt(np.array(CONES) @ light)


@pytest.mark.parametrize("which", [LIGHT, DARK], ids=lambda which: which.name)
def test_text_and_series_have_enough_contrast_in_each_theme(which: Theme) -> None:
    assert all(contrast(ink, which.paper) >= 4.5 for ink in (which.ink, which.quiet))
    assert all(contrast(colour, which.paper) >= 3 for colour in (*COLOURS, MUTED))
    with theme(which):
        assert quiet() == which.quiet


def test_theme_overrides_and_then_restores_user_settings() -> None:
    """Matplotlib's backend is exempt, because this test draws nothing."""
    with theme(DARK):
        expected = {name: value for name, value in mpl.rcParams.items() if name != "backend"}
    other_settings = {name: not value for name, value in expected.items() if isinstance(value, bool)}
    other_settings |= {
        "lines.linewidth": 9,
        "axes.titlesize": 20,
        "font.sans-serif": ["Comic Sans"],
        "savefig.bbox": "tight",
    }
    with mpl.rc_context(other_settings):
        with theme(DARK):
            assert {name: mpl.rcParams[name] for name in expected} == expected
        assert mpl.rcParams["text.usetex"], "what its user has set comes back"


@pytest.mark.parametrize("sight", SIGHT)
def test_series_colors_are_distinguishable_with_color_blindness(sight: str) -> None:
    distances = [
        np.linalg.norm(perceived(colour, sight) - perceived(other, sight)) for colour, other in combinations(COLOURS, 2)
    ]
    assert min(distances) >= 0.065


def test_svg_clip_path_ids_are_sequential_not_memory_addresses() -> None:
    with theme(LIGHT):
        figure = Figure()
        for axes in figure.subplots(1, 2):
            axes.imshow([[0.0, 1.0]])
            axes.plot([0, 1])
        drawn = save(figure, "svg").decode()
    named = re.findall(r'<clipPath id="(.*?)"', drawn)
    assert sorted(named) == [f"clip{number}" for number in range(len(named))] and named
    assert set(re.findall(r"clip-path=\"url\(#(.*?)\)", drawn)) == set(named)
