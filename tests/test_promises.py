"""Every public attribute that a plug-in may declare on a task, method or gate is read somewhere in the product."""

import ast
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ("harness", "methods", "tasks", "results", "reports")
CLASSES = {"Task": "tasks/base.py", "Method": "methods/base/method.py", "Gate": "methods/base/parts.py"}


@dataclass(frozen=True)
class AttributeRead:
    """Place in the code where an attribute is read.

    Attributes:
        package: The top-level folder.
        inside: The innermost class around it; "" if there is none.
        functions: The functions around it.
        of: The last name of the object: `task_object` for `item.data.task_object`, `get_task` for `get_task(x)`.
        name: The attribute.
    """

    package: str
    inside: str
    functions: tuple[str, ...]
    of: str
    name: str


@dataclass
class Product(ast.NodeVisitor):
    """Visitor that collects all attributes read, and the names of each class's base classes."""

    reads: set[AttributeRead] = field(default_factory=set)
    bases: dict[str, set[str]] = field(default_factory=dict)
    package: str = ""
    inside: str = ""
    functions: tuple[str, ...] = ()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.bases.setdefault(node.name, set()).update(map(last_name, node.bases))
        before, self.inside = self.inside, node.name
        self.generic_visit(node)
        self.inside = before

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        before, self.functions = self.functions, (*self.functions, node.name)
        self.generic_visit(node)
        self.functions = before

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self.reads.add(AttributeRead(self.package, self.inside, self.functions, last_name(node.value), node.attr))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        match node:
            case ast.Call(func=ast.Name("getattr"), args=[of, ast.Constant(str(name)), *_]):
                self.reads.add(AttributeRead(self.package, self.inside, self.functions, last_name(of), name))
        self.generic_visit(node)

    def family(self, name: str) -> set[str]:
        """Return the names of a class and of all classes derived from it."""
        found = {name}
        while more := {one for one, bases in self.bases.items() if bases & found} - found:
            found |= more
        return found


def last_name(expression: ast.expr) -> str:
    match expression:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=ast.Name("type"), args=[of]):
            return last_name(of)
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return last_name(inner)
    return ""


@cache
def product() -> Product:
    found = Product()
    for found.package in PRODUCT:
        for path in (ROOT / found.package).rglob("*.py"):
            found.visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def declared(name: str) -> set[str]:
    """Return the public attributes and functions of a class."""
    tree = ast.parse((ROOT / CLASSES[name]).read_text(encoding="utf-8"))
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    names = set()
    for node in body:
        match node:
            case ast.FunctionDef(name=attribute) | ast.AnnAssign(target=ast.Name(attribute)):
                names.add(attribute)
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {attribute for attribute in names if not attribute.startswith("_")}


def read_of(name: str) -> set[str]:
    """Return the names of attributes that product code reads from objects of a class.

    Such an object is recognized by its variable or function, whose name contains that of the class, ignoring case.
    `self` and `super()` count in the class and in classes derived from it, and `cls` in the class's top-level folder.
    An override that reads the overridden attribute does not count.
    """
    family = product().family(name)
    return {
        read.name
        for read in product().reads
        if not (read.inside in family and read.name in read.functions)
        and (
            name.lower() in read.of.lower()
            or (read.inside in family and read.of in ("self", "super"))
            or (read.of == "cls" and CLASSES[name].startswith(f"{read.package}/"))
        )
    }


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_attribute_is_read_by_the_product(name: str) -> None:
    assert declared(name) - read_of(name) == set()
