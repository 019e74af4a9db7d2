"""Results opened from Python equal those of the database."""

from pathlib import Path

import pytest

import exitbench as eb
from exitbench.results.queries import saved_query


def test_frontier_tokens_and_comparisons_are_returned_as_tables(example_database: Path) -> None:
    with eb.open_results(example_database) as results:
        frontier = results.frontier()
        assert frontier.num_rows == results.sql("SELECT count(*) AS n FROM frontier")["n"].to_pylist()[0] > 10
        first = frontier.to_pandas().iloc[0]
        name = f"{first['model']}/{first['task_label']}/full"
        tokens = results.tokens(name)
        counted = results.sql(
            "SELECT count(*) AS n FROM token_trace WHERE attempt_id = ?", [tokens["attempt_id"][0].as_py()]
        )
        assert tokens.num_rows == counted["n"].to_pylist()[0] > 0
        contrasts = results.compare(name, f"{first['model']}/{first['task_label']}/static*")
        assert {"p", "low", "high"} <= set(contrasts.column_names)


def test_open_results_accepts_a_runs_folder(few_database: Path) -> None:
    with eb.open_results(few_database.parent) as results:
        assert results.database.path == few_database


def test_saved_queries_take_keyword_parameters(example_database: Path) -> None:
    with eb.open_results(example_database) as results:
        everything, some = results.ask("near_ties"), results.ask("@near_ties", method="static")
        assert everything.equals(results.sql(saved_query("near_ties").with_defaults()))
        assert 0 < some.num_rows < everything.num_rows
        assert set(some["method"].to_pylist()) == {"static"}
        with pytest.raises(eb.UserError, match=r"near_ties has no parameter 'methd'\. Did you mean 'method'"):
            results.ask("near_ties", methd="static")
        with pytest.raises(eb.UserError, match=r"There is no saved query 'near_tie'\. Did you mean"):
            results.ask("near_tie")
