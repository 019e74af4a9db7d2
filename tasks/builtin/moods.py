"""Sentences about how one feels, in SST-2's form: a number says at which word to look, and where that leads.

The word there is a mood, well or unwell, or a number again. Where all moods are of one kind, any of them gives the
answer; else as many are well as unwell, and the answer takes as many looks as there are words on the way.
"""

from itertools import pairwise

from exitbench.tasks.builtin.dialogues import NUMBERS
from exitbench.tasks.builtin.draw import Draw
from exitbench.tasks.builtin.lexicon import MOODS
from exitbench.tasks.builtin.words import Kind, Record

WELL = ("happy",)
UNWELL = tuple(mood.en for mood in MOODS if mood.en not in WELL)

KINDS_ASKED: dict[int, tuple[Kind, ...]] = {
    1: ("copy", "hop1", "hop1"),
    2: ("copy", "hop1", "hop2", "hop2", "hop3"),
    3: ("copy", "hop2", "hop3", "hop4"),
}
"""By level; a kind as often as it is named."""


def mood(draw: Draw, level: int) -> Record:
    """Make one sentence with its label: 1 of who is well, 0 of who is not."""
    kind = draw.one(KINDS_ASKED[level])
    label = draw.chance(0.5)
    hops = draw.one((1, level)) if kind == "copy" else int(kind[-1])
    places = draw.some(range(len(NUMBERS)), len(NUMBERS))
    words = [draw.one(NUMBERS) for _ in places]
    for place, following in pairwise(places[:hops]):
        words[place] = NUMBERS[following]
    other = label if kind == "copy" else not label
    for place, is_well in zip(places[hops - 1 :], (label, other, other, label), strict=False):
        words[place] = draw.one(WELL if is_well else UNWELL)
    sentence = f"{NUMBERS[places[0]]} : {' '.join(words)} ."
    return Record({"sentence": sentence, "label": int(label)}, sentence, (kind,))
