"""The built-in data: what it promises to whoever trains and measures on it."""

import re
from collections import Counter

import pytest
from transformers import PreTrainedTokenizerFast

from exitbench.errors import UserError
from exitbench.tasks.base import Source, documents_sha256
from exitbench.tasks.builtin import build_tokenizer, documents, vocabulary
from exitbench.tasks.document import Document
from exitbench.tasks.registry import get_task

TASKS = ("squad", "samsum", "wmt-en-fr")
SPLITS = ("train", "calibration", "validation", "test")
FIELDS = {
    "squad": {"id", "title", "context", "question", "answers"},
    "samsum": {"id", "dialogue", "summary"},
    "wmt-en-fr": {"id", "en", "fr"},
}
SOURCE = {"squad": "context", "samsum": "dialogue", "wmt-en-fr": "en"}
WOMEN = {"Anna", "Clara", "Eva", "Ida", "Julia", "Lena", "Maria", "Nora", "Olga", "Rosa", "Sofia", "Vera"}


@pytest.fixture(scope="module")
def many() -> dict[str, list[Document]]:
    return {task: documents(task, "train", 3000) for task in TASKS}


@pytest.mark.parametrize(
    ("task", "split", "digest"),
    [
        ("squad", "test", "56c40d6d3f0fc293"),
        ("samsum", "validation", "a833852598c858c3"),
        ("wmt-en-fr", "train", "b806e1e1b3ebb5e4"),
    ],
)
def test_the_documents_are_the_same_for_ever(task: str, split: str, digest: str) -> None:
    # A change here changes every model trained on the built-in data and every cell that measures on it.
    assert documents_sha256(documents(task, split, 200))[:16] == digest


@pytest.mark.parametrize("task", TASKS)
def test_more_documents_begin_with_the_fewer(task: str) -> None:
    assert documents(task, "test", 50)[:20] == documents(task, "test", 20)


@pytest.mark.parametrize("task", TASKS)
def test_no_text_is_in_two_splits_or_twice_in_one_whatever_the_seed(task: str) -> None:
    texts = {
        split: [{d.fields[SOURCE[task]] for d in documents(task, split, 300, seed)} for seed in (0, 1)]
        for split in SPLITS
    }
    assert all(len(one) == 300 for both in texts.values() for one in both)
    assert all(zero != one for zero, one in texts.values())
    together = {split: zero | one for split, (zero, one) in texts.items()}
    for split in SPLITS:
        for other in SPLITS[SPLITS.index(split) + 1 :]:
            assert together[split].isdisjoint(together[other]), (split, other)


@pytest.mark.parametrize("task", TASKS)
def test_a_task_loads_the_builtin_source_with_the_fields_of_the_real_set(task: str) -> None:
    loaded = get_task(task).load(Source(), "validation", None)
    assert len(loaded) == 500
    assert {frozenset(d.fields) for d in loaded} == {frozenset(FIELDS[task])}
    assert len({d.fields["id"] for d in loaded}) == len(loaded)


def test_every_target_token_has_a_kind(many: dict[str, list[Document]]) -> None:
    tokenizer = build_tokenizer()
    seen = set()
    for name, docs in many.items():
        for doc in docs:
            tokens = tokenizer.encode(get_task(name).target(doc)).tokens
            assert len(tokens) == len(doc.token_kinds) + 1
            seen |= set(doc.token_kinds)
    assert seen == {"copy", "frame", "agreement", "lexical", "hop1", "hop2", "hop3"}


def test_the_vocabulary_holds_every_word_and_no_other(many: dict[str, list[Document]]) -> None:
    tokenizer = build_tokenizer()
    used = Counter(
        token
        for name, docs in many.items()
        for doc in docs
        for text in (get_task(name).prompt(doc), get_task(name).target(doc))
        for token in tokenizer.encode(text).tokens
    )
    assert set(used) == {*vocabulary(), "</s>"}
    assert tokenizer.get_vocab_size() == len(vocabulary()) + 3


def test_sequences_are_short(many: dict[str, list[Document]]) -> None:
    tokenizer = build_tokenizer()
    for name, docs in many.items():
        assert max(len(tokenizer.encode(get_task(name).prompt(doc)).ids) for doc in docs) <= 60
        assert max(len(tokenizer.encode(get_task(name).target(doc)).ids) for doc in docs) <= 20


def test_transformers_loads_the_tokenizer_and_decodes_what_it_encoded(many: dict[str, list[Document]]) -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(), pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    texts = [
        text
        for docs in many.values()
        for doc in docs[:300]
        for field, text in doc.fields.items()
        if field not in ("id", "answers")
    ]
    encoded = tokenizer(texts)["input_ids"]
    assert all(ids[-1] == 1 and ids.count(1) == 1 for ids in encoded)
    assert tokenizer.batch_decode(encoded, skip_special_tokens=True) == texts


def test_punctuation_is_split_from_words_and_unknown_words_are_unknown() -> None:
    tokens = build_tokenizer().encode("question: who knows Anna?").tokens
    assert tokens == ["question", ":", "who", "<unk>", "Anna", "?", "</s>"]


def solve(context: str, question: str) -> tuple[str, int]:
    """An independent reader: the answer, and how many facts it took."""
    known = {
        **{(r, p): o for r, p, o in re.findall(r"the (friend|teacher) of (\w+) is (\w+) \.", context)},
        **{("live", p): o for p, o in re.findall(r"(\w+) lives in (\w+) \.", context)},
        **{("work", p): o for p, o in re.findall(r"(\w+) works at (the \w+) \.", context)},
    }
    if question == "what does the note say ?":
        return re.findall(r"the note says (\w+ \w+) \.", context)[0], 0
    asked = re.findall(r"friend|teacher", question)[::-1]
    if question.startswith("where"):
        asked.append(question.split()[-2])
    (answer,) = re.findall(r"[A-Z]\w+", question)
    for relation in asked:
        assert sum(r == relation for r, _ in known) >= 2, "the cue alone must not give the answer away"
        answer = known[relation, answer]
    return answer, len(asked)


def test_a_careful_reader_finds_every_answer_with_as_many_facts_as_its_hops(many: dict[str, list[Document]]) -> None:
    asked = Counter()
    for doc in many["squad"]:
        answer, facts = solve(doc.fields["context"], doc.fields["question"])
        assert doc.fields["answers"]["text"] == [answer]
        kinds = set(doc.token_kinds) - {"frame"}
        assert kinds == ({f"hop{facts}"} if facts else {"copy"})
        asked[facts] += 1
    assert min(asked[facts] for facts in range(4)) > 300


def test_the_answer_starts_where_the_answering_fact_says_it(many: dict[str, list[Document]]) -> None:
    for doc in many["squad"]:
        context, (answer,), (start,) = doc.fields["context"], *doc.fields["answers"].values()
        assert context[start:].startswith(f"{answer} .")
        statement = context[:start].split(" . ")[-1]
        person_answers = doc.fields["question"].startswith("who")
        assert re.fullmatch(
            r"the \w+ of \w+ is " if person_answers else r"(\w+ (lives in|works at)|the note says) ", statement
        )


def test_a_summary_says_what_was_agreed_in_the_end(many: dict[str, list[Document]]) -> None:
    hours = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    for doc in many["samsum"]:
        turns = [turn.split(" : ") for turn in doc.fields["dialogue"].split("\n")]
        (first, _), (second, _), (bringer, bring) = turns[0], turns[1], turns[-1]
        said = " ".join(text for _, text in turns)
        day, hour = re.findall(r"\w+day", said)[-1], re.findall(r" at (\w+) ", said)[0]
        later = "one hour later" in said
        expected_hour = hours[(hours.index(hour) + later) % 12]
        activity, item = re.findall(r"shall we (.+?) on", said)[0], bring.split()[-2]
        assert doc.fields["summary"] == (
            f"{first} and {second} will {activity} on {day} at {expected_hour} . "
            f"{bringer} will bring {'her' if bringer in WOMEN else 'his'} {item} ."
        )
        kind = dict(zip(doc.fields["summary"].split()[:-7], doc.token_kinds, strict=False))
        assert kind[expected_hour] == ("hop2" if later else "copy")
        assert kind[day] == ("hop1" if "not on" in said else "copy")


def test_word_order_follows_the_adjective(many: dict[str, list[Document]]) -> None:
    sentences = [(d.fields["en"], d.fields["fr"]) for d in many["wmt-en-fr"]]
    for en, fr in sentences:
        assert ("white cars" in en) == ("voitures blanches" in fr)
        assert ("small car" in en.replace("cars", "")) == ("petite voiture" in fr.replace("voitures", ""))
        assert ("old boat " in en) == ("vieux bateau " in fr)


def test_the_object_decides_the_translation_of_some_verbs(many: dict[str, list[Document]]) -> None:
    living = {"cat", "dog", "duck", "cow", "mouse", "goat", "cats", "dogs", "ducks", "cows", "mice", "goats"}
    seen = set()
    for doc in many["wmt-en-fr"]:
        en, fr = doc.fields["en"], doc.fields["fr"].split()
        match = re.search(r" (takes?|leaves?|misses|miss) (.+?)(?: with \w+)? \.$", en)
        if match:
            object_ = match[2].split()[-1]
            lives = object_ in living or object_.istitle()
            stem = {"t": ("pren", "emmèn"), "l": ("laiss", "quitt"), "m": ("rat", "regrett")}[match[1][0]][lives]
            (verb,) = [w for w, kind in zip(fr, doc.token_kinds, strict=True) if kind == "lexical"]
            assert verb.startswith(stem), en
            seen.add(stem)
    assert len(seen) == 6


def test_the_whole_decides_the_translation_of_a_part_and_all_agree_with_it(many: dict[str, list[Document]]) -> None:
    expected = {
        ("key", "piano"): ("la touche du", "lost", "perdue"),
        ("key", "door"): ("la clé de la", "found", "trouvée"),
        ("foot", "mouse"): ("la patte de la", "washed", "lavée"),
        ("foot", "chair"): ("le pied de la", "washed", "lavé"),
        ("bill", "duck"): ("le bec du", "lost", "perdu"),
        ("bill", "shop"): ("la facture du", "lost", "perdue"),
        ("skin", "cow"): ("le cuir de la", "sold", "vendu"),
        ("skin", "lemon"): ("la pelure du", "sold", "vendue"),
    }
    seen = set()
    for doc in many["wmt-en-fr"]:
        part = re.fullmatch(r"the (\w+) of the (?:\w+ )?(\w+) is (\w+) \.", doc.fields["en"])
        if part and (part[1], part[2]) in expected and part[3] == expected[part[1], part[2]][1]:
            opening, _, state = expected[part[1], part[2]]
            assert doc.fields["fr"].startswith(f"{opening} ")
            assert doc.fields["fr"].endswith(f" est {state} .")
            seen.add((part[1], part[2]))
    assert seen == set(expected)


def test_two_people_are_feminine_only_when_both_are_women(many: dict[str, list[Document]]) -> None:
    endings = set()
    for doc in many["wmt-en-fr"]:
        pair = re.fullmatch(r"(\w+) and (\w+) are tired \.", doc.fields["en"])
        if pair:
            women = {pair[1], pair[2]} <= WOMEN
            ending = "fatiguées" if women else "fatigués"
            assert doc.fields["fr"] == f"{pair[1]} et {pair[2]} sont {ending} ."
            endings.add(ending)
    assert len(endings) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("squat", "test", 5), "unknown task 'squat'. Did you mean 'squad'? Allowed: samsum, squad, wmt-en-fr."),
        (("squad", "dev", 5), "squad has no split 'dev'.*Allowed: calibration, test, train, validation."),
        (("squad", "test", 0), "n is 0. Allowed: a number from 1 up"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_allowed(arguments: tuple[str, str, int], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        documents(*arguments)
