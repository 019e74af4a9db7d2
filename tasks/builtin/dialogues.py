"""Two people tell each other by chat where others go, and count; the summary says where everybody ends and what is left."""

from exitbench.tasks.builtin import facts
from exitbench.tasks.builtin.draw import Draw
from exitbench.tasks.builtin.facts import draw_chains
from exitbench.tasks.builtin.people import NAMES, is_woman
from exitbench.tasks.builtin.words import Kind, Record, Words, kinds_of, of_kind, split_all, text_of

NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
FRUITS = ("apples", "lemons", "pears", "plums", "nuts", "eggs")
ITEMS = ("camera", "guitar", "map", "radio", "ladder", "basket", "brush", "lamp")

FACTS = {1: 4, 2: 6, 3: 8}
"""By level."""
MOST_CHANGES = {1: 1, 2: 2, 3: 2}
"""Of a count, by level."""
LONGEST_CHAIN = 4
_HOPS: tuple[Kind, ...] = ("hop1", "hop2", "hop3", "hop4")
_STATES: tuple[Kind, ...] = ("state1", "state2", "state3")


def dialogue(draw: Draw, level: int) -> Record:
    """Make one dialogue with its summary."""
    first, second, *others = draw.some(NAMES, 2 + FACTS[level])
    chains = draw_chains(draw, others, LONGEST_CHAIN, shortest=2)
    ends = {fact.subject: (chain[-1].object_, len(chain) - i) for chain in chains for i, fact in enumerate(chain)}
    told = draw.some([fact for chain in chains for fact in chain], FACTS[level])
    turns, at = [(first, f"hi {second} !")], 0
    while at < len(told):
        n = draw.one((1, 2, 3))
        turns.append(((second, first)[len(turns) % 2 - 1], " ".join(fact.text for fact in told[at : at + n])))
        at += n
    summary: Words = ()
    for fact in told:
        end, hops = ends[fact.subject]
        summary += ((fact.subject, "copy"), (end, _HOPS[hops - 1]), (",", "frame"))
    bringer, item, fruit = draw.one((first, second)), draw.one(ITEMS), draw.one(FRUITS)
    counted, left = _count(draw, fruit, MOST_CHANGES[level])
    turns.append((bringer, f"I bring my {item} . {counted}"))
    summary = (*summary[:-1], (".", "end"))
    summary += (
        (bringer, "state1"), ("brings", "frame"), ("her" if is_woman(bringer) else "his", "agreement"), (item, "copy"),
        ("and", "frame"), left, (fruit, "copy"), (".", "end"),
    )  # fmt: skip
    text = "\n".join(f"{speaker} : {statement}" for speaker, statement in turns)
    return Record({"dialogue": text, "summary": text_of(summary)}, text, kinds_of(summary))


def words() -> set[str]:
    """Return every word that a dialogue or summary can hold."""
    frame = "hi ! : I bring my have ate found brings her his and , ."
    return facts.words() | split_all((*NAMES, *NUMBERS, *FRUITS, *ITEMS, frame))


def _count(draw: Draw, fruit: str, most_changes: int) -> tuple[str, tuple[str, Kind]]:
    """What somebody says of how many they had, ate and found; and how many are left."""
    count, changes = draw.one(range(3, 7)), draw.one(range(most_changes + 1))
    said = f"I have {NUMBERS[count - 1]} {fruit} ."
    for _ in range(changes):
        verb = draw.one(("ate", "found"))
        count += 1 if verb == "found" else -1
        said += f" I {verb} one ."
    return said, (NUMBERS[count - 1], _STATES[changes])
