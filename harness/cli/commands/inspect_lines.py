"""Lines that screens of ``exitbench inspect`` are made of."""

from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Final

WIDTH: Final = 100
_LABEL: Final = 12


def labelled(label: str, text: str) -> Iterator[str]:
    """A line with its label in front; what is too long goes on under the text."""
    yield fill(text, WIDTH, initial_indent=label.ljust(_LABEL), subsequent_indent=" " * _LABEL, break_on_hyphens=False)


def reasons(said: Sequence[tuple[str, str | None]], between: str = ": ") -> Iterator[str]:
    """Each reason once, with all that it is about."""
    about: dict[str, list[str]] = {}
    for name, reason in said:
        if reason is not None:
            about.setdefault(reason, []).append(name)
    for reason, names in about.items():
        every = "every method" if len(names) == len(said) and len(names) > 1 else ", ".join(names)
        yield item(f"{every}{between}{reason}")


def item(text: str) -> str:
    """An item of a list."""
    return fill(f"- {text}", WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
