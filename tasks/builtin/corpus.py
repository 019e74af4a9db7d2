"""Documents of the built-in data: which belong to which split, and in which order."""

from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import islice

from exitbench.errors import UserError, suggestion
from exitbench.tasks.builtin.dialogues import dialogue
from exitbench.tasks.builtin.draw import Draw
from exitbench.tasks.builtin.moods import mood
from exitbench.tasks.builtin.questions import exercise, question
from exitbench.tasks.builtin.translation import translation
from exitbench.tasks.builtin.words import Record
from exitbench.tasks.document import Document
from exitbench.tasks.level import DEFAULT_LEVEL, require_level

MAKERS: dict[str, Callable[[Draw, int], Record]] = {
    "squad": question,
    "samsum": dialogue,
    "sst2": mood,
    "wmt-en-fr": translation,
}
TEACHING = {"train": {"squad": exercise}, "validation": {"squad": exercise}}
"""What a split makes otherwise: trainings validate on documents like those that they train on."""
TASKS = tuple(sorted(MAKERS))
"""Names of the tasks that have generated data."""
TEXT_TASKS = tuple(name for name in TASKS if name != "sst2")
"""Those of them that are answered with texts."""
# The digest of what a document says puts it into one of ten parts; so no seed can put it into another split.
PARTS = 10
SPLIT_PARTS = {"train": range(7), "calibration": (7,), "validation": (8,), "test": (9,)}
IN_VAIN = 2_000
"""Draws in a row without a new document of the split after which there are thought to be no more."""
SIZES = {"train": 20_000, "calibration": 500, "validation": 500, "test": 1_000}


def documents(task_name: str, split: str, n: int | None, seed: int = 0, level: int = DEFAULT_LEVEL) -> list[Document]:
    """Generate documents of a task, the same for the same arguments on every machine.

    Args:
        task_name: "squad", "samsum", "sst2" or "wmt-en-fr".
        split: "train", "calibration", "validation" or "test". No text occurs in two of them, whatever the seeds.
        n: How many; the first documents of a larger n are those of a smaller one. None: the split's usual size.
        seed: Another seed gives other documents.
        level: How hard they are; 1 to 3.

    Returns:
        n documents with the fields of the real data set and the kind of each target word.

    Raises:
        UserError: For an unknown task, split or level, n below 1, or more documents than there are.
    """
    if task_name not in MAKERS:
        raise UserError(f"built-in data: unknown task {task_name!r}.{suggestion(task_name, MAKERS)}")
    if split not in SPLIT_PARTS:
        raise UserError(f"built-in data: {task_name} has no split {split!r}.{suggestion(split, SPLIT_PARTS)}")
    if n is not None and n < 1:
        raise UserError(f"built-in data: n is {n}. Allowed: a number from 1 up, or none for the split's usual size.")
    require_level(level)
    records = islice(_records(task_name, split, seed, level), SIZES[split] if n is None else n)
    return [
        Document.from_fields({"id": f"{task_name}-{split}-{level}-{seed}-{i}", **record.fields}, record.kinds)
        for i, record in enumerate(records)
    ]


def _records(task_name: str, split: str, seed: int, level: int) -> Iterator[Record]:
    """Yield the different records of a split, until there seem to be no more."""
    draw = Draw(f"{task_name}/{split}/{level}/{seed}")
    make = TEACHING.get(split, MAKERS).get(task_name, MAKERS[task_name])
    seen: set[str] = set()
    in_vain = 0
    while in_vain < IN_VAIN:
        record = make(draw, level)
        if record.source in seen or _part(record.source) not in SPLIT_PARTS[split]:
            in_vain += 1
            continue
        in_vain = 0
        seen.add(record.source)
        yield record
    raise UserError(
        f"built-in data: {task_name} at level {level} has no more than {len(seen)} documents in split {split!r}."
    )


def _part(source: str) -> int:
    """Return the part that a text belongs to, 0..PARTS-1."""
    return int.from_bytes(sha256(source.encode()).digest()[:8]) % PARTS
