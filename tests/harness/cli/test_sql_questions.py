"""`exitbench sql` without a query lists saved queries by topic; `--queries WORD` shows in full those with the word."""

import pytest

from exitbench.harness.cli.main import main
from exitbench.results.queries import query_names, saved_query
from exitbench.results.queries.cookbook import SECTIONS


def test_saved_queries_are_listed_by_topic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql"]) == 0
    lines = capsys.readouterr().out.splitlines()
    topic, result = "", {}
    for line in lines:
        if line in SECTIONS:
            topic = line
        elif line.startswith("  @"):
            name, _, question = line.strip().partition(" ")
            result[name.removeprefix("@")] = (topic, question.strip())
    assert result == {name: (saved_query(name).section, saved_query(name).question) for name in query_names()}


def test_queries_option_shows_matching_queries_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", "--queries", "NEAR-TIES", "agreement"]) == 0
    output = capsys.readouterr().out
    assert output.count("@") == 1 and "@near_ties" in output and "--set margin=0.1" in output


def test_search_words_without_a_match_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", "--queries", "xyzzy", "ties"]) == 2
    assert "No question has 'xyzzy' and 'ties'" in capsys.readouterr().err
