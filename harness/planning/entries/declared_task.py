"""Reader of a declared task, that is, a TOML file with fields of local records, a prompt template and metrics."""

from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.harness.reading.toml import TomlTable
from exitbench.plugins import plugins_folder
from exitbench.tasks.declared import DEFAULT_MAX_NEW_TOKENS, Declaration
from exitbench.tasks.registry import task_names

SUFFIX: Final = ".toml"
"""Suffix of a task file. Names of other tasks never end in it."""
_SCHEMA: Final = 1
_KEYS: Final = (
    *("schema", "name", "fields", "prompt", "causal_prompt", "target", "metrics", "bleu_tokenize", "max_new_tokens"),
    "choices",
)
_MAX_NEW_TOKENS: Final = 1_000_000


def find_declaration(name: str, folder: Path) -> Declaration | None:
    """Return the declared task for a name: the path of a TOML file, or the name of a task declared among the plug-ins.

    Args:
        name: The name as the user wrote it.
        folder: Base folder of relative paths.

    Returns:
        The declaration, or None if no declared task has this name.

    Raises:
        UserError: The file does not exist or is invalid.
    """
    if name.endswith(SUFFIX):
        return read_declaration(folder / name)
    return plugged_in().get(name)


def plugged_in() -> dict[str, Declaration]:
    """Return the tasks declared by TOML files among the plug-ins, by name.

    Raises:
        UserError: A file is invalid, or two tasks have the same name.
    """
    plugins = plugins_folder()
    declarations: dict[str, Declaration] = {}
    for path in sorted(plugins.glob(f"*{SUFFIX}")) if plugins else ():
        declaration = read_declaration(path)
        if (
            declarations.setdefault(declaration.name, declaration) is not declaration
            or declaration.name in task_names()
        ):
            raise UserError(f"{path}: there is another task named {declaration.name!r}.")
    return declarations


def read_declaration(path: Path) -> Declaration:
    """Read the declaration of a task from a TOML file.

    Raises:
        UserError: The file is invalid. The message names file, line and key, and the allowed values.
    """
    table = TomlTable.read(path)
    table.allow(*_KEYS)
    if (schema := table.get("schema", int)) != _SCHEMA:
        raise table.error("schema", f"is {schema}; this version reads schema {_SCHEMA} of tasks.")
    fields = table.table("fields")
    if not fields.values:
        raise table.error("fields", 'is missing; it must be a table: name = "column of the file".')
    arguments: dict[str, Any] = {
        "name": table.name("name", table.get("name", str)),
        "fields": tuple((name, fields.get(name, str)) for name in fields.values),
        "prompt": table.get("prompt", str),
        "causal_prompt": table.optional("causal_prompt", str),
        "target": table.get("target", str),
        "metrics": table.strings("metrics"),
        "max_new_tokens": table.positive("max_new_tokens", DEFAULT_MAX_NEW_TOKENS, _MAX_NEW_TOKENS),
        "choices": _choices(table),
        "bleu_tokenize": table.optional("bleu_tokenize", str),
    }
    try:
        return Declaration(**arguments)
    except UserError as error:
        key, _, message = str(error).partition(": ")
        raise table.error(key, message) from None


def _choices(table: TomlTable) -> str | tuple[str, ...] | None:
    value = table.values.get("choices")
    if value is not None and "max_new_tokens" in table.values:
        raise table.error("max_new_tokens", "does not go with choices, which are scored and not written.")
    if value is None or isinstance(value, str):
        return value
    return table.strings("choices")
