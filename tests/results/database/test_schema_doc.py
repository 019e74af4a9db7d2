"""The schema's documentation: every table and view with its comment, columns and references."""

from pathlib import Path

from exitbench.results.database.connection import open_database
from exitbench.results.database.current import ROWS_OF, SHARED, column_description, sections, shown_tables
from exitbench.results.database.schema_doc import described_macros, described_views, schema_markdown
from exitbench.results.tables import TABLES


def test_every_table_and_view_of_a_database_is_described(tmp_path: Path) -> None:
    with open_database(tmp_path / "exitbench.duckdb", read_only=False) as opened:
        tables = opened.query("SELECT table_name FROM duckdb_tables() ORDER BY ALL")["table_name"].to_pylist()
        views = opened.query("SELECT view_name FROM duckdb_views() WHERE NOT internal")["view_name"].to_pylist()
        assert sorted(TABLES) == tables
        assert {view.name for view in described_views()} == set(views)
        for relation in (*TABLES.values(), *described_views()):
            columns = opened.query(f"FROM {relation.name} LIMIT 0").column_names
            assert [column.name for column in relation.columns] == columns
            assert relation.description.endswith("."), relation.name
            assert f"### {relation.name}\n\n{' '.join(relation.description.split())}\n" in schema_markdown()


def test_keys_and_nullable_columns_are_marked() -> None:
    sample = schema_markdown().partition("### sample\n")[2].partition("###")[0]
    assert "| doc_key | VARCHAR key |" in sample and "| output_text | VARCHAR NOT NULL |" in sample
    assert "| input_text | VARCHAR |" in sample


def test_er_diagram_shows_references_and_omits_unrelated_tables() -> None:
    picture = schema_markdown().partition("erDiagram\n")[2].partition("\n```")[0]
    lines = [line.strip() for line in picture.splitlines()]
    assert {"cell ||--o{ attempt : cell_id", "attempt ||--o{ token_exit : attempt_id"} < set(lines)
    assert not [line for line in lines if "source" in line or line.startswith("schema")]


def test_shared_leading_view_columns_are_documented_once() -> None:
    frontier = schema_markdown().partition("### frontier\n")[2].partition("###")[0]
    assert "In addition to the columns of `run_names`:" in frontier
    assert "| mean_exit_layer | DOUBLE |" in frontier and "| suite |" not in frontier


def test_every_macro_is_described(tmp_path: Path) -> None:
    with open_database(tmp_path / "exitbench.duckdb", read_only=False) as opened:
        macros = opened.query("SELECT function_name FROM duckdb_functions() WHERE NOT internal")["function_name"]
    assert {name.partition("(")[0] for name in described_macros()} == set(macros.to_pylist())
    assert all(f"`{name}`: {comment}" in schema_markdown() for name, comment in described_macros().items())


def test_every_view_column_is_documented_and_no_unknown_column_is() -> None:
    views = {view.name: {column.name: column.description for column in view.columns} for view in described_views()}
    assert not [(name, column) for name, columns in views.items() for column, comment in columns.items() if not comment]
    by_section = dict(sections())
    shared, rows_of = by_section.pop(SHARED), by_section.pop(ROWS_OF)
    everywhere = {column for columns in views.values() for column in columns}
    assert not shared.keys() - everywhere
    assert rows_of.keys() <= views.keys()
    assert not [
        (view, column) for view, columns in by_section.items() for column in columns if column not in views[view]
    ]
    assert not [
        (view, column)
        for view, columns in by_section.items()
        for column in columns
        if columns[column] == shared.get(column)
    ]
    assert not [
        (view, column)
        for view, columns in by_section.items()
        for column, text in columns.items()
        if column not in shared and text in _of_tables(view, column)
    ]
    assert "| speedup | DOUBLE | full depth's time over the method's" in schema_markdown()


def _of_tables(view: str, column: str) -> list[str]:
    return [
        column_entry.description
        for table in shown_tables(view)
        for column_entry in TABLES[table].columns
        if column_entry.name == column
    ]


def test_view_columns_inherit_the_description_of_their_table() -> None:
    (head_rows,) = (column.description for column in TABLES["token_exit"].columns if column.name == "head_rows_int8")
    assert column_description("token_trace", "head_rows_int8") == head_rows
    assert f"| head_rows_int8 | INTEGER | {head_rows} |" in schema_markdown().partition("### token_trace")[2]
