"""Names of what users add: lower-case words and digits joined by hyphens, which nothing has yet."""

import re
from typing import Final

from exitbench.errors import UserError
from exitbench.terminal import without_middle

MOST_CHARACTERS: Final = 40
_FORM: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", re.ASCII)
_SHOWN: Final = 80


def check_new_name(name: str) -> None:
    """Check that a method, a task or a suite can have a name.

    Raises:
        UserError: It is not of the form that names have, or something has it already.
    """
    from exitbench.harness.planning.entries.declared_task import plugged_in
    from exitbench.harness.planning.suite import suite_names
    from exitbench.methods.registry import method_names, unusable_methods
    from exitbench.tasks.registry import task_names, unusable_tasks
    from exitbench.tasks.translation import is_pair

    if len(name) > MOST_CHARACTERS or not _FORM.fullmatch(name):
        raise UserError(
            f"{without_middle(repr(name), _SHOWN)} cannot be a name. Allowed: lower-case letters a to z, digits and "
            f"single hyphens, a letter first, at most {MOST_CHARACTERS} characters, such as 'my-method'."
        )
    taken = {
        "method": {*method_names(), *unusable_methods()},
        "task": {*task_names(), *unusable_tasks(), *plugged_in(), *([name] if is_pair(name) else ())},
        "suite": {*suite_names()},
    }
    for kind, names in taken.items():
        if name in names:
            raise UserError(f"there is a {kind} named {name!r}: choose another name.")


def module_name(name: str) -> str:
    """Return the name of a Python module for what is called so: `my_method`."""
    return name.replace("-", "_")


def class_name(name: str) -> str:
    """Return the beginning of the names of classes for it: `MyMethod`."""
    return "".join(word.capitalize() for word in name.split("-"))
