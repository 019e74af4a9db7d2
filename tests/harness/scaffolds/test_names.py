"""Names of users' methods and tasks, and the Python names derived from them."""

import pytest

from exitbench.errors import UserError
from exitbench.harness.scaffolds import MOST_CHARACTERS, check_new_name, class_name, module_name


@pytest.mark.parametrize("name", ["mine", "top-3", "a", "class", "x" * MOST_CHARACTERS])
def test_words_and_digits_joined_by_hyphens_are_valid_names(name: str) -> None:
    check_new_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("", "Mine", "my_method", "my method", "-mine", "mine-", "my--method", "3-top", "méthode", "mine.toml"),
        *("../mine", "mine\n", "x" * (MOST_CHARACTERS + 1)),
    ],
)
def test_invalid_names_are_refused_with_the_allowed_form(name: str) -> None:
    with pytest.raises(UserError, match=r"cannot be a name\. Allowed: lower-case letters a to z") as caught:
        check_new_name(name)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("name", "kind"),
    [("max-prob", "method"), ("squad", "task"), ("wmt16-en-ro", "task"), ("builtin", "suite")],
)
def test_existing_names_are_refused(name: str, kind: str) -> None:
    with pytest.raises(UserError, match=f"there is a {kind} named '{name}'"):
        check_new_name(name)


def test_module_and_class_names_are_derived_from_the_name() -> None:
    assert module_name("my-top-3") == "my_top_3"
    assert class_name("my-top-3") == "MyTop3"
