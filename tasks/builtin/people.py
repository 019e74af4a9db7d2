"""The people whom all three tasks talk about. A name's gender decides pronouns and French endings."""

WOMEN = ("Anna", "Clara", "Eva", "Ida", "Julia", "Lena", "Maria", "Nora", "Olga", "Rosa", "Sofia", "Vera")
MEN = ("Adam", "Ben", "David", "Emil", "Felix", "Hugo", "Ivan", "Karl", "Leo", "Oscar", "Paul", "Theo")
NAMES = WOMEN + MEN


def is_woman(name: str) -> bool:
    """Tell a name's gender."""
    return name in WOMEN
