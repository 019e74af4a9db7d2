"""Saved queries over the views, each one SQL file whose leading comment says what it answers."""

from importlib.resources import files

from exitbench.errors import UserError, suggestion


def query_names() -> tuple[str, ...]:
    """Return the names of the saved queries."""
    return tuple(
        sorted(file.name.removesuffix(".sql") for file in files(__name__).iterdir() if file.name[-4:] == ".sql")
    )


def saved_query(name: str) -> str:
    """Return the SQL text of the saved query `name`, its leading comment included.

    Raises:
        UserError: No such query; says which there are.
    """
    if name not in query_names():
        raise UserError(f"There is no saved query {name!r}.{suggestion(name, query_names())}")
    return (files(__name__) / f"{name}.sql").read_text(encoding="utf-8")
