"""Small changes of a student's code, one line each."""

import ast
import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from imdbattn.tools.check.lines import calls, values
from imdbattn.tools.check.lines.places import (
    Function,
    Place,
    Scope,
    first_line,
    places,
    scopes,
    statements,
)

Put = Callable[[Any], None]
Kind = Callable[[Place, ast.expr], values.Expressions]

# what is most often meant first
KINDS: tuple[tuple[Kind, ...], ...] = (
    (
        values.axis,
        values.negation,
        values.comparison,
        values.flag,
        calls.copies,
        calls.with_keyword,
        calls.in_training,
        calls.function,
    ),
    (
        values.operand,
        values.index,
        values.root,
        calls.scale,
        values.fill,
        values.attribute,
        calls.module,
        calls.heads,
        calls.repeated,
        calls.with_tanh,
        values.ends,
    ),
    (
        calls.mean_of_words,
        calls.count_of_words,
        calls.factor,
        calls.masked_scores,
        values.variable,
        values.operator,
        calls.without_call,
        values.number,
        values.exchanged,
        values.doubled,
        values.added,
    ),
    (
        calls.transposed,
        values.part_of,
        calls.keyword,
        calls.with_softmax,
    ),
    (calls.indices,),
)


class Edit:
    """A change of one statement.

    rank: 0 for what is most often meant. put: puts one of old and new in its place. after: what is
    there instead of the statement, "" for nothing; None for the changed statement.
    """

    def __init__(
        self, rank: int, statement: ast.stmt, put: Put, old: Any, new: Any, after: str | None = None
    ) -> None:
        self.rank, self.statement = rank, statement
        self.put, self.old, self.new, self.after = put, old, new, after

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The tree is changed within a with block."""
        self.put(self.new)
        try:
            yield
        finally:
            self.put(self.old)

    def texts(self) -> tuple[str, str]:
        """The first line of the statement before and after."""
        before = first_line(self.statement)
        with self.applied():
            after = first_line(self.statement) if self.after is None else self.after
            return before, after


def edits_of(definition: ast.stmt) -> Iterator[Edit]:
    """The changes of a function or a class."""
    for scope in scopes(definition):
        for place in places(scope):
            yield from of_expression(place)
        yield from of_statements(scope)


def of_expression(place: Place) -> Iterator[Edit]:
    node = place.get()
    if isinstance(getattr(node, "ctx", None), ast.Store):
        return
    for rank, kinds in enumerate(KINDS):
        for kind in kinds:
            for new in kind(place, node):
                yield replacing(rank, place, node, new)


def replacing(rank: int, place: Place, old: ast.AST, new: ast.expr) -> Edit:
    ast.fix_missing_locations(ast.copy_location(new, old))
    return Edit(rank, place.statement, place.put, old, new)


def of_statements(scope: Scope) -> Iterator[Edit]:
    for body in bodies(scope.function):
        for at, statement in enumerate(body):
            if isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr | ast.If):
                yield replacing_body(2, statement, body, without(body, at), "")
            if at + 1 < len(body):
                after = f"{first_line(body[at + 1])}, and then {first_line(statement)}"
                yield replacing_body(3, statement, body, swapped(body, at), after)
            following = body[at + 1 :]
            loops = [one for one in following if isinstance(one, ast.For | ast.While)]
            if isinstance(statement, ast.Assign) and loops:
                yield moving(1, statement, loops[0])


def bodies(function: Function) -> Iterator[list[ast.stmt]]:
    yield function.body
    for statement in statements(function.body):
        for name in ("body", "orelse"):
            inner = getattr(statement, name, [])
            if inner and not isinstance(statement, Function | ast.ClassDef):
                yield inner


def without(body: list[ast.stmt], at: int) -> list[ast.stmt]:
    return [*body[:at], *body[at + 1 :]] or [
        ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)
    ]


def swapped(body: list[ast.stmt], at: int) -> list[ast.stmt]:
    return [*body[:at], body[at + 1], body[at], *body[at + 2 :]]


def replacing_body(
    rank: int, statement: ast.stmt, body: list[ast.stmt], new: list[ast.stmt], after: str
) -> Edit:
    def put(statements: list[ast.stmt]) -> None:
        body[:] = statements

    return Edit(rank, statement, put, list(body), new, after)


def moving(rank: int, statement: ast.stmt, loop: ast.For | ast.While) -> Edit:
    """A copy of the statement is the first one of the loop."""
    after = f"{first_line(statement)}, again within {first_line(loop)}"
    new = [copy.deepcopy(statement), *loop.body]
    return replacing_body(rank, statement, loop.body, new, after)
