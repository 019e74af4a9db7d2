"""Results opened from Python say what the database says."""

from pathlib import Path

import exitbench as eb


def test_views_tokens_and_comparisons_are_tables(example_database: Path) -> None:
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


def test_a_folder_of_runs_is_opened_by_its_name(few_database: Path) -> None:
    with eb.open_results(few_database.parent) as results:
        assert results.database.path == few_database
