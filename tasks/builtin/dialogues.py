"""Dialogues: two people chat about where others go; the summary says where the people asked about end up."""

from exitbench.tasks.builtin.questions import HOPS, draw_chains, fact_words
from exitbench.tasks.builtin.words import NAMES, Draw, Kind, Record, Words, is_woman, kinds_of, split_all, text_of

NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
FRUITS = ("apples", "lemons", "pears", "plums", "nuts", "eggs")
ITEMS = ("camera", "guitar", "map", "radio", "ladder", "basket", "brush", "lamp")

FACTS = {1: 5, 2: 8, 3: 11}
"""Number of facts in a dialogue, per level."""
N_TARGETS = {1: 4, 2: 5, 3: 6}
"""Number of people that the summary is about, per level."""
MOST_CHANGES = {1: 1, 2: 2, 3: 2}
"""Maximum number of changes to a count, per level."""
_STATES: tuple[Kind, ...] = ("state1", "state2", "state3")


def dialogue(draw: Draw, level: int) -> Record:
    """Generate one dialogue with its summary, at a difficulty level (1 to 3)."""
    speaker, other, *people = draw.sample(NAMES, 2 + FACTS[level])
    chains = draw_chains(draw, people)
    ends = {fact.subject: (chain[-1].object_, len(chain) - i) for chain in chains for i, fact in enumerate(chain)}
    facts = draw.sample([fact for chain in chains for fact in chain], FACTS[level])
    followers = [fact for fact in facts if ends[fact.subject][1] > 1][: N_TARGETS[level] - 1]
    direct = [fact for fact in facts if fact not in followers][: N_TARGETS[level] - len(followers)]
    targets = draw.sample(followers + direct, N_TARGETS[level])
    statement_of_speaker, summed_up = (_brings if draw.chance(0.5) else _has)(draw, speaker, level)
    turns = [(speaker, statement_of_speaker)]
    while facts:
        n = draw.choose((2, 3))
        turns.append(((speaker, other)[len(turns) % 2], " ".join(fact.text for fact in facts[:n])))
        facts = facts[n:]
    turns.append(((speaker, other)[len(turns) % 2], f"where do {' , '.join(fact.subject for fact in targets)} end ?"))
    summary: Words = ()
    for fact in targets:
        end, hops = ends[fact.subject]
        summary += ((fact.subject, "copy"), (fact.object_, "hop1"))
        if hops > 1:
            summary += ((end, HOPS[hops - 1]),)
        summary += ((",", "frame"),)
    text = "\n".join(f"{name} : {statement}" for name, statement in turns)
    summary = (*summary, *summed_up, (".", "end"))
    return Record({"dialogue": text, "summary": text_of(summary)}, text, kinds_of(summary))


def _brings(draw: Draw, speaker: str, level: int) -> tuple[str, Words]:
    """Return the speaker's statement about an item that they bring, and its summary as (word, kind) pairs."""
    item = draw.choose(ITEMS)
    her: Words = (("her" if is_woman(speaker) else "his", "agreement"),)
    return f"I bring my {item} .", ((speaker, "copy"), ("brings", "frame"), *her, (item, "copy"))


def _has(draw: Draw, speaker: str, level: int) -> tuple[str, Words]:
    """Return the speaker's statement about fruit that they have, eat and find, and its summary as (word, kind) pairs.

    The summary says how many are left.
    """
    fruit, count, changes = draw.choose(FRUITS), draw.choose(range(4, 7)), draw.choose(range(MOST_CHANGES[level] + 1))
    statement = f"I have {NUMBERS[count - 1]} {fruit} ."
    for _ in range(changes):
        verb = draw.choose(("ate", "found"))
        count += 1 if verb == "found" else -1
        statement += f" I {verb} one ."
    return statement, ((speaker, "copy"), ("has", "frame"), (NUMBERS[count - 1], _STATES[changes]), (fruit, "copy"))


def words() -> set[str]:
    """Return every word that a dialogue or summary can contain."""
    frame = ": I bring my have ate found one where do end ? brings her his has , ."
    return fact_words() | split_all((*NAMES, *NUMBERS, *FRUITS, *ITEMS, frame))
