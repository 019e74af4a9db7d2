"""The generated data: properties that training and measurements rely on."""

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import combinations, groupby, pairwise
from statistics import fmean

import pytest
from transformers import PreTrainedTokenizerFast

from exitbench.errors import UserError
from exitbench.tasks.base import Source, documents_sha256
from exitbench.tasks.builtin import build_tokenizer, documents, vocabulary
from exitbench.tasks.builtin.corpus import MAKERS
from exitbench.tasks.builtin.words import KINDS, Record
from exitbench.tasks.document import Document
from exitbench.tasks.registry import get_task

TASKS = ("squad", "samsum", "wmt-en-fr")
SPLITS = ("train", "calibration", "validation", "test")
LEVELS = (1, 2, 3)
FIELDS = {
    "squad": {"id", "title", "context", "question", "answers"},
    "samsum": {"id", "dialogue", "summary"},
    "wmt-en-fr": {"id", "en", "fr"},
}
SOURCE = {"squad": "context", "samsum": "dialogue", "wmt-en-fr": "en"}
# A change here changes every model trained on the built-in data and every cell that measures on it.
DIGESTS = {
    ("squad", "test"): "7c654af5d15bc0f5",
    ("samsum", "validation"): "22402d44fc596615",
    ("wmt-en-fr", "train"): "5d40a31da7d78755",
}


@cache
def training_documents(task: str, level: int = 2) -> list[Document]:
    return documents(task, "train", 3000, level=level)


def texts(docs: list[Document]) -> set[str]:
    return {doc.fields[field] for doc in docs for field in SOURCE.values() if field in doc.fields}


@cache
def tokens_of(task: str, side: str, level: int = 2) -> list[list[str]]:
    """Return the tokens of the training documents' prompts or targets (`side`)."""
    encodings = build_tokenizer().encode_batch(
        [getattr(get_task(task), side)(doc) for doc in training_documents(task, level)]
    )
    return [encoding.tokens for encoding in encodings]


@pytest.mark.parametrize(("task", "split"), DIGESTS)
def test_documents_equal_the_recorded_golden_digests(task: str, split: str) -> None:
    assert documents_sha256(documents(task, split, 200))[:16] == DIGESTS[task, split]


@pytest.mark.parametrize("task", TASKS)
def test_larger_request_starts_with_the_smaller_one(task: str) -> None:
    assert documents(task, "test", 50)[:20] == documents(task, "test", 20)


@pytest.mark.parametrize("task", TASKS)
def test_texts_are_unique_within_and_across_splits_for_all_seeds_and_levels(task: str) -> None:
    drawn = {
        split: [texts(documents(task, split, 200, seed, level)) for seed, level in ((0, 1), (0, 2), (0, 3), (1, 2))]
        for split in SPLITS
    }
    assert all(len(some) == 200 for each in drawn.values() for some in each)
    assert all(some != other for each in drawn.values() for some, other in combinations(each, 2))
    for split, other_split in combinations(SPLITS, 2):
        assert set().union(*drawn[split]).isdisjoint(set().union(*drawn[other_split])), (split, other_split)


@pytest.mark.parametrize("task", TASKS)
def test_builtin_documents_have_the_fields_of_the_real_data_set(task: str) -> None:
    loaded = get_task(task).load(Source(), "validation", None)
    assert len(loaded) == 500
    assert {frozenset(d.fields) for d in loaded} == {frozenset(FIELDS[task])}
    assert len({d.fields["id"] for d in loaded}) == len(loaded)


def test_every_target_token_has_a_kind_and_every_kind_occurs() -> None:
    kinds: set[str] = set()
    for task in TASKS:
        for doc, tokens in zip(training_documents(task), tokens_of(task, "target"), strict=True):
            assert len(tokens) == len(doc.token_kinds) + 1
            kinds |= set(doc.token_kinds)
    assert kinds == set(KINDS)


def test_vocabulary_contains_exactly_the_words_in_use() -> None:
    used = {
        token for task in TASKS for side in ("prompt", "target") for tokens in tokens_of(task, side) for token in tokens
    }
    assert used == {*vocabulary(), "</s>"}
    assert build_tokenizer().get_vocab_size() == len(vocabulary()) + 3


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("level", "prompt_tokens", "target_tokens"), [(2, 96, 26), (3, 112, 30)])
def test_prompts_and_targets_stay_within_their_token_limits(
    task: str, level: int, prompt_tokens: int, target_tokens: int
) -> None:
    assert max(map(len, tokens_of(task, "prompt", level))) <= prompt_tokens
    assert max(map(len, tokens_of(task, "target", level))) <= target_tokens


def test_tokenizer_loads_in_transformers_and_round_trips_texts() -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(), pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    written = [
        text
        for task in TASKS
        for doc in training_documents(task)[:300]
        for field, text in doc.fields.items()
        if field not in ("id", "answers")
    ]
    encoded = tokenizer(written)["input_ids"]
    assert all(ids[-1] == 1 and ids.count(1) == 1 and 2 not in ids for ids in encoded)
    assert tokenizer.batch_decode(encoded, skip_special_tokens=True) == written


def test_punctuation_is_split_from_words_and_unknown_words_map_to_unk() -> None:
    tokens = build_tokenizer().encode("question: where does Zoe end?").tokens
    assert tokens == ["question", ":", "where", "does", "<unk>", "end", "?", "</s>"]


WOMEN = {"Anna", "Clara", "Eva", "Ida", "Julia", "Lena", "Maria", "Nora", "Olga", "Rosa", "Sofia", "Vera"}
TOUR = r"[A-Z]\w+(?: by \w+(?: and [A-Z]\w+ by \w+)+)?"
FACT = rf"[A-Z]\w+ (?:(?:follows|joins) [A-Z]\w+|visits {TOUR}) \."


def facts_of(text: str) -> list[tuple[str, str, str]]:
    """Return the facts of a text: who does what to whom, or where."""
    return re.findall(r"(\w+) (follows|joins|visits) (\w+)", text)


def route(facts: list[tuple[str, str, str]], person: str) -> list[str]:
    """Return the people that a person follows, in order, and the city at the end."""
    goes_to = {subject: object_ for subject, _, object_ in facts}
    stops = []
    while person in goes_to:
        person = goes_to.pop(person)
        stops.append(person)
    return stops


def told_cities(text: str) -> list[str]:
    return re.findall(r"(?:visits|says|and) ([A-Z]\w+)", text)


def asked_person(question: str) -> str | None:
    question_match = re.fullmatch(r"where does (\w+) end \?", question)
    return question_match[1] if question_match else None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("task", ["squad", "samsum"])
def test_every_person_has_one_fact_and_every_chain_ends_in_a_city(task: str, level: int) -> None:
    for doc in training_documents(task, level):
        facts = facts_of(doc.fields[SOURCE[task]])
        people = [subject for subject, _, _ in facts]
        assert len(set(people)) == len(people)
        assert {route(facts, person)[-1] for person in people} == {
            place for _, verb, place in facts if verb == "visits"
        }


@pytest.mark.parametrize("level", LEVELS)
def test_context_contains_facts_and_a_note_only_if_the_question_needs_it(level: int) -> None:
    for doc in training_documents("squad", level):
        facts, notes = re.subn(rf"the note says {TOUR} \. ?", "", doc.fields["context"])
        assert notes == (doc.fields["question"] == "what does the note say ?")
        assert re.fullmatch(rf"({FACT} ?)+", facts)


@pytest.mark.parametrize("level", LEVELS)
def test_every_answer_is_found_by_following_its_number_of_hops(level: int) -> None:
    for doc in training_documents("squad", level):
        context, person = doc.fields["context"], asked_person(doc.fields["question"])
        stops = [person, *route(facts_of(context), person)] if person else []
        cue = f"{stops[-2]} visits" if stops else "the note says"
        (answer,) = re.finditer(rf"{cue} ({TOUR}) \.", context)
        assert doc.fields["answers"] == {"text": [answer[1]], "answer_start": [answer.start(1)]}
        first, *other_kinds = doc.token_kinds
        assert first == (f"hop{len(stops) - 1}" if stops else "copy")
        assert set(other_kinds) <= {"copy"}


@pytest.mark.parametrize(
    ("level", "kinds"),
    [
        (1, {"copy", "hop1", "hop2"}),
        (2, {"copy", "hop1", "hop2", "hop3", "hop4", "hop5"}),
        (3, {"hop1", "hop2", "hop3", "hop4", "hop5"}),
    ],
)
def test_every_question_kind_of_a_level_is_frequent(level: int, kinds: set[str]) -> None:
    counts = Counter(doc.token_kinds[0] for doc in training_documents("squad", level))
    assert set(counts) == kinds
    assert min(counts.values()) > 0.08 * counts.total()


def test_training_split_has_deeper_questions_than_the_test_split() -> None:
    def mean_hops(split: str) -> float:
        kinds = (doc.token_kinds[0] for doc in documents("squad", split, 300))
        return fmean(0 if kind == "copy" else int(kind[-1]) for kind in kinds)

    assert mean_hops("train") > mean_hops("test") + 0.15
    assert mean_hops("validation") > mean_hops("calibration") + 0.15


@pytest.mark.parametrize(("task", "level"), [("squad", 1), ("squad", 2), ("squad", 3), ("samsum", 2), ("samsum", 3)])
def test_contexts_mention_at_least_two_cities(task: str, level: int) -> None:
    for doc in training_documents(task, level):
        assert len(set(told_cities(doc.fields[SOURCE[task]]))) >= 2


@pytest.mark.parametrize("position", [0, -1], ids=["first", "last"])
def test_guessing_the_first_or_last_city_is_mostly_wrong(position: int) -> None:
    docs = training_documents("squad")
    guesses = [told_cities(doc.fields["context"])[position] for doc in docs]
    right = [doc.fields["answers"]["text"][0].startswith(guess) for doc, guess in zip(docs, guesses, strict=True)]
    assert fmean(right) < 0.35


def test_guessing_the_next_city_after_the_person_is_mostly_wrong_beyond_one_hop() -> None:
    right = []
    for doc in training_documents("squad"):
        person = asked_person(doc.fields["question"])
        if person and doc.token_kinds[0] != "hop1":
            before, after = doc.fields["context"].split(person)
            guess = told_cities(after + before)[0]
            right.append(doc.fields["answers"]["text"][0].startswith(guess))
    assert fmean(right) < 0.4


NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight")


def turns(doc: Document) -> list[tuple[str, str]]:
    """Return the speakers of a dialogue with their utterances."""
    return re.findall(r"^(\w+) : (.+)$", doc.fields["dialogue"], re.MULTILINE)


def said_of_oneself(speaker: str, utterance: str) -> list[tuple[str, str]]:
    """Return the summary's words with their kinds, for a speaker who brings something or counts what is left."""
    for item in re.findall(r"^I bring my (\w+) \.$", utterance):
        her = "her" if speaker in WOMEN else "his"
        return [(speaker, "copy"), ("brings", "frame"), (her, "agreement"), (item, "copy")]
    ((had, fruit, changes),) = re.findall(r"^I have (\w+) (\w+) \.((?: I (?:ate|found) one \.)*)$", utterance)
    remaining = NUMBERS[NUMBERS.index(had) + changes.count("found") - changes.count("ate")]
    return [(speaker, "copy"), ("has", "frame"), (remaining, f"state{1 + changes.count('.')}"), (fruit, "copy")]


@pytest.mark.parametrize("level", LEVELS)
def test_dialogues_alternate_two_speakers_with_facts_before_a_final_question(level: int) -> None:
    for doc in training_documents("samsum", level):
        first, *statements, last = turns(doc)
        speakers = [speaker for speaker, _ in (first, *statements, last)]
        assert len(set(speakers)) == 2
        assert all(speaker != other for speaker, other in pairwise(speakers))
        assert re.fullmatch(rf"({FACT} ?)+", " ".join(facts for _, facts in statements))
        assert re.fullmatch(r"where do \w+( , \w+)+ end \?", last[1])


@pytest.mark.parametrize("level", LEVELS)
def test_summary_states_the_requested_end_points_and_the_first_speakers_items(level: int) -> None:
    for doc in training_documents("samsum", level):
        (speaker, utterance), *_, (_, question) = turns(doc)
        facts = facts_of(doc.fields["dialogue"])
        expected: list[tuple[str, str]] = []
        for person in re.findall(r"[A-Z]\w+", question):
            stops = route(facts, person)
            expected += [(person, "copy"), (stops[0], "hop1")]
            expected += [(stops[-1], f"hop{len(stops)}")] if len(stops) > 1 else []
            expected += [(",", "frame")]
        expected += [*said_of_oneself(speaker, utterance), (".", "end")]
        assert list(zip(doc.fields["summary"].split(), doc.token_kinds, strict=True)) == expected


@pytest.mark.parametrize(("level", "states"), [(1, 2), (2, 3), (3, 3)])
def test_every_statement_count_of_a_level_is_frequent(level: int, states: int) -> None:
    counted = Counter(
        kind for doc in training_documents("samsum", level) for kind in doc.token_kinds if kind.startswith("state")
    )
    assert set(counted) == {f"state{n}" for n in range(1, states + 1)}
    assert min(counted.values()) > 400


ADJECTIVE = "(?:small|big|old|red|green|black|white)"
FEMININE = {"cow", "mouse", "goat", "house", "car", "door", "chair", "apple"}
MASCULINE_PARTS = {("foot", "chair"), ("skin", "cow"), ("skin", "goat"), ("bill", "duck")}
LIVING = {"cat", "dog", "duck", "cow", "mouse", "goat"}
PREDICATES = {
    "lost": "perdu perdue perdus perdues",
    "sold": "vendu vendue vendus vendues",
    "found": "trouvé trouvée trouvés trouvées",
    "washed": "lavé lavée lavés lavées",
    "happy": "heureux heureuse heureux heureuses",
    "tired": "fatigué fatiguée fatigués fatiguées",
    "sick": "souffrant souffrante souffrants souffrantes",
}
PRONOUNS = {
    ("he", False): "il",
    ("she", True): "elle",
    ("it", False): "il",
    ("it", True): "elle",
    ("they", False): "ils",
    ("they", True): "elles",
}


def clauses(doc: Document) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return each clause in English with the words of its French translation, which have their kinds."""
    words = list(zip(doc.fields["fr"].split(), doc.token_kinds, strict=True))
    french = [list(group) for mark, group in groupby(words, lambda word: word[0] in (",", ".")) if not mark]
    return list(zip(re.split(r" [,.] ?", doc.fields["en"])[:-1], french, strict=True))


def singular(noun: str) -> str:
    return "mouse" if noun == "mice" else noun.removesuffix("s")


def pronoun_of(en: str) -> tuple[str, bool]:
    """Return the English pronoun for a sentence's subject, and whether the subject is feminine in French."""
    people = re.match(r"([A-Z]\w+)(?: and ([A-Z]\w+))?", en)
    if people:
        women = set(people.groups()) - {None} <= WOMEN
        return "they" if people[2] else "she" if women else "he", women
    ((noun, owner),) = re.findall(rf"^(?:the|an?|some) (?:{ADJECTIVE} )?(\w+)(?: of the (?:{ADJECTIVE} )?(\w+))?", en)
    feminine = (noun, singular(owner)) not in MASCULINE_PARTS if owner else singular(noun) in FEMININE
    return "it" if noun == singular(noun) else "they", feminine


def test_english_articles_match_the_next_words_sound() -> None:
    for doc in training_documents("wmt-en-fr"):
        assert not re.search(r"\b(a [aeiou]|an [^aeiou])", doc.fields["en"])


def test_french_text_never_needs_elision() -> None:
    for doc in training_documents("wmt-en-fr"):
        assert not re.search(r"\b(que|le|la|de) [aeiouéè]", doc.fields["fr"])


@pytest.mark.parametrize(
    ("en", "fr"), [("white cars", "voitures blanches"), ("small car", "petite voiture"), ("old boat", "vieux bateau")]
)
def test_french_adjectives_precede_or_follow_the_noun_correctly(en: str, fr: str) -> None:
    total = 0
    for doc in training_documents("wmt-en-fr"):
        count = len(re.findall(rf"\b{en}\b", doc.fields["en"]))
        assert len(re.findall(rf"\b{fr}\b", doc.fields["fr"])) == count
        total += count
    assert total > 5


def test_verb_translation_depends_on_whether_the_object_is_living() -> None:
    stems = {"t": ("pren", "emmèn"), "l": ("laiss", "quitt"), "m": ("rat", "regrett")}
    words = set()
    for doc in training_documents("wmt-en-fr"):
        for en, fr in clauses(doc):
            for before, verb, after in re.findall(r"(.+) (takes?|leaves?|misses|miss) ?(.*)", en):
                antecedent, relative, _ = before.partition(" that ")
                object_ = (antecedent if relative else re.sub(r" with \w+$", "", after)).split()[-1]
                lives = object_.istitle() or singular(object_) in LIVING
                (translated,) = (word for word, kind in fr if kind == "lexical")
                assert translated.startswith(stems[verb[0]][lives]), en
                words.add((verb[0], lives, bool(relative)))
    assert len(words) == 3 * 2 * 2


def test_part_noun_translation_depends_on_the_whole_and_its_state_agrees() -> None:
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
    words = set()
    for doc in training_documents("wmt-en-fr"):
        en, fr = clauses(doc)[0]
        part = re.fullmatch(rf"the (\w+) of the (?:{ADJECTIVE} )?(\w+) is (\w+)", en)
        if part and (part[1], part[2]) in expected and part[3] == expected[part[1], part[2]][1]:
            opening, _, state = expected[part[1], part[2]]
            spoken_words = " ".join(word for word, _ in fr)
            assert spoken_words.startswith(f"{opening} ")
            assert spoken_words.endswith(f" est {state}")
            assert fr[1][1] == "lexical"
            words.add((part[1], part[2]))
    assert words == set(expected)


def test_pair_of_people_is_feminine_only_if_both_are_women() -> None:
    endings = set()
    for doc in training_documents("wmt-en-fr"):
        en, fr = clauses(doc)[0]
        pair = re.fullmatch(r"(\w+) and (\w+) are tired", en)
        if pair:
            ending = "fatiguées" if {pair[1], pair[2]} <= WOMEN else "fatigués"
            assert [word for word, _ in fr] == [pair[1], "et", pair[2], "sont", ending]
            endings.add(ending)
    assert len(endings) == 2


@pytest.mark.parametrize("level", [2, 3])
def test_pronoun_has_the_french_gender_of_its_antecedent(level: int) -> None:
    counts: Counter[tuple[str, bool]] = Counter()
    for doc in training_documents("wmt-en-fr", level):
        pronoun, feminine = pronoun_of(doc.fields["en"])
        for en, fr in clauses(doc)[1:]:
            assert en.split()[1] == pronoun
            assert fr[1] == (PRONOUNS[pronoun, feminine], "copy" if pronoun in ("he", "she") else "distance"), en
            counts[pronoun, feminine] += 1
    assert set(counts) == set(PRONOUNS)
    assert min(counts.values()) > 30


@pytest.mark.parametrize("level", LEVELS)
def test_predicate_agrees_with_its_subject_despite_intervening_nouns(level: int) -> None:
    misleading = 0
    for doc in training_documents("wmt-en-fr", level):
        pronoun, feminine = pronoun_of(doc.fields["en"])
        for i, (en, fr) in enumerate(clauses(doc)):
            _, relative, between = en.partition(" that ")
            for state in re.findall(r" (?:is|are) (\w+)$", en):
                form = PREDICATES[state].split()[feminine + 2 * (pronoun == "they")]
                assert fr[-1] == (form, "distance" if i or relative else "agreement"), en
                misleading += bool(relative) and pronoun_of(between) != (pronoun, feminine)
    assert misleading > 200 if level > 1 else not misleading


MEASURES: dict[str, tuple[str, Callable[[Document], float]]] = {
    "facts of a context": ("squad", lambda doc: len(facts_of(doc.fields["context"]))),
    "hops of an answer": ("squad", lambda doc: int(doc.token_kinds[0].replace("copy", "hop0")[3:])),
    "facts of a dialogue": ("samsum", lambda doc: len(facts_of(doc.fields["dialogue"]))),
    "people of a summary": ("samsum", lambda doc: doc.fields["summary"].count(",")),
    "clauses of a sentence": ("wmt-en-fr", lambda doc: len(clauses(doc))),
    "relative clauses of a sentence": ("wmt-en-fr", lambda doc: doc.fields["en"].count(" that ")),
    "words that agree past others": ("wmt-en-fr", lambda doc: doc.token_kinds.count("distance")),
}


@pytest.mark.parametrize("measure", MEASURES)
def test_difficulty_measures_increase_with_the_level(measure: str) -> None:
    task, count = MEASURES[measure]
    means = [fmean(map(count, training_documents(task, level))) for level in LEVELS]
    assert all(lower < 0.85 * higher for lower, higher in pairwise(means)), means


@pytest.mark.parametrize("task", TASKS)
def test_levels_share_no_document_key_and_few_texts(task: str) -> None:
    for level, other in combinations(LEVELS, 2):
        some, other_documents = training_documents(task, level), training_documents(task, other)
        assert {doc.key for doc in some}.isdisjoint(doc.key for doc in other_documents)
        assert len(texts(some) & texts(other_documents)) < 0.15 * len(some)


@pytest.mark.parametrize("task", TASKS)
def test_level_defaults_to_2_and_can_be_set_by_the_source(task: str) -> None:
    assert documents(task, "validation", 20) == documents(task, "validation", 20, level=2)
    assert get_task(task).load(Source(), "validation", None)[:20] == documents(task, "validation", 20, level=2)
    assert get_task(task).load(Source(level=3), "validation", None)[:20] == documents(task, "validation", 20, level=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("squat", "test", 5), "unknown task 'squat'. Did you mean 'squad'? Allowed: samsum, squad, sst2, wmt-en-fr."),
        (("squad", "dev", 5), "squad has no split 'dev'.*Allowed: calibration, test, train, validation."),
        (("squad", "test", 0), "n is 0. Allowed: a number from 1 up"),
        (("squad", "test", 5, 0, 0), "level is 0. Allowed: 1, 2, 3."),
        (("squad", "test", 5, 0, 4), "level is 4. Allowed: 1, 2, 3."),
    ],
)
def test_invalid_argument_error_lists_allowed_values(
    arguments: tuple[str, str, int] | tuple[str, str, int, int, int], message: str
) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        documents(*arguments)


def test_unknown_level_error_lists_allowed_levels() -> None:
    with pytest.raises(UserError, match=r"level is 4\. Allowed: 1, 2, 3\."):
        get_task("squad").load(Source(level=4), "validation", None)


def test_requesting_more_documents_than_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MAKERS, "squad", lambda draw, level: Record({}, str(draw.choose(range(30))), ()))
    with pytest.raises(UserError, match=r"squad at level 2 has no more than \d documents in split 'test'\."):
        documents("squad", "test", 31)
