"""``exitbench ask``: the questions that saved queries answer, by topic."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import groupby

from exitbench.errors import UserError
from exitbench.results.queries import SavedQuery, parameter_text, query_names, saved_query
from exitbench.results.queries.cookbook import SECTIONS


def ask(arguments: Namespace) -> int:
    """Print a line a question; of those that words were asked for all that is told.

    Raises:
        UserError: No question has all the words.
    """
    words = [word.lower() for word in arguments.words]
    found = [query for query in saved_queries() if all(word in _all_words(query) for word in words)]
    if not found:
        raise UserError(f"No question has {' and '.join(map(repr, words))}. `exitbench ask` lists them all.")
    print(listed(found, in_full=bool(words)))
    if not words:
        print("\nexitbench sql @NAME answers one; exitbench ask WORD says how to read it, and what can be set.")
    return 0


def saved_queries() -> list[SavedQuery]:
    """Return the saved queries in the order of their topics."""
    return sorted(map(saved_query, query_names()), key=lambda query: SECTIONS.index(query.section))


def listed(queries: Sequence[SavedQuery], *, in_full: bool) -> str:
    """Return queries below their topics: a line each, or with how they are read and what can be set."""
    width = max(len(query.name) for query in queries)
    lines = []
    for section, members in groupby(queries, key=lambda query: query.section):
        lines.append(f"{section}\n" if in_full else section)
        for query in members:
            lines += _in_full(query) if in_full else [f"  @{query.name:{width}}  {query.question}"]
        lines.append("")
    return "\n".join(lines[:-1])


def _in_full(query: SavedQuery) -> Iterator[str]:
    yield f"@{query.name}\n    {query.question} {query.reading}"
    for name, value in query.defaults.items():
        yield f"    --set {name}={parameter_text(value)}: {query.meanings[name]}"


def _all_words(query: SavedQuery) -> str:
    return f"{query.section} {query.name} {query.question} {query.reading}".lower()
