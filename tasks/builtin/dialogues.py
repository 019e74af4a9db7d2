"""Two people make an appointment by chat; the summary says what they agreed on in the end."""

from exitbench.tasks.builtin.draw import Draw
from exitbench.tasks.builtin.people import NAMES, is_woman
from exitbench.tasks.builtin.words import Kind, Record, Words, kinds_of, of_kind, split_all, text_of

ACTIVITIES = (
    "play tennis", "play chess", "see the film", "visit the museum", "cook the dinner",
    "bake the cake", "fix the car", "paint the kitchen", "clean the garden", "buy the present",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
HOURS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
ITEMS = ("camera", "guitar", "map", "radio", "ladder", "basket", "brush", "lamp")


def dialogue(draw: Draw) -> Record:
    """Make one dialogue with its summary."""
    first, second = draw.some(NAMES, 2)
    activity, item = draw.one(ACTIVITIES), draw.one(ITEMS)
    offered, agreed = draw.some(DAYS, 2)
    hour = draw.one(range(len(HOURS)))
    turns = [(first, f"hi {second} ! shall we {activity} on {offered} ?")]

    day: Words
    if draw.chance(0.5):
        turns.append((second, f"yes , at {HOURS[hour]} ."))
        day = of_kind("copy", offered)
    else:
        turns.append((second, f"not on {offered} , but on {agreed} at {HOURS[hour]} ."))
        day = of_kind("hop1", agreed)

    time = of_kind("copy", HOURS[hour])
    if draw.chance(0.4):
        turns.append((first, "one hour later , please ."))
        time = of_kind("hop2", HOURS[(hour + 1) % len(HOURS)])

    bringer = draw.one((first, second))
    turns.append((bringer, f"I will bring my {item} ."))

    summary: Words = (
        *of_kind("copy", first), ("and", "frame"), *of_kind("copy", second),
        ("will", "frame"), *_activity(activity), ("on", "frame"), *day, ("at", "frame"), *time, (".", "frame"),
        *of_kind("hop1", bringer), *of_kind("frame", "will bring"),
        ("her" if is_woman(bringer) else "his", "agreement"), *of_kind("copy", item), (".", "frame"),
    )  # fmt: skip
    text = "\n".join(f"{speaker} : {said}" for speaker, said in turns)
    return Record({"dialogue": text, "summary": text_of(summary)}, text, kinds_of(summary))


def words() -> set[str]:
    """Return every word that a dialogue or summary can hold."""
    frame = "hi ! shall we on ? yes , at . not but hour later please I will bring my and her his : the"
    return split_all((*NAMES, *ACTIVITIES, *DAYS, *HOURS, *ITEMS, frame))


def _activity(activity: str) -> Words:
    """The words of an activity; an article is the same whatever the activity."""
    kinds: dict[str, Kind] = {"the": "frame"}
    return tuple((word, kinds.get(word, "copy")) for word in activity.split())
