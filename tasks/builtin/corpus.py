"""Documents and tokenizer of the built-in data: documents are generated in order, and assigned to splits by a hash."""

from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import islice, pairwise

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from exitbench.errors import UserError, suggestion
from exitbench.tasks.builtin import dialogues, questions, translation
from exitbench.tasks.builtin.dialogues import NUMBERS
from exitbench.tasks.builtin.translation import MOODS
from exitbench.tasks.builtin.words import Draw, Kind, Record
from exitbench.tasks.document import DEFAULT_LEVEL, Document, require_level

WELL = ("happy",)
UNWELL = tuple(mood.en for mood in MOODS if mood.en not in WELL)

QUESTION_KINDS: dict[int, tuple[Kind, ...]] = {
    1: ("copy", "hop1", "hop1"),
    2: ("copy", "hop1", "hop2", "hop2", "hop3"),
    3: ("copy", "hop2", "hop3", "hop4"),
}
"""Question kinds per level, drawn with equal probability; a repeated kind is drawn more often."""


def labelled_sentence(draw: Draw, level: int) -> Record:
    """Generate a sentence of number and mood words with its label: 1 if the word to be found is `happy`, else 0.

    The first word is a number: the position of the word to read next. That word is a number again, or the mood word
    that decides the label.

    Args:
        draw: Source of random choices.
        level: Difficulty, 1 to 3; higher levels have longer chains of numbers.
    """
    kind = draw.choose(QUESTION_KINDS[level])
    label = draw.chance(0.5)
    hops = draw.choose((1, level)) if kind == "copy" else int(kind[-1])
    places = draw.sample(range(len(NUMBERS)), len(NUMBERS))
    words = [draw.choose(NUMBERS) for _ in places]
    for place, following in pairwise(places[:hops]):
        words[place] = NUMBERS[following]
    other = label if kind == "copy" else not label
    for place, is_well in zip(places[hops - 1 :], (label, other, other, label), strict=False):
        words[place] = draw.choose(WELL if is_well else UNWELL)
    sentence = f"{NUMBERS[places[0]]} : {' '.join(words)} ."
    return Record({"sentence": sentence, "label": int(label)}, sentence, (kind,))


PAD, EOS, UNK = "<pad>", "</s>", "<unk>"
# Words that prompts add to the documents' own text.
PROMPT_WORDS = frozenset({"question", "context", "summarize", "translate", "English", "to", "French", ":"})
END_OF_LINE = "\n"


def vocabulary() -> list[str]:
    """Return all words of the built-in data, sorted.

    A word's token id is its position plus 3, after <pad>, </s> and <unk>.
    """
    words = translation.words() | questions.words() | dialogues.words() | PROMPT_WORDS | {END_OF_LINE}
    return sorted(words)


def build_tokenizer() -> Tokenizer:
    """Build the word-level tokenizer of the built-in data: ids 0 <pad>, 1 </s>, 2 <unk>; every encoding ends with </s>.

    Decoding an encoding restores the text, for any text of the built-in data.
    """
    ids = {word: i for i, word in enumerate((PAD, EOS, UNK, *vocabulary()))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(" ", "removed"),
            pre_tokenizers.Split(END_OF_LINE, "isolated"),
            pre_tokenizers.Punctuation("isolated"),
        ]
    )
    # WordPiece's decoder joins with spaces all tokens without its prefix, and here no token has the prefix.
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.WordPiece(prefix="##", cleanup=False),
            decoders.Fuse(),
            decoders.Replace(f" {END_OF_LINE} ", END_OF_LINE),
        ]
    )
    tokenizer.add_special_tokens([PAD, EOS, UNK])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, ids[EOS])])
    return tokenizer


MAKERS: dict[str, Callable[[Draw, int], Record]] = {
    "squad": questions.question,
    "samsum": dialogues.dialogue,
    "sst2": labelled_sentence,
    "wmt-en-fr": translation.translation,
}
TEACHING = {"train": {"squad": questions.exercise}, "validation": {"squad": questions.exercise}}
"""Other generators for some splits: trainings validate on documents like those that they train on."""
TASKS = tuple(sorted(MAKERS))
"""Names of the tasks with generated data."""
TEXT_TASKS = tuple(name for name in TASKS if name != "sst2")
"""Those of `TASKS` whose answers are texts."""
# A hash of the document's text assigns it to one of ten parts, so no seed can move it into another split.
PARTS = 10
SPLIT_PARTS = {"train": range(7), "calibration": (7,), "validation": (8,), "test": (9,)}
IN_VAIN = 2_000
"""Give up after this many consecutive draws without a new document of the split."""
SIZES = {"train": 20_000, "calibration": 500, "validation": 500, "test": 1_000}


def documents(task_name: str, split: str, n: int | None, seed: int = 0, level: int = DEFAULT_LEVEL) -> list[Document]:
    """Generate n documents of a task; the same arguments give the same documents on every machine.

    Args:
        task_name: "squad", "samsum", "sst2" or "wmt-en-fr".
        split: "train", "calibration", "validation" or "test". No text occurs in two of them, whatever the seeds.
        n: Number of documents; a smaller n gives a prefix of a larger one. None: the split's usual size.
        seed: Random seed; another seed gives other documents.
        level: Difficulty, 1 to 3.

    Returns:
        n documents with the fields of the real data set and the kind of each target word.

    Raises:
        UserError: The task, split or level is unknown, n is below 1, or fewer than n documents can be generated.
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
    """Yield distinct records of a split; raise `UserError` after `IN_VAIN` consecutive draws without a new record."""
    draw = Draw(f"{task_name}/{split}/{level}/{seed}")
    make = TEACHING.get(split, MAKERS).get(task_name, MAKERS[task_name])
    sources: set[str] = set()
    in_vain = 0
    while in_vain < IN_VAIN:
        record = make(draw, level)
        if record.source in sources or _part(record.source) not in SPLIT_PARTS[split]:
            in_vain += 1
            continue
        in_vain = 0
        sources.add(record.source)
        yield record
    raise UserError(
        f"built-in data: {task_name} at level {level} has no more than {len(sources)} documents in split {split!r}."
    )


def _part(source: str) -> int:
    """Return the hash bucket of a document's text, 0..PARTS-1; each split consists of some of the buckets."""
    return int.from_bytes(sha256(source.encode()).digest()[:8]) % PARTS
