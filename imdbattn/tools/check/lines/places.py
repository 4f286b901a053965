"""Where a change can be made in a student's code: the expressions and statements of functions, as
abstract syntax trees.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Place:
    """Where a node is: in a field of another one, or in a list that is such a field."""

    holder: ast.AST
    name: str
    at: int | None
    statement: ast.stmt
    scope: "Scope"

    def get(self) -> ast.expr:
        value: Any = getattr(self.holder, self.name)
        return value if self.at is None else value[self.at]

    def put(self, node: ast.AST) -> None:
        if self.at is None:
            setattr(self.holder, self.name, node)
        else:
            getattr(self.holder, self.name)[self.at] = node


@dataclass
class Scope:
    """A function, the names that it knows, the attributes of its class by how they are made, and
    those that no method reads.
    """

    function: Function
    names: list[str] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)


def scopes(definition: ast.stmt) -> Iterator[Scope]:
    """The function, or the methods of the class, and the functions within them."""
    attributes = made_attributes(definition)
    read = [
        node.attr
        for node in ast.walk(definition)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    ]
    unused = [name for name in attributes if name not in read]
    for node in ast.walk(definition):
        if isinstance(node, Function):
            yield Scope(node, local_names(node), attributes, unused)


def local_names(function: Function) -> list[str]:
    """The names that are assigned, the last one first, and the arguments without self."""
    given = function.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    names = [argument.arg for argument in arguments if argument.arg != "self"]
    stored = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    stored.sort(key=lambda node: (-node.lineno, -node.col_offset))
    return list(dict.fromkeys([node.id for node in stored] + names))


def made_attributes(definition: ast.stmt) -> dict[str, str]:
    """The attributes of self, with the name of the call that makes each."""
    made: dict[str, str] = {}
    for node in ast.walk(definition):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if is_of_self(target):
                    call = node.value
                    name = ast.unparse(call.func) if isinstance(call, ast.Call) else "value"
                    made[target.attr] = name  # type: ignore[attr-defined]
    return made


def is_of_self(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def places(scope: Scope) -> Iterator[Place]:
    """Each expression of the function that is read, within its statement."""
    for statement in statements(scope.function.body):
        waiting: list[ast.AST] = [statement]
        while waiting:
            holder = waiting.pop(0)
            for name, value in ast.iter_fields(holder):
                if name in ("annotation", "returns", "type_comment", "ctx", "op", "ops"):
                    continue
                values = value if isinstance(value, list) else [value]
                for at, node in enumerate(values):
                    inner = isinstance(node, ast.keyword | ast.comprehension)
                    if isinstance(node, ast.expr):  # slices, too
                        yield Place(
                            holder, name, at if isinstance(value, list) else None, statement, scope
                        )
                    if isinstance(node, ast.expr) or inner:
                        waiting.append(node)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements, and those within if, for and with; not those of inner functions."""
    for statement in body:
        yield statement
        if not isinstance(statement, Function | ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                yield from statements(getattr(statement, name, []))


def whole_number(node: ast.AST) -> int | None:
    try:
        value = ast.literal_eval(node) if isinstance(node, ast.Constant | ast.UnaryOp) else None
    except (ValueError, TypeError):
        return None
    return value if type(value) is int else None


def called_name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def is_package(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("torch", "F", "nn", "math", "np", "self")


def first_line(statement: ast.stmt) -> str:
    return ast.unparse(statement).split("\n")[0]


def of_self(name: str) -> ast.Attribute:
    return ast.Attribute(ast.Name("self", ast.Load()), name, ast.Load())


def says_mask(name: str) -> bool:
    """Whether a name says that it is a mask."""
    return "mask" in name or "pad" in name


def tensor_of(call: ast.Call) -> ast.expr | None:
    """x of a call x.method(...); None for functions."""
    if not isinstance(call.func, ast.Attribute) or is_of_self(call.func):
        return None
    return None if is_package(call.func.value) else call.func.value
